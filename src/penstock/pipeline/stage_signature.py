"""The words by which a saved state knows its pipeline again, in another process, on another day.

They are alike where the pipeline is: no addresses of objects, sets in order, files
without their folders, shards not at all (the data's fingerprint tells which they are), and the
stages of mixed data sets one by one.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.stages.stage import Stage

LONGEST = 160
ELSEWHERE = ("urls", "index", "datasets", "cache", "patience")
"""Arguments that are told in other ways (as the data, and as stages of their own), or change no
sample."""


def stage_names(stages: Sequence[Any]) -> list[str]:
    """One text per stage; of a mix, those of its data sets follow.

    >>> from penstock import RandomMix, map
    >>> stage_names([RandomMix([[1, 2], "ab"], [2, 1]), map(len)])
    ['RandomMix(probs=[2, 1])', 'RandomMix[0]: [1, 2]', "RandomMix[1]: 'ab'", 'map(len)']
    """
    names = []
    for stage in stages:
        inside = getattr(stage, "datasets", None)
        inside = [stage] if inside is None and hasattr(stage, "pipeline") else inside or []
        name = _stage_name(stage)
        names.append(name)
        for number, dataset in enumerate(inside):
            inner = stage_names(getattr(dataset, "pipeline", [dataset]))
            inner += [f"with_epoch({n})" for n in [getattr(dataset, "nsamples", -1)] if n >= 0]
            names += [f"{name.partition('(')[0]}[{number}]: {text}" for text in inner]
    return names


def _stage_name(stage: Any) -> str:
    if not isinstance(stage, Stage):
        return type(stage).__name__ if hasattr(stage, "pipeline") else _word(stage)
    args, kwargs = stage.arguments()
    if any(hasattr(stage, name) for name in ("urls", "datasets")):
        args = args[1:]
    words = [_word(value) for value in args]
    words += [f"{name}={_word(v)}" for name, v in kwargs.items() if name not in ELSEWHERE]
    return f"{stage.name}({', '.join(words)})"


def _word(value: Any) -> str:
    """A value as a text that is the same in every process, and not too long."""
    if isinstance(value, functools.partial):
        words = [_word(value.func), *map(_word, value.args)]
        words += [f"{name}={_word(v)}" for name, v in value.keywords.items()]
        text = f"partial({', '.join(words)})"
    elif isinstance(value, (set, frozenset)):
        text = f"{{{', '.join(sorted(map(_word, value)))}}}"
    elif isinstance(value, os.PathLike) or (isinstance(value, str) and os.path.isabs(value)):
        text = repr(os.path.basename(os.fspath(value)))
    elif isinstance(value, Mapping) and len(value) > 10:
        text = f"{type(value).__name__} of {len(value)}"  # a table: to print it takes long
    else:
        text = getattr(value, "__qualname__", None) or repr(value)
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", text)
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}… #{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
