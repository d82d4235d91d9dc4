"""A damaged state is refused with a StateError, or resumes the run that it was saved from."""

from __future__ import annotations

import copy
import functools
import json
import operator
import os
import random
import warnings
from itertools import islice

import pytest
import torch
from numbered import indexed, not_fifth, number, plus_one, through_json

import penstock as wds
from penstock.errors import PenstockError, StateError
from penstock.shards.index import build_index

STOP = 5
TRIALS = 60
MOST = 100
"""Items to read at most: a damaged count may let a run go on for longer."""


def text(sample):
    return {"n": number(sample), "x": [0] * (1 + number(sample) % 5)}


def stream(urls, **options):
    return wds.WebDataset(urls, **{"shardshuffle": 3, "seed": 5, **options}).map(number)


def mixed(urls, filtered):
    parts = {"a": indexed(urls[:2], seed=1), "b": indexed(urls[2:], seed=2)}
    if filtered:
        parts = {name: part.select(bool) for name, part in parts.items()}
    return wds.mix(parts, [2, 1], until="all").map(number)


def planned(urls):
    path = f"{urls[0]}.columns.parquet"
    if not os.path.exists(path):
        build_index(urls, path, columns={"length": lambda sample: float(sample["cls"]) % 7 + 1})
    plan = wds.Plan(20, length="length", pool=12)
    return wds.WebDataset(urls, index=path, plan=plan, seed=3).map(number).planned(None)


PIPELINES = {
    "stream": stream,
    "shuffled loader": lambda urls: wds.WebLoader(
        list(range(40)), batch_size=2, shuffle=True, generator=torch.Generator().manual_seed(1)
    ),
    "sampled loader": lambda urls: wds.WebLoader(
        list(range(40)), batch_size=2, sampler=wds.ReproducibleRandomSampler(range(40), seed=1)
    ),
    "stream with lanes": lambda urls: stream(urls, lanes=3).shuffle(4),
    "indexed": lambda urls: indexed(urls).map(number),
    "indexed with lanes": lambda urls: indexed(urls, lanes=6).map(number).listed(2),
    "shuffle": lambda urls: stream(urls).shuffle(8),
    "shuffle with a seed": lambda urls: stream(urls).shuffle(8, seed=3),
    "large shuffle": lambda urls: wds.DataPipeline(range(500), wds.shuffle(100, initial=100)),
    "batched": lambda urls: indexed(urls).map(number).listed(3),
    "selected": lambda urls: stream(urls).select(not_fifth).slice(2, 20),
    "repeated": lambda urls: stream(urls).shuffle(6).repeat(3),
    "with_epoch": lambda urls: stream(urls).shuffle(6).with_epoch(40),
    "unbatched": lambda urls: stream(urls).listed(4).unlisted().shuffle(6),
    "packed": lambda urls: (
        wds.WebDataset(urls, shardshuffle=False).map(text).map(lambda s: s["x"]).packed(8, buffer=6)
    ),
    "bucketed": lambda urls: (
        stream(urls)
        .map(lambda n: {"n": n, "length": n % 7 + 1})
        .dynamic_bucketed_batch(
            "length",
            len_fn=int,
            buffersize=12,
            collate_fn=lambda items: [item["n"] for item in items],
            sampler_kwargs={"target_batch_numel": 20},
        )
    ),
    "random mix": lambda urls: wds.DataPipeline(
        wds.RandomMix([stream(urls), indexed(urls).map(number)], [2, 1], longest=True),
        wds.shuffle(4),
    ),
    "planned mix": lambda urls: mixed(urls, False),
    "mix of streams": lambda urls: mixed(urls, True),
    "planned": planned,
    "nested": lambda urls: wds.DataPipeline(stream(urls).shuffle(5), wds.listed(2)),
    "map-style": lambda urls: wds.DataPipeline(wds.MapSamples(list(range(40)), shuffle=True)),
    "loader": lambda urls: wds.WebLoader(stream(urls).shuffle(4), batch_size=2),
    "loader with stages": lambda urls: (
        wds.WebLoader(stream(urls).listed(4), batch_size=None).unlisted().shuffle(6)
    ),
    "loader on threads": lambda urls: wds.WebLoader(
        indexed(urls, lanes=2).map(number).map(plus_one).listed(2),
        batch_size=None,
        num_workers=2,
        engine="threads",
    ),
}


LENGTHS = [1 + n % 7 for n in range(40)]
TABLE = {f"s{n:02d}": {"length": length} for n, length in enumerate(LENGTHS)}


def manifest_loader():
    data = wds.DynamicItemDataset(TABLE, output_keys=["id", "length"])
    return wds.SaveableDataLoader(data, batch_size=3, shuffle=True, collate_fn=str)


def share():
    batches = wds.DynamicBatchSampler(range(40), 20, lengths_list=LENGTHS, num_buckets=3, seed=1)
    return wds.DistributedSamplerWrapper(batches, 2, 1)


SAMPLERS = {
    "random": lambda: wds.ReproducibleRandomSampler(range(40), seed=1),
    "a rank's share": share,
    "planned": lambda: wds.PlannedBatchSampler(LENGTHS, 20, seed=1),
    "loader of a manifest": manifest_loader,
    "loader with a sampler": lambda: wds.SaveableDataLoader(
        range(40), batch_size=3, sampler=wds.ReproducibleRandomSampler(range(40), seed=1)
    ),
    "looped": lambda: wds.LoopedLoader(manifest_loader(), 7, batchsize_fn=len),
}


def paths(value, at=()):
    """Yield the place of every value inside a state."""
    parts = value.items() if isinstance(value, dict) else enumerate(value)
    for name, part in parts:
        yield (*at, name)
        if isinstance(part, (dict, list)):
            yield from paths(part, (*at, name))


def unchecked(value):
    """Return a state without checksums, as earlier versions saved it."""
    if isinstance(value, dict):
        return {name: unchecked(part) for name, part in value.items() if name != "check"}
    return [unchecked(part) for part in value] if isinstance(value, list) else value


def damage(state, dice):
    """Return a state with one thing changed."""
    state = copy.deepcopy(state)
    places = list(paths(state))
    *within, last = path = dice.choice(places)
    inside = state
    for name in within:
        inside = inside[name]
    value = inside[last]
    kind = dice.choice(("delete", "type", "number", "cut", "swap", "text"))
    if kind == "delete":
        del inside[last]
    elif kind == "number" and type(value) in (int, float):
        inside[last] = dice.choice((value + 1, value - 1, -1, -value, value * 1000, 10**30))
    elif kind == "cut" and isinstance(value, (list, str)) and value:
        inside[last] = value[: dice.randrange(len(value))]
    elif kind == "text" and isinstance(value, str) and value:
        cut = dice.randrange(len(value))
        inside[last] = value[:cut] + dice.choice("aA0%\0") + value[cut + 1 :]
    elif kind == "swap":
        other = dice.choice([p for p in places if p[: len(path)] != path] or [path])
        inside[last] = copy.deepcopy(functools.reduce(operator.getitem, other, state))
    else:
        inside[last] = dice.choice((None, True, -1, 3.5, "x", [], {}, [1], {"a": 1}, [[1, 2], 3]))
    return state


def plain(items):
    return json.loads(json.dumps(list(items), default=lambda value: value.tolist()))


def following(pipeline, state):
    pipeline.load_state_dict(state)
    return plain(islice(pipeline, MOST))


@pytest.fixture(autouse=True)
def warnings_of_replays_are_expected():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@pytest.fixture(scope="module")
def saved(urls):
    """The state of each pipeline after some items, and the items that follow."""
    found = {}
    for name, make in PIPELINES.items():
        pipeline = make(urls)
        items = iter(pipeline)
        list(islice(items, STOP))
        found[name] = through_json(pipeline.state_dict()), plain(islice(items, MOST))
    return found


@pytest.mark.parametrize("name", PIPELINES)
def test_a_damaged_state_is_refused_or_resumes(urls, saved, name):
    state, expected = saved[name]
    dice = random.Random(name)
    for trial in range(TRIALS):
        damaged = damage(state, dice)
        try:
            found = following(PIPELINES[name](urls), damaged)
        except StateError:
            continue
        assert found == expected, f"trial {trial}: {damaged}"


@pytest.mark.parametrize("name", PIPELINES)
def test_a_damaged_state_without_a_checksum_raises_no_foreign_exception(urls, saved, name):
    state, _ = saved[name]
    dice = random.Random(name)
    for trial in range(TRIALS):
        damaged = damage(unchecked(state), dice)
        try:
            following(PIPELINES[name](urls), damaged)
        except PenstockError:
            continue
        except Exception as error:
            raise AssertionError(f"trial {trial}: {type(error)} for {damaged}") from error


@pytest.mark.parametrize("part", [{"complete": True}, {"moved": True}, {"orders": {}}], ids=str)
def test_a_part_that_was_not_saved_is_refused(urls, saved, part):
    state, _ = saved["stream"]
    with pytest.raises(StateError, match="were not in it when it was saved"):
        PIPELINES["stream"](urls).load_state_dict({**state, **part})
    PIPELINES["stream"](urls).load_state_dict({**state, "step": 12})  # of a trainer


def saved_sampler(name):
    sampler = SAMPLERS[name]()
    items = iter(sampler)
    list(islice(items, 3))
    return through_json(sampler.state_dict()), plain(islice(items, MOST))


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_damaged_state_of_a_sampler_or_loader_is_refused_or_resumes(name):
    state, expected = saved_sampler(name)
    assert following(SAMPLERS[name](), state) == expected
    dice = random.Random(name)
    for trial in range(TRIALS):
        damaged = damage(state, dice)
        try:
            found = following(SAMPLERS[name](), damaged)
        except StateError:
            continue
        assert found == expected, f"trial {trial}: {damaged}"


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_damaged_state_of_a_sampler_without_a_checksum_raises_no_foreign_exception(name):
    state, _ = saved_sampler(name)
    dice = random.Random(name)
    for trial in range(TRIALS):
        damaged = damage(unchecked(state), dice)
        try:
            following(SAMPLERS[name](), damaged)
        except PenstockError:
            continue
        except Exception as error:
            raise AssertionError(f"trial {trial}: {type(error)} for {damaged}") from error
