"""A small classifier for the drawn images in numpy alone, for machines without torch.

The edges of each image are sampled on circles around their centre. The spectrum of each circle
does not depend on how the shape is rotated, so one linear layer can tell the shapes apart.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from penstock.cli.demo.model import Batch

Array = np.ndarray[Any, np.dtype[Any]]

RINGS, ANGLES, WAVES = 16, 48, 13
LEARNING_RATE = 0.5


def train(
    batches: Iterable[Batch],
    held_out: Iterable[Batch],
    *,
    classes: int,
    epochs: int,
    steps: int,
    seed: int,
) -> Iterator[dict[str, float] | None]:
    """Train by gradient descent. Yields what :func:`penstock.cli.demo.model.train` yields."""
    weights = np.zeros((RINGS * WAVES + 1, classes))
    total, done = epochs * steps, 0
    started = time.perf_counter()
    for _ in range(epochs):
        losses = []
        for images, labels in batches:
            inputs, labels = _features(images), np.asarray(labels)
            probabilities = _predict(inputs, weights)
            chosen = probabilities[np.arange(len(labels)), labels]
            losses.append(float(-np.log(chosen + 1e-9).mean()))
            probabilities[np.arange(len(labels)), labels] -= 1
            rate = LEARNING_RATE * (1 - done / (total + 1))
            weights -= rate * inputs.T @ probabilities / len(labels)
            done += 1
            if len(losses) < steps:
                yield None
        yield {
            "loss": sum(losses) / len(losses),
            "accuracy": _accuracy(weights, held_out),
            "seconds": time.perf_counter() - started,
        }


def _predict(inputs: Array, weights: Array) -> Array:
    """Return the probability of each class."""
    scores = inputs @ weights
    powers = np.exp(scores - scores.max(1, keepdims=True))
    predicted: Array = powers / powers.sum(1, keepdims=True)
    return predicted


def _accuracy(weights: Array, batches: Iterable[Batch]) -> float:
    right = [
        _predict(_features(images), weights).argmax(1) == np.asarray(labels)
        for images, labels in batches
    ]
    return float(np.concatenate(right).mean())


def _features(images: Array) -> Array:
    """Return one row per image that rotating, moving or scaling the shape hardly changes."""
    edges = _edges(images)
    count, side, _ = edges.shape
    across, down = edges.sum(1), edges.sum(2)
    mass, at = edges.sum((1, 2)) + 1e-6, np.arange(side)
    x, y = across @ at / mass, down @ at / mass
    spread = (across * (at - x[:, None]) ** 2).sum(1) + (down * (at - y[:, None]) ** 2).sum(1)
    radii = np.sqrt(spread / mass)[:, None] * np.linspace(0.06, 1.75, RINGS)
    angles = np.arange(ANGLES) * 2 * np.pi / ANGLES
    columns = x[:, None, None] + radii[:, :, None] * np.cos(angles)
    rows = y[:, None, None] + radii[:, :, None] * np.sin(angles)
    inside = [np.rint(place).clip(0, side - 1).astype(int) for place in (rows, columns)]
    circles = edges[np.arange(count)[:, None, None], inside[0], inside[1]]
    waves = np.abs(np.fft.rfft(circles, axis=2))[:, :, :WAVES].reshape(count, -1)
    waves = np.sqrt(waves)
    waves *= 10 / (np.linalg.norm(waves, axis=1, keepdims=True) + 1e-6)
    return np.hstack([waves, np.ones((count, 1))])


def _edges(images: Array) -> Array:
    """Return the strength of edges, without the weak edges of the background."""
    grey = np.asarray(images, np.float32).mean(3)
    edges = np.hypot(grey[:, 2:, 1:-1] - grey[:, :-2, 1:-1], grey[:, 1:-1, 2:] - grey[:, 1:-1, :-2])
    weak = 2 * edges.mean((1, 2), keepdims=True)
    kept: Array = (edges - weak).clip(0, 4 * weak)
    return kept
