"""``penstock cache ls|clear|verify``."""

from __future__ import annotations

import json

import pytest

from penstock.cli import main
from penstock.storage.cache.shard_cache import ShardCache


@pytest.fixture
def cached(tmp_path):
    """A cache with two shards; gives its folder."""
    cache = ShardCache(tmp_path / "cache")
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(name.encode() * 100)
        with cache.open(f"pipe:cat '{tmp_path / name}'") as shard:
            shard.read()
    for entry in cache.entries():
        assert entry.note.url == "pipe:cat …"
    return tmp_path / "cache"


def told(capsys, *words):
    status = main(["cache", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def settled(folder):
    import threading

    while busy := [one for one in threading.enumerate() if one.name == "penstock-cache"]:
        busy[0].join(20)
    return folder


def test_ls_tells_every_shard(cached, capsys):
    folder = str(settled(cached))
    status, figures = told(capsys, "ls", "--cache-dir", folder)
    assert (status, figures["bytes"], len(figures["shards"])) == (0, 600, 2)
    assert main(["cache", "ls", "--cache-dir", folder]) == 0
    assert "complete" in capsys.readouterr().out


def test_verify_finds_a_changed_shard_and_can_remove_it(cached, capsys):
    folder = str(settled(cached))
    assert told(capsys, "verify", "--cache-dir", folder)[0] == 0
    entry = ShardCache(folder).entries()[0]
    (cached / entry.name).write_bytes(b"x" * 300)
    status, figures = told(capsys, "verify", "--offline", "--remove", "--cache-dir", folder)
    assert (status, figures["checked"], len(figures["problems"])) == (1, 2, 1)
    assert len(ShardCache(folder).entries()) == 1


def test_clear_deletes_what_matches(cached, capsys, monkeypatch):
    monkeypatch.setenv("WDS_CACHE", str(settled(cached)))
    assert told(capsys, "clear", "s3://*")[1]["deleted"] == 0
    assert told(capsys, "clear")[1]["deleted"] == 2
    assert ShardCache(cached).entries() == []


def test_without_a_folder_it_says_what_to_do(capsys, monkeypatch):
    monkeypatch.delenv("WDS_CACHE", raising=False)
    assert main(["cache", "ls"]) == 1
    assert "WDS_CACHE" in capsys.readouterr().err
