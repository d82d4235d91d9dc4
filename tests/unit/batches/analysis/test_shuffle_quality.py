from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock import PipelineError, shuffle_quality
from penstock.stages.sources.epoch_order import Order

SHARDS = [100] * 50
COUNT = sum(SHARDS)


def permutation(seed: int = 0) -> list[int]:
    return random.Random(seed).sample(range(COUNT), COUNT)


def windowed(window: int) -> list[int]:
    starts = np.concatenate([[0], np.cumsum(SHARDS)])
    order = Order(starts, window=window, seed=0, epoch=0)
    return [order.row(position) for position in range(len(order))]


def test_the_stored_order_is_not_mixed_at_all() -> None:
    quality = shuffle_quality(range(COUNT), SHARDS)
    assert quality.displacement == 0
    assert quality.correlation == 1
    assert quality.spread < 0.02
    assert quality.same_shard is not None
    assert quality.same_shard > 25


def test_a_permutation_is_the_measure_of_all() -> None:
    quality = shuffle_quality(permutation(), SHARDS)
    assert quality.displacement == pytest.approx(1, abs=0.03)
    assert quality.correlation == pytest.approx(0, abs=0.05)
    assert quality.spread == pytest.approx(1, abs=0.02)
    assert quality.same_shard == pytest.approx(1, abs=0.1)


def test_moving_whole_shards_fools_the_displacement_but_not_the_spread() -> None:
    shards = random.Random(1).sample(range(50), 50)
    quality = shuffle_quality([s * 100 + i for s in shards for i in range(100)], SHARDS)
    assert quality.displacement > 0.8
    assert quality.spread < 0.3
    assert quality.same_shard is not None
    assert quality.same_shard > 25


def test_a_window_of_shards_is_mixed_as_well_as_it_is_wide() -> None:
    several = [shuffle_quality(windowed(window), SHARDS) for window in (1, 4, 16, 50)]
    spreads = [quality.spread for quality in several]
    crowds = [quality.same_shard for quality in several]
    assert spreads == sorted(spreads)
    assert crowds == sorted(crowds, reverse=True)  # type: ignore[type-var]
    assert spreads[1] == pytest.approx(3 / 4, abs=0.1)  # 3 of 4 pairs are of different shards
    assert spreads[-1] == pytest.approx(1, abs=0.02)


def test_the_spread_is_the_mean_distance_of_all_pairs() -> None:
    order = random.Random(2).sample(range(12), 12)
    pairs = [
        abs(batch[i] - batch[j])
        for batch in (order[:4], order[4:8], order[8:])
        for i in range(4)
        for j in range(i)
    ]
    expected = sum(pairs) / len(pairs) / (13 / 3)
    assert shuffle_quality(order, batch=4).spread == round(expected, 3)


def test_pairs_of_one_shard_are_counted() -> None:
    # Shards of 2 and 6: of 28 pairs 1 + 15 are of one shard. Batches 0 1 2 3 and 4 5 6 7:
    # of their 12 pairs 1 + 1 + 6 are.
    quality = shuffle_quality(range(8), shards=[2, 6], batch=4)
    assert quality.same_shard == round((8 / 12) / (16 / 28), 2)


def test_without_shards_nothing_is_said_about_them() -> None:
    assert shuffle_quality(permutation()).same_shard is None


def test_a_last_batch_that_is_not_full_does_not_count() -> None:
    assert shuffle_quality(range(9), shards=[3, 6], batch=4).same_shard is not None


@given(st.integers(0, 1000), st.integers(1, 9))
def test_samples_left_out_do_not_change_what_the_stored_order_is(first: int, step: int) -> None:
    quality = shuffle_quality(range(first, first + 300 * step, step), batch=10)
    assert (quality.displacement, quality.correlation) == (0, 1)


def test_samples_may_stand_twice() -> None:
    assert shuffle_quality([*range(100), 0, 1, 2], [103], batch=10).displacement < 0.2


def test_an_order_turned_round_is_as_far_away_as_can_be() -> None:
    quality = shuffle_quality(range(99, -1, -1), batch=10)
    assert quality.correlation == -1
    assert quality.displacement == pytest.approx(1.5, abs=0.01)


@pytest.mark.parametrize(("count", "batch"), [(0, 2), (7, 4), (100, 1), (100, 0)])
def test_less_than_two_batches_are_refused(count: int, batch: int) -> None:
    with pytest.raises(PipelineError, match="at least two batches"):
        shuffle_quality(range(count), batch=batch)


@pytest.mark.parametrize("order", [range(-1, 99), range(100)])
def test_an_order_that_does_not_fit_the_shards_is_refused(order: range) -> None:
    with pytest.raises(PipelineError, match="the shards have 99 samples"):
        shuffle_quality(order, shards=[99], batch=10)


def test_it_is_a_public_name() -> None:
    assert "shuffle_quality" in penstock.__all__
