"""``webdataset.filters``: the stages, and small functions for them.

Each stage exists twice, as in WebDataset: ``map(f)`` returns a stage, ``_map(source, f)`` runs it.
"""

from __future__ import annotations

import sys

from penstock.batches.batched import batched, listed, unbatched, unlisted
from penstock.batches.collate import combine_values, default_collation_fn
from penstock.compat.curried import FilterFunction, Plain, RestCurried, pipelinefilter
from penstock.compat.functions import (
    compose,
    compose2,
    dict2tuple,
    find_decoder,
    identity,
    parse_field_spec,
    pick,
    pipeline,
    transform_with,
    transformer,
    tuple2dict,
)
from penstock.compat.left_out import WarningModule
from penstock.compat.pipelinestage import PipelineStage
from penstock.handlers import reraise_exception
from penstock.stages.associate import associate
from penstock.stages.decode import (
    decode,
    decode_bin,
    decode_pickle,
    decode_text,
    default_decoders,
    xdecode,
)
from penstock.stages.field_names import getfirst
from penstock.stages.inspect import info, log_keys
from penstock.stages.map import map, map_dict, map_tuple
from penstock.stages.rename import rename, rename_keys
from penstock.stages.sample_cache import Cached, LMDBCached
from penstock.stages.select import rsample, select, slice
from penstock.stages.shuffle import detshuffle, shuffle
from penstock.stages.to_tuple import extract_keys, to_tuple

Curried = RestCurried
stage = pipelinefilter

_associate = Plain(associate)
_batched = Plain(batched)
_decode = Plain(decode)
_extract_keys = Plain(extract_keys)
_info = Plain(info)
_log_keys = Plain(log_keys)
_map = Plain(map)
_map_dict = Plain(map_dict)
_map_tuple = Plain(map_tuple)
_rename = Plain(rename)
_rename_keys = Plain(rename_keys)
_rsample = Plain(rsample)
_select = Plain(select)
_shuffle = Plain(shuffle)
_to_tuple = Plain(to_tuple)
_unbatched = Plain(unbatched)
_unlisted = Plain(unlisted)
_xdecode = Plain(xdecode)


sys.modules[__name__].__class__ = WarningModule

__all__ = [
    "Cached",
    "Curried",
    "FilterFunction",
    "LMDBCached",
    "PipelineStage",
    "RestCurried",
    "associate",
    "batched",
    "combine_values",
    "compose",
    "compose2",
    "decode",
    "decode_bin",
    "decode_pickle",
    "decode_text",
    "default_collation_fn",
    "default_decoders",
    "detshuffle",
    "dict2tuple",
    "extract_keys",
    "find_decoder",
    "getfirst",
    "identity",
    "info",
    "listed",
    "log_keys",
    "map",
    "map_dict",
    "map_tuple",
    "parse_field_spec",
    "pick",
    "pipeline",
    "pipelinefilter",
    "rename",
    "rename_keys",
    "reraise_exception",
    "rsample",
    "select",
    "shuffle",
    "slice",
    "stage",
    "to_tuple",
    "transform_with",
    "transformer",
    "tuple2dict",
    "unbatched",
    "unlisted",
    "xdecode",
]
