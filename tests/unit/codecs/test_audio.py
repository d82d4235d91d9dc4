from __future__ import annotations

import io
import sys
import types

import numpy as np
import pytest
import soundfile
import torch

from penstock import limits
from penstock.codecs import Decoder, audio
from penstock.codecs.audio import audiohandler, decode_audio, flac_dumps, torch_audio, wav_dumps
from penstock.errors import DecodingError, MissingPackage, WriteError

TONE = (np.sin(np.arange(1000) / 9) * 0.5).astype(np.float32)


def test_audio_becomes_a_tensor_with_a_row_per_channel():
    data = wav_dumps((np.stack([TONE, -TONE], axis=1), 8000))
    sound, rate = Decoder(torch_audio)({"wav": data})["wav"]
    assert (sound.shape, sound.dtype, rate) == ((2, 1000), torch.float32, 8000)
    assert torch.equal(sound[1], -sound[0])


def test_audio_becomes_an_array_as_soundfile_has_it():
    sound, rate = Decoder(audiohandler)({"flac": flac_dumps((TONE, 16000))})["flac"]
    assert (sound.shape, rate) == ((1000,), 16000)
    assert np.allclose(sound, TONE, atol=1e-6)


def test_whole_numbers_stay_whole(tmp_path):
    values = (TONE * 32767).astype(np.int16)
    for write in (wav_dumps, flac_dumps):
        path = tmp_path / "a"
        path.write_bytes(write((values, 16000)))
        found, rate = soundfile.read(path, dtype="int16")
        assert rate == 16000
        assert np.array_equal(found, values)


def test_other_extensions_are_not_its_business():
    assert torch_audio(".txt", b"x") is None


@pytest.mark.parametrize(
    "value",
    [
        TONE,
        (TONE.astype(np.int64), 8000),
        (np.zeros((2, 2, 2)), 8000),
        (TONE, 0),
        (np.array(["a"]), 1),
    ],
)
def test_what_is_no_sound_is_not_written(value):
    with pytest.raises(WriteError):
        wav_dumps(value)


def test_noise_is_a_decoding_error_with_every_cause():
    with pytest.raises(DecodingError, match=r"Format not recognised.*Invalid data"):
        decode_audio(b"noise" * 100)


def test_sound_beyond_the_limit_is_refused(monkeypatch):
    monkeypatch.setattr(limits, "MAX_DECODED_BYTES", 1000)
    with pytest.raises(DecodingError, match="more than 1,000 bytes"):
        decode_audio(wav_dumps((TONE, 8000)))


def test_torchcodec_and_torchaudio_are_asked_where_soundfile_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    fake = types.ModuleType("torchaudio")
    fake.load = lambda stream, num_frames: (torch.zeros(1, len(stream.read())), 8000)
    monkeypatch.setitem(sys.modules, "torchaudio", fake)
    sound = wav_dumps((TONE, 8000))
    assert decode_audio(sound)[0].shape == (1, len(sound))

    decoders = types.ModuleType("torchcodec.decoders")
    samples = types.SimpleNamespace(data=torch.zeros(2, 7), sample_rate=16000)
    decoders.AudioDecoder = lambda data: types.SimpleNamespace(
        metadata=types.SimpleNamespace(sample_rate=16000, num_channels=2),
        get_samples_played_in_range=lambda start, stop: samples,
    )
    monkeypatch.setitem(sys.modules, "torchcodec", types.ModuleType("torchcodec"))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", decoders)
    assert decode_audio(sound)[0].shape == (2, 7)


PLAY_LISTS = {
    "hls": b"#EXTM3U\n#EXTINF:10,\nfile:///etc/passwd\n",
    "concat": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "dash": b'<?xml version="1.0"?><MPD profiles="urn:mpeg:dash:profile:isoff-live:2011"></MPD>',
    "dash behind a WAV mark": b"RIFFxxxxWAVE<MPD urn:mpeg:dash:profile:isoff-live:2011>"
    + b" " * 99,
    "dash behind a tag of an MP3": b"ID3xx<MPD urn:mpeg:dash:profile:isoff-live:2011>" + b" " * 99,
    "sdp": b"v=0\r\nc=IN IP4 127.0.0.1\r\nm=audio 9 RTP/AVP 0\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("kind", list(PLAY_LISTS))
def test_a_play_list_reaches_no_library_that_would_follow_it(kind, monkeypatch):
    asked = []
    torchaudio, torchcodec = types.ModuleType("torchaudio"), types.ModuleType("torchcodec.decoders")
    torchaudio.load = torchcodec.AudioDecoder = lambda *args, **kw: asked.append(args)
    monkeypatch.setitem(sys.modules, "torchaudio", torchaudio)
    monkeypatch.setitem(sys.modules, "torchcodec", types.ModuleType("torchcodec"))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", torchcodec)
    with pytest.raises(DecodingError):
        decode_audio(PLAY_LISTS[kind])
    assert not asked


@pytest.mark.parametrize("format", ["WAV", "FLAC", "OGG", "MP3", "AIFF", "AU", "CAF", "RF64"])
def test_every_format_of_sound_reaches_torchcodec_and_torchaudio(format):
    stream = io.BytesIO()
    soundfile.write(stream, TONE, 8000, format=format)
    audio._check_format(stream.getvalue())


def test_sound_beyond_the_limit_is_refused_by_every_library(monkeypatch):
    monkeypatch.setattr(limits, "MAX_DECODED_BYTES", 1000)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    fake = types.ModuleType("torchaudio")
    fake.load = lambda stream, num_frames: (torch.zeros(1, min(num_frames, 10**9)), 8000)
    monkeypatch.setitem(sys.modules, "torchaudio", fake)
    with pytest.raises(DecodingError, match="more than 1,000 bytes"):
        decode_audio(wav_dumps((TONE, 8000)))
    monkeypatch.setitem(sys.modules, "torchaudio", None)
    with pytest.raises(DecodingError, match="more than 1,000 bytes"):  # by av
        decode_audio(wav_dumps((np.tile(TONE, 9), 8000)))


def test_a_sound_header_cannot_ask_for_memory(decode_apart):
    stream = io.BytesIO()
    soundfile.write(stream, TONE, 8000, format="FLAC")
    data = bytearray(stream.getvalue())
    data[21:26] = (int.from_bytes(data[21:26], "big") | (1 << 36) - 1).to_bytes(5, "big")
    outcome = decode_apart("flac", bytes(data))
    assert "of its 68719476735 frames are missing" in outcome.text, outcome
    assert outcome.taken < 100 << 20


def test_silence_cannot_fill_memory(decode_apart, tmp_path):
    path = tmp_path / "silence.flac"
    with soundfile.SoundFile(path, "w", 8000, 8, "PCM_16", format="FLAC") as file:
        for _ in range(3):  # 96 MB of numbers
            file.write(np.zeros((1 << 20, 8), np.int16))
    data = path.read_bytes()
    assert len(data) < 100_000
    outcome = decode_apart("flac", data)
    assert "unpacks to more than 67,108,864 bytes" in outcome.text, outcome


def test_without_any_library_the_package_is_named(monkeypatch):
    for name in ("soundfile", "torchcodec", "torchaudio", "av"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackage, match="soundfile"):
        decode_audio(wav_dumps((TONE, 8000)))


def test_a_format_that_soundfile_cannot_read_names_the_package_that_can(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(DecodingError, match=r"pip install .*\[video\]"):
        decode_audio(b"noise")


def test_the_list_of_readers_is_open():
    assert len(audio.READERS) == 4
