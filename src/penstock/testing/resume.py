"""Asserts that a pipeline resumes exactly after any item."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

END = object()
"""Marks the end of an epoch."""


def assert_resumes(
    make_pipeline: Callable[[], Any], *, every: int = 1, limit: int | None = None
) -> int:
    """Stop a pipeline after every item, resume with a new one, and compare the rest.

    ``make_pipeline()`` returns a new pipeline, data set or loader each time: anything with
    ``state_dict`` and ``load_state_dict``. One epoch of it is run to the end. Then, for every
    ``every``-th item, the state after it is loaded, by way of JSON, into a new pipeline. Its items
    must equal the rest of the first run, and so must its state after each of them. ``limit`` is
    the number of items to compare, for epochs without an end.

    Return the size of the largest state, in bytes of JSON. Raise an ``AssertionError`` at the first
    difference that names the item after which it resumed, and where item or state differ.

    >>> import penstock as wds
    >>> from penstock.testing import assert_resumes
    >>> size_bytes = assert_resumes(lambda: wds.DataPipeline(range(9), wds.shuffle(4)))
    >>> size_bytes < 1000
    True
    """
    first = make_pipeline()
    items: list[Any] = []
    texts = [save_state(first)]
    with open_stream(first) as stream:
        while limit is None or len(items) < limit:
            items.append(next(stream, END))
            texts.append(save_state(first))
            if items[-1] is END:
                break
    # The state after the end starts the next epoch, so the last stop is before the end.
    stops = len(items) - (1 if items and items[-1] is END else 0)
    for stop in sorted({*range(0, stops, max(every, 1)), stops}):
        _compare(make_pipeline(), stop, items, texts)
    return max(map(len, texts))


def _compare(pipeline: Any, stop: int, items: list[Any], texts: list[str]) -> None:
    """Resume a new pipeline from the state after ``stop`` items and compare the rest."""
    pipeline.load_state_dict(json.loads(texts[stop]))
    where = f"after a resume at item {stop}" if stop else "after a resume at the beginning"
    _expect(texts[stop], save_state(pipeline), f"{where}, the state")
    with open_stream(pipeline) as stream:
        for number in range(stop, len(items)):
            item = next(stream, END)
            if (item is END) != (items[number] is END):
                found = "the epoch ended" if item is END else f"{abbreviate(item)} was yielded"
                raise AssertionError(f"{where}, {found} instead of item {number}")
            problem = difference(items[number], item)
            if problem is not None:
                raise AssertionError(f"{where}, item {number} differs: {problem}")
            _expect(texts[number + 1], save_state(pipeline), f"{where}, state after item {number}")


def _expect(wanted: str, found: str, what: str) -> None:
    problem = difference(json.loads(wanted), json.loads(found)) if wanted != found else None
    if problem is not None:
        raise AssertionError(f"{what} differs: {problem}")


def save_state(pipeline: Any) -> str:
    """Return the state as JSON; raise a TypeError if JSON cannot represent it."""
    return json.dumps(pipeline.state_dict(), sort_keys=True, allow_nan=False)


@contextmanager
def open_stream(pipeline: Any) -> Iterator[Iterator[Any]]:
    """Return an iterator over the pipeline, closed at the end, so that its workers end."""
    stream = iter(pipeline)
    if hasattr(stream, "close"):
        with closing(stream):
            yield stream
    else:
        yield stream


def difference(wanted: Any, found: Any, path: str = "") -> str | None:
    """Describe where two values differ, bit for bit; None if they are equal.

    Arrays, tensors and their containers are compared by type, shape and content.

    >>> difference({"a": [1, np.zeros(2)]}, {"a": [1, np.zeros(2)]})
    >>> difference({"a": [1, np.zeros(2)]}, {"a": [1, np.ones(2)]})
    "['a'][1]: array([0., 0.]) became array([1., 1.])"
    """
    torch = sys.modules.get("torch")
    same: bool
    if type(wanted) is not type(found):
        same = False
    elif isinstance(wanted, Mapping):
        if list(wanted) != list(found):
            return f"{path or 'it'}: the keys {list(wanted)} became {list(found)}"
        return _find_first(wanted, found, wanted, path)
    elif isinstance(wanted, (list, tuple)):
        if len(wanted) != len(found):
            return f"{path or 'it'}: {len(wanted)} values became {len(found)}"
        return _find_first(wanted, found, range(len(wanted)), path)
    elif isinstance(wanted, np.ndarray):
        same = (wanted.dtype, wanted.shape) == (found.dtype, found.shape)
        if same and wanted.dtype.hasobject:
            return difference(wanted.tolist(), found.tolist(), path)
        same = same and wanted.tobytes() == found.tobytes()
    elif torch is not None and isinstance(wanted, torch.Tensor):
        same = wanted.dtype == found.dtype and wanted.shape == found.shape
        both_nan = (wanted != wanted) & (found != found) if same else None
        same = same and bool(((wanted == found) | both_nan).all())
    else:
        same = bool(wanted == found) or (wanted != wanted and found != found)
        if not same and _compares_by_identity(wanted) and hasattr(wanted, "__dict__"):
            return difference(vars(wanted), vars(found), path)
    return None if same else f"{path or 'it'}: {abbreviate(wanted)} became {abbreviate(found)}"


def _compares_by_identity(value: Any) -> bool:
    """Return whether an object equals only itself."""
    kind: Any = type(value)
    return kind.__eq__ is object.__eq__


def _find_first(wanted: Any, found: Any, keys: Any, path: str) -> str | None:
    for key in keys:
        problem = difference(wanted[key], found[key], f"{path}[{key!r}]")
        if problem is not None:
            return problem
    return None


def abbreviate(value: Any) -> str:
    """Return the repr of a value, shortened for a message."""
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
