"""Describes all stages of a pipeline, also those of nested pipelines, mixtures and loaders.

The description is a flat dict, so that a difference can be named: the path of a stage to its text.
``"0.2"`` is stage 2 of the pipeline that is stage 0, ``"0['a'].1"`` stage 1 of the source ``a`` of
a mixture. Texts are equal in every process and do not contain values of any length: what is long is
shortened, and followed by a digest of all of it.

>>> from penstock import DataPipeline, shuffle
>>> describe_tree([DataPipeline([1, 2], seed=3), shuffle(10)], seed=0)
{'0': 'DataPipeline(seed=3)', '1': 'shuffle(10)', '0.0': '[1, 2]'}
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterator, KeysView, Mapping, Sequence, ValuesView
from typing import Any

import numpy as np

from penstock.pipeline.stage_signature import ELSEWHERE, LONGEST
from penstock.redact import canonical_url, is_command
from penstock.shards.index import Join
from penstock.stages.reading import tar_samples
from penstock.stages.run import inner_datasets
from penstock.stages.sources.indexed_samples import IndexedSamples
from penstock.stages.sources.mixed_samples import MixedSamples
from penstock.stages.sources.mixture_definition import Mixture
from penstock.stages.sources.source_stages import SourceStages
from penstock.stages.sources.stream_mix import StreamMix
from penstock.stages.stage import Bound, Stage, nested_stages
from penstock.storage.urls import expand_urls

Tree = dict[str, str]
Texts = dict[int, tuple[Any, str]]
"""Stages with their first texts, by ``id``: arguments may change while they are used."""
LARGEST = 8 << 10
"""Characters of a description; the stages that do not fit have one digest together."""
REST = "rest"
SAMPLER = " sampler"
"""Follows the path of a loader."""
LARGEST_ARRAY = 16 << 20
LONG_ITEMS = 1000
"""Items of a collection that takes noticeable time to describe."""
MOST_ITEMS = 100_000
"""Items of a collection that are compared one by one; of larger ones, only their number."""
_PLAIN = {bool, int, float, complex, type(None)}


def describe_tree(
    stages: Sequence[Any], seed: int | None, length: int = -1, texts: Texts | None = None
) -> Tree:
    """Return the text of every stage by its path, those of outer pipelines first.

    ``seed`` is that of the pipeline, and ``length`` that of its ``with_epoch``. Stages keep the
    text that they have in ``texts``; new ones are added.
    """
    tree: Tree = {}
    for number, stage in _numbered(stages):
        _add(tree, str(number), stage, seed, {} if texts is None else texts)
    if length >= 0:
        tree["with_epoch"] = str(length)
    kept: Tree = {}
    room = LARGEST
    for path in sorted(tree, key=_depth):
        room -= len(path) + len(tree[path])
        if room < 0:
            rest = sorted(tree.items() - kept.items())
            return {**kept, REST: f"{len(rest)} stages {_digest(repr(rest))}"}
        kept[path] = tree[path]
    return kept


def keep_texts(stages: Sequence[Any], texts: Texts) -> None:
    """Describe the stages with arguments that may change while they are used.

    A transform may count its calls, or a function collect something in a list. Stages with long
    collections are left out: describing them takes time, which only a saved state is worth.
    """
    for stage in stages:
        inside = nested_stages(stage)
        if inside is not None:
            keep_texts(inside, texts)
        elif isinstance(stage, MixedSamples):
            for part in stage.parts:
                keep_texts([part.samples, *part.stages], texts)
        else:
            if isinstance(stage, (Stage, Bound)):
                given = [*stage.args, *stage.kwargs.values()]
                if any(map(_may_change, given)) and not any(map(_is_long, given)):
                    _describe_call(stage, texts)
            keep_texts(getattr(stage, "datasets", ()), texts)


def describe_sampling(stages: Sequence[Any]) -> Tree:
    """Return how the loaders among the stages make batches, by the paths of these loaders.

    It is not in the tree, because it may change between two epochs.
    """
    found: Tree = {}
    for path, loader in find_loaders(stages):
        found[path] = loader.sampling
        if sampler := loader.sampler:
            found[path + SAMPLER] = sampler
    return found


def find_loaders(stages: Sequence[Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the loaders among the stages, also inside others and in wrappers, with their paths."""
    for number, stage in enumerate(stages):
        path = f"{prefix}{number}"
        if hasattr(stage, "sampling"):
            yield path, stage
        for place, inside in list_inside(stage):
            yield from find_loaders(inside, f"{path}{place}.")


def list_inside(stage: Any) -> list[tuple[str, Sequence[Any]]]:
    """Return the stages inside a stage, by their place in it: those of a nested pipeline, of the
    data sets of a mixture, and of pipelines inside a data set of another library or a loader."""
    if inside := nested_stages(stage):
        return [("", inside)]
    if hasattr(stage, "datasets"):
        parts = enumerate(stage.datasets)
        return [(f"[{n}]", nested_stages(part) or [part]) for n, part in parts]
    found = enumerate(inner_datasets(stage))
    return [
        (f".dataset{number or ''}", stages)
        for number, dataset in found
        if dataset is not stage and (stages := nested_stages(dataset))
    ]


def find_difference(saved: Any, now: Any) -> str:
    """Return the first difference between two descriptions as a text; "" if there is none.

    >>> find_difference({"0": "shuffle(5)"}, {"0": "shuffle(6)"})
    'stage 0 was shuffle(5) and is shuffle(6)'
    """
    if not isinstance(saved, dict) or not isinstance(now, dict):
        return ""  # a state of an earlier version has none
    for path in dict.fromkeys([*now, *saved]):
        was, is_now = saved.get(path), now.get(path)
        if was != is_now:
            if path == REST:
                return f"one of the many inner stages differs: {was} were saved, these are {is_now}"
            name = f"stage {path}"
            if was is None or is_now is None:
                return f"{name} is {'new' if was is None else 'gone'}: {was or is_now}"
            return f"{name} was {was} and is {is_now}"
    return ""


def without_mixture(tree: Any, other: Any) -> Any:
    """Return a description without what may change in its mixture: weights, and the sources that
    another description does not have."""
    if not isinstance(tree, dict) or not isinstance(other, dict):
        return tree
    root = "0"
    while root in tree and not str(tree[root]).startswith("mix("):
        root += ".0"
    source = re.compile(rf"{re.escape(root)}(\[(?:'.*?'|\".*?\")\])([.]|$)", re.DOTALL)
    cut = REST in tree or REST in other  # not at the same stage
    kept = {}
    for path, text in tree.items():
        found = source.match(path)
        if path == REST or (path.startswith(root) and not found) or (cut and path not in other):
            continue
        if not found or root + found[1] in other:
            kept[path] = text
    return kept


def _add(tree: Tree, path: str, stage: Any, seed: int | None, texts: Texts) -> None:
    inside = nested_stages(stage)
    if inside is not None:
        own = getattr(stage, "seed", None)
        seed = seed if own is None else own
        length = getattr(stage, "nsamples", -1)
        cut = f", with_epoch={length}" if length >= 0 else ""
        tree[path] = f"{type(stage).__name__}(seed={seed}{cut})"
        for number, inner in _numbered(inside):
            _add(tree, f"{path}.{number}", inner, seed, texts)
    elif isinstance(stage, MixedSamples):
        _add_mixture(tree, path, stage.mixture)
        for part in stage.parts:
            source = f"{path}[{part.name!r}]"
            tree[source] = "source" if part.seed is None else f"source(seed={part.seed})"
            for number, inner in _numbered([part.samples, *part.stages]):
                _add(tree, f"{source}.{number}", inner, seed, texts)
    elif isinstance(stage, StreamMix):
        _add_mixture(tree, path, Mixture(stage.names, stage.weights, stage.mode, stage.until, []))
        for name, dataset in zip(stage.names, stage.datasets):
            _add(tree, f"{path}[{name!r}]", dataset, seed, texts)
    else:
        tree[path] = _describe_stage(stage, texts)
        for number, dataset in enumerate(getattr(stage, "datasets", ())):
            _add(tree, f"{path}[{number}]", dataset, seed, texts)
    if not inside:
        _add_wrapped(tree, path, stage, seed, texts)


def _add_wrapped(tree: Tree, path: str, stage: Any, seed: int | None, texts: Texts) -> None:
    """Add the pipelines that a data set of another library, or the loader of one, reads."""
    if not hasattr(stage, "datasets"):
        for number, dataset in enumerate(inner_datasets(stage)):
            if dataset is not stage and nested_stages(dataset):
                _add(tree, f"{path}.dataset{number or ''}", dataset, seed, texts)


def _numbered(stages: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Number the stages; those that apply the stages of a mixture's sources are listed there."""
    return enumerate(stage for stage in stages if not isinstance(stage, SourceStages))


def _add_mixture(tree: Tree, path: str, mixture: Mixture) -> None:
    words = [f"mode={mixture.mode!r}", f"until={mixture.until!r}"]
    tree[path] = f"mix({', '.join(words)}, sources={_shortened(repr(mixture.names))})"
    for name, weight in zip(mixture.names, mixture.weights or ()):
        tree[f"{path} weight of {name!r}"] = _shortened(repr(weight.plain()))


def _describe_stage(stage: Any, texts: Texts) -> str:
    if isinstance(stage, (Stage, Bound)):
        text = _describe_call(stage, texts)
        if isinstance(stage, tar_samples.tarfile_to_samples):
            for name, step in tar_samples.list_assigned_steps(stage).items():
                text += f" with tariterators.{name} = {describe_argument(step)}"
        urls = [_base_name(url) for url in getattr(stage, "urls", ())]
        return f"{text} of {len(urls)} shards {_digest(repr(urls))}" if urls else text
    if isinstance(stage, (list, tuple, range)):  # the items of a source
        return _shortened(_describe_items(stage))
    return _shortened(_describe(stage))


def _describe_call(stage: Any, texts: Texts) -> str:
    """Return a stage with its arguments as a text, by default the first one of this object."""
    known = texts.get(id(stage))
    if known is not None and known[0] is stage:
        return known[1]
    if isinstance(stage, Bound):
        text = _call(_describe(stage.f), stage.args, stage.kwargs, describe_argument)
    else:
        args, kwargs = stage.arguments()
        if any(hasattr(stage, name) for name in ("urls", "datasets")):
            args = args[1:]
        kwargs = {name: value for name, value in kwargs.items() if name not in ELSEWHERE}
        if isinstance(stage, IndexedSamples) and (joins := getattr(stage, "join", ())):
            kwargs["join"] = list(map(_plain_join, joins))
        text = _call(stage.name, args, kwargs, describe_argument)
    texts[id(stage)] = stage, text
    return text


def _may_change(value: Any) -> bool:
    changing = (list, tuple, dict, set, deque, np.ndarray, functools.partial)
    return isinstance(value, changing) or _is_printed_by_fields(value)


def _is_long(value: Any) -> bool:
    size = getattr(value, "size", None) if isinstance(value, np.ndarray) else None
    sized = isinstance(value, (list, tuple, dict, set, frozenset, deque))
    return (size if size is not None else len(value) if sized else 0) > LONG_ITEMS


def _describe_items(items: Sequence[Any]) -> str:
    if not _has_sets(items):
        return repr(items)
    if len(items) > MOST_ITEMS:
        return f"{type(items).__name__} of {len(items)}"
    return _describe(items)


def _has_sets(value: Any) -> bool:
    """Return whether the items of a collection, or those in them, have no order."""
    if isinstance(value, (set, frozenset)):
        return True
    inside = value.values() if isinstance(value, dict) else value
    if not isinstance(inside, (list, tuple, ValuesView)):
        return False
    ordered = _PLAIN.union((str, bytes)).issuperset(map(type, inside))
    return not ordered and any(map(_has_sets, inside))


def describe_argument(value: Any) -> str:
    return _shortened(_describe(value))


def _plain_join(join: Join) -> list[Any]:
    shards = [_base_name(url) for url in expand_urls(join.shards)]
    return [shards, join.fields, join.prefix, join.missing, dict(join.fill)]


def _describe(value: Any, outer: tuple[int, ...] = ()) -> str:
    """Return a value as a text that is the same in every process.

    ``outer`` are the ids of the values that contain it.
    """
    if type(value) in _PLAIN or id(value) in outer:
        return repr(value)
    inner = functools.partial(_describe, outer=(*outer, id(value)))
    if isinstance(value, os.PathLike) or (isinstance(value, str) and os.path.isabs(value)):
        return repr(os.path.basename(os.fspath(value)))
    if isinstance(value, str):
        return repr(canonical_url(value) if "://" in value or is_command(value) else value)
    if isinstance(value, functools.partial):
        return _call("partial", (value.func, *value.args), value.keywords, inner)
    if isinstance(value, Bound):
        return _call(inner(value.f), value.args, value.kwargs, inner)
    if isinstance(value, Stage) and not value.overridden:
        return _call(value.name, *value.arguments(), inner)
    if isinstance(value, re.Pattern):  # its repr is cut
        return f"re.compile({value.pattern!r}, {value.flags})"
    if (
        isinstance(value, np.ndarray)
        and value.nbytes <= LARGEST_ARRAY
        and not value.dtype.hasobject
    ):
        return f"array({value.dtype}, {value.shape}, {_digest(value.tobytes())})"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return _call(type(value).__name__, (), dict(zip(value._fields, value)), inner)
    if isinstance(value, (list, tuple, deque)):
        if len(value) <= MOST_ITEMS and not _PLAIN.issuperset(map(type, value)):
            text = f"[{', '.join(map(inner, value))}]"
            return f"deque({text})" if isinstance(value, deque) else text
    elif isinstance(value, (dict, set, frozenset, KeysView)):
        if len(value) > MOST_ITEMS:
            return f"{type(value).__name__} of {len(value)}"
        if isinstance(value, dict):
            items = [f"{inner(key)}: {inner(item)}" for key, item in value.items()]
        else:
            items = list(map(inner, value))
        return f"{{{', '.join(sorted(items))}}}"
    elif _is_printed_by_fields(value):
        shown = (field for field in dataclasses.fields(value) if field.repr and field.compare)
        fields = {field.name: getattr(value, field.name) for field in shown}
        return _call(type(value).__name__, (), fields, inner)
    return re.sub(r" at 0x[0-9a-fA-F]+", "", getattr(value, "__qualname__", None) or repr(value))


def _is_printed_by_fields(value: Any) -> bool:
    """Return whether a value is a dataclass whose ``repr`` lists its fields."""
    made = hasattr(type(value).__repr__, "__wrapped__")
    return dataclasses.is_dataclass(value) and not isinstance(value, type) and made


def _call(
    name: str, args: Sequence[Any], kwargs: Mapping[str, Any], describe: Callable[[Any], str]
) -> str:
    words = [describe(value) for value in args]
    words += [f"{key}={describe(value)}" for key, value in kwargs.items()]
    return f"{name}({', '.join(words)})"


def _base_name(url: Any) -> str:
    return canonical_url(str(url)).rsplit("/", 1)[-1]


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}… {_digest(text)}"


def _digest(data: str | bytes) -> str:
    data = data.encode(errors="surrogatepass") if isinstance(data, str) else data
    return f"#{hashlib.blake2b(data, digest_size=8).hexdigest()}"


def _depth(path: str) -> int:
    return path.count(".") + path.count("[")
