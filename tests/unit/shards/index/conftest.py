from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import ShardWriter

MakeShards = Callable[..., str]


@pytest.fixture
def make_shards(tmp_path: Path) -> MakeShards:
    """Writes ``count`` samples into shards of ``each`` and gives the pattern of their names."""

    def make(count: int = 10, each: int = 4, name: str = "train", **options: object) -> str:
        with ShardWriter(f"{tmp_path}/{name}-%03d.tar", maxcount=each, **options) as sink:  # type: ignore[arg-type]
            for number in range(count):
                sink.write({"__key__": f"k{number}", "cls": number, "txt": f"text {number}"})
        last = (count - 1) // each
        return f"{tmp_path}/{name}-{{000..{last:03d}}}.tar"

    return make
