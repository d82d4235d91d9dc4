"""Combines the values of several samples: numbers and arrays are stacked, the rest listed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from penstock.codecs.image_files import suggest_rename
from penstock.errors import SampleError
from penstock.memory.output import empty

Collation = Callable[[list[Any]], Any]


def combine_values(
    values: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True
) -> Any:
    """Return the values of one field as an array, a tensor or a list, by the type of the first.

    >>> combine_values([1, 2]), combine_values(["a", "b"])
    (array([1, 2]), ['a', 'b'])
    """
    import numpy as np

    first = values[0]
    torch = sys.modules.get("torch")
    if isinstance(first, (int, float, np.generic)) and not isinstance(first, (str, bytes)):
        if combine_scalars:
            kinds = set(map(type, values))
            if any(issubclass(kind, (str, bytes)) or kind is type(None) for kind in kinds):
                return list(values)
            return np.array(values)
    elif torch is not None and isinstance(first, torch.Tensor):
        if combine_tensors:
            _check_equal_shapes(values)
            return stack_tensors(values)
    elif isinstance(first, np.ndarray) and combine_tensors:
        _check_equal_shapes(values)
        return stack_arrays(values)
    return list(values)


STORED_BYTES = 64 << 10
"""Batches of at least this size use memory that is reused."""


def stack_arrays(values: Sequence[Any]) -> Any:
    """Stack arrays of one shape: return the block that they are rows of, or a copy."""
    import numpy as np

    from penstock.memory.batch_buffers import whole

    first = values[0]
    if first.nbytes * len(values) >= STORED_BYTES:
        if (block := whole(values)) is not None:
            return block
        if not first.dtype.hasobject and all(
            type(value) is np.ndarray and value.dtype == first.dtype for value in values
        ):
            return np.stack(values, out=empty((len(values), *first.shape), first.dtype))
    return np.array(values)


def stack_tensors(values: Sequence[Any]) -> Any:
    """Stack tensors of one shape: return the block that they are rows of, or a copy."""
    import torch

    first = values[0]
    size: int = first.element_size() * first.nelement() * len(values)
    if size >= STORED_BYTES and all(map(_numpy_can_view, values)):
        try:
            return torch.from_numpy(stack_arrays([value.numpy() for value in values]))
        except TypeError:  # numpy has no bfloat16
            pass
    return torch.stack(list(values))


def _numpy_can_view(value: Any) -> bool:
    """Return True if numpy can use a tensor's memory without a copy."""
    layout = str(value.layout) == "torch.strided"
    return layout and value.device.type == "cpu" and not value.requires_grad


def _check_equal_shapes(values: Sequence[Any]) -> None:
    shapes = {tuple(getattr(value, "shape", ())) for value in values}
    if len(shapes) > 1:
        raise SampleError(
            f"all shapes must be equal in collation, got {sorted(shapes)}: "
            "crop, resize or pad before batching, or pass a collation_fn to batched"
        )


def default_collation_fn(
    samples: Sequence[Any], combine_tensors: bool = True, combine_scalars: bool = True
) -> Any:
    """Return a list of samples as one batch: a dict for dicts, a tuple of columns for tuples.

    Fields are in the order of the first sample.

    >>> default_collation_fn([(1, "a"), (2, "b")])
    (array([1, 2]), ['a', 'b'])
    >>> default_collation_fn([{"x": 1.5}, {"x": 2.5}])
    {'x': array([1.5, 2.5])}
    """
    first = samples[0]
    if isinstance(first, dict):
        for sample in samples:
            if sample.keys() != first.keys():
                remedy = suggest_rename(
                    sorted(first.keys() - sample.keys()), sorted(sample.keys() - first.keys())
                )
                raise SampleError(
                    f"keys don't match in different samples: {sorted(first)} and {sorted(sample)}"
                    f"{remedy}"
                )
        return {
            key: combine_values([s[key] for s in samples], combine_tensors, combine_scalars)
            for key in first
        }
    if isinstance(first, (tuple, list)):
        if len(lengths := set(map(len, samples))) > 1:
            found = sorted(lengths)
            raise SampleError(f"keys don't match in different samples: tuples of {found} values")
        return tuple(
            combine_values(column, combine_tensors, combine_scalars) for column in zip(*samples)
        )
    raise SampleError(
        f"batched needs dicts or tuples, not {type(first).__name__}: "
        "to_tuple makes them, collation_fn=None returns plain lists"
    )
