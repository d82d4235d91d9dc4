"""Bucketing and packing of streams: padding, fill, waits and time per sample.

    python benchmarks/streams.py [--samples 60000]

Durations are lognormal (median 8 s, sigma 0.6) in [1, 35] s, tokens lognormal (median 400, sigma
0.6) up to 4,096. Only the stage is timed: samples are small dicts, and nothing is collated.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import penstock as wds
from penstock.batches.bucketing.length_buffer import LengthBuffer
from penstock.batches.packing.bin_packing import FITS
from penstock.context import Context
from penstock.stages.run import IterableRun


def durations(count: int, seed: int = 0) -> list[float]:
    rng, found = np.random.default_rng(seed), np.zeros(0)
    while len(found) < count:
        drawn = rng.lognormal(np.log(8), 0.6, count)
        found = np.concatenate([found, drawn[(drawn >= 1) & (drawn <= 35)]])
    return np.round(found[:count], 2).tolist()


def tokens(count: int, most: int, seed: int = 0) -> list[int]:
    drawn = np.random.default_rng(seed).lognormal(np.log(400), 0.6, count)
    return np.clip(np.round(drawn), 1, most).astype(int).tolist()


def bucketed(lengths: list[float], buffersize: int, target: float, most: float) -> str:
    sizes = {"target_batch_numel": target, "max_batch_numel": most}
    stage = wds.dynamic_bucketed_batch(
        "length", None, buffersize=buffersize, collate_fn=None, sampler_kwargs=sizes
    )
    samples = [{"number": n, "length": length} for n, length in enumerate(lengths)]
    best = min(timed(lambda: sum(1 for _ in stage(iter(samples)))) for _ in range(3))
    came, waits = [0], np.zeros(len(samples))
    padded, batches = 0.0, 0

    def source():
        for sample in samples:
            came[0] += 1
            yield sample

    for batch in stage(source()):
        batches += 1
        padded += len(batch) * batch[0]["length"]
        for sample in batch:
            waits[sample["number"]] = came[0] - 1 - sample["number"]
    order, hundredth = np.argsort(lengths, kind="stable"), len(lengths) // 100
    short, long = waits[order[:hundredth]].mean(), waits[order[-hundredth:]].mean()
    return (
        f"buffer {buffersize:6,}, {target:g}/{most:g} s: "
        f"{best / len(lengths) * 1e6:5.2f} us/sample, padding {1 - sum(lengths) / padded:6.2%}, "
        f"fill of the maximum {padded / batches / most:.3f}, "
        f"wait {short:,.0f} / {np.median(waits):,.0f} / {long:,.0f} / {waits.max():,.0f} "
        f"({waits.max() / buffersize:.2f} buffers)"
    )


def lanes(lengths: list[float], count: int) -> str:
    """Measure the padding if lanes share a buffer of 1,024."""
    sizes = {"target_batch_numel": 450, "max_batch_numel": 600}
    stage = wds.dynamic_bucketed_batch("length", None, collate_fn=None, sampler_kwargs=sizes)
    padded = 0.0
    for lane in range(count):
        part = [{"length": length} for length in lengths[lane::count]]
        source = IterableRun(part, None, Context())
        source.place = (lane,)
        run = stage.start(source, Context(lane=lane, lanes=count))
        padded += sum(len(batch) * batch[0]["length"] for batch in run)
    return f"{count:3} lanes: padding {1 - sum(lengths) / padded:.2%}"


def packed(name: str, lengths: list, row: float, fit: str, buffer: int) -> str:
    def rows():
        waiting = LengthBuffer()
        for length in lengths:
            waiting.add(length, None, None)
            if len(waiting) >= buffer:
                yield FITS[fit](waiting, row), waiting.now
        while waiting:
            yield FITS[fit](waiting, row), waiting.now

    seconds = timed(lambda: sum(1 for _ in rows()))
    found = list(rows())
    longest = max(now - item.arrival for items, now in found for item in items)
    return (
        f"{name} into rows of {row:g}, {fit} fit, buffer {buffer:,}: "
        f"fill {sum(lengths) / (row * len(found)):.3%}, "
        f"longest wait {longest / buffer:.2f} buffers, "
        f"{seconds / len(lengths) * 1e6:.2f} us/sample"
    )


def timed(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--samples", type=int, default=60_000)
    count = arguments.parse_args().samples
    seconds, words = durations(count), tokens(count, 4096)
    for buffersize in (128, 512, 1024, 4096, 16384):
        print(bucketed(seconds, buffersize, 450, 600))
    print(bucketed(seconds, 1024, 580, 600))
    print(bucketed(seconds, 1024, 45, 60))
    for number in (1, 8, 64):
        print(lanes(seconds, number))
    for fit in FITS:
        print(packed("tokens", words, 4096, fit, 2000))
        print(packed("seconds", seconds, 60, fit, 2000))
    million = tokens(1_000_000, 4096)
    began = time.perf_counter()
    plan = wds.plan_packing(million, 4096, seed=1)
    print(f"plan of 1,000,000: {time.perf_counter() - began:.1f} s, fill {plan.fill:.3%}")


if __name__ == "__main__":
    main()
