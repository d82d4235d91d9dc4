"""Items whose results are cached on disk, one file per sample."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
import warnings
import zipfile
from collections.abc import Callable
from typing import Any

from penstock.codecs.safe_pickle.unpickler import (
    pickle_dumps,
    torch_dumps,
    torch_loads,
    unpickle_loads,
)
from penstock.datasets.manifests.items import DynamicItem, GeneratorDynamicItem, Keys
from penstock.errors import (
    DecodingError,
    MissingPackage,
    Origin,
    PenstockError,
    PipelineError,
    UnsafeError,
    WriteError,
)
from penstock.storage.local.files import AtomicFile

_MAX_NAME = 200  # most file systems allow 255 bytes, and temporary names are longer


class CachedDynamicItem(DynamicItem):
    """An item that is computed once per sample and then read from ``<cache_location>/<id>.pt``.

    The first key it takes is ``"id"``, which names the file. Results are tensors, arrays and plain
    values (a tuple of them for several keys); anything else raises a
    :class:`~penstock.errors.WriteError`, because only these are read back: a cache cannot run code.
    Files are written atomically, and a damaged one is computed again, with a warning. A changed
    function is not detected: use another folder then.

    >>> import tempfile
    >>> from penstock import provides, takes
    >>> calls = []
    >>> @CachedDynamicItem.cache(tempfile.mkdtemp())
    ... @takes("id", "text")
    ... @provides("words")
    ... def split(id, text):
    ...     calls.append(id)
    ...     return text.split()
    >>> split("a", "one two"), split("a", "one two"), calls
    (['one', 'two'], ['one', 'two'], ['a'])
    """

    def __init__(
        self,
        cache_location: str | os.PathLike[str],
        takes: str | Keys = (),
        func: Callable[..., Any] | None = None,
        provides: str | Keys = (),
    ) -> None:
        super().__init__(takes, func, provides)
        self.cache_location = os.fspath(cache_location)
        if not self.takes or self.takes[0] != "id":
            raise PipelineError(
                f"a cached item must take 'id' first, which names its file: {self!r}"
            )

    @staticmethod
    def cache(
        cache_location: str | os.PathLike[str],
    ) -> Callable[[DynamicItem], CachedDynamicItem]:
        """Decorate an item; written above ``takes`` and ``provides``."""

        def decorate(item: DynamicItem) -> CachedDynamicItem:
            if not isinstance(item, DynamicItem):
                raise PipelineError("write the decorator cache above takes and provides")
            if isinstance(item, GeneratorDynamicItem):
                raise PipelineError(f"a generator cannot be cached, only a function: {item!r}")
            return CachedDynamicItem(cache_location, item.takes, item.func, item.provides)

        return decorate

    def path(self, uid: Any) -> str:
        """Return the path of the file for a sample's id."""
        return os.path.join(self.cache_location, _file_name(str(uid)) + ".pt")

    def __call__(self, uid: Any, *args: Any) -> Any:
        path = self.path(uid)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return self._compute_and_save(path, uid, args)
        try:
            return _loads(data)
        except UnsafeError as error:
            error.locate(Origin(path))
            raise
        except (MissingPackage, MemoryError):
            raise
        except Exception as error:  # noqa: BLE001  (a damaged file may raise anything)
            warnings.warn(f"{path} is damaged and is computed again: {error}", stacklevel=2)
            return self._compute_and_save(path, uid, args)

    def _compute_and_save(self, path: str, uid: Any, args: tuple[Any, ...]) -> Any:
        value = self.func(uid, *args)
        data = _dumps(value, path)
        os.makedirs(self.cache_location, exist_ok=True)
        with AtomicFile(path) as file:
            file.write(data)
        return value

    def _parts(self) -> Any:
        return type(self), (self.cache_location, self.takes, self.func, self.provides)


def _file_name(uid: str) -> str:
    name = re.sub(r"[/\\%\0]|^\.", lambda found: f"%{ord(found[0]):02X}", uid)
    if len(name.encode("utf-8", "surrogatepass")) <= _MAX_NAME:
        return name
    digest = hashlib.sha256(uid.encode("utf-8", "surrogatepass")).hexdigest()[:32]
    return f"{name[:40]}%{digest}"  # unique: in other names '%' precedes two hex digits


def _dumps(value: Any, path: str) -> bytes:
    """Serialise with torch, or as a plain pickle if there are arrays; check that it can be read."""
    with contextlib.suppress(MissingPackage, UnsafeError):
        data = torch_dumps(value)
        torch_loads(data)
        return data
    try:
        data = pickle_dumps(value)
        unpickle_loads(data)
    except PenstockError as error:
        raise WriteError(
            f"a cached item must return tensors, arrays or plain values: {error.message}",
            origin=Origin(path),
        ) from error
    return data


def _loads(data: bytes) -> Any:
    if not data.startswith(b"PK"):
        return unpickle_loads(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if (bad := archive.testzip()) is not None:  # torch does not verify the checksums
            raise DecodingError(f"the record {bad!r} is damaged")
    return torch_loads(data)
