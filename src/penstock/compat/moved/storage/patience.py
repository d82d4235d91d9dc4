"""``penstock.storage.patience``, the former path of :mod:`penstock.storage.client.retry_policy`."""

from __future__ import annotations

import warnings
from typing import Any

from penstock.storage.client.retry_policy import RetryPolicy


def __getattr__(name: str) -> Any:
    if name != "Patience":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    message = "Patience is now penstock.RetryPolicy"
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return RetryPolicy
