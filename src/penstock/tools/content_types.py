"""Whether the first bytes of a field are what its extension says."""

from __future__ import annotations

import re

from penstock.codecs.image_files import IMG_EXTENSIONS

_MAGIC = {
    "jpg jpeg jpe jfif": rb"\xff\xd8\xff",
    "png apng": rb"\x89PNG\r\n\x1a\n",
    "gif": rb"GIF8[79]a",
    "webp": rb"RIFF....WEBP",
    "bmp dib": rb"BM",
    "tif tiff": rb"II[*+]\0|MM\0[*+]",
    "ppm": rb"P[36]",
    "pgm": rb"P[25]",
    "pbm": rb"P[14]",
    "wav": rb"(RIFF|RF64|RIFX)....WAVE",
    "flac": rb"fLaC|ID3",
    "mp3": rb"ID3|\xff[\xe0-\xff]",
    "ogg oga opus": rb"OggS",
    "mp4 m4a m4v mov": rb"....(ftyp|moov|mdat|free|wide|skip|pnot)",
    "webm mkv": rb"\x1a\x45\xdf\xa3",
    "avi": rb"RIFF....AVI ",
    "npy": rb"\x93NUMPY",
    "npz": rb"PK(\x03\x04|\x05\x06)",
    "gz": rb"\x1f\x8b",
    "pdf": rb".{0,60}%PDF",
    "json jsn": rb"(\xef\xbb\xbf)?\s*([{\[\"0-9tfnNI-]|$)",
    "cls cls2 index inx id": rb"\s*[+-]?[0-9]",
}
_PATTERNS = {
    extension: re.compile(pattern, re.DOTALL)
    for extensions, pattern in _MAGIC.items()
    for extension in extensions.split()
}
_IMAGES = [_PATTERNS[extension[1:]] for extension in IMG_EXTENSIONS]
_NAMES = {
    "jpg": "JPEG",
    "png": "PNG",
    "gif": "GIF",
    "webp": "WebP",
    "wav": "WAV",
    "flac": "FLAC",
    "ogg": "Ogg",
    "mp4": "MP4",
    "webm": "WebM",
    "npy": "NPY",
    "npz": "ZIP",
    "gz": "gzip",
    "pdf": "PDF",
}


def mismatch(field: str, head: bytes) -> str | None:
    """Return what the data looks like, if that is not what the field's extension says.

    Only extensions with a known beginning are judged. A field such as ``image.jpg`` may hold images
    of any format.

    >>> mismatch("jpg", b"\\x89PNG\\r\\n\\x1a\\n"), mismatch("jpg", b"\\xff\\xd8\\xff\\xe0")
    ("it is a PNG file, not 'jpg'", None)
    """
    name, _, extension = field.rpartition(".")
    pattern = _PATTERNS.get(extension)
    if pattern is None or pattern.match(head):
        return None
    if name and extension == "jpg" and any(image.match(head) for image in _IMAGES):
        return None
    for other, name in _NAMES.items():
        if other != extension and _PATTERNS[other].match(head):
            return f"it is a {name} file, not {extension!r}"
    if re.match(rb"\s*<(!doctype|html|\?xml)", head, re.IGNORECASE):
        return f"it is a web page, not {extension!r}"
    return f"it begins with {head[:8]!r}, which no {extension!r} does"
