from __future__ import annotations

import sys
import types

import numpy as np
import pytest
import soundfile
import torch

from penstock.codecs import Decoder, audio, gzip_fields as gz
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
    monkeypatch.setattr(gz, "MAX_DECODED_BYTES", 1000)
    with pytest.raises(DecodingError, match="more than 1000 bytes"):
        decode_audio(wav_dumps((TONE, 8000)))


def test_torchcodec_and_torchaudio_are_asked_where_soundfile_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "soundfile", None)
    monkeypatch.setitem(sys.modules, "torchcodec", None)
    fake = types.ModuleType("torchaudio")
    fake.load = lambda stream: (torch.zeros(1, len(stream.read())), 8000)
    monkeypatch.setitem(sys.modules, "torchaudio", fake)
    assert decode_audio(b"1234")[0].shape == (1, 4)

    decoders = types.ModuleType("torchcodec.decoders")
    samples = types.SimpleNamespace(data=torch.zeros(2, 7), sample_rate=16000)
    decoders.AudioDecoder = lambda data: types.SimpleNamespace(get_all_samples=lambda: samples)
    monkeypatch.setitem(sys.modules, "torchcodec", types.ModuleType("torchcodec"))
    monkeypatch.setitem(sys.modules, "torchcodec.decoders", decoders)
    assert decode_audio(b"1234")[0].shape == (2, 7)


def test_without_any_library_the_package_is_named(monkeypatch):
    for name in ("soundfile", "torchcodec", "torchaudio", "av"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackage, match="soundfile"):
        decode_audio(wav_dumps((TONE, 8000)))


def test_a_format_that_soundfile_cannot_read_names_the_package_that_can(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(DecodingError, match="penstock\\[video\\]"):
        decode_audio(b"noise")


def test_the_list_of_readers_is_open():
    assert len(audio.READERS) == 4
