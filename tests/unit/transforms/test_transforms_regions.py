"""The region of a JPEG by itself: the pixels of the whole picture, and safe with any bytes."""

from __future__ import annotations

import random

import numpy as np
import pytest
from pictures_made import damaged, encoded, pixels

import penstock as wds
from penstock.errors import DecodingError
from penstock.memory import scratch as rooms
from penstock.rng import CounterRng
from penstock.transforms import any_image as pictures
from penstock.transforms import regions
from penstock.transforms.jpeg_fallback import choose_reduction, decode_part, read_frame
from penstock.transforms.regions import decode_region

FILES = {
    "4:2:0": {"subsampling": "4:2:0"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:4:4": {"subsampling": "4:4:4"},
    "4:1:1": {"subsampling": "4:1:1"},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_blocks": 5},
}


@pytest.fixture
def turbojpeg():
    found = regions.load_library()
    if found is None:
        pytest.skip("no TurboJPEG library of version 3")
    return found


@pytest.fixture
def by_regions(turbojpeg, monkeypatch):
    """Recipes without the native module."""
    monkeypatch.setattr(pictures, "load", lambda: None)


def box_of(part, plan):
    top, left = plan.top // part.factor - part.top, plan.left // part.factor - part.left
    height, width = plan.height // part.factor, plan.width // part.factor
    return part.pixels[top : top + height, left : left + width].copy()


@pytest.mark.parametrize("kind", [*FILES, "grey"])
def test_a_region_has_the_pixels_of_the_whole(turbojpeg, kind):
    simplejpeg = pytest.importorskip("simplejpeg")
    picture = pixels(403, 517)
    picture = picture[..., 0] if kind == "grey" else picture
    data = encoded(picture, quality=90, **FILES.get(kind, {}))
    frame = read_frame(data)
    seen = set()
    for seed in range(60):
        crop = wds.RandomResizedCrop((224, 60, 23)[seed % 3])
        plan = crop.plan(403, 517, CounterRng(seed))
        if choose_reduction(plan) > 4:
            continue
        seen.add(choose_reduction(plan))
        part = decode_region(turbojpeg, data, frame, plan)
        found = box_of(part, plan)[..., :3]
        whole = decode_part(simplejpeg, data, frame, plan)
        assert (found == box_of(whole, plan)[..., :3]).all(), plan
    assert seen == {1, 2, 4}


def test_only_the_region_is_decoded(turbojpeg):
    data = encoded(pixels(400, 600), quality=90, subsampling="4:2:0")
    plan = wds.CenterCrop(64).plan(400, 600, CounterRng(0))
    part = decode_region(turbojpeg, data, read_frame(data), plan)
    assert part.pixels.shape[0] == 64 + 2 * 2
    assert part.pixels.shape[1] <= 64 + 2 * 2 + 15


def test_an_eighth_and_files_without_an_end_are_left_to_others(turbojpeg):
    data = encoded(pixels(400, 600), quality=90)
    eighth = wds.Resize(20).plan(400, 600, CounterRng(0))
    assert decode_region(turbojpeg, data, read_frame(data), eighth) is None
    short = data[:-2000]
    plan = wds.CenterCrop(64).plan(400, 600, CounterRng(0))
    assert decode_region(turbojpeg, short, read_frame(short), plan) is None


def test_a_header_that_is_read_otherwise_is_left_to_others(turbojpeg):
    data = encoded(pixels(64, 64))
    plan = wds.CenterCrop(64).plan(64, 64, CounterRng(0))
    taller = read_frame(data)._replace(height=128)
    assert decode_region(turbojpeg, data, taller, plan) is None


def test_a_damaged_jpeg_gives_a_picture_or_a_decoding_error(by_regions):
    rng = random.Random(4)
    files = [encoded(pixels(61, 83), quality=80, **options) for options in FILES.values()]
    crops = [wds.RandomResizedCrop(16, flip=0.5), wds.ResizeCenterCrop(9, 12), wds.CenterCrop(40)]
    for number in range(400):
        data = damaged(rng.choice(files), rng)
        try:
            result = rng.choice(crops)(bytes(data), CounterRng(number))
        except DecodingError:
            continue
        assert result.dtype == np.uint8


def test_damaged_bytes_never_reach_beyond_the_region(turbojpeg, monkeypatch):
    rng = random.Random(5)
    made = list[tuple[np.ndarray, int]]()

    def watched(name, size_bytes):
        memory = np.full(size_bytes + 4096, 77, np.uint8)
        made.append((memory, size_bytes))
        return memory

    monkeypatch.setattr(regions, "scratch_memory", watched)
    file = encoded(pixels(120, 160), quality=80)
    for number in range(300):
        data = bytearray(file)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if (frame := read_frame(bytes(data))) is not None:
            plan = wds.RandomResizedCrop(30).plan(frame.height, frame.width, CounterRng(number))
            if plan.height * plan.width < 1 << 20:
                decode_region(turbojpeg, bytes(data), frame, plan)
    assert made
    assert all((memory[size:] == 77).all() for memory, size in made)


def test_a_picture_has_nothing_of_the_one_before(turbojpeg):
    file = encoded(pixels(64, 64), quality=80)
    plan = wds.CenterCrop(32).plan(64, 64, CounterRng(0))
    at = file.index(b"\xff\xdb")  # its tables of numbers to multiply by: cut out
    without = file[:at] + file[at + 2 + int.from_bytes(file[at + 2 : at + 4], "big") :]
    for data in (file, without, file):
        found = decode_region(turbojpeg, data, read_frame(data), plan)
        assert (found is None) == (data is without)


def test_a_library_without_regions_is_none(monkeypatch):
    monkeypatch.setattr(
        regions, "_list_candidates", lambda: iter(["no-such-library.so", "libc.so.6"])
    )
    regions.load_library.cache_clear()
    try:
        assert regions.load_library() is None
    finally:
        regions.load_library.cache_clear()


def test_memory_is_kept_from_picture_to_picture_but_not_when_large():
    assert rooms.scratch_memory("test", 1000) is rooms.scratch_memory("test", 900)
    large = rooms.KEPT_BYTES + 1
    assert rooms.scratch_memory("test", large) is not rooms.scratch_memory("test", large)
