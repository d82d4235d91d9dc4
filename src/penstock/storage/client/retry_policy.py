"""Retry limits and backoff for requests to remote storage.

:class:`RetryPolicy` holds the limits, which the user sets; :class:`RetryState` applies them to one
read: whether to retry, and how long to wait first. Received bytes reset the count of consecutive
failures, so a long transfer over a bad connection continues as long as it makes progress; the time
lost in one read is limited all the same.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable

from penstock.errors import PipelineError

PROGRESS_BYTES = 64 << 10
"""Bytes that must arrive between two failures to count as progress."""


@dataclasses.dataclass(frozen=True, slots=True, repr=False)
class RetryPolicy:
    """Limits on retrying a request. Immutable, so pipelines that hold one pickle and compare.

    >>> RetryPolicy(retries=2).start().next_delay(received=0) is None
    False
    >>> RetryPolicy(retries=2, budget_s=120.0)
    RetryPolicy(retries=2)
    """

    retries: int = 10
    """Maximum number of consecutive failures."""
    budget_s: float = 120.0
    """Maximum time of consecutive failures, from the last progress to the last retry."""
    backoff_s: float = 0.2
    """Delay before the first retry. It doubles each time, and is shortened by up to half at
    random."""
    longest_backoff_s: float = 20.0
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 30.0
    """Maximum time without a single byte. A slow transfer has no time limit."""
    lowest_rate: float = 1024.0
    """Minimum bytes per second, averaged over ``rate_window_s``; less is a failure."""
    rate_window_s: float = 30.0
    total_s: float | None = None
    """Maximum time that one read may lose to failures and delays in all, whatever arrived in
    between. None: one and a half times ``budget_s``."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if (getattr(self, field.name) or 0) < 0:
                raise PipelineError(f"{field.name} must not be negative: {self}")

    def __repr__(self) -> str:
        values = [(field, getattr(self, field.name)) for field in dataclasses.fields(self)]
        words = [f"{field.name}={value!r}" for field, value in values if value != field.default]
        return f"RetryPolicy({', '.join(words)})"

    def start(self, clock: Callable[[], float] = time.monotonic) -> RetryState:
        """Return the retry state of a new read."""
        return RetryState(self, clock)


class RetryState:
    """Counts the failures of one read against a :class:`RetryPolicy`."""

    def __init__(self, policy: RetryPolicy, clock: Callable[[], float] = time.monotonic) -> None:
        self._policy, self._clock = policy, clock
        self._started_at = self._last_progress_at = clock()
        self._consecutive_failures = 0
        self._received = 0
        self._lost_s = 0.0
        self._total_s = 1.5 * policy.budget_s if policy.total_s is None else policy.total_s
        self.failures = 0

    @property
    def elapsed_s(self) -> float:
        """Seconds since the first try."""
        return self._clock() - self._started_at

    def record_progress(self, received: int) -> None:
        """Record bytes that were passed to the reader, and restart the time budget."""
        self._received += received
        self._last_progress_at = self._clock()
        self._lost_s = 0.0

    def record_success(self) -> None:
        """Restart the count of consecutive failures after a part is complete; keep lost time."""
        self._received, self._consecutive_failures = 0, 0
        self._last_progress_at = self._clock()

    def next_delay(
        self, received: int, retry_after_s: float | None = None, lost_s: float = 0.0
    ) -> float | None:
        """Record a failure and return the delay before the next retry, or None to give up.

        ``received`` is the number of bytes since the last failure, ``lost_s`` the time since the
        last of them, ``retry_after_s`` the delay that the server asked for.
        """
        policy = self._policy
        self.failures += 1
        self._received += received
        if self._received >= PROGRESS_BYTES:
            self.record_success()
        self._consecutive_failures += 1
        self._lost_s += lost_s
        remaining_s = min(
            policy.budget_s - (self._clock() - self._last_progress_at),
            self._total_s - self._lost_s,
        )
        if self._consecutive_failures > policy.retries or remaining_s <= 0:
            return None
        delay_s = policy.backoff_s * 2.0 ** (self._consecutive_failures - 1)
        delay_s = min(delay_s, policy.longest_backoff_s)
        delay_s *= random.uniform(0.5, 1.0)  # jitter: a thousand workers must not retry together
        if retry_after_s is not None:
            delay_s = max(delay_s, retry_after_s)
        self._lost_s += delay_s
        return delay_s if delay_s <= remaining_s else None


class ThroughputMonitor:
    """Detects a response that trickles: bytes arrive, but too slowly.

    Only time spent waiting for bytes counts, not time that the reader spends between reads.
    """

    def __init__(self, policy: RetryPolicy) -> None:
        self._window_s = policy.rate_window_s
        self._required_bytes = policy.lowest_rate * policy.rate_window_s
        self._waited_s, self._received = 0.0, 0

    def record(self, received: int, waited_s: float) -> bool:
        """Record bytes and the time they took. Return False if a whole window was too slow."""
        self._received += received
        self._waited_s += waited_s
        if self._received >= self._required_bytes:
            self._waited_s, self._received = 0.0, 0
        return self._waited_s < self._window_s
