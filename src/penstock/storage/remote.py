"""The one way from a store and a URL to an open stream."""

from __future__ import annotations

from typing import Any

from .http import opened
from .ranges import RemoteFile
from .store import Store


def open_remote(
    store: Store, url: str, mode: str, buffer_bytes: int | None = None, **options: Any
) -> Any:
    """An object of the store: a :class:`~penstock.storage.ranges.RemoteFile`, or its writer.

    Reading is unbuffered unless ``buffer_bytes`` says otherwise; -1 means the usual size.
    """
    if mode == "wb":
        return store.writer(url, **options)
    return opened(RemoteFile(store, url, **options), buffer_bytes)
