"""Every stage as a method of a pipeline.

``dataset.shuffle(1000)`` is ``dataset.compose(shuffle(1000))``: same arguments, same meaning. The
methods are made from ``METHODS``. ``fluent.pyi`` has their types and docstrings, for type checkers
and editors; tools/make_fluent.py generates it from the stages.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from penstock.batches.batched import batched, listed, unbatched, unlisted
from penstock.batches.bucketing.bucketed import dynamic_bucketed_batch
from penstock.batches.packing.packed import packed
from penstock.batches.planning.planned_samples import planned
from penstock.documents.interleaved import interleaved_to_dict
from penstock.documents.stage import documents
from penstock.stages.associate import associate
from penstock.stages.decode import decode, xdecode
from penstock.stages.inspect import info, log_keys
from penstock.stages.map import map, map_dict, map_tuple
from penstock.stages.rename import rename, rename_keys
from penstock.stages.sample_cache import Cached, DBCache, LMDBCached
from penstock.stages.select import rsample, select, slice
from penstock.stages.shuffle import detshuffle, shuffle
from penstock.stages.to_tuple import extract_keys, to_tuple

T = TypeVar("T")

STAGES: tuple[Any, ...] = (
    map,
    map_dict,
    map_tuple,
    select,
    rsample,
    slice,
    rename,
    rename_keys,
    associate,
    to_tuple,
    extract_keys,
    decode,
    xdecode,
    shuffle,
    detshuffle,
    info,
    log_keys,
    batched,
    unbatched,
    listed,
    planned,
    unlisted,
    dynamic_bucketed_batch,
    packed,
    documents,
    interleaved_to_dict,
)
METHODS: dict[str, Any] = {stage.__name__: stage for stage in STAGES} | {
    "mcached": Cached,
    "lmdb_cached": LMDBCached,
    "dbcache": DBCache,
}
"""Method → the stage that it appends. A stage added here gets its method."""


class Fluent(Generic[T]):
    """The methods of a pipeline that append a stage and return a new pipeline."""

    def compose(self, *stages: Any) -> Any:
        raise NotImplementedError


def _make_method(name: str, stage: Any) -> Any:
    def method(self: Any, /, *args: Any, **kwargs: Any) -> Any:
        return self.compose(stage(*args, **kwargs))

    method.__name__, method.__qualname__, method.__doc__ = name, f"Fluent.{name}", stage.__doc__
    method.__wrapped__ = stage.__init__  # type: ignore[attr-defined] # for inspect.signature
    return method


for _name, _stage in METHODS.items():
    setattr(Fluent, _name, _make_method(_name, _stage))
Fluent.batch = Fluent.batched  # type: ignore[attr-defined]
