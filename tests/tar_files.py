"""Tar files for tests, made by the standard library and not by the code under test."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterable
from os import PathLike
from pathlib import Path


class SlowStream:
    """A stream whose reads return at most as many bytes as ``sizes`` say, in turn, as pipes do."""

    def __init__(self, data: bytes, sizes: int | tuple[int, ...] = 1 << 20) -> None:
        self._data, self._reads = io.BytesIO(data), 0
        self._sizes = (sizes,) if isinstance(sizes, int) else sizes

    def read(self, count: int) -> bytes:
        self._reads += 1
        return self._data.read(min(count, self._sizes[self._reads % len(self._sizes)]))


def tar_bytes(
    members: Iterable[tuple[str, bytes]],
    format: int = tarfile.USTAR_FORMAT,
    **attributes: object,
) -> bytes:
    """Return a tar of (name, data) pairs; ``attributes`` are those of every ``TarInfo``."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=format) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            for attribute, value in attributes.items():
                setattr(info, attribute, value)
            tar.addfile(info, io.BytesIO(data))
    return target.getvalue()


def write_tar(path: str | PathLike[str], members: Iterable[tuple[str, bytes]]) -> str:
    """Write a tar of (name, data) pairs; return its path as a string."""
    Path(path).write_bytes(tar_bytes(members))
    return str(path)
