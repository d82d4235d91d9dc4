"""Pipelines whose arguments print in another way in every process: sets, functions, objects.

``python hash_seeds.py save`` prints a state of each of them, and ``python hash_seeds.py load FILE``
the items that come after these states.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import penstock as wds

KEYS = [f"s{n:04d}" for n in range(2, 20)]
SOME = {f"s{n:04d}" for n in (3, 8, 13, 17)}
STOP, FOLLOWING = 7, 60


def is_third(key: str) -> bool:
    return int(key[1:]) % 3 == 0


class Without:
    """Leaves samples out, without a text of its own."""

    def __init__(self, keys: set[str]) -> None:
        self.keys = keys

    def __call__(self, sample: dict[str, Any]) -> bool:
        return sample["__key__"] not in self.keys


def without(source: Iterable[Any], *groups: set[str]) -> Iterator[Any]:
    return (sample for sample in source if not any(sample["__key__"] in one for one in groups))


class Listed(list[Any]):
    """A list that other libraries may pass."""


class Names(NamedTuple):
    name: str
    keys: set[str]


def a(**options: Any) -> wds.WebDataset:
    return wds.WebDataset("a{000..003}.tar", index=True, shardshuffle=2, ends="exact", **options)


def b(**options: Any) -> wds.WebDataset:
    return wds.WebDataset("b{000..003}.tar", index=True, shardshuffle=2, ends="exact", **options)


def field(sample: dict[str, Any], names: Iterable[Any]) -> dict[str, Any]:
    return {**sample, "names": sorted(map(str, names))}


def in_lanes(source: Any) -> wds.DataPipeline[Any]:
    return wds.DataPipeline(source, lanes=2)


PIPELINES: dict[str, Callable[[], Any]] = {
    "excluded keys": lambda: a(exclude=SOME),
    "a mixture with excluded keys": lambda: in_lanes(wds.mix([a(exclude=SOME), b()])),
    "a mixture with keys": lambda: in_lanes(wds.mix([a(keys=KEYS), b()], [1, 2])),
    "a mixture with a function of the key": lambda: wds.mix([a(exclude=is_third), b()]),
    "a mixture with a lambda": lambda: wds.mix([a(exclude=lambda key: is_third(key)), b()]),
    "a mixture with sets in stages": lambda: wds.mix(
        [a().map(partial(field, names=[SOME, {"x": SOME}])), b().map(partial(field, names=SOME))]
    ),
    "a mixture in a mixture": lambda: wds.mix(
        {"one": wds.mix([a(exclude=SOME), b()]), "two": b(keys=[f"s{n:04d}" for n in range(109)])}
    ),
    "streams with excluded keys": lambda: wds.mix([a(exclude=SOME).select(Without(SOME)), b()]),
    "a round robin": lambda: wds.DataPipeline(
        wds.RoundRobin([wds.mix([a(exclude=is_third), b()]), b(exclude=SOME)], longest=True)
    ),
    "sets in lists": lambda: a().then(without, SOME, {*SOME, "s0005"}).shuffle(5),
    "a set in a list": lambda: a().map(partial(field, names=[SOME, 1])),
    "sets in a named tuple": lambda: a().map(partial(field, names=Names("x", SOME))),
    "sets in a list of another class": lambda: a().map(partial(field, names=Listed([SOME]))),
    "keys of a dict": lambda: a().map(partial(field, names=dict.fromkeys(SOME).keys())),
    "sets in a queue": lambda: a().map(partial(field, names=deque([SOME]))),
    "items with sets": lambda: wds.DataPipeline(
        [{"cls": str(n), "names": [{"a", "bb", "ccc", str(n)}]} for n in range(20)]
    ),
    "a loader": lambda: wds.WebLoader(
        in_lanes(wds.mix([a(exclude=SOME), b().select(Without(SOME))])), batch_size=None
    ),
}


def follow(stream: Iterator[Any]) -> list[int]:
    return [int(sample["cls"]) for sample in islice(stream, FOLLOWING)]


def main() -> None:
    found: dict[str, Any] = {}
    if sys.argv[1] == "save":
        for name, make in PIPELINES.items():
            pipeline = make()
            stream = iter(pipeline)
            for _ in range(STOP):
                next(stream)
            found[name] = [pipeline.state_dict(), follow(stream)]
    else:
        for name, state in json.loads(Path(sys.argv[2]).read_text()).items():
            pipeline = PIPELINES[name]()
            try:
                pipeline.load_state_dict(state)
            except wds.StateError as error:
                found[name] = [f"refused: {error}"]
                continue
            found[name] = follow(iter(pipeline))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
