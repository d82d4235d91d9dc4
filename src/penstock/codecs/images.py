"""Decode images to arrays, tensors and Pillow images, and encode them.

JPEGs are decoded by simplejpeg if it is installed: more than twice as fast as Pillow, the same
pixels, and it releases the GIL. Pillow decodes everything else, and every JPEG for which simplejpeg
might differ (CMYK, damaged, huge). Orientation tags are ignored.
"""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.codecs.arrays import as_array
from penstock.codecs.image_specs import imagespecs
from penstock.errors import DecodingError, UnsafeError, WriteError, optional
from penstock.redact import describe_beginning

if TYPE_CHECKING:
    from PIL.Image import Image

Array = np.ndarray[Any, np.dtype[Any]]

FAST_PIXELS = 89_478_485  # Pillow warns above this size, so larger images are left to its limit
# A header that claims more pixels than its data can hold is damaged or hostile, and memory for
# them would be allocated before anything is read. A block of 8x8 pixels needs at least one bit of
# JPEG data; a byte of deflate or LZW expands to less than 2048 bytes, with 8 pixels in each. Some
# formats need no data for an image of one colour: those may claim up to PLAIN_PIXELS.
JPEG_PIXELS_PER_BYTE = 512
_PIXELS_PER_BYTE = {"JPEG": JPEG_PIXELS_PER_BYTE, "MPO": JPEG_PIXELS_PER_BYTE}
_OTHER_PIXELS_PER_BYTE = 16384
PLAIN_PIXELS = 1 << 25
_WITHOUT_DATA = frozenset(("WEBP", "AVIF", "JPEG2000"))
MAX_SCANS = 100
"""Limit on the scans of a JPEG. Each is a pass over all pixels; encoders write about ten. The same
as in picture.c."""
_MARK = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")  # markers that are followed by a length
_SEQUENTIAL = (0xC0, 0xC1, 0xC9)
_SCAN, _END = 0xDA, 0xD9


def import_pillow() -> ModuleType:
    """Return ``PIL.Image``. Raise MissingPackage if Pillow is not installed."""
    image: ModuleType = optional("PIL.Image", "image", "decoding and encoding images")
    return image


@functools.cache  # searching for a package that is missing is slow
def find_simplejpeg() -> ModuleType | None:
    """Return simplejpeg, or None if it is not installed."""
    try:
        import simplejpeg
    except ImportError:
        return None
    module: ModuleType = simplejpeg
    return module


def _torch() -> ModuleType:
    torch: ModuleType = optional("torch", "torch", "decoding images into tensors")
    return torch


def decode_image(data: bytes, imagespec: str) -> Any:
    """Decode an image by its spec: see :class:`~penstock.codecs.image_specs.ImageHandler`."""
    kind, numbers, mode = imagespecs[imagespec]
    if kind == "pil":
        return _open(data, mode.upper())
    pixels = _decode_pixels(data, mode)
    if kind == "torch" and pixels.ndim == 3:
        pixels = np.ascontiguousarray(pixels.transpose(2, 0, 1))
    if numbers == "float":
        pixels = pixels.astype(np.float32)
        pixels /= 255
    return _torch().from_numpy(pixels) if kind == "torch" else pixels


def _decode_pixels(data: bytes, mode: str) -> Array:
    """Return the image as a new uint8 array, height first."""
    if data[:2] == b"\xff\xd8" and (simplejpeg := find_simplejpeg()) is not None:
        pixels = _decode_by_simplejpeg(simplejpeg, data, mode)
        if pixels is not None:
            return pixels
    return np.array(_open(data, mode.upper()))


def _decode_by_simplejpeg(simplejpeg: ModuleType, data: bytes, mode: str) -> Array | None:
    """Return the pixels by simplejpeg, or None if Pillow must decode the image."""
    try:
        height, width, colours, _ = simplejpeg.decode_jpeg_header(data)
        if height * width > min(FAST_PIXELS, JPEG_PIXELS_PER_BYTE * len(data)):
            return None
        if has_many_scans(data):
            return None
        # Pillow computes grey as a sum of clipped RGB, which differs from the JPEG's Y channel.
        if mode == "l" and colours == "Gray":
            grey: Array = simplejpeg.decode_jpeg(data, "GRAY")[:, :, 0]
            return grey
        if mode == "rgb" and colours in ("Gray", "YCbCr", "RGB"):
            rgb: Array = simplejpeg.decode_jpeg(data, "RGB")
            return rgb
    except ValueError:
        return None
    return None


def has_many_scans(data: bytes) -> bool:
    """Return whether a decoder would read more than ``MAX_SCANS`` scans of a JPEG.

    >>> has_many_scans(bytes.fromhex("ffd8 ffc2000b080008000801011100") + b"\\xff\\xda\\0\\2" * 101)
    True
    """
    scans, offset, colours = 0, 2, b"?"
    while (found := _MARK.search(data, offset)) and scans <= MAX_SCANS:
        offset = found.start()
        mark, length = data[offset + 1], data[offset + 2 : offset + 4]
        if mark == _END:
            break
        if mark in _SEQUENTIAL:
            colours = data[offset + 9 : offset + 10]
        elif mark == _SCAN:
            if not scans and data[offset + 4 : offset + 5] == colours:
                return False  # all colours in one scan: decoders stop after it
            scans += 1
        offset += 2 + int.from_bytes(length, "big")
    return scans > MAX_SCANS


def _open(data: bytes, mode: str) -> Image:
    """Load the image by Pillow and convert it to a mode."""
    image = open_image(data)
    image.load()
    return image.convert(mode)


def open_image(data: bytes) -> Image:
    """Open the image with Pillow and check its header, without reading pixels."""
    pillow = import_pillow()
    try:
        image = pillow.open(io.BytesIO(data))
    except pillow.UnidentifiedImageError as error:
        raise DecodingError(
            f"it is no image that Pillow knows: it {describe_beginning(data)}"
        ) from error
    if image.format == "EPS":
        raise UnsafeError(
            "EPS images are programs that Ghostscript would run; pass your own handler to decode()"
        )
    width, height = image.size
    most = _PIXELS_PER_BYTE.get(image.format, _OTHER_PIXELS_PER_BYTE) * len(data)
    if image.format in _WITHOUT_DATA:
        most = max(most, PLAIN_PIXELS)
    if width * height > most:
        raise DecodingError(
            f"{len(data)} bytes of {image.format} claim {width} x {height} pixels, where at most"
            f" {most:,} are plausible: pass your own handler to decode() if they are right"
        )
    if has_many_scans(data) if data[:2] == b"\xff\xd8" else _may_have_scans(image.format, data):
        raise DecodingError(f"a JPEG of more than {MAX_SCANS} scans: write it again with fewer")
    return image  # type: ignore[no-any-return]


def _may_have_scans(format: str, data: bytes) -> bool:
    """Return whether a JPEG inside another format may have many scans. libtiff limits them."""
    return format == "BLP" and data.count(b"\xff\xda") > MAX_SCANS


def as_image(value: Any) -> Image:
    """Return a Pillow image from an image, array or tensor.

    Arrays are HxW, HxWx1, HxWx3 or HxWx4, tensors also with the channels first; numbers are
    uint8, or floats from 0 to 1. Anything else raises WriteError.
    """
    pillow = import_pillow()
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
        # Written so that NaN fails too.
        if pixels.size and not (pixels.min() >= 0 and pixels.max() <= 1):
            raise WriteError(
                "an image of floats has values from 0 to 1,"
                f" not from {pixels.min()} to {pixels.max()}: scale it, or use uint8"
            )
        pixels = (pixels * 255).astype(np.uint8)
    image: Image = pillow.fromarray(np.ascontiguousarray(pixels))
    return image


def imageencoder(image: Any, format: str = "PNG") -> bytes:
    """Encode an image (Pillow, array or tensor) in a format: ``"png"``, ``"jpg"``, …

    JPEGs are written with quality 100, WebP lossless.
    """
    name = format.upper()
    name = {"JPG": "JPEG", "IMG": "JPEG", "IMAGE": "JPEG", "TIF": "TIFF"}.get(name, name)
    picture = as_image(image)
    options: dict[str, Any] = {}
    if name == "JPEG":
        options["quality"] = 100
    elif name == "WEBP":
        options["lossless"] = True
    elif name in ("PGM", "PBM"):  # both are Pillow's PPM, which the mode distinguishes
        mode = "L" if name == "PGM" else "1"
        picture = picture.convert(mode, dither=import_pillow().Dither.NONE)
    stream = io.BytesIO()
    picture.save(stream, "PPM" if name in ("PGM", "PBM") else name, **options)
    return stream.getvalue()


def _make_encoder(format: str) -> Callable[[Any], bytes]:
    return functools.partial(imageencoder, format=format)


jpg_dumps = _make_encoder("JPEG")
png_dumps = _make_encoder("PNG")
webp_dumps = _make_encoder("WEBP")
ppm_dumps = _make_encoder("PPM")
pgm_dumps = _make_encoder("PGM")
pbm_dumps = _make_encoder("PBM")
tiff_dumps = _make_encoder("TIFF")
