"""Measure loading an index of 10 million samples, and reading single samples with it.

    python benchmarks/index.py [SAMPLES]

Prints seconds and memory. The index is synthetic: 1,000 shards that do not exist, two fields and
two columns per sample. The samples are those of a small data set that is written here and is in
the page cache.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from penstock import ShardWriter
from penstock.shards.index import Index, SampleReader, open_index
from penstock.shards.index.checksum import parquet_writer
from penstock.shards.index.parquet_schema import IndexedShard, arrow, metadata_of
from penstock.storage import open_url

SHARDS = 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("samples", nargs="?", type=int, default=10_000_000)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.load:
        load(arguments.load)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "made-up.index.parquet")
        make_up(path, arguments.samples)
        print(f"{arguments.samples:,} samples: the file has {os.path.getsize(path) / 1e6:.0f} MB")
        sys.stdout.flush()
        # In a separate process, so that its peak memory is measured alone.
        subprocess.run([sys.executable, __file__, "--load", path], check=True)
        for size_bytes in (300, 110_000):
            read(Path(folder), size_bytes)


def load(path: str) -> None:
    arrow()
    before = peak_mb()
    started = time.perf_counter()
    index = Index.load(path)
    loaded = time.perf_counter() - started
    print(f"loaded in {loaded:.2f} s, {peak_mb() - before:.0f} MB more, {peak_mb():.0f} MB in all")
    started = time.perf_counter()
    details = index.keys, index.fields, index.shard
    spent = time.perf_counter() - started
    assert len(details[0]) == len(index)
    print(f"with keys and fields {spent:.2f} s more, {peak_mb():.0f} MB in all")


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def make_up(path: str, samples: int) -> None:
    pa = arrow()
    each = samples // SHARDS
    shards = [IndexedShard(f"train-{n:06d}.tar", each, each * 160_000, n) for n in range(SHARDS)]
    random_numbers = np.random.default_rng(0)
    about = metadata_of(shards, {}, os.path.dirname(path))
    schema = group(0, 1, random_numbers).schema.with_metadata(about)
    with open_url(path, "wb") as stream, parquet_writer(stream, schema) as writer:
        for start in range(0, SHARDS, 10):
            numbers = range(start, start + 10)
            table = pa.concat_tables([group(n, each, random_numbers) for n in numbers])
            table = table.unify_dictionaries().combine_chunks()
            writer.write_table(table.cast(schema), row_group_size=len(table))


def group(number: int, each: int, random_numbers: Any) -> Any:
    """Return the rows of one shard."""
    pa = arrow()
    sizes = random_numbers.integers(50_000, 150_000, each)
    spans = 1024 + 512 + (sizes + 511) // 512 * 512
    begins = np.cumsum(spans) - spans
    places = np.stack([begins + 512, begins + 1536], 1).ravel()
    lengths = np.stack([np.full(each, 2), sizes], 1).ravel()
    ends = pa.array(np.arange(0, 2 * each + 1, 2, dtype=np.int32))
    keys = [f"n{number:04d}_{n:08d}" for n in range(each)]
    return pa.table(
        {
            "shard": pa.array(np.full(each, number, np.int32)),
            "key": pa.array(keys),
            "offset": pa.array(begins),
            "size": pa.array(spans),
            "fields": pa.array(["cls jpg"] * each).dictionary_encode(),
            "field_offsets": pa.ListArray.from_arrays(ends, pa.array(places)),
            "field_sizes": pa.ListArray.from_arrays(ends, pa.array(lengths)),
            "width": pa.array(random_numbers.integers(64, 1024, each)),
            "lang": pa.array(np.array(["de", "fr", "en"])[sizes % 3]).dictionary_encode(),
        }
    )


def read(folder: Path, size_bytes: int) -> None:
    pattern = str(folder / f"s{size_bytes}-%03d.tar")
    count = 2000
    with ShardWriter(pattern, maxcount=500, index=True) as sink:
        for number in range(count):
            sink.write({"__key__": f"k{number}", "cls": 1, "jpg": os.urandom(size_bytes)})
    reader = SampleReader(open_index(pattern.replace("%03d", "{000..003}")))
    rows = list(range(count))
    random.Random(0).shuffle(rows)
    best = min(timed(reader, rows) for _ in range(5))
    print(f"a sample of {size_bytes:,} bytes, at random, warm: {best / count * 1e6:.1f} µs")


def timed(reader: SampleReader, rows: list[int]) -> float:
    started = time.process_time()
    for row in rows:
        reader.read(row)
    return time.process_time() - started


if __name__ == "__main__":
    main()
