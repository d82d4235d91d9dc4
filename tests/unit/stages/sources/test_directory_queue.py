from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from penstock.context import Context
from penstock.errors import PipelineError, StorageError
from penstock.stages.sources.directory_queue import DirectoryShardList

fork = multiprocessing.get_context("fork")


def fill(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).write_bytes(name.encode())
    return folder


def listing(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def dead_pid() -> int:
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    return child.pid


def taken(shards: Any) -> list[str]:
    """The names of the shards, without folder and claim."""
    return [os.path.basename(shard["url"]).split("._")[0] for shard in shards]


def test_the_default_pattern_finds_tar_files(tmp_path: Path) -> None:
    fill(tmp_path, "a.tar", "b.tgz", "c.tar.tgz", "d.txt", ".e.tar")
    (tmp_path / "folder.tar").mkdir()
    shards = DirectoryShardList(f"{tmp_path}/", mode="unlink", poll=None)
    assert sorted(taken(shards)) == ["a.tar", "b.tgz", "c.tar.tgz"]
    assert listing(tmp_path) == [".e.tar", "d.txt", "folder.tar"]


def test_a_shard_carries_its_claim_while_it_is_read(tmp_path: Path) -> None:
    fill(tmp_path, "a.tar")
    for shard in DirectoryShardList(tmp_path, mode="keep", poll=None):
        assert shard == {"url": str(tmp_path / f"a.tar._{os.getpid()}_")}
        assert Path(shard["url"]).read_bytes() == b"a.tar"
        assert listing(tmp_path) == [f"a.tar._{os.getpid()}_"]
    assert listing(tmp_path) == ["a.tar._done_"]


def test_shards_that_are_done_do_not_match_a_wide_pattern(tmp_path: Path) -> None:
    fill(tmp_path, "a.tar", "b.tar")
    assert len(list(DirectoryShardList(tmp_path, "*", mode="keep", poll=None))) == 2
    assert listing(tmp_path) == ["a.tar._done_", "b.tar._done_"]


def test_resampled_shards_come_again_and_again(tmp_path: Path) -> None:
    fill(tmp_path, "a.tar", "b.tar")
    assert set(taken(islice(DirectoryShardList(tmp_path), 50))) == {"a.tar", "b.tar"}
    assert listing(tmp_path) == ["a.tar", "b.tar"]


def test_the_oldest_comes_first(tmp_path: Path) -> None:
    fill(tmp_path, "a.tar", "b.tar", "c.tar")
    for age, name in enumerate(["b.tar", "a.tar", "c.tar"]):
        os.utime(tmp_path / name, (1000 + age, 1000 + age))
    shards = DirectoryShardList(tmp_path, mode="unlink", select="oldest", poll=None)
    assert taken(shards) == ["b.tar", "a.tar", "c.tar"]


@pytest.mark.parametrize("mode", ["unlink", "keep", "resample"])
def test_a_shard_whose_reader_stopped_early_is_put_back(tmp_path: Path, mode: str) -> None:
    fill(tmp_path, "a.tar")
    shards = iter(DirectoryShardList(tmp_path, mode=mode, poll=None))
    next(shards)
    shards.close()  # type: ignore[attr-defined]
    assert listing(tmp_path) == ["a.tar"]


@pytest.mark.parametrize("mode", ["unlink", "keep"])
def test_the_claim_of_a_dead_process_is_taken_over(tmp_path: Path, mode: str) -> None:
    fill(tmp_path, f"a.tar._{dead_pid()}_")
    assert taken(DirectoryShardList(tmp_path, mode=mode, poll=None)) == ["a.tar"]


def test_the_claim_of_a_living_process_is_respected(tmp_path: Path) -> None:
    fill(tmp_path, f"a.tar._{os.getppid()}_")
    assert taken(DirectoryShardList(tmp_path, mode="unlink", poll=None)) == []
    assert listing(tmp_path) == [f"a.tar._{os.getppid()}_"]


def test_a_claim_that_is_locked_from_another_container_is_respected(tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    fill(tmp_path, name := f"a.tar._{dead_pid()}_")
    with open(tmp_path / name, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert taken(DirectoryShardList(tmp_path, mode="unlink", poll=None)) == []
        assert listing(tmp_path) == [name]
    assert taken(DirectoryShardList(tmp_path, mode="unlink", poll=None)) == ["a.tar"]


def test_an_unfinished_shard_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    claim = f"a.tar._{dead_pid()}_"
    fill(tmp_path, claim)
    (tmp_path / "a.tar").write_bytes(b"newer")
    shards = DirectoryShardList(tmp_path, mode="unlink", poll=None)
    assert [Path(shard["url"]).read_bytes() for shard in shards] == [b"newer", claim.encode()]
    assert listing(tmp_path) == []


def test_a_finished_shard_does_not_replace_a_newer_one(tmp_path: Path) -> None:
    fill(tmp_path, "a.tar")
    shards = iter(DirectoryShardList(tmp_path, poll=None))
    next(shards)
    (tmp_path / "a.tar").write_bytes(b"newer")
    assert Path(next(shards)["url"]).read_bytes() == b"newer"
    assert len(listing(tmp_path)) == 1


def test_waiting_ends_when_a_shard_comes(tmp_path: Path) -> None:
    shards = iter(DirectoryShardList(tmp_path, poll=0.01))
    threading.Timer(0.1, fill, (tmp_path, "late.tar")).start()
    assert taken([next(shards)]) == ["late.tar"]


def test_waiting_ends_with_the_timeout(tmp_path: Path) -> None:
    assert list(DirectoryShardList(tmp_path, poll=0.01, timeout=0.05)) == []
    assert list(DirectoryShardList(tmp_path, poll=1000, timeout=0.05)) == []


def test_waiting_ends_when_the_run_is_closed(tmp_path: Path) -> None:
    run = DirectoryShardList(tmp_path, poll=1000).start(None, Context())
    threading.Timer(0.05, run.close).start()
    assert list(run) == []


def test_waiting_can_be_interrupted(tmp_path: Path) -> None:
    began = fork.Event()

    def wait() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        began.set()
        try:
            list(DirectoryShardList(tmp_path, poll=1000))
        except KeyboardInterrupt:
            os._exit(7)

    child = fork.Process(target=wait)
    child.start()
    assert began.wait(20)
    child.join(0.1)
    os.kill(child.pid or 0, signal.SIGINT)
    child.join(20)
    assert child.exitcode == 7


def test_two_processes_drain_a_folder_without_sharing_a_shard(tmp_path: Path) -> None:
    names = [f"{number:03}.tar" for number in range(150)]
    fill(tmp_path, *names)
    results, go = fork.SimpleQueue(), fork.Barrier(2)

    def drain() -> None:
        go.wait(20)
        results.put(taken(DirectoryShardList(tmp_path, mode="unlink", poll=None)))

    children = [fork.Process(target=drain) for _ in range(2)]
    for child in children:
        child.start()
    parts = [results.get() for _ in children]
    for child in children:
        child.join(20)
        assert child.exitcode == 0
    assert sorted(parts[0] + parts[1]) == names
    assert listing(tmp_path) == []


def test_processes_that_resample_never_hold_a_shard_together(tmp_path: Path) -> None:
    fill(tmp_path, "a.tar", "b.tar", "c.tar")
    marks = tmp_path / "marks"
    marks.mkdir()

    def work() -> None:
        for shard in islice(DirectoryShardList(tmp_path, poll=0.001), 200):
            mark = os.open(marks / taken([shard])[0], os.O_CREAT | os.O_EXCL)  # fails if held
            os.close(mark)
            os.unlink(marks / taken([shard])[0])

    children = [fork.Process(target=work) for _ in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    assert listing(tmp_path) == ["a.tar", "b.tar", "c.tar", "marks"]


def test_a_shard_of_a_killed_process_comes_to_another(tmp_path: Path) -> None:
    fill(tmp_path, "a.tar")
    reached = fork.Event()

    def hold() -> None:
        for _ in DirectoryShardList(tmp_path, mode="unlink"):
            reached.set()
            signal.pause()

    child = fork.Process(target=hold)
    child.start()
    assert reached.wait(20)
    assert taken(DirectoryShardList(tmp_path, mode="unlink", poll=None)) == []
    child.kill()
    child.join(20)
    assert taken(DirectoryShardList(tmp_path, mode="unlink", poll=None)) == ["a.tar"]


def test_tickets_count_and_origins_name_the_shard(tmp_path: Path) -> None:
    fill(tmp_path, "a.tar", "b.tar")
    run = DirectoryShardList(tmp_path, mode="unlink", poll=None).start(None, Context(worker=2))
    assert [(run.ticket, str(run.origin(run.ticket)) == shard["url"]) for shard in run] == [
        (0, True),
        (1, True),
    ]
    assert run.stream_id == (0, 2)


def test_arguments_that_cannot_work_are_refused(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="mode must be one of"):
        DirectoryShardList(tmp_path, mode="eat")
    with pytest.raises(PipelineError, match="select must be one of"):
        DirectoryShardList(tmp_path, select="best")
    with pytest.raises(PipelineError, match="poll must be above 0"):
        DirectoryShardList(tmp_path, poll=0)
    with pytest.raises(PipelineError, match="fate"):
        DirectoryShardList(tmp_path, fate="x")  # type: ignore[arg-type]
    with pytest.raises(StorageError, match="needs a folder"):
        list(DirectoryShardList(tmp_path / "nowhere"))


def test_the_list_prints_compares_and_pickles(tmp_path: Path) -> None:
    shards = DirectoryShardList("in/", mode="keep")
    assert repr(shards) == "DirectoryShardList('in/', mode='keep')"
    assert pickle.loads(pickle.dumps(shards)) == shards


def test_shards_of_dead_processes_are_put_back_on_request(tmp_path):
    (tmp_path / "a.tar._99999999_").touch()
    DirectoryShardList(tmp_path).cleanup_files_without_processes()
    assert os.listdir(tmp_path) == ["a.tar"]
