"""Programs extend WebDataset by subclassing: the methods that they replace are the ones called."""

from __future__ import annotations

import pickle
from itertools import islice

import pytest
from penstock.shardlists import PytorchShardList, ShardList

import penstock as wds
from penstock.codecs import ImageHandler
from penstock.compat.pipelinestage import PipelineStage

FOUR = [f"{n}.tar" for n in range(4)]


class Reversed:
    """Replaces ``__iter__`` and asks the class it extends for the shards."""

    def __iter__(self):
        yield from list(islice(super().__iter__(), 4))[::-1]


class ReversedList(Reversed, wds.SimpleShardList):
    pass


class OwnList(wds.SimpleShardList):
    def __iter__(self):
        yield {"url": "own.tar"}


class TwoResampled(wds.ResampledShards):
    def __iter__(self):
        yield from islice(super().__iter__(), 2)


class Marked:
    def __iter__(self):
        for item in super().__iter__():
            yield ("marked", item)


class MarkedMix(Marked, wds.RandomMix):
    pass


class MarkedRoundRobin(Marked, wds.RoundRobin):
    pass


class MarkedMock(Marked, wds.MockDataset):
    pass


class MarkedDirectory(Marked, wds.DirectoryShardList):
    pass


class MarkedPytorchShards(Marked, PytorchShardList):
    pass


class MarkedOldShards(Marked, ShardList):
    pass


class MarkedPipeline(Marked, wds.DataPipeline):
    pass


class MarkedWebDataset(Marked, wds.WebDataset):
    pass


class PlusOne(wds.detshuffle):
    def run(self, src):
        return (item + 1 for item in super().run(src))


class CalledPlusOne(wds.Cached):
    def __call__(self, src):
        return (item + 1 for item in super().__call__(src))


def urls(shards):
    return [shard["url"] for shard in shards]


def test_iter_of_a_shard_list_is_called_in_a_pipeline():
    assert urls(wds.DataPipeline(OwnList(FOUR))) == ["own.tar"]
    assert urls(wds.DataPipeline(ReversedList(FOUR))) == FOUR[::-1]
    assert urls(wds.WebDataset(OwnList(FOUR)).pipeline[0]) == ["own.tar"]


def test_iter_of_resampled_shards_is_called_and_ends():
    assert len(list(islice(wds.DataPipeline(TwoResampled(FOUR)), 10))) == 2


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (MarkedMix([[1], [2]], longest=True, seed=0), {1, 2}),
        (MarkedRoundRobin([[1], [2]]), {1, 2}),
        (MarkedMock(5, 2), {5}),
        (MarkedPipeline([1, 2]), {1, 2}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_iter_of_a_source_is_called_wherever_it_is_used(source, expected):
    wanted = {("marked", item) for item in expected}
    assert set(source) == wanted
    assert set(wds.DataPipeline(source)) == wanted
    assert set(wds.FluidWrapper(source).map(lambda item: item)) == wanted
    assert set(wds.RoundRobin([source, source])) == wanted
    assert set(pickle.loads(pickle.dumps(source))) == wanted


@pytest.mark.parametrize("engine", ["processes", "threads"])
def test_iter_of_a_pipeline_is_called_by_a_loader(shards, engine):
    pytest.importorskip("torch")
    dataset = MarkedWebDataset(shards(2, 3), shardshuffle=False)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2, engine=engine)
    items = list(loader)
    assert {mark for mark, _ in items} == {"marked"}
    assert sorted(sample["__key__"] for _, sample in items) == [f"s{n:04d}" for n in range(6)]


def test_iter_of_older_shard_lists_is_called(tmp_path):
    (tmp_path / "a.tar").touch()
    for source in (
        MarkedPytorchShards(FOUR, shuffle=False),
        MarkedOldShards(FOUR),
        MarkedDirectory(tmp_path, poll=None, mode="keep"),
    ):
        assert all(mark == "marked" for mark, _ in wds.DataPipeline(source)), source


@pytest.mark.parametrize("name", ["iterator", "iterator1"])
def test_iterating_methods_of_webdataset_pipelines_can_be_replaced(name):
    def replaced(self):
        return (item + 1 for item in getattr(wds.DataPipeline, name)(self))

    kind = type("Mine", (wds.DataPipeline,), {name: replaced})
    assert list(kind([1, 2])) == [2, 3]
    assert list(wds.DataPipeline(kind([1, 2]))) == [2, 3]


def test_run_of_a_stage_is_called_in_a_pipeline_with_its_epochs():
    mine = wds.DataPipeline(range(20), PlusOne(10))
    plain = wds.DataPipeline(range(20), wds.detshuffle(10))
    for _ in range(3):
        assert list(mine) == [item + 1 for item in plain]
    assert mine.stage(1).epoch == plain.stage(1).epoch == 2
    assert list(wds.DataPipeline([1, 2], CalledPlusOne())) == [2, 3]


def test_replaced_iter_gets_the_epoch_of_the_pipeline():
    def orders(pipeline, epochs):
        found = []
        for epoch in epochs:
            pipeline.set_epoch(epoch)
            found.append(urls(pipeline))
        return found

    def make():
        return wds.DataPipeline(ReversedList(FOUR * 5, seed=1))

    assert orders(make(), [2, 0]) == orders(make(), [0, 2])[::-1]


def test_replaced_iter_resumes_by_replay():
    def make():
        return wds.DataPipeline(ReversedList(FOUR * 5, seed=1), wds.shuffle(3))

    first = make()
    list(first)
    stream = iter(first)
    begun = [next(stream), next(stream)]
    assert begun
    state = first.state_dict()
    second = make()
    second.load_state_dict(state)
    with pytest.warns(UserWarning, match="cannot save"):
        assert list(second) == list(stream)


def test_start_of_a_more_derived_class_wins_over_iter():
    class Back(OwnList):
        start = wds.SimpleShardList.start

    assert urls(wds.DataPipeline(Back(FOUR))) == FOUR


def test_stage_with_run_alone_is_a_stage():
    class Twice(PipelineStage):
        def run(self, source):
            return (2 * item for item in source)

    assert list(wds.DataPipeline([1, 2], Twice())) == [2, 4]


def test_call_of_an_image_handler_is_called():
    class Lengths(ImageHandler):
        def __init__(self, spec, factor):
            super().__init__(spec)
            self.factor = factor

        def __call__(self, key, data):
            return self.factor * len(data) if key.endswith((".png", ".odd")) else None

    sample = {"png": b"123", "a.odd": b"12", "txt": b"text"}
    (decoded,) = wds.decode(Lengths("rgb", 10))([sample])
    assert decoded == {"png": 30, "a.odd": 20, "txt": "text"}


def test_methods_of_a_writer_can_be_replaced(tmp_path):
    class Named(wds.ShardWriter):
        def next_stream(self):
            super().next_stream()
            opened.append(self.fname)

        def write(self, obj):
            super().write({**obj, "txt": b"more"})

    opened = []
    with Named(str(tmp_path / "x-%d.tar"), maxcount=1, verbose=0) as writer:
        writer.write({"__key__": "a", "cls": b"1"})
        writer.write({"__key__": "b", "cls": b"2"})
    assert opened == [str(tmp_path / f"x-{n}.tar") for n in range(2)]
    samples = list(wds.WebDataset(str(tmp_path / "x-{0..1}.tar"), shardshuffle=False))
    assert [sample["txt"] for sample in samples] == [b"more", b"more"]
