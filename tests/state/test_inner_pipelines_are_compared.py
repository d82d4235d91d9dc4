"""A state of a pipeline with other seeds, mixtures or stages anywhere inside is refused by name."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from functools import partial
from itertools import islice

import hash_seeds
import pytest
from numbered import indexed, number, write_shards

import penstock as wds
from penstock.errors import StateError
from penstock.shards.index import open_index


@pytest.fixture(scope="module", autouse=True)
def at_shards(tmp_path_factory):
    """Two indexed sets, a and b, in the working folder of all tests here."""
    folder = tmp_path_factory.mktemp("sets")
    for name, first in (("a", 0), ("b", 100), ("c", 200)):
        open_index(write_shards(folder, 4, 6, first, name), True)
    before = os.getcwd()
    os.chdir(folder)
    yield
    os.chdir(before)


def shards(name, **options):
    return indexed(f"{name}{{000..003}}.tar", ends="exact", **options)


def mixed(weights=None, **options):
    return wds.mix({"a": shards("a"), "b": shards("b")}, weights, **options)


def step(later, first=5):
    return [1, {"step": {0: first, 40: later}}]


def is_small(sample):
    return number(sample) % 7 != 6


def filtered(weights=None, **options):
    return wds.mix({"a": shards("a"), "b": shards("b").select(is_small)}, weights, **options)


class Numbers(list):
    """A map-style dataset of samples."""


def mapped(seed):
    samples = Numbers({"__key__": str(n), "cls": b"%d" % n} for n in range(24))
    return wds.DataPipeline(wds.MapSamples(samples, shuffle=True), seed=seed)


def every(source, skipped):
    return (item for item in source if number(item) not in skipped)


LONG = list(range(1000, 1100))

CHANGES = {
    "seed of a data set": (lambda s: shards("a", seed=s), 1, 2, r"seed=1.* and is .*seed=2"),
    "seed of a mixture": (lambda s: mixed(seed=s), 1, 2, r"seed=1.* and is .*seed=2"),
    "seed of map samples": (mapped, 1, 2, r"seed=1.* and is .*seed=2"),
    "seed of streams": (lambda s: filtered(seed=s), 1, 2, r"seed=1.* and is .*seed=2"),
    "seed of a source of a mixture": (
        lambda s: wds.mix({"a": shards("a", seed=s), "b": shards("b")}),
        1, 2, "'a'",
    ),
    "seed of a source of streams": (
        lambda s: wds.mix({"a": shards("a", seed=s).select(is_small), "b": shards("b")}),
        1, 2, "'a'",
    ),
    "weights": (lambda w: mixed([1, w]), 2, 3, r"weight of 'b' was 2.0 and is 3.0"),
    "weights of streams": (
        lambda w: filtered([1, w]), 2, 3, r"'b' was 2.0 and is 3.0|shares=\[.*and is .*shares=\[",
    ),
    "until": (lambda u: mixed([1, 2], until=u), "each", "all", "until was 'each'|until='each'"),
    "until of streams": (
        lambda u: filtered([1, 2], until=u), "each", "all", "until was 'each'|until='each'",
    ),
    "a later point of a schedule": (lambda w: mixed(step(w)), 1, 2, r"40, 1.0.* and is .*40, 2.0"),
    "a later point of streams": (lambda w: filtered(step(w)), 1, 2, r"40, 1.0.* and is .*40, 2.0"),
    "passes": (lambda n: mixed([1, n], mode="epochs"), 2, 3, "weight of 'b' was 2.0 and is 3.0"),
    "passes of streams": (
        lambda n: filtered([1, n], mode="epochs"), 2, 3, "weight of 'b' was 2.0 and is 3.0",
    ),
    "shards of a source": (
        lambda name: wds.mix({"x": shards(name), "b": shards("b")}), "a", "c", "'x'",
    ),
    "a long argument": (
        lambda n: shards("a").then(every, [*LONG, n]), 1, 2, r"stage 0.* was every\(.*#",
    ),
    "a long argument by name": (
        lambda n: shards("a").then(every, skipped=(*LONG, n)), 1, 2, r"every\(skipped=.*#",
    ),
    "a large table": (
        lambda n: shards("a").then(every, dict.fromkeys([*LONG, n])), 1, 2, r"every\(.*#",
    ),
    "a length": (lambda n: shards("a").with_epoch(n), 15, 16, "with_epoch"),
}  # fmt: skip


def other():
    return shards("c")


PLACES = {
    "a pipeline": lambda inner: wds.DataPipeline(inner, lanes=2),
    "two pipelines": lambda inner: wds.DataPipeline(wds.DataPipeline(inner)),
    "a loader": lambda inner: wds.WebLoader(inner, batch_size=None),
    "a pipeline in a loader": lambda inner: wds.WebLoader(
        wds.DataPipeline(inner, lanes=2), batch_size=None, num_workers=2, engine="threads"
    ),
    "a round robin": lambda inner: wds.DataPipeline(wds.RoundRobin([other(), inner])),
    "a random mix": lambda inner: wds.DataPipeline(wds.RandomMix([inner, other()])),
    "a mixture": lambda inner: wds.mix({"in": inner, "c": other()}, [1, 1], until="all"),
    "streams": lambda inner: wds.mix({"in": inner, "c": other().select(is_small)}),
    "a mix in a mix": lambda inner: wds.DataPipeline(
        wds.RoundRobin([wds.RoundRobin([inner, other()]), other()]), wds.shuffle(3)
    ),
}


def begun(pipeline, steps=7):
    stream = iter(pipeline)
    seen = [number(next(stream)) for _ in range(steps)]
    return json.loads(json.dumps(pipeline.state_dict())), seen, stream


@pytest.mark.filterwarnings(r"ignore:every\(", "ignore:.*both read")
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_inside_is_refused_by_name(place, change):
    make, was, is_now, message = CHANGES[change]
    state, _, stream = begun(PLACES[place](make(was)))
    again = PLACES[place](make(was))
    again.load_state_dict(state)
    expected = [number(sample) for sample in islice(stream, 20)]
    assert [number(sample) for sample in islice(iter(again), 20)] == expected
    named = "'in'|" if place in ("a mixture", "streams") else ""
    with pytest.raises(StateError, match=f"{named}{message}"):
        PLACES[place](make(is_now)).load_state_dict(state)


def run_with_hash_seed(seed, *arguments):
    """Run hash_seeds.py in a process in which sets have another order."""
    found = subprocess.run(
        [sys.executable, hash_seeds.__file__, *arguments],
        env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    return json.loads(found.stdout)


def test_processes_with_other_hash_seeds_resume_each_other(tmp_path):
    saved, elsewhere = (run_with_hash_seed(seed, "save") for seed in ("1", "2"))
    assert set(saved) == set(hash_seeds.PIPELINES)
    for name, (state, _) in saved.items():
        assert state["tree"] == elsewhere[name][0]["tree"]
    states = tmp_path / "states.json"
    states.write_text(json.dumps({name: state for name, (state, _) in saved.items()}))
    expected = {name: following for name, (_, following) in saved.items()}
    assert run_with_hash_seed("2", "load", str(states)) == expected


def test_continuing_with_another_seed_is_refused():
    state, _, _ = begun(wds.DataPipeline(mixed([1, 2], seed=1)))
    changed = wds.DataPipeline(mixed([1, 3], seed=2))
    with pytest.raises(StateError, match=r"seed=1\) and is DataPipeline\(seed=2\)"):
        changed.load_state_dict(state, mixture="continue")


@pytest.mark.filterwarnings("ignore:.*both read")
def test_continuing_compares_the_sources_that_stay():
    def make(length, weights, **more):
        inner = mixed(step(length), until="all")
        return wds.mix({"in": inner, "c": shards("c"), **more}, weights, until="all")

    state, _, _ = begun(wds.DataPipeline(make(1, [1, 1])))
    changed = wds.DataPipeline(make(1, [1, 3, 2], more=shards("a", seed=9)))
    changed.load_state_dict(state, mixture="continue")
    assert list(changed)
    with pytest.raises(StateError, match="'in' are others"):
        wds.DataPipeline(make(2, [1, 3])).load_state_dict(state, mixture="continue")


def test_difference_among_hundreds_of_sources_is_found_in_a_small_state():
    def make(last):
        parts = [wds.DataPipeline([n], seed=n) for n in range(499)]
        return wds.DataPipeline(wds.RoundRobin([*parts, wds.DataPipeline([1], seed=last)]))

    pipeline = make(1)
    next(iter(pipeline))
    state = json.loads(json.dumps(pipeline.state_dict()))
    assert len(json.dumps(state["tree"])) < 16_000
    make(1).load_state_dict(state)
    with pytest.raises(StateError, match="the state is of another pipeline"):
        make(2).load_state_dict(state)


@pytest.mark.filterwarnings("ignore:.*both read")
def test_continuing_with_more_sources_than_a_state_lists():
    def make(count, weight):
        names = [f"source {n} of the mixture" for n in range(count)]
        data = {name: shards("ab"[n % 2]).select(is_small) for n, name in enumerate(names)}
        return wds.mix(data, dict.fromkeys(names, weight))

    state, _, _ = begun(make(60, 1))
    assert "rest" in state["tree"]
    changed = make(61, 1.25)
    changed.load_state_dict(state, mixture="continue")
    assert next(iter(changed))


def test_ranks_with_other_seeds_inside_are_not_of_one_run(monkeypatch):
    states = []
    for rank, seed in ((0, 1), (1, 2)):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        states.append(begun(wds.DataPipeline(mixed(seed=seed), lanes=2))[0])
    pipeline = wds.DataPipeline(mixed(seed=2), lanes=2)
    with pytest.raises(StateError, match=r"not of one run: stage 0 was .*seed=1.*seed=2"):
        pipeline.load_state_dict(states)


@dataclasses.dataclass
class Counted:
    """A transform that counts its calls."""

    size: int = 3
    calls: int = 0

    def __call__(self, sample):
        self.calls += 1
        return sample


def collect(sample, out):
    out.append(sample["__key__"])
    return sample


def collect_all(source, out):
    return (collect(sample, out) for sample in source)


CHANGING = {
    "a transform that counts": lambda size: shards("a").map(Counted(size)),
    "a list that grows": lambda size: shards("a").map(partial(collect, out=[None] * size)),
    "a list of a generator": lambda size: shards("a").then(collect_all, [None] * size),
    "in a mixture": lambda size: wds.mix([shards("a").map(Counted(size)), shards("b")]),
    "in a loader": lambda size: wds.WebLoader(shards("a").map(Counted(size)), batch_size=None),
}


@pytest.mark.filterwarnings("ignore:.*cannot save what it keeps")
@pytest.mark.parametrize("epochs", [0, 1])
@pytest.mark.parametrize("kind", CHANGING)
def test_arguments_that_change_while_running_are_those_of_the_beginning(kind, epochs):
    make = CHANGING[kind]
    pipeline = make(3)
    for _ in range(epochs):
        list(pipeline)
    state, _, stream = begun(pipeline)
    expected = [number(sample) for sample in stream]
    for again in (pipeline, make(3)):  # a rollback, and another process
        again.load_state_dict(state)
        assert [number(sample) for sample in again] == expected
    with pytest.raises(StateError, match=r"of another pipeline|stages of '0' are others"):
        make(4).load_state_dict(state)
