"""The stage that turns raw samples into documents."""

from __future__ import annotations

import binascii
import dataclasses
import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from penstock.context import Context
from penstock.documents.assign import ASSIGN, assign_best, assign_optimal, similarity_matrix
from penstock.documents.layouts import ImageEntry, Outline, Sample, check_layout, read_outline
from penstock.documents.pieces import Document, ImagePiece, Piece, TextPiece
from penstock.errors import Origin, PipelineError, SampleError
from penstock.handlers import Handler, reraise_exception
from penstock.stages.run import Run
from penstock.stages.stage import Each

logger = logging.getLogger("penstock.documents")

MISSING = ("error", "drop_image", "drop_document")
PLACES = ("before", "after")


class documents(Each[Sample, Document]):
    """Makes a :class:`~penstock.documents.Document` of each raw sample: text and images in order.

    ``layout`` is one of :data:`penstock.documents.LAYOUTS`, or "auto": detected from the first
    samples, after which a document of another layout is a :class:`~penstock.errors.PipelineError`.
    The images of ``obelics`` documents, which are URLs, and others that are not in the sample, are
    looked up in ``media``: a mapping from URL or name to bytes, or an indexed set
    (:class:`penstock.IndexedDataset`) with their names as keys. Nothing is fetched from a URL.

    If the data does not define an order (MMC4's sentences and images), ``assign``
    puts each image next to a sentence: ``"index"`` takes the data's ``matched_text_index``,
    ``"best"`` the most similar sentence of ``similarity_matrix``, ``"optimal"`` at most one image
    per sentence with the largest sum of similarities. ``place`` puts it before or after the
    sentence.

    Filters run before any image is decoded. Images less similar than ``threshold`` are dropped,
    with a threshold above 0 also those without a similarity, and those after the first
    ``max_images``; the document ends after ``max_text`` characters; then documents with fewer than
    ``min_images`` are dropped, and counted as skipped.

    ``missing`` decides about images that are absent or not readable as base64, and about what
    cannot be placed, such as a similarity matrix with NaN: ``"error"`` raises a
    :class:`~penstock.errors.SampleError`, which is passed to ``handler``; ``"drop_image"`` leaves
    the image out and counts it in ``document.missing``; ``"drop_document"`` drops the document,
    which is counted as skipped. What is dropped is logged to "penstock.documents" with its origin.

    >>> data = b'{"text_list": ["A cat."], "image_info": [{"image_name": "x.jpg", '
    >>> data += b'"matched_text_index": 0, "matched_sim": 0.3}]}'
    >>> (document,) = documents()([{"__key__": "a", "json": data, "x.jpg": b"..."}])
    >>> document.pieces[0]
    ImagePiece(name='x.jpg', data=b'...', url=None, similarity=0.3)
    >>> document.pieces[1]
    TextPiece(text='A cat.')
    """

    keeps_count: bool | None = None

    def __init__(
        self,
        layout: str = "auto",
        *,
        assign: str = "index",
        threshold: float = 0.0,
        place: str = "before",
        min_images: int = 0,
        max_images: int | None = None,
        max_text: int | None = None,
        missing: str = "error",
        media: Any = None,
        handler: Handler = reraise_exception,
    ) -> None:
        for name, value, choices in (
            ("assign", assign, ASSIGN),
            ("place", place, PLACES),
            ("missing", missing, MISSING),
        ):
            if value not in choices:
                raise PipelineError(f"documents: {name} is one of {choices}, not {value!r}")
        limits = {"min_images": min_images, "max_images": max_images, "max_text": max_text}
        for name, limit in limits.items():
            if limit is not None and (not isinstance(limit, (int, np.integer)) or limit < 0):
                raise PipelineError(f"documents: {name} is a number of at least 0, not {limit!r}")
        if max_images is not None and max_images < min_images:
            raise PipelineError(
                f"documents: no document has min_images={min_images} of max_images={max_images}"
            )
        if not isinstance(threshold, (int, float, np.number)) or math.isnan(threshold):
            raise PipelineError(f"documents: threshold is a number, not {threshold!r}")
        if not (media is None or isinstance(media, Mapping) or hasattr(media, "by_key")):
            raise PipelineError(
                "documents: media is a mapping from URL or name to bytes, or an indexed set, not "
                f"{type(media).__name__}"
            )
        self.layout, self.media = check_layout(layout), media
        self.assign, self.threshold, self.place = assign, threshold, place
        self.min_images, self.max_images, self.max_text = min_images, max_images, max_text
        self.missing = missing
        keeps_all = missing == "error" and not min_images
        unchanged = keeps_all and handler is reraise_exception
        self.handler = handler if unchanged else DropHandler(handler)
        if keeps_all:
            self.keeps_count = True

    def start(self, source: Run[Sample], context: Context) -> Run[Document]:
        self.__dict__.pop("_detected", None)  # another stream may have another layout
        return super().start(source, context)

    def apply(self, item: Sample) -> Document:
        try:
            return self._document(item)
        except SampleError as error:
            # An image without its document is no document either.
            orphan = "json" not in item and self.missing != "error"
            if self.missing == "drop_document" or orphan:
                error.__dict__["dropped"] = True
            raise

    def _document(self, item: Sample) -> Document:
        outline = read_outline(item, self.layout, self.media)
        self._check_layout(outline.layout)
        self._check_count(len(outline.images))
        key = item.get("__key__", "")
        origin = Origin(item.get("__url__", ""), key) if "__url__" in item else None
        document = Document(key, [], outline.meta, origin)
        places = self._places(outline, document)
        self._check_count(sum(map(len, places)))
        self._add_pieces(document, outline.texts, places)
        if self.min_images:
            self._check_count(len(document.images))
        return document

    def _check_count(self, images: int) -> None:
        """Drop a document with too few images."""
        if images < self.min_images:
            error = SampleError(f"{images} images are fewer than min_images={self.min_images}")
            error.__dict__["dropped"] = True
            raise error

    def _check_layout(self, layout: str) -> None:
        """Refuse a document of another layout than the first that shows one."""
        if self.layout != "auto" or not layout:
            return
        detected = self.__dict__.setdefault("_detected", layout)  # one step: threads share it
        if layout != detected:
            raise PipelineError(
                f"a document has the layout {layout}, but the first documents have {detected}: "
                "read sets of different layouts apart, each with documents(), and mix them then"
            )

    def _places(self, outline: Outline, document: Document) -> list[list[ImageEntry]]:
        """Return the images before each text, and those after the last one."""
        places: list[list[ImageEntry]] = [[] for _ in range(len(outline.texts) + 1)]
        later = 0 if outline.ordered or self.place == "before" else 1
        for entry, index in self._indexes(outline, document):
            if (entry.similarity or 0.0) < self.threshold:
                continue
            places[index + later].append(entry)
        return places

    def _indexes(self, outline: Outline, document: Document) -> list[tuple[ImageEntry, int]]:
        """Return the images that are there, each with the number of its text."""
        there = []
        for row, entry in enumerate(outline.images):
            if entry.problem:
                self._drop(document, entry, entry.problem)
            else:
                there.append((row, entry))
        if outline.ordered:
            return [(entry, entry.index) for _, entry in there]
        texts = len(outline.texts)
        if self.assign == "index":
            return [
                (entry, entry.index)
                for _, entry in there
                if self._has_index(document, entry, texts)
            ]
        try:
            given = outline.meta.get("similarity_matrix")
            matrix = similarity_matrix(given, len(outline.images), texts)
        except SampleError as error:
            if self.missing != "drop_image":
                raise
            for _, entry in there:
                self._drop(document, entry, str(error))
            return []
        if not texts:
            for _, entry in there:
                self._drop(document, entry, "the document has no text")
            return []
        matrix = matrix[[row for row, _ in there]]
        found = assign_best(matrix) if self.assign == "best" else assign_optimal(matrix)
        placed = []
        for (_, entry), match in zip(there, found):
            if match is not None:
                index, entry.similarity = match
                placed.append((entry, index))
        return placed

    def _has_index(self, document: Document, entry: ImageEntry, texts: int) -> bool:
        if type(entry.index) is int and 0 <= entry.index < texts:
            return True
        wrong = f"matched_text_index is {entry.index!r:.50}, but there are {texts} texts"
        self._drop(document, entry, wrong)
        return False

    def _add_pieces(
        self, document: Document, texts: list[str], places: list[list[ImageEntry]]
    ) -> None:
        pieces: list[Piece] = document.pieces
        left = self.max_text
        images = 0
        for number, entries in enumerate(places):
            for entry in entries:
                if self.max_images is not None and images >= self.max_images:
                    break
                image = self._image(document, entry)
                if image is not None:
                    pieces.append(image)
                    images += 1
            text = texts[number] if number < len(texts) else ""
            if left is not None and len(text) > left:
                text, over = text[:left], True
            else:
                left, over = left if left is None else left - len(text), False
            if text:
                pieces.append(TextPiece(text))
            if over:
                return

    def _image(self, document: Document, entry: ImageEntry) -> ImagePiece | None:
        data = entry.data
        if isinstance(data, (str, memoryview)):
            try:
                data = decode_base64(data)
            except ValueError as error:
                self._drop(document, entry, f"its base64 text cannot be decoded ({error})")
                return None
            if not data:
                self._drop(document, entry, "its base64 text is empty")
                return None
        return ImagePiece(entry.name, data, entry.url, entry.similarity)

    def _drop(self, document: Document, entry: ImageEntry, problem: str) -> None:
        """Leave out an image, or raise an error, as ``missing`` says."""
        message = f"the image {entry.name!r:.200} of a document cannot be used: {problem}"
        if self.missing != "drop_image":
            raise SampleError(f'{message}; missing="drop_image" leaves it out')
        document.missing += 1
        logger.info("%s (%s)", message, document.origin or document.key)


@dataclasses.dataclass(frozen=True)
class DropHandler:
    """Skips documents that the stage drops, and asks the user's handler about other samples.

    A :class:`~penstock.errors.PipelineError` is not about one sample, so it is raised.
    """

    handler: Handler

    def __call__(self, error: Exception) -> bool:
        if error.__dict__.get("dropped"):
            logger.info("a document was dropped: %s", error)
            return True
        if isinstance(error, PipelineError):
            raise error
        return self.handler(error)


def decode_base64(text: str | memoryview) -> bytes:
    """Decode base64 text; anything outside of its alphabet but white space is a ValueError.

    >>> decode_base64("aGVs\\nbG8=")
    b'hello'
    """
    data = text.encode("ascii") if isinstance(text, str) else text  # may raise a ValueError
    try:
        return binascii.a2b_base64(data, strict_mode=True)
    except binascii.Error:
        return binascii.a2b_base64(b"".join(bytes(data).split()), strict_mode=True)
