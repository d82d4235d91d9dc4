"""Real groups of processes: each sample once, as many batches everywhere, and nobody waits forever."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from numbered import write_shards

from penstock.index import open_index

HERE = os.path.dirname(__file__)
DEADLINE_S = 180


def train(folder, world, **plan):
    """What each of ``world`` processes saw, as rank.py tells it."""
    plan = {"workers": None, "epochs": 3, "batch": 4, **plan}
    plan.update(folder=str(folder), name=f"job{world}")
    (folder / "plan.json").write_text(json.dumps(plan))
    jobs = []
    for rank in range(world):
        place = {**os.environ, "TEST_RANK": str(rank), "TEST_WORLD": str(world)}
        command = [sys.executable, os.path.join(HERE, "rank.py"), str(folder / "plan.json")]
        jobs.append(subprocess.Popen(command, env=place, stderr=subprocess.PIPE, text=True))
    try:
        for job in jobs:
            _, errors = job.communicate(timeout=DEADLINE_S)
            assert job.returncode == 0, errors
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    return [json.loads((folder / f"job{world}-{rank}.json").read_text()) for rank in range(world)]


def shards(folder, count, each):
    urls = write_shards(folder, count, each)
    open_index(urls, True)
    return urls


def seen_in(told, epoch):
    """All (number, is a pad) of an epoch, on all ranks."""
    return [tuple(one) for rank in told for batch in rank["epochs"][epoch] for one in batch]


CASES = [
    # ends, ranks, workers, shards × samples: 41 samples never come out even
    ("drop", 2, None, (1, 41)),
    ("drop", 3, 2, (1, 41)),
    ("drop", 4, None, (3, 13)),
    ("pad", 2, 2, (1, 41)),
    ("pad", 3, None, (3, 13)),
    ("pad", 4, None, (1, 41)),
    ("exact", 2, None, (3, 13)),
    ("exact", 3, 2, (1, 41)),
    ("exact", 4, None, (1, 41)),
]


@pytest.mark.parametrize(("ends", "world", "workers", "size"), CASES)
def test_ranks_share_every_epoch(tmp_path, ends, world, workers, size):
    count = size[0] * size[1]
    urls = shards(tmp_path, *size)
    told = train(tmp_path, world, urls=urls, ends=ends, workers=workers)
    orders = set()
    for epoch in range(3):
        batches = [rank["epochs"][epoch] for rank in told]
        seen = seen_in(told, epoch)
        real = sorted(n for n, pad in seen if not pad)
        assert [len(part) for part in batches] == [rank["len"] for rank in told]
        orders.add(tuple(n for n, _ in seen))
        if ends == "exact":
            assert real == list(range(count))
            assert not any(pad for _, pad in seen)
            continue
        assert len({len(part) for part in batches}) == 1
        assert {len(batch) for part in batches for batch in part} == {4}
        unit = 4 * world
        if ends == "drop":
            assert len(real) == len(set(real)) == count // unit * unit == len(seen)
        else:
            assert real == list(range(count))
            assert len(seen) == -(-count // unit) * unit
            assert {n for n, pad in seen if pad} <= set(range(count))
    assert len(orders) == 3


def test_ranks_together_see_the_batches_of_one_process_alone(tmp_path):
    urls = shards(tmp_path, 3, 16)
    alone = train(tmp_path, 1, urls=urls, ends="drop", lanes=12, epochs=2, seed=7)
    three = train(tmp_path, 3, urls=urls, ends="drop", lanes=12, epochs=2, seed=7)
    for epoch in range(2):
        parts = [rank["epochs"][epoch] for rank in three]
        turns = [batch for turn in zip(*parts) for batch in turn]
        assert turns == alone[0]["epochs"][epoch]
