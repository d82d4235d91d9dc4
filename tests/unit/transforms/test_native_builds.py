"""The native module gives the same pixels whatever compiled it, with and without FMA."""

from __future__ import annotations

import hashlib
import platform
import random
import shutil

import numpy as np
import pytest
from pictures_made import encoded

import penstock as wds
from penstock.transforms import native

FILES = "0a5e48c5c1bed15a472befc2eb69557610e4ef6b3179ffb2bd7dbb67a5c7a022"
PIXELS = "0c4c98bac829bb2c3d5d0a6053d105b5b6655ddcc2b7bb339d2f1e15d034f66d"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

OPTIONS = ["", "-DONE_PROCESSOR", "-DONE_PROCESSOR -march=native", "-march=native -ffast-math"]
if platform.machine() == "x86_64":
    OPTIONS.append("-DONE_PROCESSOR -march=native -mno-fma")


def drawn_by_integers(height, width, seed):
    """Return waves, edges and noise that no library's sine or random generator can change."""
    y, x, colour = np.ogrid[:height, :width, :3]
    waves = abs((x * (3 + colour) + y * 5 + seed * 77) % 510 - 255)
    edges = ((x // 13 + y // 9 + colour) % 3) * 40
    noise = ((x * 7919 ^ y * 104729 ^ (colour + seed) * 1299709) >> 3) % 24
    return ((waves * 3 + edges * 4 + noise * 4) // 8 % 256).astype(np.uint8)


def make_files():
    return [
        encoded(drawn_by_integers(301, 403, 1), quality=85),
        encoded(drawn_by_integers(403, 509, 2), quality=92, subsampling="4:2:0"),
        encoded(drawn_by_integers(250, 333, 3), quality=75, progressive=True),
        encoded(drawn_by_integers(199, 211, 4)[..., 0], quality=90),
        encoded(drawn_by_integers(640, 700, 5), quality=80, subsampling="4:2:2"),
    ]


def make_transforms():
    for interpolation in ("bilinear", "bicubic"):
        for form in ({}, {"dtype": "float32", "mean": MEAN, "std": STD, "layout": "HWC"}):
            options = {"interpolation": interpolation, **form}
            yield wds.RandomResizedCrop(96, flip=0.5, **options)
            yield wds.RandomResizedCrop((17, 30), flip=0.5, **options)  # reduced by the decoder
            yield wds.ResizeCenterCrop(64, 80, **options)
            yield wds.Resize((450, 500), **options)


def hashed(parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part))
    return digest.hexdigest()


def all_crops(files):
    """Yield what the transforms make of each file alone, and of all of them in batches."""
    for number, transform in enumerate(make_transforms()):
        for data in files:
            yield transform(data, random.Random(number))
        pairs = [(data, index) for index, data in enumerate(files * 4)]
        dataset = wds.DataPipeline(pairs, wds.map_tuple(transform, int), wds.batched(10))
        for images, _ in wds.WebLoader(dataset, batch_size=None, engine="threads", num_workers=2):
            yield images


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_every_build_gives_the_same_pixels(compiler, options, native_file, tmp_path, monkeypatch):
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    files = make_files()
    assert hashed(np.frombuffer(data, np.uint8) for data in files) == FILES, "other pictures"
    monkeypatch.setenv("CC", f"{compiler} {options}")
    monkeypatch.setenv("PENSTOCK_NATIVE", str(native.build(tmp_path / "picture.so")))
    native.forget()
    try:
        assert native.load_many() is not None
        assert hashed(all_crops(files)) == PIXELS
    finally:
        native.forget()
