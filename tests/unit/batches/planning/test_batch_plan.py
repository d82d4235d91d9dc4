"""Planned batches: within the budget, every example once, like lengths together."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as wds
from penstock.errors import PipelineError, SampleError


def durations(count, seed=0):
    """Lognormal, median 8 s, sigma 0.6, redrawn outside 1 to 35 s, in steps of 10 ms."""
    random = np.random.default_rng(seed)
    found = np.zeros(0)
    while len(found) < count:
        drawn = np.round(np.exp(np.log(8) + 0.6 * random.standard_normal(count)), 2)
        found = np.concatenate([found, drawn[(drawn >= 1) & (drawn <= 35)]])
    return found[:count]


def rejoin(one, two):
    """The chance that two examples of one batch are in one batch again: over all pairs."""
    of = np.empty(len(two.rows), np.int64)
    of[two.rows] = np.repeat(np.arange(len(two)), two.sizes)
    again = pairs = 0
    for batch in one:
        _, together = np.unique(of[batch], return_counts=True)
        again += (together * (together - 1)).sum()
        pairs += len(batch) * (len(batch) - 1)
    return again / pairs


def balance(plan, ranks, cost):
    """Mean over greatest cost of the ranks, over all steps."""
    costs = cost(plan.sizes, plan.lengths[:, 0]).reshape(-1, ranks)
    return float((costs.mean(axis=1) / costs.max(axis=1)).mean())


LENGTHS = st.lists(st.floats(0.5, 50, allow_nan=False), min_size=0, max_size=120)


@settings(deadline=None, max_examples=150)
@given(
    lengths=LENGTHS,
    budget=st.floats(5, 200),
    pool=st.integers(1, 200),
    ranks=st.integers(1, 6),
    most=st.none() | st.integers(1, 9),
    shapes=st.none() | st.integers(1, 5),
    epoch=st.integers(0, 3),
)
def test_every_example_is_in_one_batch_and_every_batch_is_within_the_limits(
    lengths, budget, pool, ranks, most, shapes, epoch
):
    options = {"pool": pool, "max_batch_ex": most, "shapes": shapes, "epoch": epoch}
    plan = wds.plan_batches(lengths, budget, ranks=ranks, **options)
    taken = np.sort(plan.rows)
    assert len(plan) % ranks == 0
    if plan.repeated:
        assert len(lengths) < len(plan)
        assert np.unique(taken).tolist() == list(range(len(lengths)))
    else:
        assert taken.tolist() == list(range(len(lengths)))
    assert all(len(batch) > 0 for batch in plan)
    assert all(len(batch) <= (most or len(batch)) for batch in plan)
    for number, batch in enumerate(plan):
        length = plan.lengths[number, 0]
        assert length >= max(lengths[row] for row in batch)
        assert len(batch) * length <= budget * (1 + 1e-6) or len(batch) == 1
    if shapes is not None and lengths:
        assert len(np.unique(plan.lengths)) <= shapes
        assert set(plan.lengths[:, 0]) <= set(plan.shapes[0])


@pytest.mark.parametrize("bounds", [[0, 3000], [0, 900, 1800, 3000], [0, 0, 1500, 1500, 3000]])
def test_batches_of_a_window_come_before_those_of_the_next(bounds):
    order = np.random.default_rng(0).permutation(3000)
    plan = wds.plan_batches(durations(3000), 100, order=order, windows=bounds, ends="exact")
    assert sorted(plan.rows.tolist()) == list(range(3000))
    windows = np.searchsorted(bounds, np.argsort(order), side="right")
    inside = [np.unique(windows[batch]) for batch in plan]
    # On each border one batch may have samples of two windows, and one group batches of both.
    crossing = sum(len(found) > 1 for found in inside)
    assert crossing <= len(bounds) - 2
    first = [int(found[0]) for found in inside]
    early = sum(one > two for one, two in pairwise(first))
    assert early <= 8 * (len(bounds) - 2)
    assert first[0] == min(first)
    assert first[-1] == max(first)


def test_the_plan_depends_on_nothing_but_its_arguments():
    lengths = durations(3000)
    one, two = (wds.plan_batches(lengths, 600, seed=3, epoch=2) for _ in range(2))
    assert one.rows.tolist() == two.rows.tolist()
    assert one.starts.tolist() == two.starts.tolist()
    for other in ({"seed": 4, "epoch": 2}, {"seed": 3, "epoch": 3}):
        assert wds.plan_batches(lengths, 600, **other).rows.tolist() != one.rows.tolist()


def test_a_hundred_thousand_examples_are_padded_little_and_mixed_well():
    lengths = durations(100_000)
    plans = [wds.plan_batches(lengths, 600, epoch=epoch) for epoch in range(3)]
    for plan in plans:
        assert plan.padding <= 0.021
        assert len(plan) <= 1620
        assert plan.costs.max() <= 600 * (1 + 1e-9)
    assert np.mean([rejoin(*pair) for pair in pairwise(plans)]) <= 0.026


@pytest.mark.parametrize("ranks", [2, 3, 6, 8, 16])
def test_the_batches_of_a_step_are_of_like_cost_by_any_model(ranks):
    lengths = durations(100_000)
    quadratic = wds.Quadratic(c=1 / 20)
    for budget, cost in ((600, None), (962, quadratic)):
        plan = wds.plan_batches(lengths, budget, cost=cost, ranks=ranks)
        assert balance(plan, ranks, wds.Linear()) >= 0.98
        assert balance(plan, ranks, quadratic) >= 0.98


def test_one_two_four_and_eight_ranks_go_through_the_same_batches():
    lengths = durations(20_000)
    plans = [wds.plan_batches(lengths, 600, ranks=ranks) for ranks in (1, 2, 4, 8)]
    same = len(plans[0]) // 8 * 8
    for plan in plans[1:]:
        for number in range(same):
            assert plan[number].tolist() == plans[0][number].tolist()


def test_an_amount_of_padding_chooses_the_smallest_pool_that_keeps_it():
    lengths = durations(40_000)
    little, much = (wds.plan_batches(lengths, 600, padding=share) for share in (0.02, 0.10))
    assert little.padding <= 0.02
    assert 0.05 < much.padding <= 0.10
    assert much.pool < little.pool / 3
    with pytest.raises(PipelineError, match=r"no pool keeps padding below 0\.01%"):
        wds.plan_batches(lengths[:500], 600, padding=0.0001)
    with pytest.raises(PipelineError, match="both set the randomness"):
        wds.plan_batches(lengths, 600, padding=0.02, pool=100)


def test_little_data_does_not_meet_in_the_same_batches_each_epoch():
    lengths = durations(2000)
    plans = [wds.plan_batches(lengths, 600, epoch=epoch) for epoch in range(4)]
    assert np.mean([rejoin(*pair) for pair in pairwise(plans)]) < 0.3


def test_a_table_is_the_budget_itself():
    table = [(5, 40), (10, 20), (35, 4)]
    lengths = durations(5000)
    for budget in (table, wds.Table(table)):
        plan = wds.plan_batches(lengths, budget)
        for batch, length in zip(plan, plan.lengths[:, 0]):
            assert len(batch) <= next(most for top, most in table if length <= top)
    longer = wds.plan_batches([*lengths, 36.0], table)
    assert longer.over.tolist() == [5000]


def test_a_function_of_plain_numbers_can_be_the_cost():
    lengths = durations(1000)
    plan = wds.plan_batches(lengths, 100, cost=lambda n, t: n * max(t, 10))
    assert max(len(batch) for batch in plan) == 10
    assert plan.costs.max() <= 100


def test_two_lengths_are_both_within_the_budget_and_both_padded_little():
    random = np.random.default_rng(0)
    sound = durations(20_000)
    text = np.maximum(np.round(sound * 15 * random.uniform(0.5, 1.5, len(sound))), 1)
    lengths = np.stack([sound, text], axis=1)

    def cost(n, frames, letters):
        return n * (frames + letters / 15)

    plan = wds.plan_batches(lengths, 1200, cost=cost)
    tops = plan.lengths
    assert (cost(plan.sizes, tops[:, 0], tops[:, 1]) <= 1200 * (1 + 1e-9)).all()
    used = (sound + text / 15).sum() / plan.costs.sum()
    by_sum = wds.plan_batches(cost(1, sound, text), 1200)
    tops = np.array([lengths[batch].max(axis=0) for batch in by_sum])
    assert used > 0.85
    assert used > (sound + text / 15).sum() / cost(by_sum.sizes, *tops.T).sum()


def test_few_shapes_cost_little_more_padding():
    lengths = durations(20_000)
    plan = wds.plan_batches(lengths, 600, shapes=16)
    assert len(np.unique(plan.lengths)) <= 16
    assert plan.lengths.max() == lengths.max()
    assert plan.padding < 0.10


@pytest.mark.parametrize("wrong", [float("nan"), None, 0, -1.0, float("inf")])
def test_a_length_that_is_none_is_an_error_or_left_out(wrong):
    lengths = [3.0, wrong, 4.0]
    with pytest.raises(SampleError, match=r"row 1 has .*1 of 3 rows"):
        wds.plan_batches(lengths, 10)
    plan = wds.plan_batches(lengths, 10, bad="skip")
    assert sorted(plan.rows.tolist()) == [0, 2]
    assert plan.bad.tolist() == [1]


def test_an_example_above_the_budget_is_alone_or_left_out_or_an_error():
    lengths = [3.0, 11.0, 4.0]
    plan = wds.plan_batches(lengths, 10)
    assert [1] in [batch.tolist() for batch in plan]
    assert plan.over.tolist() == [1]
    plan = wds.plan_batches(lengths, 10, over="skip")
    assert sorted(plan.rows.tolist()) == [0, 2]
    assert plan.over.tolist() == [1]
    with pytest.raises(SampleError, match=r"1 examples are above the budget of 10.*row 1"):
        wds.plan_batches(lengths, 10, over="error")


def test_no_data_is_an_empty_plan():
    for ranks in (1, 4):
        plan = wds.plan_batches([], 10, ranks=ranks)
        assert (len(plan), list(plan), plan.padding, plan.fill) == (0, [], 0.0, 0.0)
        assert plan.worst_batches(3) == []


def test_more_ranks_than_batches_split_what_there_is():
    plan = wds.plan_batches([1.0, 1.0, 1.0], 10, ranks=3)
    assert [len(batch) for batch in plan] == [1, 1, 1]
    assert plan.repeated == 0
    short = wds.plan_batches([1.0, 1.0, 1.0], 10, ranks=5)
    assert len(short) == 5
    assert short.repeated == 2
    assert set(short.rows.tolist()) == {0, 1, 2}


def test_the_last_step_can_be_dropped_padded_or_left_uneven():
    lengths = np.full(70, 1.0)
    whole = wds.plan_batches(lengths, 10, ranks=4, ends="exact")
    assert len(whole) == 7
    dropped = wds.plan_batches(lengths, 10, ranks=4, ends="drop")
    assert (len(dropped), dropped.dropped) == (4, 30)
    padded = wds.plan_batches(lengths, 10, ranks=4, ends="pad")
    assert (len(padded), padded.repeated) == (8, 10)
    split = wds.plan_batches(lengths, 10, ranks=4)
    assert (len(split), split.repeated, split.dropped) == (8, 0, 0)


def test_the_worst_batches_are_the_costliest():
    plan = wds.plan_batches(durations(5000), 600, cost=wds.Quadratic(c=1 / 20))
    worst = plan.worst_batches(5)
    assert plan.costs[worst].tolist() == sorted(plan.costs.tolist(), reverse=True)[:5]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"budget": 0}, "the budget is a number above zero"),
        ({"pool": 0}, "pool is at least 1"),
        ({"ranks": 0}, "ranks is at least 1"),
        ({"padding": 2}, "padding is a share"),
        ({"over": "drop"}, "over is one of"),
        ({"ends": "none"}, "ends is one of"),
        ({"budget": [(10, 4), (20, 8)]}, "with fewer examples for"),
    ],
)
def test_arguments_that_cannot_work_are_told(wrong, said):
    with pytest.raises(PipelineError, match=said):
        wds.plan_batches([1.0], **{"budget": 10, **wrong})


def test_lengths_that_are_no_numbers_are_told():
    with pytest.raises(SampleError, match="one per example"):
        wds.plan_batches(["long", "short"], 10)
    with pytest.raises(SampleError, match="not shape"):
        wds.plan_batches(np.ones((2, 2, 2)), 10)


@pytest.mark.parametrize("budget", ["600", None, float("nan"), 0])
def test_a_budget_that_is_none_is_told(budget):
    with pytest.raises(PipelineError, match="the budget is a number"):
        wds.plan_batches([1.0, 2.0], budget)


def test_a_table_has_no_other_number_as_its_budget():
    plan = wds.plan_batches([1.0, 2.0], wds.Table([(2, 2)]))
    with pytest.raises(PipelineError, match="table"):
        plan.with_budget(2.0)
    assert len(plan.with_budget(wds.Table([(2, 1)]))) == 2
