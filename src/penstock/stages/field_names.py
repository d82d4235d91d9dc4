"""Field names with alternatives: ``"jpg;png"`` is the first of the two that a sample has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.codecs.image_files import suggest_rename
from penstock.errors import SampleError


def parse_fields(spec: str | Iterable[str]) -> list[str]:
    """Return the alternative names of one field.

    >>> parse_fields("jpg;png"), parse_fields(["jpg", "png"])
    (['jpg', 'png'], ['jpg', 'png'])
    """
    return spec.split(";") if isinstance(spec, str) else list(spec)


def first_of(
    sample: Mapping[str, Any],
    names: Iterable[str],
    default: Any = None,
    missing_is_error: bool = True,
) -> Any:
    """Return the value of the first name that the sample has.

    >>> first_of({"png": 1}, ["jpg", "png"])
    1
    """
    for name in names:
        if name in sample:
            return sample[name]
    if missing_is_error:
        names = list(names)
        remedy = suggest_rename(names, sample)
        raise SampleError(f"didn't find {names} in {list(sample)}{remedy}")
    return default


def getfirst(
    a: Mapping[str, Any],
    keys: str | Iterable[str],
    default: Any = None,
    missing_is_error: bool = True,
) -> Any:
    """Return the value of the first of ``keys`` (``"a;b"`` or a list) that is in ``a``.

    >>> getfirst({"b": 2}, "a;b")
    2
    """
    return first_of(a, parse_fields(keys), default, missing_is_error)
