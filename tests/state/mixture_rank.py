"""One rank of a job that test_mixtures.py kills: logs the samples of its steps, saves its state.

Run as ``mixture_rank.py FOLDER LEG``, with RANK and WORLD_SIZE. It resumes from the states of all
ranks of the leg before, and writes ``LEG.RANK.json`` after every step: the samples so far, and its
state. It ends with the epoch.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import penstock as wds

LANES = 12
SIZES = {"a": 90, "b": 40, "c": 130}


def name_of(sample):
    return f"{sample['__source__']}:{sample['__key__']}"


def not_a_ninth(name):
    return int(name[-4:]) % 9 != 0


def make(folder, weights=None):
    """Three sources, one of them in a mixture of its own, filtered, shuffled and in batches."""

    def source(name):
        return wds.WebDataset(f"{folder}/{name}{{000..002}}.tar", index=True, shardshuffle=2)

    inner = wds.mix({"a": source("a"), "b": source("b")})
    weights = weights or {"ab": 3, "c": {"linear": {0: 1, 200: 4}}}
    mixed = wds.mix({"ab": inner, "c": source("c")}, weights, until="each", seed=5)
    pipeline: wds.DataPipeline[Any] = wds.DataPipeline(mixed, lanes=LANES)
    return pipeline.map(name_of).select(not_a_ninth).shuffle(20).listed(2)


def durable(path, value):
    """Write a file whole or not at all."""
    with open(f"{path}.new", "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


def main(folder, leg):
    pipeline = make(folder)
    if os.path.exists(f"{folder}/states.json"):
        with open(f"{folder}/states.json") as file:
            pipeline.load_state_dict(json.load(file))
    path = f"{folder}/{leg}.{os.environ['RANK']}.json"
    seen: list[str] = []
    durable(path, {"seen": seen, "state": pipeline.state_dict(), "steps": 0})
    for steps, batch in enumerate(pipeline, 1):
        seen += batch
        durable(path, {"seen": seen, "state": pipeline.state_dict(), "steps": steps})
    durable(path, {"seen": seen, "state": pipeline.state_dict(), "steps": -1})


if __name__ == "__main__":
    main(*sys.argv[1:])
