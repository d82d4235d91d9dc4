"""Servers, URLs and forks that would lose data or show secrets, and do not."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import signal

import pytest
from servers_s3 import error_page, serving

from penstock.errors import StorageError, UrlError
from penstock.redact import redact
from penstock.storage import open_url
from penstock.storage.auth.named_keys import Key, use_keys
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.client.transport import _make_proxy_manager, _Pools
from penstock.storage.listing import list_urls
from penstock.storage.objects.s3 import S3Store

pytestmark = pytest.mark.usefixtures("no_keys")

PART = 5 << 20
QUICK = RetryPolicy(retries=1, backoff_s=0.01, budget_s=2)


def upload(etag, initiated="2020-01-01T00:00:00Z"):
    """Write 2 parts to a server that says NoSuchUpload and has an object of that ETag."""
    taken_back = []

    def answer(call):
        query = call.path.partition("?")[2]
        if call.command == "GET":
            entry = f"<Key>x</Key><UploadId>old</UploadId><Initiated>{initiated}</Initiated>"
            name = "ListMultipartUploadsResult"
            return 200, {}, f"<{name}><Upload>{entry}</Upload></{name}>".encode()
        if call.command == "POST" and "uploads" in query:
            name = "InitiateMultipartUploadResult"
            return 200, {}, f"<{name}><UploadId>u</UploadId></{name}>".encode()
        if call.command == "PUT":
            return 200, {"ETag": '"abc"'}, b""
        if call.command == "POST":
            return 404, {}, error_page("NoSuchUpload")
        if call.command == "HEAD":
            return 200, {"Content-Length": str(PART + 7), "ETag": f'"{etag}"'}, b""
        taken_back.append(query)
        return 204, {}, b""

    with serving(answer) as endpoint:
        options = {"endpoint": endpoint, "anonymous": True, "part_bytes": PART, "patience": QUICK}
        with open_url("s3://b/x", "wb", **options) as file:
            file.write(bytes(PART + 7))
    return taken_back


def etag_of(*parts):
    sums = b"".join(hashlib.md5(part).digest() for part in parts)
    return f"{hashlib.md5(sums).hexdigest()}-{len(parts)}"


def test_an_older_object_of_equal_size_is_not_taken_for_the_upload():
    with pytest.raises(StorageError, match="NoSuchUpload"):
        upload("0123-2")


def test_an_upload_whose_answer_was_lost_is_known_by_its_sum():
    assert upload(etag_of(bytes(PART), bytes(7))) == ["uploadId=old"]


@pytest.mark.parametrize("initiated", ["", "soon"])
def test_an_upload_of_unknown_age_is_left_alone(initiated):
    assert upload(etag_of(bytes(PART), bytes(7)), initiated) == []


def test_a_forked_process_does_not_wait_for_its_parents_account():
    use_keys({"k": {"buckets": ["b"], "access_key": "AK", "secret": "s", "endpoint": "http://h"}})
    store = S3Store("s3://b/x")
    store.request("GET", "s3://b/x")
    with store._account()[0]._lock:  # as when another thread looks the credentials up
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(3)
            store.request("GET", "s3://b/x")
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_headers_of_ones_own_do_not_follow_a_redirect_to_another_server():
    seen = []

    def there(call):
        seen.append(call.headers)
        return 206, {"Content-Range": "bytes 0-3/4"}, b"data"

    with serving(there) as other, serving(lambda _: (302, {"Location": other + "/x"}, b"")) as url:
        headers = {"X-Api-Key": "sekrit", "Authorization": "Bearer sekrit"}
        assert open_url(url + "/x", headers=headers, patience=QUICK).read() == b"data"
    assert "sekrit" not in str(seen[0])
    assert {"Range", "User-Agent", "Accept-Encoding"} <= set(seen[0])


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("http://me:se/cret@host/x", "http://me:...@host/x"),
        ("http://me:se@x/cret@host/x", "http://me:...@host/x"),
        ("http://me:se?cret@host/x", "http://me:..."),
        ("http://me:secret@host/x?a=secret", "http://host/x?..."),
        ("http://host/x?a=b:secret@d", "http://host/x?..."),
        ("http://host:80/x?a=b@secret", "http://host:..."),
        ("http://host:80/x", "http://host:80/x"),
        ("abfs://container@account/x", "abfs://container@account/x"),
        ("s3://AKID:se/cret@bucket", "s3://AKID:...@bucket"),
    ],
)
def test_a_mistyped_password_is_not_shown(url, seen):
    assert redact(url) == seen


@pytest.mark.parametrize(
    "url",
    [
        "http://me:XYLO/PHONE@host/x.tar",
        "http://me:XYLO#PHONE@host/x.tar",
        "http://me:123#PHONE@host/x.tar",
        "http://me:[XYLO/PHONE@host/x.tar",
        "s3://AKID:XYLO/PHONE@bucket",
        "s3://AKID:XYLO/PHONE@bucket/x.tar",
        "s3://AKID:XYLOPHONE@bucket/x.tar",
    ],
)
def test_a_url_with_a_mistyped_password_is_refused_without_it(url):
    with pytest.raises((StorageError, UrlError)) as caught:
        open_url(url, patience=QUICK).read()
    told = str(caught.value).upper()
    assert "XYLO" not in told
    assert "PHONE" not in told


def test_a_withheld_session_token_is_not_sent():
    fields = {"access_key": "AK", "secret_env": "HOME", "session_token": "tok"}
    travelled = json.loads(json.dumps(Key.of("k", fields).without_secret()))
    with pytest.raises(StorageError, match="session_token"):
        Key.of("k", travelled).credentials()


@pytest.mark.parametrize("place", ["http://[bad", "http://host:port/x", "//[", "http://h:99999/"])
def test_a_redirect_to_nowhere_is_a_storage_error(place):
    with serving(lambda _: (302, {"Location": place}, b"")) as url, pytest.raises(StorageError):
        open_url(url + "/x", patience=QUICK).read()


@pytest.mark.parametrize(
    "wait", ["\u00b2", "9" * 5000, "Mon, 99 Foo 99999 99:99:99 GMT", "Fri, 0 Jan 0 0:0:0 +99999999"]
)
def test_an_odd_retry_after_is_a_storage_error(wait):
    answer = (503, {"Retry-After": wait}, b"")
    with serving(lambda _: answer) as url, pytest.raises(StorageError, match="503"):
        open_url(url + "/x", patience=QUICK).read()


def test_a_pattern_that_runs_backwards_is_a_url_error():
    page = b"<ListBucketResult></ListBucketResult>"
    with serving(lambda _: (200, {}, page)) as endpoint:
        use_keys({"k": {"buckets": ["b"], "anonymous": True, "endpoint": endpoint}})
        with pytest.raises(UrlError, match="no pattern"):
            list_urls("s3://b/[z-a]*.tar")


@pytest.mark.parametrize(("name", "fine"), [("x.tar", False), ("x.tar.gz", True)])
def test_what_a_web_server_packs_unasked_is_refused(name, fine):
    headers = {"Content-Encoding": "gzip", "Content-Range": "bytes 0-3/4"}
    with serving(lambda _: (206, headers, b"data")) as url:
        if fine:
            assert open_url(f"{url}/{name}", patience=QUICK).read() == b"data"
        else:
            with pytest.raises(StorageError, match="Content-Encoding"):
                open_url(f"{url}/{name}", patience=QUICK).read()


def test_a_proxys_password_is_sent_to_it():
    seen = []

    def proxy(call):
        seen.append((call.path, call.headers["Proxy-Authorization"]))
        return 200, {}, b""

    with serving(proxy) as url:
        manager = _make_proxy_manager(url.replace("//", "//me:a%40b@"))
        manager.request("GET", "http://data.invalid/x", retries=False)
    assert seen == [("http://data.invalid/x", "Basic bWU6YUBi")]


def test_the_log_of_the_client_library_shows_no_queries(caplog):
    answer = (206, {"Content-Range": "bytes 0-3/4"}, b"data")
    with caplog.at_level(logging.DEBUG), serving(lambda _: answer) as url:
        assert open_url(url + "/x.tar?sig=sekrit", patience=QUICK).read() == b"data"
    assert "/x.tar?..." in caplog.text
    assert "sekrit" not in caplog.text


# ── redirects to addresses inside ───────────────────────────────────────────────────────


@pytest.fixture
def by_proxy(monkeypatch):
    """A proxy on loopback, over which a server with a public address is reached."""
    asked = []

    def reach(redirect):
        def proxy(call):
            asked.append(call.path)
            if call.path.startswith("http://93.184.216.34/"):
                return 302, {"Location": redirect}, b""
            return 206, {"Content-Range": "bytes 0-3/4"}, b"data"

        return serving(proxy)

    def read(redirect):
        with reach(redirect) as address:
            monkeypatch.setenv("http_proxy", address)
            monkeypatch.setenv("no_proxy", "")
            monkeypatch.setattr("penstock.storage.client.transport._pools", _Pools())
            return open_url("http://93.184.216.34/x", patience=QUICK).read()

    read.asked = asked
    return read


INSIDE = [
    "http://127.0.0.1:9/x",
    "http://localhost/x",
    "http://2130706433/x",
    "http://10.1.2.3/x",
    "http://192.168.0.1/x",
    "http://169.254.169.254/latest/meta-data",
    "http://[::1]/x",
    "http://[::ffff:10.0.0.1]/x",
    "http://[fd00::1]/x",
    "http://0.0.0.0/x",
    "http://name.invalid/x",
]


@pytest.mark.parametrize("place", INSIDE)
def test_a_redirect_to_a_private_address_is_refused_where_that_is_asked_for(
    by_proxy, monkeypatch, place
):
    monkeypatch.setenv("PENSTOCK_PRIVATE_REDIRECTS", "0")
    with pytest.raises(StorageError, match="PENSTOCK_PRIVATE_REDIRECTS"):
        by_proxy(place)
    assert by_proxy.asked == ["http://93.184.216.34/x"]


@pytest.mark.parametrize("value", [None, "1"])
def test_a_redirect_to_a_private_address_is_followed_by_default(by_proxy, monkeypatch, value):
    if value is None:
        monkeypatch.delenv("PENSTOCK_PRIVATE_REDIRECTS", raising=False)
    else:
        monkeypatch.setenv("PENSTOCK_PRIVATE_REDIRECTS", value)
    assert by_proxy("http://10.1.2.3/x") == b"data"


def test_a_redirect_between_public_or_between_private_addresses_is_always_followed(
    by_proxy, monkeypatch
):
    monkeypatch.setenv("PENSTOCK_PRIVATE_REDIRECTS", "0")
    assert by_proxy("http://93.184.216.35/x") == b"data"
    monkeypatch.delenv("http_proxy")
    monkeypatch.setattr("penstock.storage.client.transport._pools", _Pools())
    found, moved = (206, {"Content-Range": "bytes 0-3/4"}, b"data"), {}
    with serving(lambda _: found) as moved["Location"], serving(lambda _: (302, moved, b"")) as url:
        assert open_url(url + "/x", patience=QUICK).read() == b"data"
