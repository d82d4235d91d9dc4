"""From one number of ranks to another, in the middle of an epoch: no sample lost, none twice."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import islice

import pytest
from numbered import copies, flat, noisy, not_fifth, number, write_shards

import penstock as wds
from penstock.errors import StateError
from penstock.shards.index import open_index

WALK = (1, 2, 4, 3, 1)
LANES = 12


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two indexed data sets, 0 to 139 and 1000 to 1074."""
    folder = tmp_path_factory.mktemp("data")
    one = write_shards(folder, 7, 20, name="one")
    two = write_shards(folder, 5, 15, first=1000, name="two")
    open_index(one, True), open_index(two, True)
    return one, two


def indexed(urls, **options):
    return wds.WebDataset(urls, index=True, shardshuffle=3, ends="exact", **options)


def alone(data):
    return indexed(data[0], lanes=LANES, seed=2).map(number).listed(3)


def filtered(data):
    stages = wds.map(number), wds.select(not_fifth), wds.shuffle(50), wds.listed(3)
    return indexed(data[0], lanes=LANES).compose(*stages)


def mixed(data):
    mix = wds.RandomMix([indexed(data[0]), indexed(data[1])], [2, 1], longest=True)
    stages = wds.map(number), wds.select(not_fifth), wds.map(noisy, rng=True), wds.listed(3)
    return wds.DataPipeline(mix, *stages, lanes=LANES)


def expanded(data):
    stages = wds.map(number), copies(4), wds.shuffle(40), wds.listed(4), wds.unlisted()
    return indexed(data[0], lanes=LANES).compose(*stages, wds.listed(2))


def streamed(data):
    read = wds.WebDataset(
        data[0], shardshuffle=5, nodesplitter=wds.split_by_node, lanes=LANES, empty_check=False
    )
    return read.shuffle(60).map(number).listed(2)


def in_fours(source):
    """A user's generator that keeps up to three items back."""
    waiting = []
    for item in source:
        waiting.append(item)
        if len(waiting) == 4:
            yield from reversed(waiting)
            waiting = []
    yield from waiting


def replayed(data):
    return indexed(data[0], lanes=LANES, seed=2).map(number).then(in_fours).listed(3)


def planned(data):
    """A mixture in the order: filters, random numbers and batches behind it."""
    mix = wds.mix([indexed(data[0]), indexed(data[1]).map(unchanged)], [2, 1], until="each")
    stages = wds.map(number), wds.select(not_fifth), wds.map(noisy, rng=True), wds.listed(3)
    return wds.DataPipeline(mix, *stages, lanes=LANES)


def unchanged(sample):
    return sample


def mixed_as_streams(data):
    parts = [indexed(data[0]).map(number), indexed(data[1]).map(number).select(not_fifth)]
    mix = wds.mix(parts, [2, 1], until="each")
    return wds.DataPipeline(mix, wds.shuffle(9), wds.listed(3), lanes=LANES)


CASES = [alone, filtered, mixed, planned, mixed_as_streams, expanded, streamed, replayed]


def by_lane(pipeline, stream):
    """(which lane, item) of everything that comes."""
    for item in stream:
        yield pipeline._current.current, item


@pytest.mark.filterwarnings("ignore:.*replayed up to")
@pytest.mark.parametrize("make", CASES)
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_walk_over_other_numbers_of_ranks_loses_and_repeats_nothing(
    data, make, steps, monkeypatch
):
    whole = make(data)
    wanted = defaultdict(list)
    for lane, item in by_lane(whole, iter(whole)):
        wanted[lane].append(item)

    found, states = defaultdict(list), None
    for leg, world in enumerate(WALK):
        last = leg == len(WALK) - 1
        after = []
        for rank in range(world):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(world))
            pipeline = make(data)
            if states is not None:
                pipeline.load_state_dict(states)
            stream = by_lane(pipeline, iter(pipeline))
            for lane, item in stream if last else islice(stream, steps):
                found[lane].append(item)
            after.append(json.loads(json.dumps(pipeline.state_dict())))
        states = after
    assert found == wanted


def test_ranks_that_share_the_rest_go_through_it_in_the_same_order(data, monkeypatch):
    """Where no lane ends early, the steps of all ranks together are those of one process alone."""
    batches = list(alone(data))
    first = alone(data)
    begun = list(islice(iter(first), 9))
    state = first.state_dict()
    parts = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        pipeline = alone(data)
        pipeline.load_state_dict([state])
        parts.append(list(pipeline))
    turns = begun + [batch for turn in zip(*parts) for batch in turn]
    assert turns == batches[: len(turns)]
    assert len(turns) > 40
    assert sorted(flat(begun + [b for part in parts for b in part])) == list(range(140))


@pytest.mark.filterwarnings("ignore:.*worker processes in total")
@pytest.mark.filterwarnings("ignore:.*replayed up to")
@pytest.mark.parametrize("walk", [((1, 2), (2, 0), (3, 2), (1, 0)), ((2, 2), (4, 2), (1, 3))])
@pytest.mark.parametrize("make", [alone, mixed, planned, replayed])
def test_loaders_walk_too(data, make, walk, monkeypatch):
    """Each leg is (ranks, workers of each)."""
    wanted = sorted(flat(make(data)))
    found, states = [], None
    for leg, (world, workers) in enumerate(walk):
        after = []
        for rank in range(world):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(world))
            loader = wds.WebLoader(make(data), batch_size=None, num_workers=workers)
            if states is not None:
                loader.load_state_dict(states)
            stream = iter(loader)
            found += stream if leg == len(walk) - 1 else islice(stream, 3)
            after.append(json.loads(json.dumps(loader.state_dict())))
            del stream
        states = after
    assert sorted(flat(found)) == wanted


@pytest.mark.filterwarnings("ignore:.*worker processes in total")
def test_a_loader_with_a_buffer_behind_it_says_that_it_cannot_move(data, monkeypatch):
    def make():
        loader = wds.WebLoader(alone(data), batch_size=None, num_workers=2)
        return loader.unlisted().shuffle(20)

    first = make()
    stream = iter(first)
    next(stream)
    state = first.state_dict()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(wds.StateError, match="same number of ranks and workers"):
        make().load_state_dict([state])


@pytest.mark.filterwarnings("ignore:.*worker processes in total")
def test_a_loader_names_the_stage_that_a_resume_runs_again(data, monkeypatch):
    first = wds.WebLoader(replayed(data), batch_size=None, num_workers=2)
    begun = list(islice(iter(first), 5))
    state = json.loads(json.dumps(first.state_dict()))
    second = wds.WebLoader(replayed(data), batch_size=None, num_workers=2)
    second.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"in_fours.*replayed"):
        rest = list(second)
    assert begun + rest == list(wds.WebLoader(replayed(data), batch_size=None, num_workers=2))
    assert "in_fours" in second.dataset.describe()


@pytest.mark.filterwarnings("ignore:.*worker processes in total")
@pytest.mark.filterwarnings("ignore:.*replayed up to")
@pytest.mark.parametrize("lanes", [None, LANES])
def test_a_generators_loader_resumes_from_a_state_of_an_earlier_version(data, lanes):
    """Such a state has only how many batches the loader had returned."""

    def make():
        dataset = indexed(data[0], lanes=lanes, seed=2).map(number).then(in_fours).listed(3)
        return wds.WebLoader(dataset, batch_size=None, num_workers=2)

    whole = list(make())
    first = make()
    list(islice(iter(first), 5))
    state = first.state_dict()
    state["state"] = {"0": {"given": 5}}
    del state["check"]
    second = make()
    second.load_state_dict(state)
    assert list(second) == whole[5:]


@pytest.mark.filterwarnings("ignore:.*worker processes in total")
@pytest.mark.filterwarnings("ignore:.*replayed up to")
def test_a_buffer_after_a_generators_loader_is_refused_elsewhere_with_the_reason(data, monkeypatch):
    def make(workers):
        loader = wds.WebLoader(replayed(data), batch_size=None, num_workers=workers)
        return loader.unlisted().shuffle(20)

    first = make(2)
    begun = list(islice(iter(first), 7))
    state = json.loads(json.dumps(first.state_dict()))
    second = make(2)
    second.load_state_dict(state)
    assert begun + list(second) == list(make(2))
    with pytest.raises(StateError, match="that of 5 now"):
        moved = make(5)
        moved.load_state_dict(state)
        list(moved)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(StateError, match="in_fours"):
        make(2).load_state_dict([state])


@pytest.mark.xfail(strict=True, reason="the ends are those of the new number of ranks alone")
@pytest.mark.parametrize("ends", ["drop", "pad"])
def test_ranks_get_as_many_batches_as_each_other_behind_a_move(tmp_path, ends, monkeypatch):
    urls = write_shards(tmp_path, 1, 41)

    def job(world, states, steps):
        parts, after = [], []
        for rank in range(world):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(world))
            options = {"index": True, "shardshuffle": 2, "ends": ends, "lanes": LANES}
            pipeline = wds.WebDataset(urls, **options).map(number).listed(4)
            if states is not None:
                pipeline.load_state_dict(states)
            parts.append(list(islice(iter(pipeline), steps)))
            after.append(pipeline.state_dict())
        return parts, after

    _, states = job(2, None, 2)
    parts, _ = job(3, states, None)
    assert len({len(part) for part in parts}) == 1


def test_a_loader_refuses_the_state_of_one_rank_on_another_number(data, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    loader = wds.WebLoader(filtered(data), batch_size=None)
    next(iter(loader))
    state = loader.state_dict()
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(StateError, match="states of all ranks"):
        wds.WebLoader(filtered(data), batch_size=None).load_state_dict(state)
