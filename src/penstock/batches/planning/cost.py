"""Cost models of a batch: functions of its number of examples and its greatest length.

A budget is a limit on this cost. Padded batches are as long as their longest example, so the cost
of n examples is that of n examples of the greatest length. With two lengths per example (such as
input and output), the greatest of each kind counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import PipelineError

Array = np.ndarray[Any, np.dtype[Any]]


class Linear:
    """``n · (w₁T₁ + w₂T₂ …)``: the padded size. All weights are 1 by default.

    >>> Linear()(4, 10.0), Linear(1, 0.5)(4, 10.0, 6.0)
    (40.0, 52.0)
    """

    def __init__(self, *weights: float) -> None:
        self.weights = weights

    def __call__(self, n: Any, *lengths: Any) -> Any:
        weights = self.weights or (1.0,) * len(lengths)
        if len(weights) != len(lengths):
            raise PipelineError(
                f"Linear has {len(weights)} weights for {len(lengths)} lengths: pass one each"
            )
        return n * sum(weight * length for weight, length in zip(weights, lengths))

    def __repr__(self) -> str:
        return f"Linear({', '.join(map(repr, self.weights))})"


class Quadratic:
    """``n · (a + bT + cT²)``: a constant per example, a linear part, and attention.

    Several lengths count by their sum, as in a model that reads input and output in one sequence.

    >>> Quadratic(c=1 / 20)(2, 10.0)
    30.0
    """

    def __init__(self, a: float = 0.0, b: float = 1.0, c: float = 0.0) -> None:
        self.a, self.b, self.c = a, b, c

    def __call__(self, n: Any, *lengths: Any) -> Any:
        length = sum(lengths)
        return n * (self.a + self.b * length + self.c * length * length)

    def __repr__(self) -> str:
        return f"Quadratic({self.a}, {self.b}, {self.c})"


class Table:
    """A budget as a table: rows of (length, most examples in a batch of that length or less).

    Pass it as the budget. Its cost of ``n`` examples is ``n / most``, at most 1. Examples longer
    than the last row are above the budget.

    >>> Table([(10, 32), (20, 12)])(6, 15.0)
    0.5
    """

    def __init__(self, rows: Sequence[tuple[float, int]]) -> None:
        self.rows = sorted((float(length), int(most)) for length, most in rows)
        sizes = [most for _, most in self.rows]
        if not sizes or min(sizes) < 1 or sizes != sorted(sizes, reverse=True):
            raise PipelineError(
                f"a table has rows (greatest length, most examples), with fewer examples for "
                f"longer ones, not {list(rows)!r}"
            )

    def __call__(self, n: Any, *lengths: Any) -> Any:
        bounds = np.array([length for length, _ in self.rows])
        each = np.array([1 / most for _, most in self.rows] + [np.inf])
        # Several lengths count by their sum, as in the other models.
        cost = n * each[np.searchsorted(bounds, sum(lengths), side="left")]
        return cost if np.ndim(cost) else float(cost)

    def __repr__(self) -> str:
        return f"Table({self.rows})"


CostFunction = Callable[..., Any]
"""A function of (n, T), or (n, T₁, T₂) for two lengths; it never falls when one of them grows."""


def stable_repr(value: Any) -> str:
    """Return an argument, such as a cost function, as text that is the same in every process.

    >>> import functools
    >>> stable_repr(len), stable_repr(functools.partial(len, 3))
    ('len', 'functools.partial(<built-in function len>, 3)')
    """
    name: str | None = getattr(value, "__qualname__", None)
    return name or re.sub(r" at 0x[0-9a-fA-F]+", "", repr(value))


class Cost:
    """A cost function that takes arrays, even if the user's function takes only numbers.

    >>> Cost(lambda n, t: n * max(t, 5))(np.array([1, 2]), np.array([3.0, 8.0])).tolist()
    [5.0, 16.0]
    """

    def __init__(self, given: CostFunction | None) -> None:
        self.given = given if given is not None else Linear()
        self._plain = False

    def __call__(self, n: Array, *lengths: Array) -> Array:
        if not self._plain:
            try:
                found = np.asarray(self.given(n, *lengths), float)
                if found.shape == np.shape(n):
                    return found
            except (TypeError, ValueError):  # ``if`` and ``max`` refuse arrays
                pass
            self._plain = True
        each = zip(*(np.asarray(array).tolist() for array in (n, *lengths)))
        return np.array([float(self.given(*one)) for one in each])
