"""Independent processes that share only the folder of the outputs."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from job_inputs import make_inputs, read
from servers_clouds import ACCOUNT, KEY, fresh_name, no_settings  # noqa: F401

from penstock.errors import PipelineError
from penstock.jobs import Plan, Task, map_shards, reshard, run_tasks
from penstock.jobs.control_folder import ControlFolder
from penstock.jobs.engines import array
from penstock.jobs.engines.array import ArrayEngine, Claims, find_worker
from penstock.jobs.output_files import remove_leftovers
from penstock.jobs.verify import job_status, verify_job
from penstock.shards.index import default_index_path, open_index
from penstock.storage.client.transport import requests_sent
from penstock.storage.local import files as local_files
from penstock.storage.small_files import (
    create_file,
    creates_exclusively,
    delete_file,
    list_files,
    read_file,
    write_file,
)
from waiting import wait_until

SCRIPT = str(Path(__file__).with_name("job_process.py"))
SHARDS = 12


def start(inputs, outputs, number, count, *more):
    command = [sys.executable, SCRIPT, "array", inputs, outputs, "--worker", f"{number}/{count}"]
    return subprocess.Popen(
        [*command, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def results(processes):
    """The reports of processes that have ended well."""
    reports = []
    for process in processes:
        out, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
        reports.append(json.loads(out))
    return reports


@pytest.fixture
def kills(request):
    """Rounds: one in a plain run, since each takes ten seconds."""
    return max(1, request.config.getoption("--kills") // 2)


@pytest.fixture
def expected(tmp_path):
    """Inputs, and the digest of one process."""
    inputs = make_inputs(tmp_path / "in", SHARDS, 10)
    (report,) = results([start(inputs, f"{tmp_path}/one/{{stem}}.tar", 0, 1)])
    assert report["ran"] == SHARDS
    return inputs, report["digest"]


def test_processes_share_the_tasks_and_report_the_same_digest(tmp_path, expected):
    inputs, digest = expected
    out = f"{tmp_path}/out/{{stem}}.tar"
    reports = results([start(inputs, out, n, 4, "--pause", "0.01") for n in range(4)])
    assert {report["digest"] for report in reports} == {digest}
    assert sum(report["ran"] for report in reports) == SHARDS, "no task is done twice"
    assert set(list_files(f"{tmp_path}/out/.penstock/test/claims")) <= {"_exclusive"}


def end_with_other_numbers(out, inputs, digest, *more):
    """Eight processes, all killed; then three, of which one is killed; then five finish."""
    for count, doomed in ((8, 8), (3, 1)):
        processes = [start(inputs, out, n, count, "--pause", "0.02", *more) for n in range(count)]
        time.sleep(random.uniform(1.0, 2.0))
        for process in processes[:doomed]:
            process.send_signal(signal.SIGKILL)
        for process in processes:
            if process in processes[:doomed]:
                process.communicate()
            else:
                results([process])
    reports = results([start(inputs, out, n, 5, *more) for n in range(5)])
    assert {report["digest"] for report in reports} == {digest}


def test_the_number_of_processes_may_change_after_kills(tmp_path, expected, kills):
    inputs, digest = expected
    for number in range(kills):
        out = tmp_path / f"out-{number}"
        end_with_other_numbers(f"{out}/{{stem}}.tar", inputs, digest)
        assert verify_job(str(out)).digest == digest
        assert len(read(out)) == SHARDS * 10


@pytest.fixture(params=["s3", "azure", "gcs"])
def bucket(request, monkeypatch, tmp_path, no_settings, no_keys):  # noqa: F811
    """A folder of a store, and further arguments for processes that use it."""
    if request.param == "s3":
        server = request.getfixturevalue("seaweed")
        access, secret = server.users["admin"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", access)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        return f"s3://shards/{fresh_name()}"
    if request.param == "azure":
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT", ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_KEY", KEY)
        endpoint = request.getfixturevalue("azure_endpoint")
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
        return f"az://shards/{fresh_name()}"
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", request.getfixturevalue("gcs_address"))
    return f"gs://shards/{fresh_name()}"


def test_small_files_of_a_store_are_created_once_listed_and_deleted(bucket):
    url = f"{bucket}/a.json"
    assert create_file(url, b"one")
    assert not create_file(url, b"two")
    assert read_file(url) == b"one"
    write_file(url, b"three")
    (stamp,) = list_files(bucket).values()
    assert stamp.size_bytes == 5
    assert stamp.version
    write_file(url, b"other")
    assert list_files(bucket)["a.json"].version != stamp.version
    assert creates_exclusively(f"{bucket}/probe")
    delete_file(url)
    delete_file(url)
    assert set(list_files(bucket)) == {"probe"}


def same(sample):
    return sample


def upload(inputs, bucket):
    folder, _, name = inputs.rpartition("/")
    for path in sorted(Path(folder).glob("*.tar")):
        write_file(f"{bucket}/in/{path.name}", path.read_bytes())
    return f"{bucket}/in/{name}"


def test_the_number_of_processes_on_a_bucket_may_change(tmp_path, expected, bucket, kills):
    inputs, digest = expected
    remote = upload(inputs, bucket)
    for number in range(kills):
        end_with_other_numbers(f"{bucket}/out-{number}/{{stem}}.tar", remote, digest)
        assert verify_job(f"{bucket}/out-{number}").digest == digest


def test_lost_and_damaged_outputs_in_a_bucket_are_written_again(expected, bucket):
    inputs, _ = expected
    out = f"{bucket}/out/{{stem}}.tar"
    map_shards(same, inputs, out, jobs=1, index=False)
    delete_file(f"{bucket}/out/in-0003.tar")
    write_file(f"{bucket}/out/in-0007.tar", b"damaged")
    again = map_shards(same, inputs, out, jobs=1, index=False)
    assert again.ran == 2
    assert verify_job(f"{bucket}/out").problems == []


def test_finished_tasks_in_a_bucket_are_looked_through_by_one_listing(bucket):
    run_tasks(plan(20), write_key, folder=bucket, jobs=1)
    before = requests_sent()
    assert run_tasks(plan(20), write_key, folder=bucket, jobs=1).ran == 0
    # The plan twice, the copy of the records, and the listing of the outputs.
    assert requests_sent() - before <= 4


def test_a_deleted_record_in_a_bucket_is_found_by_verify_and_then_done_again(bucket):
    run_tasks(plan(), write_key, folder=bucket, jobs=1)
    (record,) = (name for name in list_files(f"{bucket}/.penstock/job/done") if "t2" in name)
    delete_file(f"{bucket}/.penstock/job/done/{record}")
    assert verify_job(bucket).problems == ["the task t2 is not done"]
    assert run_tasks(plan(), write_key, folder=bucket, jobs=1).ran == 1
    assert verify_job(bucket).problems == []


def test_a_new_job_does_not_replace_objects_that_it_did_not_make(bucket):
    write_file(f"{bucket}/2.tar", b"precious")
    with pytest.raises(PipelineError, match=r"2\.tar' exists already and is not of this job"):
        run_tasks(plan(), write_key, folder=bucket, jobs=1)
    assert read_file(f"{bucket}/2.tar") == b"precious"
    assert run_tasks(plan(), write_key, folder=bucket, jobs=1, force=True).complete


def test_force_deletes_objects_that_the_changed_plan_no_longer_writes(bucket):
    run_tasks(plan(), write_key, folder=bucket, jobs=1)
    report = run_tasks(plan(2), write_key, folder=bucket, jobs=1, force=True)
    assert (report.ran, report.complete) == (0, True)
    assert set(list_files(bucket)) == {"0.tar", "1.tar"}


def test_the_index_of_shards_in_a_bucket_is_written_on_this_machine(tmp_path, expected, bucket):
    inputs, _ = expected
    remote = upload(inputs, bucket)
    map_shards(same, remote, f"{bucket}/out/{{stem}}.tar", jobs=2)
    outputs = f"{bucket}/out/in-{{0000..{SHARDS - 1:04d}}}.tar"
    assert os.path.exists(default_index_path(outputs))
    assert len(open_index(outputs)) == SHARDS * 10


def test_samples_of_a_bucket_are_resharded(tmp_path, expected, bucket):
    inputs, _ = expected
    local = reshard(inputs, f"{tmp_path}/mixed/%03d.tar", maxcount=50, jobs=1)
    remote = upload(inputs, bucket)
    report = reshard(remote, f"{bucket}/mixed/%03d.tar", maxcount=50, jobs=2)
    assert report.digest == local.digest


def test_large_inputs_of_a_bucket_become_several_shards(tmp_path, expected, bucket):
    inputs, _ = expected
    settings = {"maxcount": 4, "jobs": 1, "index": False}
    local = map_shards(same, inputs, f"{tmp_path}/parts/{{stem}}-%02d.tar", **settings)
    report = map_shards(same, inputs, f"{bucket}/parts/{{stem}}-%02d.tar", **settings)
    assert (report.digest, report.samples_out) == (local.digest, SHARDS * 10)


def test_a_changed_remote_input_is_refused_and_named(tmp_path, expected, bucket):
    inputs, _ = expected
    remote = upload(inputs, bucket)
    results([start(remote, f"{bucket}/out/{{stem}}.tar", 0, 1)])
    write_file(f"{bucket}/in/in-0003.tar", (tmp_path / "in/in-0004.tar").read_bytes())
    process = start(remote, f"{bucket}/out/{{stem}}.tar", 0, 1)
    _, errors = process.communicate()
    assert process.returncode != 0
    assert "in-0003.tar changed" in errors


def plan(count=4):
    return Plan([Task(f"t{n}", outputs=(f"{n}.tar",)) for n in range(count)])


def write_key(task, write):
    write({"__key__": task.name, "txt": task.name})


def test_the_claim_of_a_dead_process_delays_nobody_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(array, "STALE_S", 0.5)
    monkeypatch.setattr(array, "POLL_S", 0.1)
    control = ControlFolder(str(tmp_path), "job")
    control.make()
    write_file(control.url("claims", "t2"), b"of a dead process")
    report = run_tasks(plan(), write_key, folder=str(tmp_path), engine=ArrayEngine(worker=(0, 1)))
    assert report.complete
    assert array.STALE_S < 10


def test_claims_go_stale_in_less_than_ten_seconds():
    assert array.BEAT_S * 2 < array.STALE_S
    assert array.STALE_S + array.POLL_S < 10


def test_the_claim_of_a_living_process_is_respected(tmp_path, monkeypatch):
    monkeypatch.setattr(array, "BEAT_S", 0.1)
    monkeypatch.setattr(array, "STALE_S", 0.5)
    control = ControlFolder(str(tmp_path), "job")
    control.make()
    mine, theirs = Claims(control), Claims(control)
    try:
        assert mine.take(Task("t"))
        assert not theirs.take(Task("t"))
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            theirs.look()
            assert theirs.is_live("t")
            time.sleep(0.05)
        mine.release()
        theirs.look()
        assert theirs.take(Task("t"))
    finally:
        mine.close()
        theirs.close()


@pytest.fixture
def fast_claims(monkeypatch):
    """Claims that expire soon."""
    for name, seconds in (("BEAT_S", 0.05), ("STALE_S", 1.0), ("POLL_S", 0.1), ("REFRESH_S", 0.2)):
        monkeypatch.setattr(array, name, seconds)


def run_in_child(run):
    """Run a function in a forked process; return its status, negative after a signal."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            run()
            status = 0
        except SystemExit as error:
            status = error.code
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def kill_at_t2(task, write):
    if task.name == "t2":
        write({"__key__": "begun", "txt": "half"})
        os.kill(os.getpid(), signal.SIGKILL)
    write_key(task, write)


def test_a_task_that_kills_its_processes_is_given_up_and_the_others_are_done(tmp_path, fast_claims):
    def join(retries=0):
        return run_tasks(
            *(plan(), kill_at_t2),
            folder=str(tmp_path),
            engine=ArrayEngine(worker=(0, 1)),
            retries=retries,
            on_error="skip",
        )

    statuses = [run_in_child(join)]
    while statuses[-1] != 0:
        assert statuses[-1] == -signal.SIGKILL
        assert len(statuses) < 10, "the task is given up"
        statuses.append(run_in_child(join))
    assert len(statuses) == 5, "as often as the other engines try a task that kills its worker"
    for _ in range(3):  # processes that start later do not try it, and are not counted as dead
        report = join()
    assert (report.done, report.failed) == (len(plan().tasks) - 1, 1)
    (failure,) = report.failures
    assert failure.task == "t2"
    assert "processes died at this task" in failure.message
    assert "2.tar" in failure.message
    status = job_status(str(tmp_path))
    assert "processes died" in status.failed["t2"]
    assert status.claimed == 0
    assert not list(tmp_path.glob(".*.part"))
    assert run_in_child(lambda: join(retries=1)) == -signal.SIGKILL, "more retries try it again"


def test_deaths_are_counted_anew_for_a_changed_function(tmp_path, fast_claims):
    def join(work, version):
        return run_tasks(
            Plan(plan().tasks, version=version),
            work,
            folder=str(tmp_path),
            engine=ArrayEngine(worker=(0, 1)),
            retries=0,
        )

    for _ in range(4):
        assert run_in_child(lambda: join(kill_at_t2, "1")) == -signal.SIGKILL
    assert join(write_key, "2").complete


def test_a_process_that_is_asked_to_end_is_not_counted_as_dead(tmp_path, fast_claims):
    begun = tmp_path / "begun"

    def hang(task, write):
        if task.name == "t2":
            begun.touch()
            threading.Event().wait()

    def join():
        run_tasks(plan(), hang, folder=str(tmp_path / "out"), engine=ArrayEngine(worker=(0, 1)))

    pid = os.fork()
    if pid == 0:
        try:
            join()
        finally:
            os._exit(3)
    wait_until(begun.exists, "the task begins")
    os.kill(pid, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 3
    assert set(list_files(f"{tmp_path}/out/.penstock/job/claims")) <= {"_exclusive"}


def test_temporary_files_of_a_process_killed_on_another_machine_are_deleted(
    tmp_path, fast_claims, monkeypatch
):
    def join(work):
        return run_tasks(
            plan(), work, folder=str(tmp_path), engine=ArrayEngine(worker=(0, 1)), retries=0
        )

    with monkeypatch.context() as patch:
        patch.setattr(local_files, "machine_mark", lambda: "0123abcd")
        assert run_in_child(lambda: join(kill_at_t2)) == -signal.SIGKILL
    (left,) = tmp_path.glob(".2.tar.*.part")
    other = tmp_path / ".12.tar.999-0123abcd01234567.part"
    other.touch()
    assert join(write_key).complete
    assert not left.exists()
    assert other.exists(), "another task's writer may be alive"


@pytest.mark.parametrize(
    ("output", "in_parts", "left", "kept"),
    [
        ("a%20data.tar", False, "a%20data.tar", "a7ata.tar"),
        ("50%%-%03d.tar", True, "50%-007.tar", "50%%-007.tar"),
        ("sub%%/%d.tar", True, "sub%/3.tar", "sub%/x.tar"),
    ],
)
def test_temporary_files_of_outputs_with_percent_signs_are_deleted(
    tmp_path, output, in_parts, left, kept
):
    (tmp_path / left).parent.mkdir(exist_ok=True)

    def part(name):
        path = tmp_path / name
        return path.with_name(f".{path.name}.999-0123abcd01234567.part")

    part(left).touch()
    part(kept).touch()
    remove_leftovers(str(tmp_path), Task("t", outputs=(output,)), in_parts=in_parts)
    assert not part(left).exists()
    assert part(kept).exists()


def test_a_task_of_a_process_that_takes_too_long_is_ended(tmp_path):
    def hang(task, write):
        if task.name == "t2":
            threading.Event().wait()
        write_key(task, write)

    report = run_tasks(
        *(plan(), hang),
        folder=str(tmp_path),
        engine=ArrayEngine(worker=(0, 1)),
        retries=1,
        on_error="skip",
        timeout=1.0,
    )
    assert (report.done, report.failed) == (len(plan().tasks) - 1, 1)
    assert "longer than 1 seconds" in report.failures[0].message
    assert "2.tar" in report.failures[0].message


def test_a_task_that_other_processes_both_finish_and_fail_has_one_result(tmp_path):
    control = ControlFolder(str(tmp_path), "job")
    control.make()
    engine = ArrayEngine(worker=(0, 1))
    engine.start(SimpleNamespace(control=control, in_parts=False), 3)
    try:
        for name in ("done", "failed", "ours"):
            engine.submit(Task(name), "identity")
        write_file(control.url("done", "done.identity.json"), b"{}")
        for task, attempt in (("done", 1), ("failed", 1), ("failed", 2)):
            control.record_failure(Task(task), attempt, {"final": True, "message": "bad"})
        found = [(result.task, result.error is None) for result in engine.finished()]
        assert found == [("done", True), ("failed", False)]
        assert engine.cancel() == ["ours"]
    finally:
        engine.close()


def test_a_failure_of_one_process_ends_the_others(tmp_path, monkeypatch):
    monkeypatch.setattr(array, "POLL_S", 0.05)
    monkeypatch.setattr(array, "REFRESH_S", 0.0)
    begun = threading.Event()
    failed = threading.Event()

    def fail(task, write):
        begun.wait(20)
        raise ValueError("bad")

    def slow(task, write):
        begun.set()
        failed.wait(20)
        time.sleep(0.1)

    def run(work, number, caught):
        try:
            run_tasks(
                plan(2),
                work,
                folder=str(tmp_path),
                retries=0,
                engine=ArrayEngine(worker=(number, 2)),
            )
        except Exception as error:
            caught.append(str(error))
        failed.set()

    one, other = [], []
    threads = [
        threading.Thread(target=run, args=(fail, 0, one)),
        threading.Thread(target=run, args=(slow, 1, other)),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert "bad" in one[0]
    assert "bad" in other[0]


@pytest.mark.parametrize(
    ("variables", "worker"),
    [
        ("SLURM_ARRAY_TASK_ID=7 SLURM_ARRAY_TASK_MIN=4 SLURM_ARRAY_TASK_COUNT=8", (3, 8)),
        ("SLURM_ARRAY_TASK_ID=0 SLURM_ARRAY_TASK_COUNT=2", (0, 2)),
        ("PBS_ARRAY_INDEX=3", (3, 0)),
        ("PBS_ARRAYID=3", (3, 0)),
        ("SGE_TASK_ID=4 SGE_TASK_FIRST=2 SGE_TASK_LAST=8 SGE_TASK_STEPSIZE=2", (1, 4)),
        ("SGE_TASK_ID=undefined JOB_COMPLETION_INDEX=5", (5, 0)),
        ("LSB_JOBINDEX=1 LSB_JOBINDEX_END=10", (0, 10)),
        ("LSB_JOBINDEX=0 AWS_BATCH_JOB_ARRAY_INDEX=2 AWS_BATCH_JOB_ARRAY_SIZE=9", (2, 9)),
    ],
)
def test_schedulers_tell_a_process_its_number(monkeypatch, variables, worker):
    for variable in variables.split():
        monkeypatch.setenv(*variable.split("="))
    assert find_worker() == worker


def test_a_process_without_a_number_is_refused():
    with pytest.raises(PipelineError, match="--worker K/N"):
        ArrayEngine()
    with pytest.raises(PipelineError, match="K from 0 to N-1"):
        ArrayEngine(worker=(3, 3))
    with pytest.raises(PipelineError, match="one task at a time"):
        ArrayEngine(4, worker=(0, 1))


# ── racing processes with different results ─────────────────────────────────────────────────────


def race(folder, rounds=4):
    """Two threads that do the same task at the same time, each with other bytes."""
    for number in range(rounds):
        both = threading.Barrier(2)
        met = set()

        def work(task, write, both=both, met=met):
            write({"__key__": "a", "bin": os.urandom(8)})
            if threading.get_ident() not in met:  # a second attempt meets nobody
                met.add(threading.get_ident())
                both.wait(30)

        def run(number=number, work=work):
            run_tasks(
                Plan([Task("t", outputs=(f"{number}.tar",))]),
                work,
                folder=folder,
                name=f"race-{number}",
                engine="local",
                jobs=1,
            )

        threads = [threading.Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        report = verify_job(folder, name=f"race-{number}")
        assert report.problems == []
        assert report.samples_out == 1


def test_racing_processes_leave_one_version_that_its_record_describes(tmp_path):
    race(str(tmp_path), rounds=20)


def test_racing_processes_leave_one_version_in_a_bucket(bucket):
    race(bucket)


class WithoutConditions:
    """A proxy that drops conditional headers, as a faulty gateway would."""

    def __init__(self, target):
        self.target, self.dropped = target, 0
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def respond(self):
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {
                    name: value
                    for name, value in self.headers.items()
                    if not name.lower().startswith("if-")
                }
                proxy.dropped += len(self.headers) - len(headers)
                request = urllib.request.Request(
                    proxy.target + self.path, body or None, headers, method=self.command
                )
                try:
                    answer = urllib.request.urlopen(request, timeout=30)
                except urllib.error.HTTPError as error:
                    answer = error
                data = answer.read()
                self.send_response(answer.status)
                for name, value in answer.headers.items():
                    if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                        self.send_header(name, value)
                length = answer.headers.get("Content-Length") if self.command == "HEAD" else None
                self.send_header("Content-Length", length or str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = respond

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def faulty_bucket(seaweed, no_keys, monkeypatch):
    """A bucket behind a proxy that drops conditional headers."""
    with WithoutConditions(seaweed.endpoint) as proxy:
        # The proxy is asked by the name that requests are signed for.
        access, secret = seaweed.users["admin"]
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", access)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.address)
        yield f"s3://shards/{fresh_name()}", proxy


def test_a_store_that_ignores_conditions_still_gets_one_version_of_each_output(
    tmp_path, expected, faulty_bucket
):
    inputs, digest = expected
    folder, proxy = faulty_bucket
    assert not creates_exclusively(f"{folder}/probe")
    reports = results([start(inputs, f"{folder}/out/{{stem}}.tar", n, 3) for n in range(3)])
    assert {report["digest"] for report in reports} == {digest}
    assert proxy.dropped > 0
    race(f"{folder}/race")
