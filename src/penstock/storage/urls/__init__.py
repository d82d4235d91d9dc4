"""Expand what the user wrote to a list of shard URLs.

A string (``"train-{000..099}.tar::val/*.tar"``), a path, or a list of them comes in; a list of
URLs, one for each shard, in a fixed order comes out. Only names are handled here:
:mod:`penstock.storage.schemes` opens them and :mod:`penstock.storage.listing` looks up remote
patterns.

- ``expand``: the expansion; ``braces``: ``{000..099}``; ``scheme``: the scheme of a URL and local
  paths; ``rewrite``: the rules in ``WDS_REWRITE``.
"""

from __future__ import annotations

from penstock.storage.urls.braces import expand_braces
from penstock.storage.urls.expand import (
    UrlLimit,
    expand_urls,
    has_wildcards,
    split_urls,
)
from penstock.storage.urls.rewrite import rewrite_url
from penstock.storage.urls.scheme import (
    encode_name,
    is_remote,
    is_stream,
    join_name,
    local_path,
    scheme_of,
)

__all__ = [
    "UrlLimit",
    "encode_name",
    "expand_braces",
    "expand_urls",
    "has_wildcards",
    "is_remote",
    "is_stream",
    "join_name",
    "local_path",
    "rewrite_url",
    "scheme_of",
    "split_urls",
]
