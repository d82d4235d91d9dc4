"""Planned batches of shards: stopped anywhere, on any number of ranks, nothing is lost."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest

import penstock as wds
from penstock.errors import PipelineError, SampleError, StateError
from penstock.shards.index import SampleReader, build_index
from penstock.stages.stage import Many
from penstock.testing import assert_resumes
from tar_files import write_tar

COUNT, EACH, BUDGET = 12, 25, 40
LANES = 12
LENGTHS = np.random.default_rng(3).uniform(1, 12, COUNT * EACH).round(2)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Twelve shards of 25 samples, each with its number and a length, and an index of them."""
    folder = tmp_path_factory.mktemp("planned")
    urls = []
    for shard in range(COUNT):
        members = [
            (f"s{n:04d}.{field}", str(value).encode())
            for n in range(shard * EACH, (shard + 1) * EACH)
            for field, value in (("cls", n), ("len", LENGTHS[n]))
        ]
        urls.append(write_tar(folder / f"p{shard:03d}.tar", members))
    columns = {"frames": lambda sample: float(sample["len"]), "letters": "cls:bytes"}
    build_index(urls, folder / "index.parquet", columns=columns)
    return urls, str(folder / "index.parquet")


def number(sample):
    return int(sample["cls"])


def odd(n):
    return n % 2 == 1


def not_long(n):
    return LENGTHS[n] < 9


class copies(Many):
    """Each number n % 3 times."""

    def __init__(self):
        pass

    def expand(self, item):
        return [item] * (item % 3)


def planned(data, *stages, budget=BUDGET, length="frames", plan=None, **options):
    made = wds.Plan(budget, length=length, **{"pool": 60, **(plan or {})})
    options = {"shardshuffle": 4, "seed": 1, **options}
    dataset = wds.WebDataset(data[0], index=data[1], plan=made, **options)
    return dataset.map(number).compose(*stages, wds.planned(None))


def flat(batches):
    return [n for batch in batches for n in batch]


def padded(batch):
    return len(batch) * LENGTHS[batch].max()


def on_ranks(monkeypatch, make, ranks, states=None, steps=None):
    parts, after = [], []
    for rank in range(ranks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        pipeline = make()
        if states is not None:
            pipeline.load_state_dict(states)
        parts.append(list(islice(iter(pipeline), steps)))
        after.append(json.loads(json.dumps(pipeline.state_dict())))
    return parts, after


def test_every_sample_comes_once_in_batches_within_the_budget(data):
    dataset = planned(data)
    counts = [len(dataset)]
    one = list(dataset)
    counts.append(len(dataset))
    two = list(dataset)
    for batches, count in zip((one, two), counts):
        assert sorted(flat(batches)) == list(range(300))
        assert max(padded(batch) for batch in batches) <= BUDGET
        assert len(batches) == count
    assert one != two
    used = LENGTHS.sum() / sum(padded(batch) for batch in one)
    assert used > 0.9


def test_reading_stays_in_one_window_of_shards(data):
    """Four shards are mixed at a time: a batch and its neighbours come from two windows at most."""
    batches = list(planned(data, plan={"group": 1}))
    open_shards = [{n // EACH for n in flat(batches[at : at + 5])} for at in range(len(batches))]
    assert max(map(len, open_shards)) <= 8
    assert all(len({n // EACH for n in batch}) <= 8 for batch in batches)


def test_without_shuffling_the_batches_follow_the_order_of_the_shards(data):
    options = {"pool": 10, "group": 1}
    batches = list(planned(data, shardshuffle=False, plan=options))
    assert sorted(flat(batches)) == list(range(300))
    means = [np.mean(batch) for batch in batches]
    assert np.corrcoef(means, np.arange(len(means)))[0, 1] > 0.9


CASES = {
    "alone": ((), {}),
    "with lanes": ((), {"lanes": 4}),
    "filtered": ((wds.select(odd),), {}),
    "filtered by length": ((wds.select(not_long),), {"lanes": 3}),
    "expanded": ((copies(),), {}),
    "in order": ((), {"shardshuffle": False}),
    "few shapes": ((), {"plan": {"shapes": 3}}),
}


@pytest.mark.parametrize("case", CASES)
def test_it_stops_and_goes_on_behind_every_batch(data, case):
    stages, options = CASES[case]
    size_bytes = assert_resumes(lambda: planned(data, *stages, **options))
    assert size_bytes < 2500


@pytest.mark.filterwarnings("ignore:.*worker processes in total")
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_workers_give_the_same_batches_in_the_same_order(data, workers):
    loader = wds.WebLoader(planned(data), batch_size=None, num_workers=workers)
    assert list(loader) == list(planned(data))


@pytest.mark.filterwarnings("ignore:.*worker processes in total")
@pytest.mark.parametrize("stop", [1, 4, 20])
def test_a_loader_with_workers_goes_on(data, stop):
    def make():
        return wds.WebLoader(planned(data), batch_size=None, num_workers=2)

    whole = list(planned(data))
    first = make()
    stream = iter(first)
    seen = list(islice(stream, stop))
    state = json.loads(json.dumps(first.state_dict()))
    del stream
    second = make()
    second.load_state_dict(state)
    assert seen + list(second) == whole


def on_threads(dataset):
    return wds.WebLoader(dataset, batch_size=None, num_workers=3, engine="threads")


def in_threes(source):
    """A user's generator that keeps up to two items back, and yields those when its source ends."""
    waiting = []
    for item in source:
        waiting.append(item)
        if len(waiting) == 3:
            yield from waiting
            waiting = []
    yield from waiting


THREADED = {
    **CASES,
    "a user's generator": ((in_threes,), {}),
    "a user's generator after an expander": ((copies(), in_threes), {}),
    "logged": ((wds.log_keys(None),), {}),
}


@pytest.mark.parametrize("case", THREADED)
def test_planned_batches_on_threads_are_those_of_one_thread(data, case, pool_gets_every_item):
    stages, options = THREADED[case]
    wanted = list(planned(data, *stages, **options))
    assert list(on_threads(planned(data, *stages, **options))) == wanted


def test_planned_batches_on_threads_stay_within_the_budget(data, pool_gets_every_item):
    assert max(map(padded, on_threads(planned(data)))) <= BUDGET


@pytest.mark.parametrize("case", CASES)
def test_planned_batches_on_threads_resume(data, case, pool_gets_every_item):
    stages, options = CASES[case]
    assert_resumes(lambda: on_threads(planned(data, *stages, **options)), every=7)


@pytest.mark.filterwarnings("ignore:.*worker processes in total")
def test_planned_batches_of_worker_processes_with_threads_are_those_of_one_thread(
    data, pool_gets_every_item
):
    loader = wds.WebLoader(planned(data), batch_size=None, num_workers=2, threads=2)
    assert list(loader) == list(planned(data))


@pytest.mark.parametrize("ranks", [2, 3, 5, 8])
@pytest.mark.parametrize("lanes", [None, 120])
def test_ranks_get_equally_many_batches_of_like_cost(data, ranks, lanes, monkeypatch):
    parts, _ = on_ranks(monkeypatch, lambda: planned(data, lanes=lanes, budget=20), ranks)
    assert len({len(part) for part in parts}) == 1
    assert sorted(flat(flat(parts))) == list(range(300))
    monkeypatch.setenv("RANK", "1")
    assert len(planned(data, lanes=lanes, budget=20)) == len(parts[1])


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize("stages", [(), (wds.select(odd),)], ids=["all", "filtered"])
def test_a_walk_over_other_numbers_of_ranks_loses_and_repeats_nothing(
    data, steps, stages, monkeypatch
):
    def make():
        return planned(data, *stages, lanes=LANES)

    whole = Counter(map(tuple, make()))
    found, states = [], None
    walk = (1, 2, 4, 3, 6, 1)
    for leg, ranks in enumerate(walk):
        last = leg == len(walk) - 1
        parts, states = on_ranks(monkeypatch, make, ranks, states, None if last else steps)
        found += flat(parts)
    assert Counter(map(tuple, found)) == whole


def test_ranks_together_go_through_the_batches_of_one_process(data, monkeypatch):
    alone = list(planned(data, lanes=LANES))
    for ranks in (2, 3, 4, 6, 12):
        parts, _ = on_ranks(monkeypatch, lambda: planned(data, lanes=LANES), ranks)
        assert [batch for step in zip(*parts, strict=True) for batch in step] == alone


def test_a_filter_makes_a_batch_smaller_and_never_mixes_it_with_the_next(data):
    whole, filtered = list(planned(data)), list(planned(data, wds.select(odd)))
    kept = [[n for n in batch if odd(n)] for batch in whole]
    assert filtered == [batch for batch in kept if batch]


def test_a_sample_that_cannot_be_decoded_makes_its_batch_smaller(data):
    def broken(n):
        if n % 7 == 0:
            raise ValueError("broken")
        return n

    made = planned(data, wds.map(broken, wds.ignore_and_continue))
    wanted = [[n for n in batch if n % 7] for batch in planned(data)]
    assert list(made) == [batch for batch in wanted if batch]


def test_the_ends_can_be_dropped_padded_or_left_uneven(data, monkeypatch):
    counts = {}
    for ends in ("split", "exact", "drop", "pad"):
        parts, _ = on_ranks(monkeypatch, lambda ends=ends: planned(data, ends=ends), 8)
        counts[ends] = [len(part) for part in parts]
        rows = Counter(flat(flat(parts)))
        if ends in ("split", "exact"):
            assert sorted(rows) == list(range(300))
            assert set(rows.values()) == {1}
    assert len(set(counts["exact"])) == 2
    assert set(counts["split"]) == set(counts["pad"]) == {max(counts["exact"])}
    assert set(counts["drop"]) == {min(counts["exact"])}


def test_repeated_samples_are_marked(data, monkeypatch):
    monkeypatch.setenv("RANK", "7")
    monkeypatch.setenv("WORLD_SIZE", "8")
    plan = wds.Plan(BUDGET, length="frames", pool=60)
    shards = wds.WebDataset(data[0], index=data[1], plan=plan, ends="pad", seed=1, shardshuffle=4)
    batches = list(shards.compose(wds.planned(None)))
    assert all(sample.get("__pad__") for sample in batches[-1])
    assert not any(sample.get("__pad__") for batch in batches[:-1] for sample in batch)


def test_of_remote_shards_a_batch_is_read_at_a_time(data, monkeypatch):
    asked = []
    read_many = SampleReader.read_many

    def counted(self, rows):
        asked.append(len(rows))
        return read_many(self, rows)

    wanted = list(planned(data, ends="pad"))
    monkeypatch.setattr(SampleReader, "remote", True)
    monkeypatch.setattr(SampleReader, "read_many", counted)
    assert list(planned(data, ends="pad")) == wanted
    assert asked == [len(batch) for batch in wanted]


def test_steps_can_be_left_out_unread(data):
    whole = list(planned(data))
    dataset = planned(data)
    dataset.skip(7)
    assert list(dataset) == whole[7:]


def test_origins_of_a_batch_are_those_of_its_samples(data):
    dataset = planned(data)
    batch = next(iter(dataset))
    assert [int(origin.key[1:]) for origin in dataset.origins()] == batch


def test_batches_are_collated_and_taken_apart(data):
    plan = wds.Plan(BUDGET, length=["frames", "letters"])
    shards = wds.WebDataset(data[0], index=data[1], plan=plan).decode().to_tuple("cls")
    batches = list(shards.compose(wds.planned()))
    assert isinstance(batches[0][0], np.ndarray)
    apart = list(shards.compose(wds.planned(), wds.unbatched()))
    assert sorted(int(n) for (n,) in apart) == list(range(300))


def test_an_excluded_sample_is_not_planned(data):
    batches = list(planned(data, exclude=["s0003", "s0004"]))
    assert sorted(flat(batches)) == [n for n in range(300) if n not in (3, 4)]


def test_the_budget_of_a_data_set_can_be_searched_for(data):
    samples = wds.IndexedDataset(data[0], data[1])

    def step(batch):
        if len(batch) * max(float(sample["len"]) for sample in batch) > 70:
            raise MemoryError

    report = wds.find_budget(
        step, planned(data), load=lambda rows: [samples[row] for row in rows], margin=0
    )
    assert 66 < report.budget <= 72


def test_a_state_of_another_plan_is_refused(data):
    dataset = planned(data)
    next(iter(dataset))
    with pytest.raises(StateError, match="stage 0 was"):
        planned(data, budget=50).load_state_dict(dataset.state_dict())


def test_what_cannot_work_is_told(data):
    with pytest.raises(PipelineError, match="its source has none"):
        list(wds.WebDataset(data[0], index=data[1]).compose(wds.planned()))
    with pytest.raises(PipelineError, match="would mix the batches"):
        list(planned(data, wds.shuffle(10)))
    with pytest.raises(PipelineError, match="without an index"):
        wds.WebDataset(data[0], plan=wds.Plan(1, length="frames"))
    with pytest.raises(PipelineError, match="plan is a Plan"):
        wds.WebDataset(data[0], index=True, plan=600)
    with pytest.raises(PipelineError, match="pass ranks to the data set"):
        wds.Plan(10, length="frames", ranks=2)
    with pytest.raises(PipelineError, match="pool is at least 1"):
        wds.Plan(10, length="frames", pool=0)
    with pytest.raises(SampleError, match="no column 'seconds'"):
        list(planned(data, length="seconds"))
