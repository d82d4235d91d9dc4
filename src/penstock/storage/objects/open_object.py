"""Open an object of any store: the one way from a store and a URL to a stream."""

from __future__ import annotations

from typing import Any

from penstock.storage.client.store import Store
from penstock.storage.readers.remote_file import RemoteFile
from penstock.storage.streams import BufferedStream

BUFFER_BYTES = 1 << 18


def open_object(
    store: Store, url: str, mode: str, buffer_bytes: int | None = None, **options: Any
) -> Any:
    """Return a reader (``"rb"``) or a writer (``"wb"``) of an object of the store.

    Reading is unbuffered unless ``buffer_bytes`` is given; -1 selects the default size. Options
    are those of :class:`~penstock.storage.readers.remote_file.RemoteFile`, or of the store's
    writer.
    """
    if mode == "wb":
        return store.writer(url, **options)
    file = RemoteFile(store, url, **options)
    if not buffer_bytes:
        return file
    return BufferedStream(file, BUFFER_BYTES if buffer_bytes < 0 else buffer_bytes)
