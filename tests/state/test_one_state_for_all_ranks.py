"""States of several ranks: one rank's is enough with an index and lanes; else they are gathered."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
from numbered import indexed_numbers, number, through_json, write_shards

import penstock as wds
from penstock.shards.index import open_index

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes in total")
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Five shards of 27 samples: batches, lanes and workers that do not divide."""
    urls = write_shards(tmp_path_factory.mktemp("ranks"), 5, 27)
    open_index(urls, True)
    return urls


indexed = functools.partial(indexed_numbers, ends="exact", lanes=12)


class Job:
    """Ranks, played one after another."""

    def __init__(self, monkeypatch, make):
        self.monkeypatch, self.make = monkeypatch, make

    def on(self, rank, world):
        self.monkeypatch.setenv("RANK", str(rank))
        self.monkeypatch.setenv("WORLD_SIZE", str(world))
        return self.make()

    def run(self, world, steps=None, states=None):
        parts, after = [], []
        for rank in range(world):
            data = self.on(rank, world)
            if states is not None:
                data.load_state_dict(states)
            stream = iter(data)
            parts.append(list(islice(stream, steps)))
            after.append(through_json(data.state_dict()))
            del stream
        return parts, after


LOADERS = {
    "no loader": lambda data: data,
    "no workers": lambda data: wds.WebLoader(data, batch_size=None),
    "two workers": lambda data: wds.WebLoader(data, batch_size=None, num_workers=2),
    "threads": lambda data: wds.WebLoader(data, batch_size=None, num_workers=2, engine="threads"),
}


@pytest.mark.parametrize("ends", ["exact", "drop", "pad"])
@pytest.mark.parametrize("steps", [1, 5, 13])
@pytest.mark.parametrize("kind", LOADERS)
def test_the_state_of_any_rank_resumes_all_ranks(data, kind, steps, ends, monkeypatch):
    job = Job(monkeypatch, lambda: LOADERS[kind](indexed(data, ends=ends).listed(4)))
    whole, _ = job.run(2)
    begun, states = job.run(2, steps)
    for saver in range(2):
        rest, _ = job.run(2, states=states[saver])
        assert [a + b for a, b in zip(begun, rest)] == whole


def test_lanes_that_workers_do_not_divide_resume_from_one_state(data, monkeypatch):
    """Two ranks with three lanes each, on two workers: one worker ends before the other."""

    def make():
        return wds.WebLoader(indexed(data, lanes=6).listed(4), batch_size=None, num_workers=2)

    job = Job(monkeypatch, make)
    whole, _ = job.run(2)
    for steps in range(1, min(map(len, whole)), 3):
        begun, states = job.run(2, steps)
        rest, _ = job.run(2, states=states[0])
        assert [a + b for a, b in zip(begun, rest)] == whole


@pytest.mark.parametrize("kind", ["no loader", "no workers", "two workers"])
def test_the_state_of_one_rank_resumes_on_another_number_of_ranks(data, kind, monkeypatch):
    job = Job(monkeypatch, lambda: LOADERS[kind](indexed(data).listed(4)))
    begun, states = job.run(2, 6)
    rest, after = job.run(3, 2, states[1])
    assert all(state["moved"] for state in after)
    last, _ = job.run(3, states=after)
    seen = [n for part in (*begun, *rest, *last) for batch in part for n in batch]
    assert sorted(seen) == list(range(135))
    # The positions of this epoch no longer follow from the steps of one rank.
    with pytest.raises(wds.StateError, match="of rank 1, this is rank 0"):
        job.on(0, 3).load_state_dict(after[1])


def test_a_state_whose_stages_left_out_samples_is_refused_on_other_ranks(data, monkeypatch):
    """Such a function breaks the rule that ``map`` keeps the number of samples."""
    job = Job(monkeypatch, lambda: indexed(data).map(lambda n: None if n % 5 == 0 else n).listed(4))
    _, states = job.run(2, 6)
    with pytest.raises(wds.StateError, match="a stage left out samples"):
        job.on(1, 2).load_state_dict(states[0])
    job.on(1, 2).load_state_dict(states)


@pytest.mark.parametrize("lanes", [None, 12])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_takes_the_states_of_all_ranks_as_each_rank_its_own(
    data, lanes, workers, monkeypatch
):
    def make():
        shards = wds.WebDataset(
            data, shardshuffle=3, nodesplitter=wds.split_by_node, empty_check=False
        )
        source = shards.map(number) if lanes is None else indexed(data, lanes=lanes)
        chain = wds.WebLoader(source.shuffle(9).listed(2), batch_size=None, num_workers=workers)
        return chain.unlisted().shuffle(7)

    job = Job(monkeypatch, make)
    whole, _ = job.run(2)
    begun, states = job.run(2, 11)  # not a whole round of the lanes
    rest, _ = job.run(2, states=states)
    assert [a + b for a, b in zip(begun, rest)] == whole


def test_describe_says_what_the_state_of_a_rank_holds(data, monkeypatch):
    assert "state:" not in indexed(data).describe()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert indexed(data).describe().count("state: that of one rank is enough for all ranks") == 1
    shuffled = indexed(data).shuffle(9).describe()
    assert shuffled.count("state: of this rank only; save that of every rank") == 1


def test_ranks_of_a_process_group_gather_their_states(data, tmp_path):
    """Two real processes; each resumes from what rank 0 saved."""
    (tmp_path / "urls.json").write_text(json.dumps(data))
    script = HERE / "gathering_rank.py"
    ranks = [
        subprocess.Popen([sys.executable, str(script), str(tmp_path), str(rank)])
        for rank in range(2)
    ]
    assert [rank.wait(timeout=240) for rank in ranks] == [0, 0]
    for rank in range(2):
        told = json.loads((tmp_path / f"told-{rank}.json").read_text())
        assert "gathered from all ranks" in told["describe"]
        assert told["begun"] + told["rest"] == told["whole"]
        assert told["complete"] == told["next"]
