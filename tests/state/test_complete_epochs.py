"""The state after the last item of an epoch: the epoch is complete until the next iter()."""

from __future__ import annotations

import functools
from itertools import islice

import pytest
import torch
from numbered import indexed_numbers, number, through_json

import penstock as wds

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes in total")


def streaming(urls):
    shards = wds.WebDataset(urls, shardshuffle=3, nodesplitter=wds.split_by_node, empty_check=False)
    return shards.shuffle(5).map(number)


indexed = functools.partial(indexed_numbers, lanes=4, ends="exact")


MAKERS = {
    "streaming": streaming,
    "indexed": indexed,
    "a length": lambda urls: wds.WebDataset(urls, resampled=True).map(number).with_epoch(7),
    "a loader": lambda urls: wds.WebLoader(streaming(urls), batch_size=None, num_workers=2),
    "threads": lambda urls: wds.WebLoader(
        indexed(urls), batch_size=None, num_workers=2, engine="threads"
    ),
    "a loader with a length": lambda urls: wds.WebLoader(indexed(urls), batch_size=None).with_epoch(
        30
    ),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_a_complete_epoch_is_saved_as_such_and_the_next_one_follows(urls, kind):
    first = MAKERS[kind](urls)
    list(first)
    state = through_json(first.state_dict())
    assert (state["epoch"], state["complete"]) == (0, True)
    later = [list(first), list(first)]
    second = MAKERS[kind](urls)
    second.load_state_dict(state)
    assert through_json(second.state_dict()) == state
    assert [list(second), list(second)] == later


@pytest.mark.parametrize("kind", MAKERS)
def test_an_iterator_that_is_not_used_after_a_complete_epoch_begins_none(urls, kind):
    first = MAKERS[kind](urls)
    list(first)
    state = through_json(first.state_dict())
    later = [list(first), list(first)]
    second = MAKERS[kind](urls)
    second.load_state_dict(state)
    unused = iter(second)
    assert through_json(second.state_dict()) == state
    assert [list(second), list(second)] == later
    unused.close()


@pytest.mark.parametrize("kind", ["streaming", "indexed"])
def test_a_state_of_the_earlier_form_begins_the_next_epoch(urls, kind):
    """It named the next epoch, without positions."""
    first = MAKERS[kind](urls)
    list(first)
    state = first.state_dict()
    del state["complete"], state["check"]
    earlier = {**state, "epoch": 1, "state": None}
    second = MAKERS[kind](urls)
    second.load_state_dict(through_json(earlier))
    assert list(second) == list(first)


def test_set_epoch_after_a_complete_epoch_is_in_the_state(urls):
    first = streaming(urls)
    list(first)
    first.set_epoch(5)
    second = streaming(urls)
    second.load_state_dict(through_json(first.state_dict()))
    assert second.epoch == 5
    assert list(second) == list(first)


@pytest.mark.parametrize("kind", ["streaming", "indexed", "a loader"])
def test_after_a_complete_epoch_any_number_of_ranks_resumes(urls, kind, monkeypatch):
    states, parts = [], []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        half = MAKERS[kind](urls)
        list(half)
        states.append(through_json(half.state_dict()))
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "4")
        quarter = MAKERS[kind](urls)
        quarter.load_state_dict(states if rank else states[0])
        parts += list(quarter)
        assert quarter.state_dict()["epoch"] == 1
    assert sorted(parts) == list(range(24))


def test_a_rank_at_its_end_is_merged_with_one_that_is_not(urls, monkeypatch):
    """With ends="exact" a rank may have fewer batches than the others."""

    def taken(rank, steps):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        dataset = indexed(urls)
        return list(islice(dataset, steps)), through_json(dataset.state_dict())

    (ended, ended_state), (begun, begun_state) = taken(0, None), taken(1, 5)
    assert ended_state["complete"]
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    alone = indexed(urls)
    alone.load_state_dict([ended_state, begun_state])
    assert sorted(ended + begun + list(alone)) == list(range(24))
    assert alone.epoch == 1


class Restored(torch.utils.data.IterableDataset):
    """A data set that loads a state in the worker, as torchdata does, and reports what follows."""

    def __init__(self, dataset, state):
        self.dataset, self.state = dataset, state

    def __iter__(self):
        self.dataset.load_state_dict(self.state)
        stream = iter(self.dataset)
        yield self.dataset.epoch, list(stream), list(self.dataset)


def test_a_worker_at_its_end_counts_the_next_epoch_before_it_is_asked_for_an_item(urls):
    """Workers of the next epoch may be started before the old ones were asked."""
    first = streaming(urls)
    list(first)
    restored = Restored(streaming(urls), first.state_dict())
    ((epoch, rest, following),) = torch.utils.data.DataLoader(
        restored, batch_size=None, num_workers=1
    )
    assert (epoch, rest, following) == (1, [], list(first))


def test_set_epoch_to_the_epoch_after_the_loaded_states_warns(urls):
    first = indexed(urls)
    list(islice(first, 5))
    second = indexed(urls)
    second.load_state_dict(through_json(first.state_dict()))
    second.set_epoch(1)
    with pytest.warns(UserWarning, match="in epoch 0, but set_epoch.* epoch 1: the state is not"):
        assert sorted(second) == list(range(24))


@pytest.mark.parametrize(("items", "epoch"), [(5, 0), (5, 3), (24, 0)])
def test_set_epoch_to_another_epoch_than_the_loaded_states_is_an_error(urls, items, epoch):
    first = indexed(urls)
    list(first)
    stream = iter(first)
    for _ in range(items):
        next(stream)
    next(stream, None)
    second = indexed(urls)
    second.load_state_dict(through_json(first.state_dict()))
    second.set_epoch(epoch)
    with pytest.raises(wds.StateError, match=rf"epoch 1, but set_epoch.* epoch {epoch}.*with_len"):
        next(iter(second))
    second.set_epoch(1 + (items == 24))  # the loaded state is still the state
    assert list(second) == (list(stream) if items < 24 else list(first))
