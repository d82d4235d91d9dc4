"""A small network for the drawn images, and its training: needs torch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

Batch = tuple[Any, Any]
"""Images (batch, height, width, 3) as bytes, and their classes."""


def train(
    batches: Iterable[Batch],
    held_out: Iterable[Batch],
    *,
    classes: int,
    epochs: int,
    steps: int,
    seed: int,
    shown: Callable[[Iterable[Batch], int], Iterable[Batch]],
) -> Iterator[dict[str, float]]:
    """Trains for some epochs; gives after each its loss, the accuracy on ``held_out``, the seconds.

    ``batches`` is iterated once per epoch and gives ``steps`` batches each time, about.
    ``shown`` wraps that for a progress bar.
    """
    import torch
    from torch.nn import functional

    torch.manual_seed(seed)
    model = _network(classes)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=epochs * steps + 1)
    for epoch in range(epochs):
        started, losses = time.perf_counter(), []
        model.train()
        for images, labels in shown(batches, epoch):
            loss = functional.cross_entropy(model(_input(images)), torch.as_tensor(labels))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            if rate.last_epoch < epochs * steps:
                rate.step()
            losses.append(loss.item())
        yield {
            "loss": sum(losses) / max(1, len(losses)),
            "accuracy": _accuracy(model, held_out),
            "seconds": time.perf_counter() - started,
        }


def _network(classes: int) -> Any:
    from torch import nn

    def layer(inputs: int, outputs: int, window: int = 3, stride: int = 2) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, window, stride, window // 2, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        nn.InstanceNorm2d(3),  # colours say nothing about the shape: take them out
        *layer(3, 16, window=5),
        *layer(16, 32),
        *layer(32, 64, stride=1),
        *layer(64, 64),
        *layer(64, 128),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(512, classes),
    )


def _input(images: Any) -> Any:
    import torch

    return torch.as_tensor(images).permute(0, 3, 1, 2).float().div(127.5).sub(1)


def _accuracy(model: Any, batches: Iterable[Batch]) -> float:
    import torch

    model.eval()
    right = seen = 0
    with torch.inference_mode():
        for images, labels in batches:
            guesses = model(_input(images)).argmax(1)
            right += int((guesses == torch.as_tensor(labels)).sum())
            seen += len(guesses)
    return right / max(1, seen)
