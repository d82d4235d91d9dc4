"""The audio transform: it takes FLAC, WAV, Opus … and returns numbers of one rate and length.

The result is written to memory from :func:`penstock.memory.output.empty`, which a loader can set to
the memory of the batch.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import random
from types import ModuleType
from typing import Any

import numpy as np

from penstock.codecs.arrays import as_array
from penstock.codecs.audio import decode_audio
from penstock.errors import PipelineError, SampleError
from penstock.memory.output import empty
from penstock.nearest_name import ChecksArguments
from penstock.transforms.crop_plan import Random

Array = np.ndarray[Any, np.dtype[Any]]

_ZEROS = 24  # zero crossings of the sinc per side: flat to 0.82 of the lower Nyquist frequency
_ROLLOFF = 0.95
_BLOCK = 64
_KAISER = 9.0  # aliasing stays below -80 dB


@dataclasses.dataclass(frozen=True)
class AudioClip(ChecksArguments):
    """Resample audio to ``rate``, mix its channels to one, and cut or pad it to ``seconds``.

    ``rate=None`` and ``seconds=None`` keep those unchanged, ``mono=False`` keeps the channels.
    Longer audio is cut at a random position (``random_cut=False``: at the beginning); shorter audio
    is padded with silence. The input is the bytes of a file, or (numbers, rate) as from ``decode``;
    the output is float32 from -1 to 1: (time), or with ``mono=False`` (channels, time).

    Raise DecodingError for bytes that are no audio, SampleError for values of another type.

    >>> tone = np.sin(np.arange(8000) / 5).astype("float32")
    >>> AudioClip(16000, seconds=0.5)((tone, 8000)).shape
    (8000,)
    """

    rate: int | None = None
    seconds: float | None = None
    mono: bool = True
    random_cut: bool = True

    def __post_init__(self) -> None:
        if self.rate is not None and not 0 < self.rate < 1 << 24:
            raise PipelineError(f"rate is a number of samples per second, not {self.rate!r}")
        if self.seconds is not None and not 0 < self.seconds < 1 << 20:
            raise PipelineError(f"seconds is above 0, not {self.seconds!r}")
        if self.seconds is not None and self.rate is None:
            raise PipelineError("seconds needs a rate, or rows would differ in length")

    @property
    def takes_rng(self) -> bool:
        """True if the stages must pass a random number generator: ``f(value, rng)``."""
        return self.seconds is not None and self.random_cut

    def __call__(self, value: Any, rng: Random | None = None) -> Array:
        """Return the audio. Without ``rng``, Python's ``random`` chooses where it is cut."""
        sound, rate = _decode(value)
        if self.mono and len(sound) > 1:
            sound = sound.mean(axis=0, keepdims=True, dtype=np.float32)
        to = self.rate or rate
        if self.seconds is None:
            return self._write(resample(sound, rate, to))
        length = round(self.seconds * to)
        # Cut before resampling, with a margin for the filter.
        start = 0
        had = math.ceil(sound.shape[1] * to / rate)
        if had > length and self.random_cut:
            draws: Random = rng if rng is not None else random
            start = int(draws.random() * (had - length + 1))
        around = 0 if rate == to else math.ceil(2 * _ZEROS * max(1, rate / to))
        step = rate // math.gcd(rate, to)
        first = max(0, int(start * rate / to) - around) // step * step
        last = math.ceil((start + length) * rate / to) + around
        sound = resample(sound[:, first:last], rate, to)
        begin = start - first * to // rate
        return self._write(sound[:, begin : begin + length], length)

    def _write(self, sound: Array, length: int | None = None) -> Array:
        channels, had = sound.shape
        length = had if length is None else length
        row = empty((length,) if self.mono else (channels, length), np.float32)
        row[..., :had] = sound[0] if self.mono else sound
        row[..., had:] = 0
        return row


def _decode(value: Any) -> tuple[Array, int]:
    """Return float32 (channels, time) and the rate, from bytes or (numbers, rate)."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return decode_audio(bytes(value))
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        raise SampleError(f"sound is bytes, or (numbers, rate), not {type(value).__name__}")
    numbers, rate = as_array(value[0]), int(value[1])
    if numbers.dtype == np.int16:
        numbers = numbers.astype(np.float32) / 32768
    if numbers.ndim == 1:
        numbers = numbers[None]
    elif not hasattr(value[0], "detach"):
        numbers = numbers.T  # arrays are (time, channels), tensors (channels, time), as decoded
    if numbers.ndim != 2 or numbers.dtype.kind != "f" or not len(numbers) or rate < 1:
        raise SampleError(
            "sound is (time), an array (time, channels) or a tensor (channels, time) of floats or"
            f" int16, and a rate above 0: not {numbers.dtype} of {numbers.shape} at {rate}"
        )
    return numbers.astype(np.float32, copy=False), rate


def resample(sound: Array, rate: int, to: int) -> Array:
    """Resample (channels, time) by soxr if it is installed, else by a windowed sinc.

    Frequencies above half of the lower rate are removed.

    >>> resample(np.ones((1, 441), "float32"), 44100, 16000).shape
    (1, 160)
    """
    if rate == to or not sound.shape[1]:
        return sound
    soxr = _soxr()
    if soxr is not None:
        resampled: Array = soxr.resample(np.ascontiguousarray(sound.T), rate, to).T
        return resampled
    return _resample_by_sinc(sound, rate, to)


@functools.cache
def _soxr() -> ModuleType | None:
    try:
        import soxr
    except ImportError:
        return None
    module: ModuleType = soxr
    return module


def _resample_by_sinc(sound: Array, rate: int, to: int) -> Array:
    """Apply one short filter for each of the ``to / gcd`` phases, in one matrix product."""
    common = math.gcd(rate, to)
    step, phases = rate // common, to // common
    count = math.ceil(sound.shape[1] * phases / step)
    few = max(1, _BLOCK // max(step, phases))  # small products are slow: several steps in each
    step, phases = step * few, phases * few
    taps = _make_filters(step, phases)
    wide = taps.shape[1]
    blocks = math.ceil(count / phases)
    padded = np.zeros((len(sound), (blocks - 1) * step + wide), np.float32)
    before = (wide - step) // 2
    part = sound[:, : padded.shape[1] - before]
    padded[:, before : before + part.shape[1]] = part
    windows = np.lib.stride_tricks.sliding_window_view(padded, wide, axis=1)[:, ::step]
    return (windows @ taps.T).reshape(len(sound), -1)[:, :count]


@functools.lru_cache(maxsize=16)
def _make_filters(step: int, phases: int) -> Array:
    """Return (phases, taps): phase p is p * step / phases after the block's first sample."""
    cutoff = min(1.0, phases / step) * _ROLLOFF
    half = math.ceil(_ZEROS / cutoff)
    wide = 2 * half + step
    at = np.arange(wide)[None] - half - (np.arange(phases) * step / phases)[:, None]
    window = np.i0(_KAISER * np.sqrt(np.clip(1 - (at / half) ** 2, 0, None))) / np.i0(_KAISER)
    taps = cutoff * np.sinc(at * cutoff) * np.where(np.abs(at) <= half, window, 0)
    taps /= taps.sum(axis=1, keepdims=True)  # a constant signal stays constant
    return taps.astype(np.float32)
