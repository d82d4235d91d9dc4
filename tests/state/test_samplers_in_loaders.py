"""Samplers in loaders that work ahead: a saved loader goes on with the batches not yet seen."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from penstock import (
    DistributedSamplerWrapper,
    DynamicBatchSampler,
    ReproducibleRandomSampler,
    SaveableDataLoader,
)

torch = pytest.importorskip("torch")

LENGTHS = [float(1 + n * 7 % 23) for n in range(120)]


def batches() -> Any:
    return DynamicBatchSampler(range(120), 60, 20, lengths_list=LENGTHS)


LOADERS: dict[str, Callable[[], dict[str, Any]]] = {
    "buckets": lambda: {"batch_sampler": batches()},
    "a rank's share": lambda: {"batch_sampler": DistributedSamplerWrapper(batches(), 2, 1)},
    "random": lambda: {"sampler": ReproducibleRandomSampler(range(120)), "batch_size": 7},
}


def loader_of(name: str, workers: int) -> Any:
    return SaveableDataLoader(range(120), num_workers=workers, **LOADERS[name]())


def taken(loader: Any, epochs: int) -> list[Any]:
    return [[batch.tolist() for batch in loader] for _ in range(epochs)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_goes_on_in_the_middle_of_any_epoch(name: str, workers: int) -> None:
    whole = taken(loader_of(name, workers), 3)
    assert whole[0] != whole[1]  # nobody called set_epoch
    loader = loader_of(name, workers)
    taken(loader, 1)
    running = iter(loader)
    seen = [batch.tolist() for batch in islice(running, 5)]
    state = json.loads(json.dumps(loader.state_dict()))
    del running
    again = loader_of(name, 0)
    again.load_state_dict(state)
    rest = taken(again, 2)
    assert [seen + rest[0], rest[1]] == whole[1:]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", LOADERS)
def test_a_sampler_in_torchdatas_loader_resumes_at_the_end_of_an_epoch(
    name: str, workers: int
) -> None:
    """The last batch of "random" is short: to make it, the sampler was read to its end."""
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def make() -> Any:
        return stateful.StatefulDataLoader(range(120), num_workers=workers, **LOADERS[name]())

    first = make()
    begun, states = [], []
    for batch in first:
        begun.append(batch.tolist())
        states.append(first.state_dict())
    states.append(first.state_dict())
    later = taken(first, 2)
    at_last_batch, after_the_end = make(), make()
    at_last_batch.load_state_dict(states[-2])
    assert taken(at_last_batch, 3) == [[], *later]
    after_the_end.load_state_dict(states[-1])
    assert taken(after_the_end, 2) == later
