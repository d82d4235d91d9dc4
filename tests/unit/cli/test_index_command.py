"""``penstock index``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from penstock import ShardWriter
from penstock.cli import main
from penstock.shards.index import Index


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
    assert main(["index", f"{folder}/", "--column", "label"]) == 1
    assert "--column takes NAME=FIELD:MEASURE" in capsys.readouterr().err
    assert main(["index", f"{folder}/", "--check"]) == 1
    assert "there is no such index" in capsys.readouterr().err
