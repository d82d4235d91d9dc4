"""Every stage, stopped after any item, goes on as if it had not been."""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import random

import cbor2
import msgpack
import pytest
from numbered import copies, is_odd, noisy, not_fifth, number

import penstock as wds
import penstock.batches
import penstock.stages
from penstock.datasets.map_samples import get_items
from penstock.documents import documents
from penstock.stages.cache_files import SampleFileCache
from penstock.stages.reading.record_files import Records
from penstock.stages.sources.indexed_samples import IndexedSamples
from penstock.stages.sources.mix import Mix
from penstock.stages.sources.mixed_samples import MixedSamples
from penstock.stages.sources.source_stages import SourceStages
from penstock.stages.sources.split import SingleNodeOnly, Split, SplitByNode, SplitByWorker
from penstock.stages.sources.stream_mix import StreamMix
from penstock.stages.stage import Each, Iterated, Many, Source, Stage
from penstock.testing import assert_resumes

ABSTRACT = {Stage, Each, Many, Source, Split, Records, SampleFileCache, Mix, Iterated}


def read(urls, *stages, **options):
    """The stages behind the samples of streamed shards."""
    shards = [wds.SimpleShardList(urls), wds.split_by_worker, wds.tarfile_to_samples()]
    return wds.DataPipeline(*shards, *stages, **options)


def behind(*stages):
    return lambda urls, lanes: read(urls, *stages, lanes=lanes)


def source(make, *stages):
    return lambda urls, lanes: wds.DataPipeline(make(urls), *stages, lanes=lanes)


def indexed(urls, **options):
    return IndexedSamples(urls, window=2, **options)


def packed(urls, pack, stage, lanes):
    """Files of records in place of shards, beside them."""
    paths = [f"{url}.{stage.name}" for url in urls]
    for place, path in enumerate(paths):
        if os.path.exists(path):
            continue  # a state is refused if the files were written again
        with open(path, "wb") as file:
            for n in range(5):
                file.write(pack({"__key__": f"{place}-{n}", "cls": n}))
    return wds.DataPipeline(
        wds.SimpleShardList(paths), wds.split_by_worker, stage, wds.shuffle(3), lanes=lanes
    )


TABLE = {f"s{n:04d}": {"more": n} for n in range(24)}

# Behind most stages stands a shuffle, so that the stage has to make its items again, too.
CASES = {
    wds.map: behind(wds.map(number), wds.shuffle(4), wds.map(noisy, rng=True), wds.shuffle(3)),
    wds.map_dict: behind(wds.map_dict(cls=int), wds.shuffle(4)),
    wds.map_tuple: behind(wds.to_tuple("cls", "txt"), wds.map_tuple(int, None), wds.shuffle(4)),
    wds.select: behind(wds.select(is_odd), wds.shuffle(4)),
    wds.rsample: behind(wds.rsample(0.6), wds.shuffle(4)),
    wds.slice: behind(wds.slice(2, 17, 3), wds.shuffle(4)),
    wds.rename: behind(wds.rename(text="txt"), wds.shuffle(4)),
    wds.rename_keys: behind(wds.rename_keys(text="*txt"), wds.shuffle(4)),
    wds.associate: behind(wds.associate(TABLE), wds.shuffle(4)),
    wds.to_tuple: behind(wds.to_tuple("cls", "txt"), wds.shuffle(4)),
    wds.extract_keys: behind(wds.extract_keys("*.txt", "cls"), wds.shuffle(4)),
    wds.decode: behind(wds.decode(), wds.shuffle(4)),
    wds.xdecode: behind(wds.xdecode(cls=json.load, must_decode=False), wds.shuffle(4)),
    wds.shuffle: behind(wds.shuffle(9, initial=2), wds.map(number), wds.shuffle(5, seed=3)),
    wds.detshuffle: behind(wds.map(number), wds.detshuffle(7, initial=3)),
    wds.info: behind(wds.info(n=0), wds.shuffle(4)),
    wds.log_keys: behind(wds.log_keys(None), wds.shuffle(4)),
    wds.batched: behind(wds.to_tuple("cls", "txt"), wds.batched(5), wds.shuffle(2)),
    wds.listed: behind(wds.map(number), wds.listed(4, partial=False), wds.shuffle(2)),
    wds.unbatched: behind(
        wds.to_tuple("cls", "txt"), wds.batched(5), wds.unbatched(), wds.shuffle(4), wds.batched(3)
    ),
    wds.to_device: behind(wds.map(number), wds.to_device("cpu"), wds.shuffle(4)),
    wds.unlisted: behind(wds.map(number), wds.listed(5), wds.unlisted(), wds.shuffle(4)),
    wds.dynamic_bucketed_batch: behind(
        wds.dynamic_bucketed_batch(
            "txt",
            bytes.__len__,
            buffersize=5,
            collate_fn=None,
            sampler_kwargs={"target_batch_numel": 20},
        ),
        wds.shuffle(2),
    ),
    wds.packed: behind(
        wds.map(lambda sample: list(range(1, 2 + number(sample) % 5))),
        wds.packed(8, buffer=5),
        wds.shuffle(2),
    ),
    documents: behind(
        wds.map(lambda s: {**s, "json": {"text_list": [str(s["cls"])], "image_info": []}}),
        documents(max_text=1),
        wds.shuffle(4),
    ),
    wds.interleaved_to_dict: behind(wds.interleaved_to_dict("cls;txt"), wds.shuffle(4)),
    wds.repeat: behind(wds.map(number), wds.shuffle(4), wds.repeat(3), wds.listed(5)),
    wds.resampled: lambda urls, lanes: wds.DataPipeline(
        wds.SimpleShardList(urls), wds.resampled(5), wds.tarfile_to_samples(), lanes=lanes
    ),
    SplitByNode: lambda urls, lanes: wds.WebDataset(
        urls, nodesplitter=wds.split_by_node, shardshuffle=3, lanes=lanes
    ),
    SplitByWorker: lambda urls, lanes: wds.WebDataset(
        urls, workersplitter=wds.split_by_worker, lanes=lanes
    ),
    SingleNodeOnly: lambda urls, lanes: wds.WebDataset(urls, shardshuffle=3, seed=4, lanes=lanes),
    wds.tarfile_to_samples: lambda urls, lanes: wds.WebDataset(
        urls, shardshuffle=3, select_files=lambda name: "cls" in name, lanes=lanes
    ).shuffle(5),
    wds.cbors_to_samples: lambda urls, lanes: packed(
        urls, cbor2.dumps, wds.cbors_to_samples(), lanes
    ),
    wds.msgpacks_to_samples: lambda urls, lanes: packed(
        urls, msgpack.packb, wds.msgpacks_to_samples(), lanes
    ),
    wds.SimpleShardList: source(
        lambda urls: wds.SimpleShardList(urls, seed=5),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
    ),
    wds.ResampledShards: source(
        lambda urls: wds.ResampledShards(urls, 4, seed=3), wds.tarfile_to_samples(), wds.shuffle(4)
    ),
    IndexedSamples: source(indexed, wds.map(number), wds.select(not_fifth), wds.shuffle(4)),
    wds.RoundRobin: source(
        lambda urls: wds.RoundRobin([indexed(urls), indexed(urls[:1])], longest=True),
        wds.shuffle(4),
    ),
    wds.RandomMix: source(
        lambda urls: wds.RandomMix([read(urls), indexed(urls)], [2, 1], longest=True),
        wds.shuffle(4),
    ),
    wds.MapSamples: source(
        lambda urls: wds.MapSamples(wds.IndexedDataset(urls), shuffle=True),
        wds.map(number),
        wds.shuffle(4),
    ),
    get_items: source(
        lambda urls: wds.MapSamples(range(20), shuffle=True),
        get_items([{"cls": n} for n in range(20)]),
        wds.map(number),
        wds.shuffle(4),
    ),
    wds.MockDataset: source(lambda urls: wds.MockDataset({"cls": 1}, 10), wds.shuffle(4)),
}
REPLAYED = {
    wds.Cached: lambda folder: wds.Cached(),
    wds.LMDBCached: lambda folder: wds.LMDBCached(folder / "lmdb", map_size=1e7),
    wds.DBCache: lambda folder: wds.DBCache(str(folder / "kept.db"), 100),
}
WITHOUT_LANES = {wds.slice, wds.MockDataset}
"""They speak of one whole stream: with lanes there would be as many."""
NOT_RESUMABLE = {wds.DirectoryShardList}
"""Its shards come and go: a folder that others fill and empty has no order to go on in."""
ELSEWHERE = {wds.planned, wds.PlannedSamples, MixedSamples, SourceStages, StreamMix}
"""They need an index: test_planned_batches.py and test_mixtures.py stop them after any item."""


@pytest.mark.parametrize("lanes", [None, 3])
@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_a_stage_goes_on_after_any_item(urls, kind, lanes):
    if lanes and kind in WITHOUT_LANES:
        with pytest.raises(wds.PipelineError, match="lanes"):
            list(CASES[kind](urls, lanes))
        return
    size_bytes = assert_resumes(lambda: CASES[kind](urls, lanes))
    assert 100 < size_bytes < 12_000


def subclasses(kind):
    if type(kind) is not type:  # a class that is torch's too, made when torch asked
        return set()
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def test_every_stage_has_a_case():
    for package in (penstock.stages, penstock.batches):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    ours = {kind for kind in subclasses(Stage) if kind.__module__.startswith("penstock.")}
    compat = {kind for kind in ours if kind.__module__.startswith("penstock.compat")}
    assert ours - compat - ABSTRACT == set(CASES) | set(REPLAYED) | NOT_RESUMABLE | ELSEWHERE


@pytest.mark.parametrize("kind", REPLAYED, ids=lambda kind: kind.__name__)
def test_a_cache_goes_on_by_replay_and_says_so(urls, tmp_path, kind):
    def make(folder):
        folder.mkdir()
        return read(urls, wds.map(number), REPLAYED[kind](folder), wds.shuffle(4))

    first = make(tmp_path / "first")
    stream = iter(first)
    for _ in range(7):
        next(stream)
    state = json.loads(json.dumps(first.state_dict()))
    second = make(tmp_path / "second")
    second.load_state_dict(state)
    with pytest.warns(UserWarning, match=rf"{kind.__name__}\(.*cannot save what it keeps"):
        rest = list(second)
    assert rest == list(stream)


def every_other(source):
    for place, item in enumerate(source):
        if place % 2:
            yield item


@pytest.mark.parametrize("lanes", [None, 3])
@pytest.mark.filterwarnings("ignore:.*cannot save what it keeps")
def test_a_users_generator_goes_on_by_replay(urls, lanes):
    assert_resumes(lambda: read(urls, wds.map(number), every_other, wds.shuffle(3), lanes=lanes))


def test_the_stage_that_costs_a_replay_is_named(urls):
    first = read(urls, every_other)
    next(iter(first))
    second = read(urls, every_other)
    second.load_state_dict(first.state_dict())
    with pytest.warns(UserWarning, match="every_other cannot save what it keeps"):
        next(iter(second))


def count_up():
    return iter(range(9))


def test_an_iterable_that_is_no_sequence_goes_on_by_replay():
    make = lambda: wds.DataPipeline(count_up, wds.shuffle(3))  # noqa: E731
    first = make()
    stream = iter(first)
    next(stream), next(stream)
    second = make()
    second.load_state_dict(first.state_dict())
    with pytest.warns(UserWarning, match="count_up cannot save"):
        assert list(second) == list(stream)


@pytest.mark.parametrize("lanes", [None, 4])
def test_an_expanding_stage_goes_on_inside_its_item(urls, lanes):
    assert_resumes(lambda: read(urls, wds.map(number), copies(4), lanes=lanes))
    assert_resumes(
        lambda: read(urls, wds.map(number), copies(4), wds.shuffle(5), wds.listed(3), lanes=lanes)
    )


def test_compressed_shards_go_on_too(tmp_path, urls):
    import gzip

    packed = []
    for url in urls:
        packed.append(str(tmp_path / (url.rsplit("/", 1)[1] + ".gz")))
        with open(url, "rb") as plain, gzip.open(packed[-1], "wb") as file:
            file.write(plain.read())
    assert_resumes(lambda: wds.WebDataset(packed, shardshuffle=3).shuffle(5).map(number))


def test_a_generator_of_ones_own_goes_on_too(urls):
    make = lambda: read(urls, wds.map(number), wds.shuffle(5, rng=random.Random(3)))  # noqa: E731
    assert_resumes(make)


@pytest.mark.parametrize("lanes", [None, 3])
@pytest.mark.parametrize("length", [5, 24, 40])
def test_epochs_of_a_set_length_go_on_over_passes(urls, length, lanes):
    assert_resumes(
        lambda: read(urls, wds.map(number), wds.shuffle(4), lanes=lanes).with_epoch(length)
    )
    assert_resumes(
        lambda: wds.DataPipeline(indexed(urls), wds.map(number), lanes=lanes).with_epoch(length)
    )


@pytest.mark.parametrize("lanes", [None, 3])
def test_endless_pipelines_go_on(urls, lanes):
    def make():
        data = wds.WebDataset(urls, resampled=True, lanes=lanes).shuffle(7).map(number).listed(4)
        return data.with_epoch(0)

    assert_resumes(make, limit=20)
    assert_resumes(
        lambda: read(urls, wds.map(number), wds.repeat(), wds.shuffle(9), lanes=lanes), limit=60
    )


def test_the_epochs_behind_a_resumed_one_are_the_same_too(urls):
    def make():
        return wds.WebDataset(urls, index=True, shardshuffle=2, seed=3).shuffle(5).map(number)

    first = make()
    epochs = [list(first) for _ in range(4)]
    assert len({tuple(epoch) for epoch in epochs}) == 4
    halfway = make()
    list(halfway)
    stream = iter(halfway)
    begun = [next(stream) for _ in range(9)]
    second = make()
    second.load_state_dict(halfway.state_dict())
    assert [begun + list(second), list(second), list(second)] == epochs[1:]


def test_a_state_between_two_epochs_begins_the_next(urls):
    first = wds.WebDataset(urls, index=True, shardshuffle=2).map(number)
    list(first)
    second = wds.WebDataset(urls, index=True, shardshuffle=2).map(number)
    second.load_state_dict(first.state_dict())
    assert list(second) == list(first)


def test_a_pipeline_that_forgets_is_found():
    class forgetful(wds.DataPipeline):
        def load_state_dict(self, state):
            pass

        def state_dict(self):
            return {}

    with pytest.raises(AssertionError, match="at item 1, item 1 differs: it: 1 became 0"):
        assert_resumes(lambda: forgetful(range(5)))


def test_a_state_that_differs_is_found():
    class drifting(wds.DataPipeline):
        resumed = 0

        def load_state_dict(self, state):
            super().load_state_dict(state)
            self.resumed = 1

        def state_dict(self):
            return {**super().state_dict(), "seed": 0 if self._current is None else self.resumed}

    with pytest.raises(AssertionError, match=r"state after item 0 .*\['seed'\]: 0 became 1"):
        assert_resumes(lambda: drifting(range(5)))
