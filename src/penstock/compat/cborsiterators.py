"""``webdataset.cborsiterators``: CBOR records. Lives in :mod:`penstock.stages.records`."""

from __future__ import annotations

from penstock.stages.records import cbors_to_samples

cbors2_to_samples = cbors_to_samples

__all__ = ["cbors2_to_samples", "cbors_to_samples"]
