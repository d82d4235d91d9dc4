"""``penstock.index``. Lives in :mod:`penstock.shards.index`."""

from penstock.shards.index import *  # noqa: F403
