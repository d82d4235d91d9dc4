"""``webdataset.cborsiterators``: CBOR records.

Lives in :mod:`penstock.stages.reading.record_files`.
"""

from __future__ import annotations

from penstock.stages.reading.record_files import cbors_to_samples

cbors2_to_samples = cbors_to_samples

__all__ = ["cbors2_to_samples", "cbors_to_samples"]
