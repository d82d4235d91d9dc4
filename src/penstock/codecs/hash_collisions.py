"""Refuse keys that share a hash: a dict compares each with all others, in quadratic time.

Python hashes text with a secret, so an attacker cannot choose the hashes of text. Those of numbers,
and of tuples of numbers, can be chosen: ``hash(2**61 - 1) == hash(0)``.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from typing import Any

from penstock.errors import DecodingError

MAX_EQUAL_HASHES = 64
_MODULUS = sys.hash_info.modulus  # integers below it are their own hashes
_SAFE = frozenset((str, bytes, float, bool, type(None)))


def odd_keys(keys: Collection[Any]) -> list[Any]:
    """Return the keys whose hashes can be chosen, or that are slow to hash.

    >>> odd_keys(["a", 7, 2.5, (1, 2), 1 << 70])
    [(1, 2), 1180591620717411303424]
    """
    return [
        key
        for key in keys
        if type(key) not in _SAFE and not (type(key) is int and -_MODULUS < key < _MODULUS)
    ]


def check_hashes(keys: Collection[Any]) -> None:
    """Raise DecodingError if more than ``MAX_EQUAL_HASHES`` of the keys share hashes.

    >>> check_hashes([n * (2**61 - 1) for n in range(1000)])
    Traceback (most recent call last):
    penstock.errors.DecodingError: more than 64 keys of a dict or set share a hash
    """
    if len(keys) > MAX_EQUAL_HASHES:
        odd = odd_keys(keys)
        check_count(len(odd), set(map(hash, odd)))


def check_count(count: int, hashes: set[int]) -> None:
    """Raise DecodingError if ``count`` keys have too few different hashes."""
    if count - len(hashes) > MAX_EQUAL_HASHES:
        raise DecodingError(f"more than {MAX_EQUAL_HASHES} keys of a dict or set share a hash")
