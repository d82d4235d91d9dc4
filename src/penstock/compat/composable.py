"""``webdataset.composable``: the methods of data sets in version 0.1."""

from __future__ import annotations

from penstock.compat.chains import Composable, Processor, Shorthands

__all__ = ["Composable", "Processor", "Shorthands"]
