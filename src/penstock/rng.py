"""Random numbers whose state can be saved in plain values.

:class:`CounterRng` is the library's generator; its state is a count. If the user passes a seed, the
numbers are those of ``random.Random``, as in WebDataset, whose state takes two kilobytes.
"""

from __future__ import annotations

import base64
import hashlib
import random
import struct
from typing import Any


def stable_hash(*words: object) -> int:
    """Return a 64-bit hash of the words that is the same in every run, unlike ``hash``.

    >>> stable_hash(1, "a") == stable_hash(1, "a") != stable_hash("1a")
    True
    """
    text = "\0".join([f"{type(word).__name__}:{word}" for word in words])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


class CounterRng:
    """Counter-based random numbers: the n-th number of a key is fixed, and n is the whole state.

    >>> a, b = CounterRng(7), CounterRng(7)
    >>> _ = a.below(10), a.below(10)
    >>> b.count = 1
    >>> a.count, b.below(10) == CounterRng(7, 1).below(10)
    (2, True)
    """

    __slots__ = ("count", "key")

    def __init__(self, key: int, count: int = 0) -> None:
        self.key, self.count = key, count

    def bits(self) -> int:
        """Return 64 random bits: key and counter, mixed as in SplitMix64."""
        self.count += 1
        z = (self.key + self.count * 0x9E3779B97F4A7C15) & _MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
        return z ^ (z >> 31)

    def below(self, n: int) -> int:
        """Return an integer from 0 to n - 1."""
        return (self.bits() * n) >> 64

    def random(self) -> float:
        """Return a float in [0, 1)."""
        return (self.bits() >> 11) * 2.0**-53


_MASK = (1 << 64) - 1


class MersenneRng:
    """``random.Random`` with the methods of :class:`CounterRng`.

    >>> MersenneRng(random.Random(0)).below(10)
    6
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def below(self, n: int) -> int:
        return self.rng.randrange(n)

    def random(self) -> float:
        return self.rng.random()


Generator = CounterRng | MersenneRng


def rng_state(rng: Generator) -> Any:
    """Return the generator's state: a count, or the state of ``random.Random`` as text.

    >>> rng_state(CounterRng(1, 5))
    5
    """
    if isinstance(rng, CounterRng):
        return rng.count
    version, words, gauss = rng.rng.getstate()
    return [version, base64.b64encode(struct.pack("<625I", *words)).decode(), gauss]


def set_rng_state(rng: Generator, state: Any) -> None:
    """Restore a state that :func:`rng_state` returned."""
    if isinstance(rng, CounterRng):
        rng.count = int(state)
    else:
        version, words, gauss = state
        rng.rng.setstate((version, struct.unpack("<625I", base64.b64decode(words)), gauss))
