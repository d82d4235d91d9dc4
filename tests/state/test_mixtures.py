"""Planned mixtures: resumed at any step, on other ranks, after kills, with other weights."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from itertools import islice

import mixture_rank
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numbered import number, write_shards

import penstock as wds
from penstock.shards.index import open_index
from penstock.stages.sources import mixed_samples

SIZES = (7, 30, 12, 55, 1, 24)


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Six indexed data sets; the samples of source n are numbered from 1000 * n on."""
    folder = tmp_path_factory.mktemp("sources")
    found = []
    for place, size in enumerate(SIZES):
        each = -(-size // 3) if size > 2 else size
        urls = []
        for shard, first in enumerate(range(0, size, each)):
            count = min(each, size - first)
            urls += write_shards(folder, 1, count, 1000 * place + first, f"s{place}-{shard}")
        open_index(urls, True)
        found.append(urls)
    return found


def indexed(urls, **options):
    return wds.WebDataset(urls, index=True, shardshuffle=2, ends="exact", **options)


NUMBERS = st.sampled_from([0.3, 1, 2, 7.5])
POINTS = st.dictionaries(st.integers(0, 150), NUMBERS, min_size=1, max_size=3)
WEIGHTS = st.one_of(NUMBERS, POINTS.map(lambda p: {"step": p}), POINTS.map(lambda p: {"linear": p}))
LEAVES = st.integers(0, len(SIZES) - 1)
TREES = st.recursive(
    LEAVES,
    lambda inner: st.tuples(
        st.lists(st.tuples(inner, WEIGHTS), min_size=1, max_size=4),
        st.sampled_from(["first", "all", "each", "once"]),
        st.sampled_from(["quota", "random"]),
    ),
    max_leaves=8,
).filter(lambda tree: not isinstance(tree, int))


def build(tree, sources):
    if isinstance(tree, int):
        return indexed(sources[tree])
    branches, until, mode = tree
    parts = [build(branch, sources) for branch, _ in branches]
    if until == "once":
        return wds.mix(parts)
    return wds.mix(parts, [weight for _, weight in branches], until=until, mode=mode)


@pytest.mark.filterwarnings("ignore:.*both read")
@settings(deadline=None, max_examples=25)
@given(TREES, st.sampled_from([1, 2, 3, 5]), st.data())
def test_any_tree_resumes_at_any_step_on_any_divisor_of_the_lanes(sources, tree, run, data):
    def make():
        return wds.DataPipeline(build(tree, sources), lanes=12).map(number).listed(run)

    whole = list(make())[:40]
    steps = data.draw(st.integers(0, len(whole)))
    first = make()
    begun = list(islice(iter(first), steps))
    assert begun == whole[:steps]
    state = json.loads(json.dumps(first.state_dict()))
    ranks = data.draw(st.sampled_from([1, 2, 3, 4, 6, 12]))
    rest = []
    with pytest.MonkeyPatch.context() as patch:
        for rank in range(ranks):
            patch.setenv("RANK", str(rank))
            patch.setenv("WORLD_SIZE", str(ranks))
            pipeline = make()
            pipeline.load_state_dict([state])
            rest.append(list(islice(iter(pipeline), 40)))
    alone = make()
    alone.load_state_dict(state)
    expected = list(islice(iter(alone), 40 * 12))
    assert expected[: len(whole) - steps] == whole[steps:]
    together = Counter(map(tuple, (batch for part in rest for batch in part)))
    assert not together - Counter(map(tuple, expected)) or ranks * 40 > len(expected)


def restarts_complete(tree, source):
    """Return False if a mixture inside the tree may begin again in the middle of a source."""
    *path, _ = map(int, source.split("/"))
    inner = tree
    for place in path:
        inner = inner[0][place][0]
        if inner[1] in ("first", "all"):
            return False
    return True


@pytest.mark.filterwarnings("ignore:.*both read")
@example(([(3, 0.3), (([(0, 0.3), (0, 0.3)], "first", "quota"), 0.3)], "all", "quota"))
@settings(deadline=None, max_examples=15)
@given(TREES)
def test_sources_of_a_tree_give_what_their_turns_say(sources, tree):
    """Per leaf: every pass is a permutation of its samples."""
    pipeline = build(tree, sources)
    found: dict[str, list[int]] = {}
    for sample in islice(iter(pipeline), 3000):
        found.setdefault(sample["__source__"], []).append(number(sample))
    for source, numbers in found.items():
        if not restarts_complete(tree, source):
            continue
        size = SIZES[numbers[0] // 1000]
        for begin in range(0, len(numbers) - size + 1, size):
            assert len(set(numbers[begin : begin + size])) == size


def test_every_step_can_be_resumed(sources):
    def make():
        mixed = wds.mix(
            [indexed(urls).map(number) for urls in sources],
            [1, {"linear": {0: 1, 90: 4}}, 2, {"step": {0: 0, 40: 9}}, 1, 3],
            until="forever",
        )
        return wds.DataPipeline(mixed, lanes=4).shuffle(7).listed(3)

    first = make()
    stream = iter(first)
    states, steps = [first.state_dict()], []
    for _ in range(40):
        steps.append(next(stream))
        states.append(json.loads(json.dumps(first.state_dict())))
    for place, state in enumerate(states):
        pipeline = make()
        pipeline.load_state_dict(state)
        found = list(islice(iter(pipeline), min(5, len(steps) - place)))
        assert found == steps[place : place + 5]


def test_schedule_goes_on_in_the_next_epoch(sources):
    """Schedules count the samples of the whole run, not of an epoch."""
    weights = [1, {"step": {0: 0, 40: 1}}]
    pipeline = wds.mix([indexed(sources[1]), indexed(sources[3])], weights)
    first, second = ([s["__source__"] for s in pipeline] for _ in range(2))
    assert set(first) == {"0"}
    assert set(second[:10]) == {"0"}
    assert Counter(second)["1"] > 5


@pytest.fixture
def within_a_minute():
    """Fail a test that would otherwise run for hours."""

    def fail(*_):
        pytest.fail("planned every earlier epoch")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


SCHEDULES = [1, {"step": {0: 0, 40: 1}}]


@pytest.mark.usefixtures("within_a_minute")
def test_scheduled_mixture_that_repeats_without_end_has_later_epochs(sources):
    """Each epoch that a repeat cuts begins the schedule again, as with_epoch does."""
    pipeline = wds.mix([indexed(sources[1]), indexed(sources[3])], SCHEDULES).repeat(-1, 120)
    for _ in range(3):
        names = [sample["__source__"] for sample in pipeline]
        assert len(names) == 120
        assert set(names[:20]) == {"0"}
        assert Counter(names[60:])["1"] > 5


@pytest.mark.usefixtures("within_a_minute")
@pytest.mark.parametrize("until", ["first", "all", "each"])
def test_epoch_far_away_begins_at_once(sources, until):
    def make():
        return wds.mix([indexed(sources[1]), indexed(sources[3])], SCHEDULES, until=until)

    passed, fresh = make(), make()
    for _ in range(5):
        expected = list(map(number, passed))
    fresh.set_epoch(4)
    assert list(map(number, fresh)) == expected
    fresh.set_epoch(10**9 + 7)
    later = [sample["__source__"] for sample in fresh]
    assert set(later) == {"0", "1"}


def test_schedule_that_becomes_constant_in_a_later_epoch_loses_nothing(sources, monkeypatch):
    monkeypatch.setattr(mixed_samples, "BLOCK", 16)
    weights = [{"linear": {0: 1, 300: 8}}, 2, {"step": {0: 1, 140: 5}}]
    pipeline = weighted(sources[1:4], weights, until="each")
    list(pipeline)
    seen = [number(sample) for sample in islice(iter(pipeline), 30)]
    changed = weighted(sources[1:4], [1, 2, 1], until="each")
    changed.load_state_dict(resaved(pipeline), mixture="continue")
    seen += [number(sample) for sample in changed]
    assert len(seen) == len(set(seen)) == sum(SIZES[1:4])


def weighted(sources, weights, names="abcdef", **options):
    data = {name: indexed(urls) for name, urls in zip(names, sources)}
    options = {"until": "forever", **options}
    return wds.DataPipeline(wds.mix(data, weights, **options), lanes=6)


@pytest.mark.filterwarnings("ignore:.*both read")
def test_changed_weights_are_refused_with_the_difference_named(sources):
    first = weighted(sources, [1, 2, 3, 4, 5, 6])
    list(islice(iter(first), 20))
    state = json.loads(json.dumps(first.state_dict()))
    with pytest.raises(wds.StateError, match=r"weight of 'c' was 3.0 and is 9.0.*continue"):
        weighted(sources, [1, 2, 9, 4, 5, 6]).load_state_dict(state)
    with pytest.raises(wds.StateError, match=r"source 'f' is gone"):
        weighted(sources[:5], [1, 2, 3, 4, 5]).load_state_dict(state)
    with pytest.raises(wds.StateError, match=r"shards or stages of 'a' are others"):
        weighted([sources[1], *sources[1:]], [1, 2, 3, 4, 5, 6]).load_state_dict(state)
    with pytest.raises(wds.PipelineError, match="mixture is"):
        weighted(sources, [1, 2, 3, 4, 5, 6]).load_state_dict(state, mixture="yes")


@pytest.mark.filterwarnings("ignore:.*both read")
@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("taken", [1, 777, 5001])
def test_weight_change_at_a_checkpoint_loses_and_repeats_nothing(sources, taken, shuffled):
    def make(weights, count=6):
        pipeline = weighted(sources[:count], weights)
        return pipeline.shuffle(100) if shuffled else pipeline

    first = make([1, 2, 3, 4, 1], 5)
    head = list(islice(iter(first), taken))
    state = json.loads(json.dumps(first.state_dict()))
    second = make([3, 1, 1, 1, 2, 8])
    second.load_state_dict(state, mixture="continue")
    stream = iter(second)
    tail = list(islice(stream, 16_000))
    found: dict[str, list[int]] = {}
    for sample in head + tail:
        found.setdefault(sample["__source__"], []).append(number(sample))
    for name, numbers in found.items():
        size = SIZES["abcdef".index(name)]
        counts = Counter(numbers)
        slack = -(-200 // size) + 1 if shuffled else 1  # what waits in the buffer
        assert max(counts.values()) - min(counts[n] for n in set(numbers)) <= slack
        assert len(counts) == size
    late = Counter(sample["__source__"] for sample in tail[10_000:])
    assert late["f"] == pytest.approx(6000 * 8 / 16, rel=0.03)
    again = make([3, 1, 1, 1, 2, 8])
    again.load_state_dict(json.loads(json.dumps(second.state_dict())))
    expected = [number(sample) for sample in islice(stream, 500)]
    assert [number(sample) for sample in islice(iter(again), 500)] == expected


def continued(weights, state, sources, **options):
    pipeline = weighted(sources[: len(weights)], weights, **options)
    pipeline.load_state_dict(state, mixture="continue")
    return pipeline


@pytest.mark.parametrize("taken", [1, 5, 20])
def test_mixture_that_changes_several_times_in_an_epoch_loses_nothing(sources, taken, monkeypatch):
    monkeypatch.setattr(mixed_samples, "BLOCK", 16)
    options = {"until": "each"}
    pipeline = weighted(sources[:4], [1, 2, 3, 4], **options)
    seen = []
    for weights in ([4, 1, 1, 1], [1, 0, 1, 9], [2, 2, 2, 2, 2, 2], [1, 5, 1, 5, 1, 5]):
        seen += islice(iter(pipeline), taken)
        pipeline = continued(weights, resaved(pipeline), sources, **options)
    again = weighted(sources, [1, 5, 1, 5, 1, 5], **options)
    stream = iter(pipeline)
    seen += islice(stream, taken)
    again.load_state_dict(resaved(pipeline))
    rest = [number(sample) for sample in stream]
    assert [number(sample) for sample in again] == rest
    found = sorted([*map(number, seen), *rest])
    assert found == [1000 * place + n for place, size in enumerate(SIZES) for n in range(size)]
    stats = pipeline.stats().sources
    assert {name: one.samples for name, one in stats.items()} == dict(zip("abcdef", SIZES))


def test_schedule_that_changes_in_a_later_epoch_loses_nothing(sources, monkeypatch):
    """The position in the run, which schedules count, is part of the state."""
    monkeypatch.setattr(mixed_samples, "BLOCK", 16)
    weights = [{"linear": {0: 1, 150: 8}}, 2, {"step": {0: 1, 140: 5}}]
    pipeline = weighted(sources[1:4], weights, until="each")
    list(pipeline)
    seen = [number(sample) for sample in islice(iter(pipeline), 30)]
    changed = weighted(sources[1:4], [1, {"step": {0: 3, 250: 9}}, 1], until="each")
    changed.load_state_dict(resaved(pipeline), mixture="continue")
    seen += [number(sample) for sample in changed]
    assert len(seen) == len(set(seen)) == sum(SIZES[1:4])
    stream = iter(changed)
    list(islice(stream, 20))
    again = weighted(sources[1:4], [1, {"step": {0: 3, 250: 9}}, 1], until="each")
    again.load_state_dict(resaved(changed))
    assert list(map(number, again)) == list(map(number, stream))


def test_weights_change_on_several_ranks_with_all_states(sources, monkeypatch):
    def of_rank(rank, weights, states=None):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        pipeline = weighted(sources, weights)
        if states is not None:
            pipeline.load_state_dict(states, mixture="continue")
        return pipeline

    seen, states = [], []
    for rank in range(2):
        pipeline = of_rank(rank, [1, 1, 1, 1, 1, 1])
        seen += islice(iter(pipeline), 300 + rank)
        states.append(json.loads(json.dumps(pipeline.state_dict())))
    for rank in range(2):
        seen += islice(iter(of_rank(rank, [1, 1, 1, 5, 1, 1], states)), 6000)
    counts = Counter(number(sample) for sample in seen)
    for place, size in enumerate(SIZES):
        own = [counts[1000 * place + n] for n in range(size)]
        assert max(own) - min(own) <= 2  # the ranks stop in the middle of a round of lanes


def test_loader_continues_with_other_weights(sources):
    def make(weights):
        return wds.WebLoader(weighted(sources, weights), batch_size=None, num_workers=2)

    first = make([1, 1, 1, 1, 1, 1])
    seen = [number(sample) for sample in islice(iter(first), 500)]
    state = json.loads(json.dumps(first.state_dict()))
    assert first.stats().sources["a"].samples == pytest.approx(83, abs=25)
    with pytest.raises(wds.StateError, match="weight of 'd'"):
        make([1, 1, 1, 5, 1, 1]).load_state_dict(state)
    second = make([1, 1, 1, 5, 1, 1])
    second.load_state_dict(state, mixture="continue")
    seen += [number(sample) for sample in islice(iter(second), 7000)]
    counts = Counter(seen)
    for place, size in enumerate(SIZES):
        own = [counts[1000 * place + n] for n in range(size)]
        assert max(own) - min(own) <= 2


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize(
    ("weights", "changed", "until"),
    [
        (None, None, None),
        ([1, 1], [1, 1, 1], "each"),
        ([1, {"linear": {0: 1, 150: 8}}], [{"step": {0: 3, 250: 9}}, 1, 1], "each"),
    ],
)
def test_loader_continues_in_a_later_epoch_without_loss(
    sources, workers, seed, weights, changed, until, monkeypatch
):
    monkeypatch.setattr(mixed_samples, "BLOCK", 16)

    def make(weights, count):
        data = {name: indexed(urls) for name, urls in zip("abc", sources[1:][:count])}
        mixed = wds.mix(data, weights, until=until, seed=seed)
        pipeline = wds.DataPipeline(mixed, lanes=2)
        return wds.WebLoader(pipeline, batch_size=None, num_workers=workers)

    first = make(weights, 2)
    list(first)
    seen = [number(sample) for sample in islice(iter(first), 25)]
    second = make(changed, 3)
    second.load_state_dict(resaved(first), mixture="continue")
    seen += [number(sample) for sample in second]
    assert len(seen) == len(set(seen)) == sum(SIZES[1:4])


def test_source_whose_data_changed_is_refused_when_it_is_opened(sources, tmp_path):
    urls = write_shards(tmp_path, 2, 10)
    open_index(urls, True)

    def make():
        return wds.mix([indexed(urls), indexed(sources[3])], [1, 1], until="forever")

    first = make()
    list(islice(iter(first), 9))
    state = json.loads(json.dumps(first.state_dict()))
    for name in tmp_path.iterdir():
        name.unlink()
    open_index(write_shards(tmp_path, 2, 11), True)
    second = make()
    second.load_state_dict(state)
    with pytest.raises(wds.StateError, match="source '0' have changed"):
        list(islice(iter(second), 9))


def run_leg(folder, leg, world, kill_after):
    """Start the ranks; kill all of them once one has made so many steps (None: let them end)."""
    place = {**os.environ, "WORLD_SIZE": str(world)}
    jobs = [
        subprocess.Popen(
            [sys.executable, mixture_rank.__file__, str(folder), str(leg)],
            env={**place, "RANK": str(rank)},
        )
        for rank in range(world)
    ]
    paths = [folder / f"{leg}.{rank}.json" for rank in range(world)]
    deadline = time.monotonic() + 120

    def steps(path):
        return json.loads(path.read_text())["steps"] if path.exists() else None

    try:
        while any(job.poll() is None for job in jobs):
            assert time.monotonic() < deadline, "the ranks stand still"
            made = [steps(path) for path in paths]
            begun = all(made)  # a state before the first step is of another moment
            if kill_after is not None and begun and max(made) >= kill_after:
                break
            time.sleep(0.002)
    finally:
        for job in jobs:
            job.send_signal(signal.SIGKILL)
            job.wait()
    return [json.loads(path.read_text()) for path in paths]


def test_ranks_that_are_killed_and_return_in_other_numbers_lose_nothing(tmp_path, kills):
    for name, size in mixture_rank.SIZES.items():
        open_index(write_shards(tmp_path, 3, size // 3 + 1, name=name), True)
    expected = sorted(name for batch in mixture_rank.make(tmp_path) for name in batch)
    assert len(set(expected)) == len(expected) > 200
    rng = random.Random(8)
    seen: list[str] = []
    killed = leg = 0
    while killed < kills or seen:  # several epochs; the last one is completed
        after = rng.randint(1, 3) if killed < kills else None
        saved = run_leg(tmp_path, leg, (2, 3, 4)[leg % 3], after)
        leg += 1
        seen += [name for one in saved for name in one["seen"]]
        mixture_rank.durable(str(tmp_path / "states.json"), [one["state"] for one in saved])
        if all(one["steps"] < 0 for one in saved):
            assert sorted(seen) == expected
            seen = []
        else:
            killed += 1


def stop_early(pipeline, steps=20):
    stream = iter(pipeline)
    for _ in range(steps):
        next(stream)
    return json.loads(json.dumps(pipeline.state_dict()))


@pytest.mark.parametrize("mixture", ["same", "continue"])
def test_source_that_changed_under_its_name_is_refused(sources, mixture):
    state = stop_early(wds.mix({"a": indexed(sources[1]), "b": indexed(sources[3])}))
    changed = wds.mix({"a": indexed(sources[1], fraction=0.5), "b": indexed(sources[3])})
    with pytest.raises(wds.StateError, match="'a' are others"):
        changed.load_state_dict(state, mixture=mixture)


def test_sources_in_another_order_are_refused_or_lose_nothing(sources):
    first, second = indexed(sources[1]), indexed(sources[3])
    pipeline = wds.mix({"a": first, "b": second})
    stream = iter(pipeline)
    seen = [number(next(stream)) for _ in range(20)]
    state = pipeline.state_dict()
    with pytest.raises(wds.StateError, match="order of the sources"):
        wds.mix({"b": second, "a": first}).load_state_dict(state)
    other = wds.mix({"b": second, "a": first})
    other.load_state_dict(state, mixture="continue")
    every = seen + [number(sample) for sample in other]
    assert len(every) == len(set(every)) == SIZES[1] + SIZES[3]


# ── streams ─────────────────────────────────────────────────────────────────────────────


def kept(sample):
    return number(sample) % 5 != 3


def filtered(sources, weights, names="abcdef", mode="quota", until="each", **options):
    """A mixture that cannot be planned, since its sources have a filter."""
    data = {name: indexed(urls).select(kept) for name, urls in zip(names, sources)}
    mixed = wds.mix(data, weights, mode=mode, until=until)
    return wds.DataPipeline(mixed, **{"lanes": 6, **options})


def expected_of(sources):
    numbers = (1000 * place + n for place in range(len(sources)) for n in range(SIZES[place]))
    return [n for n in numbers if n % 5 != 3]


def resaved(pipeline):
    return json.loads(json.dumps(pipeline.state_dict()))


@pytest.mark.parametrize("mode", ["quota", "random"])
@pytest.mark.parametrize("taken", [1, 17, 60])
@pytest.mark.parametrize("shuffled", [False, True])
def test_streams_continue_with_other_weights_modes_and_order(sources, taken, mode, shuffled):
    def make(weights, names, mode):
        order = [sources["abcdef".index(name)] for name in names]
        pipeline = filtered(order, weights, names, mode)
        return pipeline.shuffle(20) if shuffled else pipeline

    first = make([1, 2, 3, 4, 5, 6], "abcdef", mode)
    seen = [number(sample) for sample in islice(iter(first), taken)]
    with pytest.raises(wds.StateError, match=r"weight of 'a' was 1.0 and is 9.0.*continue"):
        make([9, 2, 3, 4, 5, 6], "abcdef", mode).load_state_dict(resaved(first))
    second = make([9, 1, 1, 8, 2, 1], "fbcdea", "quota")
    second.load_state_dict(resaved(first), mixture="continue")
    stream = iter(second)
    seen += [number(sample) for sample in islice(stream, 20)]
    third = make([9, 1, 1, 8, 2, 1], "fbcdea", "quota")
    third.load_state_dict(resaved(second))  # the changed mixture is now the saved one
    rest = [number(sample) for sample in stream]
    assert [number(sample) for sample in third] == rest
    assert sorted(seen + rest) == expected_of(sources)


@pytest.mark.parametrize("shuffled", [False, True])
def test_streams_keep_the_position_of_a_source_of_weight_0(sources, shuffled):
    def make(weights):
        pipeline = filtered(sources[:4], weights)
        return pipeline.shuffle(10) if shuffled else pipeline

    seen, state = [], None
    for weights, count in (([1, 1, 1, 1], 20), ([1, 0, 2, 1], 20), ([1, 1, 1, 1], None)):
        pipeline = make(weights)
        if state is not None:
            pipeline.load_state_dict(state, mixture="continue")
        part = [number(sample) for sample in islice(iter(pipeline), count)]
        seen += part
        state = resaved(pipeline)
    assert sorted(seen) == expected_of(sources[:4])


def test_streams_continue_with_a_new_source_and_without_an_old_one(sources):
    first = filtered(sources[:3], [1, 1, 1])
    seen = [number(sample) for sample in islice(iter(first), 12)]
    second = filtered([sources[0], sources[2], sources[3]], [1, 3, 2], "acd")
    second.load_state_dict(resaved(first), mixture="continue")
    seen += [number(sample) for sample in second]
    places = (0, 2, 3)
    expected = [n for n in expected_of(sources[:4]) if n // 1000 in places]
    assert sorted(n for n in seen if n // 1000 in places) == expected
    buffered = filtered(sources[:3], [1, 1, 1]).shuffle(10)
    list(islice(iter(buffered), 12))
    third = filtered([sources[0], sources[2]], [1, 3], "ac").shuffle(10)
    third.load_state_dict(resaved(buffered), mixture="continue")
    with pytest.raises(wds.StateError, match="'b', which is gone: keep it, with weight 0"):
        list(third)


def test_streams_continue_on_other_numbers_of_ranks(sources, monkeypatch):
    def of_rank(rank, world, weights, states=None):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        pipeline = filtered(sources, weights)
        if states is not None:
            pipeline.load_state_dict(states, mixture="continue")
        return pipeline

    seen, states = [], []
    for rank in range(3):
        pipeline = of_rank(rank, 3, [1, 1, 1, 1, 1, 1])
        seen += [number(sample) for sample in islice(iter(pipeline), 11)]
        states.append(resaved(pipeline))
    for rank in range(2):
        seen += [number(sample) for sample in of_rank(rank, 2, [1, 1, 1, 9, 1, 1], states)]
    assert sorted(seen) == expected_of(sources)


@pytest.mark.parametrize("options", [{"num_workers": 2}, {"engine": "threads", "num_workers": 2}])
def test_loader_of_streams_continues_with_other_weights(sources, options):
    """Workers and threads save states periodically: what came since then is not repeated."""

    def make(weights):
        data = filtered(sources, weights).map(number).shuffle(8).map(str)
        return wds.WebLoader(data, batch_size=None, **options)

    first = make([1, 1, 1, 1, 1, 1])
    seen = list(islice(iter(first), 37))
    samples = sum(one.samples for one in first.stats().sources.values())
    assert samples >= 37 or options.get("engine")  # threads save the state less often
    state = resaved(first)
    with pytest.raises(wds.StateError, match=r"weight of 'd' was 1.0 and is 5.0"):
        make([1, 1, 1, 5, 1, 1]).load_state_dict(state)
    second = make([1, 1, 1, 5, 1, 1])
    second.load_state_dict(state, mixture="continue")
    assert sorted(map(int, [*seen, *second])) == expected_of(sources)


@pytest.mark.parametrize("workers", [None, 0, 1])
def test_streams_that_are_cut_to_a_length_continue_with_other_weights(sources, workers):
    def make(weights):
        data = filtered(sources, weights, until="forever", lanes=None).map(number).with_epoch(700)
        return (
            data if workers is None else wds.WebLoader(data, batch_size=None, num_workers=workers)
        )

    first = make([1, 1, 1, 1, 1, 1])
    seen = list(islice(iter(first), 251))
    second = make([1, 1, 1, 5, 1, 1])
    second.load_state_dict(resaved(first), mixture="continue")
    seen += second
    assert len(seen) == 700
    for place in range(len(sources)):
        counts = Counter(n for n in seen if n // 1000 == place)
        assert set(counts) == {n for n in expected_of(sources) if n // 1000 == place}
        assert max(counts.values()) - min(counts.values()) <= 1


def test_planned_mixture_does_not_continue_as_streams(sources):
    planned = wds.mix({"a": indexed(sources[1]), "b": indexed(sources[3])})
    streams = wds.mix({"a": indexed(sources[1]), "b": indexed(sources[3]).select(kept)})
    with pytest.raises(wds.StateError, match="mixed as streams, since 'b' has the stage select"):
        streams.load_state_dict(stop_early(planned), mixture="continue")
    with pytest.raises(wds.StateError, match="of a mixture of streams, and this one is planned"):
        planned.load_state_dict(stop_early(streams), mixture="continue")


def test_stream_that_changed_under_its_name_is_refused(sources):
    def make(fraction, **weights):
        data = {"a": indexed(sources[1], fraction=fraction).select(kept), "b": indexed(sources[3])}
        return wds.mix(data, [2, weights.get("b", 1)])

    state = stop_early(make(1))
    with pytest.raises(wds.StateError, match="'a' are others"):
        make(0.5).load_state_dict(state)
    with pytest.raises(wds.StateError, match="'a' are others"):
        make(0.5, b=2).load_state_dict(state, mixture="continue")


def test_weights_of_a_mixture_inside_streams_are_compared(sources):
    def make(weight):
        inner = wds.mix([indexed(sources[1]), indexed(sources[3])], [1, weight])
        return wds.mix({"inner": inner, "b": indexed(sources[5]).select(kept)})

    with pytest.raises(wds.StateError, match="'inner' are others"):
        make(3).load_state_dict(stop_early(make(1)))


def test_states_of_streams_saved_before_mixtures_were_recorded_load(sources):
    first = filtered(sources, [1, 2, 3, 4, 5, 6])
    stream = iter(first)
    list(islice(stream, 20))
    state = resaved(first)
    del state["mixture"], state["check"]
    second = filtered(sources, [1, 2, 3, 4, 5, 6])
    second.load_state_dict(state)
    assert [number(sample) for sample in second] == [number(sample) for sample in stream]


@pytest.mark.parametrize("change", [{"mode": "random"}, {"until": "all"}, {"mode": "epochs"}])
def test_planned_mixture_continues_with_another_mode_or_end(sources, change):
    def make(**options):
        data = {name: indexed(urls) for name, urls in zip("abcd", sources)}
        return wds.DataPipeline(wds.mix(data, [1, 2, 1, 3], **options), lanes=6)

    first = make(until="each")
    seen = [number(sample) for sample in islice(iter(first), 20)]
    state = resaved(first)
    ((what, value),) = change.items()
    change = {"until": "each", **change} if what == "mode" and value != "epochs" else change
    with pytest.raises(wds.StateError, match=f"{what} was .* and is '{value}'.*continue"):
        make(**change).load_state_dict(state)
    second = make(**change)
    second.load_state_dict(state, mixture="continue")
    counts = Counter(seen + [number(sample) for sample in second])
    expected = [1000 * place + n for place in range(4) for n in range(SIZES[place])]
    if what == "mode" and value == "random":
        assert counts == Counter(expected)
    assert set(counts) == set(expected)
