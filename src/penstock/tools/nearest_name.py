"""Suggest the known name nearest to a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

MOST_NAMES = 100_000
"""More known names than this are not compared: it would take seconds."""


def suggest(word: str, known: Iterable[str]) -> str:
    """Return ``"; did you mean 'X'?"`` for the known name nearest to a word, or nothing.

    >>> suggest("verfy", ["verify", "stats"]), suggest("quux", ["verify", "stats"])
    ("; did you mean 'verify'?", '')
    """
    names = {name.lower(): name for name in known}
    if len(names) > MOST_NAMES:
        return ""
    near = difflib.get_close_matches(word.lower(), names, n=1, cutoff=0.6)
    return f"; did you mean {names[near[0]]!r}?" if near else ""
