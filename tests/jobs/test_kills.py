"""Workers and drivers killed at random moments: nothing is lost, nothing differs.

``--kills`` sets the number of rounds; the long checks of ``dev.py soak`` do more.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from job_inputs import make_inputs

from penstock.jobs import Plan, Task, map_shards, run_tasks
from penstock.jobs.engines.local import LocalEngine
from penstock.jobs.verify import verify_job

SCRIPT = str(Path(__file__).with_name("job_process.py"))
SHARDS, EACH = 16, 10
ROUNDS_S = 0.3


@pytest.fixture
def kills(request):
    return request.config.getoption("--kills")


@pytest.fixture
def expected(tmp_path):
    """Inputs, and the digest of one process."""
    inputs = make_inputs(tmp_path / "in", SHARDS, EACH)
    report = run(start("local", inputs, f"{tmp_path}/one/{{stem}}.tar", "--jobs", "1"))
    return inputs, report["digest"]


def start(engine, inputs, outputs, *more):
    command = [sys.executable, SCRIPT, engine, inputs, outputs, *more]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def run(process):
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    return json.loads(out)


def done(folder):
    return {path.name for path in Path(folder).glob(".penstock/test/done/*.json")}


def complete_shards_only(folder):
    """Every visible shard is complete: it ends with two empty blocks."""
    for path in Path(folder).glob("*.tar"):
        data = path.read_bytes()
        assert len(data) % 10240 == 0
        assert data[-1024:] == bytes(1024)


def children(pid):
    """The worker processes of a driver."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    return [int(word) for word in text.split()]


def wait_until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.005)


@pytest.mark.parametrize("engine", ["local", "dask", "ray"])
def test_a_killed_driver_loses_no_finished_shard(tmp_path, expected, kills, engine):
    if engine != "local":
        pytest.importorskip("distributed" if engine == "dask" else "ray", reason="NO CLUSTER")
    inputs, digest = expected
    out = f"{tmp_path}/out/{{stem}}.tar"
    for number in range(kills):
        before = done(tmp_path / "out")
        more = ("--jobs", "2", "--pause", "0.01")
        driver = start(engine, inputs, out, *more)
        # Somewhere after the first new shard, if there is one to come.
        if len(before) < SHARDS - 2:
            wait_until(lambda before=before: len(done(tmp_path / "out")) > len(before))
        time.sleep(random.uniform(0, ROUNDS_S))
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()
        assert done(tmp_path / "out") >= before, f"round {number}"
        complete_shards_only(tmp_path / "out")
    report = run(start(engine, inputs, out, "--jobs", "2"))
    assert report["digest"] == digest
    assert verify_job(f"{tmp_path}/out").problems == []


def test_workers_end_when_their_driver_is_killed(tmp_path, expected):
    inputs, _ = expected
    out = f"{tmp_path}/out/{{stem}}.tar"
    driver = start("local", inputs, out, "--jobs", "2", "--pause", "0.2")
    wait_until(lambda: len(children(driver.pid)) == 2)
    workers = children(driver.pid)
    driver.kill()
    driver.communicate()
    wait_until(lambda: not any(_is_running(pid) for pid in workers), 10)


def _is_running(pid):
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_killed_workers_cost_one_shard_each(tmp_path, expected, kills):
    inputs, digest = expected
    for number in range(kills):
        out = tmp_path / f"out-{number}"
        driver = start("local", inputs, f"{out}/{{stem}}.tar", "--jobs", "2", "--pause", "0.01")
        killed = 0
        while driver.poll() is None and killed < 3:
            workers = children(driver.pid)
            if len(workers) == 2:
                before = done(out)
                os.kill(random.choice(workers), signal.SIGKILL)
                killed += 1
                assert done(out) >= before
            time.sleep(random.uniform(0, ROUNDS_S))
        report = run(driver)
        assert report["digest"] == digest
        assert report["ran"] == SHARDS
        complete_shards_only(out)


def test_the_driver_learns_of_a_killed_worker_at_once(tmp_path):
    engine = LocalEngine(2)

    def work(task, write):
        if task.name == "a" and not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            write({"__key__": "begun", "txt": "half"})
            os.kill(os.getpid(), signal.SIGKILL)

    tasks = [Task(name, outputs=(f"{name}.tar",)) for name in "abcd"]
    started = time.monotonic()
    report = run_tasks(Plan(tasks), work, folder=str(tmp_path), engine=engine, retries=0)
    assert report.complete
    assert not list(tmp_path.glob(".*.part"))
    assert time.monotonic() - started < 30


@pytest.fixture
def empty_tasks(request):
    return request.config.getoption("--empty-tasks")


def do_nothing(task, write):
    pass


def test_thousands_of_empty_tasks_are_done_and_found_done(tmp_path, empty_tasks, capsys):
    plan = Plan([Task(f"{n:06d}", outputs=(f"{n:06d}.tar",)) for n in range(empty_tasks)])
    begun = time.perf_counter()
    report = run_tasks(plan, do_nothing, folder=str(tmp_path), jobs=2)
    first = time.perf_counter() - begun
    assert report.done == empty_tasks
    begun = time.perf_counter()
    again = run_tasks(plan, do_nothing, folder=str(tmp_path), jobs=2)
    second = time.perf_counter() - begun
    assert (again.ran, again.digest) == (0, report.digest)
    with capsys.disabled():
        print(
            f"\n{empty_tasks} empty tasks: {first / empty_tasks * 1e3:.2f} ms each; "
            f"looking through them again {second:.2f} s"
        )


def test_memory_does_not_grow_with_the_shard(tmp_path):
    import resource

    import penstock as wds

    path = tmp_path / "in.tar"
    with wds.TarWriter(str(path)) as sink:
        for n in range(200):
            sink.write({"__key__": f"{n:06d}", "bin": bytes(1_000_000)})

    pipe_in, pipe_out = os.pipe()
    pid = os.fork()
    if pid == 0:  # a process of its own, since the peak of this one is not ours
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        map_shards(lambda s: s, str(path), f"{tmp_path}/out/{{stem}}.tar", jobs=1, index=False)
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        os.write(pipe_out, str(grown).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert int(os.read(pipe_in, 100)) * 1024 < 50_000_000, "the shard has 200 MB"
