"""Reads work in every process model, also after the parent has read; and nothing leaks."""

from __future__ import annotations

import hashlib
import math
import multiprocessing
import os
import random
import threading
import time

import pytest
from faulty import FaultyServer
from servers_nginx import nginx  # noqa: F401

from penstock import WebDataset
from penstock.errors import StorageError
from penstock.storage import open_url
from penstock.storage.client import transport
from penstock.storage.client.retrying import Refused
from penstock.storage.objects.http import HttpStore
from penstock.storage.readers import remote_file as ranges
from penstock.storage.readers.remote_file import RemoteFile
from tar_files import tar_bytes
from waiting import wait_for_threads, wait_until

DATA = random.Random(8).randbytes(2_000_000)
RIGHT = hashlib.sha256(DATA).hexdigest()
OPTIONS = {"part_bytes": 200_000, "ahead_bytes": 800_000, "connections": 4}


def digest(url):
    with open_url(url, **OPTIONS) as stream:
        return hashlib.sha256(stream.read()).hexdigest()


def report(url, trusted, queue):
    if trusted:
        os.environ["SSL_CERT_FILE"] = trusted  # a forkserver has its environment from earlier
    queue.put(digest(url))


def in_processes(method, url, count=2):
    """What that many worker processes read."""
    context = multiprocessing.get_context(method)
    queue, trusted = context.Queue(), os.environ.get("SSL_CERT_FILE")
    workers = [context.Process(target=report, args=(url, trusted, queue)) for _ in range(count)]
    for worker in workers:
        worker.start()
    try:
        return [queue.get(timeout=60) for _ in workers]
    finally:
        for worker in workers:
            worker.join(10)
            worker.kill()


@pytest.fixture(params=["http", "https"])
def url(request, monkeypatch):
    if request.param == "http":
        with FaultyServer(a=DATA) as server:
            yield server.url()
        return
    web = request.getfixturevalue("nginx")
    (web.folder / "a.tar").write_bytes(DATA)
    monkeypatch.setenv("SSL_CERT_FILE", str(web.authority))
    yield f"{web.secure}/a.tar"


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_read_also_after_the_parent_has_read(url, method):
    assert digest(url) == RIGHT
    assert in_processes(method, url) == [RIGHT, RIGHT]
    assert digest(url) == RIGHT


@pytest.mark.parametrize("options", [OPTIONS, {}], ids=["fetched ahead", "straight"])
def test_a_fork_in_mid_read_lets_both_processes_go_on(url, options, monkeypatch):
    monkeypatch.setattr(ranges, "NEAR_S", math.inf)
    for _ in range(10):
        with open_url(url, **options) as stream:
            first = stream.read(300_000)  # threads hold locks and connections now
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                try:
                    found = hashlib.sha256(first + stream.read()).hexdigest()
                    os.write(writing, found.encode())
                finally:
                    os._exit(0)
            os.close(writing)
            assert hashlib.sha256(first + stream.read()).hexdigest() == RIGHT
            alarm = threading.Timer(20, os.kill, (child, 9))
            alarm.start()
            with os.fdopen(reading) as answer:
                found = answer.read()
            os.waitpid(child, 0)
            alarm.cancel()
            assert found == RIGHT


def test_threads_read_side_by_side(url):
    found = []
    threads = [threading.Thread(target=lambda: found.append(digest(url))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [RIGHT] * 8


def test_an_unknown_authority_is_an_error_at_once(nginx, monkeypatch):  # noqa: F811
    monkeypatch.setattr(transport, "_pools", transport._Pools())  # whose trust is not yet settled
    (nginx.folder / "x.tar").write_bytes(b"x")
    begin = time.monotonic()
    with pytest.raises(StorageError, match="certificate is not trusted"):
        open_url(f"{nginx.secure}/x.tar").read()
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("name", transport.CA_VARIABLES)
def test_the_usual_variables_name_authorities(nginx, monkeypatch, name):  # noqa: F811
    (nginx.folder / "x.tar").write_bytes(b"x")
    monkeypatch.setattr(transport, "_pools", transport._Pools())
    monkeypatch.setenv(name, str(nginx.authority))
    assert open_url(f"{nginx.secure}/x.tar").read() == b"x"


@pytest.mark.parametrize("name", transport.CA_VARIABLES)
def test_a_variable_that_names_no_authorities_is_an_error_without_retries(monkeypatch, name):
    pools = transport._Pools()
    monkeypatch.setattr(transport, "_pools", pools)
    monkeypatch.setenv(name, "/nowhere.pem")
    with pytest.raises(StorageError, match=f"{name} names no readable file"):
        open_url("https://127.0.0.1:9/x.tar").read()
    assert pools.sent == 1


def test_nginx_asks_for_a_password_and_takes_it(nginx):  # noqa: F811
    (nginx.folder / "locked" / "a.tar").write_bytes(DATA)
    with pytest.raises(Refused, match="wants a user and password"):
        open_url(f"{nginx.plain}/locked/a.tar").read()
    url = f"{nginx.plain}/locked/a.tar".replace("://", "://me:secret@")
    assert open_url(url, **OPTIONS).read() == DATA


def test_a_slow_but_healthy_line_is_no_fault(nginx):  # noqa: F811
    (nginx.folder / "slow" / "a.tar").write_bytes(DATA[:700_000])
    assert open_url(f"{nginx.plain}/slow/a.tar", **OPTIONS).read() == DATA[:700_000]


def test_nginx_serves_odd_names_and_empty_files(nginx):  # noqa: F811
    (nginx.folder / "a b+ü%.tar").write_bytes(b"odd")
    (nginx.folder / "empty.tar").write_bytes(b"")
    assert open_url(f"{nginx.plain}/a%20b+%C3%BC%25.tar").read() == b"odd"
    assert open_url(f"{nginx.plain}/empty.tar").read() == b""


def shard(count):
    return tar_bytes((f"{number:06}.bin", DATA[:30_000]) for number in range(count))


def read_objects(server, numbers):
    for number in numbers:
        options = {"part_bytes": 50_000, "ahead_bytes": 200_000, "connections": 3}
        name = "a" if number % 5 == 0 else "b"
        with RemoteFile(HttpStore(), server.url(name), **options) as file:
            file.read()


def read_shards(server, numbers):
    urls = [server.url("a" if number % 5 == 0 else "b") for number in numbers]
    count = sum(1 for _ in WebDataset(urls, shardshuffle=False))
    assert count == sum(40 if number % 5 == 0 else 1 for number in numbers)


def held():
    """Return the numbers of open files, threads and child processes, and the resident bytes."""
    threads = threading.active_count()
    with open("/proc/self/statm") as sizes:
        resident = int(sizes.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    children = len(multiprocessing.active_children())
    return (len(os.listdir("/proc/self/fd")), threads, children), resident


@pytest.mark.parametrize("read", [read_objects, read_shards])
def test_five_hundred_shards_leave_nothing_behind(read):
    with FaultyServer(a=shard(40), b=shard(1)) as server:
        read(server, range(20))
        wait_for_threads("penstock-fetch")
        before, memory = held()
        read(server, range(500))

        def as_before():  # the server's ends of connections are in this process too
            return all(one <= other + 2 for one, other in zip(held()[0], before))

        wait_until(as_before, lambda: f"at most {before} and 2 each, not {held()[0]}")
        _, now = held()
    assert now - memory < 20_000_000
