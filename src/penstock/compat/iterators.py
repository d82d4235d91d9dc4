"""``webdataset.iterators`` of version 0.1: the stages as functions of the source.

>>> list(map([1, 2], str))
['1', '2']
"""

from __future__ import annotations

import penstock as wds
from penstock.batches.collate import default_collation_fn
from penstock.compat.curried import Plain
from penstock.compat.functions import (
    compose,
    compose2,
    identity,
    parse_field_spec,
    pipeline,
    transform_with,
    transformer,
)
from penstock.handlers import reraise_exception
from penstock.stages.field_names import getfirst

associate = Plain(wds.associate)
batched = Plain(wds.batched)
decode = Plain(wds.decode)
info = Plain(wds.info)
log_keys = Plain(wds.log_keys)
map = Plain(wds.map)
map_dict = Plain(wds.map_dict)
map_tuple = Plain(wds.map_tuple)
rename = Plain(wds.rename)
rsample = Plain(wds.rsample)
select = Plain(wds.select)
shuffle = Plain(wds.shuffle)
to_tuple = Plain(wds.to_tuple)
unbatched = Plain(wds.unbatched)
unlisted = Plain(wds.unlisted)

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
