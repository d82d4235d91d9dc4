"""How long an item of a row takes: is it worth another thread, and how many make a chunk?"""

from __future__ import annotations

from collections import deque

CHUNK_SECONDS = 4e-3
"""A chunk is about so much work: handing it over costs some fifty microseconds."""
CHUNK_ITEMS = 64
CHEAP_SECONDS = 40e-6
"""Items that cost less than this are not worth another thread."""
DEAR_SECONDS = 200e-6
MEASURED = 16
"""So many items are worked on at once to know what they cost."""
TOGETHER_SECONDS, TOGETHER_ITEMS = 12e-3, 16
"""A chunk whose items go together is one call of native code: longer, for fewer calls."""


class Pace:
    """How long an item of a row takes; shared by the lanes that run the same stages."""

    def __init__(self) -> None:
        self.seconds: float | None = None
        self.cheap = False
        self.asks = True
        """Whether the next few items should be worked on at once, to be measured."""
        self.wanted = MEASURED
        self._last: deque[float] = deque(maxlen=self.wanted)
        self._doubts, self._patience = 0, 4

    def note(self, seconds: float) -> bool:
        """An item was worked on at once and took so long. True: it is worth another thread."""
        dear = seconds > DEAR_SECONDS
        if self.seconds is None and dear:
            self.seconds = seconds  # it may have imported something: one more is asked for
            return False
        self._last.append(seconds)
        self.seconds = sum(self._last) / len(self._last)
        # The least of several: others may have wanted the processor.
        full = len(self._last) == self.wanted
        self.cheap = full and sorted(self._last)[self.wanted // 4] < CHEAP_SECONDS
        self.asks = not (dear or full)
        return dear

    def note_chunk(self, items: int, seconds: float, at_work: float) -> None:
        """So many items took a thread so long, of which it was at work for some time.

        The rest it slept, or waited for the interpreter's lock. Where items may be cheap but for
        the lock, the next few are worked on at once to know; if they are not, not so soon again.
        """
        self._last.append(seconds / items)
        self.seconds = sum(self._last) / len(self._last)
        self._doubts += at_work < items * CHEAP_SECONDS
        if self._doubts >= self._patience:
            self._doubts, self._patience = 0, min(4 * self._patience, 4096)
            self.asks = True
            self._last.clear()

    def chunk(self, most: int, together: bool = False) -> int:
        """How many items make a chunk."""
        if self.seconds is None:
            return 1
        if together:
            return max(min(int(TOGETHER_SECONDS / self.seconds), TOGETHER_ITEMS, most), 1)
        return max(min(int(CHUNK_SECONDS / (self.seconds + 1e-9)), CHUNK_ITEMS, most), 1)
