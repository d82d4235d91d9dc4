"""``penstock bench``: the rate, the table, the sentence; nothing but that in a pipe."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import penstock
from penstock.cli import main


def shards_of_pictures(folder: Path, count: int = 12) -> str:
    rng = np.random.default_rng(0)
    for shard in range(2):
        with penstock.TarWriter(str(folder / f"{shard}.tar")) as writer:
            for number in range(count):
                data = io.BytesIO()
                Image.fromarray(rng.integers(0, 255, (30, 40, 3), np.uint8)).save(data, "JPEG")
                writer.write({"__key__": f"{number:03d}", "jpg": data.getvalue(), "cls": 1})
    return f"{folder}/{{0..1}}.tar"


def shards_of_text(folder: Path) -> str:
    with penstock.TarWriter(str(folder / "text.tar")) as writer:
        for number in range(20):
            writer.write({"__key__": f"{number:03d}", "json": {"n": number}})
    return f"{folder}/text.tar"


def test_pictures_are_cropped_and_the_sentence_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = shards_of_pictures(tmp_path)
    assert main(["bench", urls, "--image-size", "16", "--batch", "4", "--threads", "2"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert "2 shards on 2 threads: RandomResizedCrop(16, flip=0.5) of .jpg" in lines[0]
    assert "20 samples in" in out, "the first batch is told apart"
    assert "map_tuple" in out
    assert lines[-1].startswith("too short to say what holds the loader back: 6 batches")
    assert err == ""


def test_json_is_one_object(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["bench", shards_of_text(tmp_path), "--batch", "4", "--threads", "1", "--json"]) == 0
    )
    figures = json.loads(capsys.readouterr().out)
    assert figures["samples"] == 20
    assert figures["recipe"] == "decoded, in batches of 4"
    assert penstock.Stats.from_json(json.dumps(figures["stats"])).batches == 5


def test_samples_can_be_left_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", shards_of_pictures(tmp_path), "--no-decode", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["samples"] == 24
    assert figures["recipe"].startswith("as they are")


def test_a_trace_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.json"
    words = ["--image-size", "8", "--batch", "4", "--threads", "1", "--trace", str(trace)]
    assert main(["bench", shards_of_pictures(tmp_path), *words]) == 0
    assert json.loads(trace.read_text())["traceEvents"]
    capsys.readouterr()


def test_batches_can_be_brought_to_a_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--image-size", "8", "--batch", "4", "--threads", "1", "--device", "cpu", "--json"]
    assert main(["bench", shards_of_pictures(tmp_path), *words]) == 0
    assert json.loads(capsys.readouterr().out)["stats"]["device_wait_s"] >= 0


def damaged_pictures(folder: Path) -> str:
    """24 pictures, of which two are none, and a shard before them that is none."""
    urls = shards_of_pictures(folder)
    (folder / "cut.tar").write_bytes(b"no tar at all" * 100)
    with penstock.TarWriter(str(folder / "bad.tar")) as writer:
        writer.write({"__key__": "a", "jpg": b"no picture"})
        writer.write({"__key__": "b", "txt": "no picture either"})
    return f"{folder}/cut.tar::{folder}/bad.tar::{urls}"


def test_what_is_damaged_can_be_skipped_and_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", damaged_pictures(tmp_path), "--image-size", "8", "--batch", "4"]
    words += ["--on-error", "skip"]
    assert main([*words, "--threads", "2", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert figures["samples"] == 24
    assert figures["skipped"] == 3
    assert ".tar" in figures["first_skipped"]
    assert len(figures["skipped_messages"]) == 3
    assert sum(figures["stats"]["skipped"].values()) == 3
    assert main([*words, "--threads", "2"]) == 0
    out, err = capsys.readouterr()
    assert "3 skipped:\n" in out
    for shard in ("cut.tar", "bad.tar, sample 'a'", "bad.tar, sample 'b'"):
        assert shard in out
    assert "JPEG decoder: " in out
    assert "map_tuple 1" in out
    assert err == ""


def test_what_is_damaged_ends_it_unless_that_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.TarWriter(str(tmp_path / "bad.tar")) as writer:
        writer.write({"__key__": "a", "jpg": b"no picture"})
    assert main(["bench", str(tmp_path / "bad.tar"), "--threads", "1"]) == 1
    assert "bad.tar" in capsys.readouterr().err


def test_where_all_is_skipped_the_error_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.TarWriter(str(tmp_path / "bad.tar")) as writer:
        writer.write({"__key__": "a", "jpg": b"no picture"})
    assert main(["bench", str(tmp_path / "bad.tar"), "--threads", "1", "--skip"]) == 1
    assert "sample 'a' at byte 0" in capsys.readouterr().err


def test_skip_is_another_word_for_on_error_skip(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", shards_of_text(tmp_path), "--threads", "1", "--skip", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["skipped"], figures["first_skipped"]) == (0, None)


def test_shards_without_samples_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with penstock.TarWriter(str(tmp_path / "empty.tar")):
        pass
    assert main(["bench", str(tmp_path / "empty.tar"), "--threads", "1"]) == 1
    assert "no samples" in capsys.readouterr().err


def test_no_time_at_all_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", shards_of_text(tmp_path), "--seconds", "0"]) == 2
    assert "--seconds" in capsys.readouterr().err
