"""Which samples were in a batch, leaving some out, and random numbers that are nobody else's."""

from __future__ import annotations

import random
from itertools import islice

import numpy as np
import pytest
import torch
from numbered import copies, flat, indexed, noisy, not_fifth, number

import penstock as wds


def key_of(sample):
    return sample["__key__"]


def streamed(urls):
    return wds.WebDataset(urls, shardshuffle=3, seed=1)


@pytest.mark.parametrize("make", [indexed, streamed])
@pytest.mark.parametrize(
    "stages",
    [
        (wds.shuffle(6), wds.listed(4)),
        (wds.listed(5), wds.unlisted(), wds.shuffle(9), wds.listed(4)),
        (wds.rsample(0.7), wds.repeat(2), wds.shuffle(9), wds.listed(4)),
        (wds.info(n=0), wds.select(lambda key: key != "s0003"), wds.slice(20), wds.listed(4)),
        (wds.listed(4), wds.rsample(0.95), wds.slice(6)),
    ],
)
def test_the_origins_of_a_batch_are_its_samples(urls, make, stages):
    data = make(urls).map(key_of).compose(*stages)
    count = 0
    for batch in data:
        count += 1
        assert [origin.key for origin in data.origins()] == batch
        assert all(origin.url in urls and origin.offset % 512 == 0 for origin in data.origins())
    assert count > 3


def test_the_origins_of_a_mix_and_of_expanded_samples(urls, others):
    mix = wds.RandomMix([indexed(urls), streamed(others)], longest=True)
    data = wds.DataPipeline(mix, wds.map(key_of), wds.shuffle(7), wds.listed(3))
    for batch in data:
        assert [origin.key for origin in data.origins()] == batch
    grown = indexed(urls).map(number).compose(copies(4), wds.shuffle(5))
    for item in grown:
        (origin,) = grown.origins()
        assert origin.key == f"s{item // 10:04d}"


@pytest.mark.parametrize("lanes", [None, 1, 4])
def test_skipped_steps_are_left_out_and_the_rest_stays(urls, lanes):
    for stages in ((), (wds.listed(3),), (wds.shuffle(5),), (wds.select(not_fifth), wds.listed(2))):
        data = lambda: indexed(urls, lanes=lanes).map(number).compose(*stages)  # noqa: B023, E731
        whole = list(data())
        skipping = data()
        skipping.skip(4)
        assert list(skipping) == whole[4:]
        assert list(skipping) == list_of_epoch(data(), 1)  # only once


def list_of_epoch(data, epoch):
    data.set_epoch(epoch)
    return list(data)


def test_steps_are_skipped_behind_a_resume(urls):
    whole = list(indexed(urls).map(number).listed(3))
    first = indexed(urls).map(number).listed(3)
    list(islice(iter(first), 2))
    second = indexed(urls).map(number).listed(3)
    second.load_state_dict(first.state_dict())
    second.skip(3)
    assert list(second) == whole[5:]


def test_excluded_keys_are_left_out_and_the_rest_is_whole(urls):
    bad = {"s0003", "s0017"}
    for exclude in (bad, list(bad), bad.__contains__):
        data = indexed(urls, exclude=exclude).map(key_of)
        found = sorted(data)
        assert len(data) == len(found) == 22
        assert found == [f"s{n:04d}" for n in range(24) if f"s{n:04d}" not in bad]


# ── random numbers ──────────────────────────────────────────────────────────────────────


def global_draws(n):
    return n, random.random(), float(np.random.rand()), float(torch.rand(1))


def states():
    return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def everything(urls, others):
    mix = wds.RandomMix([indexed(urls), streamed(others).shuffle(4)], longest=True)
    data = wds.DataPipeline(mix, wds.map(number), wds.map(noisy, rng=True), wds.shuffle(9))
    data = data.compose(wds.map(global_draws, rng="global"), wds.rsample(0.8), wds.listed(3))
    return data


def test_the_global_generators_are_never_touched(urls, others):
    random.seed(5), np.random.seed(5), torch.manual_seed(5)
    before = states()
    found = list(everything(urls, others))
    assert states() == before
    list(wds.WebLoader(streamed(urls).shuffle(5), batch_size=None, num_workers=0))
    list(wds.WebDataset(urls, resampled=True).shuffle(5).with_epoch(9))
    data = everything(urls, others)
    next(iter(data))
    again = everything(urls, others)
    again.load_state_dict(data.state_dict())
    list(again)
    random.seed(6), np.random.seed(6), torch.manual_seed(6)
    assert list(everything(urls, others)) == found  # nor do they matter


def test_a_failing_transform_leaves_the_global_generators_alone(urls):
    def fail(n):
        random.random(), np.random.rand(), torch.rand(1)
        raise ValueError("no")

    before = states()
    data = indexed(urls).map(number).map(fail, rng="global", handler=wds.ignore_and_continue)
    assert list(data) == []
    assert states() == before


def test_random_transforms_depend_on_the_sample_not_on_the_machine(urls, monkeypatch):
    def drawn(world, workers):
        found = []
        for rank in range(world):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(world))
            data = indexed(urls, lanes=12, ends="exact").map(number).map(global_draws, rng="global")
            found += wds.WebLoader(data, batch_size=None, num_workers=workers)
        return sorted(found)

    one = drawn(1, 0)
    assert one == drawn(2, 0) == drawn(3, 2)
    assert len({item[1] for item in one}) == 24


def test_another_epoch_draws_other_numbers(urls):
    data = indexed(urls).map(number).map(noisy, rng=True).listed(24)
    first, second = sorted(flat(data)), sorted(flat(data))
    assert [n // 1000 for n in first] == [n // 1000 for n in second] == list(range(24))
    assert first != second
