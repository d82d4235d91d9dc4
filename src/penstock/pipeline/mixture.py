"""``mix``: several data sets as one."""

from __future__ import annotations

import functools
import hashlib
import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from penstock.errors import PipelineError
from penstock.pipeline.data_pipeline import DataPipeline
from penstock.pipeline.fingerprint import describe_tree
from penstock.pipeline.stage_signature import stage_names
from penstock.redact import redact
from penstock.stages.run import short_repr
from penstock.stages.sources.indexed_samples import IndexedSamples
from penstock.stages.sources.mix import Mix
from penstock.stages.sources.mix_plan import Schedule
from penstock.stages.sources.mixed_samples import MixedSamples
from penstock.stages.sources.mixture_definition import Mixture, MixtureSource
from penstock.stages.sources.source_stages import SourceStages
from penstock.stages.sources.stream_mix import StreamMix
from penstock.stages.stage import Each


def mix(
    sources: Sequence[Any] | Mapping[str, Any],
    weights: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    mode: str = "quota",
    until: str | None = None,
    seed: int | None = None,
) -> DataPipeline[Any]:
    """Mix data sets into one pipeline.

    ``sources`` is a list, or a dict of names and data sets; they may have stages, which apply only
    to their samples. Without ``weights`` every sample occurs once per epoch. Each sample has the
    name of its source (by default its number) as ``__source__``.

    A weight is a number, or a schedule over the number of samples of the whole run:
    ``{"step": {0: 5, 100_000: 1}}`` or ``{"linear": {0: 5, 100_000: 1}}``. A source of weight 0 is
    never opened. ``mode`` is one of

    * ``"quota"``: after every block of about 4,096 samples, each source is within one sample of its
      share of the planned samples;
    * ``"random"``: the same over blocks of 65,536 in random order: batches vary as independent
      draws do, but the counts of a block are exact; streams are drawn independently;
    * ``"epochs"``: weights are passes per epoch; with 2.5 every sample occurs two or three times.

    ``until`` says when an epoch ends: ``"first"`` (the default with weights) when the first source
    would begin again, ``"all"`` when every source has yielded all of its samples, ``"each"`` when
    each has yielded all of them once (the others take the turns of those that have ended),
    ``"forever"`` never. A source that begins again has another order in each pass.

    Sources with an index are mixed in the order, before anything is read: the state is one number
    per lane, and resuming takes no time. A source without an index, or with a stage that changes
    the number of samples, makes the whole mixture one of streams; ``describe()`` says so.

    >>> list(mix({"a": [1, 2, 3], "b": ["x"]}))
    [1, 'x', 2, 3]
    """
    return mix_sources(sources, weights, mode=mode, until=until, seed=seed)


def mix_sources(
    sources: Sequence[Any] | Mapping[str, Any],
    weights: Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    mode: str = "quota",
    until: str | None = None,
    seed: int | None = None,
    tags: Sequence[Mapping[str, Any]] | None = None,
) -> DataPipeline[Any]:
    """Mix sources with tags, which each of their samples carries as ``__tags__``."""
    if not isinstance(sources, (Sequence, Mapping)) or isinstance(sources, (str, bytes)):
        raise PipelineError(f"mix takes a list or a dict of data sets, not {short_repr(sources)}")
    if not sources:
        raise PipelineError("mix needs at least one data set")
    named = isinstance(sources, Mapping)
    names = [str(name) for name in sources] if named else list(map(str, range(len(sources))))
    datasets = list(sources.values() if isinstance(sources, Mapping) else sources)
    schedules = _schedules(weights, names)
    if mode == "epochs" and schedules is None:
        schedules = [Schedule(1)] * len(names)
    if until is not None and schedules is None:
        raise PipelineError("mix: until= needs weights; without them every sample comes once")
    # Invalid arguments are refused before any source is opened.
    Mixture(names, schedules, mode, until or "first", [""] * len(names))
    parts: list[MixtureSource] = []
    why = ""
    for number, (name, dataset) in enumerate(zip(names, datasets)):
        part = _part(name, dataset, tags[number] if tags is not None else None)
        if isinstance(part, str):
            why = why or f"{name!r} {part}"
        else:
            parts.append(part)
    _warn_of_shared_shards(
        {
            name: data
            for number, (name, data) in enumerate(zip(names, datasets))
            if schedules is None or not schedules[number].zero
        }
    )
    result: DataPipeline[Any] = DataPipeline(seed=seed)
    if why:
        kind = until or ("first" if schedules is not None else "each")
        make = functools.partial(StreamMix, names=names, tags=tags, why=why)
        result.append(make(datasets, schedules, mode, kind, identify=_identity_of_stream))
        return result
    result.append(MixedSamples(parts, schedules, mode, until))
    stages = _stages_by_source(parts)
    if any(stages.values()):
        result.append(SourceStages(stages))
    result._give_length()
    return result


def _schedules(weights: Any, names: Sequence[str]) -> list[Schedule] | None:
    if weights is None:
        return None
    if isinstance(weights, Mapping):
        given = {str(name): weight for name, weight in weights.items()}
        if unknown := [name for name in given if name not in names]:
            raise PipelineError(
                f"mix: there is no source {unknown[0]!r} (there are: {', '.join(names[:20])})"
            )
        if missing := [name for name in names if name not in given]:
            raise PipelineError(f"mix: the source {missing[0]!r} has no weight")
        weights = [given[name] for name in names]
    if isinstance(weights, (str, bytes)) or not hasattr(weights, "__len__"):
        raise PipelineError(f"mix: weights is a list or a dict, not {weights!r}")
    if len(weights) != len(names):
        raise PipelineError(f"mix: there are {len(names)} sources and {len(weights)} weights")
    return [
        weight if isinstance(weight, Schedule) else Schedule(weight, name)
        for weight, name in zip(weights, names)
    ]


def _part(name: str, dataset: Any, tags: Mapping[str, Any] | None) -> MixtureSource | str:
    """Return a source that can be planned, or why it cannot."""
    stages, seed = [dataset], None
    while isinstance(stages[0], DataPipeline):
        inner = stages[0]
        if inner.overridden or not inner.pipeline:
            return "overrides how a pipeline is iterated, or has no stages"
        if inner.nsamples >= 0:
            return "is cut by with_epoch()"
        seed = inner.seed if seed is None else seed
        stages = [*inner.pipeline, *stages[1:]]
    source, *rest = stages
    if not isinstance(source, IndexedSamples):
        return "has no index"
    if type(source) not in (IndexedSamples, MixedSamples):
        return f"is read by {type(source).__name__}"
    for stage in rest:
        if not isinstance(stage, Each) or stage.overridden:
            return f"has the stage {short_repr(stage)}, which may change the number of samples"
        if not stage.keeps_count:
            return f"has the stage {short_repr(stage)}, which may change the number of samples"
    identities = _identity([source, *rest], seed), _former_identity(source, rest, seed)
    return MixtureSource(name, source, seed, tuple(rest), tags, *identities)


def _identity(stages: Sequence[Any], seed: int | None) -> str:
    """Return a digest of all that decides the samples of a source and how they are processed."""
    return _digest([seed, describe_tree(stages, seed)])


def _identity_of_stream(dataset: Any, former: bool) -> str:
    return _former_identity_of_stream(dataset) if former else _identity([dataset], None)


def _former_identity(source: IndexedSamples, stages: Sequence[Any], seed: int | None) -> str:
    """Return the digest that earlier versions made.

    It differed between processes if it contained a set or a function of the key.
    """
    words: list[Any] = [seed, *stage_names(stages)] if stages else [seed]
    if isinstance(source, MixedSamples):
        words.append(source.mixture.former.plain())
    else:
        words += [source.window, repr(source.subset), repr(source.join)]
        words += [str(url).rsplit("/", 1)[-1] for url in source.urls]
    return _digest(words)


def _former_identity_of_stream(dataset: Any) -> str:
    words: list[Any] = stage_names([dataset])
    waiting = [dataset]
    while waiting:
        stage = waiting.pop()
        words += [getattr(stage, "seed", None), getattr(stage, "nsamples", None)]
        words += [str(url).rsplit("/", 1)[-1] for url in getattr(stage, "urls", ())]
        if isinstance(stage, MixedSamples):
            words.append(stage.mixture.former.plain())
        elif isinstance(stage, IndexedSamples):
            words += [repr(getattr(stage, name, None)) for name in ("subset", "join")]
        waiting += [*getattr(stage, "pipeline", ()), *getattr(stage, "datasets", ())]
    return _digest(words)


def _digest(words: list[Any]) -> str:
    text = json.dumps(words, default=str)
    return hashlib.blake2b(text.encode(), digest_size=3).hexdigest()


def _warn_of_shared_shards(datasets: Mapping[str, Any]) -> None:
    """Warn if two sources read the same samples of the same shards."""
    seen: dict[Any, str] = {}
    for name, dataset in datasets.items():
        for shard in _shards_of(dataset):
            other = seen.setdefault(shard, name)
            if other != name:
                warnings.warn(
                    f"mix: the sources {other!r} and {name!r} both read {redact(shard[0])}: its "
                    "samples come from both; use one source with the sum of the weights",
                    stacklevel=5,
                )
                return


def _shards_of(data: Any, filters: tuple[str, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield each shard of a data set with what decides which of its samples are read."""
    if isinstance(data, DataPipeline) and data.pipeline:
        source, *stages = data.pipeline
        dropping = [s for s in stages if isinstance(s, Each) and not s.keeps_count]
        yield from _shards_of(source, (*stage_names(dropping), *filters))
    elif isinstance(data, MixedSamples):
        for part in data.parts:
            yield from _shards_of(part.samples, filters)
    elif isinstance(data, Mix):
        for dataset in data.datasets:
            yield from _shards_of(dataset, filters)
    else:
        subset = repr(getattr(data, "subset", None))
        yield from ((str(url), subset, filters) for url in getattr(data, "urls", ()))


def _stages_by_source(parts: Sequence[MixtureSource]) -> dict[str, tuple[Any, ...]]:
    """Return the stages of every source by its full name, also of mixtures in mixtures."""
    table: dict[str, tuple[Any, ...]] = {}
    for part in parts:
        if not isinstance(part.samples, MixedSamples):
            table[part.name] = part.stages
            continue
        inner = _stages_by_source(part.samples.parts)
        for stage in part.stages[:1]:
            if isinstance(stage, SourceStages):
                inner = {name: tuple(own) for name, own in stage.stages.items()}
        rest = tuple(stage for stage in part.stages if not isinstance(stage, SourceStages))
        for name, stages in inner.items():
            table[f"{part.name}/{name}"] = (*stages, *rest)
    return table


__all__ = ["mix", "mix_sources"]
