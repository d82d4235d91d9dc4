"""Many small samples at once: the ordinary members of a window, checked in one go.

Where samples are tiny, a step of Python for each header costs more than all else. Here the headers
of a whole window are looked at together, by numpy. Only what a shard of one kind of samples has,
one after another, is taken; anything else is left to the loop that asks, member by member.
The checks are the same: every checksum, every size, every name.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import lt
from typing import Any, NamedTuple

import numpy as np

BLOCK = 512
LEAST = 16
"""Fewer members are not worth the calls."""
MOST_FIELDS = 32

_WORD = np.dtype("<u8")
_FRONT = 156
_MAGIC = 32  # the word in which the magic of a header stands
_POWERS = 8 ** np.arange(11, -1, -1, dtype=np.int64)
_BEHIND_DIGITS = 0xDF  # of NUL and space no other bit is set


class Tail:
    """The second half of a header, the same for all members of a shard."""

    def __init__(self, tail: bytes) -> None:
        self.bytes = tail
        words = np.frombuffer(bytes(_FRONT) + tail, _WORD)
        self.first, self.rest, self.magic = words[19] >> 32, words[20:], words[_MAGIC]
        self.total = sum(tail) + 8 * 32  # a checksum is counted as spaces


class Members(NamedTuple):
    """Members of a buffer, behind each other: their names, and where their data lies."""

    names: list[bytes]
    begins: Any
    ends: Any
    after: Any
    """Where the header behind each stands."""


def members(buffer: bytes, position: int, tail: Tail) -> Members | None:
    """The members from ``position`` on that lie in the buffer with all their data and padding.

    None unless all of them have one header, with this tail and a right checksum, and nothing behind
    their names.
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
    if sums is None or (texts[:, 155] & _BEHIND_DIGITS).any():
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
    """The numbers in fields of octal digits with one NUL or space behind; None where one is not."""
    digits = fields[:, :-1] - np.uint8(48)  # what stands before "0" is far above 7
    if not len(digits) or digits.max() > 7 or (fields[:, -1] & _BEHIND_DIGITS).any():
        return None
    return digits @ _POWERS[-digits.shape[1] :]


class Stretch(NamedTuple):
    """Samples behind each other, all with the same fields."""

    samples: list[dict[str, Any]]
    keys: list[bytes]
    ends: list[int]
    """Where the sample behind each begins, in the buffer."""


def stretch(
    buffer: bytes, position: int, tail: Tail, known: Mapping[bytes, str], common: dict[str, Any]
) -> Stretch | None:
    """The samples from ``position`` on, but for the last in the buffer: it may have more members.

    None unless there are some, all with the fields of the first, known by their suffixes, and keys
    that ascend. ``common`` is what all samples have, with a place for the key.
    """
    found = members(buffer, position, tail)
    if found is None:
        return None
    suffixes = _suffixes(found.names)
    width, fields = len(suffixes), [known.get(suffix, "") for suffix in suffixes]
    number = (len(found.names) - 1) // width
    if number < 2 or not all(fields) or len({*fields, *common}) < width + len(common):
        return None
    keys = _keys(found.names, suffixes, number)
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
    for place, field in enumerate(fields):
        for sample, value in zip(samples, values[place::width]):
            sample[field] = value
    return Stretch(samples, keys, found.after[width - 1 : whole : width].tolist())


def _suffixes(names: list[bytes]) -> list[bytes]:
    """What stands behind the key in the names of the first sample."""
    key, _, suffix = names[0].partition(b".")
    suffixes = [suffix]
    for name in names[1:MOST_FIELDS]:
        other, _, suffix = name.partition(b".")
        if other != key:
            break
        suffixes.append(suffix)
    return suffixes


def _keys(names: list[bytes], suffixes: list[bytes], number: int) -> list[bytes] | None:
    """The keys of so many samples; None unless they ascend, and no name needs a second look."""
    width = len(suffixes)
    whole = number * width
    ends = [b"." + suffix + b"\n" for suffix in suffixes]
    # Names are lines here, which are cut and compared all at once: none may have a second.
    firsts = _lines(names[:whole:width])
    keys = firsts.split(ends[0])
    if len(keys) != number + 1 or keys.pop() or firsts.count(b"\n") != number:
        return None
    for place in range(1, width):
        if ends[place].join([*keys, b""]) != _lines(names[place:whole:width]):
            return None
    joined = b"\n" + _lines(keys)
    # A dot may be a folder's; what begins with "_" may be no sample's.
    if b"." in joined or b"\n_" in joined or not keys[0] or joined.count(b"\n") != number + 1:
        return None
    if names[whole].partition(b".")[0] == keys[-1] or not all(map(lt, keys, keys[1:])):
        return None
    return keys


def _lines(names: list[bytes]) -> bytes:
    return b"\n".join([*names, b""])
