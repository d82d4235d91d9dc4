"""A store for tests of the cache, under ``slow://``: the files of a folder, read slowly and logged.

Every process that reads from it calls ``install(folder)``. ``fetched(folder, name)`` returns the
number of bytes that all processes have read of an object.
"""

from __future__ import annotations

import io
import os
import time
from pathlib import Path

from penstock.errors import Origin, StorageError
from penstock.storage import gopen_schemes


class SlowFile(io.RawIOBase):
    def __init__(self, folder: Path, url: str, *, piece: int, pause_s: float) -> None:
        super().__init__()
        self.name = url
        path = folder / url.removeprefix("slow://")
        try:
            self._file = open(path, "rb", buffering=0)  # noqa: SIM115
        except FileNotFoundError:
            raise StorageError("there is no such object", origin=Origin(url)) from None
        status = os.fstat(self._file.fileno())
        self.size_bytes = status.st_size
        self.version = f'"{status.st_mtime_ns:x}"'
        self._log = folder / (path.name + ".log")
        self._piece, self._pause_s = piece, pause_s

    def readable(self):
        return True

    def seekable(self):
        return True

    def seek(self, offset, whence=0, /):
        return self._file.seek(offset, whence)

    def readinto(self, buffer, /):
        if self._pause_s:
            time.sleep(self._pause_s)
        view = memoryview(buffer).cast("B")[: self._piece]
        count = self._file.readinto(view)
        self._note(count)
        return count

    def read_range(self, offset, length):
        self._note(length)
        return os.pread(self._file.fileno(), length, offset)

    def _note(self, count):
        with open(self._log, "a") as log:
            log.write(f"{count}\n")

    def close(self):
        super().close()
        if hasattr(self, "_file"):
            self._file.close()


def install(folder, *, piece: int = 1 << 16, pause_s: float = 0.0) -> None:
    def open_slow(url, mode="rb", bufsize=8192, **options):
        return SlowFile(Path(folder), url, piece=piece, pause_s=pause_s)

    gopen_schemes["slow"] = open_slow


def fetched(folder, name: str) -> int:
    log = Path(folder) / (Path(name).name + ".log")
    return sum(map(int, log.read_text().split())) if log.exists() else 0
