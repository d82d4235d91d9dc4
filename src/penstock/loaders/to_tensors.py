"""What a loader does to batches that come ready: arrays become tensors, as torch's loader does it.

torch's own ``default_convert`` gives the same, but takes longer over a record of JSON than it
took to decode it. Without torch, batches stay as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import chain
from typing import Any

from penstock.batches.collate import default_collation_fn, stack_tensors

PLAIN = frozenset((str, bytes, int, float, bool, type(None)))
STAYS = PLAIN | {dict, list}
COLUMN = 16
"""A list of so many may be a column of a batch, of which all values are alike."""
DEEPEST = 32
"""What lies deeper, perhaps in itself, is walked through as torch does it."""


def torch_data() -> Any:
    """torch's module for loaders; None where torch is not installed, as on threads it need not."""
    if (data := sys.modules.get("torch.utils.data")) is not None:
        return data
    try:
        from torch.utils import data as found
    except ImportError:
        return None
    return found


def converted(value: Any) -> Any:
    """The value with its arrays as tensors, which share their memory.

    >>> converted({"n": 3, "names": ("a", "b")})
    {'n': 3, 'names': ['a', 'b']}
    """
    data = torch_data()
    return value if data is None else _converted(value, data.default_convert)


def collated(items: list[Any]) -> Any:
    """Samples as one batch, as torch's loader makes it, but in memory that is used again.

    Without torch it is :func:`penstock.default_collation_fn`.
    """
    data = torch_data()
    if data is None:
        return default_collation_fn(items)
    import numpy as np
    import torch
    from torch.utils.data._utils.collate import collate, default_collate_fn_map

    def tensors(batch: Any, *, collate_fn_map: Any = None) -> Any:
        if len({value.shape for value in batch}) > 1:
            return torch.stack(list(batch))  # which says what is wrong
        return stack_tensors(batch)

    def arrays(batch: Any, *, collate_fn_map: Any = None) -> Any:
        if batch[0].dtype.kind in "USOV":
            return default_collate_fn_map[np.ndarray](batch, collate_fn_map=collate_fn_map)
        return tensors([torch.as_tensor(value) for value in batch])

    known = {**default_collate_fn_map, torch.Tensor: tensors, np.ndarray: arrays}
    return collate(items, collate_fn_map=known)


def _converted(value: Any, convert: Any) -> Any:
    kind = type(value)
    if kind in PLAIN:
        return value
    # Most lists and records hold nothing to convert: asking so is a single call.
    if kind is list or kind is tuple:
        if PLAIN.issuperset(map(type, value)) or (len(value) >= COLUMN and stays(value)):
            return list(value)
        return [_converted(item, convert) for item in value]
    if kind is dict:
        if PLAIN.issuperset(map(type, value.values())):
            return value
        return {key: _converted(item, convert) for key, item in value.items()}
    return convert(value)


def stays(values: Sequence[Any]) -> bool:
    """Whether there is nothing to convert, however deep: plain values, lists and dicts of them.

    All that lie equally deep are asked at once, without a step of Python for each.

    >>> stays([{"id": 1, "boxes": [[0, 1], [2, 3]]}]), stays([{"size": (2, 3)}])
    (True, False)
    """
    for _ in range(DEEPEST):
        kinds = set(map(type, values))
        if not STAYS.issuperset(kinds):
            break
        if kinds == {dict}:
            dicts, lists = list(map(dict.values, values)), []
        else:
            dicts = [value.values() for value in values if type(value) is dict]
            lists = [value for value in values if type(value) is list]
        if PLAIN.issuperset(map(type, chain.from_iterable(chain(dicts, lists)))):
            return True
        values = list(chain.from_iterable(chain(dicts, lists)))
    return False
