"""Images to arrays, tensors and Pillow images, and back.

JPEGs go through simplejpeg where it is installed (more than twice as fast as Pillow, the same
pixels, and it lets other threads run); everything else, and every JPEG that simplejpeg might see
otherwise than Pillow (CMYK, damaged, huge), through Pillow. Orientation tags are left alone.
"""

from __future__ import annotations

import functools
import io
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs.arrays import as_array
from penstock.codecs.image_specs import imagespecs
from penstock.errors import DecodingError, MissingPackage, UnsafeError, WriteError

if TYPE_CHECKING:
    from PIL.Image import Image

Array = np.ndarray[Any, np.dtype[Any]]

FAST_PIXELS = 89_478_485  # where Pillow begins to warn: from there on its limit decides
# A header that claims more pixels than its data can hold is damaged or hostile, and room for
# them would be taken before anything is read. A block of 8x8 pixels takes at least a bit of JPEG
# data; a byte of deflate or LZW gives less than 2048 bytes, with 8 pixels in each; the last three
# need no data at all for a picture of one colour, so there Pillow's limit alone counts.
JPEG_PIXELS_PER_BYTE = 512
_PIXELS_PER_BYTE = {"JPEG": JPEG_PIXELS_PER_BYTE, "WEBP": None, "AVIF": None, "JPEG2000": None}
_OTHER_PIXELS_PER_BYTE = 16384


def pillow_image() -> ModuleType:
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingPackage.of("decoding and encoding images", "pillow", "image") from error
    return PIL.Image


@functools.cache  # looking for a package that is not there takes long
def simplejpeg_if_there() -> ModuleType | None:
    try:
        import simplejpeg
    except ImportError:
        return None
    module: ModuleType = simplejpeg
    return module


def _torch() -> ModuleType:
    try:
        import torch
    except ImportError as error:
        raise MissingPackage.of("decoding images into tensors", "torch", "torch") from error
    return torch


def decode_image(data: bytes, imagespec: str) -> Any:
    """The image as the spec says: see :class:`~penstock.codecs.image_specs.ImageHandler`."""
    kind, numbers, mode = imagespecs[imagespec]
    if kind == "pil":
        return _open(data, mode.upper())
    pixels = _pixels(data, mode)
    if kind == "torch" and pixels.ndim == 3:
        pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    if numbers == "float":
        pixels = pixels.astype(np.float32)
        pixels /= 255
    return _torch().from_numpy(pixels) if kind == "torch" else pixels


def _pixels(data: bytes, mode: str) -> Array:
    """The image as uint8 numbers of its own, height first."""
    if data[:2] == b"\xff\xd8" and (simplejpeg := simplejpeg_if_there()) is not None:
        pixels = _fast_jpeg(simplejpeg, data, mode)
        if pixels is not None:
            return pixels
    return np.array(_open(data, mode.upper()))


def _fast_jpeg(simplejpeg: ModuleType, data: bytes, mode: str) -> Array | None:
    """The pixels by simplejpeg, or None where Pillow had better look."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if height * width > min(FAST_PIXELS, JPEG_PIXELS_PER_BYTE * len(data)):
            return None
        # Grey from colour is Pillow's sum of clipped RGB, which the JPEG's own Y is not.
        if mode == "l" and colours == "Gray":
            grey: Array = simplejpeg.decode_jpeg(data, "GRAY")[:, :, 0]
            return grey
        if mode == "rgb" and colours in ("Gray", "YCbCr", "RGB"):
            rgb: Array = simplejpeg.decode_jpeg(data, "RGB")
            return rgb
    except ValueError:
        return None
    return None


def _open(data: bytes, mode: str) -> Image:
    """The image by Pillow, loaded and in the given mode."""
    image = open_image(data)
    image.load()
    return image.convert(mode)


def open_image(data: bytes) -> Image:
    """The image by Pillow, its header checked, its pixels not read yet."""
    image = pillow_image().open(io.BytesIO(data))
    if image.format == "EPS":
        raise UnsafeError(
            "EPS images are programs that Ghostscript would run;"
            " give decode() a handler of your own for them"
        )
    width, height = image.size
    most = _PIXELS_PER_BYTE.get(image.format, _OTHER_PIXELS_PER_BYTE)
    if most is not None and width * height > most * len(data):
        raise DecodingError(
            f"{len(data)} bytes of {image.format} cannot hold {width} x {height} pixels"
        )
    return image  # type: ignore[no-any-return]


def as_image(value: Any) -> Image:
    """A Pillow image from one, or from an array or tensor.

    Arrays are HxW, HxWx1, HxWx3 or HxWx4, tensors also with the channels first; numbers are
    uint8, or floats from 0 to 1. Anything else is a WriteError.
    """
    pillow = pillow_image()
    if isinstance(value, pillow.Image):
        return value  # type: ignore[no-any-return]
    pixels = as_array(value)
    if hasattr(value, "detach") and pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4):
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] not in (3, 4)):
        raise WriteError(
            f"an image is HxW, HxWx1, HxWx3 or HxWx4 (a tensor also 3xHxW), not {pixels.shape}"
        )
    if pixels.dtype.kind == "f":
        # Written so that numbers that are not numbers fail too.
        if pixels.size and not (pixels.min() >= 0 and pixels.max() <= 1):
            raise WriteError(
                "an image of floats has values from 0 to 1,"
                f" not from {pixels.min()} to {pixels.max()}: scale it, or use uint8"
            )
        pixels = (pixels * 255).astype(np.uint8)
    image: Image = pillow.fromarray(np.ascontiguousarray(pixels))
    return image


def imageencoder(image: Any, format: str = "PNG") -> bytes:
    """The image (Pillow, array or tensor) as a file of the format: ``"png"``, ``"jpg"``, …

    JPEGs are written with quality 100, WebP without loss.
    """
    name = format.upper()
    name = {"JPG": "JPEG", "IMG": "JPEG", "IMAGE": "JPEG", "TIF": "TIFF"}.get(name, name)
    picture = as_image(image)
    options: dict[str, Any] = {}
    if name == "JPEG":
        options["quality"] = 100
    elif name == "WEBP":
        options["lossless"] = True
    elif name in ("PGM", "PBM"):  # both are Pillow's PPM, told apart by the mode
        mode = "L" if name == "PGM" else "1"
        picture = picture.convert(mode, dither=pillow_image().Dither.NONE)
    stream = io.BytesIO()
    picture.save(stream, "PPM" if name in ("PGM", "PBM") else name, **options)
    return stream.getvalue()


def _encoder(format: str) -> Callable[[Any], bytes]:
    return functools.partial(imageencoder, format=format)


jpg_dumps = _encoder("JPEG")
png_dumps = _encoder("PNG")
webp_dumps = _encoder("WEBP")
ppm_dumps = _encoder("PPM")
pgm_dumps = _encoder("PGM")
pbm_dumps = _encoder("PBM")
tiff_dumps = _encoder("TIFF")
