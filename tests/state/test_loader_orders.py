"""A map-style loader resumes in the order of its epoch, or refuses the state."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest
import torch

import penstock as wds
from penstock.errors import StateError
from penstock.pipeline.state import merge

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot save what it keeps")

COUNT = 48
LENGTHS = [n % 7 + 1 for n in range(COUNT)]


def seeded(seed):
    return torch.Generator().manual_seed(seed)


ORDERS = {
    "random": lambda seed: {"sampler": wds.ReproducibleRandomSampler(range(COUNT), seed=seed)},
    "weighted": lambda seed: {
        "sampler": wds.ReproducibleWeightedRandomSampler(LENGTHS, COUNT, True, seed=seed)
    },
    "planned": lambda seed: {"batch_sampler": wds.PlannedBatchSampler(LENGTHS, 20, seed=seed)},
    "buckets": lambda seed: {
        "batch_sampler": wds.DynamicBatchSampler(
            range(COUNT), 20, lengths_list=LENGTHS, num_buckets=3, seed=seed
        )
    },
    "torch's shares": lambda seed: {
        "sampler": torch.utils.data.DistributedSampler(range(COUNT), 1, 0, seed=seed)
    },
    "a generator": lambda seed: {"shuffle": True, "generator": seeded(seed)},
    "a subset": lambda seed: {
        "sampler": torch.utils.data.SubsetRandomSampler(range(COUNT), generator=seeded(seed))
    },
    "a list": lambda seed: {"sampler": list(range(COUNT))[:: 1 if seed == 1 else -1]},
}


@pytest.fixture(params=[wds.WebLoader, wds.SaveableDataLoader])
def make(request):
    def make(order, seed=1, **options):
        chosen = ORDERS[order](seed) if order else {}
        size = {} if "batch_sampler" in chosen else {"batch_size": 4}
        return request.param(list(range(COUNT)), collate_fn=list, **{**size, **chosen, **options})

    return make


def save_after(loader, epochs, batches):
    """Return the state inside an epoch, and the rest of the epoch and the next one."""
    for _ in range(epochs):
        list(loader)
    stream = iter(loader)
    taken = list(islice(stream, batches))
    assert len(taken) == batches
    state = json.loads(json.dumps(loader.state_dict()))
    return state, [list(stream), list(loader)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("epochs", [0, 2])
def test_an_epoch_is_continued_in_its_order(make, order, epochs):
    state, rest = save_after(make(order), epochs, 3)
    again = make(order)
    again.load_state_dict(state)
    assert [list(again), list(again)] == rest
    loader = make(order)
    list(islice(loader, 2))  # the order of a loader in use is set back, too
    loader.load_state_dict(state)
    assert [list(loader), list(loader)] == rest


@pytest.mark.parametrize("order", ORDERS)
def test_the_next_epoch_has_its_order(make, order):
    loader = make(order)
    list(loader)
    state = json.loads(json.dumps(loader.state_dict()))
    following = list(loader)
    again = make(order)
    again.load_state_dict(state)
    assert list(again) == following


def test_set_epoch_of_a_sampler_takes_effect_between_epochs(make):
    loader = make("torch's shares")
    list(loader)
    state = loader.state_dict()
    loader.sampler.set_epoch(5)
    following = list(loader)
    again = make("torch's shares")
    again.load_state_dict(state)
    again.sampler.set_epoch(5)
    assert list(again) == following


def test_a_generator_may_be_seeded_before_every_epoch(make):
    def train(loader, epochs, batches=None):
        for epoch in epochs:
            loader.sampler.generator.manual_seed(100 + epoch)
            found = list(islice(loader, batches))
        return found

    state, rest = None, train(make("a generator"), range(2))
    loader = make("a generator")
    train(loader, range(1))
    loader.sampler.generator.manual_seed(101)
    stream = iter(loader)
    taken = [next(stream), next(stream)]
    state = json.loads(json.dumps(loader.state_dict()))
    again = make("a generator", seed=7)
    again.load_state_dict(state)
    assert taken + train(again, [1]) == rest


@pytest.mark.parametrize("stop", [3, 6, 12, 15])
def test_a_pass_inside_an_epoch_is_continued_in_its_order(stop):
    def make():
        options = {"batch_size": 4, "collate_fn": list, **ORDERS["a generator"](1)}
        return wds.WebLoader(list(range(COUNT)), **options).with_epoch(20)  # 12 batches are a pass

    state, rest = save_after(make(), 1, stop)
    again = make()
    again.load_state_dict(state)
    assert [list(again), list(again)] == rest


def test_persistent_workers_with_a_generator_are_refused_after_the_first_epoch(make):
    options = {"num_workers": 1, "persistent_workers": True}
    state, rest = save_after(make("a generator", **options), 0, 3)
    again = make("a generator", **options)
    again.load_state_dict(state)
    assert list(again) == rest[0]
    state, _ = save_after(make("a generator", **options), 1, 3)
    with pytest.raises(StateError, match=r"first epoch only.*ReproducibleRandomSampler"):
        make("a generator", **options).load_state_dict(state)
    options |= {"sampler": torch.utils.data.RandomSampler(range(COUNT), generator=seeded(1))}
    state, rest = save_after(make(None, **options), 1, 3)
    again = make(None, **options)
    again.load_state_dict(state)
    assert [list(again), list(again)] == rest


class Own:
    """A program's sampler."""

    def __init__(self, **attributes):
        self.indices = list(range(COUNT))
        vars(self).update(attributes)

    def __len__(self):
        return COUNT

    def __iter__(self):
        self.indices.append(self.indices.pop(0))
        return iter(self.indices)


ATTRIBUTES = {
    "a generator of numpy": {"generator": np.random.default_rng(0)},
    "no generator": {"generator": None},
    "weights with a gradient": {"weights": torch.ones(12, requires_grad=True)},
    "a tensor on no device": {"seed": torch.ones(12, device="meta")},
    "an epoch": {"epoch": 3},
    "an identity": {"identity": None},
}


@pytest.mark.parametrize("attributes", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_attributes_of_other_samplers_mean_nothing(make, attributes):
    state, rest = save_after(make(None, sampler=Own(**attributes)), 0, 3)
    again = make(None, sampler=Own(**attributes))
    again.load_state_dict(state)
    assert list(again) == rest[0]


def test_weights_are_compared_one_by_one(make):
    def sampler(number):
        weights = torch.zeros(3000)
        weights[:COUNT], weights[1500] = 1, number
        return torch.utils.data.WeightedRandomSampler(weights, COUNT, generator=seeded(1))

    state, _ = save_after(make(None, sampler=sampler(0)), 0, 3)
    again = make(None, sampler=sampler(1e-30))
    again.load_state_dict(state)
    with pytest.raises(StateError, match="sampler was"):
        next(iter(again))


def test_another_size_of_a_batch_samplers_batches_is_refused(make):
    def batches(size):
        numbers = torch.utils.data.SequentialSampler(range(COUNT))
        return torch.utils.data.BatchSampler(numbers, size, drop_last=False)

    state, _ = save_after(make(None, batch_sampler=batches(2), batch_size=1), 0, 3)
    again = make(None, batch_sampler=batches(3), batch_size=1)
    again.load_state_dict(state)
    with pytest.raises(StateError, match=r"was .*batch_size.* and is"):
        next(iter(again))


def test_a_loader_without_a_generator_continues_the_order_of_one(make):
    state, rest = save_after(make("a generator"), 0, 3)
    again = make(None, shuffle=True, generator=seeded(1))
    again.load_state_dict(state)
    assert [list(again), list(again)] == rest


def test_all_batches_of_an_order_that_cannot_be_repeated_may_have_come(make):
    subset = torch.utils.data.SubsetRandomSampler(range(COUNT))
    state, _ = save_after(make(None, sampler=subset), 0, 12)
    again = make(None, sampler=subset)
    again.load_state_dict(state)
    assert list(again) == []
    assert sorted(n for batch in again for n in batch) == list(range(COUNT))


@pytest.mark.parametrize("order", ORDERS)
def test_another_seed_is_refused(make, order):
    state, _ = save_after(make(order), 1, 3)
    other = make(order, seed=2)
    with pytest.raises(StateError, match=r"(seed|sampler|generator|stage 0).* was"):
        other.load_state_dict(state)
        next(iter(other))


def test_an_order_of_torchs_global_generator_is_refused(make):
    subset = torch.utils.data.SubsetRandomSampler(range(COUNT))
    torch.manual_seed(0)
    state, rest = save_after(make(None, sampler=subset), 0, 3)
    again = make(None, sampler=subset)
    torch.manual_seed(0)
    again.load_state_dict(state)
    assert list(again) == rest[0]
    torch.manual_seed(0)
    again.load_state_dict(state)
    torch.rand(1)
    with pytest.raises(StateError, match=r"torch's global generator.*generator=torch\.Generator"):
        next(iter(again))


def test_a_shuffle_without_a_seed_is_refused_by_a_web_loader():
    state, _ = save_after(wds.WebLoader(list(range(9)), batch_size=1, shuffle=True), 0, 3)
    again = wds.WebLoader(list(range(9)), batch_size=1, shuffle=True)
    again.load_state_dict(state)
    with pytest.raises(StateError, match="torch's global generator"):
        next(iter(again))


def test_every_rank_has_its_own_order():
    parts = {"epoch": 0, "seed": 0, "data": "", "lanes": None, "ranks": 2, "penstock": 1}
    states = [
        {**parts, "rank": rank, "state": None, "orders": {str(rank): {"0": {"epoch": rank}}}}
        for rank in range(2)
    ]
    orders = merge([{**one, "tree": {"0": "x"}} for one in states])["orders"]
    assert orders == {"0": {"0": {"epoch": 0}}, "1": {"0": {"epoch": 1}}}


@pytest.mark.parametrize("damage", [["x", "y"], [1, "eA=="], [1, "eJwDAAAAAAE="], 5])
def test_a_damaged_generator_is_refused(damage):
    loader = wds.WebLoader(list(range(9)), batch_size=1, shuffle=True, generator=seeded(1))
    state, _ = save_after(loader, 0, 3)
    state["orders"]["0"]["0"]["generator"] = damage
    del state["check"]
    again = wds.WebLoader(list(range(9)), batch_size=1, shuffle=True, generator=seeded(1))
    with pytest.raises(StateError):
        again.load_state_dict(state)
        next(iter(again))
