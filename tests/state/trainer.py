"""A trainer that test_killed.py kills. It logs the keys of each step and saves its state regularly.

Run as ``trainer.py FOLDER KIND``, it resumes from FOLDER/checkpoint.json if that exists, and never
ends by itself.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import penstock as wds

EVERY = 4


def key_of(sample):
    return sample["__key__"]


def not_a_ninth(key):
    return int(key[1:]) % 9 != 0


def indexed(folder):
    """Return an indexed and a streamed data set, mixed, filtered, shuffled and batched."""
    one = wds.WebDataset(f"{folder}/d{{000..003}}.tar", index=True, shardshuffle=2)
    two = wds.WebDataset(f"{folder}/e{{000..001}}.tar", shardshuffle=2, empty_check=False)
    mix: wds.DataPipeline[Any] = wds.DataPipeline(
        wds.RandomMix([one, two], [3, 1], longest=True), lanes=6
    )
    return mix.map(key_of).select(not_a_ninth).shuffle(60).listed(3)


def streamed(folder):
    """Return shards that are read in order, with two shuffles."""
    data = wds.WebDataset(f"{folder}/d{{000..003}}.tar", shardshuffle=4).shuffle(50)
    return data.map(key_of).shuffle(9).listed(3)


def loaded(folder):
    """Return the indexed data set in two worker processes, batched again after them."""
    data = wds.WebDataset(f"{folder}/d{{000..003}}.tar", index=True, shardshuffle=2).map(key_of)
    loader = wds.WebLoader(data.shuffle(30), batch_size=None, num_workers=2)
    return loader.shuffle(10).listed(3)


KINDS = {"indexed": indexed, "streamed": streamed, "loaded": loaded}


def write_atomically(path, text):
    """Write a file completely or not at all."""
    with open(f"{path}.new", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


def iterate_forever(data):
    """Yield the steps of all epochs, endlessly."""
    while True:
        yield from data


def main(folder, kind):
    data = KINDS[kind](folder)
    checkpoint, log_path = f"{folder}/checkpoint.json", f"{folder}/log"
    with open(log_path, "ab") as log:
        if os.path.exists(checkpoint):
            with open(checkpoint) as file:
                saved = json.load(file)
            data.load_state_dict(saved["state"])
            log.truncate(saved["bytes"])
        else:
            log.truncate(0)
        log.seek(0, os.SEEK_END)
        for number, step in enumerate(iterate_forever(data), start=1):
            log.write(json.dumps(step).encode() + b"\n")
            log.flush()
            os.fsync(log.fileno())
            if number % EVERY == 0:
                saved = {"bytes": log.tell(), "state": data.state_dict()}
                write_atomically(checkpoint, json.dumps(saved))


if __name__ == "__main__":
    main(*sys.argv[1:])
