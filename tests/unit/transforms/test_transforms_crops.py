"""The boxes that are drawn: the published recipe's distribution, written down here once more."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.rng import CounterRng
from penstock.transforms.crop_plan import CropPlan, plan_center_crop, random_box, resize_short_side

SCALE, RATIO = (0.08, 1.0), (3 / 4, 4 / 3)
PICTURES = [(375, 500), (500, 333), (100, 900), (900, 100), (224, 224), (7, 5)]


def published(height, width, rng):
    """Up to ten tries: area uniform, ratio log-uniform, place uniform; then a centred box."""
    for _ in range(10):
        area = rng.uniform(*SCALE) * height * width
        ratio = math.exp(rng.uniform(math.log(RATIO[0]), math.log(RATIO[1])))
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return rng.randint(0, height - h), rng.randint(0, width - w), h, w
    w = min(width, round(height * RATIO[1]))
    h = min(height, round(width / RATIO[0]))
    return (height - h) // 2, (width - w) // 2, h, w


def farthest_apart(a, b):
    """The greatest distance of two samples' distribution functions (Kolmogorov and Smirnov)."""
    values = np.sort(np.concatenate([a, b]))
    places = (np.searchsorted(np.sort(x), values, side="right") / len(x) for x in (a, b))
    return np.abs(np.subtract(*places)).max()


@pytest.mark.parametrize("picture", PICTURES)
def test_boxes_are_distributed_as_published(picture):
    rng, count = random.Random(1), 4000
    ours = np.array([random_box(*picture, SCALE, RATIO, CounterRng(n)) for n in range(count)])
    theirs = np.array([published(*picture, rng) for _ in range(count)])
    for measure in (
        lambda box: box[:, 0],
        lambda box: box[:, 1],
        lambda box: box[:, 2] * box[:, 3],
        lambda box: box[:, 3] / box[:, 2],
        lambda box: box[:, 0] + box[:, 2],
        lambda box: box[:, 1] + box[:, 3],
    ):
        # By chance a distance of 0.05 comes once in some 3,000 pairs of 4,000.
        assert farthest_apart(measure(ours), measure(theirs)) < 0.05


@given(
    st.integers(1, 3000),
    st.integers(1, 3000),
    st.integers(0, 2**64 - 1),
    st.tuples(st.floats(0.01, 1), st.floats(0, 2)),
    st.tuples(st.floats(0.1, 3), st.floats(0, 5)),
)
def test_a_box_lies_in_the_picture(height, width, seed, scale, ratio):
    scale, ratio = (scale[0], scale[0] + scale[1]), (ratio[0], ratio[0] + ratio[1])
    top, left, h, w = random_box(height, width, scale, ratio, CounterRng(seed))
    assert 0 <= top <= top + h <= height
    assert 0 <= left <= left + w <= width
    assert h > 0
    assert w > 0


@given(st.integers(1, 2000), st.integers(1, 2000), st.integers(1, 600))
def test_the_shorter_side_gets_the_size(height, width, size):
    made = resize_short_side(height, width, size)
    assert min(made) == size
    assert max(made) == max(size, int(size * max(height, width) / min(height, width)))


@given(st.integers(1, 99), st.integers(1, 99), st.integers(1, 99), st.integers(1, 99))
def test_a_centred_crop_leaves_as_much_on_both_sides(height, width, rows, columns):
    plan = plan_center_crop((height, width), (height, width), (rows, columns))
    for size, crop, start in (
        (height, rows, plan.top + plan.row),
        (width, columns, plan.left + plan.column),
    ):
        assert abs(start - (size - crop - start)) <= 1
    assert (plan.rows, plan.columns) == (rows, columns)


def test_a_resized_crop_is_seen_from_the_resized_picture():
    assert plan_center_crop((375, 500), (256, 341), (224, 224)) == CropPlan(
        0, 0, 375, 500, 256, 341, 16, 58, 224, 224
    )
