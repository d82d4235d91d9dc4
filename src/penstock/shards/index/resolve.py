"""Resolve the user's ``index=`` to the index of the given shards."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Sequence
from typing import Any

from penstock.errors import Origin, PenstockError, PipelineError, ShardError, StaleIndexError
from penstock.nearest_name import checks_arguments
from penstock.redact import redact
from penstock.shards.index.build import extend_index, one_builder, read_columns
from penstock.shards.index.default_path import may_exist, place_for
from penstock.shards.index.index import Index
from penstock.shards.index.part_files import place_of
from penstock.shards.index.shard_stamps import stamp_of
from penstock.shards.index.sidecars import Sidecar, read_sidecar
from penstock.storage.listing import find_shards
from penstock.storage.urls import is_remote

logger = logging.getLogger("penstock.shards.index")


@checks_arguments
def open_index(urls: Any, index: Any = True, *, group: str | None = None) -> Index:
    """Return the index of exactly the shards ``urls``, in that order.

    ``index`` is an :class:`Index`; the path of one; a file of another tool, or a list of them, one
    for each shard (see :mod:`penstock.shards.index.sidecars`); or True: the file
    :func:`default_index_path`, which is made, or shards added to it, as needed. Making it is
    logged to "penstock.shards.index". A shard that an index does not have is a
    :class:`~penstock.errors.StaleIndexError`, and so is an index whose samples were not grouped by
    ``group`` (None accepts any, and makes an index with "key").

    >>> import os, tempfile, penstock
    >>> name = os.path.join(tempfile.mkdtemp(), "x-0.tar")
    >>> with penstock.TarWriter(name) as sink:
    ...     size = sink.write({"__key__": "a", "cls": 7})
    >>> len(open_index(name))
    1
    >>> sorted(os.listdir(os.path.dirname(name)))
    ['x-0.tar', 'x.index.parquet']
    """
    found = _open(find_shards(urls), index, group or "key")
    if group is not None:
        found.check_group(group)
    if found.shards and not is_remote(found.shards[0].url):
        with contextlib.suppress(PenstockError):  # it is raised when the shard is read
            found.check(0)  # so that a copy is logged here, and not by every loader worker
    return found


def _open(shards: list[str], index: Any, group: str) -> Index:
    if isinstance(index, Index):
        return _restricted(index, shards)
    if index is True:
        return _restricted(_default(shards, group), shards)
    if isinstance(index, (list, tuple)) and index:
        return _with_sidecar(shards, read_sidecar([os.fspath(path) for path in index], shards))
    if isinstance(index, (str, os.PathLike)):
        path = os.path.expanduser(os.fspath(index))
        if path.endswith((".json", ".idx")):
            return _with_sidecar(shards, read_sidecar([path], shards))
        return _restricted(Index.load(path), shards)
    raise PipelineError(f"index= is True, a path, a list of paths or an Index, not {index!r}")


def default_index_path(urls: Any) -> str:
    """Return the default path of the index of some shards: beside them.

    That of remote shards is in ``~/.cache/penstock/indexes``. The file may hold more shards of
    that name. If there is one that holds only others, the path is another: ``s0007.index.parquet``.

    >>> default_index_path("data/train-{000..099}.tar")
    'data/train.index.parquet'
    """
    return place_for(find_shards(urls))


def _default(shards: list[str], group: str = "key") -> Index:
    """Return the index beside the shards; build or extend it if shards are missing."""
    path = place_for(shards)
    there = complete_index(path, shards)
    if there is not None:
        return there
    for url in shards:
        if url == shards[0] or not may_exist(url):
            stamp_of(url)  # raises the error of a mistyped path before a folder is made
    if any(map(is_remote, shards)):
        os.makedirs(os.path.dirname(path), exist_ok=True)
    with one_builder(path):
        there = complete_index(path, shards)  # another process may have made it meanwhile
        if there is not None:
            return there
        if place_for(shards) == path:
            logger.info("making the index %s of %d shards, once", path, len(shards))
            if os.path.exists(path):
                with contextlib.suppress(ShardError):  # a damaged one is made again
                    group = Index.load(path).group  # shards are added as the others were read
            return extend_index(shards, path, group)
    return _default(shards, group)  # another process has made it the index of other shards


def complete_index(path: str, shards: Sequence[str]) -> Index | None:
    """Return the index at a path; None if it must be built or extended."""
    if not os.path.exists(path):
        return None
    try:
        there = Index.load(path)
    except ShardError as error:
        if read_columns(path):
            raise  # columns cannot be computed here: the user has to build the index again
        logger.warning("making the index again from the shards: %s", error)
        return None
    known = there.places
    # An index with columns belongs to the user, who has to extend it.
    return there if there.columns or all(place_of(url) in known for url in shards) else None


def _with_sidecar(shards: list[str], sidecar: Sidecar) -> Index:
    """Return the sidecar's own index, or the default one after comparing it with the sidecar."""
    if sidecar.index is not None:
        return _restricted(sidecar.index, shards)
    index = _restricted(_default(shards), shards)
    sidecar.compare(index)
    return index


def _restricted(index: Index, shards: Sequence[str]) -> Index:
    """Return the index of only these shards, under the URLs that the user passed."""
    places = index.places
    numbers = []
    for url in shards:
        number = places.get(place_of(url))
        if number is None:
            first = f", the first is {redact(index.shards[0].url)!r}" if index.shards else ""
            raise StaleIndexError(
                f"the index {index.path or ''} has no such shard (it has {len(index.shards)}"
                f"{first}): run 'penstock index' over all shards",
                origin=Origin(url),
            )
        numbers.append(number)
    return index.select(numbers, shards)
