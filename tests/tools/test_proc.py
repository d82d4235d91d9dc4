"""``penstock proc`` in a real shell: files come and go, several samples of one, failures."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from rework import check_other_readers, keys
from tool_shards import tar

import penstock as wds
from penstock import tools
from penstock.errors import WriteError

FIRST = "shards/train-000000.tar"
NAMES = [f"k{number:03d}" for number in range(10)]


def read(shard):
    return [
        {name: value for name, value in sample.items() if name[:2] != "__" or name == "__key__"}
        for sample in wds.WebDataset(str(shard))
    ]


def test_new_files_become_fields_and_removed_ones_go(shell, shards, tmp_path) -> None:
    command = "wc -c < sample.txt > sample.count; rm sample.jpg; touch other.file"
    done = shell(f"penstock proc '{shards}' -o 'out/%03d.tar' -c '{command}' --jobs 2")
    assert done.returncode == 0, done.stderr
    found = read(tmp_path / "out/000.tar") + read(tmp_path / "out/001.tar")
    assert [sample["__key__"] for sample in found] == NAMES
    assert {tuple(sorted(sample)) for sample in found} == {
        ("__key__", "cls", "count", "json", "txt")
    }
    assert int(found[0]["count"]) == len(found[0]["txt"])
    check_other_readers(tmp_path / "out/000.tar")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        ".penstock",
        "000.tar",
        "001.tar",
        "shards.index.parquet",
    ]


def test_several_samples_are_collected_from_one(shell, shards, tmp_path) -> None:
    command = "for n in 0 1 5; do cp sample.cls sample-00000$n.cls; done; "
    command += "echo my/key > sample-000005.__key__"
    assert shell(f"penstock proc {FIRST} -o o.tar --slice 0:1 --multi '{command}'").returncode == 0
    assert keys(tmp_path / "o.tar") == ["k000/000000", "k000/000001", "my/key"]


def test_commands_start_in_a_folder_with_the_sample_only(shell, shards, tmp_path) -> None:
    line = f"penstock proc {FIRST} -o - -c 'ls > sample.ls; pwd' --slice 1 --fields 'cls txt'"
    done = shell(f"{line} > o.tar")
    assert done.returncode == 0
    assert read(tmp_path / "o.tar")[0]["ls"].split() == [
        b"sample.__key__",
        b"sample.cls",
        b"sample.ls",
        b"sample.txt",
    ]
    folder = next(line for line in done.stderr.splitlines() if "penstock-proc" in line)
    assert not os.path.exists(folder)


@pytest.mark.parametrize(
    ("on_error", "status", "kept"), [("abort", 1, None), ("skip", 1, 4), ("keep", 1, 5)]
)
def test_a_command_that_fails(shell, shards, tmp_path, on_error, status, kept) -> None:
    command = 'echo hello; rm sample.jpg; test "$(cat sample.__key__)" != k002'
    done = shell(f"penstock proc {FIRST} -o o.tar -c '{command}' --on-error {on_error} --log out")
    assert done.returncode == status
    if kept is None:
        assert "k002" in done.stderr
        assert "hello" in done.stderr
        assert sorted(path.name for path in tmp_path.iterdir()) == ["shards"]
        return
    found = read(tmp_path / "o.tar")
    assert len(found) == kept
    assert found[0]["out"] == b"hello\n"
    assert [s["__key__"] for s in found if "jpg" in s] == (["k002"] if on_error == "keep" else [])


def test_wrong_calls_are_refused(shell, shards) -> None:
    assert shell(f"penstock proc {FIRST} -o o.tar").returncode == 2
    assert shell(f"penstock proc {FIRST} -o o.tar -c a --multi b").returncode == 2
    assert shell(f"penstock proc '{shards}' -o o.tar -c true").returncode == 2


def test_finished_shards_are_not_done_again(shell, shards, tmp_path) -> None:
    command = "(cat sample.__key__; echo) >> ../ran; "
    command += "test -e $ALLOW || grep -qv k007 sample.__key__"
    line = f"TMPDIR=$PWD/tmp penstock proc '{shards}' -o 'out/%d.tar' -c '{command}' --jobs 1"
    (tmp_path / "tmp").mkdir()
    flag = str(tmp_path / "allow")
    assert shell(line, ALLOW=flag).returncode == 1
    assert [path.name for path in (tmp_path / "out").glob("*.tar")] == ["0.tar"]
    Path(flag).touch()
    assert shell(line, ALLOW=flag).returncode == 0
    ran = (tmp_path / "tmp/ran").read_text().split()
    assert ran.count("k000") == 1
    assert ran.count("k007") == 2
    assert not list((tmp_path / "out/.penstock").rglob("plan.json"))
    shell(f"rm {flag}")
    assert shell(line, ALLOW=flag).returncode == 0, "the job is finished"
    assert (tmp_path / "tmp/ran").read_text().split() == ran


def test_hostile_names_write_nothing_outside(shell, tmp_path) -> None:
    tar(
        tmp_path / "x.tar",
        [("a/../../up.txt", b"1"), ("/abs.txt", b"1"), ("k.d." + "n" * 300, b"1")],
        format=1,
    )
    before = set(os.listdir(tmp_path.parent))
    done = shell("penstock proc x.tar -o o.tar -c true")
    assert done.returncode == 1
    assert set(os.listdir(tmp_path.parent)) == before
    assert sorted(os.listdir(tmp_path)) == ["x.tar"]


def test_ctrl_c_leaves_no_half_output(program, shards, tmp_path) -> None:
    (tmp_path / "temporary").mkdir()
    environment = {
        "TMPDIR": str(tmp_path / "temporary"),
        **os.environ,
        "PATH": f"{program}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(wds.__file__).parents[1]),
    }
    begin = f"echo $$ > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/begun"
    command = f'trap "" INT; {begin}; sleep 30; true'
    line = f"exec penstock proc {FIRST} -o out/o.tar -c '{command}' --jobs 1"
    process = subprocess.Popen(
        ["bash", "-c", line],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    end = time.monotonic() + 60
    while not (tmp_path / "begun").exists():
        assert time.monotonic() < end
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert process.returncode == 130, errors
    assert list((tmp_path / "out").iterdir()) == []
    assert list((tmp_path / "temporary").iterdir()) == []
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "begun").read_text()), 0)


def test_the_python_function_has_the_same_words(shards, tmp_path) -> None:
    first = str(tmp_path / FIRST)
    done = tools.proc(first, str(tmp_path / "o.tar"), command="rm sample.txt", log="log", jobs=2)
    assert (done.samples, done.failed, done.shards) == (5, 0, 1)


def test_a_refused_name_says_what_to_do_in_proc(shards, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    command = "printf a.b > sample.__key__"
    for output in ("out/%03d.tar", "-"):
        with pytest.raises(WriteError, match=r"write 'a_b'; the command may") as caught:
            tools.proc(shards, output, command=command, jobs=1)
        assert "check=" not in str(caught.value)
