from __future__ import annotations

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from penstock.codecs import Decoder, ImageHandler, imagehandler, images, imagespecs
from penstock.codecs.images import decode_image, imageencoder
from penstock.errors import DecodingError, PipelineError, UnsafeError, WriteError


def picture(mode="RGB", size=(6, 4)):
    width, height = size
    y, x = np.mgrid[0:height, 0:width]
    values = np.stack([x * 40, y * 60, 255 - x * 40, 255 - y * 30], axis=2).astype(np.uint8)
    return Image.fromarray(values, "RGBA").convert(mode)


def file(image, format="PNG", **options):
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def photo(mode="RGB"):
    """Smooth colours and hard edges, larger than one JPEG block."""
    y, x = np.mgrid[0:67, 0:93]
    values = np.stack([x * 2, y * 3, (x * y) % 256, 0 * x], axis=2).astype(np.uint8)
    values[20:40, 30:50, :3] = (255, 0, 128)
    return Image.fromarray(values[:, :, :3], "RGB").convert(mode)


@pytest.mark.parametrize("spec", list(imagespecs))
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "P", "1", "LA"])
def test_every_spec_gives_its_kind_shape_and_numbers(spec, mode):
    kind, numbers, colours = imagespecs[spec]
    image = picture("RGB").quantize(16) if mode == "P" else picture(mode)
    found = decode_image(file(image), spec)
    wanted = np.array(image.convert(colours.upper()))
    if kind == "pil":
        assert found.mode == colours.upper()
        assert np.array_equal(np.array(found), wanted)
        return
    if numbers == "float":
        wanted = wanted.astype(np.float32) / 255
    if kind == "torch":
        assert isinstance(found, torch.Tensor)
        assert found.is_contiguous()
        found = found.numpy()
        wanted = wanted.transpose(2, 0, 1) if wanted.ndim == 3 else wanted
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
    assert np.array_equal(found, wanted)
    assert found.flags.writeable


def test_specs_that_share_a_meaning_agree():
    assert imagespecs["torch"] == imagespecs["torchrgb"]
    assert imagespecs["pil"] == imagespecs["pilrgb"]


@pytest.mark.parametrize("spec", ["l8", "rgb8", "rgba8"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quality": 100},
        {"quality": 30},
        {"progressive": True},
        {"subsampling": 0},
        {"optimize": True},
    ],
)
@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
def test_fast_jpeg_gives_pillows_pixels(spec, options, mode):
    data = file(photo(mode), "JPEG", **options)
    wanted = np.array(Image.open(io.BytesIO(data)).convert(imagespecs[spec][2].upper()))
    found = decode_image(data, spec)
    assert found.shape == wanted.shape
    assert np.abs(found.astype(int) - wanted).max() <= 2


def test_jpegs_are_read_without_the_fast_decoder_too(monkeypatch):
    data = file(photo(), "JPEG")
    fast = decode_image(data, "rgb8")
    monkeypatch.setattr(images, "find_simplejpeg", lambda: None)
    assert np.abs(decode_image(data, "rgb8").astype(int) - fast).max() <= 2


def test_the_fast_decoder_is_used_where_it_is_installed(monkeypatch):
    pytest.importorskip("simplejpeg")
    monkeypatch.setattr(images, "_open", lambda *_: pytest.fail("Pillow was asked"))
    assert decode_image(file(photo(), "JPEG"), "rgb8").shape == (67, 93, 3)
    assert decode_image(file(photo("L"), "JPEG"), "l8").shape == (67, 93)


def test_orientation_tags_are_left_alone():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = file(picture(), "JPEG", exif=exif)
    assert decode_image(data, "rgb8").shape == (*decode_image(data, "l8").shape, 3) == (4, 6, 3)


def test_a_cut_jpeg_is_an_error_with_both_decoders(monkeypatch):
    data = file(photo(), "JPEG")[:-200]
    with pytest.raises(OSError, match="truncated"):
        decode_image(data, "rgb8")
    monkeypatch.setattr(images, "find_simplejpeg", lambda: None)
    with pytest.raises(OSError, match="truncated"):
        decode_image(data, "rgb8")


def test_a_jpeg_that_claims_more_pixels_than_it_can_hold_is_refused():
    data = bytearray(file(picture(), "JPEG"))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", 9000, 9000)
    for spec in ("rgb8", "pil"):
        with pytest.raises(DecodingError, match="claim 9000 x 9000 pixels"):
            decode_image(bytes(data), spec)


def png_header(width, height):
    def chunk(kind, body):
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"0")) + chunk(b"IEND", b"")


def test_images_beyond_any_limit_are_refused():
    with pytest.raises(DecodingError, match="claim 9000 x 9000 pixels"):
        decode_image(png_header(9000, 9000), "rgb8")
    with pytest.raises(Image.DecompressionBombError):
        decode_image(png_header(100000, 100000), "rgb8")


def test_eps_never_reaches_ghostscript():
    data = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    with pytest.raises(UnsafeError, match="Ghostscript"):
        decode_image(data, "rgb8")


def test_an_image_handler_knows_its_extensions():
    handler = imagehandler("rgb8")
    assert handler(".a.PNG", file(picture())).shape == (4, 6, 3)
    assert handler(".json", b"") is None
    assert imagehandler("rgb8", ["foo"])(".foo", file(picture())).shape == (4, 6, 3)
    assert ImageHandler("pil") == imagehandler("pil") != imagehandler("rgb")


@pytest.mark.parametrize("spec", ["la", "RGB", "", "rgb16"])
def test_an_unknown_spec_is_refused_with_the_known_ones(spec):
    with pytest.raises(PipelineError, match="torchrgb8"):
        imagehandler(spec)
    with pytest.raises(ValueError):
        imagehandler(spec)


RGB, GREY, RGBA = (np.array(picture(mode, (12, 9))) for mode in ("RGB", "L", "RGBA"))


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (RGB, RGB),
        (GREY, GREY),
        (GREY[:, :, None], GREY),
        (RGBA, RGBA),
        (RGB.astype(np.float32) / 255, RGB),
        (RGB.astype(np.float64) / 255, RGB),
        (Image.fromarray(RGB), RGB),
        (Image.fromarray(RGBA), RGBA),
        (torch.tensor(RGB), RGB),
        (torch.tensor(RGB).permute(2, 0, 1), RGB),
        (torch.tensor(RGBA).permute(2, 0, 1) / 255, RGBA),
        (torch.tensor(GREY), GREY),
        (torch.tensor(GREY)[None], GREY),
    ],
)
@pytest.mark.parametrize("format", ["png", "tiff", "webp"])
def test_images_of_every_accepted_kind_are_written_without_loss(value, wanted, format):
    found = Image.open(io.BytesIO(imageencoder(value, format)))
    mode = {2: "L", 3: "RGB", 4: "RGBA"}[wanted.ndim if wanted.ndim == 2 else wanted.shape[2]]
    assert np.array_equal(np.array(found.convert(mode)), wanted)


def test_jpegs_are_written_as_pillow_does_with_quality_100():
    assert imageencoder(photo(), "jpg") == file(photo(), "JPEG", quality=100)


def test_netpbm_formats_are_told_apart():
    assert imageencoder(picture(), "ppm")[:2] == b"P6"
    assert imageencoder(picture(), "pgm")[:2] == b"P5"
    assert imageencoder(picture(), "pbm")[:2] == b"P4"


@pytest.mark.parametrize(
    "value",
    [
        np.full((2, 2), 2.0),
        np.full((2, 2), np.nan),
        np.full((2, 2), -0.1),
        np.zeros((2, 2, 5), np.uint8),
        np.zeros(4, np.uint8),
        np.zeros((2, 2, 2, 2), np.uint8),
    ],
)
def test_what_is_no_image_is_not_written(value):
    with pytest.raises(WriteError):
        imageencoder(value)


def plain_webp(width, height):
    """A lossless WebP of one colour, which needs no data for its pixels, of any size."""
    data = bytearray(file(Image.new("RGB", (16, 16), (5, 6, 7)), "WEBP", lossless=True))
    at = data.index(b"VP8L") + 9
    bits = int.from_bytes(data[at : at + 4], "little") >> 28 << 28
    data[at : at + 4] = (bits | height - 1 << 14 | width - 1).to_bytes(4, "little")
    return bytes(data)


def test_a_webp_of_a_few_bytes_cannot_become_gigabytes(decode_apart):
    data = plain_webp(13000, 13000)
    assert len(data) < 50
    outcome = decode_apart("webp", data)
    assert "claim 13000 x 13000 pixels" in outcome.text, outcome
    assert outcome.taken < 50 << 20


def test_a_plain_webp_of_a_usual_size_is_read():
    assert decode_image(plain_webp(3000, 2000), "rgb8").shape == (2000, 3000, 3)


def many_scans(count, at=b"\xff\xd9", **options):
    """A JPEG with so many scans without data after its own, before the mark."""
    data = file(photo(), "JPEG", **options)
    begin = data.rindex(b"\xff\xda")
    head = data[begin : begin + 2 + int.from_bytes(data[begin + 2 : begin + 4], "big")]
    end = data.rindex(at)
    return data[:end] + head * count + data[end:]


@pytest.mark.parametrize("spec", ["rgb8", "l8", "pil"])
def test_a_jpeg_of_many_scans_is_refused(spec):
    assert decode_image(many_scans(50, progressive=True), spec) is not None
    with pytest.raises(DecodingError, match="more than 100 scans"):
        decode_image(many_scans(200, progressive=True), spec)


def test_a_jpeg_of_many_scans_takes_no_time(decode_apart):
    data = many_scans(38_000, progressive=True)
    at = data.index(b"\xff\xc2") + 5
    data = data[:at] + struct.pack(">HH", 8000, 8000) + data[at + 4 :]
    outcome = decode_apart("jpg", data)
    assert "more than 100 scans" in outcome.text, outcome
    assert outcome.seconds < 1


def test_scans_are_counted_as_a_decoder_would_read_them():
    one = file(photo(), "JPEG")
    progressive = file(photo(), "JPEG", progressive=True)
    scan = b"\xff\xda\x00\x08\x01\x01\x00\x00\x3f\x00"
    video = b"\xff\xda" * 500  # as phones append one
    assert not images.has_many_scans(one)
    assert not images.has_many_scans(progressive)
    assert not images.has_many_scans(progressive + video)
    assert not images.has_many_scans(one[:-2] + scan * 500 + one[-2:])  # the first has all colours
    comment = b"\xff\xfe" + struct.pack(">H", 2 + len(video)) + video
    assert not images.has_many_scans(progressive[:2] + comment + progressive[2:])
    # One colour in the first scan. An end mark in a comment and garbage between marks hide nothing.
    at = one.index(b"\xff\xda")
    apart = one[:at] + scan + one[at + 14 : -2]
    hidden = b"\xff\xfe\x00\x04\xff\xd9" + b"garbage" + scan * 500 + b"\xff\xd9"
    assert images.has_many_scans(apart + hidden)
    assert images.has_many_scans(progressive[:-2] + hidden)
    assert images.has_many_scans(progressive[:2] + b"garbage" + progressive[2:-2] + hidden)
    for cut in range(0, len(progressive), 7):
        images.has_many_scans(progressive[:cut])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "it is empty"),
        (b"<!DOCTYPE html><html>Not found", "it begins with '<!DOCTYPE html>'"),
        (b"\n<html>Not found</html>", "it begins with '<html>'"),
        (b"no image at all", "it begins with b'no image'"),
    ],
)
@pytest.mark.parametrize("extension", ["jpg", "png"])
def test_the_error_says_what_is_there_instead_of_an_image(data, words, extension):
    with pytest.raises(DecodingError) as caught:
        Decoder("rgb8")({"__key__": "k", extension: data})
    assert words in str(caught.value)
    assert " at 0x" not in str(caught.value)


def test_the_spec_of_the_old_documents_is_torchrgb():
    data = file(picture())
    decoded = ImageHandler("rgbtorch")("png", data)
    assert torch.equal(decoded, decode_image(data, "torchrgb"))
    sample = Decoder(["rgbtorch"])({"__key__": "a", "png": data})
    assert torch.equal(sample["png"], decoded)
