from __future__ import annotations

import io

import av
import numpy as np
import pytest
import torch

from penstock import limits
from penstock.codecs import Decoder
from penstock.codecs.video import torch_video
from penstock.errors import DecodingError


def clip(format="mp4", codec="mpeg4", sound="aac", frames=5):
    stream = io.BytesIO()
    with av.open(stream, "w", format=format) as container:
        track = container.add_stream(codec, rate=10)
        track.width, track.height, track.pix_fmt = 48, 32, "yuv420p"
        voice = container.add_stream(sound, rate=16000) if sound else None
        for number in range(frames):
            picture = np.full((32, 48, 3), number * 40, np.uint8)
            container.mux(track.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(track.encode())
        if voice is not None:
            tone = (np.sin(np.arange(8000) / 9) * 9000).astype(np.int16)
            frame = av.AudioFrame.from_ndarray(tone[None], format="s16", layout="mono")
            frame.sample_rate, frame.pts = 16000, 0
            container.mux([*voice.encode(frame), *voice.encode()])
    return stream.getvalue()


def test_a_video_becomes_frames_sound_and_rates():
    frames, sound, info = Decoder(torch_video)({"mp4": clip()})["mp4"]
    assert (frames.shape, frames.dtype) == ((5, 32, 48, 3), torch.uint8)
    assert np.allclose(frames.float().mean((1, 2, 3)), [0, 40, 80, 120, 160], atol=5)
    assert sound.dtype == torch.float32
    assert sound.shape[1] >= 8000
    assert info == {"video_fps": 10.0, "audio_fps": 16000}


def test_a_silent_video_has_empty_sound():
    _, sound, info = Decoder(torch_video)({"mov": clip("mov", sound=None)})["mov"]
    assert sound.shape == (1, 0)
    assert info == {"video_fps": 10.0}


def test_sound_without_pictures_is_no_video():
    stream = io.BytesIO()
    with av.open(stream, "w", format="mp4") as container:
        voice = container.add_stream("aac", rate=16000)
        frame = av.AudioFrame.from_ndarray(
            np.zeros((1, 4000), np.int16), format="s16", layout="mono"
        )
        frame.sample_rate, frame.pts = 16000, 0
        container.mux([*voice.encode(frame), *voice.encode()])
    with pytest.raises(DecodingError, match="no pictures"):
        Decoder(torch_video)({"mp4": stream.getvalue()})


@pytest.mark.parametrize(
    "play_list",
    [b"ffconcat version 1.0\nfile secret.mp4\n", b"#EXTM3U\n#EXTINF:10,\nsecret.mp4\n"],
)
def test_a_play_list_cannot_open_other_files(play_list, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "secret.mp4").write_bytes(clip())
    with pytest.raises(DecodingError):
        Decoder(torch_video)({"mp4": play_list})


def test_a_video_beyond_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(limits, "MAX_DECODED_BYTES", 500)
    with pytest.raises(DecodingError, match="more than 8,000 bytes"):
        Decoder(torch_video)({"mp4": clip()})
