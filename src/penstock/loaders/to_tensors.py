"""Converts arrays to tensors as torch's loader does.

torch's ``default_convert`` returns the same, but takes longer on a JSON record than decoding it
did. Without torch, batches are returned unchanged.
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
"""A list of at least this length may be a column of a batch, with values of one type."""
DEEPEST = 32
"""Deeper values, perhaps with cycles, are left to torch's recursion."""


def torch_data() -> Any:
    """Return ``torch.utils.data``, or None if torch is not installed (threads do not need it)."""
    if (data := sys.modules.get("torch.utils.data")) is not None:
        return data
    try:
        from torch.utils import data as found
    except ImportError:
        return None
    return found


def arrays_to_tensors(value: Any) -> Any:
    """Return the value with its arrays as tensors that share their memory.

    >>> arrays_to_tensors({"n": 3, "names": ("a", "b")})
    {'n': 3, 'names': ['a', 'b']}
    """
    data = torch_data()
    return value if data is None else _convert(value, data.default_convert)


def collate_in_place(items: list[Any]) -> Any:
    """Collate samples as torch's loader does, but into memory that is reused.

    Without torch this is :func:`penstock.default_collation_fn`.
    """
    data = torch_data()
    if data is None:
        return default_collation_fn(items)
    import numpy as np
    import torch
    from torch.utils.data._utils.collate import collate, default_collate_fn_map

    def tensors(batch: Any, *, collate_fn_map: Any = None) -> Any:
        if len({value.shape for value in batch}) > 1:
            return torch.stack(list(batch))  # raises a helpful error
        return stack_tensors(batch)

    def arrays(batch: Any, *, collate_fn_map: Any = None) -> Any:
        if batch[0].dtype.kind in "USOV":
            return default_collate_fn_map[np.ndarray](batch, collate_fn_map=collate_fn_map)
        return tensors([torch.as_tensor(value) for value in batch])

    known = {**default_collate_fn_map, torch.Tensor: tensors, np.ndarray: arrays}
    return collate(items, collate_fn_map=known)


def _convert(value: Any, convert: Any) -> Any:
    kind = type(value)
    if kind in PLAIN:
        return value
    # Most lists and records hold nothing to convert: one call checks that.
    if kind is list or kind is tuple:
        if PLAIN.issuperset(map(type, value)) or (
            len(value) >= COLUMN and needs_no_conversion(value)
        ):
            return list(value)
        return [_convert(item, convert) for item in value]
    if kind is dict:
        if PLAIN.issuperset(map(type, value.values())):
            return value
        return {key: _convert(item, convert) for key, item in value.items()}
    return convert(value)


def needs_no_conversion(values: Sequence[Any]) -> bool:
    """Return whether there are only plain values, and lists and dicts of them, at any depth.

    All values of one depth are checked in one call, without a Python loop over them.

    >>> needs_no_conversion([{"id": 1, "boxes": [[0, 1], [2, 3]]}])
    True
    >>> needs_no_conversion([{"size": (2, 3)}])
    False
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
