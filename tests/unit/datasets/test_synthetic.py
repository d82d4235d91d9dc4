"""Made data: the same for the same seed, and what its fields say."""

from __future__ import annotations

import io
import json
import wave

import numpy as np
import pytest
from PIL import Image

from penstock.datasets import SHAPES, WORDS, drawn_images, spoken_tones


@pytest.mark.parametrize("make", [drawn_images, spoken_tones])
def test_a_sample_depends_on_seed_and_number_alone(make) -> None:
    assert list(make(6, seed=3))[:3] == list(make(3, seed=3))
    assert list(make(3, seed=3)) != list(make(3, seed=4))


@pytest.mark.parametrize("make", [drawn_images, spoken_tones])
def test_keys_are_unique_and_have_no_dot(make) -> None:
    keys = [sample["__key__"] for sample in make(20)]
    assert len(set(keys)) == 20
    assert not any("." in key for key in keys)


def test_images_are_of_the_size_and_class_they_say() -> None:
    for sample in drawn_images(20):
        image = Image.open(io.BytesIO(sample["jpg"]))
        assert image.mode == "RGB"
        assert image.size == (sample["json"]["size"],) * 2
        assert 64 <= image.width <= 96
        assert list(SHAPES)[sample["cls"]] == sample["json"]["shape"]
        json.dumps(sample["json"])


def test_all_shapes_and_words_occur() -> None:
    assert {sample["cls"] for sample in drawn_images(100)} == set(range(len(SHAPES)))
    assert {sample["txt"] for sample in spoken_tones(100)} == set(WORDS)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_covers_some_of_its_square_and_not_all(name: str) -> None:
    u, v = np.meshgrid(np.linspace(-1.3, 1.3, 100), np.linspace(-1.3, 1.3, 100))
    assert 0.08 < SHAPES[name](u, v).mean() < 0.5


def test_sounds_are_as_long_as_they_say_and_not_silent() -> None:
    for sample in spoken_tones(20):
        with wave.open(io.BytesIO(sample["wav"])) as file:
            assert (file.getnchannels(), file.getframerate()) == (1, 8000)
            assert file.getnframes() == sample["json"]["frames"]
            sound = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        assert 0.29 <= len(sound) / 8000 <= 3.01
        assert np.abs(sound).max() > 5000
