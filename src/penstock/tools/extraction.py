"""``extract``: the members of shards as files of a folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from penstock.errors import Origin, PenstockError, SampleError, WriteError
from penstock.storage import open_url
from penstock.storage.small_files import delete_file
from penstock.storage.streams import storage_error
from penstock.storage.urls import local_path
from penstock.tools.field_spec import FieldSpec
from penstock.tools.inputs import (
    LocatedSample,
    Shards,
    handler_for,
    list_shards,
    read_keys,
    read_samples,
)
from penstock.tools.outputs import ExistsError, exists, refuse_existing
from penstock.tools.verification import unsafe_name

NAME_BYTES = 255
"""The longest name of a file on common file systems."""


@dataclasses.dataclass
class Extracted:
    """How much was extracted."""

    output: str
    samples: int = 0
    files: int = 0
    bytes: int = 0
    skipped: int = 0
    messages: list[str] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return dataclasses.asdict(self)


def extract(
    shards: Shards,
    output: str | os.PathLike[str],
    *,
    list_file: str | None = None,
    keys: str | Sequence[str] | None = None,
    fields: FieldSpec | str | None = None,
    on_error: str = "abort",
    force: bool = False,
) -> Extracted:
    """Write every member of the samples as the file ``KEY.FIELD`` in the folder ``output``.

    ``keys`` are the samples to extract, or a file that lists them. Names that would leave the
    folder, have control characters or are too long for a file are a WriteError, or with
    ``on_error="skip"`` skipped and counted. A file that exists is refused unless ``force``. If
    the extraction fails or is interrupted, the files it has written are removed, except those that
    replaced others.
    """
    spec = FieldSpec(fields) if isinstance(fields, str) else fields
    wanted = None if keys is None else set(read_keys(keys))
    handler, skipped = handler_for(on_error)
    done = Extracted(os.fspath(output))
    missing = set(wanted or ())
    with _Target(done.output, force) as target:
        for located in read_samples(list_shards(shards, list_file), handler=handler):
            if wanted is not None and located.key not in wanted:
                continue
            missing.discard(located.key)
            data = located.fields if spec is None else spec.select(located.fields)
            try:
                names = [_checked(located, field) for field in data]
            except PenstockError as error:
                handler(error)
                continue
            for name, value in zip(names, data.values()):
                target.write(name, value, located.origin)
                done.files += 1
                done.bytes += len(value)
            done.samples += 1
        if spec is not None:
            spec.check_found()
        if missing:
            first = ", ".join(map(repr, sorted(missing)[:5]))
            raise SampleError(f"{len(missing):,} of the keys are in no shard, such as {first}")
    done.skipped, done.messages = skipped.count, skipped.messages
    return done


def _checked(located: LocatedSample, field: str) -> str:
    """Return the file name of a field, or raise WriteError."""
    name = f"{located.key}.{field}"
    problem = unsafe_name(name)
    if problem is None and any(len(os.fsencode(p)) > NAME_BYTES for p in name.split("/")):
        problem = f"a part of it is longer than {NAME_BYTES} bytes"
    if problem is not None:
        raise WriteError(
            f"the name {name!r} cannot become a file: {problem}; --on-error skip leaves it out",
            origin=located.origin,
        )
    return name


class _Target:
    """The folder that files are written to; undone if the ``with`` block raises."""

    def __init__(self, folder: str, force: bool) -> None:
        self.folder, self.force = folder, force
        self.path = local_path(folder)
        self._written: dict[str, Origin] = {}
        self._new: list[str] = []  # of those, the ones that replace nothing
        self._made: list[str] = []

    def __enter__(self) -> _Target:
        return self

    def write(self, name: str, data: bytes, origin: Origin) -> None:
        url = os.path.join(self.folder, name)
        if self.path is not None:
            self._make_folders(os.path.dirname(os.path.join(self.path, name)))
            if os.path.isdir(os.path.join(self.path, name)):
                raise WriteError(
                    f"{name!r} is a folder already: other keys are in it", origin=origin
                )
        if url in self._written:
            raise WriteError(f"{name!r} was extracted from {self._written[url]}", origin=origin)
        refuse_existing(url, self.force)
        self._written[url] = origin
        if not self.force or not exists(url):
            self._new.append(url)  # first: an interrupt may come at any moment
        with open_url(url, "wb") as stream:
            stream.write(data)

    def _make_folders(self, folder: str) -> None:
        root = os.path.realpath(self.path or ".")
        inside = os.path.realpath(folder)
        if inside != root and not inside.startswith(os.path.join(root, "")):
            raise WriteError(f"{folder!r} is a link that leaves the folder: remove it")
        missing = []
        while folder and not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for one in reversed(missing):
            self._made.append(one)
            try:
                os.mkdir(one)
            except FileExistsError:
                raise ExistsError(f"{one!r} is a file, and a key needs a folder there") from None
            except OSError as error:
                raise storage_error("cannot make the folder", one, error) from error

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            return
        for url in self._new:
            with contextlib.suppress(OSError):
                delete_file(url)
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):
                os.rmdir(folder)
