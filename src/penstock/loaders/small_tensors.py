"""Sends small tensors from worker processes by value.

torch sends the memory of a tensor as a file descriptor, which the loader requests from the worker
over a socket. That is right for images, but takes a millisecond, as long as reading and decoding a
batch of tiny samples. Small tensors are pickled with the rest of the batch instead.
"""

from __future__ import annotations

import sys
from typing import Any

SMALL_BYTES = 64 << 10
NUMPY_DTYPES = {"bool", "uint8", "int8", "int16", "int32", "int64"}
NUMPY_DTYPES |= {"float16", "float32", "float64", "complex64", "complex128"}
"""The dtypes that numpy has too: not bfloat16, 8-bit floats or quantised types."""
MAX_LIST = 64
"""A longer list is a column of values of one type: only its first value is checked."""


class ByValue:
    """A tensor that is pickled by value and unpickled as a tensor with its own memory.

    >>> import pickle, torch
    >>> pickle.loads(pickle.dumps(ByValue(torch.arange(3))))
    tensor([0, 1, 2])
    """

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __reduce__(self) -> Any:
        return _rebuild_tensor, (self.tensor.numpy(),)


def _rebuild_tensor(array: Any) -> Any:
    import torch

    return torch.from_numpy(array)


def wrap_small_tensors(batch: Any) -> Any:
    """Return the batch with its small tensors wrapped to be pickled by value."""
    torch = sys.modules.get("torch")
    return batch if torch is None else _wrap(batch, torch)


def _wrap(value: Any, torch: Any) -> Any:
    kind = type(value)
    if kind is torch.Tensor:
        return ByValue(value) if _is_small(value, torch) else value
    if kind is list or kind is tuple:
        if len(value) <= MAX_LIST or type(value[0]) is torch.Tensor:
            return kind([_wrap(item, torch) for item in value])
    elif kind is dict:
        return {name: _wrap(item, torch) for name, item in value.items()}
    return value


def _is_small(tensor: Any, torch: Any) -> bool:
    """Return whether pickling as a numpy array is faster and restores the same tensor."""
    return (
        tensor.numel() * tensor.element_size() <= SMALL_BYTES
        and tensor.device.type == "cpu"
        and tensor.layout is torch.strided
        and str(tensor.dtype).removeprefix("torch.") in NUMPY_DTYPES
        and not tensor.requires_grad
        and not tensor.is_shared()
        and not tensor.is_conj()
        and not tensor.is_neg()
        and tensor.is_contiguous()
    )
