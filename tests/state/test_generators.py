"""A user's generator may yield before it takes an item, and after its source has ended."""

from __future__ import annotations

import pytest
from numbered import copies, indexed_numbers, not_fifth, number

import penstock as wds
from penstock.engine import item_cost as pace

FIRST, LAST = 1001, 1002


def framed(source):
    """Yield one item before taking any, and one after the source has ended."""
    yield FIRST
    yield from source
    yield LAST


def held_back(source):
    """Yield everything after the source has ended."""
    yield from list(source)


def dropped_tail(n):
    return n < 20


def noisy(n, rng):
    return n * 1000 + int(rng.integers(1000))


def alone(n):
    return (n,)


def size(item):
    """A number from whatever the stages before have made."""
    while isinstance(item, (list, tuple)):
        item = item[0]
    return int(item)


def streaming(urls):
    return wds.WebDataset(urls, shardshuffle=3, seed=1).map(number)


def indexed(urls):
    return indexed_numbers(urls, seed=1)


def listed(urls):
    return wds.DataPipeline(range(24))


def mixed(urls):
    return wds.DataPipeline(wds.RoundRobin([streaming(urls), indexed(urls)]))


def nested(urls):
    return wds.DataPipeline(indexed(urls).with_epoch(30))


SOURCES = [streaming, indexed, listed, mixed, nested]
BEFORE = {
    "nothing": (),
    "unlisted": (wds.listed(4), wds.unlisted()),
    "unbatched": (wds.map(alone), wds.batched(4), wds.unbatched(), wds.map(size)),
    "unbatched of one's own batches": (wds.batched(4, lambda items: (items,)), wds.unbatched()),
    "an expander": (copies(3),),
    "a filter": (wds.select(dropped_tail),),
    "an expander that drops the tail": (wds.map(lambda n: [n] * (n < 20)), wds.unlisted()),
    "a shuffle": (wds.shuffle(5),),
    "a slice": (wds.slice(3, 20),),
    "a repeat": (wds.repeat(2),),
    "a sample": (wds.rsample(0.5),),
    "another generator": (framed,),
    "bucketed batches": (
        wds.dynamic_bucketed_batch(
            None,
            lambda n: 1 + n % 3,
            buffersize=4,
            collate_fn=None,
            sampler_kwargs={"target_batch_numel": 4},
        ),
    ),
    "a log": (wds.log_keys(None),),
}


@pytest.mark.parametrize("generator", [framed, held_back])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("before", BEFORE)
def test_a_generator_that_yields_before_or_after_its_source_runs_through(
    urls, source, before, generator
):
    """Every stage that asks for tickets follows: random functions, buffers, batches."""
    stages = (*BEFORE[before], generator, wds.map(size))
    wanted = list(source(urls).compose(*stages))
    after = (wds.map(noisy, rng=True), wds.shuffle(6), wds.listed(3), wds.unlisted())
    dataset = source(urls).compose(*stages, *after)
    found = []
    for item in dataset:
        found.append(item // 1000)
        dataset.origins()
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("before", BEFORE)
def test_an_error_on_what_a_generator_yields_last_is_the_users_error(urls, before):
    def refuse(n):
        if n == LAST:
            raise ZeroDivisionError
        return n

    dataset = streaming(urls).compose(*BEFORE[before], framed, wds.map(size), wds.map(refuse))
    with pytest.raises(ZeroDivisionError):
        list(dataset)


@pytest.mark.parametrize("generator", [framed, held_back])
@pytest.mark.parametrize("source", [streaming, indexed, listed])
@pytest.mark.parametrize("before", BEFORE)
def test_what_a_generator_yields_is_the_same_on_threads(
    urls, source, before, generator, monkeypatch
):
    monkeypatch.setattr(pace, "CHEAP_SECONDS", -1.0)
    monkeypatch.setattr(pace, "MEASURED", 2)

    def make():
        stages = (*BEFORE[before], generator, wds.map(size), wds.map(noisy, rng=True))
        return source(urls).compose(*stages, wds.select(not_fifth))

    loader = wds.WebLoader(make(), batch_size=None, num_workers=2, engine="threads")
    assert list(map(int, loader)) == list(make())
