"""A small network for the drawn images, and its training: needs torch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
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
) -> Iterator[dict[str, float] | None]:
    """Train for some epochs: yield None after a step, and the results after an epoch.

    Results are the loss, the accuracy on ``held_out`` and the seconds since the beginning.
    ``batches`` is iterated once per epoch and has ``steps`` batches each time.
    """
    import torch
    from torch.nn import functional

    # More threads hardly speed up so small a network, and on a busy machine threads that wait for
    # each other took four times as long as one.
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = _network(classes)
    optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.01)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 6e-3, total_steps=epochs * steps + 1)
    started = time.perf_counter()
    for _ in range(epochs):
        losses = []
        model.train()
        for images, labels in batches:
            loss = functional.cross_entropy(model(_input(images)), torch.as_tensor(labels))
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            rate.step()
            losses.append(loss.item())
            if len(losses) < steps:
                yield None
        yield {
            "loss": sum(losses) / len(losses),
            "accuracy": _accuracy(model, held_out),
            "seconds": time.perf_counter() - started,
        }


def _network(classes: int) -> Any:
    from torch import nn

    def layer(inputs: int, outputs: int, window: int = 3, stride: int = 2) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, window, stride, window // 2, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(
        nn.InstanceNorm2d(3),  # colour says nothing about the shape: remove it
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
