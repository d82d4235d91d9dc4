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
from waiting import wait_until


def lines_of(folder):
    log = folder / "log"
    return log.read_bytes().count(b"\n") if log.exists() else 0


def kill_after(folder, kind, steps, moment_s):
    """Start the trainer again, and kill it ``moment_s`` after it has logged ``steps`` steps."""
    job = subprocess.Popen([sys.executable, trainer.__file__, str(folder), kind])
    try:
        begun = saved_lines(folder)

        def logged():
            assert job.poll() is None, "the trainer ended before it was killed"
            return lines_of(folder) >= begun + steps

        wait_until(logged, f"the trainer logs {steps} steps")
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
    assert consumed == list(islice(trainer.iterate_forever(trainer.KINDS[kind](tmp_path)), steps))
