"""Long columns of numbers and texts in temporary files, and the sorted order of a column.

A data set may have hundreds of millions of samples. The files are in the folder for temporary files
(``TMPDIR``) and have no name, so nothing is left of them when a process is killed.
"""

from __future__ import annotations

import heapq
import itertools
import marshal
import mmap
import tempfile
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

BUFFERED_NUMBERS = 1 << 13
RECORD_BYTES = 150
"""The memory that a record takes while it is sorted, besides its bytes."""
BLOCK_RECORDS = 64
"""Records of each run that are in memory while runs are merged."""
MOST_RUNS = 64
"""More runs are merged at once, since each is an open file."""


class DiskBytes:
    """Bytes in a temporary file, which may be read while more are added.

    Processes that are forked after the last ``view`` share the file.
    """

    def __init__(self, data: bytes = b"") -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile(prefix="penstock-")  # noqa: SIM115
        self._map: Any = b""
        self.size = 0
        self.write(data)

    def write(self, data: bytes) -> None:
        self._file.write(data)
        self.size += len(data)

    def view(self) -> Any:
        """Return all bytes as a memory map."""
        if len(self._map) < self.size:
            self._file.flush()
            self._map = mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ)
        return self._map

    def __reduce__(self) -> Any:
        return DiskBytes, (bytes(self.view()),)


class DiskNumbers(Sequence[int]):
    """Whole numbers in a temporary file.

    >>> numbers = DiskNumbers([5, 7, 9])
    >>> len(numbers), numbers[1], numbers[1:], list(numbers)
    (3, 7, [7, 9], [5, 7, 9])
    """

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._file, self._buffer = DiskBytes(), array("q")
        self._view: Any = memoryview(b"").cast("q")
        self.extend(numbers)

    def append(self, number: int) -> None:
        self._buffer.append(number)
        if len(self._buffer) >= BUFFERED_NUMBERS:
            self._flush()

    def extend(self, numbers: Iterable[int]) -> None:
        for number in numbers:
            self.append(number)

    def _flush(self) -> None:
        self._file.write(self._buffer.tobytes())
        self._buffer = array("q")

    def view(self) -> Any:
        """Return all numbers as a memory map."""
        if self._buffer:
            self._flush()
        if len(self._view) * 8 < self._file.size:
            self._view = memoryview(self._file.view()).cast("q")
        return self._view

    def __len__(self) -> int:
        return self._file.size // 8 + len(self._buffer)

    def __getitem__(self, which: Any) -> Any:
        found = self.view()[which]
        return found.tolist() if isinstance(which, slice) else found

    def __iter__(self) -> Iterator[int]:
        return iter(self.view())

    def __reduce__(self) -> Any:
        return DiskNumbers, (array("q", self.view()),)


class DiskTexts(Sequence[str]):
    """Texts in a temporary file; ``get_bytes`` returns one in UTF-8.

    >>> texts = DiskTexts()
    >>> texts.append("one"), texts.append(b"three")
    (None, None)
    >>> len(texts), texts[0], texts.get_bytes(1), list(texts)
    (2, 'one', b'three', ['one', 'three'])
    """

    def __init__(self) -> None:
        self._file, self._ends = DiskBytes(), DiskNumbers([0])

    def append(self, text: str | bytes) -> None:
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        self._file.write(data)
        self._ends.append(self._file.size)

    def view(self) -> Any:
        self._ends.view()
        return self._file.view()

    def get_bytes(self, number: int) -> bytes:
        begin, end = self._ends[number : number + 2]
        data: bytes = self._file.view()[begin:end]
        return data

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __getitem__(self, number: Any) -> Any:
        if number >= len(self):
            raise IndexError(number)
        return self.get_bytes(number).decode("utf-8", "surrogateescape")


def sort_numbers(values: Iterable[Any], memory_bytes: int) -> DiskNumbers:
    """Return the numbers of the values (bytes or numbers) in the order of the values.

    Equal values keep their order. About ``memory_bytes`` are used: runs of that size are sorted,
    written to temporary files, and merged.

    >>> list(sort_numbers([b"b", b"a", b"c", b"a"], 200))
    [1, 3, 0, 2]
    """
    runs: list[Iterator[tuple[Any, int]]] = []
    waiting: list[tuple[Any, int]] = []
    used = 0
    for number, value in enumerate(values):
        waiting.append((value, number))
        used += RECORD_BYTES + (len(value) if isinstance(value, bytes) else 0)
        if used >= memory_bytes:
            waiting.sort()
            runs.append(_write_run(waiting))
            waiting, used = [], 0
            if len(runs) >= MOST_RUNS:
                runs = [_write_run(heapq.merge(*runs))]
    waiting.sort()
    return DiskNumbers(number for _, number in heapq.merge(*runs, waiting))


def _write_run(sorted_records: Iterable[tuple[Any, int]]) -> Iterator[tuple[Any, int]]:
    """Write sorted records to a temporary file, and return an iterator over them."""
    file = tempfile.TemporaryFile(prefix="penstock-")  # noqa: SIM115
    records = iter(sorted_records)
    while block := list(itertools.islice(records, BLOCK_RECORDS)):
        marshal.dump(block, file)
    marshal.dump([], file)
    file.seek(0)
    return _read_run(file)


def _read_run(file: IO[bytes]) -> Iterator[tuple[Any, int]]:
    with file:
        while block := marshal.load(file):
            yield from block
