"""Whether a pipeline keeps its promise: stopped after any item, it goes on as if it were not."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import numpy as np

END = object()
"""What is found behind the last item."""


def assert_resumes(
    make_pipeline: Callable[[], Any], *, every: int = 1, limit: int | None = None
) -> int:
    """Stop a pipeline after every item, go on with a new one, and compare all that follows.

    ``make_pipeline()`` gives a new pipeline, data set or loader each time; anything with
    ``state_dict`` and ``load_state_dict`` will do. One epoch of it is run from beginning to end.
    Then, for every ``every``-th item, the state behind it goes through JSON into a new
    pipeline, whose items must be those that followed in the first run, and whose states
    behind each of them must be equal to the first run's as well. ``limit`` is
    how many items of an epoch are looked at, for those without an end.

    Gives the size of the largest state, in bytes of JSON. What is not as it was raises an
    ``AssertionError`` that says after which item, and where in the item or the state.

    >>> import penstock as wds
    >>> from penstock.testing import assert_resumes
    >>> size_bytes = assert_resumes(lambda: wds.DataPipeline(range(9), wds.shuffle(4)))
    >>> size_bytes < 1000
    True
    """
    first = make_pipeline()
    items: list[Any] = []
    texts = [saved(first)]
    with stream_of(first) as stream:
        while limit is None or len(items) < limit:
            items.append(next(stream, END))
            texts.append(saved(first))
            if items[-1] is END:
                break
    # An iterator that has ended ends again: the state behind the end begins the next epoch.
    stops = len(items) - (1 if items and items[-1] is END else 0)
    for stop in sorted({*range(0, stops, max(every, 1)), stops}):
        _compare(make_pipeline(), stop, items, texts)
    return max(map(len, texts))


def _compare(pipeline: Any, stop: int, items: list[Any], texts: list[str]) -> None:
    """Let a new pipeline go on from the state after ``stop`` items."""
    pipeline.load_state_dict(json.loads(texts[stop]))
    where = f"after a resume behind item {stop}" if stop else "after a resume at the beginning"
    _expect(texts[stop], saved(pipeline), f"{where}, the state")
    with stream_of(pipeline) as stream:
        for number in range(stop, len(items)):
            item = next(stream, END)
            if (item is END) != (items[number] is END):
                ends = "the end came" if item is END else f"another item came: {short(item)}"
                raise AssertionError(f"{where}, {ends} in place of item {number}")
            problem = difference(items[number], item)
            if problem is not None:
                raise AssertionError(f"{where}, item {number} is another one: {problem}")
            _expect(texts[number + 1], saved(pipeline), f"{where}, the state behind item {number}")


def _expect(wanted: str, found: str, what: str) -> None:
    problem = difference(json.loads(wanted), json.loads(found)) if wanted != found else None
    if problem is not None:
        raise AssertionError(f"{what} is another one: {problem}")


def saved(pipeline: Any) -> str:
    """The state as JSON; what JSON cannot hold is a TypeError."""
    return json.dumps(pipeline.state_dict(), sort_keys=True, allow_nan=False)


@contextmanager
def stream_of(pipeline: Any) -> Iterator[Iterator[Any]]:
    """An iterator over the pipeline, closed in the end: worker processes must go with it."""
    stream = iter(pipeline)
    if hasattr(stream, "close"):
        with closing(stream):
            yield stream
    else:
        yield stream


def difference(wanted: Any, found: Any, place: str = "") -> str | None:
    """Where two values differ, bit for bit; None where they do not.

    Arrays, tensors and what holds them are compared by type, shape and content.

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
            return f"{place or 'it'}: the keys {list(wanted)} became {list(found)}"
        return _first(wanted, found, wanted, place)
    elif isinstance(wanted, (list, tuple)):
        if len(wanted) != len(found):
            return f"{place or 'it'}: {len(wanted)} values became {len(found)}"
        return _first(wanted, found, range(len(wanted)), place)
    elif isinstance(wanted, np.ndarray):
        same = (wanted.dtype, wanted.shape) == (found.dtype, found.shape)
        if same and wanted.dtype.hasobject:
            return difference(wanted.tolist(), found.tolist(), place)
        same = same and wanted.tobytes() == found.tobytes()
    elif torch is not None and isinstance(wanted, torch.Tensor):
        same = wanted.dtype == found.dtype and wanted.shape == found.shape
        both_nan = (wanted != wanted) & (found != found) if same else None
        same = same and bool(((wanted == found) | both_nan).all())
    else:
        same = bool(wanted == found) or (wanted != wanted and found != found)
        if not same and _plain(wanted) and hasattr(wanted, "__dict__"):
            return difference(vars(wanted), vars(found), place)
    return None if same else f"{place or 'it'}: {short(wanted)} became {short(found)}"


def _plain(value: Any) -> bool:
    """Whether an object compares only with itself."""
    kind: Any = type(value)
    return kind.__eq__ is object.__eq__


def _first(wanted: Any, found: Any, keys: Any, place: str) -> str | None:
    for key in keys:
        problem = difference(wanted[key], found[key], f"{place}[{key!r}]")
        if problem is not None:
            return problem
    return None


def short(value: Any) -> str:
    """A value for a message."""
    text = repr(value)
    return text if len(text) <= 200 else text[:197] + "..."
