from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import ShardWriter

MakeShards = Callable[..., str]


@pytest.fixture
def make_shards(tmp_path: Path) -> MakeShards:
    """Return a function that writes ``count`` samples in shards of ``each``; it returns the URL."""

    def make(count: int = 10, each: int = 4, name: str = "train", **options: object) -> str:
        with ShardWriter(f"{tmp_path}/{name}-%03d.tar", maxcount=each, **options) as sink:  # type: ignore[arg-type]
            for number in range(count):
                sink.write({"__key__": f"k{number}", "cls": number, "txt": f"text {number}"})
        last = (count - 1) // each
        return f"{tmp_path}/{name}-{{000..{last:03d}}}.tar"

    return make


@pytest.fixture
def flips(request: pytest.FixtureRequest) -> int:
    """Number of times a file is damaged at a random offset."""
    return int(request.config.getoption("--flips"))
