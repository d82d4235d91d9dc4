"""``penstock index``."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

from penstock import ShardWriter, TarWriter
from penstock.cli import main
from penstock.shards.index import Index, SampleReader, open_index


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with ShardWriter(f"{tmp_path}/x-%03d.tar", maxcount=4) as sink:
        for number in range(10):
            sink.write({"__key__": f"k{number}", "cls": number})
    return tmp_path


def test_it_makes_an_index_beside_the_shards(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", f"{folder}/", "--workers", "0"]) == 0
    assert "10 samples in 3 shards" in capsys.readouterr().out
    assert len(Index.load(folder / "x.index.parquet")) == 10


def test_columns_and_figures(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(folder / "mine.parquet")
    shards = f"{folder}/x-{{000..002}}.tar"
    assert main(["index", shards, "-o", out, "--column", "label=cls:value", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["samples"], figures["columns"], figures["index"]) == (10, ["label"], out)
    assert Index.load(out).column("label").tolist() == list(range(10))


def test_checking_tells_every_shard_that_does_not_fit(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", f"{folder}/", "--workers", "0"]) == 0
    assert main(["index", f"{folder}/", "--check"]) == 0
    assert "3 of 3 shards are as indexed" in capsys.readouterr().out
    for number in (0, 2):
        with (folder / f"x-00{number}.tar").open("ab") as file:
            file.write(bytes(512))
    assert main(["index", f"{folder}/", "--check", "--json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [Path(problem.rsplit("(", 1)[1]).name for problem in problems] == [
        "x-000.tar)",
        "x-002.tar)",
    ]


def test_mistakes_are_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["index", f"{folder}/", "--column", "label"]) == 2
    assert "--column takes NAME=FIELD:MEASURE" in capsys.readouterr().err
    assert main(["index", f"{folder}/", "--check"]) == 1
    assert "there is no such index" in capsys.readouterr().err


@pytest.mark.parametrize("workers", ["0", "2"])
def test_bad_shards_are_left_out_and_listed_when_asked(
    folder: Path, capsys: pytest.CaptureFixture[str], workers: str
) -> None:
    for number, size in ((0, 700), (2, 100)):
        with (folder / f"x-00{number}.tar").open("r+b") as file:
            file.truncate(size)
    assert main(["index", f"{folder}/", "--workers", workers]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (folder / "x.index.parquet").exists()
    words = ["index", f"{folder}/", "--workers", workers, "--on-error", "skip"]
    assert main(words) == 1
    lines = capsys.readouterr().out.splitlines()
    assert sorted(Path(line.rpartition("(")[2]).name.partition(".")[0] for line in lines[:2]) == [
        "x-000",
        "x-002",
    ]
    assert "4 samples in 1 shards" in lines[2]
    assert lines[3] == "2 of 3 shards are bad"
    assert list(Index.load(folder / "x.index.parquet").keys) == ["k4", "k5", "k6", "k7"]
    assert main([*words, "--json"]) == 1
    figures = json.loads(capsys.readouterr().out)
    assert (len(figures["problems"]), figures["shards"]) == (2, 1)


def test_shards_that_are_all_bad_are_listed_and_make_no_index(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in folder.glob("*.tar"):
        path.write_bytes(b"")
    assert main(["index", f"{folder}/", "--workers", "0", "--on-error", "skip"]) == 1
    output = capsys.readouterr()
    assert output.out.count("the shard is empty") == 3
    assert "not one shard can be read" in output.err
    assert not (folder / "x.index.parquet").exists()


def test_dalis_indexes_are_written_beside_the_shards_and_read_back(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["index", f"{folder}/", "--workers", "0", "--also", "dali"]) == 0
    assert "indexes for DALI: 3" in capsys.readouterr().out
    files = sorted(folder.glob("*.idx"))
    assert [file.name for file in files] == ["x-000.idx", "x-001.idx", "x-002.idx"]
    assert files[2].read_text() == "v1.2 2\ncls 512 1 k8.cls\ncls 1536 1 k9.cls\n"
    urls = f"{folder}/x-{{000..002}}.tar"
    ours, dalis = open_index(urls, True), open_index(urls, [str(file) for file in files])
    assert [SampleReader(dalis).read(n) for n in range(10)] == [
        SampleReader(ours).read(n) for n in range(10)
    ]


def test_dalis_index_has_names_as_they_are_in_the_shard(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        for name in ("__meta__/info.json", "a/b.JPG", "a/b.seg.png", "nodot", "a/c.jpg", "ö.cls"):
            tar.addfile(tarfile.TarInfo(name))
        tar.addfile(tarfile.TarInfo("d" * 120 + ".cls"))
    assert main(["index", f"{tmp_path}/x.tar", "--also", "dali"]) == 0
    lines = (tmp_path / "x.idx").read_text().splitlines()
    with tarfile.open(tmp_path / "x.tar") as tar:
        place = {member.name: member.offset_data for member in tar}
    assert lines[:4] == [
        "v1.2 4",
        f"JPG {place['a/b.JPG']} 0 a/b.JPG seg.png {place['a/b.seg.png']} 0 a/b.seg.png",
        f"jpg {place['a/c.jpg']} 0 a/c.jpg",
        f"cls {place['ö.cls']} 0 ö.cls",
    ]
    assert lines[4].split()[1:3] == [str(place["d" * 120 + ".cls"]), "0"]


def test_a_shard_that_dali_cannot_read_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("x-0.tar", "x-1.tar.gz"):
        with TarWriter(str(tmp_path / name)) as sink:
            sink.write({"__key__": "a", "cls": 1})
    with tarfile.open(tmp_path / "x-2.tar", "w") as tar:
        tar.addfile(tarfile.TarInfo("b.my field"))
    words = ["index", f"{tmp_path}/", "--workers", "0", "--also", "dali"]
    assert main(words) == 1
    assert "compressed" in capsys.readouterr().err
    assert main([*words, "--on-error", "skip"]) == 1
    output = capsys.readouterr().out
    assert "compressed" in output
    assert "b.my field" in output
    assert "indexes for DALI: 1" in output


def test_ctrl_c_says_how_much_is_kept_and_the_next_run_continues(folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # a shard that never arrives
        silent.settimeout(60)
        shards = [f"{folder}/", f"http://127.0.0.1:{silent.getsockname()[1]}/y.tar"]
        command = [sys.executable, "-m", "penstock", "index", *shards, "--workers", "2"]
        running = subprocess.Popen(
            [*command, "-o", str(folder / "i.parquet")],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        parts, deadline = folder / "i.parquet.parts", time.monotonic() + 60
        while len(list(parts.glob("[!.]*"))) < 3 and time.monotonic() < deadline:
            time.sleep(0.05)
        silent.accept()[0].close()  # it is being asked for by now, and all else is done
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: to all processes
        _, said = running.communicate(timeout=60)
    assert running.returncode == 130
    assert said.count("\n") == 1
    assert said.startswith("penstock: interrupted; ")
    assert f"of 4 shards are done and kept in {parts}" in said
    assert main(["index", f"{folder}/", "-o", str(folder / "i.parquet"), "--workers", "0"]) == 0
