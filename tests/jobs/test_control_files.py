"""Files of a control folder that are damaged, or that somebody else has changed."""

from __future__ import annotations

import contextlib
import copy
import gzip
import json
import os
import random
import shutil
import signal
from pathlib import Path

import pytest

import penstock as wds
from penstock.errors import PenstockError, StateError
from penstock.jobs import map_shards
from penstock.jobs.verify import clean_job, job_status, verify_job
from penstock.tools import create


def run(folder, work=copy.copy, **options):
    """Copy four shards; the report."""
    return map_shards(
        work,
        f"{folder}/in/x-{{0..3}}.tar",
        f"{folder}/out/{{stem}}.tar",
        **{"jobs": 1, "index": False, "name": "job", **options},
    )


@pytest.fixture
def job(tmp_path):
    """A finished job with outputs in ``out``, and a file beside that folder."""
    (tmp_path / "in").mkdir()
    for number in range(4):
        with wds.TarWriter(str(tmp_path / f"in/x-{number}.tar")) as sink:
            sink.write({"__key__": f"k{number}", "txt": f"text {number}"})
    run(tmp_path)
    (tmp_path / "victim").write_text("precious")
    return tmp_path


def control(job, name):
    (path,) = (job / "out/.penstock/job").glob(name)
    return path


def right(job):
    urls = sorted(map(str, (job / "out").glob("*.tar")))
    return [sample["txt"] for url in urls for sample in wds.WebDataset(url).decode()] == [
        f"text {number}" for number in range(4)
    ]


OUTSIDE = ["../victim", "a/../../victim", "%2e%2e/victim", "/etc/passwd", "link/victim"]


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("change", [{"version": "2"}, {"name": "job"}])
def test_a_changed_plan_deletes_nothing_outside_the_folder(job, name, change) -> None:
    (job / "out/link").symlink_to(job)
    path = control(job, "plan.json")
    plan = json.loads(path.read_text())
    plan["tasks"][0]["outputs"] = [name]
    path.write_text(json.dumps(plan))
    with pytest.raises(PenstockError):
        run(job, **change)
    with contextlib.suppress(PenstockError):  # a link in the folder is an error
        run(job, force=True, **change)
    assert (job / "victim").read_text() == "precious"
    assert right(job)


@pytest.mark.parametrize("name", ["../victim", "file:../victim", "pipe:touch made"])
def test_a_job_in_the_working_folder_has_no_outputs_that_are_urls(job, name, monkeypatch) -> None:
    monkeypatch.chdir(job / "out")
    record = control(job, "done/x-0.*")
    changed = json.loads(record.read_text())
    changed["outputs"][0]["name"] = name
    record.write_text(json.dumps(changed))
    assert verify_job("").problems
    assert sorted(os.listdir(job)) == ["in", "out", "victim"]
    assert "made" not in os.listdir()


def test_a_damaged_plan_is_an_error_that_names_file_fault_and_remedy(job) -> None:
    path = control(job, "plan.json")
    plan = json.loads(path.read_text())
    plan["tasks"][2]["outputs"] = "x-2.tar"
    path.write_text(json.dumps(plan))
    for call in (run, lambda folder: job_status(f"{folder}/out")):
        with pytest.raises(StateError) as caught:
            call(job)
        for words in ("in a task, 'outputs' cannot be 'x-2.tar'", "plan.json", "force=True"):
            assert words in str(caught.value)
    assert run(job, force=True).ran == 0
    assert run(job).complete
    path.write_bytes(b"\xff")
    assert clean_job(f"{job}/out") == "job"
    assert not (job / "out/.penstock").exists()


@pytest.mark.parametrize("name", ["", "job", "job/done", "job/failed", "job/claims"])
def test_a_control_folder_that_is_a_link_is_refused(job, name) -> None:
    outside = job / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    path = job / "out/.penstock" / name
    shutil.rmtree(path)
    path.symlink_to(outside)
    for call in (
        lambda: run(job),
        lambda: run(job, version="2", force=True),
        lambda: clean_job(f"{job}/out", "job"),
    ):
        with pytest.raises(StateError, match="cannot be a link"):
            call()
    assert os.listdir(outside) == ["precious"]


COPIES = {
    "empty": b"",
    "cut": b"\x1f\x8b",
    "no record": gzip.compress(b"{}"),
    "wrong record": gzip.compress(b'{"name": 1, "version": "1", "record": {}}'),
    "nested": gzip.compress(b"[" * 100_000),
    "bad checksum": gzip.compress(b'{"name": "' + b"9" * 100)[:-9] + bytes(9),
}


@pytest.mark.parametrize("data", COPIES.values(), ids=COPIES)
def test_a_damaged_copy_of_the_records_is_made_again(job, data) -> None:
    path = control(job, "records.jsonl.gz")
    path.write_bytes(data)
    control(job, "done/x-1.*").unlink()
    report = run(job)
    assert (report.ran, report.done) == (1, 4)
    assert len(gzip.decompress(path.read_bytes()).splitlines()) == 4
    assert right(job)


@pytest.mark.parametrize(
    ("call", "name"),
    [("link", "done/x-2."), ("replace", "failed/x-1."), ("replace", "records.jsonl.gz")],
)
def test_temporary_files_of_a_killed_process_do_not_stay(job, monkeypatch, call, name) -> None:
    """A process is killed when it has written a temporary file, before it gets its name."""
    shutil.rmtree(job / "out")
    real = getattr(os, call)

    def kill(source, target, **more):
        if f".penstock/job/{name}" in str(target):
            os.kill(os.getpid(), signal.SIGKILL)
        real(source, target, **more)

    def work(sample):
        if "failed" in name and not (job / "repaired").exists():
            raise ValueError("wrong")
        return sample

    options = {"work": work, "on_error": "skip", "retries": 0}
    pid = os.fork()
    if pid == 0:
        monkeypatch.setattr(os, call, kill)
        with contextlib.suppress(BaseException):
            run(job, **options)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    (left,) = (job / "out/.penstock").rglob("*.part")
    (job / "repaired").touch()
    assert run(job, **options).complete
    assert not left.exists()
    assert right(job)


def test_a_damaged_record_has_its_task_done_again(job) -> None:
    control(job, "records.jsonl.gz").unlink()
    path = control(job, "done/x-1.*")
    path.write_text(json.dumps({**json.loads(path.read_text()), "outputs": [{}]}))
    report = run(job)
    assert (report.ran, report.done) == (1, 4)
    found = verify_job(f"{job}/out")
    assert (found.problems, found.repeated) == ([], [])


def places(value, path=()):
    """The paths of all values in a JSON value."""
    yield path
    items = enumerate(value) if isinstance(value, list) else ()
    for key, inner in value.items() if isinstance(value, dict) else items:
        yield from places(inner, (*path, key))


VALUES = [None, True, -1, 1.5, 10**30, "", "..", "../x", "\ud800", [], [[]], {}, {"a": 1}]


def mutate(data, rng):
    """Change bytes, or the JSON value in them."""
    if rng.random() < 0.5 or not data.startswith(b"{"):
        position = rng.randrange(len(data))
        part = rng.choice([b"", rng.randbytes(1), rng.randbytes(9), b"[" * 3000, b"9" * 5000])
        return data[:position] + part + data[position + rng.randrange(20) :]
    first, newline, rest = data.partition(b"\n")
    value = json.loads(first)
    *parents, last = rng.choice(list(places(value))[1:])
    holder = value
    for key in parents:
        holder = holder[key]
    if rng.random() < 0.3:
        del holder[last]
    else:
        holder[last] = rng.choice(VALUES)
    return json.dumps(value).encode() + newline + rest


@pytest.mark.parametrize("seed", range(40))
def test_no_damage_of_a_control_file_causes_a_foreign_exception(job, seed) -> None:
    rng = random.Random(seed)
    record = control(job, "done/x-2.*")
    skipped = {"errors": 1, "skipped": [{"key": "k", "message": "m"}]}
    record.write_text(json.dumps({**json.loads(record.read_text()), **skipped}))
    files = [path for path in (job / "out/.penstock").rglob("*") if path.is_file()]
    for path in sorted(files):
        whole = {file: file.read_bytes() for file in files}
        data = gzip.decompress(whole[path]) if path.suffix == ".gz" else whole[path]
        data = mutate(data or b"{}", rng)
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
        for call in (
            lambda: job_status(f"{job}/out"),
            lambda: verify_job(f"{job}/out"),
            lambda: run(job),
            lambda: run(job, version="2"),
            lambda: run(job, force=True),
        ):
            with contextlib.suppress(PenstockError):
                call()
        assert right(job)
        for file, data in whole.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(data)
    assert (job / "victim").read_text() == "precious"


@pytest.mark.parametrize("seed", range(20))
def test_no_damage_of_an_interrupted_command_causes_a_foreign_exception(tmp_path, seed) -> None:
    rng = random.Random(seed)
    (tmp_path / "data").mkdir()
    for number in range(3):
        (tmp_path / f"data/{number}.txt").write_text(str(number))
    output = str(tmp_path / "out/x-%d.tar")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/x-2.tar").mkdir()  # so the command ends in an error, after two shards
    with pytest.raises(PenstockError):
        create(tmp_path / "data", output, count=1, jobs=1)
    files = [path for path in (tmp_path / "out/.penstock").rglob("*.json") if path.is_file()]
    for path in sorted(files):
        path.write_bytes(mutate(path.read_bytes(), rng))
    for options in ({}, {"seed": 1}, {"force": True}):
        with pytest.raises(PenstockError):
            create(tmp_path / "data", output, count=1, jobs=1, **options)
    assert Path(tmp_path / "data/0.txt").read_text() == "0"
