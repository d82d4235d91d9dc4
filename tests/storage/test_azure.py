"""Azure's blobs, on Azurite, which checks signatures."""

from __future__ import annotations

import base64
import datetime
import hashlib
import hmac
import pickle
import urllib.parse

import pytest
from folders import list_without_those_below, write_list_and_read
from servers_clouds import ACCOUNT, KEY, azure_endpoint, fresh_name, no_settings  # noqa: F401

from penstock.errors import StorageError, UrlError
from penstock.storage import open_url
from penstock.storage.auth import azure_auth as azure_keys
from penstock.storage.auth.azure_auth import account_for
from penstock.storage.auth.bearer_tokens import Token
from penstock.storage.auth.named_keys import use_keys
from penstock.storage.objects.azure import AzureStore
from penstock.testing.openers import OpenerContract

pytestmark = pytest.mark.usefixtures("no_settings")


@pytest.fixture
def server(no_settings, azure_endpoint, monkeypatch):  # noqa: F811
    """The server, with the account's key in the environment."""
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", ACCOUNT)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", azure_endpoint)
    monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
    # Asking who is signed in would leave the machine.
    monkeypatch.setattr(azure_keys, "_signed_in", lambda: Token(lambda: (None, None)))
    return azure_endpoint


def put(url, data):
    with open_url(url, "wb") as stream:
        stream.write(data)
    return url


class TestAzure(OpenerContract):
    schemes = ("az",)
    seekable = True
    root = "az://shards"

    @pytest.fixture(autouse=True)
    def _server(self, server):
        pass

    def make_url(self, tmp_path, data):
        return put(f"{self.root}/{fresh_name()}/a b%20#+ü.tar", data)

    def missing_url(self, tmp_path):
        return f"{self.root}/nothing/here.tar"

    def target_url(self, tmp_path):
        return f"{self.root}/{fresh_name()}/out put.tar"


class TestAzureWithItsAccount(TestAzure):
    schemes = ("abfs", "abfss")
    root = f"abfs://shards@{ACCOUNT}.dfs.core.windows.net"


def test_a_data_set_is_written_listed_and_read(server):
    folder = f"az://shards/{fresh_name()}"
    write_list_and_read(folder, AzureStore(folder).list)


def test_a_folder_is_listed_without_those_below(server):
    folder = f"az://shards/{fresh_name()}"
    list_without_those_below(folder, AzureStore(folder).list)


def test_a_listing_goes_over_all_pages_and_tells_sizes(server, monkeypatch):
    from penstock.storage.objects import azure

    folder = f"abfs://shards@{ACCOUNT}/{fresh_name()}"
    for number in range(5):
        put(f"{folder}/{number} &.tar", b"x" * number)
    real = azure.exchange
    monkeypatch.setattr(
        azure, "exchange", lambda *a, query, **k: real(*a, query={**query, "maxresults": "2"}, **k)
    )
    found = list(AzureStore(folder).list(f"{folder}/"))
    assert [(listed.url, listed.size_bytes) for listed in found] == [
        (f"{folder}/{number} &.tar", number) for number in range(5)
    ]


def test_a_blob_of_several_blocks_is_put_together(server):
    url, data = f"az://shards/{fresh_name()}", bytes(range(256)) * 4096 + b"end"
    with open_url(url, "wb", part_bytes=100_000) as stream:
        stream.write(data[:10])
        stream.write(data[10:])
    with open_url(url) as stream:
        assert stream.read() == data


def test_a_connection_string_is_enough(server, monkeypatch):
    url = put(f"az://shards/{fresh_name()}", b"hello")
    for name in ("ACCOUNT", "KEY", "ENDPOINT"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}")
    text = f"AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={server};"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    with open_url(url) as stream:
        assert stream.read() == b"hello"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", "UseDevelopmentStorage=true")
    assert account_for(url).endpoint == azure_keys.EMULATOR_ENDPOINT


def test_a_sas_token_is_enough(server, monkeypatch):
    url = put(f"az://shards/{fresh_name()}.tar", b"hello")
    monkeypatch.delenv("AZURE_STORAGE_KEY")
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "?" + sas_token())
    with open_url(url) as stream:
        assert stream.read() == b"hello"
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", sas_token(hours=-1))
    with pytest.raises(StorageError, match="SAS token") as info:
        open_url(url).read()
    assert "sig=" not in str(info.value)


def sas_token(hours=1):
    """The right to read everything in the account for some time, signed with its key."""
    ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(hours=hours)
    fields = {"sp": "rl", "ss": "b", "srt": "sco", "se": ends.strftime("%Y-%m-%dT%H:%M:%SZ")}
    fields["sv"] = "2021-08-06"
    order = [ACCOUNT, fields["sp"], "b", "sco", "", fields["se"], "", "", fields["sv"], "", ""]
    digest = hmac.digest(base64.b64decode(KEY), "\n".join(order).encode(), hashlib.sha256)
    return urllib.parse.urlencode({**fields, "sig": base64.b64encode(digest).decode()})


def test_a_public_container_needs_no_credentials(server, monkeypatch):
    url = put(f"az://public/{fresh_name()}.tar", b"hello")
    private = put(f"az://shards/{fresh_name()}.tar", b"hello")
    monkeypatch.delenv("AZURE_STORAGE_KEY")
    with open_url(url) as stream:
        assert stream.read() == b"hello"
    with pytest.raises(StorageError, match="anonymous"):
        open_url(private).read()


def test_a_wrong_key_is_refused_at_once_and_not_shown(server, monkeypatch):
    wrong = base64.b64encode(b"wrong" * 10).decode()
    monkeypatch.setenv("AZURE_STORAGE_KEY", wrong)
    with pytest.raises(StorageError, match="the key does not fit") as info:
        open_url("az://shards/a.tar").read()
    assert wrong not in str(info.value)
    monkeypatch.setenv("AZURE_STORAGE_KEY", "not base64!")
    with pytest.raises(StorageError, match="not base64") as info:
        open_url("az://shards/a.tar").read()
    assert "base64!" not in str(info.value)


def test_a_missing_container_is_told_apart_from_a_missing_blob(server):
    with pytest.raises(StorageError, match="no such container"):
        open_url("az://nowhere/a.tar").read()
    with pytest.raises(StorageError, match="no such blob"):
        open_url("az://shards/nothing").read()


def test_named_keys_choose_the_account(server, monkeypatch):
    url = put(f"az://shards/{fresh_name()}.tar", b"hello")
    for name in ("ACCOUNT", "KEY", "ENDPOINT"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}")
    monkeypatch.setenv("MY_KEY", KEY)
    key = {"access_key": ACCOUNT, "secret_env": "MY_KEY", "endpoint": server}
    use_keys({"mine": {"buckets": ["az://shards"], **key}})
    try:
        with open_url(url) as stream:
            assert stream.read() == b"hello"
    finally:
        use_keys(None)


def test_no_secret_is_in_a_print_or_pickle(server):
    store = AzureStore("az://shards/a.tar")
    request = store.request("GET", "az://shards/a.tar")
    assert KEY not in repr(store.account) + repr(request)
    assert KEY.encode() not in pickle.dumps(store)
    copy = pickle.loads(pickle.dumps(store))
    assert copy.account.key == KEY


def test_a_token_of_who_is_signed_in_is_sent(server, monkeypatch):
    monkeypatch.delenv("AZURE_STORAGE_KEY")
    monkeypatch.setattr(azure_keys, "_signed_in", lambda: Token(lambda: ("s3cret", None)))
    request = AzureStore("az://shards/a").request("GET", "az://shards/a")
    assert request.headers["Authorization"] == "Bearer s3cret"


def test_the_key_of_one_account_is_not_used_for_another(server):
    account = account_for("abfs://shards@other/a.tar", "other")
    assert account.key is None
    assert account.endpoint == "https://other.blob.core.windows.net"


def test_a_url_without_an_account_or_a_name_is_refused():
    with pytest.raises(StorageError, match="needs an account"):
        open_url("az://shards/a.tar")
    with pytest.raises(UrlError, match="names no blob"):
        open_url("az://shards/")
    with pytest.raises(UrlError, match="names no container"):
        open_url("az:///a.tar")
