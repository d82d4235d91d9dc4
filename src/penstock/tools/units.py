"""Sizes as people write them: ``1GB``, ``512MiB``."""

from __future__ import annotations

import re

from penstock.errors import PipelineError

_DECIMAL = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_BINARY = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_SIZE = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?(?:e[0-9]+)?)\s*([KMGTP]?)(i?)(B?)\s*", re.IGNORECASE)


def parse_size(text: str | int) -> int:
    """Return the number of bytes that a size means.

    ``KB MB GB TB PB`` are powers of 1000, ``KiB MiB GiB TiB PiB`` powers of 1024; a number without
    a unit is bytes. ``1G`` is refused, since programs disagree about it.

    >>> parse_size("1GB"), parse_size("512MiB"), parse_size("1.5 kB"), parse_size("1e9")
    (1000000000, 536870912, 1500, 1000000000)
    >>> parse_size("1G")
    Traceback (most recent call last):
    penstock.errors.PipelineError: a size is a number with or without a unit, ...
    """
    if isinstance(text, int):
        return text
    match = _SIZE.fullmatch(text)
    number, prefix, binary, unit = match.groups() if match else ("", "", "", "")
    if match is None or (prefix and not unit) or (binary and not prefix):
        hint = f": write {number}{prefix.upper()}B or {number}{prefix.upper()}iB" if prefix else ""
        raise PipelineError(
            f"a size is a number with or without a unit, such as 1GB or 512MiB, not {text!r}{hint}"
        )
    factor = (_BINARY if binary else _DECIMAL)[prefix.upper()]
    return int(float(number) * factor) if not number.isdigit() else int(number) * factor


def count(number: int, what: str) -> str:
    """Return the number and what it counts; an ``s`` is added to the first word.

    >>> count(1, "sample"), count(1200, "command failed")
    ('1 sample', '1,200 commands failed')
    """
    word, space, rest = what.partition(" ")
    return f"{number:,} {word}{'s' * (number != 1)}{space}{rest}"


def format_size(size_bytes: float) -> str:
    """Return the size with three digits and a decimal unit.

    >>> format_size(512), format_size(12_345), format_size(2_000_000_000)
    ('512 B', '12.3 kB', '2.00 GB')
    """
    if size_bytes < 1000:
        return f"{size_bytes:.0f} B"
    for unit in ("kB", "MB", "GB", "TB", "PB"):
        size_bytes /= 1000
        if size_bytes < 999.5 or unit == "PB":
            break
    digits = 2 if size_bytes < 9.995 else 1 if size_bytes < 99.95 else 0
    return f"{size_bytes:.{digits}f} {unit}"
