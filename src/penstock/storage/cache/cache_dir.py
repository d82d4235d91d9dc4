"""The folder of a shard cache: its names, its notes, its locks and its space.

For every shard there are up to four files, all beginning with its name (a digest of URL and
version, then something readable):

    NAME        the shard, complete
    NAME.part   what has arrived of it so far
    NAME.json   the note: where it comes from, its size and version, later its SHA-256
    NAME.lock   locked by the process that fetches it

Nothing here needs a server, and nothing is left locked by a process that was killed: all locks are
``flock``, which the kernel takes back. Who reads a shard holds a shared lock on it; who would
delete it needs an exclusive one. The folder's own ``.lock`` guards space and notes, for moments.
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
from penstock.storage.urls import scheme_of

from penstock.storage.local.file_locks import flock, unlock

SUFFIXES = (".part", ".json", ".lock")
NOTE_BYTES = 4096
"""What a note is counted as: a page."""
_NAME_BYTES = 80


@dataclasses.dataclass(frozen=True, slots=True)
class Note:
    """What is known of a cached shard. ``url`` is for people: secrets in it are left out."""

    url: str
    size_bytes: int | None = None
    version: str | None = None
    sha256: str | None = None
    reserved: int = 0
    boot: str = ""

    @property
    def whole_url(self) -> bool:
        """Whether the URL is all there, so that the source can be asked."""
        return "…" not in self.url


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A shard in the folder: ``complete``, or still arriving (or left by a killed process)."""

    name: str
    note: Note
    stored_bytes: int
    complete: bool
    used_s: float

    @property
    def cost_bytes(self) -> int:
        """What it takes, or will take once it has arrived."""
        if self.complete:
            return self.stored_bytes + NOTE_BYTES
        told = self.note.size_bytes or self.note.reserved
        return max(self.stored_bytes, told) + NOTE_BYTES


class CacheFolder:
    """One folder of cached shards, whoever uses it. ``size_bytes`` None sets no limit."""

    def __init__(self, path: str, size_bytes: int | None = None) -> None:
        self.path, self.size_bytes = path, size_bytes

    def file(self, name: str, suffix: str = "") -> str:
        """The path of one of a shard's files."""
        return os.path.join(self.path, name + suffix)

    def make(self) -> None:
        """Have the folder. Where it cannot be made, a StorageError."""
        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError as exn:
            raise StorageError(
                f"the cache folder cannot be made ({exn.strerror}): give cache_dir= or WDS_CACHE "
                "a folder where you may write",
                origin=Origin(self.path),
            ) from exn

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """Alone in the folder, for a moment."""
        descriptor = os.open(self.file(".lock"), _FLAGS | os.O_CREAT, 0o666)
        try:
            flock(descriptor, shared=False, wait=True)
            yield
        finally:
            unlock(descriptor)

    def note(self, name: str) -> Note | None:
        """The note of a shard; None where there is none that can be read."""
        try:
            with open(self.file(name, ".json"), encoding="utf-8") as stream:
                known: dict[str, Any] = json.load(stream)
            return Note(**known)
        except (OSError, ValueError, TypeError):
            return None

    def write_note(self, name: str, note: Note) -> None:
        """Put the note in its place, whole. The folder must be guarded."""
        draft = self.file("." + name, ".draft")
        with open(draft, "w", encoding="utf-8") as stream:
            json.dump(dataclasses.asdict(note), stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(draft, self.file(name, ".json"))

    def touch(self, name: str) -> None:
        """Remember that the shard is used now."""
        with contextlib.suppress(OSError):
            os.utime(self.file(name, ".json"))

    def claim(self, name: str) -> int | None:
        """The lock of who fetches the shard; None where somebody else has it."""
        path = self.file(name, ".lock")
        while True:
            descriptor = os.open(path, _FLAGS | os.O_CREAT, 0o666)
            try:
                if not flock(descriptor, shared=False, wait=False):
                    os.close(descriptor)
                    return None
                if same_file(descriptor, path):  # else its last owner has just deleted it
                    CLAIMS.add(descriptor)
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def release(self, name: str, claim: int) -> None:
        """Give the claim back."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.file(name, ".lock"))
        CLAIMS.discard(claim)
        os.close(claim)

    def hold(self, name: str, suffix: str = "") -> int | None:
        """The file, open for reading and safe from deletion until closed; None without one."""
        path = self.file(name, suffix)
        while True:
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                return None
            try:
                flock(descriptor, shared=True, wait=True)
                # While we waited it may have been deleted, or have got its final name.
                if same_file(descriptor, path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def entries(self) -> list[Entry]:
        """All shards, complete or not, the one used least recently first."""
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
            return None  # somebody else's file: never counted, never deleted
        status = item.stat()
        note = self.note(name)
        used_s = status.st_mtime
        with contextlib.suppress(FileNotFoundError):
            used_s = os.stat(self.file(name, ".json")).st_mtime
        complete = name == item.name
        return Entry(name, note or Note("?"), status.st_size, complete, used_s)

    def make_room(self, name: str, wanted: int) -> bool:
        """Delete shards that nobody uses until ``wanted`` bytes may be taken for this one.

        The folder must be guarded. False where that cannot be reached: then the others stay.
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
        """Whether nobody reads or fetches the shard just now."""
        return self._if_free(entry, lambda: None)

    def remove(self, entry: Entry) -> bool:
        """Delete a shard that nobody uses; False where somebody does. The folder is guarded."""

        def delete() -> None:
            # First the shard: one without its note would be a shard that nobody can check.
            # The lock is ours until it is released, and goes then: who deletes it twice may
            # delete the one of the next owner, and let in a second.
            for suffix in ("" if entry.complete else ".part", ".json"):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.file(entry.name, suffix))

        return self._if_free(entry, delete)

    def _if_free(self, entry: Entry, action: Callable[[], None]) -> bool:
        path = self.file(entry.name, "" if entry.complete else ".part")
        claim = self.claim(entry.name)
        if claim is None:
            return False
        try:
            try:
                descriptor = os.open(path, _FLAGS)
            except FileNotFoundError:
                return False  # it has just got its final name, or is gone
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
        """Delete drafts, and notes without a shard, that killed processes have left."""
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
"""The claims of this process. A forked child closes its copies, or a killed parent's claims would
live on in it; closing a copy takes no lock from the parent."""


def _close_claims() -> None:
    for descriptor in CLAIMS:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    CLAIMS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_claims)


def same_file(descriptor: int, path: str) -> bool:
    """Whether the open file still has that name."""
    try:
        there = os.stat(path)
    except FileNotFoundError:
        return False
    mine = os.fstat(descriptor)
    return (mine.st_dev, mine.st_ino) == (there.st_dev, there.st_ino)


def name_of(url: str, size_bytes: int | None, version: str | None, readable: str) -> str:
    """The name of one version of one shard: no two have the same.

    >>> name_of("s3://a/x.tar", 5, '"e"', "x.tar")
    '7ba14897f613c5b33f6f-4aa95d8d-x.tar'
    """
    told = "" if version is None and size_bytes is None else f"{size_bytes} {version}"
    tail = re.sub(r"[^A-Za-z0-9._-]+", "_", readable)[-_NAME_BYTES:]
    if tail.endswith((*SUFFIXES, ".draft")):
        tail += "_"
    return f"{url_digest(url)}-{hashlib.sha256(told.encode()).hexdigest()[:8]}-{tail}"


def url_digest(url: str) -> str:
    """The part of a name that tells URLs apart."""
    return hashlib.sha256(url.encode("utf-8", "surrogateescape")).hexdigest()[:20]


def shown_url(url: str) -> str:
    """The URL for people and notes: passwords, signatures and commands give way to ``…``.

    >>> shown_url("https://me:secret@host/x.tar?sig=abc"), shown_url("pipe:curl -H token url")
    ('https://…@host/x.tar?…', 'pipe:curl …')
    """
    if scheme_of(url) == "pipe":
        first, blank, _ = url.partition(" ")
        return first + " …" if blank else first
    # A name alone is a secret (a token) in http; in s3://profile@bucket it is not.
    secret = r"[^/?#]*@" if scheme_of(url) in ("http", "https") else r"[^/?#]*:[^/?#]*@"
    url = re.sub(rf"^([^:/?#]+://){secret}", r"\1…@", url)
    path, mark, _ = url.partition("?")
    return path + "?…" if mark else url


def boot_id() -> str:
    """Which start of the machine this is: after a power cut the end of a file may be wrong."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
            return stream.read().strip()
    except OSError:
        return ""
