"""The shard cache under several processes, some of which are killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from slow_store import fetched, install

from penstock.storage import gopen_schemes
from penstock.storage.cache.shard_cache import ShardCache
from waiting import wait_for_threads, wait_until

HERE = Path(__file__).parent


@pytest.fixture
def store(tmp_path):
    """A folder of six objects of different lengths; slow:// in this process leads there."""
    folder = tmp_path / "store"
    folder.mkdir()
    for number in range(6):
        data = random.Random(number).randbytes(400_000 + 150_000 * number)
        (folder / f"{number}.tar").write_bytes(data)
    install(folder)
    yield folder
    gopen_schemes.pop("slow", None)


def reader(store, cache, names, *, limit=-1, pause_s=0.0, times=1):
    words = [store, cache, limit, pause_s, times, *names]
    return subprocess.Popen(
        [sys.executable, str(HERE / "cache_reader.py"), *map(str, words)], stdout=subprocess.PIPE
    )


def taken(folder) -> int:
    total = 0
    for item in os.scandir(folder):
        try:
            total += item.stat().st_size
        except FileNotFoundError:
            continue  # renamed or deleted meanwhile
    return total


def test_several_processes_that_ask_for_one_shard_fetch_it_once(tmp_path, store):
    readers = [reader(store, tmp_path / "cache", ["5.tar"], pause_s=0.05) for _ in range(4)]
    assert [process.wait(60) for process in readers] == [0] * 4
    assert fetched(store, "5.tar") == (store / "5.tar").stat().st_size


def test_when_the_process_that_fetches_is_killed_another_goes_on(tmp_path, store):
    cache = ShardCache(tmp_path / "cache")
    first = reader(store, tmp_path / "cache", ["5.tar"], pause_s=0.1)
    wait_until(lambda: any(entry.stored_bytes for entry in cache.entries()), "bytes arrive")
    second = reader(store, tmp_path / "cache", ["5.tar"], pause_s=0.01)
    assert second.stdout.readline() == b"reading 5.tar\n"
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert second.wait(60) == 0
    size = (store / "5.tar").stat().st_size
    assert size <= fetched(store, "5.tar") <= size + (1 << 16)  # at most the piece in flight
    assert [problem for _, problem in cache.verify()] == [None]


def test_kills_at_any_moment_leave_a_consistent_cache(tmp_path, store):
    names = [f"{n}.tar" for n in range(6)]
    limit = 2_600_000  # two or three of the six fit
    folder = tmp_path / "cache"
    folder.mkdir()
    rng = random.Random(7)
    running = []
    for _ in range(25):
        running = [process for process in running if process.poll() is None]
        while len(running) < 3:
            running.append(reader(store, folder, names, limit=limit, pause_s=0.002, times=100))
        end = time.monotonic() + rng.uniform(0.05, 0.5)
        while time.monotonic() < end:
            assert taken(folder) <= limit
            time.sleep(0.005)
        victim = rng.choice(running)
        victim.send_signal(signal.SIGKILL)
        victim.wait()
        assert all(process.poll() in (None, -signal.SIGKILL) for process in running)
    for process in running:
        process.kill()
        process.wait()

    cache = ShardCache(folder, limit)
    assert all(problem is None for _, problem in cache.verify())
    done = reader(store, folder, names, limit=limit)
    assert done.wait(60) == 0
    assert taken(folder) <= limit
    assert all(entry.complete for entry in cache.entries())
    cache.clear()
    assert sorted(os.listdir(folder)) == [".lock"]


def test_a_child_that_outlives_a_killed_parent_does_not_keep_its_claim(tmp_path, store):
    install(store, pause_s=0.1)
    cache = ShardCache(tmp_path / "cache")
    told, tell = os.pipe()
    parent = os.fork()
    if parent == 0:
        shard = cache.open("slow://5.tar")
        shard.read(10)
        if os.fork() == 0:  # the child tells, when it is past what it does at a fork
            os.write(tell, f"{os.getpid()}\n".encode())
        signal.pause()
    child = int(os.read(told, 100))
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    try:
        (left,) = cache.entries()
        assert not left.complete
        claim = cache.folder.claim(left.name)
        assert claim is not None
        cache.folder.release(left.name, claim)
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(told)
        os.close(tell)


def test_hundreds_of_shards_leave_no_files_or_threads_behind(tmp_path, store):
    for number in range(200):
        (store / f"small-{number}.tar").write_bytes(b"%d" % number * 1000)
    cache = ShardCache(tmp_path / "cache", 200_000)

    def read_some(numbers):
        for number in numbers:
            with cache.open(f"slow://small-{number}.tar") as shard:
                assert shard.read() == b"%d" % number * 1000
        wait_for_threads("penstock-cache")
        return len(os.listdir("/proc/self/fd")), threading.active_count()

    before = read_some(range(5))
    after = read_some(range(200))  # fewer if threads of other tests have ended since
    assert all(now <= then for now, then in zip(after, before)), (before, after)
    assert taken(cache.folder.path) <= 200_000
