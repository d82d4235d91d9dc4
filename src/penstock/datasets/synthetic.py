"""Synthetic data: drawn images with labels, and speech-like sounds of varying length.

For trying a pipeline, a model or a benchmark without a data set. A sample depends only on (seed,
number): the first hundred of a thousand are the same as a hundred.
"""

from __future__ import annotations

import io
import wave
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from penstock.errors import optional

Array = np.ndarray[Any, np.dtype[Any]]

SAMPLE_RATE = 8000


def drawn_images(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield ``count`` samples of one coloured shape each: ``jpg``, ``cls``, ``json``.

    ``jpg`` is an RGB image of 64 to 96 pixels a side, ``cls`` the number of the shape
    in :data:`SHAPES`, ``json`` holds its name, colour and size. Colour and rotation
    do not depend on the class, and mirroring does not change it. Needs Pillow.

    >>> sample = next(drawn_images(1))
    >>> sorted(sample), sample["json"]["shape"] == list(SHAPES)[sample["cls"]]
    (['__key__', 'cls', 'jpg', 'json'], True)
    """
    Image = optional("PIL.Image", "image", "drawing images")
    names = list(SHAPES)
    for number in range(count):
        rng = np.random.default_rng((seed, number, 1))
        label = int(rng.integers(len(names)))
        pixels, colour = _draw(SHAPES[names[label]], rng)
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "JPEG", quality=90)
        yield {
            "__key__": f"image-{number:06d}",
            "jpg": stream.getvalue(),
            "cls": label,
            "json": {"shape": names[label], "colour": colour, "size": len(pixels)},
        }


def spoken_tones(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield ``count`` samples of one word each, 0.3 to 3 seconds long: ``wav``, ``txt``, ``json``.

    ``wav`` is 16-bit mono at 8 kHz, ``txt`` the word (one of :data:`WORDS`), ``json`` holds the
    length in seconds and in frames, and the pitch. Vowels are harmonics shaped by formants,
    consonants short noises: enough for a model to distinguish the words.

    >>> sample = next(spoken_tones(1))
    >>> sorted(sample), sample["txt"] in WORDS
    (['__key__', 'json', 'txt', 'wav'], True)
    """
    for number in range(count):
        rng = np.random.default_rng((seed, number, 2))
        word = WORDS[int(rng.integers(len(WORDS)))]
        # Log-uniform: many short ones and a tail of long ones, as in speech.
        seconds = float(np.exp(rng.uniform(np.log(0.3), np.log(3.0))))
        pitch_hz = float(rng.uniform(90, 240))
        sound = _say(word, seconds, pitch_hz, rng)
        yield {
            "__key__": f"word-{number:06d}",
            "wav": _wav(sound),
            "txt": word,
            "json": {
                "seconds": round(len(sound) / SAMPLE_RATE, 3),
                "frames": len(sound),
                "pitch_hz": round(pitch_hz),
            },
        }


# Each shape returns which points are inside. u runs right, v down, from the centre (0, 0).


def _disc(u: Array, v: Array) -> Array:
    return np.hypot(u, v) < 0.9


def _ring(u: Array, v: Array) -> Array:
    return np.abs(np.hypot(u, v) - 0.72) < 0.22


def _square(u: Array, v: Array) -> Array:
    return np.maximum(np.abs(u), np.abs(v)) < 0.75


def _triangle(u: Array, v: Array) -> Array:
    side = 3**0.5 / 2
    return np.maximum(np.maximum(-v, v / 2 + side * u), v / 2 - side * u) < 0.52


def _star(u: Array, v: Array) -> Array:
    # The polar equation of a star of five points with straight edges.
    bend = np.cos((2 * np.arcsin(np.cos(5 * np.arctan2(u, -v))) + 3 * np.pi) / 10)
    inside: Array = np.hypot(u, v) < 1.1 * np.cos(0.4 * np.pi) / bend
    return inside


def _cross(u: Array, v: Array) -> Array:
    near, far = np.minimum(np.abs(u), np.abs(v)), np.maximum(np.abs(u), np.abs(v))
    return (near < 0.25) & (far < 0.95)


def _moon(u: Array, v: Array) -> Array:
    return (np.hypot(u, v) < 0.95) & (np.hypot(u - 0.5, v) > 0.75)


def _bars(u: Array, v: Array) -> Array:
    return (np.abs(u) < 0.9) & (np.abs(v) < 0.9) & (np.abs((v + 1.2) % 0.6 - 0.3) > 0.15)


def _dots(u: Array, v: Array) -> Array:
    nearest = np.full(u.shape, np.inf)
    for turn in (0.0, 2.094, 4.189):
        nearest = np.minimum(nearest, np.hypot(u - 0.6 * np.cos(turn), v - 0.6 * np.sin(turn)))
    return nearest < 0.32


def _heart(u: Array, v: Array) -> Array:
    u, v = u * 1.25, 0.15 - v * 1.25
    return (u * u + v * v - 1) ** 3 < u * u * v**3


SHAPES: dict[str, Callable[[Array, Array], Array]] = {
    "disc": _disc,
    "ring": _ring,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
    "cross": _cross,
    "moon": _moon,
    "bars": _bars,
    "dots": _dots,
    "heart": _heart,
}
"""The classes of :func:`drawn_images`, in the order of ``cls``."""


def _draw(inside: Callable[[Array, Array], Array], rng: np.random.Generator) -> tuple[Array, Any]:
    """Draw the shape with random position, size, rotation and colours, and a little noise."""
    size = int(rng.integers(64, 97))
    fine = np.linspace(-1.3, 1.3, 2 * size)  # two points a pixel, for soft edges
    x, y = np.meshgrid(fine - rng.uniform(-0.25, 0.25), fine - rng.uniform(-0.25, 0.25))
    turn, scale = rng.uniform(-0.6, 0.6), rng.uniform(0.65, 1.0)
    u = (x * np.cos(turn) + y * np.sin(turn)) / scale
    v = (y * np.cos(turn) - x * np.sin(turn)) / scale
    cover = inside(u, v).reshape(size, 2, size, 2).mean((1, 3), dtype=np.float32)[..., None]
    back, front = _two_colours(rng)
    light = 1 + rng.uniform(-0.15, 0.15) * np.linspace(-1, 1, size)[:, None, None]
    picture = (back + (front - back) * cover) * light + rng.normal(0, 6, (size, size, 3))
    return picture.clip(0, 255).astype(np.uint8), [int(part) for part in front]


def _two_colours(rng: np.random.Generator) -> tuple[Array, Array]:
    """Return two clearly different colours."""
    while True:
        back, front = rng.uniform(20, 235, (2, 3))
        if np.abs(back - front).sum() > 200:
            return back, front


WORDS = ["mama", "radio", "koala", "tulip", "piano", "banana", "mosaic", "oasis", "avocado", "sun"]
"""The classes of :func:`spoken_tones`."""

# The three lowest formants of each vowel, in Hz.
_VOWELS = {
    "a": (730, 1090, 2440),
    "e": (530, 1840, 2480),
    "i": (270, 2290, 3010),
    "o": (570, 840, 2410),
    "u": (300, 870, 2240),
}
_VOWEL_SHARE, _CONSONANT_SHARE = 3.0, 1.0


def _say(word: str, seconds: float, pitch_hz: float, rng: np.random.Generator) -> Array:
    """Synthesise the letters in sequence, vowels three times as long as consonants."""
    shares = np.array([_VOWEL_SHARE if x in _VOWELS else _CONSONANT_SHARE for x in word])
    frames = int(seconds * SAMPLE_RATE)
    ends = np.round(np.cumsum(shares) / shares.sum() * frames).astype(int)
    sound, start, phase = np.zeros(frames), 0, 0.0
    for letter, end in zip(word, ends):
        length = int(end) - start
        if letter in _VOWELS:
            tone = pitch_hz * np.linspace(1.05, 0.95, length) * rng.uniform(0.95, 1.05)
            phases = phase + np.cumsum(tone) * (2 * np.pi / SAMPLE_RATE)
            phase = float(phases[-1]) if length else phase
            sound[start:end] = _vowel(_VOWELS[letter], pitch_hz, phases)
        else:
            sound[start:end] = rng.normal(0, 0.05, length)
        sound[start:end] *= np.sin(np.pi * (np.arange(length) + 0.5) / max(1, length)) ** 0.4
        start = int(end)
    sound += rng.normal(0, 0.003, frames)
    return sound / max(1e-6, float(np.abs(sound).max())) * rng.uniform(0.4, 0.9)


def _vowel(formants: tuple[int, ...], pitch_hz: float, phases: Array) -> Array:
    """Return harmonics of the pitch, louder the closer they are to a formant."""
    sound = np.zeros(len(phases))
    for harmonic in range(1, int(3400 / pitch_hz)):
        hz = harmonic * pitch_hz
        loud = sum(1 / (1 + ((hz - formant) / 90) ** 2) for formant in formants)
        sound += (loud + 0.02) / harmonic**0.5 * np.sin(harmonic * phases)
    return sound


def _wav(sound: Array) -> bytes:
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(SAMPLE_RATE)
        file.writeframes((sound * 32767).astype("<i2").tobytes())
    return stream.getvalue()
