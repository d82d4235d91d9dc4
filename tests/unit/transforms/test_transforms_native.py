"""The native module: built when asked, found again, and safe with any bytes."""

from __future__ import annotations

import ctypes
import random
import struct

import numpy as np
import pytest
from pictures_made import differences, encoded, is_pillows, pixels

import penstock as wds
from penstock import cli
from penstock import native as module
from penstock.context import Draws
from penstock.errors import DecodingError, PipelineError
from penstock.transforms import pictures
from penstock.transforms.jpegs import reduction


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    """A cache folder of one's own, nothing built in it."""
    monkeypatch.delenv("PENSTOCK_NATIVE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module.load.cache_clear()
    yield tmp_path
    module.load.cache_clear()


def test_nothing_is_there_until_it_is_built(own_cache, native_file):
    assert module.load() is None
    file = module.build()
    assert file == module.path()
    assert own_cache in file.parents
    assert module.load() is not None
    assert [found.name for found in file.parent.iterdir()] == [file.name]


def test_the_variable_switches_it_off_or_names_a_file(own_cache, native_file, monkeypatch):
    monkeypatch.setenv("PENSTOCK_NATIVE", str(native_file))
    assert module.path() == native_file
    assert module.load() is not None
    module.load.cache_clear()
    monkeypatch.setenv("PENSTOCK_NATIVE", "0")
    assert module.load() is None


def test_a_file_that_is_no_module_is_told(own_cache, monkeypatch):
    file = own_cache / "wrong.so"
    file.write_bytes(b"not a library")
    monkeypatch.setenv("PENSTOCK_NATIVE", str(file))
    with pytest.raises(PipelineError, match="build it again"):
        module.load()


@pytest.mark.parametrize("compiler", ["no-such-compiler", "false"])
def test_without_a_compiler_the_error_names_what_is_needed(own_cache, monkeypatch, compiler):
    monkeypatch.setenv("CC", compiler)
    with pytest.raises(PipelineError, match="libjpeg"):
        module.build()
    assert not module.path().exists()


def test_the_command_builds_and_says_what_is_there(own_cache, native_file, capsys):
    assert cli.main(["native"]) == 0
    assert "not built" in capsys.readouterr().out
    assert cli.main(["native", "build"]) == 0
    assert cli.main(["native", "status"]) == 0
    assert f"in use: {module.path()}" in capsys.readouterr().out


def call(native, data, order, size):
    out = np.full(size + 64, 77, np.uint8)
    message = ctypes.create_string_buffer(200)
    result = native(data, len(data), order, out.ctypes.data, message, 200)
    assert (out[size:] == 77).all()
    return result, message.value.decode()


def order(picture=(60, 80), box=(0, 0, 60, 80), to=(20, 20), window=(0, 0, 20, 20), **more):
    options = {"flip": 0, "reduction": 1, "bicubic": 0, "planes": 1, "floats": 0, **more}
    numbers = [*picture, *box, *to, *window, *options.values()]
    return struct.pack("17i6f", *numbers, *[1 / 255] * 3, *[0.0] * 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"box": (-1, 0, 60, 80)},
        {"box": (0, 0, 61, 80)},
        {"box": (0, 2**31 - 1, 60, 2**31 - 1)},
        {"box": (0, 0, 0, 80)},
        {"to": (0, 20)},
        {"to": (20, 2**31 - 1)},
        {"window": (0, 0, 0, 20)},
        {"window": (100, 0, 20, 20)},
        {"window": (0, -50, 20, 20)},
        {"picture": (61, 80)},
        {"reduction": 3},
        {"reduction": 0},
    ],
)
def test_a_plan_that_does_not_fit_is_refused(native, wrong):
    result, message = call(native, encoded(pixels(60, 80)), order(**wrong), 1200)
    assert result == 1
    assert message


def test_damaged_jpegs_give_a_picture_or_a_decoding_error(native, monkeypatch):
    monkeypatch.setattr(pictures, "load", lambda: native)
    rng = random.Random(4)
    files = [
        encoded(pixels(61, 83), quality=80, subsampling="4:2:0"),
        encoded(pixels(61, 83), quality=80, progressive=True),
        encoded(pixels(61, 83)[..., 0], quality=80),
        encoded(pixels(61, 83), quality=80, restart_marker_blocks=3),
    ]
    crops = [wds.RandomResizedCrop(16, flip=0.5), wds.ResizeCenterCrop(9, 12), wds.Resize(3)]
    for number in range(400):
        data = bytearray(rng.choice(files))
        for _ in range(rng.randint(1, 6)):
            data[rng.randrange(2, len(data))] = rng.randrange(256)
        if number % 3 == 0:
            del data[rng.randrange(len(data)) :]
            data += b"\xff\xd9" * (number % 2)
        crop = rng.choice(crops)
        try:
            result = crop(bytes(data), Draws(number))
        except DecodingError:
            continue
        assert result.dtype == np.uint8


def test_damaged_bytes_never_reach_beyond_the_row(native):
    rng = random.Random(5)
    file = encoded(pixels(60, 80), quality=80)
    results = set()
    for _ in range(300):
        data = bytearray(file)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        results.add(call(native, bytes(data), order(reduction=rng.choice([1, 2, 4, 8])), 1200)[0])
    assert results == {0, 1}


def test_native_and_wheels_agree(native, monkeypatch):
    pytest.importorskip("simplejpeg")
    data = encoded(pixels(300, 400), quality=90)
    crop = wds.RandomResizedCrop(100, flip=0.5)
    for seed in range(20):
        monkeypatch.setattr(pictures, "load", lambda: native)
        fused = crop(data, Draws(seed))
        monkeypatch.setattr(pictures, "load", lambda: None)
        assert is_pillows(fused, crop(data, Draws(seed)))


@pytest.mark.parametrize("options", [{"subsampling": "4:2:0"}, {"progressive": True}])
def test_native_and_wheels_agree_on_reduced_parts(native, monkeypatch, options):
    pytest.importorskip("simplejpeg")
    data = encoded(pixels(403, 509), quality=90, **options)
    reductions = set()
    for seed in range(60):
        crop = wds.RandomResizedCrop(11 if seed % 2 else 31)
        reductions.add(reduction(crop.plan(403, 509, Draws(seed))))
        monkeypatch.setattr(pictures, "load", lambda: native)
        fused = crop(data, Draws(seed))
        monkeypatch.setattr(pictures, "load", lambda: None)
        assert differences(fused, crop(data, Draws(seed))).max() <= 2
    assert reductions == {2, 4, 8}
