"""Data sets of other libraries, and torch's containers of ours, resume in the epoch of a state."""

from __future__ import annotations

import random
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
    for name in ("check", "pipeline", "workers", "versions"):
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
