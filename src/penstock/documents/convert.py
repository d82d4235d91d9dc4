"""Convert documents between layouts, and from MMC4's files into shards."""

from __future__ import annotations

import base64
import gzip
import json
import logging
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from penstock.documents.layouts import LAYOUTS, MARKER, ImageEntry, Outline, Sample, read_outline
from penstock.documents.pieces import Document, ImagePiece, TextPiece
from penstock.documents.stage import decode_base64, documents
from penstock.errors import (
    Origin,
    PenstockError,
    PipelineError,
    SampleError,
    UnsafeError,
    WriteError,
)
from penstock.handlers import Handler, ask, reraise_exception
from penstock.redact import canonical_url
from penstock.shards.index import build_index
from penstock.shards.index.default_path import beside
from penstock.shards.index.shard_stamps import refuse_streams
from penstock.shards.open_shard import open_shard
from penstock.shards.sample_reader import Samples
from penstock.shards.writing.shard_writer import ShardWriter
from penstock.stages.reading.tar_samples import tarfile_to_samples
from penstock.storage import open_url
from penstock.storage.listing import find_shards

logger = logging.getLogger("penstock.documents")

JSON_LINES = (".jsonl", ".jsonl.gz")
LOOKED_AT = 100
"""Members of a shard that are read to detect whether it is grouped by dashes."""
_ENDINGS = {b"\x89PNG": ".png", b"GIF8": ".gif", b"RIFF": ".webp"}
_NOT_IN_NAMES = re.compile(r"[/\\\0-\x1f\x7f]")
_PLAIN_KEY = re.compile(r"[^.\0]+(/[^.\0]+)*")


def convert(
    src: Any,
    pattern: str | os.PathLike[str],
    *,
    to: str,
    images: Any = None,
    maxcount: float = 100_000,
    maxsize: float = 3e9,
    index: bool = True,
    handler: Handler = reraise_exception,
) -> list[str]:
    """Write documents into shards of another layout; return the URLs of the shards.

    ``src`` is shards (any that :func:`penstock.storage.listing.find_shards` takes) whose layout is
    detected, or MMC4's files (``.jsonl``, ``.jsonl.gz``), one or a list. ``images`` is where the
    images are that ``src`` only names: a folder, a mapping, or an indexed set
    (:func:`penstock.documents.layouts.find_media`). Images that are not found are left out of the
    document, and their number is logged to "penstock.documents". ``pattern``, ``maxcount`` and
    ``maxsize`` are as in :class:`penstock.ShardWriter`; a document is never split. ``index`` also
    writes the index of the shards beside them.

    MMC4's JSON stays as it is between ``dashed`` and ``base64``; for the other layouts, images go
    before the sentence that ``matched_text_index`` names. Shards of the layout ``dashed`` are read
    with ``group="dashed"``, which their index records.

    A document that cannot be read is a :class:`~penstock.errors.SampleError`, an image whose name
    leaves a folder an :class:`~penstock.errors.UnsafeError`; ``handler`` decides about them.
    """
    if to not in LAYOUTS:
        raise PipelineError(f"convert: to is one of {', '.join(LAYOUTS)}, not {to!r}")
    media = ImageDirectory(images) if isinstance(images, (str, os.PathLike)) else images
    if index:
        refuse_streams(os.fspath(pattern))
    written: list[str] = []
    left_out = 0
    sink = ShardWriter(
        *(pattern, float("inf"), float("inf")), post=written.append, encoder=False, check=False
    )
    with sink:
        count = size = 0
        for sample in _samples(src, handler):
            try:
                key = _checked_key(sample["__key__"])
                outline = read_outline(sample, "auto", media)
                missing = _leave_out_missing(outline)
                members = list(_encode(key, outline, to))
            except PenstockError as error:
                if error.origin is None:
                    error.locate(Origin(sample.get("__url__", ""), sample["__key__"]))
                if ask(handler, error):
                    continue
                break
            left_out += missing
            if count >= maxcount or size >= maxsize:
                sink.next_stream()
                count = size = 0
            for member in members:
                size += sink.write(member)
            count += 1
    if left_out:
        logger.warning("convert: %d images were not found and are left out", left_out)
    if index and written:
        build_index(written, beside(written), group="dashed" if to == "dashed" else "key")
    return written


class ImageDirectory:
    """The images in a folder, by file name, exact or case-insensitive.

    A name that leaves the folder, also through a link, is an :class:`~penstock.errors.UnsafeError`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = os.path.realpath(os.path.expanduser(os.fspath(folder)))
        if not os.path.isdir(self.folder):
            raise PipelineError(f"images is a folder, a mapping or an indexed set, not {folder!r}")
        self._names: dict[str, str] | None = None

    def by_key(self, name: str) -> bytes:
        """Return the bytes of an image; raise SampleError if there is none of that name."""
        if "://" in name:
            raise SampleError(f"there is no image {name!r:.200}")
        path = self._path(name)
        if not os.path.isfile(path):
            path = self._path(self._listed().get(name.lower(), name))
        try:
            with open(path, "rb") as file:
                return file.read()
        except OSError as error:
            raise SampleError(f"there is no image {name!r:.200} ({error.strerror})") from error

    def _path(self, name: str) -> str:
        if "\0" in name:
            raise UnsafeError(f"the image name {name!r:.200} has a NUL")
        path = os.path.realpath(os.path.join(self.folder, name))
        if os.path.commonpath([path, self.folder]) != self.folder:
            raise UnsafeError(f"the image name {name!r:.200} leaves the folder {self.folder}")
        return path

    def _listed(self) -> dict[str, str]:
        if self._names is None:
            self._names = {name.lower(): name for name in sorted(os.listdir(self.folder))}
        return self._names


def _samples(src: Any, handler: Handler) -> Iterator[Sample]:
    """Yield the raw samples of shards, or of the lines of JSONL files."""
    given = [src] if isinstance(src, (str, os.PathLike)) else list(src)
    names = [os.fspath(name) for name in given]
    if all(name.endswith(JSON_LINES) for name in names):
        number = 0
        for name in names:
            for sample in _lines(name, number):
                number += 1
                yield sample
        return
    urls = find_shards(src)
    group = detect_group(urls[0]) if urls else "key"
    yield from tarfile_to_samples(group=group, handler=handler)({"url": url} for url in urls)


def _lines(name: str, number: int) -> Iterator[Sample]:
    with open_url(name) as stream:
        packed: Any = stream
        file: Any = gzip.GzipFile(fileobj=packed) if name.endswith(".gz") else packed
        for line in _split_lines(file.read):
            if line.strip():
                yield {"__key__": f"{number:09d}", "__url__": canonical_url(name), "json": line}
                number += 1


def _split_lines(read: Callable[[int], bytes]) -> Iterator[bytes]:
    rest: list[bytes] = []
    while piece := read(1 << 20):
        *lines, last = piece.split(b"\n")
        for line in lines:
            yield b"".join([*rest, line])
            rest = []
        rest.append(last)
    yield b"".join(rest)


def detect_group(url: str) -> str:
    """Detect from the first members of a shard how they are grouped: "dashed" or "key"."""
    document = None
    with open_shard(url) as tape:
        for number, sample in enumerate(Samples(tape)):
            key = sample["__key__"]
            if "json" in sample:
                document = key
            elif document is not None and key.startswith(f"{document}-"):
                return "dashed"
            if number >= LOOKED_AT:
                break
    return "key"


def _checked_key(key: str) -> str:
    if not _PLAIN_KEY.fullmatch(key):
        raise WriteError(f"a key has no dots and no empty parts, but this one is {key!r:.200}")
    return key


def _leave_out_missing(outline: Outline) -> int:
    """Remove images that are missing, and their rows of the similarity matrix."""
    there = [not image.problem for image in outline.images]
    if all(there):
        return 0
    if outline.form == "sentences":
        for name in ("image_info", "similarity_matrix"):
            rows = outline.meta.get(name)
            if isinstance(rows, list) and len(rows) == len(there):
                outline.meta[name] = [row for row, kept in zip(rows, there) if kept]
    outline.images = [image for image in outline.images if not image.problem]
    return there.count(False)


def _encode(key: str, outline: Outline, to: str) -> Iterator[Sample]:
    """Return the samples to write; the layout ``dashed`` may need several."""
    for image in outline.images:
        _decode_data(image)
    if to in ("dashed", "base64"):
        data = outline.meta if outline.form == "sentences" else _as_sentences(outline)
        if to == "base64":
            for info, image in zip(data["image_info"], outline.images):
                info["image_base64"] = _base64(image)
            return iter([_sample(key, data)])
        return iter([_sample(key, data), *_dashed(key, data, outline.images)])
    document = Document(key, [])
    stage = documents(threshold=float("-inf"))
    stage._add_pieces(document, outline.texts, stage._places(outline, document))
    if to == "markers":
        return iter([_sample(key, _as_markers(document))])
    data = _as_lists(document, to)
    if to == "obelics":
        return iter([_sample(key, data)])
    fields = dict(_named(document.images))
    return iter([{**_sample(key, data), **fields}])


def _sample(key: str, data: dict[str, Any]) -> Sample:
    return {"__key__": key, "json": json.dumps(data, ensure_ascii=False).encode()}


def _decode_data(image: ImageEntry) -> None:
    if isinstance(image.data, (str, memoryview)):
        try:
            image.data = decode_base64(image.data)
        except ValueError as error:
            raise SampleError(
                f"the base64 text of the image {image.name!r:.200} cannot be decoded: {error}"
            ) from error


def _base64(image: Any) -> str:
    return base64.b64encode(_bytes(image)).decode()


def _bytes(image: Any) -> bytes:
    if image.data is None:
        raise SampleError(
            f"the bytes of the image {image.name!r:.200} are not part of the document: pass images="
        )
    data: bytes = image.data
    return data


def member_name(name: str, data: bytes) -> str:
    """Return the member name of an image: its own name, with an extension if it has none.

    >>> member_name("Ab.JPG", b""), member_name("x", b"GIF89a")
    ('ab.jpg', 'x.gif')
    """
    if _NOT_IN_NAMES.search(name) or name.startswith("."):
        raise UnsafeError(f"an image cannot be stored under the name {name!r:.200}")
    ending = "" if name.rpartition(".")[0] else _ENDINGS.get(data[:4], ".jpg")
    return (name + ending).lower()


def _named(images: list[Any]) -> Iterator[tuple[str, bytes]]:
    seen: dict[str, bytes] = {}
    for image in images:
        name, data = member_name(image.name, _bytes(image)), _bytes(image)
        if name in ("json", "x.json") or seen.setdefault(name, data) != data:
            raise WriteError(
                f"two images of the document are named {name!r}, without regard to case"
            )
    return iter(seen.items())


def _dashed(key: str, data: dict[str, Any], images: list[ImageEntry]) -> Iterator[Sample]:
    for name, payload in _named(images):
        first, _, field = name.partition(".")
        yield {"__key__": f"{key}-{first}", field: payload}


def _as_sentences(outline: Outline) -> dict[str, Any]:
    """Return MMC4's JSON of a document of known order: each image goes before a text."""
    texts = list(outline.texts)
    if any(image.index >= len(texts) for image in outline.images):
        texts.append("")  # an image after the last text
    infos = []
    for image in outline.images:
        info = {"image_name": image.name, "raw_url": image.url, "matched_text_index": image.index}
        info["matched_sim"] = image.similarity
        infos.append({name: value for name, value in info.items() if value is not None})
    return {"text_list": texts, "image_info": infos}


def _about(image: ImagePiece) -> dict[str, Any]:
    about = {"image_name": image.name, "raw_url": image.url, "matched_sim": image.similarity}
    return {name: value for name, value in about.items() if value is not None}


def _as_lists(document: Document, to: str) -> dict[str, Any]:
    given: list[str | None] = []
    texts: list[str | None] = []
    about: list[dict[str, Any] | None] = []
    for piece in document.pieces:
        if isinstance(piece, TextPiece):
            row: tuple[Any, ...] = (None, piece.text, None)
        elif to == "obelics":
            row = (piece.url or piece.name, None, _about(piece))
        else:
            row = (member_name(piece.name, _bytes(piece)), None, _about(piece))
        given.append(row[0])
        texts.append(row[1])
        about.append(row[2])
    name, value = ("metadata", json.dumps(about)) if to == "obelics" else ("image_info", about)
    return {"images": given, "texts": texts, name: value}


def _as_markers(document: Document) -> dict[str, Any]:
    words: list[str] = []
    breaks: list[int] = []
    known: dict[str, Any] = {}
    at, after_text = 0, False
    for piece in document.pieces:
        if isinstance(piece, TextPiece):
            if MARKER.search(piece.text):
                raise WriteError(f"a text has the marker of an image in it: {piece.text!r:.200}")
            if after_text:
                breaks.append(at)
            words.append(piece.text)
        else:
            words.append(f"_!_IMAGE{len(known) + 1}_!_")
            known[words[-1]] = {**_about(piece), "base64_image": _base64(piece)}
        after_text = isinstance(piece, TextPiece)
        at += len(words[-1])
    return {"example": "".join(words), "image_map": known, "text_breaks": breaks}
