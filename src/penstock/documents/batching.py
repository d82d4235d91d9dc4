"""Count documents and collate them into batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from penstock.documents.pieces import Document, ImagePiece


class Counts(NamedTuple):
    """How much there is in a document."""

    texts: int
    characters: int
    images: int
    image_bytes: int
    """Of the encoded images."""


def counts(document: Document) -> Counts:
    """Count texts and images without decoding anything, to plan batches and packing.

    >>> from penstock.documents import TextPiece
    >>> counts(Document("a", [TextPiece("hello"), ImagePiece("x.jpg", b"123")]))
    Counts(texts=1, characters=5, images=1, image_bytes=3)
    """
    texts, images = document.texts, document.images
    sizes = [len(image.data) for image in images if image.data is not None]
    return Counts(len(texts), sum(map(len, texts)), len(images), sum(sizes))


def collate(
    documents: Sequence[Document],
    *,
    spec: str = "rgb8",
    transform: Callable[[Any], Any] | None = None,
    marker: str = "<image>",
) -> dict[str, Any]:
    """Decode the images of some documents and make one batch: a collation function.

    In ``.batched(n, collation_fn=None).map(collate)``, a loader on threads makes several batches at
    once.

    The images of all documents are one ragged batch: ``images`` has the values of all of them, one
    after another; those of image ``n`` are ``images[offsets[n]:offsets[n + 1]]``, in the shape
    ``shapes[n]``. ``image_counts`` is the number of images of each document. ``text`` is the text
    of each document with ``marker`` at the position of each image, which begins at character
    ``positions[n]`` of its text. Images are decoded by ``spec`` and then go through ``transform``.

    >>> from penstock.documents import TextPiece
    >>> batch = collate([Document("a", [TextPiece("no image")])])
    >>> batch["text"], batch["offsets"].tolist(), batch["image_counts"].tolist()
    (['no image'], [0], [0])
    """
    arrays: list[Any] = []
    texts: list[str] = []
    positions: list[int] = []
    for document in documents:
        words: list[str] = []
        at = 0
        for piece in document.pieces:
            if isinstance(piece, ImagePiece):
                image = piece.decode(spec)
                arrays.append(np.asarray(image if transform is None else transform(image)))
                positions.append(at)
                words.append(marker)
            else:
                words.append(piece.text)
            at += len(words[-1])
        texts.append("".join(words))
    offsets = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([array.size for array in arrays], out=offsets[1:])
    dimensions = max((array.ndim for array in arrays), default=3)
    shapes = np.ones((len(arrays), dimensions), np.int64)
    for shape, array in zip(shapes, arrays):
        shape[: array.ndim] = array.shape
    flat = [array.reshape(-1) for array in arrays]
    return {
        "__key__": [document.key for document in documents],
        "text": texts,
        "images": np.concatenate(flat) if flat else np.zeros(0, np.uint8),
        "offsets": offsets,
        "shapes": shapes,
        "image_counts": np.array([len(document.images) for document in documents], np.int64),
        "positions": np.array(positions, np.int64),
    }
