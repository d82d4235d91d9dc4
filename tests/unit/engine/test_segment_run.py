"""Rows of stages: what they measure, and how they tell what came since a state."""

from __future__ import annotations

from penstock.engine.applying import applied
from penstock.engine.checkpoints import every, leaves
from penstock.engine.item_cost import MEASURED, Pace
from penstock.stages.run import as_run
from penstock.stages.segment import EachRun
from penstock.stages.stage import Each


class double(Each):
    def __init__(self):
        pass

    def apply(self, item):
        return item * 2


def test_items_are_cheap_only_when_enough_were_measured():
    pace = Pace()
    for _ in range(MEASURED - 1):
        pace.note(1e-6)
    assert not pace.cheap
    assert pace.asks
    pace.note(1e-6)
    assert pace.cheap


def test_one_slow_item_among_many_is_no_reason_for_threads():
    pace = Pace()
    assert not pace.note(1.0)  # the first one imports what it needs
    for _ in range(MEASURED):
        pace.note(1e-6)
    assert pace.cheap


def test_dear_items_go_to_the_threads_from_the_second_on():
    pace = Pace()
    pace.note(0.002)
    assert pace.note(0.002)
    assert not pace.asks
    assert not pace.cheap


def test_items_that_only_wait_for_the_lock_are_measured_again():
    pace = Pace()
    pace.note(0.002)
    pace.note(0.002)
    for _ in range(4):
        pace.note_chunk(16, seconds=0.005, at_work=16 * 5e-6)
    assert pace.asks


def test_items_that_sleep_are_asked_about_less_and_less():
    pace, asked = Pace(), 0
    pace.note(0.002)
    pace.note(0.002)
    for _ in range(1000):
        pace.note_chunk(1, seconds=0.002, at_work=1e-6)
        if pace.asks:
            asked += 1
            pace.note(0.002)
    assert 1 <= asked <= 6


def test_chunks_are_about_four_milliseconds():
    pace = Pace()
    assert pace.chunk(100) == 1
    pace.note_chunk(10, 10 * 100e-6, 10 * 100e-6)
    assert 32 <= pace.chunk(100) <= 40
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
