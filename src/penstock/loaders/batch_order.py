"""What decides the order of a map-style loader's batches, besides its arguments.

Samplers with epochs and generators of torch change with every pass, so a pipeline that is replayed
has to set them to what they were when the epoch began.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from penstock.errors import StateError
from penstock.pipeline.fingerprint import describe_argument
from penstock.stages.run import as_count

DECIDES = ("seed", "shuffle", "replacement", "num_samples", "drop_last", "weights", "indices")
"""Attributes of torch's samplers that decide their order."""
MISSING: Any = object()
LAST_EPOCH = 1 << 40
LARGEST = 1 << 16
"""Bytes of the state of a generator; those of the CPU have 5,056."""


def find_order(loader: Any) -> Any:
    """Return the object that decides the order: the batch sampler, or the sampler inside it."""
    from torch.utils.data import BatchSampler

    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return batches.sampler if type(batches) is BatchSampler else batches


def save_order(loader: Any) -> dict[str, Any]:
    """Return what decides the order of the next pass, as plain values."""
    order = find_order(loader)
    saved: dict[str, Any] = {"sampler": _describe(order)}
    epoch = getattr(order, "next_epoch", getattr(order, "epoch", None))
    if type(epoch) is int and hasattr(order, "set_epoch"):
        saved["epoch"] = epoch
    if (generator := _find_generator(order)) is not MISSING:
        saved |= _save_generator(generator)
    return saved


def restore_order(loader: Any, saved: dict[str, Any], running: bool) -> None:
    """Let the next pass have the order of a saved one.

    In a ``running`` epoch, which is replayed, an order that is not that of the state raises a
    :class:`~penstock.errors.StateError`. Between two epochs the sampler may be another one.
    """
    order = find_order(loader)
    was, now = saved.get("sampler"), _describe(order)
    if was != now:
        if running:
            raise StateError(f"the state is of other batches: the sampler was {was} and is {now}")
        return
    if "epoch" in saved:
        order.set_epoch(as_count(saved["epoch"], LAST_EPOCH))
    if "generator" in saved:
        _restore_generator(_find_generator(order), saved["generator"], running)
    if running and "global" in saved and saved["global"] != _save_generator(None)["global"]:
        raise StateError(
            f"the order of {now} is drawn from torch's global generator, whose state was another "
            "one when this epoch began: pass generator=torch.Generator().manual_seed(…) to the "
            "loader or sampler"
        )


def _save_generator(generator: Any) -> dict[str, Any]:
    """Return the state of torch's generator; of the global one (None), only a digest."""
    import torch

    if generator is None:
        now = torch.get_rng_state().numpy().tobytes()
        return {"global": hashlib.blake2b(now, digest_size=8).hexdigest()}
    packed = zlib.compress(generator.get_state().numpy().tobytes())
    return {"generator": [generator.initial_seed(), base64.b64encode(packed).decode()]}


def _restore_generator(generator: Any, saved: Any, running: bool) -> None:
    """Set a generator to a saved state, unless it has another seed between two epochs."""
    import torch

    seed, packed = saved
    now = generator.initial_seed() if isinstance(generator, torch.Generator) else None
    if now != seed:
        if running:
            raise StateError(
                f"the state is of other batches: the seed of the generator was {seed} and is {now}"
            )
        return
    unpacker = zlib.decompressobj()
    state = unpacker.decompress(base64.b64decode(packed, validate=True), LARGEST)
    if len(state) != len(generator.get_state()):
        raise StateError("the state is damaged: it has no state of a generator")
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _find_generator(order: Any) -> Any:
    """Return the generator of a sampler, or of the one inside a batch sampler; MISSING if it has
    none."""
    return getattr(getattr(order, "sampler", order), "generator", MISSING)


def _describe(order: Any) -> str:
    identity = getattr(order, "identity", None)
    if callable(identity):
        found = identity()
    elif isinstance(order, (Sequence, np.ndarray)):  # of numbers, or of batches
        return describe_argument(_plain(order))
    else:
        values = {name: getattr(order, name) for name in DECIDES if hasattr(order, name)}
        found = {name: _plain(value) for name, value in values.items()}
    return f"{type(order).__name__}({describe_argument(found)})"


def _plain(value: Any) -> Any:
    """Return a list or tensor of numbers as an array, and any other value as it is."""
    if isinstance(value, str) or not hasattr(value, "__len__"):
        return value
    try:
        return np.asarray(value)
    except ValueError:  # batches of several lengths
        return value
