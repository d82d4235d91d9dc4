"""The native module: built when asked, found again, and safe with any bytes."""

from __future__ import annotations

import contextlib
import ctypes
import io
import random
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures_made import damaged, differences, encoded, is_pillows, many_scans, pixels
from PIL import Image

import penstock as wds
from penstock import cli
from penstock.errors import DecodingError, PipelineError
from penstock.rng import CounterRng
from penstock.transforms import any_image as pictures
from penstock.transforms import native as module
from penstock.transforms.jpeg_fallback import choose_reduction, read_frame
from penstock.transforms.jpeg_native import Jobs


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    """A cache folder of one's own, nothing built in it."""
    monkeypatch.delenv("PENSTOCK_NATIVE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(module, "BUNDLED", tmp_path / "not-installed.so")
    module.load.cache_clear()
    yield tmp_path
    module.load.cache_clear()


@pytest.fixture
def built_many(native_file):
    return module._open(native_file)[1]


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


def test_scans_of_a_jpeg_are_bounded(native):
    assert call(native, many_scans(50), order(), 1200)[0] == 0
    result, message = call(native, many_scans(30_000), order(), 1200)
    assert (result, message) == (1, "more than 100 scans")


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
        data = damaged(rng.choice(files), rng)
        if number % 3 == 0:
            del data[rng.randrange(len(data)) :]
            data += b"\xff\xd9" * (number % 2)
        crop = rng.choice(crops)
        try:
            result = crop(bytes(data), CounterRng(number))
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
        fused = crop(data, CounterRng(seed))
        monkeypatch.setattr(pictures, "load", lambda: None)
        assert is_pillows(fused, crop(data, CounterRng(seed)))


@pytest.mark.parametrize("options", [{"subsampling": "4:2:0"}, {"progressive": True}])
def test_native_and_wheels_agree_on_reduced_parts(native, monkeypatch, options):
    pytest.importorskip("simplejpeg")
    data = encoded(pixels(403, 509), quality=90, **options)
    reductions = set()
    for seed in range(60):
        crop = wds.RandomResizedCrop(11 if seed % 2 else 31)
        reductions.add(choose_reduction(crop.plan(403, 509, CounterRng(seed))))
        monkeypatch.setattr(pictures, "load", lambda: native)
        fused = crop(data, CounterRng(seed))
        monkeypatch.setattr(pictures, "load", lambda: None)
        assert differences(fused, crop(data, CounterRng(seed))).max() <= 2
    assert reductions == {2, 4, 8}


# ── the codes of a JPEG are read by the module itself ───────────────────────────────────────────


def begun_again(native_file):
    count = ctypes.CDLL(str(native_file)).penstock_begun_again
    count.restype = ctypes.c_int64
    return count()


def part(native, data, box):
    """A part of a picture as it is, by the module; None where it refuses."""
    height, width = Image.open(io.BytesIO(data)).size[::-1]
    size = box[2:]
    given = order((height, width), box, size, (0, 0, *size), planes=0)
    out = np.empty((*size, 3), np.uint8)
    message = ctypes.create_string_buffer(200)
    if native(data, len(data), given, out.ctypes.data, message, 200) != 0:
        return None
    return out


def by_pillow(data, box):
    top, left, height, width = box
    whole = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    return whole[top : top + height, left : left + width]


@st.composite
def jpegs(draw):
    """A JPEG of any size, smooth or noisy, with any tables, restarts and colours; and a part."""
    height, width = draw(st.integers(1, 90)), draw(st.integers(1, 90))
    noise = np.random.default_rng(draw(st.integers(0, 99))).integers(0, 256, (height, width, 3))
    mixed = draw(st.sampled_from([0.0, 0.1, 1.0]))
    levels = (pixels(height, width) * (1 - mixed) + noise * mixed).astype(np.uint8)
    options = {
        "quality": draw(st.sampled_from([1, 30, 75, 95, 100])),
        "optimize": draw(st.booleans()),
    }
    options |= draw(st.sampled_from([{}, {"restart_marker_blocks": 1}, {"restart_marker_rows": 2}]))
    if draw(st.booleans()):
        options["subsampling"] = draw(st.sampled_from(["4:4:4", "4:2:2", "4:2:0"]))
    else:
        levels = levels[..., 0]
    top, left = draw(st.integers(0, height - 1)), draw(st.integers(0, width - 1))
    box = top, left, draw(st.integers(1, height - top)), draw(st.integers(1, width - left))
    return encoded(levels, **options), box


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=jpegs())
def test_the_codes_of_a_sound_jpeg_give_libjpegs_pixels(native, native_file, made):
    before = begun_again(native_file)
    assert np.array_equal(part(native, *made), by_pillow(*made))
    assert begun_again(native_file) == before


@pytest.mark.parametrize("options", [{}, {"restart_marker_rows": 9}], ids=["whole", "restarts"])
def test_a_file_larger_than_what_is_made_plain_at_a_time(native, native_file, options):
    noise = np.random.default_rng(3).integers(0, 256, (260, 300, 3)).astype(np.uint8)
    data, before = (
        encoded(noise, quality=97, subsampling="4:4:4", **options),
        begun_again(native_file),
    )
    assert len(data) > 100_000
    assert data.count(b"\xff\x00") > 300
    for box in ((0, 0, 260, 300), (131, 77, 9, 40), (250, 290, 10, 10)):
        assert np.array_equal(part(native, data, box), by_pillow(data, box))
    assert begun_again(native_file) == before


def test_long_runs_of_zeros_with_short_codes_end_where_their_block_ends(native, native_file):
    """Blocks whose only value is the last, or one of the last: a few bits go far beyond a block."""
    rng, wave = np.random.default_rng(4), np.cos((2 * np.arange(8) + 1) * np.pi / 16)
    waves = [np.cos(k * np.arccos(wave)) for k in range(8)]
    levels = np.full((160, 160), 128.0)
    for y, x in np.ndindex(20, 20):
        across, down = rng.choice([7, 7, 7, 6], 2)
        block = np.outer(waves[down], waves[across]) * rng.choice([-90, -40, 0, 40, 90])
        levels[8 * y : 8 * y + 8, 8 * x : 8 * x + 8] += block + rng.integers(-30, 30)
    data = encoded(levels.astype(np.uint8), quality=40, optimize=True)
    before = begun_again(native_file)
    for box in ((0, 0, 160, 160), (90, 90, 30, 30), (152, 152, 8, 8)):
        assert np.array_equal(part(native, data, box), by_pillow(data, box))
    assert begun_again(native_file) == before


def test_codes_that_are_not_sound_are_left_to_libjpeg(native, native_file):
    """Flipped bits and lost bytes: the module's picture is Pillow's, which passes them over."""
    rng, before, same = random.Random(6), begun_again(native_file), 0
    files = [
        encoded(pixels(61, 83), quality=quality, subsampling=subsampling, **options)
        for quality in (70, 98)
        for subsampling in ("4:4:4", "4:2:0")
        for options in ({}, {"restart_marker_blocks": 2})
    ]
    for number in range(300):
        data = bytearray(rng.choice(files))
        begin = data.index(b"\xff\xda") + 14  # behind the headers
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(begin, len(data) - 2)] ^= 1 << rng.randrange(8)
        if number % 3 == 0:
            del data[rng.randrange(begin, len(data) - 2)]
        box = (rng.randrange(30), rng.randrange(30), 31, 40)
        made = part(native, bytes(data), box)
        with contextlib.suppress(OSError):  # what Pillow refuses says nothing
            theirs = by_pillow(bytes(data), box)
            if made is not None:
                assert np.array_equal(made, theirs)
                same += 1
    assert same > 200
    assert begun_again(native_file) > before


@pytest.mark.parametrize("sampling", [0x22, 0x21, 0x41, 0x12])
@pytest.mark.parametrize("box", [(0, 0, 61, 83), (5, 40, 50, 43), (0, 0, 8, 9)])
def test_a_grey_jpeg_may_have_any_sampling(native, sampling, box):
    """Alone in its scan, a colour comes block by block, whatever its sampling says."""
    data = bytearray(encoded(pixels(61, 83)[..., 0], quality=80))
    data[data.index(b"\xff\xc0") + 11] = sampling
    assert np.array_equal(part(native, bytes(data), box), by_pillow(bytes(data), box))


def reduced(native, data, picture, box, by):
    size = box[2] // by, box[3] // by
    given = order(picture, box, size, (0, 0, *size), planes=0, reduction=by)
    out = np.empty((*size, 3), np.uint8)
    message = ctypes.create_string_buffer(200)
    assert native(data, len(data), given, out.ctypes.data, message, 200) == 0, message.value
    return out


@pytest.mark.parametrize("by", [1, 2, 4, 8])
@pytest.mark.parametrize("sampling", [0x11, 0x21, 0x22, 0x41, 0x42, 0x14, 0x24])
def test_a_reduced_part_is_that_of_the_whole_at_any_sampling(native, sampling, by):
    # All colours of an RGB JPEG have the same codes: its blocks may as well be those of a smaller
    # picture that has more of the first colour.
    data = bytearray(encoded(pixels(320, 320), quality=80, keep_rgb=True))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = bytes([0, 160, 0, 128])
    data[at + 11] = sampling
    whole = reduced(native, bytes(data), (160, 128), (0, 0, 160, 128), by)
    for top, left, height, width in [(0, 0, 64, 32), (48, 64, 64, 32), (96, 32, 64, 96)]:
        made = reduced(native, bytes(data), (160, 128), (top, left, height, width), by)
        rows, columns = slice(top // by, (top + height) // by), left // by
        assert np.array_equal(made, whole[rows, columns : columns + width // by])


def segment(mark, body):
    return bytes([0xFF, mark]) + (len(body) + 2).to_bytes(2, "big") + body


def test_a_frame_behind_a_mark_without_length_is_for_pillow(native, built_many, monkeypatch):
    """To a reader that skips by lengths this is 16x16, to libjpeg it is what it was."""
    data = encoded(pixels(61, 83), quality=80)
    at = data.index(b"\xff\xc0")
    frame, rest = data[at : at + 19], data[at + 19 :]
    shown = frame[:5] + bytes([0, 16, 0, 16]) + frame[9:]
    for mark in (0x01, 0xD0, 0xD7):
        odd = data[:at] + segment(mark, frame + segment(0xE5, shown)[:4]) + shown + rest
        assert read_frame(odd) is None
        jobs = Jobs(built_many, [odd], keep=False)
        jobs.look()
        assert jobs.read_result(0)[0] == 0
        monkeypatch.setattr(pictures, "load", lambda: native)
        with contextlib.suppress(DecodingError):  # Pillow knows only some of these marks
            assert np.array_equal(wds.Resize((61, 83))(odd), wds.Resize((61, 83))(data))


def test_a_lossless_jpeg_that_looks_like_another_is_safe(native):
    """libjpeg-turbo 3 decodes it; its scan names a table of AC codes that is not there."""
    frame = bytes([8, 0, 16, 0, 16, 3]) + b"".join(bytes([id, 0x11, 0]) for id in b"RGB")
    lengths = bytes([0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0])
    shown = segment(0xC0, frame)
    hidden = segment(0xC3, frame) + segment(0xC4, bytes([0]) + lengths + bytes(range(12)))
    hidden += segment(0xE5, shown)[:4]
    scan = bytes([3]) + b"".join(bytes([id, 0x0F]) for id in b"RGB") + bytes([1, 0, 0])
    data = b"\xff\xd8" + segment(0xD0, hidden) + shown + segment(0xDA, scan) + bytes(600)
    data += b"\xff\xd9"
    result, _ = call(native, data, order((16, 16), (0, 0, 16, 16)), 1200)
    assert result in (0, 1)


def test_a_file_without_its_end_is_told_as_libjpeg_tells_it(native):
    data = encoded(pixels(61, 83), quality=80)
    result, message = call(native, data[:-2], order((61, 83), (0, 0, 61, 83)), 1200)
    assert result == 1
    assert "Premature end" in message
