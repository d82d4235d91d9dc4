"""Rows of stages: what they measure, and how they tell what came since a state."""

from __future__ import annotations

from penstock.stages.row import MEASURED, Pace, applied, every, leaves
from penstock.stages.run import EachRun, as_run
from penstock.stages.stage import Each


class double(Each):
    def __init__(self):
        pass

    def apply(self, item):
        return item * 2


def test_items_are_cheap_only_when_enough_were_measured():
    pace = Pace()
    for _ in range(MEASURED - 1):
        pace.note(1, 1e-6)
    assert not pace.cheap
    pace.note(1, 1e-6)
    assert pace.cheap


def test_one_slow_item_among_many_is_no_reason_for_threads():
    pace = Pace()
    pace.note(1, 1.0)
    for _ in range(MEASURED):
        pace.note(1, 1e-6)
    assert pace.cheap


def test_chunks_are_about_a_millisecond():
    pace = Pace()
    assert pace.chunk(100) == 1
    pace.note(10, 10 * 100e-6)
    assert 8 <= pace.chunk(100) <= 10
    assert pace.chunk(4) == 4


def test_large_states_are_noted_less_often():
    assert every({"buffer": list(range(10))}) == 16
    assert every({"buffer": list(range(2000))}) > 100
    assert leaves([[1, 2], {"a": (3, 4)}, 5]) == 5


def test_a_step_that_drops_ends_the_row_for_that_item():
    steps = ((lambda item: item + 1, False), (lambda item: None, False), (len, False))
    assert applied(steps, 1, None) is None


def test_what_a_row_passed_over_is_passed_over_without_an_engine_too():
    stage = double()
    last = EachRun(
        stage, EachRun(stage, as_run([1, 2, 3, 4, 5]), as_run([]).context), as_run([]).context
    )
    last.take({"behind": 2, "source": 1})
    assert last.saved() == {"behind": 2, "source": 1}
    assert list(last) == [16, 20]
