"""The shard cache: fetched once, bounded, never wrong."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import subprocess
import threading
import warnings

import pytest
from slow_store import fetched, install

from penstock.errors import ShardWarning, StorageError
from penstock.storage import gopen_schemes
from penstock.storage.cache import download as filling
from penstock.storage.cache import following_reader as arriving
from penstock.storage.cache.cache_dir import NOTE_BYTES
from penstock.storage.cache.shard_cache import CachedShard, ShardCache
from waiting import wait_for_threads


@pytest.fixture
def objects(tmp_path, monkeypatch):
    """Makes objects: objects("a.tar", 1000) gives their bytes; they are at slow://NAME."""
    folder = tmp_path / "store"
    folder.mkdir()
    monkeypatch.setattr(arriving, "_WARNED", set())

    def make(name, size, seed=0):
        path = folder / name
        path.parent.mkdir(exist_ok=True, parents=True)
        data = random.Random(f"{name}{seed}").randbytes(size)
        path.write_bytes(data)
        return data

    make.folder = folder
    install(folder)
    yield make
    gopen_schemes.pop("slow", None)


def read(cache, url):
    with cache.open(url) as shard:
        pieces = []
        while piece := shard.read(50_000):
            pieces.append(piece)
    wait_for_threads("penstock-cache")
    return b"".join(pieces)


def stored(cache):
    return sum(item.stat().st_size for item in os.scandir(cache.folder.path))


def test_a_shard_is_fetched_once_and_then_read_from_the_folder(tmp_path, objects):
    data = objects("a.tar", 300_000)
    cache = ShardCache(tmp_path / "cache")
    assert read(cache, "slow://a.tar") == data
    before = fetched(objects.folder, "a.tar")
    with cache.open("slow://a.tar") as shard:
        assert isinstance(shard, CachedShard)
        assert shard.read() == data
        assert (shard.name, shard.size_bytes) == ("slow://a.tar", len(data))
    assert fetched(objects.folder, "a.tar") == before == len(data)
    (entry,) = cache.entries()
    assert entry.complete
    assert entry.note.sha256


def test_two_objects_of_one_name_do_not_collide(tmp_path, objects):
    first, second = objects("x/a.tar", 1000), objects("y/a.tar", 1000)
    cache = ShardCache(tmp_path / "cache", url_to_name=lambda url: "same.tar")
    for _ in range(2):
        assert read(cache, "slow://x/a.tar") == first
        assert read(cache, "slow://y/a.tar") == second


def test_a_replaced_object_is_fetched_anew(tmp_path, objects):
    objects("a.tar", 1000)
    cache = ShardCache(tmp_path / "cache")
    read(cache, "slow://a.tar")
    data = objects("a.tar", 1000, seed=1)
    os.utime(objects.folder / "a.tar", ns=(1, 1))
    assert read(cache, "slow://a.tar") == data
    assert read(ShardCache(tmp_path / "cache", check=False), "slow://a.tar") == data


def test_without_a_check_the_source_is_not_asked(tmp_path, objects):
    data = objects("a.tar", 1000)
    read(ShardCache(tmp_path / "cache"), "slow://a.tar")
    (objects.folder / "a.tar").unlink()
    assert read(ShardCache(tmp_path / "cache", check=False), "slow://a.tar") == data
    with pytest.raises(StorageError, match="no such object"):
        read(ShardCache(tmp_path / "cache"), "slow://a.tar")


def test_the_first_reader_reads_while_the_shard_arrives(tmp_path, objects):
    data = objects("a.tar", 4 << 20)
    gate = threading.Event()

    class Gated:
        size_bytes, version, place = len(data), '"v"', 0

        def readinto(self, buffer):
            if self.place >= 1 << 20:
                gate.wait(20)
            piece = data[self.place : self.place + (1 << 18)]
            buffer[: len(piece)] = piece
            self.place += len(piece)
            return len(piece)

        def close(self):
            pass

    gopen_schemes["slow"] = lambda url, mode, size, **options: Gated()
    with ShardCache(tmp_path / "cache").open("slow://a.tar") as shard:
        start = b""
        while len(start) < 1 << 20:
            start += shard.read(1 << 16)
        gate.set()
        assert start + shard.read() == data
    wait_for_threads("penstock-cache")


def test_the_limit_holds_and_the_shard_used_longest_ago_goes(tmp_path, objects):
    names = [f"{n}.tar" for n in range(6)]
    data = {name: objects(name, 100_000) for name in names}
    limit = 3 * (100_000 + NOTE_BYTES)
    cache = ShardCache(tmp_path / "cache", limit)
    for number, name in enumerate(names):
        assert read(cache, f"slow://{name}") == data[name]
        assert stored(cache) <= limit
        read(cache, "slow://0.tar")
        for place, entry in enumerate(cache.entries()):  # times differ, however coarse they are
            os.utime(cache.folder.file(entry.name, ".json"), ns=(0, number * 10**12 + place))
    kept = {entry.note.url for entry in cache.entries()}
    assert kept == {"slow://0.tar", "slow://4.tar", "slow://5.tar"}


def test_a_shard_in_use_is_never_evicted(tmp_path, objects):
    first, second = objects("a.tar", 100_000), objects("b.tar", 100_000)
    cache = ShardCache(tmp_path / "cache", 150_000)
    read(cache, "slow://a.tar")
    with cache.open("slow://a.tar") as shard:
        with pytest.warns(ShardWarning, match="in use"):
            assert read(cache, "slow://b.tar") == second
        assert cache.clear() == (0, 1)
        assert shard.read() == first
    assert [entry.note.url for entry in cache.entries()] == ["slow://a.tar"]
    assert read(cache, "slow://b.tar") == second
    assert [entry.note.url for entry in cache.entries()] == ["slow://b.tar"]


def test_a_full_disk_means_one_warning_and_the_right_bytes(tmp_path, objects, monkeypatch):
    data = [objects(f"{n}.tar", 3 << 20) for n in range(3)]

    def full(descriptor, piece):
        if os.fstat(descriptor).st_size > 1 << 20:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(descriptor, piece)

    write = filling._write_all
    monkeypatch.setattr(filling, "_write_all", full)
    cache = ShardCache(tmp_path / "cache")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number, expected in enumerate(data):
            assert read(cache, f"slow://{number}.tar") == expected
    assert len([one for one in told if one.category is ShardWarning]) == 1
    assert cache.entries() == []


def test_a_disk_without_room_is_seen_before_anything_is_fetched(tmp_path, objects, monkeypatch):
    data = objects("a.tar", 100_000)
    real = os.fstatvfs

    def small(descriptor):
        return os.statvfs_result((*real(descriptor)[:3], 0, 0, *real(descriptor)[5:]))

    monkeypatch.setattr(os, "fstatvfs", small)
    cache = ShardCache(tmp_path / "cache")
    with pytest.warns(ShardWarning, match="disk is full"):
        assert read(cache, "slow://a.tar") == data
    assert cache.entries() == []


def test_a_source_that_fails_gives_its_error_and_the_next_reader_goes_on(tmp_path, objects):
    data = objects("a.tar", 1 << 20)
    opened = gopen_schemes["slow"]

    def failing(url, mode, size, **options):
        source = opened(url)
        source.readinto = lambda buffer: (
            type(source).readinto(source, buffer) if source._file.tell() < 1 << 19 else _fail(url)
        )
        return source

    def _fail(url):
        raise StorageError("the connection broke")

    gopen_schemes["slow"] = failing
    cache = ShardCache(tmp_path / "cache")
    with pytest.raises(StorageError, match="broke"):
        read(cache, "slow://a.tar")
    wait_for_threads("penstock-cache")
    gopen_schemes["slow"] = opened
    assert read(cache, "slow://a.tar") == data
    assert fetched(objects.folder, "a.tar") == len(data)


def test_a_reader_that_leaves_early_stops_the_fetch_and_it_goes_on_later(tmp_path, objects):
    data = objects("a.tar", 8 << 20)
    install(objects.folder, pause_s=0.005)
    cache = ShardCache(tmp_path / "cache")
    with cache.open("slow://a.tar") as shard:
        shard.read(10)
    wait_for_threads("penstock-cache")
    (entry,) = cache.entries()
    assert not entry.complete
    assert entry.stored_bytes < len(data)
    assert read(cache, "slow://a.tar") == data
    assert fetched(objects.folder, "a.tar") == len(data)


def test_ranges_ahead_of_what_has_arrived_come_from_the_source(tmp_path, objects):
    data = objects("a.tar", 8 << 20)
    install(objects.folder, pause_s=0.005)
    with ShardCache(tmp_path / "cache").open("slow://a.tar") as shard:
        assert shard.read_range(7 << 20, 100) == data[7 << 20 :][:100]
        assert shard.read_range(0, 10) == data[:10]
        assert shard.seek(5) == 5
        assert shard.read(3) == data[5:8]
    wait_for_threads("penstock-cache")


def test_a_source_without_a_size_is_cached_too(tmp_path, objects):
    data = objects("a.tar", 300_000)
    cache = ShardCache(tmp_path / "cache")
    url = f"pipe:cat {objects.folder}/a.tar"
    assert read(cache, url) == data
    (objects.folder / "a.tar").unlink()
    assert read(cache, url) == data
    (entry,) = cache.entries()
    assert entry.note.size_bytes == 300_000
    assert entry.note.url == "pipe:cat ..."


def test_a_failing_command_is_never_a_cached_shard(tmp_path):
    cache = ShardCache(tmp_path / "cache")
    with pytest.raises(StorageError):
        read(cache, "pipe:echo hello; exit 3")
    assert not any(entry.complete for entry in cache.entries())


def test_verify_finds_changed_bytes_and_changed_sources(tmp_path, objects):
    for name in "abc":
        objects(f"{name}.tar", 1000)
        read(ShardCache(tmp_path / "cache"), f"slow://{name}.tar")
    cache = ShardCache(tmp_path / "cache")
    by_url = {entry.note.url: entry for entry in cache.entries()}
    with open(cache.folder.file(by_url["slow://a.tar"].name), "r+b") as file:
        file.write(b"X")
    os.utime(objects.folder / "b.tar", ns=(1, 1))
    told = {entry.note.url: problem for entry, problem in cache.verify()}
    assert "bytes" in told["slow://a.tar"]
    assert "another version" in told["slow://b.tar"]
    assert told["slow://c.tar"] is None


def test_a_cached_file_that_was_cut_is_fetched_again(tmp_path, objects):
    data = objects("a.tar", 1000)
    cache = ShardCache(tmp_path / "cache")
    read(cache, "slow://a.tar")
    os.truncate(cache.folder.file(cache.entries()[0].name), 500)
    assert read(cache, "slow://a.tar") == data


def test_files_of_others_in_the_folder_are_left_alone(tmp_path, objects):
    objects("a.tar", 1000)
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "mine.txt").write_text("x" * 10_000)
    cache = ShardCache(folder, 6_000)
    read(cache, "slow://a.tar")
    assert cache.clear() == (1, 0)
    assert (folder / "mine.txt").exists()


def test_local_shards_are_not_copied(tmp_path, objects):
    data = objects("a.tar", 1000)
    cache = ShardCache(tmp_path / "cache")
    assert read(cache, str(objects.folder / "a.tar")) == data
    assert not (tmp_path / "cache").exists()


def test_a_forked_child_holds_no_claim_of_its_parent(tmp_path, objects):
    data = objects("a.tar", 4 << 20)
    install(objects.folder, pause_s=0.01)
    cache = ShardCache(tmp_path / "cache")
    shard = cache.open("slow://a.tar")
    child = os.fork()
    if child == 0:
        ok = False
        try:
            ok = shard.read_range(0, 10) == data[:10] and shard.read() == data
        finally:
            os._exit(0 if ok else 1)
    assert shard.read() == data
    shard.close()
    assert os.waitpid(child, 0)[1] == 0
    wait_for_threads("penstock-cache")
    assert fetched(objects.folder, "a.tar") <= len(data) + 10


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2 MB of its own."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    if not hasattr(os, "geteuid") or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("a disk that is really full needs root and mount")
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_disk_that_is_really_full_means_one_warning_and_the_right_bytes(
    small_disk, objects, monkeypatch
):
    data = [objects(f"{n}.tar", 1_500_000) for n in range(3)]
    write = filling._write_all

    def while_others_write(descriptor, piece):
        if os.fstat(descriptor).st_size > 500_000:  # found room, and now there is none
            with contextlib.suppress(OSError), open(small_disk / "other", "ab") as other:
                other.write(bytes(2 << 20))
        write(descriptor, piece)

    monkeypatch.setattr(filling, "_write_all", while_others_write)
    cache = ShardCache(small_disk / "cache")
    with pytest.warns(ShardWarning, match="No space left|disk is full") as told:
        for number, expected in enumerate(data):
            assert read(cache, f"slow://{number}.tar") == expected
    assert len([one for one in told if one.category is ShardWarning]) == 1
    assert cache.entries() == []
    (small_disk / "other").unlink()
    monkeypatch.setattr(filling, "_write_all", write)
    assert read(cache, "slow://0.tar") == data[0]
    assert [entry.complete for entry in cache.entries()] == [True]
