"""Sound and text on threads: the same batches, bit by bit, whatever their number."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as wds
from penstock.codecs.audio import flac_dumps, wav_dumps

soundfile = pytest.importorskip("soundfile")

SAMPLES, TO = 48, 16_000
RATES = 8_000, 16_000, 24_000, 48_000  # those that Opus has


def tone(number: int) -> tuple[np.ndarray[Any, Any], int]:
    """A tone of its own pitch, length and rate."""
    rate = RATES[number % len(RATES)]
    length = rate // 10 + number * rate // 200
    turns = (200 + 10 * number) * np.arange(length) / rate
    return (0.5 * np.sin(2 * np.pi * turns)).astype(np.float32), rate


def opus_dumps(value: tuple[np.ndarray[Any, Any], int]) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, *value, format="OGG", subtype="OPUS")
    return stream.getvalue()


WRITERS = {"flac": flac_dumps, "wav": wav_dumps, "opus": opus_dumps}


@pytest.fixture(params=WRITERS)
def shard(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, str]:
    """A shard of such clips, each with what is said in it; and their extension."""
    kind = request.param
    if kind == "opus" and not soundfile.check_format("OGG", "OPUS"):
        pytest.skip("this libsndfile writes no Opus")
    url = str(tmp_path / "clips.tar")
    with wds.TarWriter(url, encoder=False) as writer:
        for number in range(SAMPLES):
            said = f"Größe {number} 数".encode()
            clip = WRITERS[kind](tone(number))
            writer.write({"__key__": f"{number:04d}", kind: clip, "txt": said})
    return url, kind


def said_and_heard(url: str, kind: str, clip: wds.AudioClip) -> Any:
    data = wds.WebDataset(url, shardshuffle=False, seed=3)
    return data.decode(only=["txt"]).map_dict(**{kind: clip}).rename(wav=kind, text="txt")


@pytest.mark.parametrize("threads", [2, 8])
def test_clips_are_decoded_resampled_and_padded_as_without_threads(
    shard: tuple[str, str], threads: int
) -> None:
    def batches(count: int) -> list[Any]:
        data = said_and_heard(*shard, wds.AudioClip(TO))
        options: dict[str, Any] = {"num_workers": count, "engine": "threads"}
        return list(wds.WebLoader(data, 7, collate_fn=wds.PaddedBatch, **options))

    plain, found = batches(0), batches(threads)
    assert len(plain) == len(found) == -(-SAMPLES // 7)
    for one, other in zip(plain, found):
        assert one["__key__"] == other["__key__"]
        assert one.text == other.text
        assert one.wav.data.equal(other.wav.data)
        assert one.wav.lengths.equal(other.wav.lengths)
    texts = [text for batch in found for text in batch.text]
    assert texts == [f"Größe {number} 数" for number in range(SAMPLES)]
    lengths = [int(length) for batch in found for length in batch.wav.absolute]
    for number, length in enumerate(lengths):
        sound, rate = tone(number)
        assert length == -(-len(sound) * TO // rate)


@pytest.mark.parametrize("threads", [2, 8])
def test_clips_of_one_length_are_cut_at_the_same_places(
    shard: tuple[str, str], threads: int
) -> None:
    def batches(count: int) -> list[Any]:
        data = said_and_heard(*shard, wds.AudioClip(TO, seconds=0.15))
        made = data.to_tuple("wav", "text").batched(8)
        return list(wds.WebLoader(made, batch_size=None, num_workers=count, engine="threads"))

    plain, found = batches(0), batches(threads)
    assert len(plain) == len(found) == SAMPLES // 8
    for (sounds, texts), (others, again) in zip(plain, found):
        assert sounds.shape == (8, 2400)
        assert sounds.equal(others)
        assert list(texts) == list(again)


def test_what_is_heard_is_the_tone(shard: tuple[str, str]) -> None:
    data = said_and_heard(*shard, wds.AudioClip(TO))
    loader = wds.WebLoader(data, batch_size=None, num_workers=2, engine="threads")
    for number, sample in enumerate(loader):
        found = np.asarray(sample["wav"])
        pitch = np.abs(np.fft.rfft(found)).argmax() * TO / len(found)
        assert abs(pitch - (200 + 10 * number)) < 2 * TO / len(found)
