"""The image specs (``"rgb8"``, ``"pil"``, ``"torchrgb"`` …) and the decoder's handler for them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.codecs.registry import load
from penstock.errors import PipelineError

_EXTENSIONS = (
    "blp bmp dib bufr cur pcx dcx dds ps eps fit fits fli flc ftc ftu gbr gif grib h5 hdf png apng"
    " jp2 j2k jpc jpf jpx j2c icns ico im iim tif tiff jfif jpe jpg jpeg mpg mpeg msp pcd pxr"
    " pbm pgm ppm pnm psd bw rgb rgba sgi ras tga icb vda vst webp wmf emf xbm xpm"
)
IMAGE_EXTENSIONS: list[str] = _EXTENSIONS.split()

imagespecs: Mapping[str, tuple[str, str | None, str]] = {
    "l8": ("numpy", "uint8", "l"),
    "rgb8": ("numpy", "uint8", "rgb"),
    "rgba8": ("numpy", "uint8", "rgba"),
    "l": ("numpy", "float", "l"),
    "rgb": ("numpy", "float", "rgb"),
    "rgba": ("numpy", "float", "rgba"),
    "torchl8": ("torch", "uint8", "l"),
    "torchrgb8": ("torch", "uint8", "rgb"),
    "torchrgba8": ("torch", "uint8", "rgba"),
    "torchl": ("torch", "float", "l"),
    "torchrgb": ("torch", "float", "rgb"),
    "torch": ("torch", "float", "rgb"),
    "torchrgba": ("torch", "float", "rgba"),
    "pill": ("pil", None, "l"),
    "pil": ("pil", None, "rgb"),
    "pilrgb": ("pil", None, "rgb"),
    "pilrgba": ("pil", None, "rgba"),
}
"""Spec → (kind of value, type of its numbers, colour mode)."""


@dataclasses.dataclass(unsafe_hash=True)  # not frozen: subclasses set further attributes
class ImageHandler:
    """Decodes fields whose last extension is that of an image format, as the spec says.

    ======================================  ==================================================
    ``l8 rgb8 rgba8``                       array uint8, HxW, HxWx3, HxWx4
    ``l rgb rgba``                          array float32 from 0 to 1, same shapes
    ``torchl8 torchrgb8 torchrgba8``        tensor uint8, HxW, 3xHxW, 4xHxW
    ``torchl torchrgb torchrgba``           tensor float32 from 0 to 1, same shapes
    ``rgbtorch torch``                      the same as ``torchrgb``
    ``pill pil pilrgb pilrgba``             Pillow image of mode L, RGB, RGBA
    ======================================  ==================================================

    An unknown spec raises PipelineError.

    >>> ImageHandler("rgb8").matches(".seg.png")
    True
    >>> ImageHandler("rgb9")
    Traceback (most recent call last):
    penstock.errors.PipelineError: unknown image spec 'rgb9': use one of l8 rgb8 rgba8 l rgb ...
    """

    imagespec: str
    extensions: Sequence[str] = dataclasses.field(
        default_factory=lambda: tuple(IMAGE_EXTENSIONS), repr=False
    )

    def __post_init__(self) -> None:
        if self.imagespec == "rgbtorch":  # as WebDataset's documents write it
            self.imagespec = "torchrgb"
        if self.imagespec not in imagespecs:
            raise PipelineError(
                f"unknown image spec {self.imagespec!r}: use one of {' '.join(imagespecs)}"
            )
        names = self.extensions
        names = names.split() if isinstance(names, str) else names
        self.extensions = tuple(name.lstrip(".").lower() for name in names)

    def matches(self, key: str) -> bool:
        return key.rpartition(".")[2].lower() in self.extensions

    def for_key(self, key: str) -> Callable[[bytes], Any] | None:
        """Return the function that reads fields of this key, or None if they are no images."""
        if not self.matches(key):
            return None
        decode: Callable[..., Any] = load("images:decode_image")
        return functools.partial(decode, imagespec=self.imagespec)

    def __call__(self, key: str, data: bytes) -> Any:
        read = self.for_key(key)
        return None if read is None else read(data)


def imagehandler(
    imagespec: str, extensions: Sequence[str] = tuple(IMAGE_EXTENSIONS)
) -> ImageHandler:
    """Return a decoder's handler for images: see :class:`ImageHandler` for the specs.

    >>> imagehandler("pil")
    ImageHandler(imagespec='pil')
    """
    return ImageHandler(imagespec, extensions)
