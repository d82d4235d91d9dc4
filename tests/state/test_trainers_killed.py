"""Trainings with other libraries, killed in the middle of an epoch, lose and repeat nothing."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from functools import partial

import framework_trainer
import pytest
from numbered import write_shards

from penstock.shards.index import open_index
from waiting import wait_until

STOP = 6
DEADLINE_S = 300


def start(kind, folder, world, stop=-1):
    """The processes of one run, which meet at a port of this machine."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    jobs = []
    for rank in range(world):
        environment = {**os.environ, "STOP": str(stop), "CUDA_VISIBLE_DEVICES": ""}
        if world > 1:  # as torchrun sets them
            environment.update(
                MASTER_ADDR="127.0.0.1",
                MASTER_PORT=str(port),
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                GROUP_RANK="0",
                WORLD_SIZE=str(world),
                LOCAL_WORLD_SIZE=str(world),
                TORCHELASTIC_RUN_ID="test",
            )
        command = [sys.executable, framework_trainer.__file__, kind, str(folder)]
        with open(folder / f"output-{rank}", "w") as output:
            job = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
        jobs.append(job)
    return jobs


def said(folder, rank):
    return (folder / f"output-{rank}").read_text()[-3000:]


def finish(jobs, folder):
    for rank, job in enumerate(jobs):
        assert job.wait(timeout=DEADLINE_S) == 0, said(folder, rank)


def kill_when_ready(jobs, folder):
    """Kill all ranks once each waits after the step STOP."""

    def ready(rank):
        assert jobs[rank].poll() is None, said(folder, rank)
        return (folder / f"ready-{rank}").exists()

    try:
        for rank in range(len(jobs)):
            wait_until(partial(ready, rank), partial(said, folder, rank), DEADLINE_S)
    finally:
        for job in jobs:
            os.kill(job.pid, signal.SIGKILL)
            job.wait()


def losses(folder, rank):
    """The loss of each step; of steps that were repeated after the kill, the last."""
    lines = (folder / f"losses-{rank}").read_text().splitlines()
    return {int(step): loss for step, loss in (line.split() for line in lines)}, len(lines)


@pytest.mark.parametrize(
    ("kind", "world", "steps"),
    [
        ("ddp", 2, 12),
        ("lightning", 2, 12),
        ("lightning_stream", 2, 12),
        ("accelerate", 1, 24),
        ("transformers", 1, 24),
    ],
)
def test_a_killed_training_has_the_losses_of_one_that_was_not(tmp_path, kind, world, steps):
    quiet, killed = tmp_path / "quiet", tmp_path / "killed"
    quiet.mkdir()
    open_index(write_shards(quiet, 4, 12), True)
    shutil.copytree(quiet, killed)
    finish(start(kind, quiet, world), quiet)
    kill_when_ready(start(kind, killed, world, STOP), killed)
    finish(start(kind, killed, world), killed)
    for rank in range(world):
        wanted, _ = losses(quiet, rank)
        found, lines = losses(killed, rank)
        assert sorted(wanted) == list(range(1, steps + 1))
        assert len(set(wanted.values())) > steps // 2
        assert found == wanted
        # Steps after the checkpoint were done twice, earlier ones only once.
        assert lines == steps + STOP - framework_trainer.EVERY
