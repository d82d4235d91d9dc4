"""How long to go on trying when a server or the way to it fails.

:class:`Patience` holds the limits, which are the user's arguments; :class:`Tries` counts one
request's failures against them. What was really received sets the count back: a long read over a
bad line goes on as long as it gets anywhere.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable

from penstock.errors import PipelineError

PROGRESS_BYTES = 64 << 10
"""Fewer bytes than this between two failures do not count as getting anywhere."""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class Patience:
    """The limits of trying again. A value, so that pipelines that hold one pickle and compare.

    >>> Patience(retries=2).tries().failed(gained=0) is None
    False
    >>> Patience(retries=2, budget_s=120.0)
    Patience(retries=2)
    """

    retries: int = 10
    """How many failures in a row are taken before it is an error."""
    budget_s: float = 120.0
    """And for how many seconds in a row."""
    backoff_s: float = 0.2
    """The first pause; each further one is twice as long, less up to a half at random."""
    longest_backoff_s: float = 20.0
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    """So long without a single byte is a failure. There is no limit on the total time."""
    lowest_rate: float = 1024.0
    """Fewer bytes per second than this, over ``rate_window_s``, is a failure as well."""
    rate_window_s: float = 30.0

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 0:
                raise PipelineError(f"{field.name} must not be negative: {self}")

    def __repr__(self) -> str:
        given = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]
        words = [f"{field.name}={value!r}" for field, value in given if value != field.default]
        return f"Patience({', '.join(words)})"

    def tries(self, clock: Callable[[], float] = time.monotonic) -> Tries:
        """A new count of failures."""
        return Tries(self, clock)

    def rate(self) -> Rate:
        """A new watch on the rate of one answer."""
        return Rate(self)


class Tries:
    """The failures of one request so far."""

    def __init__(self, patience: Patience, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience, self._clock = patience, clock
        self._began = self._since = clock()
        self._in_a_row = 0
        self._gained = 0
        self.count = 0

    @property
    def seconds(self) -> float:
        """The time since the first try."""
        return self._clock() - self._began

    def came(self, count: int) -> None:
        """Bytes came between failures; the seconds are counted anew from here."""
        self._gained += count
        self._since = self._clock()

    def failed(self, gained: int, retry_after: float | None = None) -> float | None:
        """How many seconds to wait before the next try; None when patience has ended.

        ``gained`` is how many bytes came since the last failure, ``retry_after`` what the server
        asked for.
        """
        patience = self._patience
        self.count += 1
        self._gained += gained
        if self._gained >= PROGRESS_BYTES:
            self._gained, self._in_a_row, self._since = 0, 0, self._clock()
        self._in_a_row += 1
        left = patience.budget_s - (self._clock() - self._since)
        if self._in_a_row > patience.retries or left <= 0:
            return None
        pause = min(patience.backoff_s * 2.0 ** (self._in_a_row - 1), patience.longest_backoff_s)
        pause *= random.uniform(0.5, 1.0)  # so that a thousand workers do not come back at once
        if retry_after is not None:
            pause = max(pause, retry_after)
        return pause if pause <= left else None


class Rate:
    """Watches one answer for a drip: bytes that come, but too few of them.

    Only the time spent waiting for bytes counts, not what the reader does between.
    """

    def __init__(self, patience: Patience) -> None:
        self._window_s = patience.rate_window_s
        self._wanted = patience.lowest_rate * patience.rate_window_s
        self._seconds, self._count = 0.0, 0

    def add(self, count: int, seconds: float) -> bool:
        """Note bytes and how long they took; False when a whole window has brought too few."""
        self._count += count
        self._seconds += seconds
        if self._count >= self._wanted:
            self._seconds, self._count = 0.0, 0
        return self._seconds < self._window_s
