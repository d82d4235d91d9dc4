"""Save states in an epoch, or resume from one; resume.py runs this in a fresh process.

    python benchmarks/resuming.py {walk,resume,sizes} RIVAL FOLDER FILE [BATCHES ...]

``walk`` saves to FILE the state after each number of BATCHES, and the batch that came next.
``resume`` loads one of them and prints the cost of the first batch as JSON. Everything runs in one
process, without loader workers, so that all work is counted.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import shutil
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

BATCH = 64
BUFFER = 1000
WINDOW = 16
LANES = 64
DECODED = [0]


def parse(sample: Any) -> int:
    """Decode a sample, as every rival does, and count it."""
    DECODED[0] += 1
    number: int = json.loads(sample["json"])["id"]
    return number


def bytes_read() -> int:
    """Return the bytes of this process's read calls so far."""
    with open("/proc/self/io") as numbers:
        return int(numbers.readline().split()[1])


def shards(folder: str) -> list[str]:
    return sorted(map(str, Path(folder).glob("*.tar")))


class Penstock:
    """penstock, indexed or streaming through a shuffle buffer."""

    mapped = 0
    """Bytes that no read call tells of: the index is mapped into memory."""

    def __init__(self, folder: str, indexed: bool, lanes: int | None = None, buffer: int = 0):
        import penstock

        if indexed:
            data = penstock.WebDataset(shards(folder), index=True, shardshuffle=WINDOW, lanes=lanes)
            index = data.pipeline[0].opened()[0]
            _ = index.keys, index.fields, index.shard
            self.mapped = os.path.getsize(index.path)
        else:
            data = penstock.WebDataset(shards(folder), shardshuffle=100, lanes=lanes)
        if buffer:
            data = data.shuffle(buffer)
        self.pipeline = data.map(parse).listed(BATCH)

    def begin(self, state: Any) -> Iterator[list[int]]:
        if state is not None:
            self.pipeline.load_state_dict(state)
        return iter(self.pipeline)

    def state(self, given: int) -> Any:
        return self.pipeline.state_dict()


class WebDataset:
    """WebDataset, which has no state: earlier batches are computed again and discarded."""

    def __init__(self, folder: str) -> None:
        import webdataset

        data = webdataset.WebDataset(shards(folder), shardshuffle=100, detshuffle=True, seed=0)
        self.samples = data.shuffle(BUFFER, seed=0).map(parse)
        self.batches = self.samples.listed(BATCH)

    def begin(self, state: Any) -> Iterator[list[int]]:
        return islice(iter(self.batches), state or 0, None)

    def state(self, given: int) -> Any:
        return given


class Stateful:
    """torchdata's StatefulDataLoader over WebDataset."""

    def __init__(self, folder: str) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader

        data = WebDataset(folder).samples
        self.loader: Any = StatefulDataLoader(data, batch_size=BATCH, collate_fn=list)

    def begin(self, state: Any) -> Iterator[list[int]]:
        if state is not None:
            self.loader.load_state_dict(state)
        return iter(self.loader)

    def state(self, given: int) -> Any:
        return self.loader.state_dict()


class Streaming:
    """MosaicML Streaming over its own format, with the same samples."""

    def __init__(self, folder: str) -> None:
        from streaming import StreamingDataLoader, StreamingDataset

        class Parsed(StreamingDataset):  # type: ignore[misc]
            def __getitem__(self, at: Any) -> Any:
                return parse(super().__getitem__(at))

        data = Parsed(local=f"{folder}/mds", shuffle=True, batch_size=BATCH)
        # It uses the length of a batch's first field as the batch size.
        self.loader = StreamingDataLoader(data, batch_size=BATCH, collate_fn=lambda ids: [ids])

    def begin(self, state: Any) -> Iterator[list[int]]:
        if state is not None:
            self.loader.load_state_dict(state)
        return (batch[0] for batch in self.loader)

    def state(self, given: int) -> Any:
        return self.loader.state_dict()


def make_mds(folder: str) -> None:
    """Write the samples of the shards in MosaicML's format."""
    import samples
    from streaming import MDSWriter

    place = Path(folder)
    count = int(place.name.split("-")[-1])
    partial = place / "mds.partial"
    shutil.rmtree(partial, ignore_errors=True)
    with MDSWriter(out=str(partial), columns={"json": "bytes", "cls": "bytes"}) as sink:
        for sample in samples.samples("tiny", count, None):
            sink.write({"json": sample["json"], "cls": sample["cls"]})
    partial.rename(place / "mds")


RIVALS: dict[str, Any] = {
    "penstock-indexed": lambda folder: Penstock(folder, indexed=True),
    "penstock-streaming": lambda folder: Penstock(folder, indexed=False, buffer=BUFFER),
    "webdataset": WebDataset,
    "stateful": Stateful,
    "streaming": Streaming,
}

OURS = ["penstock.pipeline.webdataset", "penstock.batches.batched"]
IMPORTS = {
    "penstock-indexed": [*OURS, "pyarrow.parquet"],
    "penstock-streaming": OURS,
    "webdataset": ["webdataset"],
    "stateful": ["webdataset", "torchdata.stateful_dataloader"],
    "streaming": ["streaming"],
}
"""What is imported before the clock starts."""


def walk(name: str, folder: str, file: str, marks: list[int]) -> dict[str, Any]:
    rival = RIVALS[name](folder)
    batches, given = rival.begin(None), 0
    saved = {}
    for mark in marks:
        for _ in islice(batches, mark - given):
            pass
        state = pickle.dumps(rival.state(mark))
        saved[mark] = (state, next(batches))
        given = mark + 1
    Path(file).write_bytes(pickle.dumps(saved))
    return {"state_bytes": {mark: len(state) for mark, (state, _) in saved.items()}}


def resume(name: str, folder: str, file: str, marks: list[int]) -> dict[str, Any]:
    state, expected = pickle.loads(Path(file).read_bytes())[marks[0]]
    for module in IMPORTS[name]:
        importlib.import_module(module)
    before, begun = bytes_read(), time.perf_counter()
    rival = RIVALS[name](folder)
    opened, there = time.perf_counter(), bytes_read()
    batch = next(rival.begin(pickle.loads(state)))
    done, after = time.perf_counter(), bytes_read()
    return {
        "open_s": opened - begun,
        "first_s": done - opened,
        "open_bytes": there - before + getattr(rival, "mapped", 0),
        "first_bytes": after - there,
        "decoded": DECODED[0],
        "same": batch == expected,
    }


def sizes(name: str, folder: str, file: str, marks: list[int]) -> dict[str, Any]:
    """Return a state's bytes as JSON and as pickle; 64 lanes, a buffer of 1,000 samples."""
    rival = Penstock(folder, name == "penstock-indexed", LANES, BUFFER)
    for _ in islice(rival.begin(None), marks[0]):
        pass
    state = rival.state(0)
    return {"json": len(json.dumps(state)), "pickle": len(pickle.dumps(state))}


def make(name: str, folder: str, file: str, marks: list[int]) -> dict[str, Any]:
    make_mds(folder)
    return {}


if __name__ == "__main__":
    action, name, folder, file, *numbers = sys.argv[1:]
    actions = {"walk": walk, "resume": resume, "sizes": sizes, "make": make}
    print(json.dumps(actions[action](name, folder, file, [int(number) for number in numbers])))
