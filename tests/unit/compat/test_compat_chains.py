"""Data sets that wrap one another, and shard lists that deal themselves out."""

from __future__ import annotations

import pickle

import pytest

import penstock as wds
from penstock.context import Context

URLS = [f"{number}.tar" for number in range(12)]


def add(source, n, times=1):
    return (item + n * times for item in source)


class Numbers:
    def __iter__(self):
        return iter([1, 2, 3])


class Chain(Numbers, wds.Composable, wds.Shorthands):
    pass


# ── processors ──────────────────────────────────────────────────────────────────────────────────


def test_a_processor_applies_a_function_of_the_iterator_with_its_arguments():
    assert list(wds.Processor([1, 2], add, 10, times=2)) == [21, 22]
    assert list(wds.Processor([1, 2], add, _kwa={"n": 10})) == [11, 12]


def test_a_processor_without_a_data_set_waits_for_one():
    waiting = wds.Processor(add, 10)
    assert list(waiting([1, 2])) == [11, 12]
    assert list(waiting(wds.Processor([1, 2], add, 1))) == [12, 13]
    assert list(waiting.source_([5])) == [15]
    with pytest.raises(wds.PipelineError, match="no data set"):
        iter(waiting)


def test_a_processor_takes_stages_of_the_library_and_curried_functions():
    assert list(wds.Processor([1, 2], wds.map, str)) == ["1", "2"]
    assert list(wds.Processor(wds.map, str)([1, 2])) == ["1", "2"]
    assert list(wds.Processor([1, 2], wds.split_by_worker)) == [1, 2]
    assert list(wds.Processor([1, 2], wds.pipelinefilter(add)(3))) == [4, 5]


def test_a_processor_is_a_pipeline_with_all_its_methods():
    processor = wds.Processor(Numbers(), add, 1)
    assert list(processor.map(str).listed(2)) == [["2", "3"], ["4"]]
    assert list(processor.then(add, 10)) == [12, 13, 14]


def test_a_processor_needs_a_function():
    with pytest.raises(wds.PipelineError, match="needs a function"):
        wds.Processor([1, 2])


# ── classes of one's own ────────────────────────────────────────────────────────────────────────


def test_a_class_of_ones_own_gets_the_methods_of_a_pipeline():
    assert list(Chain().map(str)) == ["1", "2", "3"]
    assert list(Chain().then(add, 1)) == [2, 3, 4]
    assert list(Chain().repeat(2)) == [1, 2, 3, 1, 2, 3]
    assert list(Chain().with_epoch(4)) == [1, 2, 3, 1]
    assert len(Chain().with_length(7)) == 7
    assert len(list(Chain().ddp_equalize(5))) == 5


def test_equal_epochs_share_the_length_among_the_ranks(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    equal = Chain().ddp_equalize(10, with_length=True)
    assert len(list(equal)) == len(equal) == 5
    assert len(list(Chain().with_epoch(10, by_node=True))) == 5


def test_compose_makes_a_class_read_from_this_one():
    class Doubled(wds.Composable):
        def __init__(self, times):
            self.times = times

        def __iter__(self):
            return (item * self.times for item in self.source)

    assert list(Chain().compose(Doubled, 3)) == [3, 6, 9]


def test_the_first_samples_are_kept_in_a_database(tmp_path):
    name = str(tmp_path / "kept.db")
    assert list(Chain().map(lambda n: {"n": n}).compose(wds.DBCache(name, 2))) == [
        {"n": 1},
        {"n": 2},
    ]


def test_a_stage_of_ones_own_has_run(monkeypatch):
    class Plus(wds.PipelineStage):
        def run(self, source):
            return (item + 1 for item in source)

    assert list(wds.DataPipeline([1, 2].__iter__, Plus())) == [2, 3]
    assert isinstance(wds.shuffle(3), wds.PipelineStage)
    assert isinstance(wds.WebDataset("a.tar"), wds.PipelineStage)


def test_the_fluid_interface_can_be_mixed_into_a_pipeline_of_ones_own():
    class Mine(wds.DataPipeline, wds.FluidInterface):
        pass

    assert list(Mine([1, 2].__iter__).map(str)) == ["1", "2"]


# ── lengths and epochs ──────────────────────────────────────────────────────────────────────────


def test_with_length_gives_a_length_and_can_be_pickled():
    dataset = wds.with_length([1, 2], 5)
    copy = pickle.loads(pickle.dumps(dataset))
    assert (len(dataset), len(copy), list(copy)) == (5, 5, [1, 2])


def test_with_epoch_begins_anew_every_time():
    dataset = wds.with_epoch([1, 2, 3], 2)
    assert [list(dataset), list(dataset)] == [[1, 2], [1, 2]]


def test_a_chopped_data_set_goes_on_where_it_ended():
    dataset = wds.ChoppedDataset([1, 2, 3], 2, nominal=9)
    assert [list(dataset), list(dataset), list(dataset)] == [[1, 2], [3, 1], [2, 3]]
    assert len(dataset) == 9
    assert list(pickle.loads(pickle.dumps(dataset))) == [1, 2]
    assert len(wds.ResizedDataset([1, 2, 3])) == 3
    assert list(wds.ChoppedDataset([], 2)) == []


def test_a_repeated_data_set_ends_after_so_many_items():
    repeatedly = wds.extradatasets.repeatedly
    assert list(repeatedly([1, 2], nepochs=2)) == [1, 2, 1, 2]
    assert list(repeatedly([1, 2], nbatches=3)) == [1, 2, 1]


def test_repeatedly_counts_passes_batches_and_samples():
    batches = [([1, 2],), ([3],)]
    assert list(wds.repeatedly(batches, nepochs=2)) == batches * 2
    assert list(wds.repeatedly(batches, nbatches=3)) == [*batches, batches[0]]
    assert list(wds.repeatedly(batches, nsamples=4)) == [*batches, batches[0]]
    assert list(wds.repeatedly([])) == []


# ── the class Dataset ───────────────────────────────────────────────────────────────────────────


def test_dataset_takes_the_arguments_of_its_time():
    dataset = wds.Dataset(
        URLS, length=7, shuffle=True, splitter=None, handler=wds.warn_and_continue
    )
    assert len(dataset) == 7
    assert "shuffle(100)" in dataset.describe()
    assert "split_by_worker" not in dataset.describe()
    assert not hasattr(wds.Dataset(URLS, length=True), "__len__")
    assert "split_by_worker" in wds.Dataset(URLS).describe()


def test_multi_dataset_is_a_loader():
    pytest.importorskip("torch")
    data = wds.DataPipeline(lambda: iter([{"a": 1}, {"a": 2}]))
    loader = wds.MultiDataset(data, workers=0, nominal=2)
    assert list(loader) == [{"a": 1}, {"a": 2}]
    assert len(loader) == 2


# ── shard lists ─────────────────────────────────────────────────────────────────────────────────


def urls_of(shards, context):
    return [shard["url"] for shard in shards.start(None, context)]


def places(epoch=0):
    return [Context(0, epoch, rank, 2, worker, 3) for rank in range(2) for worker in range(3)]


@pytest.mark.parametrize("epoch_shuffle", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_shard_goes_to_exactly_one_worker(epoch_shuffle, shuffle):
    shards = wds.PytorchShardList(URLS, epoch_shuffle=epoch_shuffle, shuffle=shuffle)
    parts = [urls_of(shards, place) for place in places()]
    assert sorted(url for part in parts for url in part) == sorted(URLS)
    assert {len(part) for part in parts} == {2}


def test_without_splitting_everyone_gets_every_shard():
    shards = wds.PytorchShardList(URLS, shuffle=False, split_by_worker=False, split_by_node=False)
    assert all(urls_of(shards, place) == URLS for place in places())
    by_node = wds.PytorchShardList(URLS, shuffle=False, split_by_worker=False)
    assert urls_of(by_node, places()[0]) == URLS[::2]


def test_an_epoch_shuffle_deals_out_other_shards_every_epoch():
    shards = wds.PytorchShardList(URLS, epoch_shuffle=True)
    assert urls_of(shards, places(0)[0]) == urls_of(shards, places(0)[0])
    assert {*urls_of(shards, places(0)[0])} != {*urls_of(shards, places(1)[0])}
    later = urls_of(shards, places(5)[0])
    shards.set_epoch(5)
    assert urls_of(shards, places(0)[0]) == later


def test_a_shard_tells_who_reads_it():
    (shard,) = wds.PytorchShardList("a.tar")
    assert shard["__url__"] == "a.tar"
    assert (shard["__worker__"], shard["__rank__"]) == ("(0, 1)", "(0, 1)")
    assert "__nodeinfo__" in shard


def test_a_list_that_splits_itself_is_not_split_again_by_web_dataset():
    for shards in (wds.PytorchShardList(URLS), wds.ShardList(URLS), wds.ResampledShards(URLS)):
        assert "split_by" not in wds.WebDataset(shards).describe()
        assert "single_node" not in wds.WebDataset(shards).describe()
    assert "split_by_worker" in wds.WebDataset(wds.SimpleShardList(URLS)).describe()


def test_a_shard_list_of_ones_own_in_torchs_form_is_taken_as_it_is(tmp_path):
    torch_data = pytest.importorskip("torch.utils.data")
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        sink.write({"__key__": "a", "txt": "x"})

    class Twice(torch_data.IterableDataset):
        def __iter__(self):
            return iter([{"url": str(tmp_path / "a.tar")}] * 2)

    assert [sample["__key__"] for sample in wds.WebDataset(Twice())] == ["a", "a"]


def test_resampling_a_shard_list_is_refused_but_resampled_shards_are_taken():
    with pytest.raises(wds.PipelineError, match="resampled=True draws from URLs"):
        wds.WebDataset(wds.SimpleShardList(URLS), resampled=True)
    assert "ResampledShards" in wds.WebDataset(wds.ResampledShards(URLS)).describe()


def test_a_shard_list_splits_by_functions_of_ones_own():
    shards = wds.ShardList(URLS, splitter=lambda urls: urls[:2], nodesplitter=wds.split_by_node)
    assert urls_of(shards, places()[0]) == ["0.tar", "2.tar"]
    assert urls_of(wds.ShardList(URLS, splitter=None, nodesplitter=False), places()[1]) == URLS
    assert len(wds.ShardList(URLS, length=99)) == 99


def test_shard_lists_can_be_pickled_and_compared():
    shards = wds.PytorchShardList(URLS, epoch_shuffle=True)
    copy = pickle.loads(pickle.dumps(shards))
    assert copy == shards
    assert urls_of(copy, places()[3]) == urls_of(shards, places()[3])


def test_urls_for_all_and_for_one_worker(monkeypatch):
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setenv("NUM_WORKERS", "3")
    assert wds.all_urls(iter(URLS)) == URLS
    assert wds.worker_urls(URLS) == URLS[1::3]
