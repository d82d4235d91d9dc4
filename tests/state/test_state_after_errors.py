"""The state after an exception is the state after the last item that was yielded."""

from __future__ import annotations

import contextlib
import dis
import functools
import os
import signal
import sys
from functools import partial
from itertools import islice, pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numbered import indexed_numbers, number, plus_one, through_json, write_shards
from test_compositions_resume import LAST, NUMBERS, SAMPLES, SOURCES
from test_stages_resume import CASES, REPLAYED, WITHOUT_LANES

import penstock as wds
from penstock.errors import PenstockError, PipelineError, StateError
from penstock.stages.stage import Many


class Fuse:
    """Makes :func:`fragile` raise ``error`` after this many calls; None: never."""

    calls: int | None = None
    error: type[BaseException] = ValueError


def fragile(value):
    if Fuse.calls is not None:
        Fuse.calls -= 1
        if Fuse.calls < 0:
            Fuse.calls = None
            raise Fuse.error("the fuse has blown")
    return dict(value) if type(value) is dict else value  # MockDataset yields one dict ten times


def fragile_list(items):
    return fragile(list(items))


def fragile_generator(source):
    for item in source:
        yield fragile(item)


class fragile_copies(Many):
    """Yields every item three times, and may fail before each."""

    def expand(self, item):
        for _ in range(3):
            yield fragile(item)


FRAGILE = {
    "a function": (wds.map(fragile),),
    "a collation": (wds.batched(3, fragile_list), wds.unlisted()),
    "an expander": (fragile_copies(),),
    "a generator": (fragile_generator,),
    "a source": (),
}


def resume_after_errors(make, fuses, limit=60):
    """Return the items of a pipeline that fails after each of these numbers of calls in turn."""
    items, state = [], None
    for calls in [*fuses, None]:
        pipeline = make()
        if state is not None:
            pipeline.load_state_dict(state)
        Fuse.calls = calls
        try:
            items.extend(islice(pipeline, limit - len(items)))
            break
        except Fuse.error as error:
            if "the fuse has blown" not in str(error):
                raise
        finally:
            Fuse.calls = None
        state = through_json(pipeline.state_dict())
    return items


@settings(
    max_examples=120,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@pytest.mark.filterwarnings("ignore:.*cannot save what it keeps")
@given(
    source=st.sampled_from(SOURCES),
    before=SAMPLES,
    stages=st.lists(NUMBERS, max_size=4),
    last=LAST,
    lanes=st.sampled_from([None, None, 1, 3]),
    length=st.sampled_from([-1, -1, 0, 5, 30]),
    where=st.integers(0, 4),
    what=st.sampled_from(list(FRAGILE)),
    error=st.sampled_from([ValueError, KeyboardInterrupt, MemoryError]),
    fuses=st.lists(st.integers(0, 40), min_size=1, max_size=4),
)
def test_any_composition_resumes_after_errors(
    urls, others, source, before, stages, last, lanes, length, where, what, error, fuses
):
    stages = [*stages[:where], FRAGILE[what], *stages[where:]]
    middle = [stage for group in stages for stage in group]
    if lanes is not None:  # a slice is of one stream
        middle = [stage for stage in middle if not isinstance(stage, wds.slice)]
    if what == "a source":
        before = (*before, wds.map(fragile))

    def make():
        data = source(urls, others, lanes)
        return data.compose(*before, wds.map(number), *middle, *last).with_epoch(length)

    Fuse.error = error
    try:
        whole = list(islice(make(), 60))
    except PipelineError as problem:  # it would read its data without end: test_nothing_left.py
        if "whole pass" not in str(problem):
            raise
        return
    assert resume_after_errors(make, fuses) == whole


@pytest.mark.parametrize("lanes", [None, 3])
@pytest.mark.parametrize("kind", CASES, ids=lambda kind: kind.__name__)
def test_every_stage_resumes_after_errors_before_and_after_it(urls, kind, lanes):
    if lanes and kind in WITHOUT_LANES:
        return
    Fuse.error = ValueError

    def make(place):
        data = CASES[kind](urls, lanes)
        data.pipeline.insert(place, wds.map(fragile))
        return data

    for place in range(1, len(CASES[kind](urls, lanes).pipeline) + 1):
        whole = list(make(place))
        assert len(whole) > 1
        for calls in (0, 1, 4, 11):
            found = resume_after_errors(partial(make, place), [calls, calls // 2], limit=999)
            assert str(found) == str(whole), (place, calls)


@pytest.mark.filterwarnings("ignore:.*cannot save what it keeps")
@pytest.mark.parametrize("kind", REPLAYED, ids=lambda kind: kind.__name__)
def test_a_cache_resumes_after_errors(urls, tmp_path, kind):
    Fuse.error = ValueError

    def make(folder):
        folder.mkdir(exist_ok=True)
        data = wds.WebDataset(urls).map(number)
        return data.compose(REPLAYED[kind](folder), wds.map(fragile), wds.shuffle(4))

    whole = list(make(tmp_path / "whole"))
    folders = iter(range(9))
    found = resume_after_errors(lambda: make(tmp_path / f"{next(folders)}"), [9, 12])
    assert found == whole


def interrupted(item):
    """Receive Ctrl-C at the call at which the fuse blows."""
    try:
        return fragile(item)
    except KeyboardInterrupt:
        signal.raise_signal(signal.SIGINT)


@pytest.mark.parametrize("lanes", [None, 4])
def test_a_pipeline_resumes_after_ctrl_c(urls, lanes):
    Fuse.error = KeyboardInterrupt
    make = lambda: indexed_numbers(urls, lanes=lanes).shuffle(4).map(interrupted)  # noqa: E731
    whole = list(make())
    Fuse.calls, first, seen = 15, make(), []
    with pytest.raises(KeyboardInterrupt):
        for item in first:
            seen.append(item)  # noqa: PERF402 - extend() would lose those before the error
    second = make()
    second.load_state_dict(through_json(first.state_dict()))
    assert 0 < len(seen) < len(whole)
    assert seen + list(second) == whole


def stop_at_error(pipeline, error=ValueError):
    """Return the items of a pipeline up to its error."""
    seen = []
    with pytest.raises(error):
        for item in pipeline:
            seen.append(item)  # noqa: PERF402
    Fuse.calls = None
    return seen


@pytest.mark.parametrize("lanes", [None, 2])
def test_a_resumed_pipeline_that_is_left_early_resumes_again(urls, lanes):
    Fuse.error = ValueError
    make = lambda: wds.WebDataset(urls, lanes=lanes).map(number).map(fragile)  # noqa: E731
    whole, first = list(make()), make()
    Fuse.calls = 13
    seen = stop_at_error(first)
    for _ in range(3):
        second = make()
        second.load_state_dict(through_json(first.state_dict()))
        assert second.state_dict() == first.state_dict()  # saved again before the first item
        for item in second:
            seen.append(item)
            if len(seen) % 2:
                break
        first = second
    third = make()
    third.load_state_dict(first.state_dict())
    third.skip(2)
    assert seen + list(third) == whole[: len(seen)] + whole[len(seen) + 2 :]


@pytest.mark.parametrize("index", [None, True])
@pytest.mark.parametrize("lanes", [None, 2])
def test_a_shard_that_was_missing_for_a_while_loses_no_samples(tmp_path, index, lanes):
    urls = write_shards(tmp_path, 4, 6)

    def make():
        return wds.WebDataset(urls, index=index, lanes=lanes).map(number).listed(2)

    whole, first, seen = list(make()), make(), []
    os.rename(urls[2], tmp_path / "elsewhere")
    seen = stop_at_error(first, PenstockError)
    os.rename(tmp_path / "elsewhere", urls[2])
    second = make()
    second.load_state_dict(through_json(first.state_dict()))
    assert seen
    assert seen + list(second) == whole


def test_an_error_before_the_first_item_keeps_the_loaded_state(urls):
    Fuse.error = ValueError
    make = lambda: wds.WebDataset(urls).map(fragile).map(number).listed(5)  # noqa: E731
    whole, first = list(make()), make()
    Fuse.calls = 12
    seen = stop_at_error(first)
    state = through_json(first.state_dict())
    second = make()
    second.load_state_dict(state)
    for calls in (0, 3):  # while the first batch is made again, and later
        Fuse.calls = calls
        assert stop_at_error(second) == []
        assert second.epoch == 1
        again = make()
        again.load_state_dict(through_json(second.state_dict()))
        assert seen + list(again) == whole
        second = make()
        second.load_state_dict(state)


AFTER_LOADER = {
    "one by one": lambda loader: loader.map(fragile),
    "rebatched": lambda loader: (
        loader.unlisted().map(fragile).shuffle(7).listed(4).map(fragile).unlisted().map(plus_one)
    ),
}


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("after", AFTER_LOADER)
def test_stages_after_a_loader_resume_after_errors(urls, after, workers):
    Fuse.error = ValueError

    def make():
        data = indexed_numbers(urls, lanes=4).listed(3)
        loader = wds.WebLoader(data, batch_size=None, num_workers=workers)
        return AFTER_LOADER[after](loader)

    whole = list(make())
    for calls in (0, 2, 5):
        assert resume_after_errors(make, [calls, calls]) == whole


def test_a_state_after_an_error_behind_a_loader_is_of_the_same_ranks(urls, monkeypatch):
    Fuse.error = ValueError

    def make():
        data = indexed_numbers(urls, lanes=4, ends="exact")
        return wds.WebLoader(data, batch_size=None).map(fragile)

    states = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        loader = make()
        Fuse.calls = 5
        stop_at_error(loader)
        states.append(through_json(loader.state_dict()))
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(StateError, match=r"same number of ranks.* raised an exception"):
        make().load_state_dict(states)


def test_states_after_errors_move_to_another_number_of_ranks(urls, monkeypatch):
    Fuse.error = ValueError

    def make():
        data = wds.WebDataset(urls, index=True, shardshuffle=2, lanes=6, ends="exact")
        return data.map(number).shuffle(9).map(fragile)

    def on(rank, ranks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))

    whole, states, seen = list(make()), [], []
    for rank in range(2):
        on(rank, 2)
        part = make()
        Fuse.calls = 7
        seen += stop_at_error(part)
        states.append(through_json(part.state_dict()))
    assert len(seen) == 14
    for rank in range(3):
        on(rank, 3)
        part = make()
        part.load_state_dict(states)
        seen += list(part)
    assert sorted(seen) == sorted(whole)


def test_the_state_of_one_rank_after_an_error_is_enough_for_all(urls, monkeypatch):
    Fuse.error = ValueError

    def rank(number_of_rank, state=None):
        monkeypatch.setenv("RANK", str(number_of_rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        data = wds.WebDataset(urls, index=True, shardshuffle=2, lanes=4, ends="exact")
        part = data.map(number).map(fragile)
        if state is not None:
            part.load_state_dict(state)
        return part

    whole = [list(rank(0)), list(rank(1))]
    for calls in (1, 2, 5):
        Fuse.calls, first = calls, rank(0)
        assert stop_at_error(first) == whole[0][:calls]
        state = through_json(first.state_dict())
        assert [list(rank(0, state)), list(rank(1, state))] == [each[calls:] for each in whole]


LOADERS = {
    "in this process": {"num_workers": 0},
    "on threads": {"num_workers": 2, "engine": "threads"},
}
CHECKED = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "JUMP_BACKWARD", "RESUME"}
"""The instructions after which Python raises a pending Ctrl-C."""


@functools.cache
def instructions_before(code):
    """Return the name of the instruction before each offset of a function."""
    found = [one for one in dis.get_instructions(code) if one.opname != "CACHE"]
    return {one.offset: before.opname for before, one in pairwise(found)}


class CtrlC:
    """Raises KeyboardInterrupt at the place ``at`` in loaders/ where Python may raise it."""

    def __init__(self, at):
        self.left = at

    def __call__(self, frame, event, argument):
        if f"penstock{os.sep}loaders" not in frame.f_code.co_filename:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.count

    def count(self, frame, event, argument):
        if event == "opcode" and self.left:
            if instructions_before(frame.f_code).get(frame.f_lasti) in CHECKED:
                self.left -= 1
                if not self.left:
                    raise KeyboardInterrupt
        return self.count


@pytest.mark.parametrize("kind", LOADERS)
def test_ctrl_c_anywhere_in_a_loader_loses_no_item(urls, kind):
    def make():
        return wds.WebLoader(indexed_numbers(urls, lanes=2), batch_size=None, **LOADERS[kind])

    whole, before, at = list(make()), sys.gettrace(), 0
    while True:
        at += 1
        first, interrupt = make(), CtrlC(at)
        stream = iter(first)
        seen = [next(stream)]
        try:
            sys.settrace(interrupt)
            while len(seen) < 4:
                seen.append(next(stream))
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        if interrupt.left:
            break
        state = through_json(first.state_dict())
        with contextlib.suppress(KeyboardInterrupt):  # raised after the last item
            stream.close()
        second = make()
        second.load_state_dict(state)
        assert seen + list(second) == whole, at
    assert at > 30
