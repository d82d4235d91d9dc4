"""Sound files as tensors: whole, in part, from paths and bytes."""

from __future__ import annotations

import io

import numpy as np
import pytest

from penstock import read_audio, read_audio_info, read_audio_multichannel, write_audio
from penstock.errors import DecodingError, WriteError

torch = pytest.importorskip("torch")
pytest.importorskip("soundfile")


@pytest.fixture
def wav(tmp_path):
    path = tmp_path / "a.wav"
    write_audio(path, torch.arange(10) / 16, 8000)
    return path


def test_sound_comes_from_a_path_bytes_and_open_files(wav):
    expected = (np.arange(10) / 16).tolist()
    with open(wav, "rb") as file:
        for source in (wav, str(wav), wav.read_bytes(), io.BytesIO(wav.read_bytes()), file):
            sound = read_audio(source)
            assert sound.dtype == torch.float32
            assert sound.tolist() == expected


@pytest.mark.parametrize(
    ("part", "frames"),
    [
        ({"start": 2, "stop": 5}, [2, 3, 4]),
        ({"start": 7}, [7, 8, 9]),
        ({"stop": 2}, [0, 1]),
        ({"start": 4, "stop": 4}, [4, 5, 6, 7, 8, 9]),
        ({"start": 8, "stop": 99}, [8, 9]),
        ({"start": 99, "stop": 100}, []),
    ],
)
def test_a_part_is_read(wav, part, frames):
    assert (read_audio({"file": wav, **part}) * 16).tolist() == frames


@pytest.mark.parametrize("part", [{"start": -1}, {"start": 5, "stop": 3}])
def test_an_impossible_part_is_a_value_error(wav, part):
    with pytest.raises(ValueError, match="start <= stop"):
        read_audio({"file": wav, **part})


def test_several_channels_stand_in_columns(wav, tmp_path):
    stereo = tmp_path / "b.flac"
    write_audio(stereo, torch.zeros(10, 2), 8000)
    assert read_audio(stereo).shape == (10, 2)
    both = read_audio_multichannel({"files": [wav, stereo], "start": 1, "stop": 5})
    assert both.shape == (4, 3)
    assert read_audio_multichannel(wav).shape == (10, 1)
    write_audio(tmp_path / "c.wav", np.zeros(3), 8000)
    with pytest.raises(DecodingError, match="same length"):
        read_audio_multichannel({"files": [wav, tmp_path / "c.wav"]})


def test_the_header_tells_rate_length_and_channels(wav):
    info = read_audio_info(wav)
    assert (info.sample_rate, info.num_frames, info.channels) == (8000, 10, 1)
    assert info.duration == 10 / 8000


def test_what_is_no_sound_is_told(tmp_path):
    (tmp_path / "x.wav").write_bytes(b"nothing")
    for source in (tmp_path / "x.wav", tmp_path / "none.wav", b"nothing"):
        with pytest.raises(DecodingError, match="cannot read the sound"):
            read_audio(source)
    with pytest.raises(WriteError, match="shape"):
        write_audio(tmp_path / "y.wav", np.zeros((1, 2, 3)), 8000)
    with pytest.raises(WriteError, match=r"y\.xyz"):
        write_audio(tmp_path / "y.xyz", np.zeros(4), 8000)


def test_a_file_that_was_cut_is_an_error_that_names_it(wav):
    wav.write_bytes(wav.read_bytes()[:-8])
    with open(wav, "rb") as file:
        for source in (wav, str(wav), file):
            with pytest.raises(DecodingError, match=r"8 of its 20 bytes are missing.*a\.wav"):
                read_audio(source)
    for source in (wav.read_bytes(), io.BytesIO(wav.read_bytes())):
        with pytest.raises(DecodingError, match=r"8 of its 20 bytes are missing \(sound\)"):
            read_audio(source)


def test_the_part_before_a_cut_is_read(wav):
    wav.write_bytes(wav.read_bytes()[:-8])
    assert len(read_audio({"file": wav, "start": 1, "stop": 6})) == 5
    with pytest.raises(DecodingError, match="is cut"):
        read_audio({"file": wav, "start": 1, "stop": 7})


def test_a_cut_flac_is_a_decoding_error(tmp_path):
    path = tmp_path / "a.flac"
    write_audio(path, torch.rand(20_000) - 0.5, 8000)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(DecodingError, match=r"cannot read the sound.*a\.flac"):
        read_audio(path)
