"""``speechbrain.dataio``: its module paths, for programs that import data classes from there."""

from __future__ import annotations

import importlib
from typing import Any

from penstock.compat.left_out import left_out_of

_MODULES = ("batch", "dataio", "dataloader", "dataset", "iterators", "sampler")
_left_out = left_out_of("dataio")


def __getattr__(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}") if name in _MODULES else _left_out(name)
