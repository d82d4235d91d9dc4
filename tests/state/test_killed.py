"""A trainer killed without warning, again and again, sees what it would have seen in peace."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from itertools import islice

import pytest
import trainer
from numbered import write_shards

from penstock.shards.index import open_index

DEADLINE_S = 60


def lines_of(folder):
    log = folder / "log"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def kill_after(folder, kind, steps, moment_s):
    """Start the trainer anew, and kill it a moment after it has logged so many steps."""
    job = subprocess.Popen([sys.executable, trainer.__file__, str(folder), kind])
    try:
        begun = saved_lines(folder)
        deadline = time.monotonic() + DEADLINE_S
        while lines_of(folder) < begun + steps:
            assert job.poll() is None, "the trainer ended by itself"
            assert time.monotonic() < deadline, "the trainer stands still"
            time.sleep(0.001)
        time.sleep(moment_s)
        os.kill(job.pid, signal.SIGKILL)
    finally:
        job.kill()
        job.wait()


def saved_lines(folder):
    """How many steps stand in the log up to the checkpoint; the log is cut there."""
    checkpoint, log = folder / "checkpoint.json", folder / "log"
    size = json.loads(checkpoint.read_text())["bytes"] if checkpoint.exists() else 0
    if log.exists():
        os.truncate(log, size)
    return lines_of(folder)


@pytest.mark.parametrize(("kind", "rounds"), [("indexed", 30), ("streamed", 20), ("loaded", 3)])
def test_a_killed_trainer_goes_on_as_if_it_had_not_been(tmp_path, kind, rounds):
    open_index(write_shards(tmp_path, 4, 12), True)
    write_shards(tmp_path, 2, 9, first=200, name="e")
    rng = random.Random(kind)
    for _ in range(rounds):
        kill_after(tmp_path, kind, rng.randint(1, 13), rng.random() * 0.02)
    steps = saved_lines(tmp_path)
    consumed = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert steps > 2 * rounds
    assert consumed == list(islice(trainer.steps(trainer.KINDS[kind](tmp_path)), steps))
