"""The commands ``penstock run`` and ``penstock job``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from job_inputs import read

from penstock.cli import main
from penstock.jobs.control_folder import ControlFolder
from penstock.jobs.verify import find_jobs

CODE = """
def shout(sample):
    return {**sample, "txt": sample["txt"].upper()}

def fail(sample):
    if sample["__key__"] == "000030":
        raise ValueError("thirty")
    return sample

class Shouter:
    def __call__(self, sample):
        return shout(sample)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, inputs):
    """The working folder, with a module ``own_code``."""
    name = f"own_code_{os.urandom(4).hex()}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def run(*words):
    return main(["run", *words, "--jobs", "1"])


def test_a_function_of_a_module_is_run(folder, tmp_path, inputs, capsys):
    assert run(f"{folder}:shout", "--inputs", inputs, "--outputs", "out/{stem}.tar") == 0
    told = capsys.readouterr()
    assert "6 of 6 shards are done" in told.out
    assert "120 samples in: 120 kept, 0 dropped; 120 out" in told.out
    assert read(tmp_path / "out")["000007"]["txt"] == b"TEXT 7"
    last = json.loads(told.err.splitlines()[-1])
    assert (last["event"], last["done"], last["tasks"]) == ("end", 6, 6)
    assert {"tasks_per_s", "seconds_left", "samples", "bytes"} <= last.keys()


def test_a_class_of_a_file_is_run(folder, tmp_path, inputs, capsys):
    words = ["--inputs", inputs, "--outputs", "out/{stem}.tar", "--json"]
    assert run(f"{folder}.py:Shouter", *words) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["done"], report["samples_out"]) == (6, 120)


def test_a_job_file_has_the_keywords_of_map_shards(folder, tmp_path, inputs, capsys):
    pytest.importorskip("yaml")
    (tmp_path / "job.yaml").write_text(
        f"fn: {folder}:fail\ninputs: '{inputs}'\noutputs: out/%03d.tar\n"
        "handler: ignore_and_continue\nretries: 0\nname: mine\nindex: false\n"
    )
    assert run("job.yaml") == 0
    assert "0 dropped, 1 failed" in capsys.readouterr().out
    assert find_jobs("out") == ["mine"]
    assert (tmp_path / "out/005.tar").exists()


def test_a_job_file_with_an_unknown_key_is_refused(folder, tmp_path, capsys):
    pytest.importorskip("yaml")
    (tmp_path / "job.yaml").write_text(f"fn: {folder}:fail\ninputs: a\noutput: b\n")
    assert run("job.yaml") == 2
    assert "'output' is no key of a job" in capsys.readouterr().err


@pytest.mark.parametrize("on_error", ["abort", "skip"])
def test_a_failed_shard_is_reported_and_the_status_is_1(folder, tmp_path, inputs, capsys, on_error):
    words = ["--inputs", inputs, "--outputs", "out/{stem}.tar", "--on-error", on_error]
    assert run(f"{folder}:fail", *words, "--retries", "0") == 1
    told = capsys.readouterr()
    assert "thirty" in told.out + told.err
    assert "in-0001.tar, sample '000030' at byte" in told.out + told.err
    done = ControlFolder("out", find_jobs("out")[0]).url("done")
    assert len(os.listdir(done)) == (1 if on_error == "abort" else 5)


@pytest.mark.parametrize(
    "words",
    [
        ["no_such_module:f", "--inputs", "x", "--outputs", "out/{stem}.tar"],
        ["json:no_such_name", "--inputs", "x", "--outputs", "out/{stem}.tar"],
        ["json", "--inputs", "x", "--outputs", "out/{stem}.tar"],
        ["json:loads", "--outputs", "out/{stem}.tar"],
        ["json:loads", "--inputs", "in/*.tar", "--outputs", "out/a.tar"],
        ["json:loads", "--inputs", "nothing-*.tar", "--outputs", "out/{stem}.tar"],
        ["json:loads", "--inputs", "in/*.tar", "--outputs", "o/{stem}.tar", "--worker", "3/2"],
        ["json:loads", "--inputs", "in/*.tar", "--outputs", "o/{stem}.tar", "--worker", "x"],
        ["missing.py:f", "--inputs", "in/*.tar", "--outputs", "o/{stem}.tar"],
        ["missing.yaml"],
    ],
)
def test_wrong_usage_has_the_status_2(folder, capsys, words):
    assert main(["run", *words]) == 2
    assert capsys.readouterr().err.startswith("penstock: ")


def test_a_changed_function_has_the_status_2_until_it_is_forced(folder, inputs, capsys):
    words = ["--inputs", inputs, "--outputs", "out/{stem}.tar"]
    assert run(f"{folder}:shout", *words) == 0
    assert run(f"{folder}:Shouter", *words) == 2
    assert "the function changed" in capsys.readouterr().err
    assert run(f"{folder}:Shouter", *words, "--force") == 0


def test_a_full_disk_has_the_status_3(folder, tmp_path, inputs, capsys):
    small = tmp_path / "small"
    small.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", str(small)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        words = ["--inputs", inputs, "--outputs", "small/{stem}.tar", "--no-index"]
        assert run(f"{folder}:shout", *words) == 3
        assert "No space left" in capsys.readouterr().err
    finally:
        subprocess.run(["umount", str(small)], check=True)


def test_a_store_that_cannot_be_reached_has_the_status_3(folder, inputs, monkeypatch, capsys):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    words = ["--inputs", inputs, "--outputs", "gs://bucket/{stem}.tar", "--no-index"]
    assert run(f"{folder}:shout", *words) == 3


def test_a_dry_run_prints_time_requests_and_bytes(folder, inputs, capsys):
    words = ["--inputs", inputs, "--outputs", "out/{stem}.tar", "--dry-run"]
    assert run(f"{folder}:shout", *words) == 0
    told = capsys.readouterr().out
    assert "estimated from 3 of 6 shards" in told
    for word in ("time", "requests", "read", "written"):
        assert word in told
    assert not os.path.exists("out")


def test_an_array_of_processes_is_run_by_its_numbers(folder, tmp_path, inputs):
    command = [sys.executable, "-m", "penstock", "run", f"{folder}:shout", "--inputs", inputs]
    command += ["--outputs", "out/{stem}.tar", "--json"]
    processes = [
        subprocess.Popen([*command, "--worker", f"{n}/2"], stdout=subprocess.PIPE) for n in range(2)
    ]
    reports = [json.loads(process.communicate(timeout=60)[0]) for process in processes]
    assert len({report["digest"] for report in reports}) == 1
    assert sum(report["ran"] for report in reports) == 6


def test_help_says_that_job_files_are_trusted(capsys):
    with pytest.raises(SystemExit):
        main(["run", "--help"])
    assert "use only job files that you would run as a script" in " ".join(
        capsys.readouterr().out.split()
    )


# ── penstock job ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def job(folder, inputs, capsys):
    """A finished job in ``out``."""
    assert run(f"{folder}:shout", "--inputs", inputs, "--outputs", "out/{stem}.tar") == 0
    capsys.readouterr()
    return "out"


def test_a_complete_job_is_verified(job, capsys):
    assert main(["job", "verify", job]) == 0
    told = capsys.readouterr().out
    assert "complete; 6 inputs, 6 outputs, 120 samples in = 120 kept + 0 dropped" in told
    assert "digest" in told


@pytest.mark.parametrize("damage", ["changed", "missing", "record", "plan", "counts"])
def test_verify_finds_what_is_wrong(job, tmp_path, capsys, damage):
    output = tmp_path / "out/in-0002.tar"
    (record,) = (tmp_path / "out").glob(".penstock/*/done/in-0002.*")
    if damage == "changed":
        data = bytearray(output.read_bytes())
        data[600] ^= 1
        output.write_bytes(data)
        words = "in-0002.tar has the SHA-256"
    elif damage == "missing":
        output.unlink()
        words = "in-0002.tar is missing"
    elif damage == "record":
        record.unlink()
        words = "in-0002 is not done"
    elif damage == "plan":
        changed = json.loads(record.read_text())
        changed["inputs"][0]["url"] += "x"
        record.write_text(json.dumps(changed))
        words = "other inputs than the plan"
    else:
        changed = json.loads(record.read_text())
        changed["dropped"] = 3
        record.write_text(json.dumps(changed))
        words = "20 samples came in, but 20 were kept and 3 dropped"
    assert main(["job", "verify", job]) == 1
    assert words in capsys.readouterr().out


def test_status_counts_what_is_done_and_names_what_failed(folder, inputs, capsys):
    words = ["--inputs", inputs, "--outputs", "out/{stem}.tar", "--on-error", "skip"]
    run(f"{folder}:fail", *words, "--retries", "0")
    capsys.readouterr()
    assert main(["job", "status", "out", "--json"]) == 0
    status = json.loads(capsys.readouterr().out)
    assert (status["tasks"], status["done"], list(status["failed"])) == (6, 5, ["in-0001"])
    assert "thirty" in status["failed"]["in-0001"]
    assert main(["job", "status", "out"]) == 0
    assert "5 of 6 shards are done" in capsys.readouterr().out


@pytest.mark.parametrize("where", ["command", "job file"])
def test_samples_that_the_handler_skips_are_shown(folder, tmp_path, inputs, capsys, where):
    if where == "command":
        words = [f"{folder}:fail", "--inputs", inputs, "--outputs", "out/{stem}.tar"]
        words += ["--handler", "ignore_and_continue"]
    else:
        lines = {"fn": f"{folder}:fail", "inputs": inputs, "outputs": "out/{stem}.tar"}
        lines["handler"] = "ignore_and_continue"
        (tmp_path / "job.json").write_text(json.dumps(lines))
        words = ["job.json"]
    assert run(*words) == 0
    told = capsys.readouterr().out
    assert "120 samples in: 119 kept, 0 dropped, 1 failed; 119 out" in told
    assert "skipped: in-0001: sample '000030': ValueError('thirty')" in told
    assert main(["job", "status", "out"]) == 0
    told = capsys.readouterr().out
    assert "the handler skipped 1 error" in told
    assert "skipped: in-0001: sample '000030': ValueError('thirty')" in told
    assert main(["job", "verify", "out"]) == 0
    assert "119 kept + 0 dropped + 1 failed" in capsys.readouterr().out


def test_status_says_of_how_many_shards_it_counted_errors(folder, inputs, capsys, monkeypatch):
    words = ["--inputs", inputs, "--outputs", "out/{stem}.tar", "--handler", "ignore_and_continue"]
    assert run(f"{folder}:fail", *words) == 0
    (copy,) = Path("out/.penstock").glob("*/records.jsonl.gz")
    copy.unlink()
    monkeypatch.setattr("penstock.jobs.verify.READ_RECORDS", 4)
    capsys.readouterr()
    assert main(["job", "status", "out"]) == 0
    assert "(in 4 of 6 shards)" in capsys.readouterr().out
    assert main(["job", "status", "out", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["unread"] == 2


def test_an_unknown_handler_is_wrong_usage(folder, inputs, capsys):
    words = ["--inputs", inputs, "--outputs", "out/{stem}.tar", "--handler", "carry_on"]
    assert run(f"{folder}:fail", *words) == 2
    assert "warn_and_continue" in capsys.readouterr().err


def test_clean_deletes_the_records_and_keeps_the_outputs(job, tmp_path, capsys):
    assert main(["job", "clean", job]) == 0
    assert not (tmp_path / "out/.penstock").exists()
    assert len(list((tmp_path / "out").glob("*.tar"))) == 6
    assert main(["job", "status", job]) == 2
    assert "has no job" in capsys.readouterr().err


def test_a_file_between_the_jobs_of_a_folder_is_no_job(job, tmp_path):
    (tmp_path / "out/.penstock/.DS_Store").touch()
    assert main(["job", "status", job]) == 0


def test_one_of_several_jobs_is_named(job, folder, inputs, capsys):
    words = ["--inputs", inputs, "--outputs", "out/other-{stem}.tar"]
    assert run(f"{folder}:shout", *words, "--name", "other") == 0
    assert main(["job", "verify", job]) == 2
    assert "several jobs" in capsys.readouterr().err
    assert main(["job", "verify", job, "--name", "other"]) == 0


def test_quiet_prints_neither_progress_nor_a_summary(folder, inputs, capsys):
    words = ["--inputs", inputs, "--outputs", "out/{stem}.tar", "--quiet"]
    assert run(f"{folder}:shout", *words) == 0
    assert capsys.readouterr() == ("", "")


def test_sizes_have_units_on_the_command_line_and_in_a_job_file(folder, tmp_path, inputs):
    words = ["--inputs", inputs, "--outputs", "out/{stem}-%d.tar"]
    assert run(f"{folder}:shout", *words, "--maxsize", "0.1kB") == 0
    job = f"fn: {folder}:shout\ninputs: {inputs}\noutputs: new/{{stem}}-%d.tar\nmaxsize: 0.1kB\n"
    (tmp_path / "job.yaml").write_text(job)
    assert run("job.yaml") == 0
    made = [
        sorted(path.name for path in (tmp_path / name).glob("*.tar")) for name in ("out", "new")
    ]
    assert made[0] == made[1]
    assert len(made[0]) > 6
    assert run("job.yaml", "--maxsize", "1G") == 2


def test_a_dry_run_of_a_function_that_fails_ends_with_a_message(folder, inputs, capsys):
    words = ["--inputs", inputs, "--outputs", "out/{stem}.tar", "--dry-run"]
    (Path(f"{folder}.py")).write_text(CODE + "\ndef broken(sample):\n    raise ValueError('no')\n")
    assert run(f"{folder}:broken", *words) == 1
    said = capsys.readouterr().err
    assert said.startswith("penstock: ValueError: no")
    assert "sample '000000'" in said
    assert "in the task in-0000" in said


def test_a_file_with_the_name_of_another_module_is_refused(folder, tmp_path, inputs, capsys):
    (tmp_path / "copy.py").write_text("def copy(sample):\n    return None\n")
    assert run("copy.py:copy", "--inputs", inputs, "--outputs", "out/{stem}.tar") == 2
    assert "'copy.py' has the name of another module, copy: rename" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("jobs: many", "jobs is a number, not 'many'"),
        ("retries: two", "retries is a number, not 'two'"),
        ("maxsize: [1]", "maxsize is a size such as 1GB, not [1]"),
    ],
)
def test_a_job_file_with_a_wrong_value_is_wrong_usage(line, said, folder, tmp_path, inputs, capsys):
    job = f"fn: {folder}:shout\ninputs: {inputs}\noutputs: out/{{stem}}.tar\n{line}\n"
    (tmp_path / "job.yaml").write_text(job)
    assert main(["run", "job.yaml"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_worker_of_another_engine_is_wrong_usage(jobs, folder, inputs, capsys):
    words = ["--inputs", inputs, "--outputs", "out/{stem}.tar", "--engine", "local"]
    assert main(["run", f"{folder}:shout", *words, "--worker", "0/2", "--jobs", jobs]) == 2
    assert "--worker) is for engine='array', not 'local'" in capsys.readouterr().err
