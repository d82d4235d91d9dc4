"""Data sets of other libraries, and torch's containers of ours, resume in the epoch of a state."""

from __future__ import annotations

import copy
import pickle
import random
import warnings
from itertools import islice

import pytest
import torch
from numbered import through_json

import penstock as wds
from penstock.errors import StateError
from penstock.stages.run import set_epoch

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Shuffled(torch.utils.data.IterableDataset):
    """Another library's data set: its order depends on the epoch that was set."""

    def __init__(self, count=12, first=0):
        self.numbers, self.epoch = range(first, first + count), 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter(random.Random(self.epoch).sample(self.numbers, len(self.numbers)))


class Wrapped(torch.utils.data.IterableDataset):
    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        return iter(self.dataset)


def ours():
    return wds.DataPipeline(list(range(12)), wds.shuffle(12), seed=3)


SOURCES = {
    "set_epoch": Shuffled,
    "chained": lambda: torch.utils.data.ChainDataset([Shuffled(8), Shuffled(8, 100)]),
    "added": lambda: ours() + ours() + Shuffled(),
    "wrapped": lambda: Wrapped(Shuffled()),
}
LOADERS = {
    "pipeline": wds.DataPipeline,
    "cut": lambda source: wds.DataPipeline(source).with_epoch(30),
    "mix": lambda source: wds.mix({"a": source, "b": Shuffled(6, 200)}, seed=1),
    "loader": lambda source: wds.WebLoader(source, batch_size=None),
    "workers": lambda source: wds.WebLoader(source, batch_size=2, num_workers=2),
    "in workers": lambda source: wds.WebLoader(
        wds.DataPipeline(source), batch_size=None, num_workers=2
    ),
    "saveable": lambda source: wds.SaveableDataLoader(source, batch_size=2),
    "saveable workers": lambda source: wds.SaveableDataLoader(source, batch_size=2, num_workers=2),
}


def plain(items):
    return [item.tolist() if isinstance(item, torch.Tensor) else item for item in items]


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("source", SOURCES)
def test_the_second_epoch_resumes_in_its_own_order(source, loader):
    make = lambda: LOADERS[loader](SOURCES[source]())  # noqa: E731
    whole = make()
    epochs = [plain(whole) for _ in range(3)]
    if source == "added" or "saveable" not in loader:  # torch's loader sets no epoch
        assert epochs[0] != epochs[1]
    first = make()
    list(first)
    stream = iter(first)
    seen = plain(islice(stream, 5))
    state = through_json(first.state_dict())
    del stream
    second = make()
    second.load_state_dict(state)
    assert seen + plain(second) == epochs[1]
    assert plain(second) == epochs[2]


def test_a_source_without_set_epoch_is_named_when_a_later_epoch_is_replayed():
    data = Shuffled()
    make = lambda: wds.DataPipeline(lambda: iter(data))  # noqa: E731
    first = make()
    list(first)
    next(iter(first))
    second = make()
    second.load_state_dict(first.state_dict())
    with pytest.warns(UserWarning, match=r"has no set_epoch\(\), and must yield .* in epoch 1"):
        iter(second)


@pytest.mark.parametrize("source", ["set_epoch", "chained", "wrapped"])
def test_a_saveable_loader_keeps_the_epoch_that_the_trainer_set(source):
    first, second = (wds.SaveableDataLoader(SOURCES[source](), batch_size=2) for _ in range(2))
    set_epoch(first.dataset, 4)
    seen = plain(islice(iter(first), 2))
    second.load_state_dict(through_json(first.state_dict()))
    assert seen + plain(second) == plain(first)


# ── torch's loader over our pipelines ───────────────────────────────────────────────────


@pytest.mark.parametrize("workers", [0, 2])
def test_a_saveable_loader_refuses_another_pipeline(workers):
    def make(seed):
        data = wds.DataPipeline(list(range(20)), wds.shuffle(20), seed=seed)
        return wds.SaveableDataLoader(data, batch_size=2, num_workers=workers)

    first = make(1)
    next(iter(first))
    with pytest.raises(StateError, match="seed was 1 and is 2"):
        make(2).load_state_dict(first.state_dict())


def test_a_saveable_loader_refuses_changed_items_unless_they_are_accepted():
    first = wds.SaveableDataLoader([1, 2, 3, 4], batch_size=1)
    next(iter(first))
    state = through_json(first.state_dict())
    other = wds.SaveableDataLoader([1, 2, 3, 5], batch_size=1)
    with pytest.raises(StateError, match="item 3 has changed"):
        other.load_state_dict(state)
    other.load_state_dict(state, changed="accept")
    assert plain(other) == [[2], [3], [5]]


def test_a_saveable_loader_refuses_another_number_of_workers_in_the_middle_of_a_stream():
    first = wds.SaveableDataLoader(ours(), batch_size=2, num_workers=2)
    next(iter(first))
    other = wds.SaveableDataLoader(ours(), batch_size=2)
    with pytest.raises(StateError, match="num_workers=2 and this loader has 0"):
        other.load_state_dict(first.state_dict())


def test_a_state_of_an_earlier_version_resumes_in_its_epoch():
    make = lambda: wds.SaveableDataLoader(ours(), batch_size=2)  # noqa: E731
    first = make()
    list(first)
    stream = iter(first)
    seen = plain(islice(stream, 2))
    state = first.state_dict()
    for name in ("check", "datasets", "workers", "versions"):
        del state[name]
    second = make()
    second.load_state_dict(state)
    whole = make()
    list(whole)
    assert seen + plain(second) == plain(whole)


@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, wds.WebLoader])
def test_a_data_set_that_workers_read_has_no_state_of_its_own(kind):
    data = ours()
    assert data.state_dict()["epoch"] == 0
    stream = iter(kind(data, batch_size=2, num_workers=2))
    next(stream)
    with pytest.raises(StateError, match=r"read by a loader.*save the state of the loader"):
        data.state_dict()
    del stream
    data.set_epoch(1)
    assert data.state_dict()["epoch"] == 1


def test_a_saveable_loader_compares_chained_pipelines():
    def make(seed, count=2):
        parts = [wds.DataPipeline(list(range(8)), wds.shuffle(8), seed=seed) for _ in range(count)]
        return wds.SaveableDataLoader(torch.utils.data.ChainDataset(parts), batch_size=2)

    first = make(1)
    next(iter(first))
    with pytest.raises(StateError, match="seed was 1 and is 2"):
        make(2).load_state_dict(first.state_dict())
    with pytest.raises(StateError, match="of 2 data sets, these are 3"):
        make(1, 3).load_state_dict(first.state_dict())


@pytest.mark.parametrize("loader", [wds.DataPipeline, wds.WebLoader])
def test_a_pipeline_inside_a_wrapper_is_compared(loader):
    def make(seed):
        return loader(Wrapped(wds.DataPipeline(list(range(8)), wds.shuffle(8), seed=seed)))

    first = make(1)
    next(iter(first))
    with pytest.raises(StateError, match=r"dataset was DataPipeline\(seed=1\) and is .*seed=2"):
        make(2).load_state_dict(first.state_dict())


@pytest.mark.parametrize("move", [lambda data: data.skip(3), lambda data: next(iter(data))])
def test_a_saveable_loader_has_no_state_if_its_data_set_begins_elsewhere(move):
    moved = ours()
    move(moved)
    data = ours()
    data.load_state_dict(moved.state_dict())
    if moved._skip:
        data.skip(3)
    loader = wds.SaveableDataLoader(data, batch_size=2)
    next(iter(loader))
    with pytest.raises(StateError, match="on the loader, not on its data set"):
        loader.state_dict()


def test_a_saveable_loader_refuses_another_word_than_accept():
    loader = wds.SaveableDataLoader([1, 2], batch_size=1)
    with pytest.raises(wds.PipelineError, match="'refuse' or 'accept', not 'yes'"):
        loader.load_state_dict(loader.state_dict(), changed="yes")


# ── the epoch of a data set, whoever counts it ──────────────────────────────────────────


@pytest.mark.parametrize("wrap", [lambda data: data, Wrapped])
def test_workers_that_persist_begin_every_epoch_of_a_foreign_data_set(wrap):
    make = lambda: wds.WebLoader(  # noqa: E731
        wrap(Shuffled()), batch_size=None, num_workers=1, persistent_workers=True
    )
    whole = make()
    epochs = [list(whole) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    first = make()
    list(first), list(first)
    stream = iter(first)
    seen = [next(stream), next(stream)]
    second = make()
    second.load_state_dict(first.state_dict())
    assert seen + list(second) == epochs[2]


def test_an_epoch_that_the_pipeline_overwrites_is_named():
    data = Shuffled()
    data.set_epoch(5)
    pipeline = wds.DataPipeline(data)
    with pytest.warns(
        UserWarning, match=r"set to epoch 5, and its pipeline begins epoch 0 .* set_"
    ):
        list(pipeline)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(pipeline)


class Unusual(torch.utils.data.IterableDataset):
    set_epoch = None

    @property
    def dataset(self):
        raise RuntimeError("not opened yet")

    def __iter__(self):
        return iter([1, 2, 3])


class TwoArguments(Unusual):
    def set_epoch(self, epoch, step):
        raise AssertionError


class Circle(Shuffled):
    set_epoch = None

    @property
    def dataset(self):
        return self


@pytest.mark.parametrize("kind", [Unusual, TwoArguments, Circle])
def test_data_sets_with_other_attributes_of_these_names_are_read(kind):
    assert sorted(wds.DataPipeline(kind()))
    assert sorted(wds.WebLoader(kind(), batch_size=None))


def test_a_pipeline_with_its_own_state_resumes_inside_a_wrapper():
    first = ours()
    list(first)
    stream = iter(first)
    next(stream)
    second = ours()
    second.load_state_dict(first.state_dict())
    loader = torch.utils.data.DataLoader(second, batch_size=None)
    assert list(wds.DataPipeline(loader)) == list(stream)


# ── copies and subclasses of pipelines ──────────────────────────────────────────────────


@pytest.mark.parametrize("read", [list, lambda data: next(iter(data))])
@pytest.mark.parametrize("kind", [ours, lambda: wds.WebLoader(ours(), batch_size=None)])
def test_copies_of_a_pipeline_that_was_read_have_a_state(kind, read):
    data = kind()
    read(data)
    view = copy.copy(data)
    for other in (copy.deepcopy(data), pickle.loads(pickle.dumps(data)), data.shuffle(3), view):
        assert other.state_dict()["epoch"] in (0, 1)
    read(data)
    assert view.state_dict()["epoch"] in (0, 1, 2)


@pytest.mark.parametrize("looked", [list, lambda data: next(iter(data))])
@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, wds.WebLoader])
def test_a_data_set_that_was_looked_at_has_no_state_while_workers_read_it(kind, looked):
    data = ours()
    looked(data)
    stream = iter(kind(data, batch_size=2, num_workers=1))
    next(stream)
    with pytest.raises(StateError, match="read by a loader"):
        data.state_dict()
    del stream
    list(data)
    assert data.state_dict()["complete"]


def test_a_subclass_may_replace_set_epoch():
    class Sampled(wds.DataPipeline):
        def __init__(self):
            super().__init__([1, 2])
            self.sampler = Shuffled()

        def set_epoch(self, epoch):
            self.sampler.set_epoch(epoch)

    data = Sampled()
    data.set_epoch(1)
    assert list(data) == [1, 2]
    assert data.state_dict()["epoch"] == 0
