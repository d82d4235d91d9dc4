"""Epochs, counts, origins and exactly-once through torch's DataLoader."""

from __future__ import annotations

import inspect
import operator
import pickle
import sys
import warnings

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import penstock as wds
from penstock.errors import DecodingError, MissingPackage, PipelineError
from penstock.loaders.options import LoaderOptions


def fail_on_odd(sample):
    if int(sample["cls"]) % 2:
        raise ValueError("odd")
    return sample


def number(sample):
    return int(sample["cls"])


def dataset(urls, **options):
    return wds.WebDataset(urls, shardshuffle=100, **options).shuffle(10).map(number)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", [DataLoader, wds.WebLoader])
def test_each_epoch_covers_the_data_in_an_order_of_its_own(shards, workers, persistent, kind):
    if persistent and not workers:
        pytest.skip("torch knows no persistent workers without workers")
    urls = shards(6, 5)

    def epochs():
        loader = kind(
            dataset(urls, seed=1),
            batch_size=None,
            num_workers=workers,
            persistent_workers=persistent,
        )
        return [list(loader) for _ in range(3)]

    first = epochs()
    assert all(sorted(epoch) == list(range(30)) for epoch in first)
    assert len({tuple(epoch) for epoch in first}) == 3
    assert first == epochs()


def test_more_workers_than_shards_still_cover_everything_once(shards):
    loader = DataLoader(dataset(shards(2, 5)), batch_size=None, num_workers=3)
    assert sorted(loader) == list(range(10))


def test_a_function_that_cannot_be_sent_to_spawned_workers_is_named(shards):
    data = wds.WebDataset(shards(2, 3)).map(lambda sample: sample)
    loader = wds.WebLoader(data, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    with pytest.raises(PipelineError, match=r"^map\(.*cannot be sent.*lambda.*engine='threads'"):
        next(iter(loader))


def test_spawned_workers_get_the_whole_pipeline_and_its_epoch(shards):
    # Functions of the standard library: a spawned process cannot import this file.
    cls = operator.itemgetter("cls")
    data = wds.WebDataset(shards(3, 4), shardshuffle=9, seed=1).shuffle(9).map(cls).map(int)
    data.set_epoch(4)
    loader = DataLoader(data, batch_size=None, num_workers=1, multiprocessing_context="spawn")
    first = list(loader)
    assert sorted(first) == list(range(12))
    data.set_epoch(4)
    assert list(data) == first


def test_samples_skipped_in_workers_are_counted(shards):
    data = wds.WebDataset(shards(4, 5)).map(fail_on_odd, handler=wds.ignore_and_continue)
    loader = DataLoader(data.map(number), batch_size=None, num_workers=2)
    assert sorted(loader) == list(range(0, 20, 2))
    assert sorted(loader) == list(range(0, 20, 2))
    assert loader.dataset.skipped == {"map": 20}


def test_an_error_in_a_worker_says_where_it_happened(shard):
    url = shard([("a", {"cls": b"1"}), ("b", {"cls": b"x"})])
    loader = DataLoader(wds.WebDataset(url).decode(), batch_size=None, num_workers=1)
    with pytest.raises(DecodingError, match=r"sample 'b' at byte 1024"):
        list(loader)
    data = wds.WebDataset(url).map(fail_on_odd)
    with pytest.raises(ValueError, match=r"odd[\s\S]*in map: .*sample 'a' at byte 0"):
        list(DataLoader(data, batch_size=None, num_workers=1))


def test_the_loader_is_fluent(shards):
    data = wds.WebDataset(shards(4, 5)).decode().to_tuple("cls", "txt").batched(3)
    loader = wds.WebLoader(data, batch_size=None, num_workers=2).unbatched().shuffle(10).batched(4)
    batches = list(loader)
    assert [len(batch[1]) for batch in batches] == [4] * 5
    assert sorted(torch.cat([torch.as_tensor(batch[0]) for batch in batches]).tolist()) == list(range(20))  # fmt: skip  # noqa: E501


def test_with_epoch_and_length_of_a_loader(shards):
    loader = wds.WebLoader(dataset(shards(2, 3)), batch_size=None).with_epoch(10).with_length(10)
    assert len(loader) == 10
    assert len(list(loader)) == 10
    assert "DataLoader" in loader.describe()


def test_set_epoch_of_a_loader_is_that_of_its_data(shards):
    loader = wds.WebLoader(dataset(shards(4, 4), seed=1), batch_size=None, num_workers=2)
    list(loader)
    second = list(loader)
    loader.set_epoch(1)
    assert list(loader) == second


def test_torch_knows_pipelines_as_its_own():
    assert isinstance(wds.DataPipeline(range(3)), IterableDataset)
    assert isinstance(wds.WebDataset("x.tar").with_length(3), IterableDataset)
    assert not isinstance(wds.shuffle(3), IterableDataset)
    assert pickle.loads(pickle.dumps(wds.DataPipeline(range(3))))._counts is not None


def test_without_torch_the_loader_names_it(monkeypatch):
    for name in ("torch", "torch.utils", "torch.utils.data"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackage, match=r"WebLoader needs the package 'torch'"):
        wds.WebLoader(wds.DataPipeline(range(3)))


def test_arguments_are_those_of_torchs_loader_with_the_same_defaults():
    theirs = inspect.signature(DataLoader.__init__).parameters
    ours = inspect.signature(wds.WebLoader.__init__).parameters
    for name, parameter in theirs.items():
        if name != "dataset":
            assert (ours[name].default, ours[name].kind) == (parameter.default, parameter.kind), (
                name
            )
    assert LoaderOptions.__annotations__.keys() == ours.keys() - {"self", "dataset", "batch_size"}


@pytest.mark.parametrize("engine", ["processes", "threads"])
def test_arguments_by_place_reach_the_loader(engine):
    data = wds.DataPipeline([1, 2, 3, 4])
    loader = wds.WebLoader(data, 2, None, None, None, 0, list, engine=engine)
    assert list(loader) == [[1, 2], [3, 4]]
    with pytest.raises(TypeError, match="num_worker"):
        wds.WebLoader(data, num_worker=2, engine=engine)


@pytest.mark.parametrize(
    "batches",
    [
        lambda data: data.batched(2),
        lambda data: data.listed(2).map(list),
        lambda data: wds.DataPipeline(data.batched(2)),
    ],
    ids=["batched", "listed", "nested"],
)
def test_batches_of_batches_are_warned_about(batches):
    data = wds.DataPipeline([{"cls": n} for n in range(4)])
    with pytest.warns(UserWarning, match=r"batches of 1 batches.*batch_size=None"):
        wds.WebLoader(batches(data))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wds.WebLoader(batches(data), batch_size=None)
        wds.WebLoader(batches(data), batch_size=2, collate_fn=list)
        wds.WebLoader(batches(data).unlisted(), batch_size=2)
        wds.WebLoader(data, batch_size=2)
