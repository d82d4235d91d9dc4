"""Read the markers of a JPEG, and decide whether a JPEG engine may decode it.

An engine does not report damage and may interpret colours differently. It gets only files that
all decoders read in the same way, which are nearly all; the CPU decodes the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

BASELINE, SCAN, _EXIF, _ADOBE = 0xC0, 0xDA, 0xE1, 0xEE
OTHERS = frozenset((0x00, 0x01, *range(0xC0, 0xDA))) - {0xC4, 0xCC}
"""Other frame types, the end of the header, and markers without a length: after those, another
reader may see another frame. The two exceptions are tables."""
_TRAILER = 64  # the end marker is searched in this many bytes at the end
_FULL = (1, 1)
_LUMA = (_FULL, (2, 1), (2, 2))  # 4:4:4, 4:2:2 and 4:2:0


class Header(NamedTuple):
    """A JPEG for an engine: its size and its chroma subsampling."""

    height: int
    width: int
    chroma: tuple[int, int]
    """(1, 1), (2, 1) or (2, 2); (0, 0) for a grey image."""


def iter_markers(data: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """Yield the markers of a JPEG and their offsets. Stop, or raise IndexError, at the last one.

    >>> list(iter_markers(bytes.fromhex("ffd8 ffdb0003aa ffda0002 1234")))
    [(219, 2), (218, 7)]
    """
    offset = 2
    while data[offset] == 0xFF:
        mark = data[offset + 1]
        if mark == 0xFF:  # any number of fill bytes may precede a marker
            offset += 1
            continue
        yield mark, offset
        offset += 2 + (data[offset + 2] << 8 | data[offset + 3])


def read_header(data: bytes | memoryview) -> Header | None:
    """Return the header of a JPEG that an engine decodes as libjpeg does; None for other files.

    Such a file is complete, baseline, 8 bits, one scan, and grey or YCbCr with common subsampling.

    >>> read_header(b"GIF89a") is None
    True
    """
    frame = None
    try:
        for mark, offset in iter_markers(data):
            if mark == SCAN:
                if frame is None or data[offset + 4] != data[frame + 9]:
                    return None
                return _read_frame(data, frame) if is_complete(data) else None
            if mark == BASELINE:
                if data[offset + 4] != 8 or frame is not None:
                    return None
                frame = offset
            elif mark == _ADOBE and bytes(data[offset + 4 : offset + 9]) == b"Adobe":
                if data[offset + 15] == 0:  # not YCbCr
                    return None
            elif mark in OTHERS:
                return None
    except IndexError:
        return None
    return None


def find_exif(data: bytes | memoryview) -> list[int]:
    """Return the offsets of the Exif tags of a JPEG, where their signature begins."""
    found = []
    try:
        for mark, offset in iter_markers(data):
            if mark == SCAN:
                break
            if mark == _EXIF and bytes(data[offset + 4 : offset + 8]) == b"Exif":
                found.append(offset + 4)
    except IndexError:  # the file was cut
        pass
    return found


def is_complete(data: bytes | memoryview) -> bool:
    """Return whether a JPEG has its end marker."""
    return b"\xff\xd9" in bytes(data[-_TRAILER:])


def _read_frame(data: bytes | memoryview, frame: int) -> Header | None:
    height = data[frame + 5] << 8 | data[frame + 6]
    width = data[frame + 7] << 8 | data[frame + 8]
    colours = data[frame + 9]
    if not height or not width or colours not in (1, 3):
        return None
    first = frame + 10
    pairs = [divmod(data[first + 3 * n + 1], 16) for n in range(colours)]
    if colours == 1:
        return Header(height, width, (0, 0)) if pairs == [_FULL] else None
    if bytes(data[first : first + 9 : 3]) == b"RGB":
        return None
    if pairs[1:] != [_FULL, _FULL] or pairs[0] not in _LUMA:
        return None
    return Header(height, width, pairs[0])
