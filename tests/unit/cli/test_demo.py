"""The demo on little data: what it makes, tells and leaves behind."""

from __future__ import annotations

import importlib.util
import json
import sys

import numpy as np
import pytest
from PIL import Image

import penstock as wds
from penstock.cli import main
from penstock.cli.demo import picture, shards
from penstock.transforms import native

SMALL = ["--samples", "40", "--epochs", "1"]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A folder in which the demo has run once, and what find_or_make said of it."""
    folder = tmp_path_factory.mktemp("demo") / "data"
    assert main(["demo", "--out", str(folder), *SMALL]) == 0
    return folder


def figures(capsys, *arguments: object) -> dict:
    assert main(["demo", "--json", *map(str, arguments)]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_is_one_object_with_all_figures_and_nothing_else(first, capsys) -> None:
    pytest.importorskip("torch")
    told = figures(capsys, "--out", first, *SMALL)
    assert told.pop("schema") == "penstock.demo/1"
    assert set(told) == {"data", "stream", "training", "jpeg_decoder", "lengths_s", "picture"}
    assert told["data"]["images"] == 40
    assert told["data"]["sounds"] == 10
    assert 0 <= told["training"]["accuracy"] <= 1


def test_a_second_run_finds_the_data_of_the_first(first, capsys) -> None:
    before = {path: path.stat().st_mtime_ns for path in first.glob("*.tar")}
    assert not figures(capsys, "--out", first, "--samples", 40, "--epochs", 0)["data"]["made"]
    assert before == {path: path.stat().st_mtime_ns for path in first.glob("*.tar")}


def test_the_shards_can_be_read_by_anyone(first) -> None:
    images = list(wds.WebDataset(str(first / "train-000000.tar")).decode("pil"))
    assert len(images) == 32
    assert images[0]["jpg"].mode == "RGB"
    sounds = list(wds.WebDataset(str(first / "speech-000000.tar")).decode())
    assert len(sounds) == 10


def test_the_same_seed_gives_the_same_shards(tmp_path) -> None:
    made = [shards.find_or_make(tmp_path / name, 20, seed=1)[0] for name in "ab"]
    for one, other in zip(made[0]["train"], made[1]["train"]):
        assert open(one, "rb").read() == open(other, "rb").read()  # noqa: SIM115


def test_other_figures_make_the_data_anew_and_remove_what_is_left_over(tmp_path) -> None:
    shards.find_or_make(tmp_path, 600, seed=0)
    (tmp_path / "mine.txt").write_text("not the demo's")
    parts, made = shards.find_or_make(tmp_path, 20, seed=0)
    assert made
    kept = {path.name for path in tmp_path.iterdir()}
    assert kept == {
        "mine.txt", "made.json", "train-000000.tar", "val-000000.tar", "speech-000000.tar",
    }  # fmt: skip
    assert set(parts) == {"train", "val", "speech"}


def test_a_shard_that_is_gone_is_made_again(tmp_path) -> None:
    parts, _ = shards.find_or_make(tmp_path, 20, seed=0)
    (tmp_path / "val-000000.tar").unlink()
    assert shards.find_or_make(tmp_path, 20, seed=0) == (parts, True)


def test_a_note_that_is_damaged_is_ignored(tmp_path) -> None:
    (tmp_path / "made.json").write_text("[")
    assert shards.find_or_make(tmp_path, 20, seed=0)[1]


def test_the_picture_shows_the_batch(first) -> None:
    image = Image.open(first / "batch.png")
    assert image.width > 8 * 128
    assert len(np.unique(np.asarray(image).reshape(-1, 3), axis=0)) > 1000


def test_without_torch_the_demo_trains_a_model_with_numpy(tmp_path, capsys, monkeypatch) -> None:
    find = importlib.util.find_spec
    without = lambda name: None if name == "torch" else find(name)  # noqa: E731
    monkeypatch.setattr("importlib.util.find_spec", without)
    training = figures(capsys, "--out", tmp_path, "--samples", 500, "--epochs", 4)["training"]
    assert training["package"] == "numpy"
    assert training["accuracy"] > 0.6  # chance is 0.1


def test_the_demo_says_how_to_get_the_native_decoder(first, capsys, monkeypatch) -> None:
    monkeypatch.setenv("PENSTOCK_NATIVE", "0")
    native.forget()
    assert "penstock native build" in figures(capsys, "--out", first, *SMALL)["jpeg_decoder"]
    monkeypatch.undo()
    native.forget()


def test_without_pillow_the_message_names_the_extra(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "PIL" else True)
    assert main(["demo", "--out", str(tmp_path)]) == 3
    assert "[image,audio]'" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", [["--samples", "3"], ["--samples", "x"], ["--epochs", "-1"]])
def test_a_number_too_low_is_wrong_usage(wrong, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["demo", *wrong])
    assert "must be a number of at least" in capsys.readouterr().err


def test_a_folder_that_is_a_file_is_one_line(tmp_path, capsys) -> None:
    file = tmp_path / "file"
    file.write_text("")
    assert main(["demo", "--out", str(file), *SMALL]) == 3
    assert capsys.readouterr().err.count("\n") == 1


def test_in_the_terminal_an_image_is_half_as_many_lines_as_pixels() -> None:
    red = np.zeros((64, 64, 3), np.uint8)
    red[..., 0] = 255
    text = picture.in_terminal([red, red, red], ["a", "b", "c"], columns=40)
    lines = text.plain.splitlines()
    assert lines[0].count("▀") == 32
    assert sum("▀" in line for line in lines) == 16
    assert lines[8].split() == ["a", "b"]
    assert "#ff0000 on #ff0000" in {str(span.style) for span in text.spans}


def test_the_demo_takes_a_terminal_too(first, capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert main(["demo", "--out", str(first), "--samples", "40", "--epochs", "0"]) == 0
    assert "▀" in capsys.readouterr().out
