"""``penstock cache ls|clear|verify``."""

from __future__ import annotations

import json

import pytest

from penstock.cli import main
from penstock.storage.cache.shard_cache import ShardCache
from waiting import wait_for_threads


@pytest.fixture
def cached(tmp_path):
    """A cache with two shards; gives its folder."""
    cache = ShardCache(tmp_path / "cache")
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(name.encode() * 100)
        with cache.open(f"pipe:cat '{tmp_path / name}'") as shard:
            shard.read()
    for entry in cache.entries():
        assert entry.note.url == "pipe:cat ..."
    return tmp_path / "cache"


def told(capsys, *words):
    status = main(["cache", *words, "--json"])
    return status, json.loads(capsys.readouterr().out)


def settled(folder):
    wait_for_threads("penstock-cache")
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
    assert main(["cache", "ls"]) == 2
    assert "WDS_CACHE" in capsys.readouterr().err


def test_control_characters_are_escaped(cached, capsys):
    """The URL of a note, and the message of an error, may come from somebody else."""
    folder = str(settled(cached))
    entry = ShardCache(folder).entries()[0]
    note = cached / f"{entry.name}.json"
    url = "s3://b/a\x1b]0;owned\x07\n\u202e\udcff.tar"
    note.write_text(json.dumps({**json.loads(note.read_text()), "url": url}))
    for words in (["ls"], ["verify"], ["ls", "\x1b[31m*"]):
        main(["cache", *words, "--cache-dir", folder])
    main(["cache", "ls", "--cache-dir", f"{folder}/\x1b[31m/\udcff"])
    assert main(["index", f"{folder}/\x1b[31m-*.tar"]) == 2
    printed = capsys.readouterr()
    assert "a\\x1b]0;owned\\x07\\n\\u202e\\udcff.tar" in printed.out
    for text in (printed.out, printed.err):
        assert (text.replace("\n", "")).isprintable()


@pytest.mark.parametrize(
    "text",
    [
        "[" * 60_000,
        '{"url": ' * 10_000,
        "null",
        "7",
        '{"url": 7}',
        '{"url": "a", "size_bytes": "300"}',
        '{"url": "a", "size_bytes": -1}',
        '{"url": "a", "reserved": [1]}',
        '{"url": "a", "version": {}}',
        '{"url": "a", "size_bytes": 300, "sha256": 5}',
        "\xff",
        " " * 10_000_000,
    ],
)
def test_a_note_that_cannot_be_used_costs_only_its_own_shard(cached, tmp_path, capsys, text):
    folder = str(settled(cached))
    first = ShardCache(folder).entries()[0]
    (cached / f"{first.name}.json").write_bytes(text.encode("latin-1"))
    assert main(["cache", "ls", "--cache-dir", folder]) == 0
    main(["cache", "verify", "--cache-dir", folder])
    cache = ShardCache(folder, 10**9)
    for name in ("one", "two"):
        with cache.open(f"pipe:cat '{tmp_path / name}'") as shard:
            assert shard.read() == name.encode() * 100
    settled(cached)
    assert {entry.note.size_bytes for entry in cache.entries()} == {300}
