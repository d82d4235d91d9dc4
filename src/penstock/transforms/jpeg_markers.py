"""The marks of a JPEG, and what a JPEG engine must know of a file before it is given the file.

An engine is not told of damage, and takes colours as it likes: so it gets the files that everybody
reads alike, which are nearly all, and the rest is for the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

BASELINE, SCAN, _ADOBE = 0xC0, 0xDA, 0xEE
OTHERS = frozenset((0x00, 0x01, *range(0xC0, 0xDA))) - {0xC4, 0xCC}
"""Frames of other kinds, what ends the header, and what has no length: behind those another reader
may see another frame. The two are tables."""
_TRAILER = 64  # an end mark that stands further from the end is not looked for
_FULL = (1, 1)
_LUMA = (_FULL, (2, 1), (2, 2))  # 4:4:4, 4:2:2 and 4:2:0


class Header(NamedTuple):
    """A JPEG for an engine: its size, and how much finer its light is than its colours."""

    height: int
    width: int
    chroma: tuple[int, int]
    """(1, 1), (2, 1) or (2, 2); (0, 0) of a grey picture."""


def segments(data: bytes | memoryview) -> Iterator[tuple[int, int]]:
    """The marks of a JPEG and where they stand; ends, or IndexError, where there is no further one.

    >>> list(segments(bytes.fromhex("ffd8 ffdb0003aa ffda0002 1234")))
    [(219, 2), (218, 7)]
    """
    place = 2
    while data[place] == 0xFF:
        mark = data[place + 1]
        if mark == 0xFF:  # any number of these may stand before a mark
            place += 1
            continue
        yield mark, place
        place += 2 + (data[place + 2] << 8 | data[place + 3])


def read_header(data: bytes | memoryview) -> Header | None:
    """The header of a JPEG that an engine decodes as libjpeg does; None for any other file.

    That is: complete, baseline, of 8 bits and one scan, grey or YCbCr of a usual chroma.

    >>> read_header(b"GIF89a") is None
    True
    """
    frame = None
    try:
        for mark, place in segments(data):
            if mark == SCAN:
                if frame is None or data[place + 4] != data[frame + 9]:
                    return None
                return _header(data, frame) if complete(data) else None
            if mark == BASELINE:
                if data[place + 4] != 8 or frame is not None:
                    return None
                frame = place
            elif mark == _ADOBE and bytes(data[place + 4 : place + 9]) == b"Adobe":
                if data[place + 15] == 0:  # not YCbCr
                    return None
            elif mark in OTHERS:
                return None
    except IndexError:
        return None
    return None


def complete(data: bytes | memoryview) -> bool:
    """Whether the end mark of a JPEG is there."""
    return b"\xff\xd9" in bytes(data[-_TRAILER:])


def _header(data: bytes | memoryview, frame: int) -> Header | None:
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
