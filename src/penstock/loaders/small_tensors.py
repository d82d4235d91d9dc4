"""How batches travel from a worker process: small tensors by value.

torch sends the memory of a tensor by a file descriptor, which the loader asks the worker for over
a socket: that is right for pictures, but takes a millisecond, in which a batch of tiny samples is
read and decoded. What is small goes with the rest of the batch.
"""

from __future__ import annotations

import sys
from typing import Any

SMALL_BYTES = 64 << 10
NUMPYS = {"bool", "uint8", "int8", "int16", "int32", "int64"}
NUMPYS |= {"float16", "float32", "float64", "complex64", "complex128"}
"""The types that numpy has too; not bfloat16, the floats of 8 bits, or quantised ones."""
COLUMNS = 64
"""A longer list is a column itself, of values that are all of a kind."""


class ByValue:
    """A tensor on its way, that arrives as a tensor with memory of its own.

    >>> import pickle, torch
    >>> pickle.loads(pickle.dumps(ByValue(torch.arange(3))))
    tensor([0, 1, 2])
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        return _arrived, (self.tensor.numpy(),)


def _arrived(array: Any) -> Any:
    import torch

    return torch.from_numpy(array)


def by_value(batch: Any) -> Any:
    """The batch with its small tensors as they travel best."""
    torch = sys.modules.get("torch")
    return batch if torch is None else _by_value(batch, torch)


def _by_value(value: Any, torch: Any) -> Any:
    kind = type(value)
    if kind is torch.Tensor:
        return ByValue(value) if _is_small(value, torch) else value
    if kind is list or kind is tuple:
        if len(value) <= COLUMNS or type(value[0]) is torch.Tensor:
            return kind([_by_value(item, torch) for item in value])
    elif kind is dict:
        return {name: _by_value(item, torch) for name, item in value.items()}
    return value


def _is_small(tensor: Any, torch: Any) -> bool:
    """Whether numpy's way to send it is shorter, and gives the same."""
    return (
        tensor.numel() * tensor.element_size() <= SMALL_BYTES
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and str(tensor.dtype).removeprefix("torch.") in NUMPYS
        and not tensor.requires_grad
        and not tensor.is_shared()
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.is_contiguous()
    )
