"""The shard cache: one owner of an arriving shard, and sources that tell no version."""

from __future__ import annotations

import io
import os
import signal
import threading
import time

import pytest

from penstock.errors import StorageError
from penstock.storage import gopen_schemes
from penstock.storage.cache import download as filling
from penstock.storage.cache import following_reader as arriving
from penstock.storage.cache.cache_dir import CacheFolder, EntryMeta, make_name
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.local.file_locks import flock


class Source(io.BytesIO):
    """An object of a store: it may tell its size and version, and break off at a byte."""

    def __init__(self, data, size=None, version=None, ends=None):
        super().__init__(data)
        self.size_bytes, self.version, self.ends = size, version, ends

    def readinto(self, buffer):
        if self.ends is not None and self.tell() >= self.ends:
            raise StorageError("the connection broke")
        return super().readinto(memoryview(buffer)[: 1 << 18])


@pytest.fixture
def serve(monkeypatch):
    """serve(data, size=..., version=..., ends=...) is what there is at odd:// from then on."""
    monkeypatch.setattr(arriving, "_WARNED", set())
    opened = []

    def put(data, **told):
        def source(url, mode="rb", bufsize=8192, **options):
            opened.append(url)
            return Source(data, **told)

        gopen_schemes["odd"] = source

    put.opened = opened
    yield put
    gopen_schemes.pop("odd", None)


def read(cache, url="odd://a.tar"):
    try:
        with cache.open(url) as shard:
            return shard.readall() if hasattr(shard, "readall") else shard.read()
    finally:
        while busy := [one for one in threading.enumerate() if one.name == "penstock-cache"]:
            busy[0].join(20)


def kept_shard(tmp_path):
    folder = CacheFolder(str(tmp_path), 10**6)
    name = make_name("s3://b/x.tar", 3, "v", "x.tar")
    (tmp_path / name).write_bytes(b"abc")
    folder.write_note(name, EntryMeta("s3://b/x.tar", 3, "v"))
    return folder, name


def test_deleting_a_shard_never_takes_the_lock_of_the_next_owner(tmp_path, monkeypatch):
    folder, name = kept_shard(tmp_path)
    unlink, claims = os.unlink, []

    def observed(path, *rest):
        unlink(path, *rest)
        if str(path).endswith(".lock") and not claims:
            claims.append(folder.claim(name))  # another process, in just this moment

    monkeypatch.setattr(os, "unlink", observed)
    assert folder.remove(folder.entries()[0])
    assert claims[0] is not None
    assert folder.claim(name) is None
    folder.release(name, claims[0])


def test_a_part_that_somebody_else_wrote_to_is_given_up(tmp_path, serve, monkeypatch):
    data = os.urandom(3 << 20)
    serve(data, size=len(data), version="v")
    cache, write, other = ShardCache(tmp_path / "cache"), filling._write_all, []

    def disturbed(part, piece):
        write(part, piece)
        if not other:
            other.append(os.write(part, b"of another owner"))

    monkeypatch.setattr(filling, "_write_all", disturbed)
    with pytest.warns(UserWarning, match="another process"):
        shard = cache.open("odd://a.tar")
        shard._fetch.wait(len(data))
        shard.seek(1 << 20)
        shard.read(1 << 21)
        shard.close()
    assert cache.entries() == []
    assert read(cache) == data
    assert [problem for _, problem in cache.verify()] == [None]


@pytest.mark.parametrize("version", [None, "v"])
def test_a_part_is_continued_only_where_the_source_tells_a_version(tmp_path, serve, version):
    size, cache = 3 << 20, ShardCache(tmp_path / "cache")
    serve(b"A" * size, size=size, version=version, ends=1 << 20)
    with pytest.raises(StorageError, match="broke"):
        read(cache)
    assert [entry.stored_bytes for entry in cache.entries()] == [1 << 20]
    serve(b"B" * size, size=size, version=version)
    assert read(cache).count(b"A") == (0 if version is None else 1 << 20)


@pytest.mark.parametrize("rest", [b"A", b"B"])
def test_a_follower_goes_on_only_with_the_bytes_of_before(tmp_path, serve, rest):
    size, cache = 3 << 20, ShardCache(tmp_path / "cache")
    serve(b"A" * size, size=size, ends=1 << 20)
    arrival = cache._make_download("odd://a.tar", Source(b"", size=size), None, None)
    cache.folder.make()
    fetch = arrival.fetch().start()
    part = cache.folder.hold(arrival.name, ".part")
    fetch.thread.join(10)
    serve(rest * size, size=size)
    with arriving.FollowingReader(arrival, part, None) as shard:
        assert shard.read(1 << 20) == b"A" * (1 << 20)
        if rest == b"A":
            assert shard.readall() == b"A" * (2 << 20)
        else:
            with pytest.raises(StorageError, match="other bytes"):
                shard.readall()


def test_a_kept_shard_without_a_version_must_have_the_size_of_the_source(tmp_path, serve):
    cache = ShardCache(tmp_path / "cache")
    serve(b"old", size=3)
    assert read(cache) == b"old"
    serve(b"newer", size=5)
    assert read(cache) == b"newer"


def test_a_source_that_tells_neither_size_nor_version_is_fetched_anew(tmp_path, serve):
    cache = ShardCache(tmp_path / "cache")
    for data in (b"old", b"new"):
        serve(data)
        assert read(cache) == data
    assert read(ShardCache(tmp_path / "cache", check=False)) == b"new"


def test_closing_does_not_wait_for_a_server_that_fails(tmp_path, serve, monkeypatch):
    gate = threading.Event()

    class Stuck(Source):
        def readinto(self, buffer):
            if self.tell() > 0:
                gate.wait(20)
            return super().readinto(buffer)

    monkeypatch.setattr(filling, "FINISH_S", 0.1)
    data = os.urandom(1 << 19)
    gopen_schemes["odd"] = lambda *a, **o: Stuck(data, len(data), "v")
    shard = ShardCache(tmp_path / "cache").open("odd://a.tar")
    shard.read(10)
    began = time.monotonic()
    shard.close()
    assert time.monotonic() - began < 10
    gate.set()
    shard._fetch.thread.join(10)


def test_drafts_of_others_are_left_alone(tmp_path):
    folder, name = kept_shard(tmp_path)
    (tmp_path / ".thesis.draft").write_text("mine")
    (tmp_path / f".{name}.draft").write_text("left by a killed process")
    with folder.lock_folder():
        folder.make_room("other", 10)
    assert (tmp_path / ".thesis.draft").exists()
    assert not (tmp_path / f".{name}.draft").exists()


def test_a_process_forked_while_the_folder_is_guarded_does_not_keep_it_locked(tmp_path):
    folder = CacheFolder(str(tmp_path))
    with folder.lock_folder():
        child = os.fork()
        if child == 0:
            signal.pause()
    try:
        descriptor = os.open(folder.file(".lock"), os.O_RDWR)
        assert flock(descriptor, shared=False, wait=False)
        os.close(descriptor)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
