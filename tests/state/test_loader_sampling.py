"""A loader that makes other batches than those of a running epoch is refused by name."""

from __future__ import annotations

import json

import pytest
import torch

import penstock as wds
from penstock.errors import StateError

pytestmark = pytest.mark.filterwarnings("ignore:.*cannot save what it keeps")


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def listed(**options):
    return wds.WebLoader(list(range(50)), **{"batch_size": 5, **options})


def streamed(**options):
    return wds.WebLoader(wds.DataPipeline(range(50)), **{"batch_size": 5, **options})


def sampled_in(batch_size):
    sampler = torch.utils.data.SequentialSampler(range(50))
    return listed(
        batch_size=1,
        batch_sampler=torch.utils.data.BatchSampler(sampler, batch_size, drop_last=False),
    )


class Wrapper(torch.utils.data.IterableDataset):
    def __init__(self, dataset):
        self.dataset = dataset

    def __iter__(self):
        yield from self.dataset


CHANGES = {
    "batch size": (listed, {}, {"batch_size": 8}, "batch_size=5.* and is batch_size=8"),
    "last batch": (listed, {}, {"drop_last": True}, "drop_last=False.*drop_last=True"),
    "order": (
        lambda shuffle: listed(shuffle=shuffle, generator=seeded(1)),
        {"shuffle": True}, {"shuffle": False}, "RandomSampler.* and is .*SequentialSampler",
    ),
    "seed": (
        lambda seed: listed(shuffle=True, generator=seeded(seed)),
        {"seed": 1}, {"seed": 2}, "generator=1 and is .*generator=2",
    ),
    "batch sampler": (
        sampled_in, {"batch_size": 5}, {"batch_size": 8}, "BatchSampler, batch_size=5.*=8",
    ),
    "last batch of a stream": (streamed, {}, {"drop_last": True}, "drop_last=False.*=True"),
    "last batch on threads": (
        lambda **options: streamed(engine="threads", num_workers=2, **options),
        {}, {"drop_last": True}, "drop_last=False.*=True",
    ),
    "a loader in a pipeline": (
        lambda **options: wds.DataPipeline(listed(**options)),
        {}, {"batch_size": 8}, "stage 0.0 was batch_size=5.* and is batch_size=8",
    ),
    "a loader in a mixture": (
        lambda **options: wds.DataPipeline(wds.RoundRobin([listed(), listed(**options)])),
        {}, {"batch_size": 8}, r"stage 0\[1\].0 was batch_size=5.* and is batch_size=8",
    ),
    "a loader in a mixture in a mixture": (
        lambda **options: wds.DataPipeline(wds.RoundRobin([wds.RandomMix([listed(**options)])])),
        {}, {"batch_size": 8}, r"stage 0\[0\].0\[0\].0 was batch_size=5.* and is batch_size=8",
    ),
    "a loader in a wrapper": (
        lambda **options: wds.DataPipeline(Wrapper(listed(**options))),
        {}, {"batch_size": 8}, "stage 0.dataset.0 was batch_size=5.* and is batch_size=8",
    ),
}  # fmt: skip


def begun(loader, steps=3):
    stream = iter(loader)
    for _ in range(steps):
        next(stream)
    return json.loads(json.dumps(loader.state_dict())), [batch.tolist() for batch in stream]


@pytest.mark.parametrize("change", CHANGES)
def test_other_batches_are_refused_by_name(change):
    make, was, is_now, message = CHANGES[change]
    state, rest = begun(make(**was))
    again = make(**was)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == rest
    other = make(**is_now)
    other.load_state_dict(state)
    with pytest.raises(StateError, match=f"of other batches: .*{message}"):
        next(iter(other))
    other = make(**was)
    other.load_state_dict(
        {name: state[name] for name in state if name not in ("sampling", "check")}
    )
    assert next(iter(other)) is not None  # a state of an earlier version


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": 2},
        {"prefetch_factor": 3, "num_workers": 1},
        {"timeout": 60, "num_workers": 1},
    ],
    ids=repr,
)
def test_options_that_change_no_batch_may_change(options):
    state, rest = begun(listed())
    again = listed(**options)
    again.load_state_dict(state)
    assert [batch.tolist() for batch in again] == rest


@pytest.mark.parametrize("make", [listed, streamed])
def test_batches_may_change_between_epochs(make):
    loader = make()
    list(loader)
    again = make(batch_size=8)
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert again.epoch == 1
    assert len(list(again)) == 7


def test_generator_may_be_seeded_in_every_epoch():
    generator = seeded(0)
    loader = listed(shuffle=True, generator=generator)
    generator.manual_seed(7)
    state, rest = begun(loader)
    generator = seeded(0)
    again = listed(shuffle=True, generator=generator)
    again.load_state_dict(state)
    generator.manual_seed(7)
    assert [batch.tolist() for batch in again] == rest
