"""ShardWriter: when a shard begins, when it appears, and going on after a stop."""

from __future__ import annotations

import io
import logging
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import PipelineError, WriteError
from penstock.shards.open_shard import open_shard
from penstock.shards.sample_reader import Samples
from penstock.shards.writing import ShardWriter
from penstock.storage import open_url

Sample = dict[str, Any]


def numbers(count: int, size: int = 10) -> Iterator[Sample]:
    for i in range(count):
        yield {"__key__": f"{i:04d}", "bin": bytes([i % 256]) * size}


def write(pattern: str | Path, samples: Iterator[Sample], **options: Any) -> ShardWriter:
    with ShardWriter(pattern, **options) as sink:
        for sample in samples:
            sink.write(sample)
    return sink


def keys(shard: Path) -> list[str]:
    with open_shard(str(shard)) as tape:
        return [sample["__key__"] for sample in Samples(tape)]


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted(folder.iterdir())}


def test_a_shard_ends_before_the_sample_that_is_one_too_many(tmp_path: Path) -> None:
    sink = ShardWriter(tmp_path / "s-%02d.tar", maxcount=2)
    assert (sink.shard, sink.fname, sink.count, sink.total) == (0, None, 0, 0)
    seen = []
    for sample in numbers(5):
        assert sink.write(sample) == 10
        name = Path(str(sink.fname)).name
        seen.append((sink.shard, sink.count, sink.total, sink.size, name))
    sink.close()
    sink.close()
    assert seen == [
        (1, 1, 1, 10, "s-00.tar"),
        (1, 2, 2, 20, "s-00.tar"),
        (2, 1, 3, 10, "s-01.tar"),
        (2, 2, 4, 20, "s-01.tar"),
        (3, 1, 5, 10, "s-02.tar"),
    ]
    assert list(contents(tmp_path)) == ["s-00.tar", "s-01.tar", "s-02.tar"]
    assert keys(tmp_path / "s-01.tar") == ["0002", "0003"]


def test_a_shard_ends_once_it_has_maxsize_bytes_of_fields(tmp_path: Path) -> None:
    write(tmp_path / "%d.tar", numbers(7), maxsize=25)
    assert [len(keys(tmp_path / f"{i}.tar")) for i in range(3)] == [3, 3, 1]


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 7), st.integers(1, 90))
@settings(max_examples=40, deadline=None)
def test_all_samples_are_in_the_shards_in_their_order(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], maxcount: int, maxsize: int
) -> None:
    folder = tmp_path_factory.mktemp("any")
    samples = [{"__key__": str(i), "bin": bytes(size)} for i, size in enumerate(sizes)]
    sink = write(folder / "%03d.tar", iter(samples), maxcount=maxcount, maxsize=maxsize)
    found = [keys(shard) for shard in sorted(folder.iterdir())]
    assert [key for shard in found for key in shard] == [sample["__key__"] for sample in samples]
    assert sink.total == len(samples)
    for shard in found:
        assert 1 <= len(shard) <= maxcount
        assert sum(sizes[int(key)] for key in shard[:-1]) < maxsize


def test_nothing_written_makes_no_shard(tmp_path: Path) -> None:
    called: list[str] = []
    write(tmp_path / "%d.tar", iter([]), post=called.append)
    sink = ShardWriter(tmp_path / "%d.tar", post=called.append)
    with pytest.raises(WriteError):
        sink.write({"__key__": "a.b", "x": b""})
    sink.close()
    assert contents(tmp_path) == {}
    assert called == []


def test_a_sample_that_fails_does_not_count(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "%d.tar", maxcount=2) as sink:
        sink.write({"__key__": "a", "x": b""})
        with pytest.raises(WriteError):
            sink.write({"__key__": "a", "x": b""})
        sink.write({"__key__": "b", "x": b""})
        sink.write({"__key__": "a", "x": b""})  # in another shard the key may stand again
    assert [keys(tmp_path / f"{i}.tar") for i in range(2)] == [["a", "b"], ["a"]]


def test_post_is_called_when_each_shard_is_there(tmp_path: Path) -> None:
    seen: list[tuple[str, list[str]]] = []
    pattern = str(tmp_path / "%d.tar")
    write(pattern, numbers(3), maxcount=2, post=lambda name: seen.append((name, keys(Path(name)))))
    assert seen == [(pattern % 0, ["0000", "0001"]), (pattern % 1, ["0002"])]


def test_numbers_begin_at_start_shard(tmp_path: Path) -> None:
    write(tmp_path / "%d.tar", numbers(3), maxcount=2, start_shard=7)
    assert list(contents(tmp_path)) == ["7.tar", "8.tar"]


def test_a_new_shard_can_be_begun_by_hand(tmp_path: Path) -> None:
    with ShardWriter(tmp_path / "%d.tar") as sink:
        for sample in numbers(2):
            sink.next_stream()
            sink.next_stream()
            sink.write(sample)
    assert list(contents(tmp_path)) == ["0.tar", "1.tar"]


def test_arguments_of_the_tar_writer_are_passed_on(tmp_path: Path) -> None:
    write(tmp_path / "%d.tar", numbers(1), encoder=False, mode=0o600, compress="gz")
    assert contents(tmp_path)["0.tar"].startswith(b"\x1f\x8b")
    write(tmp_path / "%d.tar.zst", numbers(1))
    assert contents(tmp_path)["0.tar.zst"].startswith(b"\x28\xb5\x2f\xfd")


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write("~/%d.tar", numbers(1))
    assert list(contents(tmp_path)) == ["0.tar"]


@pytest.mark.parametrize("pattern", ["x.tar", "x-%s-%s.tar", "x-%", "100%.tar", "x-%%d.tar"])
def test_a_pattern_without_a_place_for_the_number_is_refused(pattern: str) -> None:
    with pytest.raises(PipelineError, match="place for the shard's number"):
        ShardWriter(pattern)


def test_arguments_that_cannot_work_are_told_before_the_first_sample(tmp_path: Path) -> None:
    pattern = tmp_path / "%d.tar"
    for options in ({"maxcount": 0}, {"maxsize": 0}, {"compress": "rar"}, {"format": "zip"}):
        with pytest.raises(PipelineError):
            ShardWriter(pattern, **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="colour"):
        ShardWriter(pattern, colour="red")
    with pytest.raises(PipelineError, match="local files"):
        ShardWriter("pipe:cat > %d.tar", skip_existing=True)


def test_each_shard_is_logged_unless_told_not_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    with caplog.at_level(logging.INFO, "penstock.shards.writing"):
        write(tmp_path / "%d.tar", numbers(3), maxcount=2)
        assert [record.getMessage()[-24:] for record in caplog.records] == [
            "/0.tar, 0 samples before it"[-24:],
            "/1.tar, 2 samples before it"[-24:],
        ]
        caplog.clear()
        write(tmp_path / "%d.tar", numbers(3), verbose=0)
        assert caplog.records == []
    assert capsys.readouterr().out == ""


# ── whole or not at all ─────────────────────────────────────────────────────────────────


def test_an_exception_throws_away_the_current_shard_alone(tmp_path: Path) -> None:
    called: list[str] = []
    with (
        pytest.raises(KeyError),
        ShardWriter(tmp_path / "%d.tar", maxcount=2, post=called.append) as sink,
    ):
        for sample in numbers(3):
            sink.write(sample)
        raise KeyError("stop")
    assert list(contents(tmp_path)) == ["0.tar"]
    assert len(called) == 1


class Sink(io.BytesIO):
    def __init__(self) -> None:
        super().__init__()
        self.ended = ""

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"


def test_an_opener_gives_the_streams_which_are_ended_as_the_shard_is() -> None:
    opened: dict[str, Sink] = {}
    with (
        pytest.raises(KeyError),
        ShardWriter(
            "up/%d.tar.gz", maxcount=2, opener=lambda name: opened.setdefault(name, Sink())
        ) as sink,
    ):
        for sample in numbers(3):
            sink.write(sample)
        raise KeyError("stop")
    assert {name: stream.ended for name, stream in opened.items()} == {
        "up/0.tar.gz": "closed",
        "up/1.tar.gz": "aborted",
    }
    assert opened["up/0.tar.gz"].getvalue().startswith(b"\x1f\x8b")


def test_an_opener_may_be_the_librarys_own(tmp_path: Path) -> None:
    write(tmp_path / "%d.tar", numbers(3), maxcount=2, opener=lambda name: open_url(name, "wb"))
    assert keys(tmp_path / "1.tar") == ["0002"]


KILLED = """
import os, signal, sys
from penstock.shards.writing import ShardWriter
sink = ShardWriter(sys.argv[1], maxcount=100, post=lambda name: print(name))
for i in range(250):
    sink.write({"__key__": f"{i:04d}", "bin": bytes([i % 256]) * 10})
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("ending", ["tar", "tar.gz"])
def test_a_rerun_after_a_kill_ends_as_if_it_had_never_stopped(
    tmp_path: Path, skip: bool, ending: str
) -> None:
    name = f"%02d.{ending}"
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    killed.mkdir()
    whole.mkdir()
    command = [sys.executable, "-c", KILLED, str(killed / name)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    complete = [file for file in sorted(killed.iterdir()) if not file.name.startswith(".")]
    assert [file.name for file in complete] == [name % 0, name % 1]
    before = [file.stat().st_mtime_ns for file in complete]

    posted: list[str] = []
    sink = write(killed / name, numbers(450), maxcount=100, skip_existing=skip, post=posted.append)
    write(whole / name, numbers(450), maxcount=100)

    assert sink.total == 450
    assert len(posted) == 5
    assert list(killed.glob(".*.part")) == []
    assert contents(killed) == contents(whole)
    untouched = [file.stat().st_mtime_ns for file in complete] == before
    assert untouched == skip


def test_skipping_rolls_over_by_size_as_writing_does(tmp_path: Path) -> None:
    write(tmp_path / "%d.tar", numbers(9), maxsize=25)
    all_of_it = contents(tmp_path)
    (tmp_path / "1.tar").unlink()
    write(tmp_path / "%d.tar", numbers(9), maxsize=25, skip_existing=True)
    assert contents(tmp_path) == all_of_it


@pytest.mark.parametrize("more", [104, 250])
def test_a_shard_of_other_samples_is_not_taken_for_these(tmp_path: Path, more: int) -> None:
    # With 104 samples the second tar has as many bytes as with 103: both are padded to a record.
    write(tmp_path / "%d.tar", numbers(103), maxcount=100)
    old = contents(tmp_path)
    with pytest.raises(WriteError, match=r"delete it to write it again.*1\.tar"):
        write(tmp_path / "%d.tar", numbers(more), maxcount=100, skip_existing=True)
    assert contents(tmp_path) == old
    (tmp_path / "1.tar").unlink()
    write(tmp_path / "%d.tar", numbers(more), maxcount=100, skip_existing=True)
    found = [key for i in range(more // 100 + 1) for key in keys(tmp_path / f"{i}.tar")]
    assert found == [sample["__key__"] for sample in numbers(more)]


def test_a_longer_shard_is_not_taken_for_these_samples(tmp_path: Path) -> None:
    write(tmp_path / "%d.tar", numbers(100))
    with (tmp_path / "0.tar").open("ab") as file:
        file.write(bytes(10240))
    for count in (50, 100):
        with pytest.raises(WriteError, match="does not contain these samples"):
            write(tmp_path / "%d.tar", numbers(count), skip_existing=True)
