"""A state that does not fit is refused, and the message names what differs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import partial

import pytest
from numbered import indexed, is_odd, number, write_shards

import penstock as wds
from penstock.errors import StaleIndexError, StateError
from penstock.shards.index import open_index


def begun(pipeline, steps=3):
    """The state of a pipeline after some steps."""
    stream = iter(pipeline)
    for _ in range(steps):
        next(stream)
    return json.loads(json.dumps(pipeline.state_dict()))


def scaled(n, by):
    return n * by


def refused(pipeline, state, message):
    with pytest.raises(StateError, match=message):
        pipeline.load_state_dict(state)


def test_another_stage_is_named(urls):
    state = begun(indexed(urls).shuffle(5).map(number))
    message = r"stage 1 was shuffle\(5\) and is shuffle\(6\)"
    refused(indexed(urls).shuffle(6).map(number), state, message)
    refused(indexed(urls).shuffle(5).map(is_odd), state, r"was map\(number\) and is map\(is_odd\)")
    refused(indexed(urls).shuffle(5), state, r"fewer stages: \['map\(number\)'\]")
    refused(
        indexed(urls).shuffle(5).map(number).listed(2), state, r"more stages: \['listed\(2\)'\]"
    )
    refused(wds.WebDataset(urls).shuffle(5), state, "stage 0 was IndexedSamples.*SimpleShardList")


def test_another_argument_is_named(urls):
    state = begun(indexed(urls).map(number).map(partial(scaled, by=2)))
    now = indexed(urls).map(number).map(partial(scaled, by=3))
    refused(now, state, r"stage 2 was map\(partial\(scaled, by=2\)\) and is map\(partial.*by=3")
    refused(indexed(urls, ends="pad").map(number), state, "stage 0 was IndexedSamples.*ends='pad'")
    state = begun(indexed(urls).map(number).with_epoch(20))
    refused(indexed(urls).map(number).with_epoch(30), state, r"with_epoch\(20\) and is with_ep.*30")


def test_a_stage_inside_a_mix_is_named(urls, others):
    def mixed(size):
        second = wds.WebDataset(others, index=True, shardshuffle=2, ends="exact").shuffle(size)
        return wds.DataPipeline(wds.RandomMix([indexed(urls).shuffle(3), second]))

    message = r"RandomMix\[1\]: shuffle\(4\) and is RandomMix\[1\]: shuffle\(5\)"
    refused(mixed(5), begun(mixed(4)), message)


def test_a_stage_in_the_workers_of_a_loader_is_named(urls):
    def loader(size):
        return wds.WebLoader(indexed(urls).shuffle(size), batch_size=None)

    refused(loader(6), begun(loader(5)), r"shuffle\(5\)[\s\S]*shuffle\(6\)")


def test_other_data_is_told(urls, others, tmp_path):
    refused(indexed(others), begun(indexed(urls)), "of other shards: data was .* and is ")
    refused(indexed(urls[:3]), begun(indexed(urls)), "of other shards")
    refused(wds.WebDataset(urls[:3]), begun(wds.WebDataset(urls)), "of other shards")
    state = begun(indexed(urls, exclude={"s0001", "s0002"}))
    refused(indexed(urls, exclude={"s0001", "s0003"}), state, "exclude|other shards")
    longer = write_shards(tmp_path, 4, 7)  # the same names, other samples in them
    refused(indexed(longer), begun(indexed(urls)), "of other shards")


def test_the_same_data_elsewhere_is_taken(urls, tmp_path):
    copies = write_shards(tmp_path)
    for make in (indexed, wds.WebDataset):
        first = make(urls).shuffle(4).map(number)
        stream = iter(first)
        next(stream)
        second = make(copies).shuffle(4).map(number)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert list(second) == list(stream)


def test_another_seed_or_version_is_told(urls):
    state = begun(indexed(urls, seed=1))
    refused(indexed(urls, seed=2), state, "another seed: seed was 1 and is 2")
    refused(indexed(urls, seed=1), {**state, "penstock": 99}, "format 99, .* reads 1")
    refused(indexed(urls, seed=1), {"epoch": 1}, "not a state of a penstock pipeline")
    refused(indexed(urls, seed=1), [], "no state was given")


def test_lanes_that_do_not_divide_are_told(urls, monkeypatch):
    state = begun(indexed(urls, lanes=12))
    refused(indexed(urls, lanes=8), state, "has 12 lanes and this pipeline 8")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "5")
    refused(indexed(urls, lanes=12), [state], "12 lanes of the state cannot be shared by 5 ranks")
    with pytest.raises(wds.PipelineError, match="12 lanes cannot be shared equally by 5 ranks"):
        iter(indexed(urls, lanes=12))


def ranks_of(urls, world, monkeypatch):
    states = []
    for rank in range(world):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(world))
        states.append(begun(indexed(urls, lanes=12).shuffle(5)))
    return states


def test_a_missing_rank_is_told(urls, monkeypatch):
    states = ranks_of(urls, 3, monkeypatch)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(
        indexed(urls, lanes=12).shuffle(5), states[:2], r"ranks \[0, 1\] were given, .* had 3 ranks"
    )
    refused(indexed(urls, lanes=12).shuffle(5), states[1], "one of 3 ranks, this job has 2")
    twice = [states[0], states[1], states[1]]
    refused(indexed(urls, lanes=12).shuffle(5), twice, r"ranks \[0, 1, 1\]")
    edited = {name: value for name, value in states[2].items() if name != "check"}
    late = [*states[:2], {**edited, "epoch": 1}]
    refused(indexed(urls, lanes=12).shuffle(5), late, "not of one moment")


def test_the_state_of_another_rank_is_told(urls, monkeypatch):
    states = ranks_of(urls, 2, monkeypatch)
    monkeypatch.setenv("RANK", "0")
    refused(indexed(urls, lanes=12).shuffle(5), states[1], "of rank 1, this is rank 0")


def test_without_lanes_another_number_of_ranks_is_told(urls, monkeypatch):
    make = partial(wds.WebDataset, urls, nodesplitter=wds.split_by_node, empty_check=False)
    state = begun(make())
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    refused(make(), state, "of 1 ranks with 1 workers, this job has 2")


def test_a_refused_state_changes_nothing(urls):
    data = indexed(urls).shuffle(4).map(number)
    stream = iter(data)
    begin = [next(stream) for _ in range(5)]
    refused(data, begun(indexed(urls, seed=9).shuffle(4).map(number)), "another seed")
    assert sorted(begin + list(stream)) == list(range(24))
    other = indexed(urls, lanes=8)
    refused(other, begun(indexed(urls, lanes=12)), "lanes")
    assert other.lanes == 8


def test_a_shard_rewritten_under_its_index_is_an_error(tmp_path):
    urls = write_shards(tmp_path)
    open_index(urls, True)
    first = indexed(urls).map(number)
    state = begun(first)
    write_shards(tmp_path, 4, 7)  # the index beside them still tells of six samples each
    second = indexed(urls).map(number)
    second.load_state_dict(state)
    with pytest.raises(StaleIndexError, match=r"d00\d\.tar"):
        list(second)


def test_a_state_fits_in_another_process(urls, tmp_path):
    """Sets, partials and objects print otherwise there; the pipeline is still the same."""
    code = (
        "import json, sys, random; from functools import partial; import penstock as wds\n"
        "from numbered import number; from test_objects import Times\n"
        "data = wds.WebDataset(sys.argv[1:], index=True, exclude={'s0001', 's0002', 's0009'})\n"
        "data = data.map(number).map(Times(3)).shuffle(4, rng=random.Random(2))\n"
        "stream = iter(data); [next(stream) for _ in range(5)]\n"
        "print(json.dumps([data.state_dict(), list(stream)]))\n"
    )
    (tmp_path / "test_objects.py").write_text(
        "class Times:\n"
        "    def __init__(self, by): self.by = by\n"
        "    def __call__(self, n): return n * self.by\n"
    )
    path = [str(tmp_path), os.path.dirname(__file__), *sys.path]
    told = []
    for seed in ("1", "2"):
        place = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "PYTHONHASHSEED": seed}
        found = subprocess.run(
            [sys.executable, "-c", code, *urls], env=place, capture_output=True, text=True
        )
        assert found.returncode == 0, found.stderr
        told.append(json.loads(found.stdout))
    assert told[0] == told[1]
