"""A map-style loader resumes in the order of its epoch, or refuses the state."""

from __future__ import annotations

import json
from itertools import islice

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


@pytest.mark.parametrize("order", ORDERS)
def test_another_seed_is_refused(make, order):
    state, _ = save_after(make(order), 1, 3)
    other = make(order, seed=2)
    with pytest.raises(StateError, match=r"(seed|sampler|generator|stage 0).* was"):
        other.load_state_dict(state)
        next(iter(other))


def test_an_order_of_torchs_global_generator_is_refused(make):
    subset = torch.utils.data.SubsetRandomSampler(range(COUNT))
    state, _ = save_after(make(None, sampler=subset), 0, 3)
    again = make(None, sampler=subset)
    with pytest.raises(StateError, match=r"torch's global generator.*generator=torch\.Generator"):
        again.load_state_dict(state)
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
    again.load_state_dict(state)
    with pytest.raises(StateError):
        next(iter(again))
