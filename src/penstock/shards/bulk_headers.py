"""Read many small samples at once: parse all headers of a window with numpy.

For tiny samples, Python code per header costs more than everything else. The functions here accept
only consecutive samples with the same fields and return None for anything else, which the caller
then reads member by member. The checks are the same: every checksum, every size, every name.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import lt
from typing import Any, NamedTuple

import numpy as np

BLOCK = 512
LEAST = 16
"""For fewer members the calls cost more than they save."""
MOST_FIELDS = 32

_WORD = np.dtype("<u8")
_FRONT = 156
_MAGIC = 32  # index of the word with a header's magic
_POWERS = 8 ** np.arange(11, -1, -1, dtype=np.int64)
_AFTER_DIGITS = 0xDF  # NUL and space have none of these bits


class Tail:
    """The second half of a header, the same for all members of a shard."""

    def __init__(self, tail: bytes) -> None:
        self.bytes = tail
        words = np.frombuffer(bytes(_FRONT) + tail, _WORD)
        self.first, self.rest, self.magic = words[19] >> np.uint64(32), words[20:], words[_MAGIC]
        self.total = sum(tail) + 8 * 32  # the checksum field counts as spaces


class Members(NamedTuple):
    """Consecutive members of a buffer: their names, and the bounds of their data."""

    names: list[bytes]
    begins: Any
    ends: Any
    after: Any
    """Offset of the header after each."""


def members(buffer: bytes, position: int, tail: Tail) -> Members | None:
    """Return the members from ``position`` on that are completely in the buffer.

    Return None unless each has a single header with this tail, a correct checksum, and only NULs
    after its name.
    """
    count = (len(buffer) - position) // BLOCK
    words = np.frombuffer(buffer, _WORD, count * 64, position).reshape(count, 64)
    blocks: Any = np.flatnonzero(words[:, _MAGIC] == tail.magic)
    heads: Any = words.take(blocks, axis=0)
    sizes = _octal(heads.view(np.uint8)[:, 124:136])
    if sizes is None:
        return None
    after = blocks + 1 + (sizes + BLOCK - 1 >> 9)
    if len(after) and after[-1] > count:
        blocks, heads, sizes, after = blocks[:-1], heads[:-1], sizes[:-1], after[:-1]
    if len(blocks) < LEAST or blocks[0] or (blocks[1:] != after[:-1]).any():
        return None
    texts = heads.view(np.uint8)
    sums = _octal(texts[:, 148:155])
    if sums is None or (texts[:, 155] & _AFTER_DIGITS).any():
        return None
    if (heads[:, 19] >> 32 != tail.first).any() or (heads[:, 20:] != tail.rest).any():
        return None
    if (texts[:, :148].sum(axis=1, dtype=np.int64) + tail.total != sums).any():
        return None
    names: list[bytes] = np.ndarray((len(texts),), "S100", texts, 0, (BLOCK,)).tolist()
    if b"\0" in b"".join(names):
        return None
    begins = blocks * BLOCK + (position + BLOCK)
    return Members(names, begins, begins + sizes, after * BLOCK + position)


def _octal(fields: Any) -> Any:
    """Parse fields of octal digits with one NUL or space after them. Return None if one differs."""
    digits = fields[:, :-1] - np.uint8(48)  # characters below "0" wrap to values far above 7
    if not len(digits) or digits.max() > 7 or (fields[:, -1] & _AFTER_DIGITS).any():
        return None
    return digits @ _POWERS[-digits.shape[1] :]


class Stretch(NamedTuple):
    """Consecutive samples, all with the same fields."""

    samples: list[dict[str, Any]]
    keys: list[bytes]
    ends: list[int]
    """Offset in the buffer of the sample after each."""


def stretch(
    buffer: bytes, position: int, tail: Tail, known: Mapping[bytes, str], common: dict[str, Any]
) -> Stretch | None:
    """Return the samples from ``position`` on, except the last one, which may have more members.

    Return None unless all have the fields of the first, whose suffixes are in ``known``, and their
    keys ascend. ``common`` contains the items of all samples, and ``__key__``.
    """
    found = members(buffer, position, tail)
    if found is None:
        return None
    suffixes = _find_suffixes(found.names)
    width, fields = len(suffixes), [known.get(suffix, "") for suffix in suffixes]
    number = (len(found.names) - 1) // width
    if number < 2 or not all(fields) or len({*fields, *common}) < width + len(common):
        return None
    keys = _find_keys(found.names, suffixes, number)
    if keys is None:
        return None
    texts = b"\n".join(keys).decode("utf-8", "surrogateescape").split("\n")
    whole = number * width
    begins, ends = found.begins[:whole].tolist(), found.ends[:whole].tolist()
    values = [buffer[begin:end] for begin, end in zip(begins, ends)]
    empty = {**common, **dict.fromkeys(fields)}
    samples = [empty.copy() for _ in keys]
    for sample, text in zip(samples, texts):
        sample["__key__"] = text
    for index, field in enumerate(fields):
        for sample, value in zip(samples, values[index::width]):
            sample[field] = value
    return Stretch(samples, keys, found.after[width - 1 : whole : width].tolist())


def _find_suffixes(names: list[bytes]) -> list[bytes]:
    """Return the part after the key of each name of the first sample."""
    key, _, suffix = names[0].partition(b".")
    suffixes = [suffix]
    for name in names[1:MOST_FIELDS]:
        other, _, suffix = name.partition(b".")
        if other != key:
            break
        suffixes.append(suffix)
    return suffixes


def _find_keys(names: list[bytes], suffixes: list[bytes], number: int) -> list[bytes] | None:
    """Return the keys of ``number`` samples; None unless they ascend and all names are ordinary."""
    width = len(suffixes)
    whole = number * width
    ends = [b"." + suffix + b"\n" for suffix in suffixes]
    # Names are joined as lines, which are split and compared at once: none may contain a newline.
    firsts = _join_lines(names[:whole:width])
    keys = firsts.split(ends[0])
    if len(keys) != number + 1 or keys.pop() or firsts.count(b"\n") != number:
        return None
    for index in range(1, width):
        if ends[index].join([*keys, b""]) != _join_lines(names[index:whole:width]):
            return None
    joined = b"\n" + _join_lines(keys)
    # A dot may belong to a folder; a name that begins with "_" may belong to no sample.
    if b"." in joined or b"\n_" in joined or not keys[0] or joined.count(b"\n") != number + 1:
        return None
    if names[whole].partition(b".")[0] == keys[-1] or not all(map(lt, keys, keys[1:])):
        return None
    return keys


def _join_lines(names: list[bytes]) -> bytes:
    return b"\n".join([*names, b""])
