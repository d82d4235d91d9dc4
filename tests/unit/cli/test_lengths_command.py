"""``penstock lengths``."""

from __future__ import annotations

import csv
import io
import json
import wave
from pathlib import Path
from typing import Any

import pytest

from penstock import ShardWriter, build_index
from penstock.cli import main

DURATIONS = [0.5 + (n * 37 % 100) / 20 for n in range(300)]
ROWS = {f"u{n}": {"duration": length, "wav": "x.wav"} for n, length in enumerate(DURATIONS)}
Captured = pytest.CaptureFixture[str]


def sound(seconds: float) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((1, 2, 800, 0, "NONE", ""))
        file.writeframes(bytes(2 * round(800 * seconds)))
    return stream.getvalue()


@pytest.fixture
def manifest(tmp_path: Path) -> str:
    path = tmp_path / "train.json"
    path.write_text(json.dumps(ROWS))
    return str(path)


@pytest.fixture
def shards(tmp_path: Path) -> str:
    with ShardWriter(f"{tmp_path}/x-%03d.tar", maxcount=20, encoder=False) as sink:
        for number in range(50):
            text = b"x" * (1 + number % 7)
            sink.write({"__key__": f"k{number}", "wav": sound(1 + number / 50), "txt": text})
    return f"{tmp_path}/x-{{000..002}}.tar"


def told(capsys: Captured, *words: str) -> Any:
    assert main(["lengths", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_it_draws_the_lengths_and_compares_schemes(manifest: str, capsys: Captured) -> None:
    assert main(["lengths", manifest, "--budget", "40", "--buckets", "50"]) == 0
    out = capsys.readouterr().out
    assert "300 samples, column 'duration'" in out
    assert "█" in out
    for scheme in ("fixed", "sorted", "50 buckets", "planned"):
        assert f"\n{scheme}" in out
    assert "Every scheme needs at least" in out


def test_its_figures_are_for_scripts(manifest: str, capsys: Captured) -> None:
    figures = told(capsys, manifest, "--budget", "40", "--ranks", "2")
    assert figures["samples"] == 300
    assert figures["total"] == pytest.approx(sum(DURATIONS))
    schemes = {scheme["name"]: scheme for scheme in figures["schemes"]}
    assert list(schemes) == ["fixed", "sorted", "200 buckets", "planned"]
    assert schemes["fixed"]["padding"] > schemes["planned"]["padding"]
    assert schemes["sorted"]["rejoin"] == 1 > schemes["planned"]["rejoin"]
    assert all(scheme["samples"] == 300 for scheme in schemes.values())
    assert all(scheme["over_budget"] == 0 for scheme in schemes.values())
    assert schemes["planned"]["balance"] > 0.5


def test_a_manifest_is_json_lines_a_list_or_csv_or_parquet(
    tmp_path: Path, capsys: Captured
) -> None:
    rows = list(ROWS.values())
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "b.json").write_text(json.dumps(rows))
    with (tmp_path / "c.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["ID", " duration", " wav"])
        writer.writerows([name, f" {row['duration']}", " x"] for name, row in ROWS.items())
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"duration": DURATIONS}), tmp_path / "d.parquet")
    for name in ("a.jsonl", "b.json", "c.csv", "d.parquet"):
        figures = told(capsys, str(tmp_path / name))
        assert figures["total"] == pytest.approx(sum(DURATIONS)), name


def test_lengths_that_are_none_are_left_out_and_counted(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "some.json"
    rows = [{"duration": value} for value in (1, None, 0, -3, float("nan"), float("inf"), 2)]
    path.write_text(json.dumps([*rows, {}]))
    figures = told(capsys, str(path))
    assert (figures["samples"], figures["left_out"], figures["total"]) == (2, 6, 3)
    assert main(["lengths", str(path)]) == 0
    assert "6 without a length above 0 are left out" in capsys.readouterr().out


def test_shards_are_measured_while_they_are_read(shards: str, capsys: Captured) -> None:
    pytest.importorskip("soundfile")
    figures = told(capsys, shards)
    assert figures["source"].startswith("wav, seconds")
    assert figures["longest"] == pytest.approx(1.98)
    assert told(capsys, shards, "--field", "txt")["longest"] == 7
    assert told(capsys, shards, "--field", "wav:samples")["longest"] == round(800 * 1.98)


def test_an_index_saves_the_reading(shards: str, capsys: Captured) -> None:
    pytest.importorskip("pyarrow")
    folder = Path(shards).parent
    build_index(shards, folder / "x.index.parquet", columns={"letters": "txt:bytes"})
    figures = told(capsys, shards, "--column", "letters")
    assert (figures["longest"], figures["samples"]) == (7, 50)
    assert "x.index.parquet" in figures["source"]


def test_a_sample_above_the_budget_is_told(manifest: str, capsys: Captured) -> None:
    assert main(["lengths", manifest, "--budget", "5"]) == 0
    assert "samples are above the budget alone" in capsys.readouterr().out


def test_the_drawing_is_written(manifest: str, tmp_path: Path, capsys: Captured) -> None:
    drawing = tmp_path / "lengths.svg"
    assert told(capsys, manifest, "--svg", str(drawing))["svg"] == str(drawing)
    assert drawing.read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["{manifest}", "--column", "frames"], "no column 'frames' (it has: duration, wav)"),
        (["{manifest}", "--field", "wav"], "--field is for shards"),
        (["{shards}", "--column", "letters"], "penstock index --column letters=FIELD:MEASURE"),
        (["{shards}", "--field", "jpg"], "no samples with a length"),
        (["{folder}/empty.json"], "no samples with a length"),
        (["{folder}/broken.json"], "broken.json"),
        (["{folder}/text.json"], "a manifest is"),
        (["{folder}/list.json"], "row 1 is no object"),
        (["{folder}/half.json"], "no JSON"),
        (["{folder}/bad.jsonl"], "line 2"),
        (["{folder}/words.json"], "not all values are numbers"),
    ],
)
def test_mistakes_of_the_user_are_one_line(
    words: list[str], message: str, manifest: str, shards: str, tmp_path: Path, capsys: Captured
) -> None:
    (tmp_path / "empty.json").write_text("{}")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "text.json").write_text('"text"')
    (tmp_path / "list.json").write_text('[{"duration": 1}, 2]')
    (tmp_path / "half.json").write_text('[{"duration": 1}, ')
    (tmp_path / "bad.jsonl").write_text('{"duration": 1}\n{"dur')
    (tmp_path / "words.json").write_text('[{"duration": "long"}]')
    names = {"{manifest}": manifest, "{shards}": shards}
    words = [names.get(word, word.replace("{folder}", str(tmp_path))) for word in words]
    usage = message.startswith(("no column", "--field", "penstock index"))
    assert main(["lengths", *words]) == (2 if usage else 1)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize("budget", ["0", "-1", "much", "nan", "inf"])
def test_a_budget_is_a_number_above_zero(budget: str, manifest: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["lengths", manifest, f"--budget={budget}"])
    assert stop.value.code == 2
    assert "must be a number above 0" in capsys.readouterr().err


def test_a_placeholder_of_the_manifest_is_given_on_the_command_line(
    tmp_path: Path, capsys: Captured
) -> None:
    rows = {uid: {**row, "wav": "{data_folder}/x.wav"} for uid, row in ROWS.items()}
    (tmp_path / "a.json").write_text(json.dumps(rows))
    assert main(["lengths", str(tmp_path / "a.json")]) != 0
    assert "--replace data_folder=…" in capsys.readouterr().err
    figures = told(capsys, str(tmp_path / "a.json"), "--replace", "data_folder=/data=1")
    assert figures["samples"] == 300
    with pytest.raises(SystemExit):
        main(["lengths", str(tmp_path / "a.json"), "--replace", "data_folder"])
    assert "must be NAME=TEXT" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["9" * 10_000, "9" * 400, "[" * 100_000], ids=len)
@pytest.mark.parametrize("kind", ["json", "jsonl"])
def test_a_manifest_that_python_cannot_parse_is_one_line(
    value: str, kind: str, tmp_path: Path, capsys: Captured
) -> None:
    text = f'{{"length": {value}}}'
    (tmp_path / f"m.{kind}").write_text(f"[{text}]" if kind == "json" else text)
    assert main(["lengths", str(tmp_path / f"m.{kind}"), "--column", "length"]) != 0
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert f"m.{kind}" in lines[0]


def test_large_lengths_are_printed_without_exponents(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "train.json"
    rows = {f"u{n}": {"bytes": 11_590 + 1_234_567 * n} for n in range(200)}
    path.write_text(json.dumps(rows))
    svg = tmp_path / "a.svg"
    assert main(["lengths", str(path), "--column", "bytes", "--svg", str(svg)]) == 0
    out = capsys.readouterr().out
    assert "shortest 11,590," in out
    assert "longest 245,690,423," in out
    assert "e+" not in out
    assert "e+" not in svg.read_text()
