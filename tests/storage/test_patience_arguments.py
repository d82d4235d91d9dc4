"""How long a failing server is put up with is an argument of all that read shards."""

from __future__ import annotations

import itertools
import pickle

import pytest
from faulty import FaultyServer, good, status

import penstock as wds
from penstock.errors import PipelineError, StorageError
from penstock.shards.index import build_index
from penstock.storage import open_url
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.schemes import gopen_schemes
from tar_files import tar_bytes

TWICE = RetryPolicy(retries=2, backoff_s=0.01)
NEVER = RetryPolicy(retries=0)


def shard(first):
    return tar_bytes((f"{n:03}.bin", bytes([n]) * 5000) for n in range(first, first + 10))


@pytest.fixture
def server(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("WDS_CACHE", raising=False)
    with FaultyServer(a=shard(0), b=shard(10)) as server:
        yield server


def urls(server):
    return [server.url("a"), server.url("b")]


@pytest.fixture
def index(server, tmp_path):
    return build_index(urls(server), tmp_path / "x.index.parquet")


@pytest.fixture(params=["streamed", "cached"])
def cache_dir(request, tmp_path):
    return str(tmp_path / "cache") if request.param == "cached" else None


def gives_up(tries):
    words = "1 try" if tries == 1 else f"{tries} tries"
    return pytest.raises(StorageError, match=rf"\(after {words}")


@pytest.mark.parametrize(("patience", "tries"), [(TWICE, 3), (NEVER, 1)])
def test_a_data_set_has_it(server, cache_dir, patience, tries):
    server.always = status(503)
    with gives_up(tries):
        list(wds.WebDataset(server.url(), cache_dir=cache_dir, patience=patience))
    assert len(server.asked) == tries


def test_the_next_shard_has_it(server, cache_dir):
    def fails_for_b(server, connection, asked):
        (status(503) if "/b" in asked.path else good())(server, connection, asked)

    server.always = fails_for_b
    samples = iter(wds.WebDataset(urls(server), cache_dir=cache_dir, patience=TWICE))
    assert len(list(itertools.islice(samples, 10))) == 10
    with gives_up(3):
        next(samples)


def test_an_index_has_it(server, index, cache_dir):
    server.always = status(503)
    options = {"cache_dir": cache_dir, "patience": TWICE}
    with gives_up(3):
        list(wds.WebDataset(urls(server), index=index, **options))
    with gives_up(3):
        wds.IndexedDataset(urls(server), index, **options)[3]
    with gives_up(3):
        wds.IndexedDataset(urls(server), index, **options).__getitems__([3, 17])


def test_samples_that_are_fetched_again_have_it(server, cache_dir):
    def dataset():
        options = {"cache_dir": cache_dir, "patience": TWICE, "seed": 1}
        return wds.WebDataset(server.url(), **options).shuffle(8)

    running = dataset()
    list(itertools.islice(running, 2))
    state = running.state_dict()
    again = dataset()
    again.load_state_dict(state)
    server.asked.clear()
    server.always = status(503)
    with gives_up(3):
        list(again)


def test_a_cache_has_its_own_and_a_data_set_comes_before_it(server, tmp_path):
    cache = ShardCache(tmp_path / "cache", patience=NEVER)
    server.always = status(503)
    with gives_up(1):
        cache.open(server.url())
    with gives_up(1):
        list(wds.WebDataset(server.url(), cache_dir=cache))
    with gives_up(3):
        list(wds.WebDataset(server.url(), cache_dir=cache, patience=TWICE))


def test_what_is_read_ahead_of_the_cache_has_it(server, tmp_path):
    server.plan.extend([good(cut=0, end="stall")])
    patience = RetryPolicy(retries=2, backoff_s=0.01, read_timeout_s=0.2)
    server.always = status(503)
    with gives_up(3), ShardCache(tmp_path / "cache", patience=patience).open(server.url()) as file:
        file.read_range(20_000, 10)


def test_places_without_such_limits_are_opened_without(tmp_path, monkeypatch):
    path = tmp_path / "a.tar"
    path.write_bytes(shard(0))
    monkeypatch.setitem(gopen_schemes, "mine", lambda url, mode, bufsize: path.open(mode))
    for url in (str(path), f"file:{path}", f"pipe:cat {path}", "mine:a"):
        assert len(list(wds.WebDataset(url, patience=TWICE))) == 10


def test_it_is_shown_and_goes_to_workers(server, index, tmp_path):
    streamed = wds.WebDataset(urls(server), patience=TWICE)
    indexed = wds.WebDataset(urls(server), index=index, patience=TWICE)
    assert "patience=RetryPolicy(retries=2, backoff_s=0.01)" in repr(streamed.pipeline[-1])
    assert "patience=RetryPolicy(retries=2, backoff_s=0.01)" in repr(indexed.pipeline[0])
    items = wds.IndexedDataset(urls(server), index, patience=TWICE)
    cache = ShardCache(tmp_path / "cache", 10**6, patience=TWICE)
    copies = [pickle.loads(pickle.dumps(one)) for one in (streamed, indexed, items, cache)]
    assert repr(TWICE) in repr(copies[2])
    assert repr(TWICE) in repr(copies[3])
    server.always = status(503)
    for read in (
        lambda: list(copies[0]),
        lambda: list(copies[1]),
        lambda: copies[2][0],
        lambda: copies[3].open(server.url()),
    ):
        with gives_up(3):
            read()


@pytest.mark.parametrize("indexed", [False, True])
def test_a_state_goes_on_with_another_patience(server, index, indexed):
    def dataset(patience):
        options = {"index": index} if indexed else {}
        return wds.WebDataset(urls(server), patience=patience, **options)

    running = dataset(TWICE)
    first = [sample["__key__"] for sample in itertools.islice(running, 7)]
    again = dataset(None)
    again.load_state_dict(running.state_dict())
    assert first + [sample["__key__"] for sample in again] == [f"{n:03}" for n in range(20)]


def test_anything_else_is_refused(server):
    with pytest.raises(PipelineError, match=r"patience is a RetryPolicy\(retries"):
        open_url(server.url(), patience=3)
