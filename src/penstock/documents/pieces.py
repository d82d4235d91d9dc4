"""What a document is made of."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from penstock.codecs.image_specs import ImageHandler
from penstock.errors import DecodingError, Origin, SampleError, describe_cause, ran_out

_PNG = b"\x89PNG\r\n\x1a\n"
_NO_FRAME = frozenset((0xC4, 0xC8, 0xCC))  # marks of the same range that are not frame headers


@dataclasses.dataclass(slots=True)
class TextPiece:
    """A sentence or paragraph of a document."""

    text: str


@dataclasses.dataclass(slots=True)
class ImagePiece:
    """An image of a document, still encoded.

    ``data`` is None for an image that is only known by its URL. ``similarity`` is how well it
    matches the text next to it, where the data says so.
    """

    name: str
    data: bytes | None
    url: str | None = None
    similarity: float | None = None

    def size(self) -> tuple[int, int]:
        """Read width and height from the image's header, without decoding it.

        >>> ImagePiece("x.png", bytes.fromhex("89504e470d0a1a0a0000000d494844520000000300000002"))
        ImagePiece(name='x.png', data=..., url=None, similarity=None)
        >>> _.size()
        (3, 2)
        """
        width, height = self._read(_size)
        return width, height

    def decode(self, spec: str = "rgb8") -> Any:
        """Decode the image: see :class:`penstock.codecs.image_specs.ImageHandler` for the specs."""
        return self._read(_decoder(spec))

    def _read(self, function: Any) -> Any:
        if self.data is None:
            raise SampleError(
                f"the bytes of the image {self.name!r} are not part of the document: pass "
                "media=, a mapping or an indexed set with the images, to documents()"
            )
        try:
            return function(self.data)
        except Exception as error:
            if ran_out(error) or isinstance(error, (SampleError, ImportError)):
                raise
            raise DecodingError(
                f"cannot read the image {self.name!r}: {describe_cause(error, self.data)}",
                k=self.name,
            ) from error


Piece = TextPiece | ImagePiece


@dataclasses.dataclass(slots=True)
class Document:
    """Text and images in reading order.

    ``meta`` is the document's JSON without the bytes of images, ``origin`` says which shard it
    comes from. ``missing`` is the number of images that could not be found or read and were left
    out.
    """

    key: str
    pieces: list[Piece]
    meta: dict[str, Any] = dataclasses.field(default_factory=dict)
    origin: Origin | None = None
    missing: int = 0

    @property
    def images(self) -> list[ImagePiece]:
        """The images in reading order."""
        return [piece for piece in self.pieces if isinstance(piece, ImagePiece)]

    @property
    def texts(self) -> list[str]:
        """The texts in reading order."""
        return [piece.text for piece in self.pieces if isinstance(piece, TextPiece)]

    def filter_images(self, keep: Callable[[ImagePiece], Any]) -> Document:
        """Return the document with those images only for which ``keep`` is true.

        >>> document = Document("a", [ImagePiece("x.jpg", b"12"), TextPiece("hello")])
        >>> document.filter_images(lambda image: len(image.data) >= 10_000).pieces
        [TextPiece(text='hello')]
        """
        pieces = [p for p in self.pieces if isinstance(p, TextPiece) or keep(p)]
        return dataclasses.replace(self, pieces=pieces)


@functools.lru_cache(32)
def _decoder(spec: str) -> Any:
    return ImageHandler(spec).for_key("x.jpg")


def _size(data: bytes) -> tuple[int, int]:
    if data[:8] == _PNG and data[12:16] == b"IHDR" and len(data) >= 24:
        return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if data[:2] == b"\xff\xd8":
        from penstock.transforms.jpeg_markers import iter_markers

        for mark, place in iter_markers(data):
            if 0xC0 <= mark <= 0xCF and mark not in _NO_FRAME:
                height = data[place + 5] << 8 | data[place + 6]
                width = data[place + 7] << 8 | data[place + 8]
                return width, height
    from penstock.codecs.images import open_image

    width, height = open_image(data).size
    return width, height
