"""From what the user wrote to a plain list of shard URLs.

In comes a string (``"train-{000..099}.tar::val/*.tar"``), a path, or a list of them; out goes a
list of URLs, each naming one shard, in a fixed order. Only names are handled here: the right-hand
neighbour, :mod:`penstock.storage`, opens them.
"""

from __future__ import annotations

from penstock.storage.urls.braces import expand_braces
from penstock.storage.urls.expand import expand_urls
from penstock.storage.urls.rewrite import rewrite_url
from penstock.storage.urls.scheme import is_remote, local_path, scheme_of

__all__ = ["expand_braces", "expand_urls", "is_remote", "local_path", "rewrite_url", "scheme_of"]
