"""``split``, ``sort`` and ``select``: the samples of shards, in other shards."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Unpack

from penstock.errors import Origin, PipelineError, SampleError, StaleIndexError
from penstock.jobs.engines.engine import count_cores
from penstock.redact import redact
from penstock.rng import CounterRng, stable_hash
from penstock.tools.disk_columns import DiskNumbers, sort_numbers
from penstock.tools.inputs import Shards, list_shards, read_keys
from penstock.tools.sample_places import SamplePlaces, open_inputs
from penstock.tools.shard_output import (
    OutputPlace,
    ShardOptions,
    takes_shard_options,
    write_order,
)
from penstock.tools.slices import StreamSlice, parse_slice
from penstock.tools.units import parse_size
from penstock.tools.written import Written

if TYPE_CHECKING:
    from penstock.shards.index import Index

KINDS = {"text": bytes, "int": int, "float": float}


# ── split ───────────────────────────────────────────────────────────────────────────────────────


@takes_shard_options
def split(
    shards: Shards,
    output: str | os.PathLike[str],
    *,
    list_file: str | None = None,
    slice: StreamSlice | str | None = None,
    post: str | None = None,
    **options: Unpack[ShardOptions],
) -> Written:
    """Write the samples of shards, in order, to new shards of ``count`` samples or ``size`` bytes.

    Without either a shard has about 1 GB. ``post`` is a shell command that runs after each shard,
    with ``%s`` replaced by its name. A call that was killed continues when it is made again.
    """
    part = parse_slice(slice) if isinstance(slice, str) else slice
    place = _numbered_place(output)
    urls = list_shards(shards, list_file)
    with place.spool() as spool:
        places = SamplePlaces(urls, open_inputs(urls, spool))
        return write_order(
            places,
            range(len(places))[part.start : part.stop : part.step] if part else range(len(places)),
            place,
            function="penstock.tools.split/1",
            settings={"slice": part},
            **options,
            post=post,
        )


def _numbered_place(output: str | os.PathLike[str]) -> OutputPlace:
    place = OutputPlace(output)
    if not place.numbered:
        raise PipelineError(
            f"split needs a pattern with a number, such as out-%06d.tar, not {redact(place.text)!r}"
        )
    return place


# ── sort ────────────────────────────────────────────────────────────────────────────────────────


@takes_shard_options
def sort(
    shards: Shards,
    output: str | os.PathLike[str],
    *,
    list_file: str | None = None,
    by: str = "key",
    seed: int = 0,
    memory: int | str = 10**9,
    **options: Unpack[ShardOptions],
) -> Written:
    """Write the samples of shards in another order to new shards.

    ``by`` is "key", "random" (by ``seed``), or a field: ``cls:int``, ``score:float``, ``txt`` (the
    same as ``txt:text``, compared byte by byte). Samples that compare equal keep their order. Keys,
    offsets and the values of the field are in temporary files and sorted there with about
    ``memory`` bytes; then the samples are read in groups that take no more than that.
    """
    field, kind = _parse_by(by)
    place = OutputPlace(output)
    urls = list_shards(shards, list_file)
    workers = 1 if place.is_stdout else options.get("jobs") or count_cores()
    with place.spool() as spool:
        places = SamplePlaces(urls, open_inputs(urls, spool), field)
        # A group is there as bytes of the shard and as samples.
        places.limit_memory(parse_size(memory) // (3 * workers))
        return write_order(
            places,
            _sorted_numbers(places, by, kind, seed, parse_size(memory)),
            place,
            function="penstock.tools.sort/1",
            settings={"by": by, "seed": seed},
            **options,
        )


def _parse_by(by: str) -> tuple[str | None, str]:
    if by in ("key", "random"):
        return None, "text"
    field, _, kind = by.rpartition(":") if ":" in by else (by, "", "text")
    if not field or kind not in KINDS:
        raise PipelineError(
            f"--by is key, random, or a field with one of {', '.join(KINDS)}, such as cls:int, not "
            f"{by!r}"
        )
    return field.lower(), kind


def _sorted_numbers(
    places: SamplePlaces, by: str, kind: str, seed: int, memory: int
) -> DiskNumbers:
    count = len(places)
    if by == "random":
        rng = CounterRng(stable_hash("reshard", seed))  # the order of penstock.jobs.reshard
        return sort_numbers((rng.bits() for _ in range(count)), memory)
    if by == "key":
        return sort_numbers(map(places.keys.get_bytes, range(count)), memory)
    values = (_value(places.values.get_bytes(row), kind, places, row) for row in range(count))
    return sort_numbers(values, memory)


def _value(data: bytes, kind: str, places: SamplePlaces, number: int) -> Any:
    try:
        value = KINDS[kind](data)
        if value == value:
            return value
    except ValueError:
        pass
    raise SampleError(
        f"samples are sorted by numbers ({kind}), but this one has {data[:40]!r}",
        origin=places.origin(number),
    )


# ── select ──────────────────────────────────────────────────────────────────────────────────────


@takes_shard_options
def select(
    shards: Shards,
    output: str | os.PathLike[str] | None = None,
    *,
    list_file: str | None = None,
    where: str | None = None,
    keys: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    index_file: str | os.PathLike[str] | None = None,
    **options: Unpack[ShardOptions],
) -> Written | list[Origin]:
    """Write some samples of shards to new ones, or without ``output`` return where they are.

    Samples are chosen by exactly one of ``where`` (an expression over the columns of the index,
    see :mod:`penstock.shards.index.where`), ``keys`` and ``exclude`` (keys, or a file that lists
    them). ``index_file`` is the index with the columns; by default the one beside the shards, or if
    there is none, one that is made for this call. A key of ``keys`` that no shard has is a
    SampleError.
    """
    if sum(choice is not None for choice in (where, keys, exclude)) != 1:
        raise PipelineError("select takes one of --where, --keys and --exclude")
    urls = list_shards(shards, list_file)
    place = OutputPlace("-" if output is None else output)
    with place.spool() as spool:
        places = SamplePlaces(urls, open_inputs(urls, spool))
        chosen = _chosen(places, where, keys, exclude, index_file)
        if output is None:
            return [places.origin(number) for number in chosen]
        return write_order(
            places,
            chosen,
            place,
            function="penstock.tools.select/1",
            settings={"samples": stable_hash(*chosen)},
            **options,
        )


def _chosen(
    places: SamplePlaces,
    where: str | None,
    keys: str | Sequence[str] | None,
    exclude: str | Sequence[str] | None,
    index_file: Any,
) -> list[int]:
    if where is not None:
        return _matching(places, where, index_file)
    if keys is None:
        unwanted = set(read_keys(exclude or ()))
        return [number for number, key in enumerate(places.keys) if key not in unwanted]
    wanted = set(read_keys(keys))
    missing = wanted.difference(places.keys)
    if missing:
        first = ", ".join(map(repr, sorted(missing)[:5]))
        raise SampleError(f"{len(missing):,} of the keys are in no shard, such as {first}")
    return [number for number, key in enumerate(places.keys) if key in wanted]


def _matching(places: SamplePlaces, where: str, index_file: Any) -> list[int]:
    from penstock.shards.index.where import Where

    expression = Where(where)  # its errors come before anything is read
    with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
        index = _index_of(places, index_file, folder)
        rows = expression.rows(index).tolist()
        shard, offset = index.shard, index.offset
        found = {(shard.item(row), offset.item(row)) for row in rows}
    at = zip(places.shard, places.offset)
    numbers = [number for number, spot in enumerate(at) if spot in found]
    if len(numbers) < len(found):
        raise StaleIndexError(
            f"the index {index.path or ''} has samples where the shards have none: run "
            "'penstock index' over the shards again"
        )
    return numbers


def _index_of(places: SamplePlaces, index_file: Any, folder: str) -> Index:
    from penstock.shards.index import build_index, default_index_path, open_index
    from penstock.shards.index.resolve import complete_index

    if index_file is not None:
        return open_index(places.urls, index_file)
    if places.inputs.urls == places.urls:
        beside = os.path.expanduser(default_index_path(places.urls))
        if complete_index(beside, places.urls) is not None:
            return open_index(places.urls, beside)
    once = list(dict.fromkeys(places.inputs.urls))
    built = build_index(once, os.path.join(folder, "index.parquet"))
    return built.select([once.index(url) for url in places.inputs.urls], places.urls)
