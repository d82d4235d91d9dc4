"""The Hugging Face Hub, on a server that answers like it."""

from __future__ import annotations

import pickle
import sys

import pytest
from folders import write_list_and_read
from servers_clouds import fresh_name, hub, make_shard, no_settings  # noqa: F401

import penstock as wds
from penstock.errors import MissingPackage, StorageError, UrlError
from penstock.storage import open_url
from penstock.storage.objects.huggingface import HubStore, parse_url
from penstock.testing.openers import OpenerContract

pytestmark = pytest.mark.usefixtures("no_settings")
ROOT = "hf://datasets/me/digits"


class TestHub(OpenerContract):
    schemes = ("hf",)
    seekable = True

    @pytest.fixture(autouse=True)
    def _server(self, hub):  # noqa: F811
        self.hub = hub

    def make_url(self, tmp_path, data):
        path = f"{fresh_name()}/a b%20#+ü.tar"
        self.hub.files[path] = data
        return f"{ROOT}/{path}"

    def missing_url(self, tmp_path):
        return f"{ROOT}/nothing/here.tar"

    def target_url(self, tmp_path):
        return f"{ROOT}/{fresh_name()}/out put.tar"


def test_a_data_set_is_written_listed_and_read(hub):  # noqa: F811
    folder = f"{ROOT}/{fresh_name()}"
    write_list_and_read(folder, HubStore(folder).list)


def test_a_listing_goes_over_all_pages_and_tells_sizes(hub):  # noqa: F811
    hub.files.update({f"train/{number}.tar": b"x" * number for number in range(8)})
    hub.files["train-other.tar"] = b""
    found = list(HubStore(ROOT).list(f"{ROOT}@main/train/"))
    assert [(listed.url, listed.size_bytes) for listed in found] == [
        (f"{ROOT}@main/train/{number}.tar", number) for number in range(8)
    ]
    assert [f.url for f in HubStore(ROOT).list(f"{ROOT}/train-")] == [f"{ROOT}/train-other.tar"]


@pytest.mark.parametrize("way", ["HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "XDG_CACHE_HOME"])
def test_the_token_comes_from_the_usual_places(hub, monkeypatch, tmp_path, way):  # noqa: F811
    hub.files["a.tar"], hub.token = make_shard(), "s3cret"
    folder = tmp_path / "huggingface" if way == "XDG_CACHE_HOME" else tmp_path
    folder.mkdir(exist_ok=True)
    (folder / "token").write_text("s3cret\n")
    value = {"HF_TOKEN": "s3cret", "HF_TOKEN_PATH": folder / "token"}.get(way, tmp_path)
    monkeypatch.setenv(way, str(value))
    data = wds.WebDataset(f"{ROOT}/a.tar", shardshuffle=False)
    assert len(list(data)) == 20


def test_the_token_is_not_handed_on_to_the_server_of_the_bytes(hub, monkeypatch):  # noqa: F811
    hub.files["a.tar"], hub.token = b"hello", "s3cret"
    monkeypatch.setenv("HF_TOKEN", "s3cret")
    assert open_url(f"{ROOT}/a.tar").read() == b"hello"
    assert all("s3cret" not in str(call.headers) for call in hub.bytes.calls)
    store = HubStore(f"{ROOT}/a.tar")
    assert "s3cret" in str(store.request("GET", f"{ROOT}/a.tar").headers)
    assert b"s3cret" not in pickle.dumps(store)


def test_a_private_repository_without_a_token_says_how_to_get_one(hub):  # noqa: F811
    hub.token = "s3cret"
    with pytest.raises(StorageError, match=r"no token was found.*HF_TOKEN"):
        open_url(f"{ROOT}/a.tar").read()


def test_a_wrong_token_is_refused_and_not_shown(hub, monkeypatch):  # noqa: F811
    hub.token = "s3cret"
    monkeypatch.setenv("HF_TOKEN", "wr0ng")
    with pytest.raises(StorageError, match="the token in use may not read it") as info:
        open_url(f"{ROOT}/a.tar").read()
    assert "wr0ng" not in str(info.value)


def test_a_gated_repository_says_so(hub):  # noqa: F811
    hub.gated = True
    with pytest.raises(StorageError, match="terms are not accepted"):
        open_url(f"{ROOT}/a.tar").read()


def test_a_missing_file_revision_and_repository_are_told_apart(hub):  # noqa: F811
    with pytest.raises(StorageError, match="has no file of that name in the revision 'main'"):
        open_url(f"{ROOT}/a.tar").read()
    with pytest.raises(StorageError, match="has no revision 'v9'"):
        open_url(f"{ROOT}@v9/a.tar").read()
    with pytest.raises(StorageError, match="there is no dataset me/other"):
        open_url("hf://datasets/me/other/a.tar").read()


def test_a_revision_with_slashes_is_one_part_of_the_address(hub):  # noqa: F811
    hub.files["a.tar"] = b"hello"
    assert open_url(f"{ROOT}@refs/pr/7/a.tar").read() == b"hello"
    assert hub.hub.calls[-1].raw_path == "/datasets/me/digits/resolve/refs%2Fpr%2F7/a.tar"


def test_a_repository_without_a_kind_is_a_model():
    place = parse_url("hf://me/model/weights.tar")
    assert (place.kind, place.repository, place.path) == ("models", "me/model", "weights.tar")


@pytest.mark.parametrize("url", ["hf://datasets/me", "hf://datasets/me/digits", f"{ROOT}@/a.tar"])
def test_an_incomplete_url_is_refused(url):
    with pytest.raises(UrlError, match="hf://"):
        open_url(url)


def test_writing_without_its_package_names_the_extra(hub, monkeypatch):  # noqa: F811
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingPackage, match=r"pip install .*\[hf\]"):
        open_url(f"{ROOT}/a.tar", "wb")


def test_a_refused_upload_is_an_error_that_names_the_file(hub):  # noqa: F811
    stream = open_url(f"{ROOT}/a.tar", "wb")
    stream.write(b"hello")
    hub.token = "s3cret"
    with pytest.raises(StorageError, match=r"hf://datasets/me/digits/a.tar"):
        stream.close()
    assert hub.files == {}


def test_a_token_that_was_replaced_is_read_again(hub, monkeypatch, tmp_path):  # noqa: F811
    (tmp_path / "token").write_text("old")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    hub.files["a.tar"], hub.token = b"x" * 100_000, "old"
    with open_url(f"{ROOT}/a.tar", part_bytes=10_000, ahead_bytes=20_000) as stream:
        first = stream.read(10)
        # Requests are under way: the new token must be there, whole, before it counts.
        (tmp_path / "next").write_text("new")
        (tmp_path / "next").replace(tmp_path / "token")
        hub.token = "new"
        assert len(first + stream.read()) == 100_000


def test_the_hub_is_asked_once_where_a_file_is(hub):  # noqa: F811
    hub.files["a.tar"] = bytes(range(256)) * 400
    for options in ({"part_bytes": 10_000, "ahead_bytes": 20_000}, {}):
        hub.resolved = 0
        with open_url(f"{ROOT}/a.tar", **options) as stream:
            assert stream.read() == hub.files["a.tar"]
            assert stream.read_range(5, 10) == hub.files["a.tar"][5:15]
        assert hub.resolved == 1


def test_an_address_that_has_run_out_is_asked_for_again(hub):  # noqa: F811
    hub.files["a.tar"] = bytes(range(256)) * 400
    with open_url(f"{ROOT}/a.tar", part_bytes=10_000, ahead_bytes=20_000) as stream:
        first = stream.read(10)
        hub.signature = "s2"
        assert first + stream.read() == hub.files["a.tar"]
    assert hub.resolved >= 2


def test_a_file_that_the_other_server_refuses_is_an_error(hub):  # noqa: F811
    hub.files["a.tar"] = bytes(100_000)
    with open_url(f"{ROOT}/a.tar", part_bytes=10_000, ahead_bytes=20_000) as stream:
        stream.read(10)
        hub.gated = True
        hub.signature = "s2"
        with pytest.raises(StorageError):
            stream.read()
