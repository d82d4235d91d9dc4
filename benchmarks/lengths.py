"""How well and how fast samples of different lengths are batched, compared with SpeechBrain.

Durations as in speech: lognormal, median 8 s, sigma 0.6, in [1, 35] s, in steps of 10 ms; a budget
of 600 s per batch. SpeechBrain is measured if it can be imported (its sampler and its stream
batching need no torchaudio), interleaved with penstock.

    python benchmarks/lengths.py --digits SPOKEN-DIGITS.tar
"""

from __future__ import annotations

import importlib.util
import json
import random
import subprocess
import sys
import time
import types
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import numpy as np
from measure import Action, Prepare, Report, Rival, Target, arguments_of, interleaved, progress
from peak import status_kilobytes

BUDGET, BUCKETS, RANKS = 600, 200, 8
QUADRATIC_BUDGET = 962
"""About as many batches by n·(T + T²/20) as 600 gives by n·T."""
STREAMED, BUFFER = 60_000, 1024
LIMITS = {"target_batch_numel": 450, "max_batch_numel": 600}
ROWS = (1024, 2048, 4096)
TOKENS_PER_SECOND = 20
SPEECHBRAIN = "speechbrain"


def durations(count: int, seed: int = 0) -> Any:
    """Draw lognormal durations; redraw those outside [1, 35] s."""
    rng = np.random.default_rng(seed)
    found = np.zeros(0)
    while len(found) < count:
        drawn = rng.lognormal(np.log(8), 0.6, count)
        found = np.append(found, drawn[(drawn >= 1) & (drawn <= 35)])
    return np.round(found[:count], 2)


def speechbrain(module: str) -> Any:
    """Import a module of SpeechBrain without torchaudio, which the parts used do not need."""
    if importlib.util.find_spec("torchaudio") is None:
        stand_in = types.ModuleType("torchaudio")
        stand_in.__spec__ = ModuleSpec("torchaudio", None)
        stand_in.__dict__["__version__"] = "0"
        sys.modules["torchaudio"] = stand_in
    return importlib.import_module(f"speechbrain.dataio.{module}")


def digest(batches: list[Any]) -> int:
    return zlib.crc32(json.dumps(batches).encode())


# ── the sampler with buckets ─────────────────────────────────────────────────────────────


def sampler_of_penstock(count: int) -> Action:
    import penstock

    return _sampled(penstock.DynamicBatchSampler, count)


def sampler_of_speechbrain(count: int) -> Action:
    return _sampled(speechbrain("sampler").DynamicBatchSampler, count)


def _sampled(kind: Any, count: int) -> Action:
    """Construct the sampler and iterate over one epoch."""
    lengths = durations(count).tolist()

    return lambda: sum(1 for _ in kind(range(count), BUDGET, BUCKETS, lengths_list=lengths))


def same_batches(count: int) -> bool:
    import penstock

    lengths = durations(count).tolist()
    arguments: Any = (range(count), BUDGET, BUCKETS)
    theirs = speechbrain("sampler").DynamicBatchSampler(*arguments, lengths_list=lengths)
    ours = penstock.DynamicBatchSampler(*arguments, lengths_list=lengths)
    first = digest(list(ours)) == digest(theirs._batches)
    theirs.set_epoch(1)
    return first and digest(list(ours)) == digest(theirs._batches)


def sampler(report: Report, rounds: int, count: int, peers: bool) -> None:
    rivals: dict[str, Prepare] = {"penstock": sampler_of_penstock}
    if peers:
        rivals[SPEECHBRAIN] = sampler_of_speechbrain
    with ExitStack() as stack:
        running = [stack.enter_context(Rival(name, made)) for name, made in rivals.items()]
        timings = interleaved(running, [count], rounds, "sampler")
    report.table(
        f"sampler, {count:,}: construction and an epoch",
        [
            {"by": name, "best s": t.best, "median s": t.median, "batches": t.result}
            for name, t in timings.items()
        ],
    )
    if peers:
        if not same_batches(20_000):
            raise SystemExit("the batches are not SpeechBrain's")
        ratio = timings[SPEECHBRAIN].best / timings["penstock"].best
        report.targets.append(Target("sampler: times SpeechBrain, same batches", ratio, 20))


def many(count: int) -> dict[str, float]:
    """Measure seconds and memory of a very large epoch in this process, which must be fresh."""
    import torch

    import penstock

    lengths = durations(count)
    torch.randperm(1)
    begin = time.perf_counter()
    sampler = penstock.DynamicBatchSampler(range(count), BUDGET, BUCKETS, lengths_list=lengths)
    batches = sum(1 for _ in sampler)
    seconds = time.perf_counter() - begin
    return {"batches": batches, "s": seconds, "peak MB": status_kilobytes("VmHWM") * 1.024 / 1000}


def very_many(report: Report, count: int) -> None:
    progress("sampler, a fresh process")
    command = [sys.executable, __file__, "--fresh", str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    report.table(f"sampler, {count:,}, whole process", [{"by": "penstock", **answer}])
    report.targets += [
        Target(f"sampler, {count:,}: time", answer["s"], 10, "s", at_most=True),
        Target(f"sampler, {count:,}: memory", answer["peak MB"], 1000, "MB", at_most=True),
    ]


# ── planned batches ──────────────────────────────────────────────────────────────────────


def schemes(report: Report, caption: str, lengths: Any, budget: float) -> dict[str, Any]:
    """Compare fixed, sorted, bucketed and planned batches."""
    from penstock.cli.lengths.schemes import reports_on

    progress(caption)
    found, _ = reports_on(lengths, budget, buckets=BUCKETS, seed=0, ranks=None)
    names = ("batches", "padding", "fill", "rejoin", "spread", "largest")
    rows = [{"scheme": one.name, **{name: getattr(one, name) for name in names}} for one in found]
    report.table(f"{caption}, budget {budget:g}, floor {found[0].floor:,}", rows)
    return {one.name: one for one in found}


def planned(report: Report, count: int) -> None:
    ours = schemes(report, f"{count:,} durations", durations(count), BUDGET)["planned"]
    report.targets += [
        Target("planned: padding", 100 * ours.padding, 2.1, "%", at_most=True),
        Target("planned: rejoin", ours.rejoin, 0.026, "", at_most=True),
        Target("planned: batches", ours.batches, 1620, "", at_most=True),
    ]


def ranks(report: Report, count: int) -> None:
    """Measure how balanced the steps of eight ranks are."""
    import penstock
    from penstock.batches.planning.cost import Quadratic

    progress("eight ranks")
    lengths = durations(count)
    quadratic = Quadratic(c=1 / 20)
    ours = penstock.plan_batches(lengths, BUDGET, ranks=RANKS)
    squared = penstock.plan_batches(lengths, QUADRATIC_BUDGET, cost=quadratic, ranks=RANKS)
    buckets = penstock.DynamicBatchSampler(range(count), BUDGET, BUCKETS, lengths_list=lengths)
    dealt = list(penstock.DistributedSamplerWrapper(buckets, 1, 0))

    def evenness(batches: Any, cost: Any = None) -> float:
        found = penstock.padding_report(list(batches), lengths, ranks=RANKS, cost=cost)
        return float(found.balance or 0)

    rows = [
        {"batches": name, "n·T": evenness(batches), "n·(T + T²/20)": evenness(batches, quadratic)}
        for name, batches in (
            (f"{BUCKETS} buckets, dealt at random (as SpeechBrain)", dealt),
            ("planned", ours),
            ("planned with the quadratic cost", squared),
        )
    ]
    report.table(f"{RANKS} ranks: mean over greatest cost of a step", rows)
    report.targets += [
        Target(f"{RANKS} ranks, linear: balance", rows[1]["n·T"], 0.98, ""),
        Target(f"{RANKS} ranks, quadratic: balance", rows[2]["n·(T + T²/20)"], 0.98, ""),
    ]


# ── streams ──────────────────────────────────────────────────────────────────────────────

Sample = dict[str, Any]


class Arrivals:
    """Yields samples one by one and counts them."""

    def __init__(self, samples: list[Sample]) -> None:
        self.samples, self.come = samples, 0

    def __iter__(self) -> Iterator[Sample]:
        for sample in self.samples:
            self.come += 1
            yield sample


def batching_of_penstock() -> Callable[[Any], Any]:
    import penstock

    stage = penstock.dynamic_bucketed_batch(
        "duration", None, buffersize=BUFFER, collate_fn=None, sampler_kwargs=LIMITS
    )
    return lambda samples: stage(samples)


def batching_of_speechbrain() -> Callable[[Any], Any]:
    function = speechbrain("iterators").dynamic_bucketed_batch
    random.seed(0)
    return lambda samples: function(
        samples, "duration", None, buffersize=BUFFER, collate_fn=list, sampler_kwargs=LIMITS
    )


BATCHING = {"penstock": batching_of_penstock, SPEECHBRAIN: batching_of_speechbrain}


def stream_of(name: str) -> Action:
    samples = [{"duration": length} for length in durations(STREAMED).tolist()]
    batch = BATCHING[name]()
    return lambda: sum(1 for _ in batch(samples))


def stream_of_penstock() -> Action:
    return stream_of("penstock")


def stream_of_speechbrain() -> Action:
    return stream_of(SPEECHBRAIN)


def streamed(name: str) -> tuple[Any, int]:
    """Return the padding of the batches, and the longest wait, in arrivals."""
    from penstock import padding_report

    lengths = durations(STREAMED).tolist()
    arrivals = Arrivals([{"duration": one, "turn": n} for n, one in enumerate(lengths)])
    batches, longest = [], 0
    for batch in BATCHING[name]()(arrivals):
        batches.append([sample["turn"] for sample in batch])
        longest = max(longest, arrivals.come - 1 - min(batches[-1]))
    return padding_report(batches, lengths, LIMITS["max_batch_numel"]), longest


def streams(report: Report, rounds: int, peers: bool) -> None:
    rivals: dict[str, Prepare] = {"penstock": stream_of_penstock}
    if peers:
        rivals[SPEECHBRAIN] = stream_of_speechbrain
    with ExitStack() as stack:
        running = [stack.enter_context(Rival(name, made)) for name, made in rivals.items()]
        timings = interleaved(running, [], rounds, "stream")
    rows = []
    for name in rivals:
        progress(f"stream: batches of {name}")
        found, longest = streamed(name)
        if found.samples != STREAMED:
            raise SystemExit(f"{name} gave {found.samples} samples of {STREAMED}")
        best, median = (1e6 * t / STREAMED for t in (timings[name].best, timings[name].median))
        row = {"by": name, "µs/sample": best, "median": median, "padding %": 100 * found.padding}
        rows.append({**row, "fill": found.fill, "longest wait, buffers": longest / BUFFER})
    report.table(f"stream of {STREAMED:,}, buffer {BUFFER}", rows)
    most = rows[1]["padding %"] if peers else 4.2
    report.targets += [
        Target("stream: padding (SpeechBrain's)", rows[0]["padding %"], most, "%", at_most=True),
        Target("stream: time per sample", rows[0]["µs/sample"], 5, "µs", at_most=True),
        Target(
            "stream: longest wait", rows[0]["longest wait, buffers"], 4, "buffers", at_most=True
        ),
    ]


def packing(report: Report) -> None:
    """Measure how full packed rows are, with a buffer of 2,000 samples."""
    import penstock

    lengths = np.rint(durations(STREAMED) * TOKENS_PER_SECOND).astype(int)
    tokens = [np.zeros(length, np.int32) for length in lengths]
    rows = []
    for size in ROWS:
        progress(f"packing into rows of {size}")
        begin = time.perf_counter()
        count = sum(1 for _ in penstock.packed(size, buffer=2000)(tokens))
        seconds = time.perf_counter() - begin
        fill = lengths.sum() / (count * size)
        each = 1e6 * seconds / STREAMED
        rows.append({"row": size, "rows": count, "filled": fill, "µs/sample": each})
    report.table("packing, buffer 2,000", [{"by": "penstock", **row} for row in rows])
    least = min(float(row["filled"]) for row in rows)
    report.targets.append(Target("packing: filled, the least of all rows", least, 0.99, ""))


def digits(report: Report, path: str) -> None:
    """Measure on real lengths: spoken digits of a second or less."""
    from penstock.cli.lengths.sources import measured

    lengths = measured([path], None, "wav:seconds").lengths
    for budget in (14.0, 60.0):
        schemes(report, f"spoken digits, {len(lengths):,}", lengths, budget)


def main() -> int:
    parser = arguments_of(__doc__)
    parser.set_defaults(rounds=3)
    parser.add_argument("--count", type=int, default=1_000_000, help="of the sampler (1 million)")
    parser.add_argument("--digits", metavar="TAR", help="shard with real sound: spoken-digits.tar")
    parser.add_argument("--fresh", type=int, metavar="COUNT", help="only this, in this process")
    options = parser.parse_args()
    if options.fresh:
        print(json.dumps(many(options.fresh)))
        return 0
    peers = importlib.util.find_spec(SPEECHBRAIN) is not None
    report = Report("Lengths", options.json)
    if not peers and not options.json:
        print("SpeechBrain is not installed: penstock alone, no ratio (pip install speechbrain)\n")
    sampler(report, options.rounds, options.count, peers)
    very_many(report, 10 * options.count)
    planned(report, 100_000)
    ranks(report, 100_000)
    streams(report, options.rounds, peers)
    packing(report)
    if options.digits:
        if not Path(options.digits).exists():
            raise SystemExit(f"there is no {options.digits}")
        digits(report, options.digits)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
