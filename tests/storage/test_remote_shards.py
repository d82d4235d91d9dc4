"""Data sets over remote and cached shards: the samples, the order and the resume are the same."""

from __future__ import annotations

import glob
import itertools
import os
import threading

import pytest
from range_server import serving

import penstock as wds
from penstock.errors import StorageError, UrlError
from penstock.shards.index import build_index
from penstock.storage import listing
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.client.store import Listed
from waiting import wait_for_threads


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A server with four shards of ten samples each, and a home of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("WDS_CACHE", raising=False)
    folder = tmp_path / "served"
    folder.mkdir()
    with wds.ShardWriter(str(folder / "x-%03d.tar"), maxcount=10) as sink:
        for number in range(40):
            sink.write({"__key__": f"s{number:03d}", "cls": number, "bin": os.urandom(20_000)})
    with serving(folder) as running:
        yield running


def shard_url(server):
    return server.url("x-{000..003}.tar")


def names(samples):
    return [(sample["__key__"], bytes(sample["bin"])) for sample in samples]


def expected(server):
    return names(wds.WebDataset(str(server.folder / "x-{000..003}.tar")))


def test_remote_shards_give_the_samples_of_local_ones(server):
    assert names(wds.WebDataset(shard_url(server))) == expected(server)


def test_the_next_shard_is_asked_for_before_the_current_one_ends(server):
    samples = iter(wds.WebDataset(shard_url(server)))
    next(samples)
    deadline = threading.Event()
    for _ in range(200):
        if server.sent("x-001.tar"):
            break
        deadline.wait(0.02)
    assert server.sent("x-001.tar")
    assert not server.sent("x-002.tar")
    samples.close()


def test_a_missing_shard_goes_to_the_handler_in_its_turn(server):
    (server.folder / "x-001.tar").unlink()
    met = []

    def note(error):
        met.append(error)
        return True

    keys = [sample["__key__"] for sample in wds.WebDataset(shard_url(server), handler=note)]
    assert keys == [f"s{n:03d}" for n in range(40) if not 10 <= n < 20]
    assert len(met) == 1
    assert isinstance(met[0], StorageError)
    with pytest.raises(StorageError):
        list(wds.WebDataset(shard_url(server)))


def test_the_second_epoch_comes_from_the_cache(server, tmp_path):
    dataset = wds.WebDataset(shard_url(server), cache_dir=str(tmp_path / "cache"))
    assert names(dataset) == expected(server)
    wait_for_threads("penstock-cache")
    first = sum(count for _, _, count in server.asked)
    assert names(dataset) == expected(server)
    more = sum(count for _, _, count in server.asked) - first
    assert more <= 4 * (64 << 10)  # the sources were asked for their version, no more
    assert all(entry.complete for entry in ShardCache(tmp_path / "cache").entries())


def test_the_variables_name_the_cache_and_its_size(server, tmp_path, monkeypatch):
    monkeypatch.setenv("WDS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("WDS_CACHE_SIZE", "600_000")
    assert names(wds.WebDataset(shard_url(server))) == expected(server)
    wait_for_threads("penstock-cache")
    taken = sum(item.stat().st_size for item in os.scandir(tmp_path / "cache"))
    assert 200_000 < taken <= 600_000


@pytest.mark.parametrize("cached", [False, True])
@pytest.mark.parametrize("given", [0, 3, 10, 25, 40])
def test_a_run_over_remote_shards_is_continued_where_it_was(server, tmp_path, cached, given):
    def dataset():
        cache = str(tmp_path / "cache") if cached else None
        return wds.WebDataset(shard_url(server), shardshuffle=4, seed=1, cache_dir=cache).shuffle(7)

    whole = names(dataset())
    running = dataset()
    start = names(itertools.islice(running, given))
    state = running.state_dict()
    again = dataset()
    again.load_state_dict(state)
    assert start == whole[:given]
    assert names(again) == whole[given:]
    wait_for_threads("penstock-cache")


@pytest.mark.parametrize("cached", [False, True])
def test_indexed_reading_works_on_remote_shards(server, tmp_path, cached):
    cache = str(tmp_path / "cache") if cached else None
    dataset = wds.WebDataset(shard_url(server), index=True, cache_dir=cache)
    assert names(dataset) == expected(server)
    random = wds.IndexedDataset(shard_url(server), cache_dir=cache)
    assert random[17]["cls"] == b"17"
    assert [sample["cls"] for sample in random.__getitems__([39, 0, 20])] == [b"39", b"0", b"20"]
    wait_for_threads("penstock-cache")
    assert random[18]["cls"] == b"18"


@pytest.mark.parametrize("mixed", [False, pytest.param(True, id="mixed")])
def test_a_state_of_indexed_shards_moves_between_a_folder_and_a_server(server, mixed):
    def make(urls):
        dataset = wds.WebDataset(urls, index=True, shardshuffle=4, seed=1)
        return wds.mix({"a": dataset}, seed=1) if mixed else dataset

    places = [os.path.join(server.folder, "x-{000..003}.tar"), shard_url(server)]
    for here, there in (places, places[::-1]):
        first = make(here)
        stream = iter(first)
        start = names(itertools.islice(stream, 5))
        state = first.state_dict()
        second = make(there)
        second.load_state_dict(state)
        assert names(second) == names(stream)
        assert start
        for name in glob.glob(os.path.join(server.folder, "*.parquet")):
            os.unlink(name)


def test_source_that_cannot_be_opened_costs_no_sample_of_the_others(server):
    def make(handler):
        good = wds.WebDataset(shard_url(server), index=True, shardshuffle=4, handler=handler)
        bad = wds.WebDataset(server.url("gone.tar"), index=True, shardshuffle=4, handler=handler)
        return wds.mix({"good": good, "bad": bad}, [3, 1], until="forever", seed=1)

    skipped = []

    def skip(error):
        skipped.append(error)
        return len(skipped) < 40

    skipping = make(skip)
    (stage,) = skipping.pipeline
    parts = stage.order(1, 0)._find_block(0).parts.tolist()
    kept = [s["__key__"] for s in itertools.islice(skipping, parts[:40].count(0))]
    assert len(kept) == len(set(kept)) >= 25
    stream = iter(make(wds.reraise_exception))
    assert [next(stream)["__key__"] for _ in range(parts.index(1))] == kept[: parts.index(1)]
    with pytest.raises(StorageError, match="gone"):
        next(stream)


def test_neighbouring_samples_are_read_in_one_request(server):
    index = build_index(shard_url(server), str(server.folder / "all.index.parquet"))
    server.asked.clear()
    assert names(wds.WebDataset(shard_url(server), index=index, lanes=1)) == expected(server)
    per_shard = [sum(name == f"x-00{n}.tar" for name, _, _ in server.asked) for n in range(4)]
    assert max(per_shard) <= 4


def test_remote_patterns_are_looked_up_on_first_use(monkeypatch):
    asked, depths = [], []

    class Store:
        def __init__(self, url):
            pass

        def list(self, prefix, *, deep):
            asked.append(prefix)
            depths.append(deep)
            for name in ("a-1.tar", "a-0.tar", "b.tar", "deep/a-2.tar", "notes.txt", "c.tar.gz"):
                yield Listed(f"s3://bucket/train/{name}", 1)

    monkeypatch.setattr("penstock.storage.objects.s3.S3Store", Store)
    shards = wds.SimpleShardList("s3://bucket/train/a-*.tar")
    assert asked == []
    assert shards.urls == ["s3://bucket/train/a-0.tar", "s3://bucket/train/a-1.tar"]
    assert shards.urls is shards.urls
    assert asked == ["s3://bucket/train/a-"]
    found = listing.list_urls("s3://bucket/train/")
    assert [url.rsplit("/", 1)[1] for url in found] == ["a-0.tar", "a-1.tar", "b.tar", "c.tar.gz"]
    assert "s3://bucket/train/deep/a-2.tar" in listing.list_urls("s3://bucket/train/**/a-?.tar")
    assert listing.list_urls("s3://bucket/train/a-[!0].tar") == ["s3://bucket/train/a-1.tar"]
    with pytest.raises(UrlError, match="matches nothing"):
        listing.list_urls("s3://bucket/train/z*.tar")
    # Folders below are listed only for the pattern that looks into them.
    assert depths == [False, False, True, False, False]


# ── shards that somebody has copied into the cache's folder ─────────────────────────────


@pytest.mark.parametrize("deep", [False, True], ids=["by file name", "by path"])
@pytest.mark.parametrize("index", [False, True])
def test_a_shard_copied_into_the_cache_is_used_instead_of_fetched(server, tmp_path, deep, index):
    for number in range(4):
        source = server.folder / f"x-{number:03d}.tar"
        target = server.folder / "train" / source.name
        target.parent.mkdir(exist_ok=True)
        source.rename(target)
        copy = tmp_path / "cache" / ("train" if deep else "") / source.name
        copy.parent.mkdir(exist_ok=True, parents=True)
        copy.write_bytes(target.read_bytes())
    urls = server.url("train/x-{000..003}.tar")
    wanted = names(wds.WebDataset(str(server.folder / "train" / "x-{000..003}.tar")))
    more = {"index": build_index(urls, tmp_path / "i.parquet")} if index else {}
    server.asked.clear()
    cache = ShardCache(tmp_path / "cache", 100_000)  # too small for any of them
    dataset = wds.WebDataset(urls, cache_dir=cache, shardshuffle=False, **more)
    found = {sample["__key__"]: sample for sample in dataset}
    assert sorted(names(found.values())) == sorted(wanted)
    for sample in found.values():
        assert os.path.dirname(sample["__local_path__"]) == str(copy.parent)
    assert all(count <= 64 << 10 for _, _, count in server.asked)  # only their sizes
    assert cache.opened[1] == 0
    assert cache.entries() == []
    cache.clear()
    assert len(list(copy.parent.glob("*.tar"))) == 4


def test_a_copy_of_another_size_is_not_used(server, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "x-000.tar").write_bytes(b"something else")
    cache = ShardCache(tmp_path / "cache")
    assert names(wds.WebDataset(shard_url(server), cache_dir=cache)) == expected(server)
    wait_for_threads("penstock-cache")
    assert cache.opened == (0, 4)
    assert (tmp_path / "cache" / "x-000.tar").read_bytes() == b"something else"


def test_without_a_check_a_copy_is_used_without_a_network(server, tmp_path):
    wanted, url = expected(server), shard_url(server)
    (tmp_path / "cache").mkdir()
    for path in server.folder.iterdir():
        path.rename(tmp_path / "cache" / path.name)
    server.asked.clear()
    cache = ShardCache(tmp_path / "cache", check=False)
    assert names(wds.WebDataset(url, cache_dir=cache)) == wanted
    assert server.asked == []


def test_a_url_cannot_name_a_file_outside_of_the_folder(server, tmp_path):
    outside = tmp_path / "a.tar"
    outside.write_bytes(b"outside")
    (tmp_path / "cache").mkdir()
    cache = ShardCache(tmp_path / "cache", check=False)
    for path in ("../a.tar", "x/../../a.tar", f"/{outside}", str(outside), "..", "", ".lock"):
        assert cache._open_copy(f"s3://bucket/{path}") is None


@pytest.mark.parametrize("index", [False, True])
def test_samples_of_cached_shards_name_their_file(server, tmp_path, index):
    """Also while the shard arrives: the file is there as soon as it is complete."""
    options = {"index": build_index(shard_url(server), tmp_path / "i.parquet")} if index else {}
    options.update(cache_dir=tmp_path / "cache", shardshuffle=False)
    first = {s["__key__"]: s for s in wds.WebDataset(shard_url(server), **options)}
    wait_for_threads("penstock-cache")
    again = {s["__key__"]: s for s in wds.WebDataset(shard_url(server), **options)}
    assert first == again
    if not index:  # with one, only the samples that are asked for are fetched
        for sample in again.values():
            with open(sample["__local_path__"], "rb") as file:
                assert sample["bin"] in file.read()
    items = wds.IndexedDataset(shard_url(server), local_paths=True, cache_dir=tmp_path / "cache")
    for sample in (items[3], *items.__getitems__([3, 25])):
        assert sample["__local_path__"] == again[sample["__key__"]]["__local_path__"]


def test_a_sample_that_is_made_again_names_the_same_file(server, tmp_path):
    def dataset():
        options = {"cache_dir": tmp_path / "cache", "shardshuffle": False, "seed": 1}
        return wds.WebDataset(shard_url(server), **options).shuffle(20)

    whole = [sample["__local_path__"] for sample in dataset()]
    running = dataset()
    list(itertools.islice(running, 7))
    again = dataset()
    again.load_state_dict(running.state_dict())
    assert [sample["__local_path__"] for sample in again] == whole[7:]


def test_samples_that_the_cache_does_not_keep_name_no_file(server, tmp_path):
    cache = ShardCache(tmp_path / "cache", 1000)
    with pytest.warns(UserWarning, match="without the cache"):
        samples = list(wds.WebDataset(shard_url(server), cache_dir=cache))
    assert not any("__local_path__" in sample for sample in samples)
