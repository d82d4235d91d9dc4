"""Mixing many indexed sources: the cost over reading one, the start, resuming, memory, joins.

    python benchmarks/mixtures.py [--sources 100 1000] [--samples 100000] [--folder DIR]
                                  [--join] [--where]

All figures are of one process and one run; what is compared is measured in turns. A mixture has
four shards of each source in use, and at most 64 are open. "One source of all shards" has as many
in use as the mixture. "Plan alone" is the cost of mixing without reading. Grain, torchdata, litdata
and Lhotse are measured beside it where they are installed: only the step that chooses the source,
on sources in memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import islice
from typing import Any

import numpy as np
from index import make_up

import penstock as wds
from penstock.shards.index import Index, Subset, open_index

EACH = 40  # samples per shard
SHARDS = 10


def write(folder: str, count: int) -> None:
    """Write ``count`` sources of SHARDS shards each, with their indexes."""
    for source in range(count):
        if os.path.exists(f"{folder}/s{source:04d}x.index.parquet"):
            continue
        for shard in range(SHARDS):
            with wds.TarWriter(f"{folder}/s{source:04d}x-{shard}.tar", check=False) as sink:
                for n in range(EACH):
                    number = (source * SHARDS + shard) * EACH + n
                    sink.write({"__key__": f"{number:09d}", "txt": b"x" * 200})
        open_index(f"{folder}/s{source:04d}x-{{0..{SHARDS - 1}}}.tar", True)


def one(folder: str, source: int) -> Any:
    urls = f"{folder}/s{source:04d}x-{{0..{SHARDS - 1}}}.tar"
    return wds.WebDataset(urls, index=True, shardshuffle=4)


def all_shards(folder: str, count: int) -> Any:
    """Return one data set of the shards of all sources, with as many in use as in a mixture."""
    urls = [f"{folder}/s{n:04d}x-{shard}.tar" for n in range(count) for shard in range(SHARDS)]
    index = f"{folder}/all-{count}.parquet"
    if not os.path.exists(index):
        wds.build_index(urls, index)
    return wds.WebDataset(urls, index=index, shardshuffle=4 * count)


def mixed(folder: str, count: int, schedule: bool = False, lanes: int | None = None) -> Any:
    weights: list[Any] = [1 + n % 7 for n in range(count)]
    if schedule:
        weights[0] = {"linear": {0: 5, 1_000_000: 1}}
    pipeline = wds.mix([one(folder, n) for n in range(count)], weights, until="forever")
    return wds.DataPipeline(pipeline, lanes=lanes)


def seconds_per_sample(stream: Any, samples: int) -> float:
    begun = time.perf_counter()
    for _ in islice(stream, samples):
        pass
    return (time.perf_counter() - begun) / samples


def overhead(folder: str, count: int, samples: int) -> dict[str, float]:
    """Measure a mixture and a single source in turns; microseconds per sample."""
    single = iter(wds.DataPipeline(wds.mix([one(folder, 0)], [1], until="forever")))
    plain = iter(one(folder, 0).repeat())
    streams = [plain, single, iter(mixed(folder, count)), iter(all_shards(folder, count).repeat())]
    for stream in streams:
        for _ in islice(stream, 2 * 65536):  # the number of samples read ahead grows up to here
            pass
    each = max(samples // 5, 65536)  # whole windows: the next one is planned at once
    rounds = [[seconds_per_sample(stream, each) * 1e6 for stream in streams] for _ in range(5)]
    alone, of_one, own, of_all = (statistics.median(column) for column in zip(*rounds))
    return {
        "one source, us": alone,
        "a mixture of one, us": of_one,
        "the mixture, us": own,
        "the mixture over one source, us": own - alone,
        "one source of all shards, us": of_all,
    }


def planning(folder: str, count: int, samples: int) -> float:
    """Measure the plan alone, without reading; microseconds per sample."""
    (stage,) = mixed(folder, count).pipeline[0].pipeline
    order = stage.order(0, 0)
    order.rows(np.arange(65536))
    begun = time.perf_counter()
    for first in range(65536, 65536 + samples, 65536):
        order.rows(np.arange(first, min(first + 65536, 65536 + samples)))
    return (time.perf_counter() - begun) / samples * 1e6


CHILD = """
import sys, time, json
sys.path.insert(0, {here!r})
import mixtures
begun = time.perf_counter()
pipeline = mixtures.mixed({folder!r}, {count}).listed(32)
next(iter(pipeline))
seconds = time.perf_counter() - begun
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]
print(json.dumps([seconds, int(peak) / 1024]))
"""


def first_batch(folder: str, count: int) -> list[float]:
    """Return seconds to the first batch in a new process, and its peak memory in MiB."""
    code = CHILD.format(here=os.path.dirname(__file__), folder=folder, count=count)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found: list[float] = json.loads(done.stdout)
    return found


def resume(folder: str, count: int) -> dict[str, float]:
    """Return milliseconds of load_state_dict and of the first sample after it, and bytes."""
    first = mixed(folder, count, schedule=True, lanes=48)
    for _ in islice(iter(first), 5000):
        pass
    text = json.dumps(first.state_dict())
    second = mixed(folder, count, schedule=True, lanes=48)
    begun = time.perf_counter()
    second.load_state_dict(json.loads(text))
    loaded = time.perf_counter()
    next(iter(second))
    ended = time.perf_counter()
    return {
        "load_ms": (loaded - begun) * 1e3,
        "first_sample_ms": (ended - loaded) * 1e3,
        "state_bytes": len(text),
    }


def joined(folder: str, samples: int = 20_000) -> dict[str, float]:
    """Compare a join of two sets with one set that has the bytes of both."""
    for name, fields in (("left", ("a",)), ("right", ("b",)), ("both", ("a", "b"))):
        if os.path.exists(f"{folder}/{name}-9.tar"):
            continue
        for shard in range(10):
            with wds.TarWriter(f"{folder}/{name}-{shard}.tar", check=False) as sink:
                for n in range(samples // 10):
                    values = {f"{field}.bin": b"x" * 50_000 for field in fields}
                    sink.write({"__key__": f"{shard}-{n:06d}", **values})
    both = wds.WebDataset(f"{folder}/both-{{0..9}}.tar", index=True, shardshuffle=4)
    join = wds.Join(f"{folder}/right-{{0..9}}.tar")
    two = wds.WebDataset(f"{folder}/left-{{0..9}}.tar", index=True, shardshuffle=4, join=join)
    for data in (both, two):
        next(iter(data))
    rounds = [[seconds_per_sample(iter(data), samples) for data in (both, two)] for _ in range(3)]
    single, pair = (statistics.median(column) for column in zip(*rounds))
    return {"one_set_us": single * 1e6, "join_us": pair * 1e6, "ratio": single / pair}


def choosing(folder: str, rows: int = 10_000_000) -> dict[str, float]:
    """Return the seconds that expressions take on an index of that many rows, whose shards do not
    exist. The index is loaded; its columns are read each time."""
    path = f"{folder}/rows-{rows}.index.parquet"
    if not os.path.exists(path):
        make_up(path, rows)
    index = Index.load(path)
    found: dict[str, float] = {}
    for text in ("width >= 256", "width >= 256 and lang in ('de', 'fr')", "bytes < 100_000"):
        times = []
        for _ in range(5):
            begun = time.perf_counter()
            Subset(where=text).rows(index)
            times.append(time.perf_counter() - begun)
        found[text] = statistics.median(times)
    return found


def peers(count: int, samples: int) -> dict[str, float]:
    """Measure how long others take to choose a source, where they are installed."""
    found: dict[str, float] = {}
    if importlib.util.find_spec("grain"):
        import grain

        sets = [grain.MapDataset.range(10_000) for _ in range(count)]
        data = grain.MapDataset.mix(sets, weights=[1 + n % 7 for n in range(count)])
        begun = time.perf_counter()
        for n in range(min(samples, 5000)):
            data[n]
        found["grain"] = (time.perf_counter() - begun) / min(samples, 5000) * 1e6
    if importlib.util.find_spec("torchdata"):
        from torchdata.nodes import IterableWrapper, MultiNodeWeightedSampler

        nodes = {str(n): IterableWrapper(range(10_000)) for n in range(count)}
        sampler = MultiNodeWeightedSampler(nodes, {str(n): 1.0 + n % 7 for n in range(count)})
        sampler.reset(None)
        begun = time.perf_counter()
        for _ in range(min(samples, 5000)):
            next(sampler)
        found["torchdata"] = (time.perf_counter() - begun) / min(samples, 5000) * 1e6
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sources", type=int, nargs="+", default=[100, 1000])
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--folder", help="where shards are kept (default: a temporary folder)")
    parser.add_argument("--join", action="store_true", help="also measure a join (2 GB of shards)")
    parser.add_argument("--where", action="store_true", help="also choose among 10 million rows")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or temporary
        write(folder, max(arguments.sources))
        alone = first_batch(folder, 1)
        print(f"one source: first batch {alone[0]:.2f} s, {alone[1]:.0f} MiB")
        for count in arguments.sources:
            seconds, peak = first_batch(folder, count)
            print(f"{count} sources: first batch {seconds:.2f} s, {peak - alone[1]:+.0f} MiB")
            print(f"  plan alone: {planning(folder, count, arguments.samples):.2f} us per sample")
            for name, value in overhead(folder, count, arguments.samples).items():
                print(f"  {name}: {value:.2f}")
            for name, value in resume(folder, count).items():
                print(f"  resume {name}: {value:,.0f}")
            for name, value in peers(count, arguments.samples).items():
                print(f"  {name}: {value:.1f} us per choice")
        if arguments.join:
            for name, value in joined(folder).items():
                print(f"join {name}: {value:.2f}")
        if arguments.where:
            for text, seconds in choosing(folder).items():
                print(f"where={text!r}: {seconds:.2f} s")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
