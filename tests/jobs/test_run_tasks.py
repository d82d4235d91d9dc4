"""The core of jobs: tasks, records, restarts."""

from __future__ import annotations

import hashlib
import io
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

import penstock as wds
from penstock.errors import PipelineError, StorageError
from penstock.jobs import JobReport, Plan, Task, run_tasks
from penstock.jobs.engines.engine import InlineEngine
from penstock.jobs.engines.local import LocalEngine
from penstock.jobs.plan import find_difference
from penstock.jobs.progress import JsonProgress, Progress
from penstock.jobs.verify import verify_job
from penstock.shards.index import Index
from penstock.storage.local.scratch_folder import ScratchFolder, sweep_scratch
from penstock.storage.small_files import FileStamp
from terminals import run_at_terminal
from waiting import is_running, wait_until

COUNT, EACH = 5, 10


def numbers(count=COUNT, **more):
    tasks = [
        Task(f"{n:04d}", outputs=(f"part-{n:04d}.tar",), argument=[n * EACH, (n + 1) * EACH])
        for n in range(count)
    ]
    return Plan(tasks, function="numbers/1", **more)


def write_numbers(task, write):
    for n in range(*task.argument):
        write.count(kept=True)
        write({"__key__": f"{n:06d}", "cls": n})


def run(folder, plan=None, work=write_numbers, **more):
    return run_tasks(plan or numbers(), work, folder=str(folder), **{"jobs": 1, **more})


def done(folder, name="job"):
    paths = sorted((Path(folder) / ".penstock" / name / "done").glob("*.json"))
    return [json.loads(path.read_text()) for path in paths]


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_task_writes_its_shard_and_a_record(tmp_path, jobs):
    report = run(tmp_path, jobs=jobs)
    assert (report.tasks, report.done, report.failed, report.ran) == (COUNT, COUNT, 0, COUNT)
    assert (report.samples_in, report.kept, report.dropped, report.samples_out) == (50, 50, 0, 50)
    names = [f"part-{n:04d}.tar" for n in range(COUNT)]
    assert sorted(os.listdir(tmp_path)) == [".penstock", *names]
    for name, record in zip(names, done(tmp_path)):
        data = (tmp_path / name).read_bytes()
        assert record["schema"] == "penstock.task/1"
        (output,) = record["outputs"]
        assert output == {
            "name": name,
            "size": len(data),
            "sha256": hashlib.sha256(data).hexdigest(),
            "samples": EACH,
        }


def test_the_digest_is_that_of_the_sorted_lines_of_names_and_checksums(tmp_path):
    report = run(tmp_path)
    lines = sorted(
        f"{path.name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in tmp_path.glob("*.tar")
    )
    assert report.digest == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_the_digest_does_not_depend_on_the_number_of_workers(tmp_path):
    assert run(tmp_path / "a", jobs=1).digest == run(tmp_path / "b", jobs=3).digest


def test_a_second_run_does_nothing(tmp_path):
    first = run(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.tar")}
    again = run(tmp_path)
    assert again.ran == 0
    assert (again.digest, again.samples_out) == (first.digest, first.samples_out)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("*.tar")} == before


def test_a_run_does_only_what_is_missing(tmp_path):
    first = run(tmp_path)
    for path in (tmp_path / ".penstock/job/done").glob("0002.*"):
        path.unlink()
    again = run(tmp_path)
    assert (again.ran, again.digest) == (1, first.digest)


def test_a_record_that_was_cut_short_does_not_count(tmp_path):
    first = run(tmp_path)
    (path,) = (tmp_path / ".penstock/job/done").glob("0002.*")
    path.write_bytes(b"")
    again = run(tmp_path)
    assert (again.ran, again.digest) == (1, first.digest)


def test_without_the_copy_of_the_records_they_are_read_one_by_one(tmp_path):
    first = run(tmp_path)
    (tmp_path / ".penstock/job/records.jsonl.gz").unlink()
    again = run(tmp_path)
    assert (again.ran, again.digest) == (0, first.digest)


def test_the_control_folder_goes_away_when_it_is_not_kept(tmp_path):
    report = run(tmp_path, keep_control_folder=False)
    assert report.complete
    (left,) = (path for path in (tmp_path / ".penstock").rglob("*") if path.is_file())
    assert left.name == "finished.json"
    assert len(list(tmp_path.glob("*.tar"))) == COUNT


def lose(path):
    path.unlink()


def truncate(path):
    os.truncate(path, path.stat().st_size - 512)


@pytest.mark.parametrize("harm", [lose, truncate])
def test_the_same_call_writes_lost_and_damaged_outputs_again(tmp_path, harm, caplog):
    first = run(tmp_path)
    harm(tmp_path / "part-0002.tar")
    again = run(tmp_path)
    assert (again.ran, again.complete, again.digest) == (1, True, first.digest)
    assert "0002" in caplog.text
    assert verify_job(str(tmp_path)).problems == []
    assert run(tmp_path).ran == 0


def test_a_lost_part_of_several_is_written_again(tmp_path):
    plan = Plan([Task("one", outputs=("sub/p-%02d.tar",), argument=[0, 25])], maxcount=10)
    first = run(tmp_path, plan)
    (tmp_path / "sub/p-01.tar").unlink()
    again = run(tmp_path, plan)
    assert (again.ran, again.digest) == (1, first.digest)


def test_a_kill_while_lost_outputs_are_written_again_loses_nothing(tmp_path):
    first = run(tmp_path)
    (tmp_path / "part-0002.tar").unlink()

    def work(task, write):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, work=work)
    again = run(tmp_path)
    assert (again.ran, again.digest) == (1, first.digest)


def test_an_output_may_be_moved_and_replaced_by_a_link(tmp_path):
    run(tmp_path / "out")
    (tmp_path / "out/part-0002.tar").rename(tmp_path / "moved.tar")
    (tmp_path / "out/part-0002.tar").symlink_to(tmp_path / "moved.tar")
    assert run(tmp_path / "out").ran == 0
    (tmp_path / "moved.tar").unlink()
    assert run(tmp_path / "out").ran == 1


def test_force_deletes_outputs_that_the_changed_plan_no_longer_writes(tmp_path, caplog):
    run(tmp_path, numbers(index=True))
    (tmp_path / "other.tar").touch()
    fewer = numbers(COUNT - 1, index=True)
    with pytest.raises(PipelineError, match=r"no longer has the task 0004 \(part-0004\.tar\)"):
        run(tmp_path, fewer)
    assert (tmp_path / "part-0004.tar").exists()
    report = run(tmp_path, fewer, force=True)
    assert (report.ran, report.complete) == (0, True)
    assert "part-0004.tar" in caplog.text
    names = [f"part-{n:04d}.tar" for n in range(COUNT - 1)]
    assert sorted(path.name for path in tmp_path.glob("*.tar")) == ["other.tar", *names]
    assert len(Index.load(tmp_path / "part.index.parquet")) == (COUNT - 1) * EACH


def test_force_deletes_all_parts_of_a_task_that_is_no_longer_planned(tmp_path):
    tasks = [Task(n, outputs=(f"{n}-%02d.tar",), argument=[0, 25]) for n in ("a", "a-1", "b")]
    run(tmp_path, Plan(tasks, maxcount=10))
    run(tmp_path, Plan(tasks[1:], maxcount=10), force=True)
    kept = [f"{n}-{part:02d}.tar" for n in ("a-1", "b") for part in range(3)]
    assert sorted(path.name for path in tmp_path.glob("*.tar")) == kept


def test_force_does_not_delete_an_earlier_output_that_is_read_now(tmp_path):
    run(tmp_path)
    read = Task("0000", inputs=(str(tmp_path / "part-0003.tar"),), outputs=("part-0000.tar",))
    with pytest.raises(PipelineError, match=r"part-0003\.tar in .* is an input now"):
        run(tmp_path, Plan([read]), force=True)
    assert (tmp_path / "part-0003.tar").exists()


def test_another_version_does_not_delete_outputs_without_force(tmp_path):
    run(tmp_path)
    with pytest.raises(PipelineError, match=r"does not write: part-0004\.tar\. force=True"):
        run(tmp_path, numbers(COUNT - 1, version="2"))
    assert run(tmp_path, numbers(COUNT - 1, version="2"), force=True).ran == COUNT - 1
    assert not (tmp_path / "part-0004.tar").exists()


def test_a_new_job_does_not_replace_parts_that_it_did_not_make(tmp_path):
    (tmp_path / "p-07.tar").write_bytes(b"precious")
    plan = Plan([Task("one", outputs=("p-%02d.tar",), argument=[0, 25])], maxcount=10)
    with pytest.raises(PipelineError, match=r"p-07\.tar' exists already"):
        run(tmp_path, plan)
    assert run(tmp_path, plan, force=True).complete


def test_without_checksums_records_have_none_and_sizes_are_verified(tmp_path):
    run(tmp_path, checksums=False)
    assert {record["outputs"][0]["sha256"] for record in done(tmp_path)} == {None}
    assert verify_job(str(tmp_path)).problems == []
    with open(tmp_path / "part-0001.tar", "ab") as file:
        file.write(bytes(512))
    (problem,) = verify_job(str(tmp_path)).problems
    assert "part-0001.tar has 20992 bytes, not 20480 as recorded" in problem


def test_jobs_are_imported_without_numpy_and_their_functions_are_found():
    code = (
        "import sys, penstock.jobs, penstock.tools.reworking, penstock.tools.creation\n"
        "import penstock.tools.concatenation\n"
        "assert not {'numpy', 'pyarrow', 'penstock.pipeline'} & set(sys.modules)\n"
        "from penstock.jobs import map_shards, reshard\n"
        "print(map_shards.__name__, reshard.__name__)"
    )
    printed = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    assert printed.stdout == b"map_shards reshard\n"


def test_an_index_of_all_outputs_is_written(tmp_path):
    run(tmp_path, numbers(index=True))
    assert (tmp_path / "part.index.parquet").exists()
    assert not (tmp_path / "part.index.parquet.parts").exists()
    dataset = wds.WebDataset(str(tmp_path / "part-{0000..0004}.tar"), index=True)
    assert [int(sample["cls"]) for sample in dataset] == list(range(50))


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_job_with_a_failed_shard_has_an_index_of_the_others(tmp_path, jobs):
    def fail_at_two(task, write):
        if task.name == "0002" and not (tmp_path / "repaired").exists():
            raise ValueError("two")
        write_numbers(task, write)

    options = {"plan": numbers(index=True), "work": fail_at_two, "jobs": jobs, "retries": 0}
    report = run(tmp_path / "out", on_error="skip", **options)
    assert (report.done, report.failed) == (COUNT - 1, 1)
    assert len(Index.load(tmp_path / "out/part.index.parquet")) == (COUNT - 1) * EACH
    (tmp_path / "repaired").touch()
    assert run(tmp_path / "out", **options).complete
    assert len(Index.load(tmp_path / "out/part.index.parquet")) == COUNT * EACH


@pytest.mark.parametrize("maxcount", [None, 4])
def test_the_index_has_no_earlier_output_of_a_failed_task(tmp_path, maxcount):
    def make(version):
        tasks = [Task(f"{n}", outputs=(f"part-{n}-%d.tar",)) for n in range(3)]
        if maxcount is None:
            tasks = [Task(f"{n}", outputs=(f"part-{n}.tar",)) for n in range(3)]
        return Plan(tasks, function=version, index=True, maxcount=maxcount)

    def write_version(task, write, version="old"):
        for n in range(10):
            write({"__key__": f"{task.name}-{n}", "txt": version})

    def fail_at_one(task, write):
        if task.name == "1":
            raise ValueError("one")
        write_version(task, write, "new")

    run(tmp_path, make("old"), write_version)
    options = {"on_error": "skip", "retries": 0, "force": True}
    report = run(tmp_path, make("new"), fail_at_one, **options)
    assert (report.done, report.failed, report.samples_out) == (2, 1, 20)
    index = Index.load(tmp_path / "part.index.parquet")
    assert {key[0] for key in index.keys} == {"0", "2"}
    assert len(index) == 20


def test_a_deleted_index_of_a_finished_job_is_written_again(tmp_path):
    for _ in range(2):
        run(tmp_path, numbers(index=True), keep_control_folder=False)
        assert len(Index.load(tmp_path / "part.index.parquet")) == COUNT * EACH
        (tmp_path / "part.index.parquet").unlink()
    run(tmp_path, numbers(), keep_control_folder=False, force=True)
    run(tmp_path, numbers(), keep_control_folder=False)
    assert not (tmp_path / "part.index.parquet").exists()


def test_a_finished_job_is_found_by_the_same_plan_only(tmp_path):
    first = run(tmp_path, keep_control_folder=False)
    again = run(tmp_path, keep_control_folder=False)
    assert (again.ran, again.digest, again.samples_out) == (0, first.digest, first.samples_out)
    with pytest.raises(PipelineError, match="exists already"):
        run(tmp_path, numbers(options={"seed": 1}), keep_control_folder=False)
    (path,) = tmp_path.glob(".penstock/*/finished.json")
    path.write_text("{}")
    with pytest.raises(PipelineError, match="exists already"):
        run(tmp_path, keep_control_folder=False)


def test_a_kill_after_the_index_was_written_leaves_nothing_for_the_next_run(tmp_path):
    run(tmp_path, numbers(index=True))
    (tmp_path / "part.index.parquet.parts").mkdir()
    (tmp_path / "part.index.parquet.lock").touch()
    run(tmp_path, numbers(index=True), keep_control_folder=False)
    left = {path.name for path in tmp_path.iterdir() if path.suffix != ".tar"}
    assert left == {".penstock", "part.index.parquet"}


def test_a_task_without_samples_writes_an_empty_shard(tmp_path):
    report = run(tmp_path, work=lambda task, write: None)
    assert (report.samples_out, report.done) == (0, COUNT)
    assert all(path.stat().st_size == 10240 for path in tmp_path.glob("*.tar"))


def test_work_may_write_files_of_any_kind(tmp_path):
    def work(task, write):
        write.open("a.txt").write(b"hello")
        Path(write.path("b.txt")).write_text("world")

    report = run(tmp_path, Plan([Task("one", outputs=("a.txt", "b.txt"))]), work)
    assert [(tmp_path / name).read_text() for name in ("a.txt", "b.txt")] == ["hello", "world"]
    assert report.samples_out == 0


def test_a_task_may_write_its_samples_to_several_shards(tmp_path):
    plan = Plan([Task("one", outputs=("p-%02d.tar",), argument=[0, 25])], maxcount=10)
    report = run(tmp_path, plan)
    assert report.samples_out == 25
    assert [entry["samples"] for entry in done(tmp_path)[0]["outputs"]] == [10, 10, 5]
    assert sorted(path.name for path in tmp_path.glob("*.tar")) == [
        f"p-{n:02d}.tar" for n in range(3)
    ]


def test_parts_that_an_earlier_version_left_are_deleted(tmp_path):
    task = Task("one", outputs=("p-%02d.tar",), argument=[0, 25])
    run(tmp_path, Plan([task], maxcount=5))
    run(tmp_path, Plan([task], maxcount=10), force=True)
    assert len(list(tmp_path.glob("*.tar"))) == 3


def test_nothing_appears_before_the_work_has_returned(tmp_path):
    def work(task, write):
        write_numbers(task, write)
        assert not (tmp_path / task.outputs[0]).exists()

    run(tmp_path, work=work)


class Flaky:
    """Work that fails a number of times for each task."""

    def __init__(self, folder, times):
        self.folder, self.times = folder, times

    def __call__(self, task, write):
        tried = self.folder / task.name
        count = int(tried.read_text()) if tried.exists() else 0
        tried.write_text(str(count + 1))
        write_numbers(task, write)
        if count < self.times:
            raise ValueError(f"{task.name} fails")


@pytest.fixture
def flaky(tmp_path):
    (tmp_path / "tries").mkdir()
    return lambda times: Flaky(tmp_path / "tries", times)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_task_is_retried(tmp_path, flaky, jobs):
    report = run(tmp_path / "out", work=flaky(2), jobs=jobs)
    assert report.complete
    assert report.digest == run(tmp_path / "plain").digest


def test_failures_that_a_retry_has_overcome_are_forgotten(tmp_path, flaky):
    run(tmp_path / "out", work=flaky(1))
    assert list((tmp_path / "out/.penstock/job/failed").iterdir()) == []


def test_progress_is_written_as_json_lines_with_the_rate_and_the_time_left(tmp_path):
    stream = io.StringIO()
    run(tmp_path, progress=JsonProgress(stream))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert lines[-1]["event"] == "end"
    assert (lines[-1]["done"], lines[-1]["tasks"], lines[-1]["samples"]) == (COUNT, COUNT, 50)
    assert lines[-1]["tasks_per_s"] > 0
    assert lines[-1]["seconds_left"] == 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_names_what_runs(tmp_path, jobs):
    """The first line comes before the first task ends, and names it."""
    stream = io.StringIO()
    run(tmp_path, jobs=jobs, progress=JsonProgress(stream))
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert lines[-1]["running"] == []
    named = {name for line in lines for name in line["running"]}
    assert named <= {task.name for task in numbers().tasks}
    seen = []

    class Watch(Progress):
        def waiting(self):
            seen.append(list(self.running))

    run(tmp_path / "other", jobs=jobs, progress=Watch())
    assert seen[0], "the first tasks are named before one of them ends"
    assert {name for names in seen for name in names} == {task.name for task in numbers().tasks}


def test_a_task_that_hangs_is_named_while_it_does(tmp_path):
    """The task ends when progress has named it twice, although no other task ends meanwhile."""
    named = []

    class Watch(Progress):
        def waiting(self):
            named.append(list(self.running))
            if len(named) == 2:
                (tmp_path / "go").touch()

    def hang(task, write):
        wait_until((tmp_path / "go").exists, "progress names the task")

    plan = Plan([Task("slow", outputs=("slow.tar",))])
    run(tmp_path / "out", plan, hang, jobs=2, progress=Watch())
    assert named[0] == ["slow"]


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("retries", [0, 1])
def test_a_task_that_takes_too_long_is_killed_and_counts_as_an_attempt(tmp_path, jobs, retries):
    (tmp_path / "log").mkdir()

    def hang(task, write):
        if task.name == "0002":
            write({"__key__": "half", "cls": 1})
            (tmp_path / f"log/{os.getpid()}").touch()
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
            threading.Event().wait()
        write_numbers(task, write)

    options = {"jobs": jobs, "retries": retries, "timeout": 1.5, "on_error": "skip"}
    report = run(tmp_path / "out", work=hang, **options)
    assert (report.done, report.failed) == (COUNT - 1, 1)
    assert len(list((tmp_path / "log").iterdir())) == retries + 1
    (failure,) = report.failures
    assert "longer than 1.5 seconds" in failure.message
    assert "part-0002.tar" in failure.message
    assert not any(is_running(int(path.name)) for path in (tmp_path / "log").iterdir())


def test_a_time_limit_is_for_engines_that_can_end_a_task(tmp_path):
    for timeout, engine in ((0, "local"), (-1.0, "local"), (5.0, InlineEngine())):
        with pytest.raises(PipelineError, match="timeout="):
            run(tmp_path, engine=engine, timeout=timeout)


def test_progress_is_a_bar_at_a_terminal(tmp_path):
    code = (
        "import sys; from penstock.jobs import Plan, Task, run_tasks\n"
        "plan = Plan([Task(str(n), outputs=(f'{n}.tar',)) for n in range(3)])\n"
        "run_tasks(plan, lambda task, write: None, folder=sys.argv[1], jobs=1)\n"
    )
    shown, _ = run_at_terminal([sys.executable, "-c", code, str(tmp_path)], 120)
    assert "3/3" in shown
    assert "samples/s" in shown


def test_an_error_is_raised_after_the_retries_with_the_task_in_its_notes(tmp_path, flaky):
    with pytest.raises(ValueError, match="0000 fails") as caught:
        run(tmp_path / "out", work=flaky(9))
    assert "after 3 attempts" in caught.value.__notes__[0]
    assert (tmp_path / "tries/0000").read_text() == "3"
    assert not (tmp_path / "tries/0001").exists(), "no new task starts"
    assert list((tmp_path / "out").glob("*.tar")) == []


def test_other_tasks_continue_when_errors_are_skipped(tmp_path):
    def work(task, write):
        write_numbers(task, write)
        if task.name == "0002":
            raise ValueError("bad")

    report = run(tmp_path, work=work, on_error="skip", retries=0)
    assert (report.done, report.failed) == (COUNT - 1, 1)
    assert report.failures[0].task == "0002"
    assert "bad" in report.failures[0].message
    assert len(list((tmp_path / ".penstock/job/failed").iterdir())) == 1
    again = run(tmp_path)
    assert (again.ran, again.complete) == (1, True)
    assert list((tmp_path / ".penstock/job/failed").iterdir()) == []


def test_running_tasks_finish_when_a_job_is_aborted(tmp_path):
    def work(task, write):
        if task.name == "0000":
            raise ValueError("bad")
        write_numbers(task, write)

    with pytest.raises(ValueError, match="bad"):
        run(tmp_path, work=work, retries=0, jobs=2)
    assert len(done(tmp_path)) == len(list(tmp_path.glob("*.tar")))


def test_a_changed_function_is_refused_and_named(tmp_path):
    run(tmp_path)
    other = Plan(numbers().tasks, function="numbers/2")
    with pytest.raises(PipelineError, match=r"function changed from 'numbers/1' to 'numbers/2'"):
        run(tmp_path, other)
    assert run(tmp_path, other, force=True).ran == COUNT
    assert run(tmp_path, other).ran == 0


def test_another_version_does_all_tasks_again(tmp_path):
    run(tmp_path)
    assert run(tmp_path, numbers(version="2")).ran == COUNT
    assert run(tmp_path, numbers(version="2")).ran == 0


def test_going_back_to_an_earlier_function_does_all_tasks_again(tmp_path):
    run(tmp_path)
    run(tmp_path, Plan(numbers().tasks, function="numbers/2"), force=True)
    assert run(tmp_path, force=True).ran == COUNT


def test_force_does_only_the_tasks_that_changed(tmp_path):
    run(tmp_path)
    with pytest.raises(PipelineError, match="new task 0005"):
        run(tmp_path, numbers(COUNT + 1))
    assert run(tmp_path, numbers(COUNT + 1), force=True).ran == 1


def test_a_changed_input_is_refused_and_named(tmp_path):
    source = tmp_path / "source.txt"
    source.write_text("one")
    plan = Plan([Task("one", inputs=(str(source),), outputs=("a.tar",))])
    run(tmp_path / "out", plan, lambda task, write: None)
    source.write_text("another")
    with pytest.raises(PipelineError, match=r"source\.txt changed: it had 3 bytes"):
        run(tmp_path / "out", plan, lambda task, write: None)


def planned(tasks, **more):
    return json.loads(Plan(tasks, **{"function": "m.f 1", **more}).to_json())


def task(name="t", argument=None, outputs=("a.tar",), **inputs):
    stamps = tuple(FileStamp(size, "x") for size in inputs.values())
    return Task(name, tuple(f"/in/{n}.tar" for n in inputs), outputs, argument, stamps)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            ([task()],),
            ([task()], "m.f 2"),
            "function changed from 'm.f 1' to 'm.f 2': the name",
        ),
        (([task()],), ([task()], "m.g 1"), "the function changed from 'm.f 1' to 'm.g 1'"),
        (([task(x=1)],), ([task(x=2)],), "the input /in/x.tar changed: it had 1 bytes"),
        (([task(x=1)],), ([task(y=1)],), "with /in/y.tar and without /in/x.tar"),
        (([task()],), ([task(outputs=("b.tar",))],), "from t (a.tar) to t (b.tar)"),
        (([task()],), ([task(argument=[1, 2])],), "the task t (a.tar) writes other samples"),
        (
            ([task()],),
            ([task(), *(task(f"n{n}", None, (f"{n}.tar",), x=1) for n in range(3))],),
            "a new task n0 (/in/x.tar → 0.tar) and 2 more",
        ),
        (([task(x=1)],), ([],), "no longer has the task t (/in/x.tar → a.tar)"),
    ],
)
def test_what_changed_in_a_plan_is_named(old, new, words):
    old, new = (planned(p[0], **({"function": p[1]} if p[1:] else {})) for p in (old, new))
    assert words in find_difference(old, new)
    assert find_difference(old, old) is None


def test_changed_options_are_named():
    def of(**options):
        return planned([], options=options)

    def entry(url, size):
        return {"url": url, "size": size, "stamp": "x"}

    before, after = [entry("a", 1), entry("b", 1)], [entry("a", 1), entry("c", 1)]
    said = find_difference(of(inputs=before), of(inputs=after))
    assert said == "the inputs changed: with c and without b"
    said = find_difference(of(inputs=before), of(inputs=before[::-1]))
    assert said == "the inputs changed: they have another order"
    assert "the inputs changed" in find_difference(of(inputs_sha256="1"), of(inputs_sha256="2"))
    assert find_difference(of(seed=1), of(seed=2)) == "seed changed from 1 to 2"


def test_an_input_that_changes_during_the_work_is_an_error(tmp_path):
    source = tmp_path / "source.txt"
    source.write_text("one")
    plan = Plan([Task("one", inputs=(str(source),), outputs=("a.tar",))])
    with pytest.raises(StorageError, match="changed after the job was planned"):
        run(tmp_path / "out", plan, lambda task, write: source.write_text("another"))
    assert not (tmp_path / "out/a.tar").exists()


def test_a_missing_input_is_an_error_before_anything_runs(tmp_path):
    plan = Plan([Task("one", inputs=(str(tmp_path / "no.tar"),), outputs=("a.tar",))])
    with pytest.raises(FileNotFoundError, match=r"no\.tar"):
        run(tmp_path / "out", plan)


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ([Task("a"), Task("a")], "no other task has"),
        ([Task("a/b")], "file name"),
        ([Task("a", outputs=("x",)), Task("b", outputs=("x",))], "two tasks would write 'x'"),
        ([Task("a", outputs=("../x",))], "leaves it"),
    ],
)
def test_plans_that_cannot_work_are_refused(tasks, words):
    with pytest.raises(PipelineError, match=words):
        Plan(tasks)


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_workers_do_not_return_freed_memory_to_the_system_each_time(tmp_path):
    def work(task, write):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(50):
            _ = [bytes([1]) * 1_000_000 for _ in range(10)]
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
        write({"__key__": "faults", "json": faults})

    run(tmp_path, numbers(1), work, engine=LocalEngine(1))
    (sample,) = wds.WebDataset(str(tmp_path / "part-0000.tar"), shardshuffle=False).decode()
    assert sample["json"] < 2 * 10 * 1_000_000 / resource.getpagesize()


def test_a_task_whose_worker_dies_is_done_by_another(tmp_path):
    (tmp_path / "tries").mkdir()

    def work(task, write):
        write_numbers(task, write)
        tried = tmp_path / "tries" / task.name
        if task.name == "0001" and not tried.exists():
            tried.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    report = run(tmp_path / "out", work=work, jobs=2, retries=0)
    assert report.digest == run(tmp_path / "plain").digest


def test_the_temporary_folder_of_a_worker_that_died_is_deleted(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))

    def work(task, write):
        Path(write.path()).write_bytes(bytes(10240))
        if task.name == "0001":
            os.kill(os.getpid(), signal.SIGKILL)

    report = run(tmp_path / "out", work=work, jobs=2, retries=0, on_error="skip")
    assert (report.done, report.failed) == (COUNT - 1, 1)
    assert list(scratch.glob("*")) == []


def test_the_temporary_folder_of_a_live_process_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for mark in ("0123abcd-", ""):
        (tmp_path / f"penstock-job-{mark}xxxxxxxx").mkdir()
    others = set(os.listdir(tmp_path))
    held, hold = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(hold)
        mine = ScratchFolder()
        (tmp_path / "ready").touch()
        os.read(held, 1)
        os._exit(len(os.listdir(mine.path)))
    os.close(held)
    wait_until((tmp_path / "ready").exists, "the folder is made")
    sweep_scratch()
    assert len(os.listdir(tmp_path)) == len(others) + 2
    os.close(hold)
    assert os.waitpid(pid, 0)[1] == 0
    ScratchFolder().remove()
    assert set(os.listdir(tmp_path)) == {*others, "ready"}


def test_a_task_that_kills_every_worker_fails_and_says_so(tmp_path):
    def work(task, write):
        os.kill(os.getpid(), signal.SIGKILL)

    report = run(tmp_path, numbers(1), work, engine=LocalEngine(2), retries=0, on_error="skip")
    assert "killed by SIGKILL" in report.failures[0].message


def test_workers_that_are_started_afresh_need_an_importable_function(tmp_path):
    engine = LocalEngine(2, start_method="spawn")
    with pytest.raises(PipelineError, match="must be importable"):
        run(tmp_path, work=lambda task, write: None, engine=engine)
    report = run(tmp_path / "out", engine=LocalEngine(2, start_method="spawn"))
    assert isinstance(report, JobReport)


def test_a_full_disk_is_an_error_and_the_same_call_continues_when_there_is_space(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        (folder / "ballast").write_bytes(bytes(100_000))
        with pytest.raises(StorageError, match="No space left"):
            run(folder)
        finished = len(done(folder))
        assert 0 < finished < COUNT
        # The last shard may be complete, with no space left for its record.
        assert len(list(folder.glob("*.tar"))) - finished in (0, 1)
        (folder / "ballast").unlink()
        report = run(folder)
        assert report.ran == COUNT - finished
        assert report.digest == run(tmp_path / "plain").digest
    finally:
        subprocess.run(["umount", str(folder)], check=True)
