"""Shards for the tests, written with the standard library."""

from __future__ import annotations

import pytest

from tar_files import write_tar


def write_shard(path, samples) -> str:
    """Write a tar of (key, {field: bytes}) pairs; return its path as a string."""
    return write_tar(
        path,
        ((f"{key}.{field}", data) for key, fields in samples for field, data in fields.items()),
    )


@pytest.fixture
def shard(tmp_path):
    """Return a function: ``shard([("a", {"txt": b"1"})], "x.tar")`` writes it, returns its path."""

    def make(samples, name="x.tar"):
        return write_shard(tmp_path / name, samples)

    return make


@pytest.fixture
def shards(tmp_path):
    """Return a function: ``shards(3, 5)`` writes three shards of five samples, returns their paths.

    Sample n has the key ``s000n``, a ``cls`` of n and a ``txt``.
    """

    def make(count=3, each=5, ending="tar"):
        urls = []
        for number in range(count):
            samples = [
                (f"s{n:04d}", {"cls": b"%d" % n, "txt": b"text %d" % n})
                for n in range(number * each, (number + 1) * each)
            ]
            urls.append(write_shard(tmp_path / f"d{number:03d}.{ending}", samples))
        return urls

    return make
