"""The cost of a manifest: time and memory to load, to filter, per sample, and in a worker.

    python benchmarks/manifests.py --rows 1000000

A worker is forked, or spawned, and reads every row. Its memory is the private memory that no file
backs (``Anonymous`` in /proc/PID/smaps), before and after. Times are CPU times, so that other load
on the machine matters less.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import resource
import tempfile
import time

import numpy as np


def write(path: str, rows: int) -> None:
    seconds = np.clip(np.random.default_rng(0).lognormal(np.log(8), 0.6, rows), 1, 35).round(2)
    words = ["the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "again"]
    draw = random.Random(0)
    texts = [" ".join(draw.choices(words, k=9)) for _ in range(1000)]
    with open(path, "w") as file:
        file.write("{\n")
        for n, duration in enumerate(seconds.tolist()):
            wav = f"{{data_folder}}/spk{n % 997:04d}/utt{n:08d}.wav"
            row = f'{{"wav": "{wav}", "duration": {duration}, "words": "{texts[n % 1000]}"}}'
            file.write(f'"utt{n:08d}": {row}{"," if n + 1 < rows else ""}\n')
        file.write("}\n")


def private_mb() -> float:
    """Return the memory that no other process maps and no file backs, in MB."""
    total = 0
    private = 0
    with open("/proc/self/smaps") as file:
        for line in file:
            if line.startswith("Private_"):
                private += int(line.split()[1])
            elif line.startswith("Anonymous:"):
                total += min(private, int(line.split()[1]))
                private = 0
    return total / 1024


def resident_mb() -> float:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) / 1024


def touch(dataset: object, say: object) -> None:
    before = private_mb()
    total = 0.0
    for sample in dataset:
        total += sample["duration"] + len(sample["wav"])
    say.send((before, private_mb()))


def worker(kind: str, dataset: object) -> tuple[float, float, float]:
    context = multiprocessing.get_context(kind)
    hear, say = context.Pipe(False)
    started = time.perf_counter()
    process = context.Process(target=touch, args=(dataset, say))
    process.start()
    seconds = time.perf_counter() - started
    before, after = hear.recv()
    process.join()
    return seconds, before, after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", default=None, help="keeps the manifest for the next time")
    options = parser.parse_args()
    folder = options.folder or tempfile.mkdtemp()
    path = os.path.join(folder, f"rows-{options.rows}.json")
    if not os.path.exists(path):
        write(path, options.rows)

    import penstock

    keys = ["id", "wav", "duration", "words"]
    penstock.DynamicItemDataset({"a": {"x": 1}})  # imports
    before = resident_mb()
    started = time.process_time()
    dataset = penstock.DynamicItemDataset.from_json(path, {"data_folder": "/data"})
    print(f"{options.rows} rows, a file of {os.path.getsize(path) / 2**20:.0f} MiB")
    print(f"from_json        {time.process_time() - started:8.2f} s")
    print(f"  holds          {resident_mb() - before:8.0f} MiB")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"  peak           {peak - before:8.0f} MiB")
    dataset.set_output_keys(keys)

    started = time.process_time()
    dataset.filtered_sorted(key_min_value={"duration": 2}, sort_key="duration")
    print(f"filtered_sorted  {time.process_time() - started:8.2f} s")
    started = time.process_time()
    dataset.column("duration")
    print(f"column           {time.process_time() - started:8.3f} s")
    places = random.Random(1).sample(range(options.rows), min(options.rows, 100_000))
    started = time.process_time()
    for place in places:
        dataset[place]
    print(f"a sample         {(time.process_time() - started) / len(places) * 1e6:8.2f} µs")
    dataset.set_output_keys(["wav", "duration"])
    for kind in ("fork", "spawn"):
        seconds, idle, full = worker(kind, dataset)
        gained = f"{full - idle:8.1f} MiB gained (has {idle:.1f})"
        print(f"{kind:5s} worker     {gained}; start {seconds:.2f} s")


if __name__ == "__main__":
    main()
