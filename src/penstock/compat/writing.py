"""``penstock.writing``. Lives in :mod:`penstock.shards.writing`."""

from penstock.shards.writing import *  # noqa: F403
