"""The recipes: what comes out is what Pillow makes of the whole picture."""

from __future__ import annotations

import io
import pickle
import random

import numpy as np
import pytest
from pictures_made import differences, encoded, is_pillows, many_scans, pillow_result, pixels
from PIL import Image

import penstock as wds
from penstock.errors import DecodingError, PipelineError, SampleError
from penstock.memory import output as rows
from penstock.rng import CounterRng
from penstock.transforms import any_image as pictures
from penstock.transforms import pixel_format as writing
from penstock.transforms import resize as resample
from penstock.transforms.regions import load_library

CHAINS = ["native", "turbojpeg and torch", "simplejpeg and torch", "simplejpeg", "Pillow alone"]


@pytest.fixture(params=CHAINS)
def chain(request, monkeypatch):
    """The same recipes with the native module, and with some wheels missing."""
    if request.param == "native":
        function = request.getfixturevalue("native")
        monkeypatch.setattr(pictures, "load", lambda: function)
        return request.param
    monkeypatch.setattr(pictures, "load", lambda: None)
    if request.param == "turbojpeg and torch":
        pytest.importorskip("torch")
        if load_library() is None:
            pytest.skip("no TurboJPEG library of version 3")
        return request.param
    monkeypatch.setattr(pictures, "load_library", lambda: None)
    if request.param == "simplejpeg and torch":
        pytest.importorskip("torch")
        pytest.importorskip("simplejpeg")
    else:
        monkeypatch.setattr(resample, "_torch", lambda: None)
    if request.param == "Pillow alone":
        monkeypatch.setattr(pictures, "find_simplejpeg", lambda: None)
    return request.param


def planned(transform, data, seed):
    """The plan that a transform follows with a seed, the flip in it."""
    width, height = Image.open(io.BytesIO(data)).size
    draws = CounterRng(seed)
    plan = transform.plan(height, width, draws)
    return plan._replace(flip=bool(transform.flip) and draws.random() < transform.flip)


FILES = {
    "4:2:0": {"subsampling": "4:2:0"},
    "4:2:2": {"subsampling": "4:2:2"},
    "4:4:4": {"subsampling": "4:4:4"},
    "progressive": {"progressive": True},
    "restarts": {"restart_marker_rows": 1},
    "exif": {"exif": b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"},
}


@pytest.mark.parametrize("kind", FILES)
def test_a_crop_is_pillows(kind, chain):
    data = encoded(pixels(217, 301), quality=92, **FILES[kind])
    crop = wds.RandomResizedCrop(96, flip=0.5, layout="HWC")
    for seed in range(12):
        expected = pillow_result(data, planned(crop, data, seed))
        assert is_pillows(crop(data, CounterRng(seed)), expected)


@pytest.mark.parametrize("scale", [4, 7, 8.5, 17])
def test_what_is_reduced_by_the_decoder_stays_near_to_pillows_result(scale, chain):
    data = encoded(pixels(int(64 * scale), int(80 * scale)), quality=92, subsampling="4:2:0")
    transform = wds.Resize((63, 79), layout="HWC")
    found = differences(transform(data), pillow_result(data, planned(transform, data, 0)))
    assert found.mean() < 1
    assert np.percentile(found, 99) <= 6


def hard_pixels(kind):
    y, x = np.mgrid[:640, :800]
    if kind == "noise":
        return np.random.default_rng(0).integers(0, 256, (640, 800, 3), np.uint8)
    bright = x // 7 % 2 if kind == "stripes" else (x // 5 + y // 5) % 2
    return np.repeat(bright[..., None] * 255, 3, axis=2).astype(np.uint8)


@pytest.mark.parametrize("shrinks", [4, 5.5, 8, 16])
@pytest.mark.parametrize(
    ("kind", "most", "mean"), [("noise", 17, 3), ("stripes", 16, 10), ("checkerboard", 16, 10)]
)
def test_hard_pictures_reduced_by_the_decoder_stay_within_the_stated_bounds(
    kind, most, mean, shrinks, chain
):
    picture = hard_pixels(kind)
    data = encoded(picture, quality=92, subsampling="4:4:4")
    transform = wds.Resize((int(640 / shrinks), int(800 / shrinks)), layout="HWC")
    expected = pillow_result(data, planned(transform, data, 0))
    found = differences(transform(data), expected)
    assert found.max() <= most
    assert found.mean() < mean
    # Decoded first, nothing is reduced: the result is Pillow's at any scale.
    pixels_first = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert is_pillows(transform(pixels_first), expected)


@pytest.mark.parametrize("kind", FILES)
def test_the_validation_recipe_on_jpegs_is_pillows(kind, chain):
    for size in ((301, 217), (120, 500), (40, 50)):
        data = encoded(pixels(*size), quality=92, **FILES[kind])
        for transform in (
            wds.ResizeCenterCrop(96, 80, layout="HWC"),
            wds.ResizeCenterCrop(80, 96, layout="HWC", flip=1.0),
            wds.CenterCrop(64, layout="HWC"),
            wds.Resize((99, 33), interpolation="bicubic", layout="HWC"),
        ):
            kind_of_filter = Image.Resampling[transform.interpolation.upper()]
            expected = pillow_result(data, planned(transform, data, 0), kind_of_filter)
            assert is_pillows(transform(data), expected), (size, transform)


@pytest.mark.parametrize("size", [(300, 200), (61, 500), (64, 64), (40, 90), (513, 770)])
def test_every_recipe_is_pillows(size, chain):
    data = encoded(pixels(*size), "PNG")
    for transform in (
        wds.Resize(64, layout="HWC"),
        wds.Resize((50, 70), layout="HWC"),
        wds.CenterCrop((64, 100), layout="HWC"),
        wds.ResizeCenterCrop(72, 64, layout="HWC"),
        wds.ResizeCenterCrop(48, 64, layout="HWC"),
        wds.RandomHorizontalFlip(flip=1.0, layout="HWC"),
        wds.Resize(64, interpolation="bicubic", layout="HWC"),
    ):
        plan = planned(transform, data, 0)
        kind = Image.Resampling[transform.interpolation.upper()]
        assert is_pillows(transform(data), pillow_result(data, plan, kind)), transform


def test_the_validation_recipe_keeps_the_middle():
    picture = np.zeros((256, 512, 3), np.uint8)
    picture[16:240, 144:368] = 200
    assert (wds.ResizeCenterCrop(256, 224)(picture) == 200).all()


def test_layout_numbers_and_normalisation(chain):
    data = encoded(pixels(50, 60))
    plain = wds.Resize((40, 30), layout="HWC")(data)
    assert np.array_equal(wds.Resize((40, 30))(data), plain.transpose(2, 0, 1))
    floats = wds.Resize((40, 30), dtype="float32")(data)
    assert floats.dtype == np.float32
    np.testing.assert_allclose(floats, plain.transpose(2, 0, 1) / 255, atol=1e-6)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    for layout in ("HWC", "CHW"):
        made = wds.Resize((40, 30), dtype="float32", mean=mean, std=std, layout=layout)(data)
        expected = (plain / 255 - mean) / std
        expected = expected if layout == "HWC" else expected.transpose(2, 0, 1)
        np.testing.assert_allclose(made, expected, atol=1e-5)
        assert made.flags.c_contiguous


def test_the_result_is_written_into_the_row_that_a_loader_gives(chain):
    block = np.zeros((3, 3, 20, 20), np.uint8)
    data = encoded(pixels(50, 60))
    with rows.rows_from(lambda shape, dtype: block[1]):
        result = wds.Resize((20, 20))(data)
    assert np.shares_memory(result, block)
    assert np.array_equal(block[1], wds.Resize((20, 20))(data))
    assert not block[0].any()
    assert not block[2].any()


def frozen(array):
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("layout", ["CHW", "HWC"])
@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize(
    "picture",
    [
        pixels(9, 14),
        pixels(9, 14)[::-1, ::-1],
        pixels(14, 9).transpose(1, 0, 2),
        pixels(20, 30)[::2, 3:17],
        frozen(pixels(9, 14)),
        np.dstack([pixels(9, 14), pixels(9, 14)[..., 0]]),
        np.dstack([pixels(9, 14), pixels(9, 14)[..., 0]])[..., :3],
        pixels(1, 1),
        pixels(1, 5)[:, ::-1],
    ],
)
def test_pixels_in_any_order_are_written_alike(picture, flip, layout):
    form = writing.PixelFormat.of(layout, "uint8", None, None)
    expected = (picture[:, ::-1] if flip else picture)[..., :3]
    expected = expected if layout == "HWC" else expected.transpose(2, 0, 1)
    row = np.zeros(expected.shape, np.uint8)
    writing.write(picture, flip, form, row)
    assert np.array_equal(row, expected)


def test_arrays_tensors_and_pillow_images_give_what_their_bytes_give():
    torch = pytest.importorskip("torch")
    array = pixels(70, 90)
    data = encoded(array, "PNG")
    crop = wds.RandomResizedCrop(32)
    expected = crop(data, CounterRng(3))
    tensor = torch.from_numpy(array.transpose(2, 0, 1).copy())
    forms = [array, tensor, Image.fromarray(array), bytearray(data), memoryview(data)]
    forms += [tensor.float() / 255, np.dstack([array, array[..., :1]])]
    for form in forms:
        assert np.array_equal(crop(form, CounterRng(3)), expected)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64"])
def test_floats_that_go_far_beyond_one_are_refused_with_the_remedy(kind):
    levels = pixels(20, 30).astype(kind)
    for wrong in (levels, -levels, levels / 255 - 1.1, levels * np.nan):
        with pytest.raises(SampleError, match="divide levels by 255"):
            wds.Resize(10)(wrong)


def test_floats_a_little_beyond_black_and_white_are_cut_there():
    array = pixels(20, 30) / 255
    whole = wds.RandomHorizontalFlip(flip=0, layout="HWC")
    assert np.array_equal(whole(array * 2.9 - 0.95), whole(np.clip(array * 2.9 - 0.95, 0, 1)))


def test_grey_sixteen_bit_palette_and_print_colours_become_rgb(chain):
    grey = pixels(40, 50)[..., 0]
    whole = wds.RandomHorizontalFlip(flip=0, layout="HWC")
    repeated = np.repeat(grey[..., None], 3, axis=2)
    assert np.array_equal(whole(encoded(grey, "PNG")), repeated)
    deep = grey.astype(np.uint16) * 256 + 77
    assert np.array_equal(whole(encoded(deep, "PNG")), repeated)
    assert np.array_equal(whole(deep), repeated)
    assert np.array_equal(whole(grey), repeated)
    grey_jpeg = encoded(grey, quality=95)
    assert differences(whole(grey_jpeg), repeated).mean() < 3
    stream = io.BytesIO()
    Image.fromarray(pixels(40, 50)).convert("CMYK").save(stream, "JPEG", quality=95)
    expected = np.asarray(Image.open(stream).convert("RGB"))
    assert np.array_equal(whole(stream.getvalue()), expected)
    webp = encoded(pixels(40, 50), "WEBP", lossless=True)
    assert np.array_equal(whole(webp), pixels(40, 50))


def test_orientation_tags_are_left_alone():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encoded(pixels(40, 60), exif=exif.tobytes())
    assert wds.RandomHorizontalFlip(flip=0)(data).shape == (3, 40, 60)


@pytest.mark.parametrize("part", [0, 1, 2, 30, 200, 0.4, 0.9])
def test_a_cut_jpeg_is_a_decoding_error(part, chain):
    data = encoded(pixels(200, 200), quality=90)
    cut = data[: int(len(data) * part) if isinstance(part, float) else part]
    with pytest.raises(DecodingError):
        wds.Resize(64)(cut)


@pytest.mark.parametrize("value", [b"", b"no picture at all", b"\xff\xd8\xff\xd9"])
def test_bytes_that_are_no_picture_are_a_decoding_error(value, chain):
    with pytest.raises(DecodingError):
        wds.RandomResizedCrop(64)(value)


def test_a_jpeg_of_many_scans_is_a_decoding_error(chain):
    wds.Resize(64)(many_scans(50))
    with pytest.raises(DecodingError, match="more than 100 scans"):
        wds.Resize(64)(many_scans(30_000))


def test_a_header_that_claims_more_than_its_data_can_hold_is_refused():
    data = bytearray(encoded(pixels(40, 40)))
    place = data.index(b"\xff\xc0") + 5
    data[place : place + 4] = b"\xff\xff\xff\xff"
    with pytest.raises(DecodingError):
        wds.Resize(8)(bytes(data))


@pytest.mark.parametrize(
    "value", [3, "text", None, np.zeros(5, np.uint8), np.zeros((4, 4, 2), np.uint8),
              np.zeros((4, 4), np.int64), np.zeros((0, 4, 3), np.uint8)]
)  # fmt: skip
def test_a_value_of_another_kind_is_a_sample_error(value):
    with pytest.raises(SampleError):
        wds.Resize(8)(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: wds.RandomResizedCrop(0),
        lambda: wds.RandomResizedCrop((3, 4, 5)),
        lambda: wds.RandomResizedCrop(8, scale=(1, 0.5)),
        lambda: wds.RandomResizedCrop(8, ratio=(0, 1)),
        lambda: wds.Resize(8, interpolation="lanczos"),
        lambda: wds.Resize(8, layout="CWH"),
        lambda: wds.Resize(8, dtype="int8"),
        lambda: wds.Resize(8, mean=0.5),
        lambda: wds.Resize(8, dtype="float32", std=(1, 0, 1)),
        lambda: wds.Resize(8, dtype="float32", mean=(1, 2)),
        lambda: wds.RandomHorizontalFlip(flip=2),
    ],
)
def test_arguments_that_cannot_work_are_told_at_once(make):
    with pytest.raises(PipelineError):
        make()


def test_transforms_are_values():
    crop = wds.RandomResizedCrop(224, flip=0.5, dtype="float32", mean=0.5)
    assert repr(crop) == "RandomResizedCrop(224, flip=0.5, dtype='float32', mean=0.5)"
    assert crop == pickle.loads(pickle.dumps(crop))
    assert crop != wds.RandomResizedCrop(224)


def test_without_a_generator_pythons_own_decides():
    data, crop = encoded(pixels(60, 60)), wds.RandomResizedCrop(16)
    random.seed(5)
    first = crop(data)
    random.seed(5)
    assert np.array_equal(first, crop(data))
    assert not np.array_equal(first, crop(data))


def test_numpys_generators_will_do():
    data = encoded(pixels(60, 60))
    assert wds.RandomResizedCrop(16)(data, np.random.default_rng(1)).shape == (3, 16, 16)
