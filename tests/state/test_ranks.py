"""Real groups of processes: each sample once, as many batches everywhere, and nobody hangs."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from numbered import number, write_shards

import penstock as wds
from penstock.shards.index import open_index

HERE = os.path.dirname(__file__)
DEADLINE_S = 180
BATCH = 4


def train(folder, world, plans):
    """For each plan, what each of ``world`` processes saw, as rank.py tells it."""
    (folder / "plans.json").write_text(json.dumps(plans))
    command = [sys.executable, os.path.join(HERE, "rank.py"), str(folder)]
    jobs = [
        subprocess.Popen([*command, str(rank), str(world)], stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    try:
        for job in jobs:
            _, errors = job.communicate(timeout=DEADLINE_S)
            assert job.returncode == 0, errors
    finally:
        for job in jobs:
            job.kill()
            job.wait()
    told = [json.loads((folder / f"told-{rank}.json").read_text()) for rank in range(world)]
    return list(zip(*told))


@pytest.mark.parametrize("world", [2, 3, 4])
def test_a_group_of_processes_shares_every_epoch(tmp_path, world):
    one = write_shards(tmp_path, 1, 41, name="one")  # more ranks, and more workers, than shards
    some = write_shards(tmp_path, 3, 13, name="some")
    open_index(one, True), open_index(some, True)
    words = {"batch": BATCH, "epochs": 3}
    plans = [
        {**words, "ends": ends, "urls": urls, "workers": workers, "lanes": lanes}
        for ends, urls, workers, lanes in (
            ("drop", one, None, None),
            ("drop", some, 2 if world == 2 else 0, 12),
            ("pad", some, None, 12),
            ("pad", one, 2 if world == 3 else 0, None),
            ("exact", one, 2, None),
            ("exact", some, None, 12),
        )
    ]
    for plan, told in zip(plans, train(tmp_path, world, plans)):
        orders = set()
        for epoch in range(3):
            batches = [rank["epochs"][epoch] for rank in told]
            assert [len(part) for part in batches] == [rank["len"] for rank in told]
            seen = [tuple(one) for part in batches for batch in part for one in batch]
            check(
                plan["ends"], len(plan["urls"]) * (41 if plan["urls"] == one else 13), batches, seen
            )
            orders.add(tuple(seen))
            if plan["workers"] is None:
                assert in_turn(batches) == alone(plan, world, epoch)
        assert len(orders) == 3


def check(ends, count, batches, seen):
    """An epoch of ``count`` samples: the batches of each rank, and all (number, is a pad)."""
    real = sorted(n for n, pad in seen if not pad)
    if ends == "exact":
        assert real == list(range(count))
        assert len(seen) == count
        return
    assert len({len(part) for part in batches}) == 1
    assert {len(batch) for part in batches for batch in part[:-1]} == {BATCH}
    assert len({len(part[-1]) for part in batches}) == 1
    unit = BATCH * len(batches)
    if ends == "drop":
        assert len(batches[0][-1]) == BATCH
        assert len(real) == len(set(real)) == len(seen) == count // unit * unit
    else:
        assert real == list(range(count))
        assert len(seen) == -(-count // len(batches)) * len(batches)
        assert {n for n, pad in seen if pad} <= set(real)


def in_turn(batches):
    """The numbers of all batches, one rank after another in each step."""
    longest = max(map(len, batches))
    steps = [[part[step] for part in batches if step < len(part)] for step in range(longest)]
    return [[n for n, _ in batch] for step in steps for batch in step]


def alone(plan, world, epoch):
    """The batches that one process alone would have made."""
    data = wds.WebDataset(plan["urls"], index=True, shardshuffle=2, seed=1, lanes=12)
    data.set_epoch(epoch)
    batches = list(data.map(number).listed(BATCH))
    full = len(batches) // world * world
    if plan["ends"] == "drop":
        whole = [batch for batch in batches if len(batch) == BATCH]
        return whole[: len(whole) // world * world]
    if plan["ends"] == "pad" and (len(batches) != full or len(batches[-1]) < BATCH):
        order = [n for batch in batches for n in batch]
        padded = (order * 2)[: -(-len(order) // world) * world]
        begin = len(padded) // (BATCH * world) * BATCH * world
        short = (len(padded) - begin) // world  # the batches of the last step
        batches = [padded[at : at + BATCH] for at in range(0, begin, BATCH)]
        return batches + [padded[at : at + short] for at in range(begin, len(padded), short or 1)]
    return batches
