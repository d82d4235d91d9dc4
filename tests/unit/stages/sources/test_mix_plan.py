"""Position in a mixture → source and number: the arithmetic."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock import PipelineError
from penstock.stages.sources.mix_plan import RANDOM_BLOCK, MixPlan, Schedule, Shares

NUMBERS = st.one_of(st.integers(1, 1000), st.floats(1e-3, 1e3))
CHANGING = st.dictionaries(st.integers(0, 30_000), NUMBERS, min_size=1, max_size=4)
WEIGHTS = st.one_of(
    NUMBERS, CHANGING.map(lambda p: {"step": p}), CHANGING.map(lambda p: {"linear": p})
)


def make(weights: list[Any], key: int = 1, **options: Any) -> MixPlan:
    shares = Shares([Schedule(weight) for weight in weights])
    return MixPlan(shares, [str(n) for n in range(len(weights))], key=key, **options)


def sequence(plan: MixPlan, blocks: int) -> list[tuple[int, int]]:
    """The (source, number) pairs of the first blocks, checked against the plan's own counts."""
    counts = [0] * plan.shares.count
    found: list[tuple[int, int]] = []
    for block in range(blocks):
        assert plan.begin(block) == len(found)
        pairs = list(zip(*plan.content(block)))
        for source, number in pairs:
            assert number == counts[source]  # each source in its own order, nothing left out
            counts[source] += 1
        if pairs:
            assert plan.find(len(found) + len(pairs) - 1) == (block, len(found))
        found += pairs
        assert plan.counts(block + 1) == counts
    return found


@settings(deadline=None, max_examples=40)
@given(st.lists(WEIGHTS, min_size=1, max_size=12), st.integers(0, 2**64 - 1))
def test_every_source_is_within_one_sample_of_its_share_at_block_edges(
    weights: list[Any], key: int
) -> None:
    plan = make(weights, key)
    sequence(plan, 9)
    for block in range(10):
        time = plan._edge(block)
        shares = [share / 2**64 for share in plan.shares.integral(time)]
        assert sum(shares) == pytest.approx(time, abs=1e-3)
        assert all(abs(n - s) < 1 for n, s in zip(plan.counts(block), shares))


@settings(deadline=None, max_examples=40)
@given(st.lists(NUMBERS, min_size=2, max_size=40), st.integers(0, 2**64 - 1))
def test_counts_are_near_the_shares_of_the_samples_that_came(
    weights: list[float], key: int
) -> None:
    plan = make(weights, key)
    shares = [weight / sum(weights) for weight in weights]
    for block in (1, 2, 7, 1000):
        came = plan.begin(block)
        for count, share in zip(plan.counts(block), shares):
            assert abs(count - share * came) < 1 + share * (len(weights) - 2) + 1e-6


@settings(deadline=None, max_examples=5)
@given(st.lists(st.one_of(NUMBERS, NUMBERS, NUMBERS, WEIGHTS), min_size=200, max_size=1000))
def test_hundreds_of_sources_are_within_one_sample_of_their_shares(weights: list[Any]) -> None:
    plan = make(weights)
    sequence(plan, 3)
    shares = [share / 2**64 for share in plan.shares.integral(plan._edge(3))]
    assert all(abs(n - s) < 1 for n, s in zip(plan.counts(3), shares))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.tuples(WEIGHTS, st.integers(1, 3000)), min_size=1, max_size=12))
def test_ends_are_those_of_going_through_the_whole_sequence(
    sources: list[tuple[Any, int]],
) -> None:
    weights, lengths = [w for w, _ in sources], [n for _, n in sources]
    total = sum(Schedule(w).at(0) for w in weights)
    if any(Schedule(w).at(t) < total / 200 for w in weights for t in (0, 30_000)):
        return  # too long to go through
    plan = make(weights)
    first, last = plan.first_end(list(lengths)), plan.last_end(list(lengths))
    blocks = plan.find(last)[0] + 1
    counts = [0] * len(lengths)
    would_begin, all_done = None, None
    for position, (source, number) in enumerate(sequence(plan, blocks)):
        if number >= lengths[source] and would_begin is None:
            would_begin = position
        counts[source] += 1
        if all_done is None and all(n >= length for n, length in zip(counts, lengths)):
            all_done = position + 1
    assert last == all_done
    assert would_begin is None or first == would_begin


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.tuples(NUMBERS, st.integers(0, 20_000)), min_size=1, max_size=12),
    st.integers(0, 10**6),
)
def test_limits_are_reached_exactly(sources: list[tuple[float, int]], time: int) -> None:
    limits = [limit for _, limit in sources]
    plan = make([weight for weight, _ in sources], limits=limits, time=time)
    assert plan.blocks is not None
    found = sequence(plan, plan.blocks)
    assert len(found) == sum(limits)
    assert plan.blocks <= 60 + sum(limits) // 1000  # blocks are not small where few are left


def test_position_far_away_is_found_at_once() -> None:
    plan = make([{"linear": {0: n + 1, 10**12: 1}} for n in range(100)])
    block, begin = plan.find(10**12)
    assert begin <= 10**12 < plan.begin(block + 1)


def test_linear_weights_follow_their_integral() -> None:
    """Against a sum over small steps, where the sum of the weights changes, too."""
    shares = Shares([Schedule({"linear": {0: 5, 100_000: 1}}), Schedule(1)])
    steps = 20_000
    weights = [5 - 4 * (n + 0.5) / steps for n in range(steps)]
    expected = sum(w / (w + 1) for w in weights) * 100_000 / steps
    assert shares.integral(100_000)[0] / 2**64 == pytest.approx(expected, rel=5e-4)


@pytest.mark.parametrize(
    "weight",
    [-1, float("nan"), float("inf"), "3", None, True, {}, {"cosine": {0: 1}}, {"step": {}},
     {"step": {"x": 1}}, {"linear": {0: -1}}, {"step": 3}, {"step": {0: 1}, "linear": {0: 1}}],
)  # fmt: skip
def test_wrong_weight_is_refused_by_name(weight: Any) -> None:
    with pytest.raises(PipelineError, match="weight of 'ocr'"):
        Schedule(weight, "ocr")


def test_weights_that_are_all_zero_at_some_time_are_refused() -> None:
    with pytest.raises(PipelineError, match="all sources are 0 after 100 samples"):
        make([{"step": {0: 1, 100: 0}}, {"step": {0: 1, 50: 0}}])


def test_source_that_never_ends_is_named() -> None:
    with pytest.raises(PipelineError, match="'0' never comes to its end"):
        make([{"step": {0: 1, 100: 0}}, 1], limits=[1000, 1000])


@pytest.mark.parametrize("key", [1, 2, 3])
def test_batches_of_the_mode_random_look_like_independent_draws(key: int) -> None:
    """The counts are exact over a block; inside it they vary as those of independent draws do."""
    weights = [5, 2, 1]
    plan = MixPlan(Shares(list(map(Schedule, weights))), "abc", key=key, block=RANDOM_BLOCK)
    drawn = np.concatenate([plan.content(block)[0] for block in range(4)])
    for batch in (8, 64, 256):
        batches = drawn[: len(drawn) // batch * batch].reshape(-1, batch)
        for source, weight in enumerate(weights):
            share = weight / sum(weights)
            counts = (batches == source).sum(axis=1)
            # Of n batches the variance has a relative error of about sqrt(2 / n).
            within = 4.5 * math.sqrt(2 / len(batches))
            assert counts.var() / (batch * share * (1 - share)) == pytest.approx(1, abs=within)
    neighbours = np.corrcoef(drawn[:-1], drawn[1:])[0, 1]
    assert abs(neighbours) < 4 / math.sqrt(len(drawn))
    again = MixPlan(Shares(list(map(Schedule, weights))), "abc", key=key, block=RANDOM_BLOCK)
    other = MixPlan(Shares(list(map(Schedule, weights))), "abc", key=key + 9, block=RANDOM_BLOCK)
    assert np.array_equal(again.content(1), plan.content(1))
    assert not np.array_equal(other.content(1)[0][:1000], plan.content(1)[0][:1000])


@pytest.mark.parametrize("time", ["1e6", 1_000_000.0, "1000000", "1_000_000"])
def test_times_of_a_schedule_are_whole_numbers_in_any_notation(time: Any) -> None:
    assert Schedule({"step": {0: 1, time: 2}}).times == [0, 1_000_000]


@pytest.mark.parametrize("time", [2.5, "2.5", -1, "soon", True, float("inf"), float("nan"), None])
def test_times_that_are_no_numbers_of_samples_are_refused(time: Any) -> None:
    with pytest.raises(PipelineError, match="changes after a number of samples"):
        Schedule({"step": {0: 1, time: 2}}, "a")


def test_one_time_in_two_notations_is_refused() -> None:
    with pytest.raises(PipelineError, match="two weights after 5 samples"):
        Schedule({"step": {5: 1, "5": 2}}, "a")
