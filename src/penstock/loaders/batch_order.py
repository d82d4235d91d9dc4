"""The order of a map-style loader's batches: its sampler, the sampler's epoch, and generators.

To continue in the middle of an epoch, the sampler runs again from the start of that epoch. Its
epoch and its generator, which change with every pass, are first set back to what they were then.
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

COMPARED = ("seed", "shuffle", "replacement", "num_samples", "batch_size", "drop_last")
COMPARED_OF_TORCH = (*COMPARED, "weights", "indices")
"""Attributes of samplers. Other classes may change their weights and indices in every epoch."""
MISSING: Any = object()
LAST_EPOCH = 1 << 40
LARGEST = 1 << 16
"""Bytes of the state of a generator; those of the CPU have 5,056."""


def find_sampler(loader: Any) -> Any:
    """Return the object that decides the order: the batch sampler, or the sampler inside it."""
    from torch.utils.data import BatchSampler

    batches = loader.batch_sampler
    if batches is None:
        return loader.sampler
    return batches.sampler if type(batches) is BatchSampler else batches


def describe_sampler(loader: Any) -> str:
    """Return the samplers of a loader, with the arguments that decide their order, as a text."""
    own = loader.batch_size is None and loader.batch_sampler is not None
    part: Any = loader.batch_sampler if own else find_sampler(loader)
    found: list[str] = []
    while part is not None and len(found) < 8:
        found.append(_describe(part))
        part = None if hasattr(part, "order_identity") else getattr(part, "sampler", None)
    return " of ".join(found)


def save_order(loader: Any) -> dict[str, Any]:
    """Return the epoch of the sampler and the state of its generator before the next pass."""
    sampler = find_sampler(loader)
    saved: dict[str, Any] = {}
    epoch = getattr(sampler, "next_epoch", getattr(sampler, "epoch", None))
    if type(epoch) is int and hasattr(sampler, "set_epoch"):
        saved["epoch"] = epoch
    generator = _find_generator(sampler)
    if generator is None:
        saved["global"] = _digest_of_global_generator()
    elif generator is not MISSING:
        packed = base64.b64encode(zlib.compress(generator.get_state().numpy().tobytes()))
        saved["generator"] = [generator.initial_seed(), packed.decode()]
        if generator is loader.generator and _has_live_workers(loader):
            saved["live_workers"] = True
    return saved


def restore_order(loader: Any, saved: dict[str, Any], mid_epoch: bool) -> None:
    """Set the epoch and the generator of a loader's sampler to saved ones.

    In the middle of an epoch, a generator that cannot be set back raises a
    :class:`~penstock.errors.StateError`; between two epochs it may be another one.
    """
    sampler = find_sampler(loader)
    if "epoch" in saved and hasattr(sampler, "set_epoch"):
        sampler.set_epoch(as_count(saved["epoch"], LAST_EPOCH))
    generator = _find_generator(sampler)
    if "generator" in saved:
        seed, packed = saved["generator"]
        now = None if generator is None or generator is MISSING else generator.initial_seed()
        if now == seed:
            _check_live_workers(saved)
            _set_generator(generator, packed)
        elif mid_epoch:
            raise StateError(
                f"the state is of other batches: the seed of the generator was {seed} and is {now}"
            )
    elif mid_epoch and "global" in saved and saved["global"] != _digest_of_global_generator():
        raise StateError(
            "the order is drawn from torch's global generator, which was in another state when "
            "this epoch began: pass generator=torch.Generator().manual_seed(…) to the loader"
        )


def _find_generator(sampler: Any) -> Any:
    """Return the generator of a sampler, or of the one inside a batch sampler: None for torch's
    global one, MISSING if it has none of torch."""
    import torch

    sampler = getattr(sampler, "sampler", sampler)
    generator = getattr(sampler, "generator", MISSING)
    draws = generator is None and _is_of_torch(sampler)
    return generator if draws or isinstance(generator, torch.Generator) else MISSING


def _is_of_torch(sampler: Any) -> bool:
    return type(sampler).__module__.startswith("torch.")


def _digest_of_global_generator() -> str:
    import torch

    state = torch.get_rng_state().numpy().tobytes()
    return hashlib.blake2b(state, digest_size=8).hexdigest()


def _has_live_workers(loader: Any) -> bool:
    """Return whether the next pass uses workers that run already. Starting them draws a number from
    the loader's generator."""
    return bool(loader.num_workers and getattr(loader, "_iterator", None) is not None)


def _check_live_workers(saved: dict[str, Any]) -> None:
    if saved.get("live_workers"):
        raise StateError(
            "a shuffled order with a generator and persistent_workers=True can be resumed in its "
            "first epoch only, since torch draws from the generator when workers start: use a "
            "ReproducibleRandomSampler, or pass the generator to the sampler instead of the loader"
        )


def _set_generator(generator: Any, packed: str) -> None:
    import torch

    unpacker = zlib.decompressobj()
    state = unpacker.decompress(base64.b64decode(packed, validate=True), LARGEST)
    if len(state) != len(generator.get_state()):
        raise StateError("the state is damaged: it has no state of a generator")
    generator.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))


def _describe(sampler: Any) -> str:
    if isinstance(sampler, (Sequence, np.ndarray)):  # of numbers, or of batches
        return _describe_numbers(sampler)
    if hasattr(sampler, "order_identity"):
        found = sampler.order_identity()
    else:
        names = COMPARED_OF_TORCH if _is_of_torch(sampler) else COMPARED
        values = {name: getattr(sampler, name) for name in names if hasattr(sampler, name)}
        found = {name: _describe_numbers(value) for name, value in values.items()}
    return f"{type(sampler).__name__}({describe_argument(found)})"


def _describe_numbers(value: Any) -> str:
    """Return a list, array or tensor of numbers as a digest, and any other value as a text."""
    if hasattr(value, "__len__") and not isinstance(value, str):
        try:
            array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
        except (TypeError, ValueError, RuntimeError):  # batches of several lengths; bfloat16
            return describe_argument(value)
        if not array.dtype.hasobject:
            digest = hashlib.blake2b(array.tobytes(), digest_size=8).hexdigest()
            return f"{array.dtype} {array.shape} #{digest}"
    return describe_argument(value)
