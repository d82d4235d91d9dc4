"""Sound brought to one rate and one length."""

from __future__ import annotations

import numpy as np
import pytest

import penstock as wds
from penstock.codecs.audio import flac_dumps, wav_dumps
from penstock.errors import DecodingError, PipelineError, SampleError
from penstock.memory import output as rows
from penstock.rng import CounterRng
from penstock.transforms import audio


@pytest.fixture(autouse=True)
def _our_own_filter(monkeypatch):
    monkeypatch.setattr(audio, "_soxr", lambda: None)


def tone(hertz, rate, seconds=1.0):
    return np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate).astype(np.float32)


def middle(numbers):
    return numbers[..., numbers.shape[-1] // 8 : -(numbers.shape[-1] // 8)]


@pytest.mark.parametrize(
    ("rate", "to"), [(8000, 16000), (44100, 16000), (48000, 16000), (16000, 44100), (8000, 8000)]
)
@pytest.mark.parametrize("part", [0.01, 0.2, 0.41])
def test_a_tone_is_the_same_tone_at_another_rate(rate, to, part):
    hertz = part * min(rate, to)
    made = wds.AudioClip(to)((tone(hertz, rate), rate))
    assert made.shape == (to,)
    assert np.abs(middle(made - tone(hertz, to))).max() < 1e-3


def test_what_the_lower_rate_cannot_hold_is_taken_away():
    made = wds.AudioClip(16000)((tone(9600, 48000), 48000))
    assert np.abs(middle(made)).max() < 1e-3


@pytest.mark.parametrize("length", [1, 2, 7, 160, 441, 442, 1000])
@pytest.mark.parametrize(("rate", "to"), [(44100, 16000), (8000, 16000), (16000, 11025)])
def test_any_length_is_as_long_in_time_as_before(length, rate, to):
    made = audio.resample(np.ones((2, length), np.float32), rate, to)
    assert made.shape == (2, -(-length * to // rate))


def test_files_decoded_values_and_tensors_are_taken():
    pytest.importorskip("soundfile")
    torch = pytest.importorskip("torch")
    sound = np.stack([tone(300, 8000), tone(500, 8000)], axis=1)
    clip = wds.AudioClip(16000, mono=False)
    expected = clip((sound, 8000))
    assert expected.shape == (2, 16000)
    assert np.array_equal(clip(wav_dumps((sound, 8000))), expected)
    assert np.abs(clip(flac_dumps((sound, 8000))) - expected).max() < 1e-5
    assert np.array_equal(clip((torch.from_numpy(sound.T.copy()), 8000)), expected)
    whole = (sound * 32767).astype(np.int16)
    assert np.abs(clip((whole, 8000)) - expected).max() < 1e-3
    mixed = wds.AudioClip(16000)((sound, 8000))
    assert np.abs(mixed - expected.mean(axis=0)).max() < 1e-5


def test_the_short_is_padded_and_the_long_is_cut():
    clip = wds.AudioClip(8000, seconds=0.5, random_cut=False)
    short, long = tone(100, 8000, 0.2), tone(100, 8000, 2)
    assert np.array_equal(clip((short, 8000)), np.concatenate([short, np.zeros(2400, "f4")]))
    assert np.array_equal(clip((long, 8000)), long[:4000])
    assert clip((short[:0], 8000)).tolist() == [0] * 4000


@pytest.mark.parametrize(("rate", "to"), [(44100, 16000), (8000, 16000), (8000, 8000)])
def test_a_random_cut_is_a_part_of_the_whole(rate, to):
    rng = np.random.default_rng(3)
    sound = np.cumsum(rng.normal(size=3 * rate)).astype(np.float32)
    sound /= np.abs(sound).max()
    whole = wds.AudioClip(to)((sound, rate))
    clip = wds.AudioClip(to, seconds=0.5)
    starts = set()
    for seed in range(12):
        part = clip((sound, rate), CounterRng(seed))
        start = int(CounterRng(seed).random() * (len(whole) - len(part) + 1))
        starts.add(start)
        assert np.abs(part - whole[start : start + len(part)]).max() < 1e-5
    assert len(starts) == 12


def test_clips_draw_in_a_stage_and_are_written_into_the_row():
    clip = wds.AudioClip(8000, seconds=0.1)
    assert clip.takes_rng
    assert not wds.AudioClip(8000).takes_rng
    sounds = [(tone(440, 8000), 8000)] * 3
    first, second, _ = wds.map(clip)(sounds)
    assert not np.array_equal(first, second)
    block = np.zeros((2, 800), np.float32)
    with rows.rows_from(lambda shape, dtype: block[1]):
        clip(sounds[0])
    assert block[1].any()


def test_soxr_is_used_where_it_is_there(monkeypatch):
    class Soxr:
        @staticmethod
        def resample(sound, rate, to):
            return np.zeros((len(sound) * to // rate, sound.shape[1]), np.float32)

    monkeypatch.setattr(audio, "_soxr", lambda: Soxr)
    assert not wds.AudioClip(16000)((tone(440, 8000), 8000)).any()


@pytest.mark.parametrize("options", [{"rate": 0}, {"rate": 8000, "seconds": 0}, {"seconds": 1}])
def test_arguments_of_a_clip_that_cannot_work_are_told_at_once(options):
    with pytest.raises(PipelineError):
        wds.AudioClip(**options)


def test_what_is_no_sound_is_an_error():
    pytest.importorskip("soundfile")
    with pytest.raises(DecodingError):
        wds.AudioClip(8000)(b"no sound at all")
    for value in (3, (np.zeros((2, 2, 2)), 8000), (np.zeros(4, int), 8000), (np.zeros(4), 0)):
        with pytest.raises(SampleError):
            wds.AudioClip(8000)(value)
