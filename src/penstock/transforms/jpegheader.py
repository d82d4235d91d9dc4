"""What a JPEG engine must know of a file before it is given the file.

An engine is not told of damage, and takes colours as it likes: so it gets the files that everybody
reads alike, which are nearly all, and the rest is for the CPU.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.transforms.jpegs import ODD_MARKS

_BASELINE, _SCAN, _ADOBE = 0xC0, 0xDA, 0xEE
_TRAILER = 64  # an end mark that stands further from the end is not looked for
_GREY = ((1, 1),)
_FULL = (1, 1)
_LUMA = (_FULL, (2, 1), (2, 2))  # 4:4:4, 4:2:2 and 4:2:0
_LETTERS = (ord("R"), ord("G"), ord("B"))


class Header(NamedTuple):
    """A JPEG for an engine: its size, and how much finer its light is than its colours."""

    height: int
    width: int
    chroma: tuple[int, int]
    """(1, 1), (2, 1) or (2, 2); (0, 0) of a grey picture."""


def read_header(data: bytes | memoryview) -> Header | None:
    """The header of a JPEG that an engine decodes as libjpeg does; None for any other file.

    That is: complete, baseline, of 8 bits and one scan, grey or YCbCr of a usual chroma.

    >>> read_header(b"GIF89a") is None
    True
    """
    frame, place = None, 2
    try:
        while data[place] == 0xFF:
            mark = data[place + 1]
            if mark == 0xFF:  # any number of these may stand before a mark
                place += 1
                continue
            if mark == _SCAN:
                if frame is None or data[place + 4] != data[frame + 9]:
                    return None
                return _header(data, frame) if _complete(data) else None
            if mark == _BASELINE:
                if data[place + 4] != 8 or frame is not None:
                    return None
                frame = place
            elif mark == _ADOBE and bytes(data[place + 4 : place + 9]) == b"Adobe":
                if data[place + 15] == 0:  # not YCbCr
                    return None
            elif mark in ODD_MARKS or (0xC0 < mark <= 0xCF and mark not in (0xC4, 0xCC)):
                return None
            place += 2 + (data[place + 2] << 8 | data[place + 3])
    except IndexError:
        return None
    return None


def _complete(data: bytes | memoryview) -> bool:
    return b"\xff\xd9" in bytes(data[-_TRAILER:])


def _header(data: bytes | memoryview, frame: int) -> Header | None:
    height = data[frame + 5] << 8 | data[frame + 6]
    width = data[frame + 7] << 8 | data[frame + 8]
    colours = data[frame + 9]
    if not height or not width or colours not in (1, 3):
        return None
    first = frame + 10
    samplings = [data[first + 3 * n + 1] for n in range(colours)]
    pairs = tuple((one >> 4, one & 15) for one in samplings)
    if colours == 1:
        return Header(height, width, (0, 0)) if pairs == _GREY else None
    if tuple(data[first + 3 * n] for n in range(3)) == _LETTERS:
        return None
    if pairs[1:] != (_FULL, _FULL) or pairs[0] not in _LUMA:
        return None
    return Header(height, width, pairs[0])
