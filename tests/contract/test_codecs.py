"""Every codec of the library keeps the contract."""

from __future__ import annotations

import collections
import datetime
import io
import pickle

import av
import numpy as np
import pytest
import torch
from PIL import Image

import penstock.testing.codecs
from penstock.codecs import DECODERS, ENCODERS, handle_extension, imagespecs
from penstock.codecs.audio import AUDIO_EXTENSIONS, audiohandler, torch_audio
from penstock.codecs.images import decode_image
from penstock.codecs.video import VIDEO_EXTENSIONS, torch_video
from penstock.testing.codecs import CodecContract

# The libraries that read images and tensors warn about damage before they give up.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def same_arrays(found, value):
    if isinstance(value, dict):
        return found.keys() == value.keys() and all(same_arrays(found[k], value[k]) for k in value)
    if isinstance(value, (list, tuple)):
        return len(found) == len(value) and all(map(same_arrays, found, value))
    if isinstance(value, (np.ndarray, torch.Tensor)):
        same = type(found) is type(value) and found.dtype == value.dtype
        return same and found.shape == value.shape and bool((found == value).all())
    return type(found) is type(value) and found == value


class TestText(CodecContract):
    extensions = ("txt", "text", "transcript")
    encode_only = ("html", "htm")
    values = ("", "hello", "größer 漢字\n")


class TestWholeNumbers(CodecContract):
    extensions = ("cls", "cls2", "index", "inx", "id")
    encode_only = ("class", "count")
    values = (0, 7, -12, 10**30)


RECORDS = (None, 3, [1, 2.5, {"a": [True, None, "x" * 50]}], {"box": [1, 2, 3, 4]})


class TestJson(CodecContract):
    extensions = ("json", "jsn")
    values = RECORDS


class TestPackedJson(CodecContract):
    extensions = ("json.gz", "meta.json.gz")
    values = RECORDS


class TestMsgpack(CodecContract):
    extensions = ("mp", "msg")
    encode_only = ("msgpack",)
    values = (*RECORDS, [b"bytes"], list(range(3000)), [[]] * 5000)
    packages = ("msgpack",)


class TestCbor(CodecContract):
    extensions = ("cbor",)
    values = (
        *RECORDS,
        [b"bytes"],
        list(range(3000)),
        datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC),
    )
    packages = ("cbor2",)


ARRAYS = (
    np.arange(12, dtype=np.float32).reshape(3, 4),
    np.zeros((0, 3), np.int64),
    np.array(2.5),
    np.arange(7, dtype=np.uint32),
)


class TestNpy(CodecContract):
    extensions = ("npy",)
    values = (
        *ARRAYS,
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.array(["a", "bc"]),
        np.zeros(2, [("a", "i4"), ("ü", ">f8", (2,))]),
    )
    same = staticmethod(same_arrays)


class TestNpz(CodecContract):
    extensions = ("npz",)
    values = ({}, {"a": ARRAYS[0], "b/c": ARRAYS[2]}, {"zeros": np.zeros(5000)})
    same = staticmethod(same_arrays)


class TestTenbin(CodecContract):
    extensions = ("ten", "tb")
    encode_only = ("tenbin",)
    values = ([], list(ARRAYS))
    same = staticmethod(same_arrays)


PICKLED = (
    {"a": [1, 2.5, None, "x", b"y", (True,)], 3: {4, 5}},
    [np.arange(3.0), np.float32(1.5), np.array(["a"]), np.zeros(2, [("a", "i4"), ("b", "f8")])],
    [torch.arange(6).reshape(2, 3), torch.ones(2, dtype=torch.bfloat16)],
    [collections.OrderedDict(a=1), collections.deque([1, 2], 5), datetime.date(2020, 2, 3), 1j],
)


class TestPickles(CodecContract):
    extensions = ("pyd", "pickle", "pkl")
    values = PICKLED
    encoded = tuple(pickle.dumps(value, n) for value in PICKLED for n in (0, 2, 5))
    same = staticmethod(same_arrays)


class TestTorchFiles(CodecContract):
    extensions = ("pth",)
    values = ({"weight": torch.arange(6.0).reshape(2, 3), "step": 3}, [1, "a"])
    packages = ("torch",)
    same = staticmethod(same_arrays)


def drawing(channels=3, size=24):
    y, x = np.mgrid[0:size, 0:size] * 255 // size
    picture = np.stack([x, y, 255 - x, (x + y) // 2], axis=2).astype(np.uint8)
    return picture[:, :, 0] if channels == 1 else np.ascontiguousarray(picture[:, :, :channels])


def image_file(format, picture=None, **options):
    stream = io.BytesIO()
    Image.fromarray(drawing() if picture is None else picture).save(stream, format, **options)
    return stream.getvalue()


class ImageContract(CodecContract):
    handlers = ("rgb8",)
    values = (drawing(),)
    tolerance = 0

    def same(self, found, value):
        distance = np.abs(found.astype(int) - value).max()
        return found.dtype == value.dtype and distance <= self.tolerance


class TestPng(ImageContract):
    extensions = ("png",)
    packages = ("PIL",)


class TestLosslessImages(ImageContract):
    extensions = ("webp", "ppm", "tiff", "tif")


class TestJpeg(ImageContract):
    extensions = ("jpg", "jpeg")
    encoded = (
        image_file("JPEG", quality=80),
        image_file("JPEG", drawing(1)),
        image_file("JPEG", progressive=True),
    )
    tolerance = 24  # half of the colours' resolution is lost also at quality 100


class TestImagesUnderOtherNames(ImageContract):
    extensions = ("img", "image")
    handlers = (handle_extension("img image", lambda data: decode_image(data, "rgb8")),)
    tolerance = 24
    trials = 5


class TestGreyImages(ImageContract):
    extensions = ("pgm",)
    handlers = ("l8",)
    values = (drawing(1),)


class TestBlackAndWhiteImages(ImageContract):
    extensions = ("pbm",)
    handlers = ("l8",)
    values = ((drawing(1) > 100).astype(np.uint8) * 255,)


class TestTiff(ImageContract):
    extensions = ("tiff",)


class TestWebp(ImageContract):
    extensions = ("webp",)


class TestOtherImageFormats(ImageContract):
    extensions = ("gif",)
    values = ()
    encoded = (image_file("GIF"), image_file("BMP"), image_file("TGA"), image_file("ICO"))
    trials = 40


TONE = (np.sin(np.arange(800) / 9) * 0.5).astype(np.float32)


class TestWav(CodecContract):
    extensions = ("wav",)
    handlers = (audiohandler,)
    values = ((TONE, 16000), (np.stack([TONE, -TONE], axis=1), 8000))
    packages = ("soundfile", "av")
    same = staticmethod(same_arrays)


class TestFlac(CodecContract):
    extensions = ("flac",)
    handlers = (torch_audio,)
    values = ((torch.tensor(np.stack([TONE, -TONE])), 16000),)
    packages = ("soundfile", "av")

    def same(self, found, value):
        return found[1] == value[1] and torch.allclose(found[0], value[0], atol=1e-6)


def sound_file(format, codec, rate=48000):
    stream = io.BytesIO()
    with av.open(stream, "w", format=format) as container:
        track = container.add_stream(codec, rate=rate)
        frame = av.AudioFrame.from_ndarray(
            (np.tile(TONE, 8) * 20000).astype(np.int16)[None], "s16", "mono"
        )
        frame.sample_rate, frame.pts = rate, 0
        for packet in [*track.encode(frame), *track.encode()]:
            container.mux(packet)
    return stream.getvalue()


class TestOtherAudio(CodecContract):
    extensions = tuple(AUDIO_EXTENSIONS.split())
    handlers = (audiohandler,)
    encoded = (sound_file("ogg", "libopus"), sound_file("mp4", "aac"))
    trials = 40


def video_file(format, codec):
    stream = io.BytesIO()
    with av.open(stream, "w", format=format) as container:
        track = container.add_stream(codec, rate=10)
        track.width = track.height = 32
        track.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for level in range(0, 250, 80):
            picture = np.full((32, 32, 3), level, np.uint8)
            container.mux(track.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(track.encode())
    return stream.getvalue()


class TestVideo(CodecContract):
    extensions = tuple(VIDEO_EXTENSIONS.split())
    handlers = (torch_video,)
    encoded = (video_file("mp4", "mpeg4"), video_file("avi", "mjpeg"), video_file("webm", "libvpx"))
    packages = ("av",)
    trials = 40


def cases():
    return [
        case
        for case in globals().values()
        if isinstance(case, type)
        and issubclass(case, CodecContract)
        and case.__name__[:4] == "Test"
    ]


def test_every_decoder_and_encoder_has_a_case():
    read = {extension for case in cases() for extension in case.extensions}
    written = read | {extension for case in cases() for extension in case.encode_only}
    assert set(DECODERS) - read == set()
    assert set(ENCODERS) - written == set()


def test_every_image_spec_reads_or_refuses_damaged_images():
    for spec in imagespecs:
        case = TestPng()
        case.handlers = (spec,)
        for data in penstock.testing.codecs.damage(image_file("PNG", drawing(4)), 20):
            case.check(data)
