"""Which versions of shards a state was saved with, to refuse those that have changed since."""

from __future__ import annotations

import hashlib
import json
import os
import stat
from typing import Any

from penstock.context import Context
from penstock.errors import Origin, StateError
from penstock.redact import canonical_url, redact
from penstock.stages.run import State, Ticket
from penstock.storage.small_files import FileStamp
from penstock.storage.urls import local_path, rewrite_url

KEPT = 32
"""Shards whose version is saved, by all lanes together: samples of older ones rarely wait in a
buffer."""


class ShardVersions:
    """The versions of the shards that a lane has read last, by the shard's ticket.

    A version is the size, the modification time or ETag, and a digest of the folder. In another
    folder there is a copy, whose modification time differs: only the sizes are compared.
    """

    def __init__(self, context: Context, stage: Any) -> None:
        self._context = context
        self._stage = 0 if context.versions is None else context.versions.number(stage)
        self._most = max(KEPT // (context.lanes or 1), 2)
        self._found: dict[str, list[Any]] = {}
        self._saved: dict[str, list[Any]] = {}

    def opened(self, shard: Ticket, url: str, stream: Any) -> None:
        """Record the version of a shard that is read from its beginning."""
        key = json.dumps(shard)
        self._saved.pop(key, None)
        self._found.pop(key, None)
        if (found := _version(url, stream)) is not None:
            if self._context.versions is not None:
                place = [self._stage, self._context.epoch, shard]
                self._context.versions.opened(place, found, url, self._most)
            self._found[key] = found
            if len(self._found) > self._most:
                del self._found[next(iter(self._found))]
            if self._context.engine is not None:  # which saves the state only now and then
                self._context.engine.shard_opened(self._context.lane)

    def resumed(self, shard: Ticket, url: str, stream: Any) -> None:
        """Check a shard that is read from a restored position; record it if its version is not
        known, as after changes were accepted."""
        if json.dumps(shard) in self._saved:
            self.check(shard, url, stream)
        else:
            self.opened(shard, url, stream)

    def check(self, shard: Ticket, url: str, stream: Any) -> None:
        """Raise StateError unless a shard is the one that a restored state was saved with."""
        saved = self._saved.get(json.dumps(shard))
        found = None if saved is None else _version(url, stream)
        if saved is not None and found is not None:
            _compare(saved, found, url)

    def state(self) -> State:
        return [[json.loads(key), *found] for key, found in self._found.items()]

    def restore(self, state: State) -> None:
        self._saved = _saved_versions(state)
        self._found = dict(self._saved)


class LaneVersions:
    """The versions of the shards that a lane has read last, in all passes of all its readers.

    A state that is resumed by a replay contains them. They are compared as the replay opens the
    shards again, by the reader, the epoch of its pass and the shard's ticket.
    """

    def __init__(self) -> None:
        self._readers: list[Any] = []
        self._found: dict[str, list[Any]] = {}
        self._saved: dict[str, list[Any]] = {}

    def number(self, reader: Any) -> int:
        """Return the number of a stage that reads shards: the same in every process."""
        for number, known in enumerate(self._readers):
            if known is reader:
                return number
        self._readers.append(reader)
        return len(self._readers) - 1

    def opened(self, place: State, found: list[Any], url: str, most: int) -> None:
        """Record the version of a shard that is read from its beginning; compare it with that of
        the saved state."""
        key = json.dumps(place)
        if (saved := self._saved.pop(key, None)) is not None:
            _compare(saved, found, url)
        self._found.pop(key, None)
        self._found[key] = found
        if len(self._found) > most:
            del self._found[next(iter(self._found))]

    def state(self) -> State:
        return [[json.loads(key), *one] for key, one in {**self._found, **self._saved}.items()]

    def restore(self, state: State) -> None:
        self._saved = _saved_versions(state)


def _saved_versions(state: State) -> dict[str, list[Any]]:
    saved = {json.dumps(shard): found for shard, *found in state}
    if any(len(found) != 3 for found in saved.values()):
        raise StateError("the state is damaged: the version of a shard is incomplete")
    return saved


def _compare(saved: list[Any], found: list[Any], url: str) -> None:
    """Raise StateError if the version of a shard is not that of a state."""
    size, version, place = saved
    if saved == found:
        return
    if size == found[0] and (place != found[2] or None in (version, found[1])):
        return
    raise StateError(
        "the shard has changed since the state was saved: it had "
        f"{_describe(size, version)} and has {_describe(*found[:2])}; begin a new run, or "
        "accept other samples: load_state_dict(state, changed='accept')",
        origin=Origin(redact(url)),
    )


def _version(url: str, stream: Any) -> list[Any] | None:
    """Return size, version and folder of an open shard; None if it has no size."""
    path = local_path(rewrite_url(url))
    if path is None:
        size = getattr(stream, "size_bytes", None)
        stamp = FileStamp.of_object(size, getattr(stream, "etag", None))
    else:
        try:
            status = os.fstat(stream.fileno())
        except (AttributeError, OSError):  # a stream of a user's opener
            return None
        if not stat.S_ISREG(status.st_mode):
            return None
        stamp = FileStamp.of_file(status)
    folder = os.path.dirname(canonical_url(url) if path is None else os.path.abspath(path))
    place = hashlib.blake2b(folder.encode("utf-8", "replace"), digest_size=3).hexdigest()
    return None if stamp.size_bytes is None else [*stamp, place]


def _describe(size: Any, version: Any) -> str:
    return f"{size} bytes and the version {version}"
