"""Generators whose state can be saved in plain values.

The library's own is :class:`penstock.context.Draws`, whose state is a count. Where a user
gives a seed, the numbers are those of Python's ``random.Random``, as in WebDataset, whose state is
some two kilobytes.
"""

from __future__ import annotations

import base64
import random
import struct
from typing import Any

from penstock.context import Draws


class Twister:
    """``random.Random`` behind the same two methods.

    >>> Twister(random.Random(0)).below(10)
    6
    """

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def below(self, n: int) -> int:
        return self.rng.randrange(n)

    def random(self) -> float:
        return self.rng.random()


Generator = Draws | Twister


def rng_state(rng: Generator) -> Any:
    """The generator's state: a count, or the twister's words as text.

    >>> rng_state(Draws(1, 5))
    5
    """
    if isinstance(rng, Draws):
        return rng.count
    version, words, gauss = rng.rng.getstate()
    return [version, base64.b64encode(struct.pack("<625I", *words)).decode(), gauss]


def set_rng_state(rng: Generator, state: Any) -> None:
    """Put a generator into a state that :func:`rng_state` gave."""
    if isinstance(rng, Draws):
        rng.count = state
    else:
        version, words, gauss = state
        rng.rng.setstate((version, struct.unpack("<625I", base64.b64decode(words)), gauss))
