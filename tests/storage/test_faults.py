"""Whatever a server or the way to it does: the right bytes, or an error; never a hang."""

from __future__ import annotations

import hashlib
import math
import random
import re
import threading
import time

import pytest
from faulty import FaultyServer, chunked, drip, etag, good, moved, page, silence, slow_head, status

from penstock import WebDataset
from penstock.errors import ShardError, StorageError
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.objects.http import HttpStore
from penstock.storage.readers import remote_file as ranges
from penstock.storage.readers import single_stream as straight
from penstock.storage.readers.remote_file import (
    Changed,
    MissingObject,
    Refused,
    RemoteFile,
    exchange,
)

DATA = random.Random(4).randbytes(1_500_000)
OTHER = random.Random(5).randbytes(1_500_000)
PATIENCE = RetryPolicy(
    retries=4,
    budget_s=5,
    backoff_s=0.01,
    longest_backoff_s=0.05,
    connect_timeout_s=1,
    read_timeout_s=0.3,
    lowest_rate=2000,
    rate_window_s=0.3,
)
LONGEST_S = 12
OPTIONS = {"part_bytes": 200_000, "ahead_bytes": 800_000, "connections": 3}


@pytest.fixture
def server():
    with FaultyServer(a=DATA) as server:
        yield server


@pytest.fixture(autouse=True, params=["fetched ahead", "straight"])
def manner(request, monkeypatch):
    """The two ways of reading: what is promised holds for both."""
    if request.param == "straight":
        for module, name, value in (
            (ranges, "NEAR_S", math.inf),
            (ranges, "FIRST_BYTES", 200_000),
            (straight, "FIRST_BYTES", 200_000),
            (straight, "MOST_BYTES", 300_000),
            (straight, "QUICK_RATE", 0),
        ):
            monkeypatch.setattr(module, name, value)
        monkeypatch.setitem(OPTIONS, "ahead_bytes", None)
    return request.param


def remote(server, *, store=None, patience=PATIENCE, **options):
    options = {**OPTIONS, **options}
    return RemoteFile(store or HttpStore(), server.url(), patience=patience, **options)


def read(server, **options):
    """All bytes, in pieces, in a thread that must come to an end."""
    result = []

    def work():
        try:
            with remote(server, **options) as file:
                result.append(b"".join(iter(lambda: file.read(70_000), b"")))
        except BaseException as exn:
            result.append(exn)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(LONGEST_S)
    assert result, "the read hangs"
    if isinstance(result[0], BaseException):
        raise result[0]
    return result[0]


BREAKS = [0, 1, 511, 65_536, 199_999]
ONCE = {
    **{f"reset at byte {k}": good(cut=k, end="reset") for k in BREAKS},
    **{f"end at byte {k}": good(cut=k) for k in BREAKS},
    **{f"stall at byte {k}": good(cut=k, end="stall") for k in (0, 100_000)},
    "no answer": silence,
    "drip in the head": slow_head,
    "429": status(429, Retry_After="0"),
    "429 with a date": status(429, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT"),
    "500": status(500),
    "502 page": status(502, b"<html>", Content_Type="text/html"),
    "503": status(503, Retry_After="0"),
    "drip": good(pace=drip),
    "length too small": good(Content_Length=1000),
    "length too large": good(Content_Length=10**7),
    "length missing and short": good(cut=1000, Content_Length=None),
    "range of other bytes": good(Content_Range=f"bytes 7-200006/{len(DATA)}"),
    "no content range": good(Content_Range=None),
    "content range that is none": good(Content_Range="bytes what"),
    "short chunks": chunked(cut=30_000, ranges=True),
    "chunks cut off": chunked(cut=30_000, ended=False, ranges=True),
    "fewer bytes than asked for": good(most=100_000),
}


@pytest.mark.parametrize("place", [0, 1, 4])
@pytest.mark.parametrize("fault", ONCE.values(), ids=ONCE)
def test_a_fault_that_passes_is_healed(server, fault, place):
    server.plan.extend([None] * place + [fault])
    assert read(server) == DATA
    assert not server.plan


@pytest.mark.parametrize("fault", ONCE.values(), ids=ONCE)
def test_the_same_fault_always_is_healed_or_an_error(server, fault):
    server.always = fault
    try:
        found = read(server)
    except StorageError as exn:
        found = str(exn)
    assert found == DATA or server.url() in found


@pytest.mark.parametrize(
    "fault",
    [
        silence,
        good(cut=0),
        good(cut=10, end="reset"),
        status(503),
        good(pace=drip),
        slow_head,
    ],
)
def test_patience_ends_with_the_url_the_byte_the_tries_and_the_cause(server, fault):
    server.plan.append(None)
    server.always = fault
    with pytest.raises(StorageError, match=r"cannot read: .+ \(after 5 tries in .* s\)") as caught:
        read(server, connections=1)
    assert f"({server.url()}, byte " in str(caught.value)
    assert caught.value.origin.offset >= 200_000


def test_every_answer_may_break_as_long_as_some_bytes_came(server):
    server.always = good(cut=70_000, end="reset")
    assert read(server) == DATA
    assert len(server.asked) > 15


def test_a_break_resumes_at_the_byte_reached(server, manner):
    server.plan.append(good(cut=150_000))
    assert read(server, connections=1) == DATA
    starts = sorted(asked.span(len(DATA))[0] for asked in server.asked)
    rest = (200_000, 200_000) if manner == "fetched ahead" else (450_000, 300_000)
    assert starts == [0, 150_000, *range(rest[0], len(DATA), rest[1])]


def test_a_server_that_comes_back_after_a_while_is_waited_for(server):
    with remote(server, patience=RetryPolicy(backoff_s=0.05, read_timeout_s=1)) as file:
        first = file.read(1000)
        server.stop()
        threading.Timer(1.0, server.start).start()
        assert first + file.read() == DATA


def test_a_server_that_stays_away_is_an_error(server):
    server.stop()
    words = rf"no connection to 127\.0\.0\.1:{server.port}: .*refused.* tries"
    with pytest.raises(StorageError, match=words):
        read(server)


def test_retry_after_is_waited_for(server):
    server.plan.append(status(503, Retry_After="1"))
    begin = time.monotonic()
    assert read(server) == DATA
    assert time.monotonic() - begin >= 1


def test_a_server_that_wants_more_patience_than_there_is_fails_at_once(server):
    server.always = status(429, Retry_After="3600")
    begin = time.monotonic()
    with pytest.raises(StorageError, match="asks to wait 3600 s"):
        read(server)
    assert time.monotonic() - begin < 2


@pytest.mark.parametrize(("number", "kind"), [(404, MissingObject), (403, Refused), (400, Refused)])
def test_a_refusal_is_an_error_at_once_with_a_remedy(server, number, kind):
    server.always = status(number)
    with pytest.raises(kind, match=f"answered {number}") as caught:
        read(server)
    assert len(server.asked) == 1
    assert caught.value.status == number


def test_a_refusal_in_the_middle_is_an_error(server):
    server.plan.extend([None, None, status(403)])
    with pytest.raises(Refused, match="does not allow"):
        read(server)


class Expiring(HttpStore):
    """A store whose credentials are renewed a given number of times."""

    def __init__(self, renewals):
        super().__init__()
        self.renewals, self.number = renewals, 0

    def request(self, method, url, *, headers=None, query=None, body=None):
        headers = {**(headers or {}), "X-Key": str(self.number)}
        return super().request(method, url, headers=headers, query=query, body=body)

    def expired(self, status, page):
        return status == 403 and b"ExpiredToken" in page

    def refresh(self):
        self.number += 1
        return self.number <= self.renewals


def expires_after(count):
    served = []

    def answer(server, connection, asked):
        if asked.headers["x-key"] == "0" and len(served) >= count:
            status(403, b"<Code>ExpiredToken</Code>")(server, connection, asked)
        else:
            served.append(asked)
            good()(server, connection, asked)

    return answer


@pytest.mark.parametrize("count", [0, 1, 3])
def test_expired_credentials_are_refreshed(server, count):
    server.always = expires_after(count)
    assert read(server, store=Expiring(100)) == DATA


def test_credentials_that_cannot_be_refreshed_are_an_error_at_once(server):
    server.always = expires_after(0)
    with pytest.raises(Refused):
        read(server, store=Expiring(0))
    assert len(server.asked) == 1


def test_credentials_that_stay_refused_are_refreshed_once(server):
    server.always = status(403, b"ExpiredToken")
    with pytest.raises(Refused):
        read(server, store=Expiring(100))
    assert len(server.asked) == 2


@pytest.mark.parametrize("place", [1, 2, 5])
def test_an_object_that_is_replaced_in_mid_read_is_an_error(server, place):
    server.plan.extend([None] * place)
    server.always = good(data=OTHER)
    with pytest.raises(Changed, match="replaced while it was read"):
        read(server)


def test_an_object_of_another_size_is_seen_even_without_a_version(server):
    server.plan.extend([good(tag=None)] * 3)
    server.always = good(data=OTHER[:-1], tag=None)
    with pytest.raises(Changed):
        read(server)


def test_a_server_without_ranges_is_read_whole(server):
    server.always = good(ranges=False)
    assert read(server) == DATA
    assert len(server.asked) == 1


@pytest.mark.parametrize("end", ["fin", "reset", "stall"])
def test_a_break_without_ranges_is_healed_by_reading_anew(server, end):
    server.plan.append(good(ranges=False, cut=700_000, end=end))
    server.always = good(ranges=False)
    assert read(server) == DATA
    assert len(server.asked) == 2


def test_a_server_without_ranges_that_always_breaks_is_an_error(server):
    server.always = good(ranges=False, cut=700_000)
    with pytest.raises(StorageError, match="byte 700000"):
        read(server)


@pytest.mark.parametrize("tag", ["md5", "same", None])
def test_an_object_replaced_on_a_server_without_ranges_is_an_error(server, tag):
    server.plan.append(good(ranges=False, cut=700_000, tag=tag))
    server.always = good(ranges=False, data=OTHER, tag=tag)
    with pytest.raises(Changed):
        read(server)


def test_a_server_that_ignores_ranges_only_later_is_asked_again(server):
    server.plan.extend([None, good(ranges=False), None, good(ranges=False)])
    assert read(server) == DATA


def test_a_server_that_ignores_ranges_from_then_on_is_an_error(server):
    server.plan.extend([None, None])
    server.always = good(ranges=False)
    with pytest.raises(StorageError, match="ignored the range"):
        read(server)


@pytest.mark.parametrize(
    "fault",
    [
        good(ranges=False, Content_Length=None, cut=9000),
        good(ranges=False, Content_Length=None, end="close"),
        chunked(cut=9000),
        chunked(),
    ],
)
def test_a_body_whose_length_nobody_tells_is_refused(server, fault):
    server.always = fault
    with pytest.raises(StorageError, match="neither a length nor ranges"):
        read(server)


def test_a_length_that_is_too_small_is_seen_by_the_bytes_behind_it(server):
    server.always = good(ranges=False, Content_Length=1000)
    with pytest.raises(StorageError, match="more bytes arrived"):
        read(server)


@pytest.mark.parametrize("place", [0, 2])
def test_a_page_instead_of_data_is_an_error(server, place):
    server.plan.extend([None] * place)
    server.always = page
    with pytest.raises(StorageError, match=r"sent a page|ignored the range"):
        read(server)


@pytest.mark.parametrize("kind", ["application/json", "application/problem+json"])
def test_json_instead_of_a_shard_is_an_error(server, kind):
    server.always = good(data=b'{"error": "no"}', ranges=False, Content_Type=kind)
    with pytest.raises(Refused, match=rf"sent a page \({re.escape(kind)}\)"):
        read(server)


@pytest.mark.parametrize("text", [b'{"error": "no"}', b"<Error>what</Error>" * 100])
def test_a_text_that_says_nothing_of_its_kind_is_no_shard(server, text):
    server.always = good(data=text, ranges=False, Content_Type="text/plain")
    with pytest.raises(ShardError, match=r"no tar file.*rror") as caught:
        list(WebDataset(server.url(), shardshuffle=False))
    assert server.url() in str(caught.value)


@pytest.mark.parametrize("kind", ["text/html; charset=utf-8", "text/plain"])
@pytest.mark.parametrize("ranges", [True, False])
@pytest.mark.parametrize("cached", [True, False])
def test_a_page_under_a_name_that_tells_nothing_is_no_shard(server, tmp_path, kind, ranges, cached):
    url = server.url().removesuffix(".tar")
    text = "<html>Bitte melden Sie sich für das Netz an</html>".encode() * 50
    server.always = good(data=text, ranges=ranges, Content_Type=kind)
    cache = str(tmp_path / "cache") if cached else None
    with pytest.raises(ShardError, match=r"no tar file.*<html>Bitte melden Sie") as caught:
        list(WebDataset(url, shardshuffle=False, cache_dir=cache))
    assert url in str(caught.value)


def test_a_page_in_the_middle_heals(server):
    server.plan.extend([None, page])
    assert read(server) == DATA


def test_a_checksum_is_verified_and_a_flipped_bit_found(server):
    right = f"sha256:{hashlib.sha256(DATA).hexdigest()}"
    assert read(server, checksum=right) == DATA
    assert read(server, checksum="etag") == DATA
    flipped = DATA[:1000] + bytes([DATA[1000] ^ 1]) + DATA[1001:]
    server.always = good(data=flipped, tag=etag(DATA))
    for checksum in (right, "etag"):
        with pytest.raises(StorageError, match="damaged"):
            read(server, checksum=checksum)


def test_redirects_are_followed_without_the_password(server):
    with FaultyServer(a=DATA) as other:
        server.always = moved(other.url().replace("127.0.0.1", "localhost"))
        assert read(server, store=HttpStore(password="me:secret")) == DATA
        assert all("authorization" in asked.headers for asked in server.asked)
        assert not any("authorization" in asked.headers for asked in other.asked)


def test_redirects_in_a_circle_are_an_error(server):
    server.always = moved(server.url())
    with pytest.raises(StorageError, match="redirects"):
        read(server)


def test_a_name_that_leads_nowhere_is_an_error_at_once():
    begin = time.monotonic()
    with pytest.raises(StorageError, match=r"no-such-host\.invalid is not known"):
        RemoteFile(HttpStore(), "http://no-such-host.invalid/a.tar").read(1)
    assert time.monotonic() - begin < 10


def test_small_requests_have_the_same_patience(server):
    server.plan.extend([status(503), good(cut=10), silence])
    assert exchange(HttpStore(), "GET", server.url(), patience=PATIENCE)[2] == DATA
    server.always = status(403)
    with pytest.raises(Refused):
        exchange(HttpStore(), "GET", server.url(), patience=PATIENCE)
    assert exchange(HttpStore(), "GET", server.url(), patience=PATIENCE, ok=(403,))[0] == 403
    server.always = None
    code, headers, body = exchange(HttpStore(), "HEAD", server.url(), patience=PATIENCE)
    assert (code, headers["content-length"], body) == (200, str(len(DATA)), b"")


def stall_half_way(body):
    yield body[: max(len(body) // 2, 1)], 20.0


@pytest.mark.parametrize("part_bytes", [100_000, len(DATA)])
@pytest.mark.parametrize("piece", [stall_half_way, lambda body: iter([(body[:70_000], 20.0)])])
def test_a_server_that_always_stalls_half_way_cannot_hold_a_read(server, piece, part_bytes):
    """Each try brings bytes, so that failures in a row are never many."""
    server.always = good(pace=piece)
    patience = RetryPolicy(backoff_s=0.01, read_timeout_s=0.2, budget_s=60, total_s=0.5)
    with remote(server, patience=patience, part_bytes=part_bytes, connections=1) as file:
        assert file.size_bytes == len(DATA)
        asked = len(server.asked)
        with pytest.raises(StorageError, match=r"not a byte for 0\.2 s"):
            file.read_range(0, len(DATA))
    assert len(server.asked) - asked <= 6


def test_stalls_of_many_reads_are_not_added_up(server):
    """The limit is on one read, not on a shard that is read for hours."""
    server.always = good(pace=lambda body: iter([(body[:100_000], 20.0)]))
    patience = RetryPolicy(backoff_s=0.01, read_timeout_s=0.2, budget_s=60, total_s=1.2)
    options = {"part_bytes": 150_000, "patience": patience}
    assert read(server, **options) == DATA
