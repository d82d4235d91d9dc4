"""Detect truncated audio by comparing its headers with the bytes that are present.

Decoders return the beginning of a truncated file as if it were complete. The functions here read
headers only, never samples. A file whose headers do not state a length is accepted.
"""

from __future__ import annotations

import functools
import math
import re
import struct
from typing import BinaryIO, NamedTuple, Protocol

from penstock.errors import DecodingError

_UNKNOWN = 0x7FFF0000  # writers put such a value, or a larger one, if the size is unknown
_UNKNOWN_LONG = 1 << 62
_MAX_CHUNKS = 10_000


class ByteSource(Protocol):
    """Bytes, or a file that can be sliced like bytes."""

    def __len__(self) -> int: ...

    def __getitem__(self, part: slice, /) -> bytes: ...


class FileBytes:
    """The bytes of an open file, which are read when sliced.

    >>> import io
    >>> FileBytes(io.BytesIO(b"RIFFxyz"))[4:6]
    b'xy'
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        file.seek(0, 2)
        self._size = file.tell()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        self._file.seek(part.start or 0)
        return self._file.read((part.stop or 0) - (part.start or 0))


def check_whole(data: ByteSource) -> None:
    """Raise DecodingError if the headers claim more bytes than there are.

    >>> check_whole(b"RIFF" + struct.pack("<I4s4sI", 2012, b"WAVE", b"data", 2000) + bytes(1500))
    Traceback (most recent call last):
    penstock.errors.DecodingError: the sound is cut: 500 of its 2000 bytes are missing
    """
    start = data[0:12]
    if (kind := _CHUNKS.get(start[:4])) is not None:
        cut = _check_chunks(data, kind)
    elif start[:4] == b"OggS":
        cut = _check_ogg(data)
    elif start[4:8] == b"ftyp":
        cut = _check_boxes(data)
    elif start[:4] == b".snd":
        cut = _check_au(data)
    elif start[:8] == b"NIST_1A\n":
        cut = _check_sphere(data)
    else:
        cut = _check_mpeg(data)
    if cut:
        raise DecodingError(f"the sound is cut: {cut}")


def check_frames(data: ByteSource, frames: int) -> None:
    """Raise DecodingError if a FLAC header claims more frames than were decoded."""
    if data[0:4] != b"fLaC":
        return
    claimed = int.from_bytes(data[18:26], "big") % (1 << 36)
    if claimed > frames:
        missing = claimed - frames
        raise DecodingError(f"the sound is cut: {missing} of its {claimed} frames are missing")


def _describe(missing: int, claimed: int) -> str:
    return f"{missing} of its {claimed} bytes are missing"


class _Chunks(NamedTuple):
    """A format of chunks: name, size, body, padded to a multiple of ``step``."""

    first: int
    name: int
    size: struct.Struct
    sounds: tuple[bytes, ...]
    step: int = 2
    around: int = 4  # offset of the size of the whole file
    counts_head: bool = False


_LITTLE, _BIG = struct.Struct("<I"), struct.Struct(">I")
_WAVE = _Chunks(12, 4, _LITTLE, (b"data",))
_CHUNKS = {
    b"RIFF": _WAVE,
    b"RF64": _WAVE,
    b"BW64": _WAVE,
    b"RIFX": _Chunks(12, 4, _BIG, (b"data",)),
    b"FORM": _Chunks(12, 4, _BIG, (b"SSND", b"BODY")),
    b"riff": _Chunks(40, 16, struct.Struct("<q"), (b"data",), 8, around=16, counts_head=True),
    b"caff": _Chunks(8, 4, struct.Struct(">q"), (b"data",), 1, around=0),
}


def _check_chunks(data: ByteSource, kind: _Chunks) -> str | None:
    """Check WAV, AIFF and similar formats. The padding byte at the end may be missing."""
    there = len(data)
    whole = 0
    if kind.around and there >= kind.first:
        (size,) = kind.size.unpack(data[kind.around : kind.around + kind.size.size])
        whole = size if kind.counts_head else size + 8
    found = _find_sound_chunk(data, kind)
    if found is None:
        return _describe(whole - there, whole) if there < whole < _UNKNOWN else None
    begin, size = found
    # Some writers count their headers twice: if the outer size fits, the file is complete.
    if begin + size <= there or whole == there:
        return None
    return _describe(begin + size - there, size)


def _find_sound_chunk(data: ByteSource, kind: _Chunks) -> tuple[int, int] | None:
    """Return the offset and the claimed size of the audio data; size 0 if it is not stated."""
    at, head, long = kind.first, kind.name + kind.size.size, 0
    unknown = _UNKNOWN if kind.size.size == 4 else _UNKNOWN_LONG
    for _ in range(_MAX_CHUNKS):
        header = data[at : at + head]
        if len(header) < head:
            return None
        size = kind.size.unpack(header[kind.name :])[0] - (head if kind.counts_head else 0)
        at += head
        if header[:4] in kind.sounds:
            if size == 0xFFFFFFFF and long < _UNKNOWN_LONG:
                return at, long
            return at, size if 0 < size < unknown else 0
        if header[:4] == b"ds64" and len(sizes := data[at + 8 : at + 16]) == 8:
            long = int.from_bytes(sizes, "little")
        if size < 0:
            return None
        at += size + -size % kind.step
    return None


def _check_au(data: ByteSource) -> str | None:
    begin, size = (int.from_bytes(data[offset : offset + 4], "big") for offset in (4, 8))
    missing = begin + size - len(data)
    return _describe(missing, size) if missing > 0 and size < _UNKNOWN else None


def _check_sphere(data: ByteSource) -> str | None:
    """Check NIST SPHERE, whose text header states the number of samples and their bytes."""
    begin = data[8:16].strip()
    head = data[0 : int(begin) if begin.isdigit() else 0].split(b"end_head")[0]
    numbers = {name: int(value) for name, value in _SPHERE.findall(head)}
    if len(numbers) < 3 or b"shorten" in head:
        return None
    size = math.prod(numbers.values())
    missing = int(begin) + size - len(data)
    return _describe(missing, size) if missing > 0 else None


_SPHERE = re.compile(rb"(?m)^(sample_count|channel_count|sample_n_bytes) -i (\d+)")
_PAGE = 27
_LAST_PAGE = 4


def _check_ogg(data: ByteSource) -> str | None:
    """Check that the last page of an Ogg file, and the packet at its end, are complete.

    If there is audio, the flag of the last page is not required: Android's recorder omits it.
    """
    there, at, ended, lace = len(data), 0, False, 0
    while len(page := data[at : at + _PAGE + 255]) >= _PAGE and page[:4] == b"OggS":
        laces = page[_PAGE : _PAGE + page[26]]
        end = at + _PAGE + page[26] + sum(laces)
        if end > there:
            return f"{end - there} bytes of its last page are missing"
        sounds = int.from_bytes(page[6:14], "little", signed=True) > 0
        ended = ended or sounds or bool(page[5] & _LAST_PAGE)
        lace = laces[-1] if laces else lace
        at = end
    if page and (page[:4] == b"OggS" or b"OggS".startswith(page)):
        return f"there are only {len(page)} bytes of its last page"
    if at < there:  # other data follows it, or lies in between
        return None
    if lace == 255:
        return f"its last packet continues after the {there} bytes that are present"
    return None if ended else f"its {there} bytes contain only headers"


def _check_boxes(data: ByteSource) -> str | None:
    """Check the ``mdat`` box of an MP4 file (m4a)."""
    there, at = len(data), 0
    for _ in range(_MAX_CHUNKS):
        header = data[at : at + 16]
        if len(header) < 8:
            return None
        size = int.from_bytes(header[:4], "big")
        if size == 1:
            size = int.from_bytes(header[8:16], "big")
        if size < 8:  # 0: up to the end
            return None
        if at + size > there:
            return _describe(at + size - there, size) if header[4:8] == b"mdat" else None
        at += size
    return None


_VERSION_1 = 3
_LAYER_1, _LAYER_2, _LAYER_3 = 3, 2, 1
_FREE = 0
_KBITS = {
    (True, _LAYER_1): (0, 32, 64, 96, 128, 160, 192, 224, 256, 288, 320, 352, 384, 416, 448),
    (True, _LAYER_2): (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384),
    (True, _LAYER_3): (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (False, _LAYER_1): (0, 32, 48, 56, 64, 80, 96, 112, 128, 144, 160, 176, 192, 224, 256),
    (False, _LAYER_2): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
    (False, _LAYER_3): (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
}
_RATES = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}


@functools.lru_cache(maxsize=1024)
def _mpeg_frame(header: bytes) -> tuple[int, int]:
    """Return the size of a frame and of its padding in bytes; zeros if it is no frame header."""
    if len(header) < 3 or header[0] != 0xFF or header[1] < 0xE0:
        return 0, 0
    version, layer = header[1] >> 3 & 3, header[1] >> 1 & 3
    index, rate = header[2] >> 4, header[2] >> 2 & 3
    if version not in _RATES or not layer or index in (_FREE, 15) or rate == 3:
        return 0, 0
    bits = 1000 * _KBITS[version == _VERSION_1, layer][index]
    hertz, padded = _RATES[version][rate], header[2] >> 1 & 1
    if layer == _LAYER_1:
        return (12 * bits // hertz + padded) * 4, 4 * padded
    eighths = 72 if layer == _LAYER_3 and version != _VERSION_1 else 144
    return eighths * bits // hertz + padded, padded


def _check_mpeg(data: ByteSource) -> str | None:
    """Check MP3: by the bytes or frames in its first frame (Xing), else by its last frame."""
    start = _skip_tags(data)
    first = data[start : start + 3]
    length, _ = _mpeg_frame(first)
    if not length:
        return None
    frames, size = _read_xing(data[start : start + length])
    there = len(data)
    if size and start + size <= there:
        return None
    at, count, padding = start, 0, 0
    while at <= there - 4:
        header = data[at : at + 3]
        length, padding = _mpeg_frame(header)
        if not length or (header[1] ^ first[1]) & 0xFE or (header[2] ^ first[2]) & 0x0C:
            return None  # tags, or data that decoders do not take for audio
        at += length
        count += at - padding <= there
    if frames:
        count -= bool(size)  # the Xing frame does not count itself
        return f"{frames - count} of its {frames} frames are missing" if count < frames else None
    return f"{at - there} bytes of its last frame are missing" if at - padding > there else None


def _skip_tags(data: ByteSource) -> int:
    at = 0
    while len(tag := data[at : at + 10]) == 10 and tag[:3] == b"ID3":
        size = 0
        for byte in tag[6:]:
            size = size << 7 | byte & 0x7F
        at += 10 + size + (10 if tag[5] & 0x10 else 0)
    return at


def _read_xing(frame: bytes) -> tuple[int, int]:
    """Return the numbers of frames and bytes that the first frame states; 0 if it does not."""
    if len(frame) < 4:
        return 0, 0
    one, mono = frame[1] >> 3 & 3 == _VERSION_1, frame[3] >> 6 == 3
    at = 4 + ((17 if mono else 32) if one else (9 if mono else 17))
    xing = frame[at : at + 16]
    if xing[:4] not in (b"Xing", b"Info") or len(xing) < 16:
        return 0, 0
    numbers = [int.from_bytes(xing[offset : offset + 4], "big") for offset in (8, 12)]
    frames = numbers.pop(0) if xing[7] & 1 else 0
    return frames, numbers[0] if xing[7] & 2 else 0
