"""The one way from a store and a URL to an open stream."""

from __future__ import annotations

from typing import Any

from penstock.storage.objects.http import opened
from penstock.storage.readers.remote_file import RemoteFile
from penstock.storage.client.store import Store


def open_remote(
    store: Store, url: str, mode: str, buffer_bytes: int | None = None, **options: Any
) -> Any:
    """An object of the store: a :class:`~penstock.storage.readers.remote_file.RemoteFile`, or its writer.

    Reading is unbuffered unless ``buffer_bytes`` says otherwise; -1 means the usual size.
    """
    if mode == "wb":
        return store.writer(url, **options)
    return opened(RemoteFile(store, url, **options), buffer_bytes)
