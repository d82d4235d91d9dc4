"""Google Cloud Storage, on fake-gcs-server."""

from __future__ import annotations

import pickle
import urllib.parse
import urllib.request

import pytest
from folders import list_without_those_below, write_list_and_read
from servers_clouds import fresh_name, gcs_address, make_shard, no_settings  # noqa: F401

import penstock as wds
from penstock.errors import MissingPackage, StorageError, UrlError
from penstock.storage import open_url
from penstock.storage.auth.bearer_tokens import Token, find_scheme_key
from penstock.storage.auth.named_keys import use_keys
from penstock.storage.objects import gcs
from penstock.storage.objects.gcs import GoogleStore
from penstock.testing.openers import OpenerContract

pytestmark = pytest.mark.usefixtures("no_settings")


def put(address, name, data):
    """Store an object without our own writer."""
    query = urllib.parse.urlencode({"uploadType": "media", "name": name})
    request = urllib.request.Request(f"{address}/upload/storage/v1/b/shards/o?{query}", data)
    urllib.request.urlopen(request, timeout=10).close()
    return f"gs://shards/{name}"


@pytest.fixture
def server(no_settings, gcs_address, monkeypatch):  # noqa: F811
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", gcs_address.removeprefix("http://"))
    return gcs_address


class TestGoogle(OpenerContract):
    schemes = ("gs",)
    seekable = True

    @pytest.fixture(autouse=True)
    def _server(self, server):
        self.address = server

    def make_url(self, tmp_path, data):
        return put(self.address, f"{fresh_name()}/a b%20#+ü.tar", data)

    def missing_url(self, tmp_path):
        return "gs://shards/nothing/here.tar"

    def target_url(self, tmp_path):
        return f"gs://shards/{fresh_name()}/out put.tar"


def test_a_data_set_is_written_listed_and_read(server):
    folder = f"gs://shards/{fresh_name()}"
    write_list_and_read(folder, GoogleStore(folder).list)


def test_a_folder_is_listed_without_those_below(server):
    folder = f"gs://shards/{fresh_name()}"
    list_without_those_below(folder, GoogleStore(folder).list)


def test_a_listing_goes_over_all_pages_and_tells_sizes(server, monkeypatch):
    folder = fresh_name()
    for number in range(5):
        put(server, f"{folder}/{number}.tar", b"x" * number)
    put(server, f"{folder}-other", b"")
    real = gcs.exchange
    monkeypatch.setattr(
        gcs, "exchange", lambda *a, query, **k: real(*a, query={**query, "maxResults": "2"}, **k)
    )
    found = list(GoogleStore("gs://shards/").list(f"gs://shards/{folder}/"))
    assert [(listed.url, listed.size_bytes) for listed in found] == [
        (f"gs://shards/{folder}/{number}.tar", number) for number in range(5)
    ]


def test_an_upload_in_several_parts_is_put_together(server):
    url, data = f"gs://shards/{fresh_name()}", bytes(range(256)) * 4096 + b"end"
    with open_url(url, "wb", part_bytes=256 << 10) as stream:
        for begin in range(0, len(data), 100_000):
            stream.write(data[begin : begin + 100_000])
    with open_url(url) as stream:
        assert stream.read() == data


def test_a_version_is_the_generation(server):
    url = put(server, fresh_name(), b"one")
    with open_url(url) as stream:
        first = stream.version
    put(server, url.rpartition("/")[2], b"two")
    with open_url(url) as stream:
        assert first
        assert stream.version != first


def test_the_version_wanted_is_asked_for_as_a_generation(server):
    request = GoogleStore("gs://b/k").request("GET", "gs://b/k", headers={"If-Match": "17"})
    assert "ifGenerationMatch=17" in request.url
    assert "If-Match" not in request.headers


def test_a_missing_bucket_is_named(server):
    with pytest.raises(StorageError, match="no bucket 'nowhere'"):
        open_url("gs://nowhere/a.tar").read()


@pytest.mark.parametrize("url", ["gs://", "gs://bucket", "gs://bucket/"])
def test_a_url_without_a_key_is_refused(url):
    with pytest.raises(UrlError, match="names no object"):
        open_url(url)


def test_a_token_is_sent_kept_and_in_no_print_or_pickle(monkeypatch):
    calls = []
    monkeypatch.setattr(gcs, "_TOKEN", Token(lambda: (calls.append(1) or "s3cret", None)))
    for _ in range(3):
        request = GoogleStore("gs://b/k").request("GET", "gs://b/k")
    assert request.headers["Authorization"] == "Bearer s3cret"
    assert len(calls) == 1
    assert "s3cret" not in repr(request)


def test_a_token_is_renewed_before_it_runs_out_and_when_it_is_refused(monkeypatch):
    now, given = [1000.0], []

    def fetch():
        given.append(f"token {len(given)}")
        return given[-1], now[0] + 3600

    monkeypatch.setattr("time.time", lambda: now[0])
    token = Token(fetch)
    assert token.text() == token.text() == "token 0"
    now[0] += 3550
    assert token.text() == "token 1"
    monkeypatch.setattr("time.monotonic", lambda: 1e9)
    assert token.renew()
    assert token.text() == "token 2"


def test_the_secret_of_a_named_key_is_the_token_and_stays_out_of_pickles(monkeypatch):
    monkeypatch.setenv("MY_TOKEN", "s3cret")
    key = {"buckets": ["gs://mine"], "access_key": "me", "secret_env": "MY_TOKEN"}
    use_keys({"me": key, "public": {"buckets": ["gs://open-*"], "anonymous": True}})
    try:
        store = GoogleStore("gs://mine/k")
        assert store.request("GET", "gs://mine/k").headers["Authorization"] == "Bearer s3cret"
        assert b"s3cret" not in pickle.dumps(store)
        copy = pickle.loads(pickle.dumps(store))
        assert copy.request("GET", "gs://mine/k").headers["Authorization"] == "Bearer s3cret"
        open_store = GoogleStore("gs://open-data/k")
        assert "Authorization" not in open_store.request("GET", "gs://open-data/k").headers
    finally:
        use_keys(None)


def test_a_key_whose_pattern_names_no_scheme_is_not_sent_to_another_cloud(monkeypatch):
    monkeypatch.setattr(gcs, "_TOKEN", Token(lambda: (None, None)))
    monkeypatch.setenv("MY_SECRET", "s3cret")
    use_keys({"s3": {"buckets": ["shards", "*"], "access_key": "AK", "secret_env": "MY_SECRET"}})
    try:
        request = GoogleStore("gs://shards/k").request("GET", "gs://shards/k")
        assert "s3cret" not in str(request.headers)
        assert find_scheme_key("az://shards/k") is None
    finally:
        use_keys(None)


def test_credentials_without_their_package_name_the_extra(monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    monkeypatch.setitem(__import__("sys").modules, "google.auth", None)
    with pytest.raises(MissingPackage, match=r"pip install .*\[gcs\]"):
        gcs._fetch_token()


def test_a_service_account_file_gives_a_token(monkeypatch, tmp_path):
    """The token is asked for at the address in the file, here a server of our own."""
    import json

    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa
    from fake_server import FakeServer

    def answer(call):
        call.reply_json({"access_token": "from the server", "expires_in": 3600})

    key = rsa.generate_private_key(65537, 2048).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    server = FakeServer(answer)
    try:
        account = {
            "type": "service_account",
            "client_email": "me@example.org",
            "private_key": key.decode(),
            "private_key_id": "k1",
            "project_id": "p",
            "token_uri": server.address,
        }
        (tmp_path / "key.json").write_text(json.dumps(account))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        text, ends = gcs._fetch_token()
    finally:
        server.close()
    assert text == "from the server"
    assert ends is not None


def test_credentials_that_cannot_be_used_are_an_error(monkeypatch, tmp_path):
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "missing.json"))
    with pytest.raises(StorageError, match="cannot be used"):
        gcs._fetch_token()


def test_a_shard_is_read_by_forked_workers_after_the_parent_has_read(server):
    torch_data = pytest.importorskip("torch.utils.data")
    urls = [put(server, fresh_name(), make_shard(10)) for _ in range(2)]
    data = wds.WebDataset(urls, shardshuffle=False).decode().to_tuple("cls")
    assert len(list(data)) == 20
    loader = torch_data.DataLoader(data, num_workers=2, batch_size=None)
    assert sorted(int(cls) for (cls,) in loader) == sorted([*range(10), *range(10)])


class HalfKeeper:
    """A server that is busy at first and keeps only part of what it is sent, as Google may."""

    def __init__(self):
        self.kept, self.total, self.asked, self.given_up = b"", None, 0, False

    def __call__(self, call):
        self.asked += 1
        if call.method == "DELETE":
            self.given_up = True
            return call.reply(499)
        if self.asked % 3 == 0:
            return call.reply(503)
        if call.method == "POST":
            place = f"http://{call.headers['Host']}/session/1"
            return call.reply(200, b"", {"Location": place})
        span, _, total = call.headers["Content-Range"].removeprefix("bytes ").partition("/")
        if span != "*":
            first = int(span.partition("-")[0])
            assert first == len(self.kept)
            room = 256 << 10
            whole = total != "*" and len(call.body) <= room
            self.kept += call.body if whole else call.body[:room]
        if total != "*" and len(self.kept) == int(total):
            self.total = int(total)
            return call.reply(200, b"{}")
        kept = {"Range": f"bytes=0-{len(self.kept) - 1}"} if self.kept else {}
        return call.reply(308, b"", kept)


@pytest.mark.parametrize("size", [0, 1, 256 << 10, (1 << 20) + 17])
def test_what_the_server_did_not_keep_of_an_upload_is_sent_again(monkeypatch, size):
    from fake_server import FakeServer

    keeper, data = HalfKeeper(), bytes(index % 251 for index in range(size))
    server = FakeServer(keeper)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
    try:
        with open_url("gs://shards/a.tar", "wb", part_bytes=512 << 10) as stream:
            stream.write(data)
    finally:
        server.close()
    assert keeper.kept == data
    assert keeper.total == size


def test_an_upload_that_is_given_up_is_taken_back(monkeypatch):
    from fake_server import FakeServer

    keeper = HalfKeeper()
    server = FakeServer(keeper)
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", server.address)
    try:
        stream = open_url("gs://shards/a.tar", "wb")
        stream.write(b"hello")
        stream.abort()
    finally:
        server.close()
    assert keeper.given_up
    assert keeper.kept == b""
