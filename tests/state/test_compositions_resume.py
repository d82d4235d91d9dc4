"""Any source with any stages, on any number of lanes, stopped anywhere, resumes exactly."""

from __future__ import annotations

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numbered import copies, first, noisy, not_fifth, number, pair, plus_one

import penstock as wds
from penstock.errors import PipelineError
from penstock.testing import assert_resumes

few = st.integers(1, 7)


def streaming(urls, others, lanes):
    return wds.WebDataset(urls, shardshuffle=3, lanes=lanes, empty_check=False)


def in_order(urls, others, lanes):
    return wds.WebDataset(urls, lanes=lanes, empty_check=False)


def indexed(urls, others, lanes):
    return wds.WebDataset(urls, index=True, shardshuffle=2, lanes=lanes)


def resampled(urls, others, lanes):
    return wds.WebDataset(urls, resampled=True, lanes=lanes)


def repeated(urls, others, lanes):
    return wds.WebDataset(urls, shardshuffle=2, lanes=lanes).repeat()


def two(urls, others):
    one = wds.WebDataset(urls, index=True, shardshuffle=2).select(lambda s: number(s) % 7)
    return [one, wds.WebDataset(others, shardshuffle=2, empty_check=False)]


def mixed(urls, others, lanes):
    return wds.DataPipeline(wds.RandomMix(two(urls, others), [2, 1], longest=True), lanes=lanes)


def mixed_to_the_first_end(urls, others, lanes):
    return wds.DataPipeline(wds.RandomMix(two(urls, others), seed=1), lanes=lanes)


def in_turn(urls, others, lanes):
    return wds.DataPipeline(wds.RoundRobin(two(urls, others), longest=True), lanes=lanes)


SOURCES = [
    *(streaming, in_order, indexed, resampled, repeated),
    *(mixed, mixed_to_the_first_end, in_turn),
]

# All of them take numbers and give numbers, so that any may follow any.
NUMBERS = st.one_of(
    st.just((wds.map(plus_one),)),
    st.just((wds.map(noisy, rng=True),)),
    st.just((wds.select(not_fifth),)),
    st.builds(lambda n: (copies(n),), few),
    st.builds(lambda n, start: (wds.shuffle(n, initial=start),), few, few),
    st.builds(lambda n: (wds.shuffle(n, seed=n),), few),
    st.builds(lambda n, partial: (wds.listed(n, partial), wds.unlisted()), few, st.booleans()),
    st.builds(
        lambda n, m: (
            wds.map(pair),
            wds.batched(n),
            wds.unbatched(),
            wds.shuffle(m),
            wds.batched(m),
            wds.shuffle(2),
            wds.unbatched(),
            wds.map(first),
        ),
        *(few, few),
    ),
    st.builds(lambda n, step: (wds.slice(n, 12 + n, step),), few, st.integers(1, 3)),
    st.builds(lambda p: (wds.rsample(p),), st.sampled_from([0.3, 0.8])),
    st.builds(lambda n: (wds.repeat(n),), st.integers(1, 3)),
    st.builds(lambda n: (wds.repeat(-1, n),), few),
)
SAMPLES = st.sampled_from([(), (wds.rename(cls="cls;n"),), (wds.shuffle(4), wds.rename(n="txt"))])
LAST = st.one_of(st.just(()), st.builds(lambda n: (wds.listed(n),), few))


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    source=st.sampled_from(SOURCES),
    before=SAMPLES,
    stages=st.lists(NUMBERS, max_size=4),
    last=LAST,
    lanes=st.sampled_from([None, 1, 3, 4]),
    length=st.sampled_from([-1, -1, 0, 5, 30]),
)
def test_any_composition_goes_on(urls, others, source, before, stages, last, lanes, length):
    middle = [stage for group in stages for stage in group]
    if lanes is not None:  # a slice is of one stream
        middle = [stage for stage in middle if not isinstance(stage, wds.slice)]

    def make():
        data = source(urls, others, lanes)
        return data.compose(*before, wds.map(number), *middle, *last).with_epoch(length)

    limit = 24 if len(middle) < 4 else 15
    try:
        assert_resumes(make, every=2, limit=limit)
    except PipelineError as error:  # it would read its data without end: test_nothing_left.py
        if "whole pass" not in str(error):
            raise
