"""Reading from a server that is near and quick: one answer, straight to the reader.

Where an answer begins at once and one connection brings bytes as fast as they can be taken, threads
that fetch ahead only cost: every byte is copied twice and handed over between threads. Here the
reader receives into its own memory. A connection that turns out to be slow is noticed, and the
rest is fetched ahead after all (:mod:`penstock.storage.readers.read_ahead`).
"""

from __future__ import annotations

from collections.abc import Callable, Sized
from typing import TypeVar

from penstock.storage.client.response import Answer, Fault
from penstock.storage.client.retrying import Source
from penstock.storage.client.retry_policy import PROGRESS_BYTES

T = TypeVar("T", bound=int | Sized)
NEAR_S = 0.008
"""A server that has ever begun an answer within this time is near."""
QUICK_RATE = 200e6
"""Bytes per second of waiting. Below it, several connections may bring more than one."""
JUDGED_BYTES = 4 << 20
"""The rate is looked at whenever so much has come, and at the end of each answer."""
FIRST_BYTES = 1 << 20
MOST_BYTES = 64 << 20
"""Ranges grow from the one to the other: who reads on has few requests, who jumps little waste."""
SKIP_BYTES = 256 << 10
PIECE_BYTES = 1 << 20
"""The most that one read gives: that much memory is taken before it is known how much comes."""


class Straight:
    """The object's bytes from ``position`` on, in order; read from one thread.

    Bytes that do not come are asked for again, at the byte reached. Needs a server with ranges.
    """

    def __init__(
        self, source: Source, position: int, answer: Answer | None = None, answer_bytes: int = 0
    ) -> None:
        self._source, self.position = source, position
        self._answer, self._left = answer, answer_bytes
        self._range = answer_bytes
        self._came, self._waited = 0, 0.0
        self._tries = source.patience.tries()

    def holds(self, position: int) -> bool:
        """Whether reading on from here is the best way to the bytes there."""
        return bool(self._source.near) and 0 <= position - self.position <= SKIP_BYTES

    def start(self) -> None:
        """Nothing: what the server has sent waits in the connection."""

    def read(self, position: int, size: int) -> bytes:
        """1 to ``size`` bytes at ``position``, which the object has."""
        self._skip_to(position)
        return self._some(size)

    def readinto(self, position: int, view: memoryview) -> int:
        """The same, into the reader's memory."""
        self._skip_to(position)
        return self._received(lambda answer: answer.readinto(view[: self._left]), int)

    def close(self) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.close()

    def _skip_to(self, position: int) -> None:
        while self.position < position:
            self._some(position - self.position)

    def _some(self, size: int) -> bytes:
        size = min(size, PIECE_BYTES)
        return self._received(lambda answer: answer.read(min(size, self._left)), len)

    def _received(self, take: Callable[[Answer], T], count: Callable[[T], int]) -> T:
        return self._source.persist(
            lambda: self._once(take, count), offset=self.position, tries=self._tries
        )

    def _once(self, take: Callable[[Answer], T], count: Callable[[T], int]) -> T:
        answer = self._answer if self._answer is not None else self._ask()
        self._answer = None  # dropped, unless this try succeeds
        data = take(answer)
        got = count(data)
        if not got:  # some servers send less than was asked for
            answer.close()
            if self._range - self._left < PROGRESS_BYTES:
                raise Fault("the body was shorter than the range")
            return self._once(take, count)
        self._tries.came(got)
        self.position += got
        self._left -= got
        if answer.came - self._came >= JUDGED_BYTES or not self._left:
            self._judge(answer)
        if self._left:
            self._answer = answer
        else:
            answer.close()
        return data

    def _ask(self) -> Answer:
        size = self._source.size or 0
        wanted = min(max(8 * self._range, FIRST_BYTES), MOST_BYTES, size - self.position)
        answer, self._left = self._source.ask(self.position, wanted)
        self._range = self._left
        self._came, self._waited = 0, 0.0
        return answer

    def _judge(self, answer: Answer) -> None:
        came, waited = answer.came - self._came, answer.waited_s - self._waited
        self._came, self._waited = answer.came, answer.waited_s
        if came >= FIRST_BYTES // 2 and came < QUICK_RATE * waited:
            self._source.near = False
