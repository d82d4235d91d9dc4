"""``extract``: the members of shards as files of a folder."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import posixpath
from collections.abc import Sequence
from typing import Any

from penstock.errors import Origin, PenstockError, PipelineError, SampleError, WriteError
from penstock.redact import redact
from penstock.storage import open_url
from penstock.storage.local.open_folder import OpenFolder
from penstock.storage.schemes import SERVERS
from penstock.storage.small_files import delete_file
from penstock.storage.urls import is_remote, join_name, local_path, rewrite_url, scheme_of
from penstock.tools.field_spec import FieldSpec
from penstock.tools.inputs import (
    LocatedSample,
    Shards,
    handler_for,
    list_shards,
    read_keys,
    read_samples,
)
from penstock.tools.outputs import exists, exists_error, refuse_existing
from penstock.tools.verification import unsafe_name

NAME_BYTES = 255
"""The longest name of a file on common file systems."""
_LOCAL_FOR_FSSPEC = {"file", "local", "asynclocal"}


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
    folder, have control characters or are too long for a file are a WriteError, and so is a file
    where another one is, or needs a folder; with ``on_error="skip"`` the sample is skipped and
    counted. A file that exists is refused unless ``force``. If
    the extraction fails or is interrupted, the files it has written are removed, except those that
    replaced others.
    """
    spec = FieldSpec(fields) if isinstance(fields, str) else fields
    wanted = None if keys is None else set(read_keys(keys))
    handler, skipped = handler_for(on_error)
    done = Extracted(os.fspath(output))
    missing = set(wanted or ())
    written: dict[str, Origin] = {}
    urls = list_shards(shards, list_file)
    with _open_target(done.output, force) as target:
        for located in read_samples(urls, handler=handler):
            if wanted is not None and located.key not in wanted:
                continue
            missing.discard(located.key)
            data = located.fields if spec is None else spec.select(located.fields)
            try:
                names = [_checked(located, field) for field in data]
                for name in names:
                    _check_place(name, written, target, located.origin)
            except PenstockError as error:
                handler(error)
                continue
            for name, value in zip(names, data.values()):
                written[posixpath.normpath(name)] = located.origin
                target.add(name, value)
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


def _check_place(
    name: str, written: dict[str, Origin], target: _LocalTarget | _RemoteTarget, origin: Origin
) -> None:
    """Raise an error if the file cannot be written beside those that were."""
    place = posixpath.normpath(name)
    if place in written:
        raise WriteError(
            f"{name!r} was extracted from {written[place]}; --on-error skip leaves this one out",
            origin=origin,
        )
    while target.has_folders and (place := posixpath.dirname(place)):
        if place in written:
            raise WriteError(
                f"{name!r} needs a folder where {place!r} is a file, extracted from "
                f"{written[place]}; --on-error skip leaves out what comes second",
                origin=origin,
            )
    target.check(name, origin)


def _open_target(output: str, force: bool) -> _LocalTarget | _RemoteTarget:
    url = rewrite_url(output)
    path = local_path(url)
    if output == "-" or not (path or is_remote(output)):
        raise PipelineError(f"the output is a folder, not {redact(output)!r}")
    if path is not None:
        return _LocalTarget(path, force)
    if any(scheme_of(part) in _LOCAL_FOR_FSSPEC for part in url.split("::")):
        raise PipelineError(
            f"the output {redact(output)!r} is a local folder: give its path, so that links in the "
            "folder are not followed"
        )
    if scheme_of(output) in SERVERS and not output.partition("://")[2].strip("/"):
        raise PipelineError(
            f"the output {redact(output)!r} has no bucket or server: name a folder in one"
        )
    return _RemoteTarget(output, force)


class _LocalTarget(OpenFolder):
    """A local folder that files are written to; undone if the ``with`` block raises."""

    has_folders = True

    def __init__(self, path: str, force: bool) -> None:
        super().__init__(path)
        self.force = force

    def check(self, name: str, origin: Origin) -> None:
        """Raise an error if the file exists and may not be replaced."""
        kind = self.kind(name)
        if kind == "folder":
            raise WriteError(
                f"{name!r} is a folder already: other keys are in it; --on-error skip leaves out "
                "what comes second",
                origin=origin,
            )
        if kind is not None and not self.force:
            raise exists_error(os.path.join(self.path, name))

    def add(self, name: str, data: bytes) -> None:
        """Write a file."""
        self.write(name, data)


class _RemoteTarget(contextlib.AbstractContextManager["_RemoteTarget", None]):
    """A folder of a store that objects are written to; undone if the ``with`` block raises."""

    has_folders = False

    def __init__(self, folder: str, force: bool) -> None:
        self.folder, self.force = folder, force
        self._new: list[str] = []  # objects that replace nothing

    def check(self, name: str, origin: Origin) -> None:
        """Raise an error if the object exists and may not be replaced."""
        refuse_existing(join_name(self.folder, name), self.force)

    def add(self, name: str, data: bytes) -> None:
        """Write an object."""
        url = join_name(self.folder, name)
        if not self.force or not exists(url):
            self._new.append(url)  # first: an interrupt may come at any moment
        with open_url(url, "wb") as stream:
            stream.write(data)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for url in self._new if kind is not None else ():
            with contextlib.suppress(OSError):
                delete_file(url)
