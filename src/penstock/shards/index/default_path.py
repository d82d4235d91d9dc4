"""Which file is the index of a set of shards, if the user names none.

It is beside the shards and named after what their names have in common: ``s.index.parquet`` for
``s0000.tar`` and ``s0001.tar``. So it also belongs to larger and smaller sets of these shards, and
never loses shards that still exist. Shards with a similar name that it does not have any of are
another set, with a file of their own: ``s0007.index.parquet``.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
from collections.abc import Collection, Sequence

from penstock.errors import PenstockError
from penstock.redact import canonical_url
from penstock.shards.index.parquet_schema import arrow, damage_of, parse_metadata
from penstock.shards.index.part_files import place_of, places_of
from penstock.shards.index.row_source import FileRowSource
from penstock.storage.urls import is_remote, local_path, scheme_of

KEPT = os.path.join("~", ".cache", "penstock", "indexes")
"""Where the indexes of remote shards are kept, in a folder for each folder of shards."""


def beside(shards: Sequence[str]) -> str:
    """Return the path of the index that shards with such names have in common.

    Their names are already expanded.
    """
    return os.path.join(_folder_of(shards), f"{_common_name(shards) or 'shards'}.index.parquet")


def place_for(shards: Sequence[str]) -> str:
    """Return the path of the index of these shards: :func:`beside` them, unless the file there
    holds only other shards; then one that is named after the first and the last shard."""
    common = beside(shards)
    if not os.path.exists(common):
        return common
    source = FileRowSource.in_use(common)
    others: Collection[str] = () if source is None else places_of(source)
    if source is None:
        with contextlib.suppress(PenstockError), damage_of(common):  # a damaged one is made again
            metadata = arrow().parquet.read_schema(common).metadata
            others = {place_of(shard.url) for shard in parse_metadata(metadata, common).shards}
    if any(place_of(url) in others for url in shards) or not any(map(may_exist, others)):
        return common
    first, last = _stem(shards[0]), _stem(shards[-1])
    name = first if len(shards) == 1 else f"{first}--{last}"
    return os.path.join(os.path.dirname(common), f"{name}.index.parquet")


def may_exist(url: str) -> bool:
    """Return False for a local file that does not exist."""
    return is_remote(url) or os.path.exists(place_of(url))


def _folder_of(shards: Sequence[str]) -> str:
    folders = {os.path.dirname(_name_of(url)) for url in shards}
    if any(map(is_remote, shards)):
        digest = hashlib.sha256("\n".join(sorted(folders)).encode()).hexdigest()[:16]
        return os.path.join(os.path.expanduser(KEPT), digest)
    if len(folders) == 1:
        return folders.pop()
    if any(map(os.path.isabs, folders)):
        folders = set(map(os.path.abspath, folders))
    return os.path.commonpath([f or "." for f in folders])


def _common_name(shards: Sequence[str]) -> str:
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*map(_stem, shards)))
    return "".join(letters[0] for letters in alike).rstrip("0123456789").rstrip("-_.")


def _stem(url: str) -> str:
    return os.path.basename(_name_of(url)).partition(".")[0]


def _name_of(url: str) -> str:
    """Return the path of a local shard, also of a ``file:`` URL; the canonical URL of others."""
    path = local_path(url)
    if path is None:
        return canonical_url(url)
    return os.path.join(os.curdir, path) if scheme_of(path) else path
