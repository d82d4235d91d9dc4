"""The folder of a shard cache: names, metadata, locks and disk space.

For every shard there are up to four files, all beginning with its name (a digest of URL and
version, then something readable):

    NAME        the complete shard
    NAME.part   the bytes that have arrived so far
    NAME.json   its metadata: the URL, size and version, later the SHA-256
    NAME.lock   locked by the process that downloads it

No server is needed, and a killed process leaves nothing locked: all locks are ``flock``, which the
kernel releases. A reader of a shard holds a shared lock on it; deleting it takes an exclusive one.
The folder's ``.lock`` protects space and metadata, for short moments.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator
from typing import Any

from penstock.errors import Origin, StorageError
from penstock.storage.client.store import parse_json
from penstock.storage.local.file_locks import flock, same_file, unlock

SUFFIXES = (".part", ".json", ".lock")
NOTE_BYTES = 4096
"""The size that a metadata file counts as: one page."""
LONGEST_NOTE_BYTES = 1 << 16
_NAME_BYTES = 80
DIGESTS = 20 + 1 + 8 + 1
"""Length of the part of a name that identifies URL and version."""


@dataclasses.dataclass(frozen=True, slots=True)
class EntryMeta:
    """The metadata of a cached shard. ``url`` is for people: it has no secrets."""

    url: str
    size_bytes: int | None = None
    version: str | None = None
    sha256: str | None = None
    reserved: int = 0
    boot: str = ""
    whole_url: bool = True
    """Whether nothing was removed from the URL, so that the source can be opened with it."""

    @classmethod
    def of(cls, known: Any) -> EntryMeta:
        """Return the metadata in a JSON value. An invalid value raises a ValueError."""
        kinds = {"size_bytes": int, "version": str, "sha256": str, "reserved": int, "boot": str}
        if not isinstance(known, dict) or not isinstance(known.get("url"), str):
            raise ValueError("not the metadata of a shard")
        # Earlier versions left a mark in the URL instead.
        whole = known.get("whole_url", "…" not in known["url"]) is True
        note: dict[str, Any] = {"url": known["url"], "whole_url": whole}
        for name, kind in kinds.items():
            value = known.get(name)
            wrong = type(value) is not kind or (type(value) is int and value < 0)
            if value is not None and wrong:
                raise ValueError(f"metadata whose {name} is {value!r}")
            if value is not None:
                note[name] = value
        return cls(**note)


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A shard in the folder: ``complete``, or partial (being downloaded, or left by a kill)."""

    name: str
    note: EntryMeta
    stored_bytes: int
    complete: bool
    used_s: float

    @property
    def cost_bytes(self) -> int:
        """The space that it takes, or will take when it is complete."""
        if self.complete:
            return self.stored_bytes + NOTE_BYTES
        expected = self.note.size_bytes or self.note.reserved
        return max(self.stored_bytes, expected) + NOTE_BYTES


class CacheFolder:
    """A folder of cached shards. ``size_bytes`` None sets no limit."""

    def __init__(self, path: str, size_bytes: int | None = None) -> None:
        self.path, self.size_bytes = path, size_bytes

    def file(self, name: str, suffix: str = "") -> str:
        """Return the path of one of a shard's files."""
        return os.path.join(self.path, name + suffix)

    def make(self) -> None:
        """Create the folder if it is missing. A failure raises a StorageError."""
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError as exn:
            raise StorageError(
                f"the cache folder cannot be created ({exn.strerror}): set cache_dir= or "
                "WDS_CACHE to a folder where you may write",
                origin=Origin(self.path),
            ) from exn

    @contextlib.contextmanager
    def lock_folder(self) -> Iterator[None]:
        """Hold the folder's exclusive lock during a ``with`` block."""
        descriptor = os.open(self.file(".lock"), _FLAGS | os.O_CREAT, 0o666)
        try:
            flock(descriptor, shared=False, wait=True)
            yield
        finally:
            unlock(descriptor)

    def note(self, name: str) -> EntryMeta | None:
        """Return the metadata of a shard; None if there is none that can be read."""
        try:
            with open(self.file(name, ".json"), "rb") as stream:
                return EntryMeta.of(parse_json(stream.read(LONGEST_NOTE_BYTES)))
        except (OSError, ValueError):
            return None

    def write_note(self, name: str, note: EntryMeta) -> None:
        """Write the metadata atomically. The folder must be locked."""
        draft = self.file("." + name, ".draft")
        with open(draft, "w", encoding="utf-8") as stream:
            json.dump(dataclasses.asdict(note), stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, self.file(name, ".json"))

    def find_name(self, name: str) -> str:
        """Return the name of this version of the shard in the folder; ``name`` if it is missing.

        The readable end of the name may differ: another process may have chosen it differently.
        """
        if os.path.exists(self.file(name)):
            return name
        digests = name[:DIGESTS]
        with contextlib.suppress(FileNotFoundError):
            for item in os.scandir(self.path):
                if item.name.startswith(digests):
                    return re.sub(r"\.(part|json|lock)\Z", "", item.name)
        return name

    def touch(self, name: str) -> None:
        """Record that the shard is used now."""
        with contextlib.suppress(OSError):
            os.utime(self.file(name, ".json"))

    def claim(self, name: str) -> int | None:
        """Take the lock for downloading the shard; None if another process or thread has it."""
        path = self.file(name, ".lock")
        while True:
            descriptor = os.open(path, _FLAGS | os.O_CREAT, 0o666)
            try:
                if not flock(descriptor, shared=False, wait=False):
                    os.close(descriptor)
                    return None
                if same_file(descriptor, path):  # else the previous owner has just deleted it
                    CLAIMS.add(descriptor)
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def release(self, name: str, claim: int) -> None:
        """Release the lock that :meth:`claim` returned."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.file(name, ".lock"))
        CLAIMS.discard(claim)
        os.close(claim)

    def hold(self, name: str, suffix: str = "") -> int | None:
        """Open a file for reading, protected from deletion until closed; None if it is missing."""
        path = self.file(name, suffix)
        while True:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                flock(descriptor, shared=True, wait=True)
                # Meanwhile it may have been deleted or renamed to its final name.
                if same_file(descriptor, path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def entries(self) -> list[Entry]:
        """Return all shards, complete or not, the least recently used first."""
        found = []
        with contextlib.suppress(FileNotFoundError):
            for item in os.scandir(self.path):
                with contextlib.suppress(FileNotFoundError):
                    entry = self._entry(item)
                    if entry is not None:
                        found.append(entry)
        return sorted(found, key=lambda entry: entry.used_s)

    def _entry(self, item: os.DirEntry[str]) -> Entry | None:
        name = item.name.removesuffix(".part")
        if item.name.startswith(".") or item.name.endswith((".json", ".lock")):
            return None
        if not _NAME.match(name):
            return None  # not a file of the cache: never counted, never deleted
        status = item.stat()
        note = self.note(name)
        used_s = status.st_mtime
        with contextlib.suppress(FileNotFoundError):
            used_s = os.stat(self.file(name, ".json")).st_mtime
        complete = name == item.name
        return Entry(name, note or EntryMeta("?"), status.st_size, complete, used_s)

    def make_room(self, name: str, wanted: int) -> bool:
        """Delete unused shards until ``wanted`` bytes are free for this one.

        The folder must be locked. Return False if that is impossible; then nothing is deleted.
        """
        entries = self.entries()
        self._sweep({entry.name for entry in entries})
        if self.size_bytes is None:
            return True
        others = [entry for entry in entries if entry.name != name]
        excess = sum(entry.cost_bytes for entry in others) + wanted + NOTE_BYTES - self.size_bytes
        if wanted + NOTE_BYTES > self.size_bytes:
            return False
        if excess > 0 and excess > sum(entry.cost_bytes for entry in others if self.is_free(entry)):
            return False
        for entry in others:
            if excess <= 0:
                break
            if self.remove(entry):
                excess -= entry.cost_bytes
        return excess <= 0

    def is_free(self, entry: Entry) -> bool:
        """Return whether the shard is neither read nor downloaded at the moment."""
        return self._run_if_free(entry, lambda: None)

    def remove(self, entry: Entry) -> bool:
        """Delete a shard; return False if it is in use. The folder must be locked."""

        def delete() -> None:
            # First the shard: without its metadata it could not be checked. The lock file is
            # deleted by release(): deleting it here too could delete that of the next owner, and
            # two processes would hold the lock.
            for suffix in ("" if entry.complete else ".part", ".json"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.file(entry.name, suffix))

        return self._run_if_free(entry, delete)

    def _run_if_free(self, entry: Entry, action: Callable[[], None]) -> bool:
        path = self.file(entry.name, "" if entry.complete else ".part")
        claim = self.claim(entry.name)
        if claim is None:
            return False
        try:
            try:
                descriptor = os.open(path, _FLAGS)
            except FileNotFoundError:
                return False  # just renamed to its final name, or deleted
            try:
                if not flock(descriptor, shared=False, wait=False):
                    return False
                action()
                return True
            finally:
                unlock(descriptor)
        finally:
            self.release(entry.name, claim)

    def _sweep(self, names: set[str]) -> None:
        """Delete drafts, and metadata without a shard, that killed processes have left."""
        for item in os.scandir(self.path):
            name = item.name.removesuffix(".json")
            orphan = name != item.name and _NAME.match(name) and name not in names
            if _DRAFT.match(item.name):
                os.unlink(item.path)
            elif orphan and (claim := self.claim(name)) is not None:
                try:
                    if not os.path.exists(self.file(name)):
                        os.unlink(item.path)
                finally:
                    self.release(name, claim)


_FLAGS = os.O_RDWR | getattr(os, "O_CLOEXEC", 0)
_NAME = re.compile(r"[0-9a-f]{20}-[0-9a-f]{8}-")
_DRAFT = re.compile(rf"\.{_NAME.pattern}.*\.draft\Z", re.DOTALL)

CLAIMS: set[int] = set()
"""The descriptors of this process's download locks. A forked child closes its copies, which would
otherwise keep the locks of a killed parent; closing a copy does not release the parent's lock."""


def _close_claims() -> None:
    for descriptor in CLAIMS:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    CLAIMS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_claims)


def make_name(url: str, size_bytes: int | None, version: str | None, readable: str) -> str:
    """Return the name of one version of one shard; names never collide.

    >>> make_name("s3://a/x.tar", 5, '"e"', "x.tar")
    '7ba14897f613c5b33f6f-4aa95d8d-x.tar'
    """
    identity = "" if version is None and size_bytes is None else f"{size_bytes} {version}"
    tail = re.sub(r"[^A-Za-z0-9._-]+", "_", readable)[-_NAME_BYTES:]
    if tail.endswith((*SUFFIXES, ".draft")):
        tail += "_"
    return f"{digest_url(url)}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}-{tail}"


def is_free_name(name: str) -> bool:
    """Return whether a file of that name may be in the folder without belonging to the cache."""
    return name not in ("", ".", "..") and not name.startswith(".") and not _NAME.match(name)


def digest_url(url: str) -> str:
    """Return the part of a name that identifies the URL."""
    return hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[:20]
