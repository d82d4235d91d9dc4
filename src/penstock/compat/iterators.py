"""``webdataset.iterators`` of version 0.1: the stages as functions of the source.

>>> list(map([1, 2], str))
['1', '2']
"""

from __future__ import annotations

from penstock.batches.collate import default_collation_fn
from penstock.compat import filters
from penstock.compat.filters import (
    compose,
    compose2,
    getfirst,
    identity,
    parse_field_spec,
    pipeline,
    reraise_exception,
    transform_with,
    transformer,
)

associate = filters._associate
batched = filters._batched
decode = filters._decode
info = filters._info
log_keys = filters._log_keys
map = filters._map
map_dict = filters._map_dict
map_tuple = filters._map_tuple
rename = filters._rename
rsample = filters._rsample
select = filters._select
shuffle = filters._shuffle
to_tuple = filters._to_tuple
unbatched = filters._unbatched
unlisted = filters._unlisted

__all__ = [
    "associate",
    "batched",
    "compose",
    "compose2",
    "decode",
    "default_collation_fn",
    "getfirst",
    "identity",
    "info",
    "log_keys",
    "map",
    "map_dict",
    "map_tuple",
    "parse_field_spec",
    "pipeline",
    "rename",
    "reraise_exception",
    "rsample",
    "select",
    "shuffle",
    "to_tuple",
    "transform_with",
    "transformer",
    "unbatched",
    "unlisted",
]
