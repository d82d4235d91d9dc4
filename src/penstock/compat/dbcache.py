"""``webdataset.dbcache``: samples kept in SQLite files. Lives in :mod:`penstock.stages.cache`."""

from __future__ import annotations

from penstock.stages.cache import DBCache

__all__ = ["DBCache"]
