"""Planned batches as the batch sampler of a map-style data set."""

from __future__ import annotations

import functools
import json
from itertools import islice

import numpy as np
import pytest
from torch.utils.data import DataLoader

import penstock as wds
from penstock.errors import PipelineError, SampleError, StateError
from penstock.testing import assert_resumes

LENGTHS = np.random.default_rng(0).uniform(1, 20, 700).round(2)
WALK = (1, 2, 4, 3, 8, 1)


def play(monkeypatch, rank, ranks):
    monkeypatch.setenv("RANK", str(rank))
    monkeypatch.setenv("WORLD_SIZE", str(ranks))


def make(**options):
    return wds.PlannedBatchSampler(LENGTHS, 60, seed=1, **options)


def test_an_epoch_has_every_example_once_and_the_next_has_other_batches():
    sampler = make()
    epochs = [list(sampler) for _ in range(3)]
    for batches in epochs:
        assert sorted(row for batch in batches for row in batch) == list(range(700))
    assert epochs[0] != epochs[1] != epochs[2]
    assert sampler.epoch == 3
    sampler.set_epoch(1)
    assert len(sampler) == len(epochs[1])
    assert list(sampler) == epochs[1]


def test_it_stops_and_goes_on_at_every_step():
    size_bytes = assert_resumes(make)
    assert size_bytes < 400


def test_ranks_get_equally_many_batches_of_like_cost(monkeypatch):
    parts = []
    for rank in range(4):
        play(monkeypatch, rank, 4)
        sampler = make()
        parts.append(list(sampler))
        assert len(parts[-1]) == len(make())
    assert len({len(part) for part in parts}) == 1
    assert sorted(row for part in parts for batch in part for row in batch) == list(range(700))
    costs = np.array([[len(b) * LENGTHS[b].max() for b in part] for part in parts])
    assert (costs.mean(axis=0) / costs.max(axis=0)).mean() > 0.95


@pytest.mark.parametrize("steps", [1, 3])
def test_another_number_of_ranks_goes_on_without_losing_or_repeating(monkeypatch, steps):
    found, state = [], None
    for leg, ranks in enumerate(WALK):
        states, counts = [], set()
        for rank in range(ranks):
            play(monkeypatch, rank, ranks)
            sampler = make()
            if state is not None:
                sampler.load_state_dict(state)
            last = leg == len(WALK) - 1
            batches = list(sampler) if last else list(islice(iter(sampler), steps))
            found += batches
            counts.add(len(batches))
            states.append(json.dumps(sampler.state_dict()))
        assert len(set(states)) == 1
        assert len(counts) == 1
        state = json.loads(states[0])
    assert sorted(row for batch in found for row in batch) == list(range(700))
    assert state["epoch"] == 1


def test_the_rest_of_an_epoch_is_even_for_any_number_of_ranks(monkeypatch):
    first = make()
    begun = list(islice(iter(first), 5))
    state = first.state_dict()
    for ranks in (2, 3, 5, 7):
        parts = []
        for rank in range(ranks):
            play(monkeypatch, rank, ranks)
            sampler = make()
            sampler.load_state_dict(state)
            parts.append(list(sampler))
        assert len({len(part) for part in parts}) == 1
        rows = [row for part in [begun, *parts] for batch in part for row in batch]
        assert sorted(rows) == list(range(700))


def test_the_epoch_set_by_a_trainer_does_not_undo_a_resume():
    whole = list(make())
    first = make()
    seen = list(islice(iter(first), 4))
    second = make()
    second.load_state_dict(first.state_dict())
    second.set_epoch(0)
    assert seen + list(second) == whole


def test_a_loader_that_works_ahead_is_told_of_by_the_number_of_steps():
    whole = list(make())
    sampler = make()
    loader = DataLoader(LENGTHS, batch_sampler=sampler, num_workers=2, collate_fn=list)
    seen = list(islice(iter(loader), 3))
    assert sampler.state_dict()["given"] > 3
    second = make()
    second.load_state_dict(sampler.state_dict(step=3))
    assert list(second) == whole[3:]
    assert seen == [[LENGTHS[row] for row in batch] for batch in whole[:3]]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (lambda: wds.PlannedBatchSampler(LENGTHS, 61, seed=1), "budget was '60.0'"),
        (lambda: wds.PlannedBatchSampler(LENGTHS, 60, seed=2), "seed was 1"),
        (lambda: wds.PlannedBatchSampler(LENGTHS[1:], 60, seed=1), "data was"),
        (lambda: make(pool=50), "options was"),
    ],
)
def test_a_state_of_another_plan_is_refused(other, said):
    with pytest.raises(StateError, match=said):
        other().load_state_dict(make().state_dict())
    with pytest.raises(StateError, match="not a state of"):
        other().load_state_dict({"epoch": 1})


def test_lengths_come_from_an_index_a_table_or_a_list(tmp_path):
    class Rows:
        data = {f"u{n}": {"duration": value, "words": n + 1} for n, value in enumerate(LENGTHS)}
        data_ids = list(data)

    with wds.ShardWriter(str(tmp_path / "x-%03d.tar"), maxcount=200, verbose=0) as sink:
        for number, value in enumerate(LENGTHS):
            sink.write({"__key__": f"u{number:04d}", "json": {"duration": float(value)}})
    columns = {"duration": "json:duration"}
    made = str(tmp_path / "all.parquet")
    wds.build_index(str(tmp_path / "x-{000..003}.tar"), made, columns=columns)
    index = wds.Index.load(made)
    from_index = wds.PlannedBatchSampler(index, 60, seed=1)
    from_rows = wds.PlannedBatchSampler(Rows(), 60, seed=1)
    by_function = wds.PlannedBatchSampler(Rows(), 60, seed=1, length=lambda row: row["duration"])
    wanted = list(make())
    assert list(from_index) == list(from_rows) == list(by_function) == wanted
    some = wds.IndexedDataset(str(tmp_path / "x-{000..003}.tar"), made)[10:200:2]
    assert wds.PlannedBatchSampler(some, 60).lengths.tolist() == LENGTHS[10:200:2].tolist()
    both = wds.PlannedBatchSampler(Rows(), 600, length=("duration", "words"))
    assert both.lengths.shape == (700, 2)
    with pytest.raises(SampleError, match="no lengths that can be read"):
        wds.PlannedBatchSampler(object(), 60)


def test_worst_batches_and_outliers_tell_of_what_fills_the_memory():
    sampler = wds.PlannedBatchSampler([*LENGTHS, 90.0], 60)
    worst = sampler.worst_batches(2)
    assert worst[0] == [700]
    report = sampler.outliers(3)
    assert report.over == [700]
    assert report.longest[0] == (700, [90.0])
    assert "row 700: 90 (above the budget)" in str(report)
    assert "no examples" in str(wds.PlannedBatchSampler([], 60).outliers())


def test_what_is_its_own_cannot_be_given():
    with pytest.raises(PipelineError, match="sets ranks itself"):
        make(ranks=3)
    with pytest.raises(PipelineError, match="over is one of"):
        make(over="never")


SINGLES = [[1.0, 2.0, 6.0, 9.0, 12.0][n * n % 5] for n in range(37)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("before", "after"), [(3, 3), (4, 4), (3, 2), (4, 3), (2, 4)])
def test_where_earlier_steps_were_split_too_nothing_is_lost(monkeypatch, seed, before, after):
    """Batches of one example cannot be split: to fill the last step, others before it are."""

    def at(rank, ranks):
        play(monkeypatch, rank, ranks)
        return wds.PlannedBatchSampler(SINGLES, 10, seed=seed)

    whole = [list(at(rank, before)) for rank in range(before)]
    for stop in range(len(whole[0]) + 1):
        seen, states = [], []
        for rank in range(before):
            sampler = at(rank, before)
            seen.append(list(islice(iter(sampler), stop)))
            states.append(sampler.state_dict())
        rest = []
        for rank in range(after):
            sampler = at(rank, after)
            sampler.load_state_dict(json.loads(json.dumps(states[0])))
            rest.append(list(sampler))
        assert len({len(part) for part in rest}) == 1
        rows = {row for part in seen + rest for batch in part for row in batch}
        assert rows == set(range(37))
        if before == after:
            assert [one + two for one, two in zip(seen, rest)] == whole


def test_steps_are_told_of_when_the_loader_has_taken_the_last_batch():
    whole = list(make())
    sampler = make()
    loader = DataLoader(LENGTHS, batch_sampler=sampler, num_workers=2, collate_fn=list)
    running = iter(loader)
    for _ in range(len(whole) - 2):
        next(running)
    second = make()
    second.load_state_dict(sampler.state_dict(step=len(whole) - 2))
    assert list(second) == whole[-2:]
    assert sampler.state_dict(step=len(whole))["epoch"] == 1


class PerExample:
    def __call__(self, n, t):
        return n * t


@pytest.mark.parametrize("cost", [PerExample, lambda: functools.partial(PerExample().__call__)])
def test_a_state_fits_in_another_process_whatever_the_cost_function_is(cost):
    first = make(cost=cost())
    kept = cost()  # not in the same place of memory
    second = make(cost=kept)
    second.load_state_dict(first.state_dict())
    assert list(second) == list(first)


def test_a_wrapper_that_would_share_out_a_share_is_refused():
    with pytest.raises(PipelineError, match="without a wrapper"):
        wds.DistributedSamplerWrapper(make(), 2, 0)
