"""A remote object reads like a file, with few requests, in bounded memory, from anywhere."""

from __future__ import annotations

import gc
import io
import math
import os
import random
import threading
import time
from unittest import mock

import pytest
from faulty import FaultyServer, good, silence, status
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.errors import PipelineError, StorageError
from penstock.redact import redact
from penstock.storage import open_url
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.objects.http import HttpStore
from penstock.storage.readers import remote_file as ranges
from penstock.storage.readers import single_stream as straight
from penstock.storage.readers.remote_file import RemoteFile
from waiting import wait_for_threads, wait_until

DATA = random.Random(6).randbytes(3_000_000)
SMALL = DATA[:5000]


@pytest.fixture(scope="module")
def shared():
    with FaultyServer(a=DATA, small=SMALL, empty=b"") as server:
        yield server


@pytest.fixture
def server(shared):
    shared.asked.clear()
    shared.plan.clear()
    shared.always = None
    return shared


def remote(server, name="a", **options):
    options = {"part_bytes": 100_000, "ahead_bytes": 400_000, "connections": 3, **options}
    return RemoteFile(HttpStore(), server.url(name), **options)


def fetchers():
    return [t for t in threading.enumerate() if t.name == "penstock-fetch"]


moves = st.lists(
    st.tuples(
        st.sampled_from(["read", "readinto", "seek", "range", "ranges"]),
        st.integers(0, len(DATA) + 1000),
        st.integers(0, 300_000),
    ),
    max_size=12,
)


@given(moves=moves, ranged=st.booleans(), near=st.booleans())
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_order_of_reads_and_seeks_gives_what_a_file_gives(server, moves, ranged, near):
    server.always = good(ranges=ranged)
    with (
        mock.patch.object(ranges, "NEAR_S", math.inf),
        mock.patch.object(straight, "QUICK_RATE", 0),
        remote(server, **({"ahead_bytes": None} if near else {})) as file,
    ):
        place = 0
        for what, offset, length in moves:
            if what == "seek":
                place = file.seek(offset)
                assert place == offset
            elif what == "range":
                assert file.read_range(offset, length) == DATA[offset : offset + length]
            elif what == "ranges":
                asked = [(offset, length), (length, 10), (0, 5), (offset + 200_000, 7)]
                assert file.read_ranges(asked) == [DATA[o : o + n] for o, n in asked]
            else:
                buffer = bytearray(length)
                data = file.read(length) if what == "read" else buffer[: file.readinto(buffer)]
                assert data == DATA[place : place + len(data)]
                assert len(data) > 0 or length == 0 or place >= len(DATA)
                place += len(data)
            assert file.tell() == place


def test_a_small_object_costs_one_request_and_no_thread(server):
    for ask in (lambda f: f.read(), lambda f: (f.size_bytes, f.read()), lambda f: f.read(10_000)):
        server.asked.clear()
        with remote(server, "small") as file:
            ask(file)
            assert file.read() == b""
            assert not fetchers()
        # Others may still come in for what the test before this one left unread.
        assert len([asked for asked in server.asked if "small" in asked.path]) == 1


def near(monkeypatch, *, latency_s=math.inf, rate=0):
    """Servers within so many seconds are near, and so many bytes per second quick."""
    monkeypatch.setattr(ranges, "NEAR_S", latency_s)
    monkeypatch.setattr(ranges, "FIRST_BYTES", 300_000)
    monkeypatch.setattr(straight, "FIRST_BYTES", 300_000)
    monkeypatch.setattr(straight, "QUICK_RATE", rate)


def test_a_near_and_quick_server_is_read_over_one_connection_without_threads(server, monkeypatch):
    near(monkeypatch)
    before = server.connections
    with remote(server, ahead_bytes=None) as file:
        first = file.read(1000)
        assert not fetchers()
        assert first + file.read() == DATA
        assert not fetchers()
    assert server.connections - before <= 1
    assert len(server.asked) == 3  # ranges that grow


@pytest.mark.parametrize("limits", [{"latency_s": 0}, {"rate": math.inf}])
def test_a_server_that_is_far_or_slow_is_fetched_ahead(server, monkeypatch, limits):
    near(monkeypatch, **limits)
    with remote(server, ahead_bytes=None) as file:
        assert file.read() == DATA
    assert len(server.asked) > 10  # parts of 100 000 bytes


def test_ranges_without_a_server_for_them_are_read_in_one_pass(server):
    server.always = good(ranges=False)
    with remote(server) as file:
        asked = [(100_000 * k, 50) for k in (7, 3, 11, 1)]
        assert file.read_ranges(asked) == [DATA[o : o + n] for o, n in asked]
    assert len(server.asked) == 2  # for the size, and for all of the ranges


def test_an_empty_object_is_empty(server):
    with remote(server, "empty") as file:
        assert (file.read(10), file.size_bytes, file.read_range(0, 5)) == (b"", 0, b"")


def test_opening_asks_nothing_and_the_size_little(server):
    with remote(server) as file:
        assert not server.asked
        assert file.size_bytes == len(DATA)
        assert file.version
        wait_for_threads("penstock-fetch")
        assert len(server.asked) == 1


def test_what_is_fetched_ahead_is_bounded(server):
    with remote(server) as file:
        file.read(1)
        wait_for_threads("penstock-fetch")
        fetched = max(asked.span(len(DATA))[1] for asked in server.asked)
        assert 300_000 <= fetched <= 500_000


def test_several_parts_are_under_way_at_a_time(server):
    def slow(body):
        yield body[:10], 0.2
        yield body[10:], 0.0

    server.plan.append(None)
    server.always = good(pace=slow)
    begin = time.monotonic()
    with remote(server, ahead_bytes=4_000_000, connections=32) as file:
        assert file.read() == DATA
    assert time.monotonic() - begin < 3  # one after the other would take 6


def test_neighbouring_ranges_are_read_in_one_request(server):
    with remote(server) as file:
        file.size_bytes
        server.asked.clear()
        ranges = [(1_000_000 + 1000 * k, 1000) for k in range(50)]
        assert file.read_ranges(ranges) == [DATA[o : o + n] for o, n in ranges]
        assert len(server.asked) == 1


def test_ranges_may_be_read_from_many_threads(server):
    wrong = []
    with remote(server) as file:

        def work(seed):
            draw = random.Random(seed)
            for _ in range(20):
                offset = draw.randrange(len(DATA))
                if file.read_range(offset, 500) != DATA[offset : offset + 500]:
                    wrong.append(offset)

        threads = [threading.Thread(target=work, args=(k,)) for k in range(6)]
        [t.start() for t in threads]
        [t.join() for t in threads]
    assert not wrong


def test_connections_are_kept_across_objects(server):
    before = server.connections
    for _ in range(20):
        with remote(server, "small") as file:
            file.read()
    assert server.connections - before <= 1


def test_a_file_closed_or_dropped_in_the_middle_leaves_nothing(server):
    def descriptors():
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    with remote(server) as file:
        file.read()
    before = descriptors()
    for number in range(20):
        file = remote(server)
        file.read(10)
        if number % 2:
            file.close()
        del file
    wait_for_threads("penstock-fetch")
    wait_until(lambda: descriptors() <= before + 3, "connections are closed")


def test_a_closed_file_says_so(server):
    file = remote(server)
    file.close()
    for act in (lambda: file.read(1), lambda: file.read_range(0, 1), lambda: file.seek(0)):
        with pytest.raises(ValueError, match="closed"):
            act()


def test_a_started_file_has_its_bytes_under_way(server):
    with remote(server) as file:
        file.start()
        wait_until(lambda: len(server.asked) >= 4, "4 requests or more arrive")
        assert file.read() == DATA


def test_a_buffered_file_and_a_text_reader_work(server):
    with open_url(server.url("small"), buffer_bytes=-1) as stream:
        assert stream.read(100) == SMALL[:100]
        assert stream.size_bytes == len(SMALL)
        assert stream.read_range(7, 9) == SMALL[7:16]
    assert io.BufferedReader(remote(server)).read() == DATA


def test_a_password_in_the_url_is_sent_and_shown_nowhere(server):
    url = server.url("small").replace("://", "://me:geheim@") + "?X-Signature=geheim"
    server.always = status(403)
    with pytest.raises(StorageError) as caught:
        open_url(url).read(1)
    assert server.asked[0].headers["authorization"].startswith("Basic ")
    file = open_url(url)
    assert "geheim" not in f"{caught.value!r} {file!r} {file._source.store!r} {vars(caught.value)}"
    assert "geheim" not in redact(url)


def test_what_is_put_reads_back(server):
    url = server.url("new")
    with open_url(url, "wb") as stream:
        stream.write(SMALL)
        assert "/new.tar" not in server.objects
    assert open_url(url).read() == SMALL


def test_a_put_is_tried_again_and_its_failure_told(server):
    server.plan.append(status(503))
    with open_url(server.url("other"), "wb", patience=RetryPolicy(backoff_s=0.01)) as stream:
        stream.write(SMALL)
    assert server.objects["/other.tar"] == SMALL
    server.always = status(403)
    stream = open_url(server.url("third"), "wb")
    stream.write(SMALL)
    with pytest.raises(StorageError, match="does not allow"):
        stream.close()


@pytest.mark.parametrize("name", ["ahead_bytes", "part_bytes", "connections"])
def test_limits_must_be_positive(name):
    with pytest.raises(PipelineError):
        RemoteFile(HttpStore(), "http://x/a", **{name: 0})


def test_who_waits_for_bytes_is_told_when_another_thread_closes_the_file(server):
    server.always = good(cut=1000, end="stall")
    file = remote(server, patience=RetryPolicy(read_timeout_s=5))
    told = []

    def read():
        try:
            while file.read(50_000):
                pass
        except ValueError as exn:
            told.append(str(exn))

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    wait_until(lambda: len(server.asked) > 1, "a second request arrives")
    file.close()
    reader.join(3)
    assert told == ["the file was closed while it was read"]


@pytest.mark.parametrize("near", [True, False])
def test_what_came_along_with_the_head_is_given_at_once(server, monkeypatch, near):
    def together(server, connection, asked):
        begin, end = asked.span(len(DATA))
        head = (
            f"Content-Range: bytes {begin}-{end - 1}/{len(DATA)}\r\nContent-Length: {end - begin}"
        )
        connection.sendall(f"HTTP/1.1 206 Fine\r\n{head}\r\n\r\n".encode() + DATA[begin:][:1000])
        silence(server, connection, asked)

    monkeypatch.setattr(ranges, "NEAR_S", math.inf)
    server.always = together
    patience = RetryPolicy(retries=0, read_timeout_s=2)
    with remote(server, patience=patience, ahead_bytes=None if near else 400_000) as file:
        buffer = bytearray(50_000)
        assert file.readinto(buffer) == 1000
        assert buffer[:1000] == DATA[:1000]


def test_a_file_that_is_closed_while_it_begins_to_read_fetches_nothing(server):
    file = remote(server)
    assert file.size_bytes == len(DATA)
    begun = file._make_reader

    def closed_meanwhile(*arguments):
        threading.Thread(target=file.close).run()
        return begun(*arguments)

    file._make_reader = closed_meanwhile
    file.seek(2_000_000)
    server.asked.clear()
    with pytest.raises(ValueError, match="closed"):
        file.read(10)
    assert not server.asked
    wait_for_threads("penstock-fetch")  # those of files before it may just be ending


@pytest.mark.parametrize("fault", [good(cut=1000, end="stall"), silence])
def test_closing_a_file_ends_its_threads_although_the_server_stalls(server, fault):
    server.plan.append(None)
    server.always = fault
    file = remote(server, patience=RetryPolicy(read_timeout_s=600))
    file.read(50_000)
    file.start()
    wait_until(lambda: len(server.asked) > 3, "more than 3 requests arrive")
    file.close()
    wait_for_threads("penstock-fetch")


def test_a_file_closed_at_its_first_answer_ends_its_thread_as_well(server):
    server.always = good(cut=1000, end="stall")
    file = remote(server, patience=RetryPolicy(read_timeout_s=600))
    file.start()
    wait_until(lambda: len(server.asked) > 2, "more than 2 requests arrive")
    file.close()
    wait_for_threads("penstock-fetch")


def test_other_threads_see_the_size_only_when_all_else_is_known(server):
    seen = []

    class Watching(HttpStore):
        def checksum(self, headers):
            seen.append((file._source.size, file._source.ranged))

    with RemoteFile(Watching(), server.url()) as file:
        assert file.read_range(5, 7) == DATA[5:12]
    assert seen == [(None, True)]


def test_an_object_that_became_shorter_was_replaced(server):
    server.plan.extend([None, status(416)])
    with remote(server) as file, pytest.raises(StorageError, match="it is shorter now"):
        file.read()
