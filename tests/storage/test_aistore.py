"""AIStore, on a proxy and a target that answer like a cluster."""

from __future__ import annotations

import pickle
import re

import pytest
from folders import write_list_and_read
from ports import free_ports
from servers_clouds import cluster, fresh_name, make_shard, no_settings  # noqa: F401

import penstock as wds
from penstock.errors import StorageError, UrlError
from penstock.storage import open_url
from penstock.storage.client import retrying as fetching
from penstock.storage.client import transport
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.objects.aistore import AisStore
from penstock.storage.schemes import goes_through_ais
from penstock.testing.openers import OpenerContract

pytestmark = pytest.mark.usefixtures("no_settings")


class TestAis(OpenerContract):
    schemes = ("ais",)
    seekable = True

    @pytest.fixture(autouse=True)
    def _server(self, cluster):  # noqa: F811
        self.cluster = cluster

    def make_url(self, tmp_path, data):
        name = f"{fresh_name()}/a b%20#+ü.tar"
        self.cluster.objects["ais", "shards", name] = data
        return f"ais://shards/{name}"

    def missing_url(self, tmp_path):
        return "ais://shards/nothing/here.tar"

    def target_url(self, tmp_path):
        return f"ais://shards/{fresh_name()}/out put.tar"


def test_a_data_set_is_written_listed_and_read(cluster):  # noqa: F811
    write_list_and_read("ais://shards/set", AisStore("ais://shards/").list)


def test_a_listing_goes_over_all_pages_and_tells_sizes(cluster):  # noqa: F811
    for number in range(8):
        cluster.objects["ais", "shards", f"train/{number}.tar"] = b"x" * number
    cluster.objects["ais", "shards", "val/0.tar"] = b""
    found = list(AisStore("ais://shards/").list("ais://shards/train/"))
    assert [(listed.url, listed.size_bytes) for listed in found] == [
        (f"ais://shards/train/{number}.tar", number) for number in range(8)
    ]


@pytest.mark.parametrize(("scheme", "provider"), [("s3", "aws"), ("gs", "gcp"), ("az", "azure")])
def test_other_schemes_go_through_the_cluster(cluster, monkeypatch, scheme, provider):  # noqa: F811
    monkeypatch.setenv("USE_AIS_FOR", "s3:gs:az")
    cluster.objects[provider, "bucket", "train/0.tar"] = make_shard()
    data = wds.WebDataset(f"{scheme}://bucket/train/0.tar", shardshuffle=False).decode()
    assert [sample["cls"] for sample in data] == list(range(20))
    with open_url(f"{scheme}://bucket/new.tar", "wb") as stream:
        stream.write(b"hello")
    assert cluster.objects[provider, "bucket", "new.tar"] == b"hello"
    found = AisStore(f"{scheme}://bucket/").list(f"{scheme}://bucket/train/")
    assert [listed.url for listed in found] == [f"{scheme}://bucket/train/0.tar"]


def test_the_variable_takes_names_of_schemes_and_of_providers(monkeypatch):
    assert not goes_through_ais("s3")
    monkeypatch.setenv("USE_AIS_FOR", "aws:gs")
    assert goes_through_ais("s3")
    assert goes_through_ais("gs")
    assert not goes_through_ais("az")
    assert not goes_through_ais("http")


def test_no_cluster_is_an_error_that_names_the_variable(monkeypatch):
    monkeypatch.setenv("USE_AIS_FOR", "s3")
    for url in ("ais://shards/a.tar", "s3://shards/a.tar"):
        with pytest.raises(StorageError, match="AIS_ENDPOINT"):
            open_url(url)


def test_a_token_is_sent_to_the_proxy_only(cluster, monkeypatch):  # noqa: F811
    cluster.token = "s3cret"
    with pytest.raises(StorageError, match="AIS_AUTHN_TOKEN"):
        open_url("ais://shards/a.tar").read()
    monkeypatch.setenv("AIS_AUTHN_TOKEN", "s3cret")
    with open_url("ais://shards/a.tar", "wb") as stream:
        stream.write(b"hello")
    assert open_url("ais://shards/a.tar").read() == b"hello"
    store = AisStore("ais://shards/")
    assert len(list(store.list("ais://shards/"))) == 1
    assert all("s3cret" not in str(call.headers) for call in cluster.target.calls)
    assert b"s3cret" not in pickle.dumps(store)


def test_the_proxy_is_never_sent_an_object(cluster):  # noqa: F811
    with open_url("ais://shards/a.tar", "wb") as stream:
        stream.write(b"x" * 3_000_000)
    assert [len(call.body) for call in cluster.proxy.calls] == [0]
    assert len(cluster.objects["ais", "shards", "a.tar"]) == 3_000_000


def test_a_url_without_an_object_is_refused(cluster):  # noqa: F811
    with pytest.raises(UrlError, match="names no object"):
        open_url("ais://shards")


@pytest.mark.parametrize(
    "act",
    [
        lambda: open_url("ais://shards/a.tar").read(),
        lambda: list(AisStore("ais://shards/").list("ais://shards/")),
        lambda: open_url("ais://shards/a.tar", "wb").close(),
    ],
    ids=["reading", "listing", "writing"],
)
def test_a_cluster_that_nobody_can_reach_is_named_soon(no_settings, monkeypatch, act):  # noqa: F811
    (port,) = free_ports(1)
    monkeypatch.setenv("AIS_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(fetching, "FIRST_CONTACT_S", 0.5)
    with pytest.raises(StorageError, match=rf"no connection to 127\.0\.0\.1:{port}.*AIS_END") as e:
        act()
    tries = int(re.search(r"after (\d+) tries", str(e.value))[1])
    assert 2 <= tries <= 5


def test_a_cluster_that_has_answered_before_is_waited_for(no_settings, monkeypatch):  # noqa: F811
    (port,) = free_ports(1)
    monkeypatch.setenv("AIS_ENDPOINT", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(fetching, "FIRST_CONTACT_S", 0.0)
    monkeypatch.setitem(transport._current_pools().quickest, f"127.0.0.1:{port}", 0.1)
    with pytest.raises(StorageError, match="after 5 tries"):
        open_url("ais://shards/a.tar", patience=RetryPolicy(retries=4, backoff_s=0.01)).read()
