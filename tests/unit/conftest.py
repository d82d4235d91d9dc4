"""Shards for the tests, made with the standard library."""

from __future__ import annotations

import io
import tarfile

import pytest

PLACES = ("RANK", "WORLD_SIZE", "WORKER", "NUM_WORKERS", "WDS_SEED", "WDS_EPOCH")


@pytest.fixture(autouse=True)
def _alone(monkeypatch):
    """No test depends on where the whole run takes place."""
    for name in PLACES:
        monkeypatch.delenv(name, raising=False)


def write_shard(path, samples) -> str:
    """A tar of (key, {field: bytes}) pairs; gives its path as text."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for key, fields in samples:
            for field, data in fields.items():
                info = tarfile.TarInfo(f"{key}.{field}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return str(path)


@pytest.fixture
def shard(tmp_path):
    """Writes a shard: shard([("a", {"txt": b"1"})], "name.tar") gives its path."""

    def make(samples, name="x.tar"):
        return write_shard(tmp_path / name, samples)

    return make


@pytest.fixture
def shards(tmp_path):
    """Writes shards of numbered samples: shards(3, 5) gives three paths of five samples each.

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
