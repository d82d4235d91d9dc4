"""Describes the stages of a pipeline, so that a saved state can be compared with a pipeline.

The texts are equal in every process: no addresses of objects, sets are sorted, files are without
their folders, shards are left out (the data's fingerprint identifies them), and the stages of mixed
data sets are listed one by one.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.stages.stage import Stage, nested_stages

LONGEST = 160
ELSEWHERE = ("urls", "index", "datasets", "cache", "patience", "media", "join")
"""Arguments that are described elsewhere (as data or separate stages), or change no sample."""


def stage_names(stages: Sequence[Any]) -> list[str]:
    """Return the ``repr`` of each stage; a mix is followed by the stages of its data sets.

    >>> from penstock import RandomMix, map
    >>> stage_names([RandomMix([[1, 2], "ab"], [2, 1]), map(len)])
    ['RandomMix(probs=[2, 1])', 'RandomMix[0]: [1, 2]', "RandomMix[1]: 'ab'", 'map(len)']
    """
    names = []
    for stage in stages:
        inside = getattr(stage, "datasets", None)
        nested = inside is None and nested_stages(stage) is not None
        inside = [stage] if nested else inside or []
        name = _stage_name(stage)
        names.append(name)
        for number, dataset in enumerate(inside):
            own = nested_stages(dataset)
            inner = stage_names([dataset] if own is None else own)
            inner += [f"with_epoch({n})" for n in [getattr(dataset, "nsamples", -1)] if n >= 0]
            names += [f"{name.partition('(')[0]}[{number}]: {text}" for text in inner]
    return names


def _stage_name(stage: Any) -> str:
    if not isinstance(stage, Stage):
        return type(stage).__name__ if nested_stages(stage) is not None else _word(stage)
    args, kwargs = stage.arguments()
    if any(hasattr(stage, name) for name in ("urls", "datasets")):
        args = args[1:]
    words = [_word(value) for value in args]
    words += [f"{name}={_word(v)}" for name, v in kwargs.items() if name not in ELSEWHERE]
    return f"{stage.name}({', '.join(words)})"


def _word(value: Any) -> str:
    """Return a value as text that is the same in every process, and not too long."""
    if isinstance(value, functools.partial):
        words = [_word(value.func), *map(_word, value.args)]
        words += [f"{name}={_word(v)}" for name, v in value.keywords.items()]
        text = f"partial({', '.join(words)})"
    elif isinstance(value, (set, frozenset)):
        text = f"{{{', '.join(sorted(map(_word, value)))}}}"
    elif isinstance(value, os.PathLike) or (isinstance(value, str) and os.path.isabs(value)):
        text = repr(os.path.basename(os.fspath(value)))
    elif isinstance(value, Mapping) and len(value) > 10:
        text = f"{type(value).__name__} of {len(value)}"  # a table: printing it would take long
    else:
        text = getattr(value, "__qualname__", None) or repr(value)
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", text)
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}… #{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
