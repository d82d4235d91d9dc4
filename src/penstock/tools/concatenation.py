"""``cat``: the samples of shards in one shard.

This module loads neither numpy nor pyarrow, since a pipe of small shards should start at once.
"""

from __future__ import annotations

import collections
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.errors import Origin, PipelineError, ran_out
from penstock.rng import CounterRng, stable_hash
from penstock.shards.sample_reader import READERS_OWN, Sample
from penstock.shards.writing import TarWriter
from penstock.storage.replaced_inputs import refuse_replaced_inputs
from penstock.tools.field_spec import FieldSpec
from penstock.tools.inputs import Shards, SkippedErrors, list_shards
from penstock.tools.member_groups import read_all
from penstock.tools.outputs import make_folder, refuse_existing
from penstock.tools.slices import StreamSlice, parse_slice
from penstock.tools.written import KeyPolicy, Written


def cat(
    shards: Shards,
    output: str | os.PathLike[str],
    *,
    list_file: str | None = None,
    slice: StreamSlice | str | None = None,
    shard_slice: StreamSlice | str | None = None,
    fields: FieldSpec | str | None = None,
    rekey: str | None = None,
    shuffle: int = 0,
    mix: int = 0,
    seed: int = 0,
    max_errors: int = 0,
    duplicates: str = "error",
    force: bool = False,
    progress: Callable[[Iterator[Sample]], Iterator[Sample]] = iter,
) -> Written:
    """Write the samples of all shards to one, ``-`` being standard output.

    These steps follow each other: ``shard_slice`` takes a part of every shard, ``mix`` reads from
    that many shards in turn, ``slice`` takes a part of the whole, ``fields`` chooses and renames
    fields, ``shuffle`` draws from a buffer of that many samples, and ``rekey`` such as ``%09d``
    numbers keys. Up to ``max_errors`` damaged shards are read up to the damage; the next one
    is an error. ``progress`` passes the samples on that are written, such as ``tqdm.tqdm``.
    """
    text = os.fspath(output)
    spec = FieldSpec(fields) if isinstance(fields, str) else fields
    policy, errors = KeyPolicy(duplicates), _SomeErrors(max_errors)
    number_format = _check_rekey(rekey)
    part = parse_slice(shard_slice) if isinstance(shard_slice, str) else shard_slice
    whole = parse_slice(slice) if isinstance(slice, str) else slice
    urls = list_shards(shards, list_file)
    refuse_replaced_inputs([text], urls)
    streams = ((part or StreamSlice())(read_all([url], errors)) for url in urls)
    samples = take_turns(streams, mix) if mix > 1 else (item for one in streams for item in one)
    samples = (whole or StreamSlice())(samples)
    chosen: Iterator[Sample] = (
        sample if spec is None else _choose_fields(sample, spec, offset)
        for sample, offset in samples
    )
    if shuffle > 1:
        chosen = shuffle_buffer(chosen, shuffle, seed)
    refuse_existing(text, force)
    make_folder(text)
    done = Written(text, 1)
    check = duplicates != "keep"
    with TarWriter(text, encoder=False, keep_meta=True, check=check) as sink:
        for sample in progress(chosen):
            if number_format is not None:
                sample = {**sample, "__key__": number_format % done.samples}
            done.bytes += sink.write(policy.apply(sample, text))
            done.samples += 1
    done.messages, done.failed = errors.messages, errors.count
    return done


def _choose_fields(sample: Sample, spec: FieldSpec, offset: int) -> Sample:
    key, fields = sample["__key__"], {f: v for f, v in sample.items() if f not in READERS_OWN}
    return {"__key__": key, **spec.require(fields, Origin(sample["__url__"], key, offset))}


class _SomeErrors(SkippedErrors):
    """A handler that skips the rest of a damaged shard a number of times."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __call__(self, error: Exception) -> bool:
        if self.count >= self.most or ran_out(error):
            raise error
        return super().__call__(error)


def _check_rekey(rekey: str | None) -> str | None:
    if rekey is None:
        return None
    try:
        if rekey % 1 != rekey % 2:
            return rekey
    except (TypeError, ValueError):
        pass
    raise PipelineError(f"--rekey is a format for numbers such as %09d, not {rekey!r}")


def take_turns(streams: Iterable[Iterator[Any]], most: int) -> Iterator[Any]:
    """Yield items of up to ``most`` streams in turn; the next stream replaces one that ends.

    >>> "".join(take_turns(map(iter, ["abc", "12", "xy"]), 2))
    'a1b2cxy'
    """
    waiting = iter(streams)
    active: collections.deque[Iterator[Any]] = collections.deque()
    while True:
        while len(active) < most and (following := next(waiting, None)) is not None:
            active.append(following)
        if not active:
            return
        stream = active.popleft()
        for item in stream:
            yield item
            active.append(stream)
            break


def shuffle_buffer(items: Iterable[Any], size: int, seed: int) -> Iterator[Any]:
    """Yield the items, each drawn from a buffer of ``size``."""
    rng = CounterRng(stable_hash("cat", seed))
    buffer: list[Any] = []
    for item in items:
        buffer.append(item)
        if len(buffer) >= size:
            yield _draw(buffer, rng)
    while buffer:
        yield _draw(buffer, rng)


def _draw(buffer: list[Any], rng: CounterRng) -> Any:
    place = rng.below(len(buffer))
    buffer[place], buffer[-1] = buffer[-1], buffer[place]
    return buffer.pop()
