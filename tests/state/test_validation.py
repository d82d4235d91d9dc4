"""Validation with ends="pad" in processes of torch.distributed: each sample counts once."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
import validation_rank
from numbered import write_shards

import penstock as wds
from penstock.shards.index import open_index

COUNT = 64


@pytest.mark.parametrize("kind", ["tuples", "dicts", "rebatched"])
@pytest.mark.parametrize("world", [2, 3])
def test_every_sample_counts_once(tmp_path, kind, world):
    urls = write_shards(tmp_path, 4, COUNT // 4)
    open_index(urls, True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    jobs = []
    for rank in range(world):
        place = {"RANK": rank, "WORLD_SIZE": world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = {**os.environ, **{name: str(value) for name, value in place.items()}}
        command = [sys.executable, validation_rank.__file__, kind, *urls]
        jobs.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    told = [json.loads(job.communicate(timeout=300)[0]) for job in jobs]
    steps = {rank[0] for rank in told}
    assert len(steps) == 1
    assert told[0][1:] == [sum(range(COUNT)), COUNT, -COUNT % world]


@pytest.mark.parametrize("ranks", [1, 2, 5, 7])
@pytest.mark.parametrize("batch", [1, 4, 13, 100])
@pytest.mark.parametrize("lanes", [None, 70])
def test_no_more_samples_are_repeated_than_ranks_need(tmp_path, monkeypatch, ranks, batch, lanes):
    urls = write_shards(tmp_path, 4, COUNT // 4)
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    seen, lengths = [], set()
    for rank in range(ranks):
        monkeypatch.setenv("RANK", str(rank))
        data = wds.WebDataset(urls, index=True, shardshuffle=2, lanes=lanes, ends="pad")
        data = data.to_tuple("cls", "__pad__").batched(batch)
        batches = list(data)
        lengths.add((len(batches), len(data), sum(len(numbers) for numbers, _ in batches)))
        seen += [(int(n), pad) for numbers, pads in batches for n, pad in zip(numbers, pads)]
    assert len(lengths) == 1
    assert all(steps == known for steps, known, _ in lengths)
    assert sorted(n for n, pad in seen if not pad) == list(range(COUNT))
    assert sum(pad for _, pad in seen) == -COUNT % ranks
