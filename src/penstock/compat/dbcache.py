"""``webdataset.dbcache``: samples cached in SQLite files.

Lives in :mod:`penstock.stages.sample_cache`.
"""

from __future__ import annotations

from penstock.stages.sample_cache import DBCache

__all__ = ["DBCache"]
