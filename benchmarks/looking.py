"""The cost of the loader's statistics: the same loader with and without them, interleaved.

Tiny samples, where every microsecond counts, and items that take a millisecond on threads.

    python benchmarks/looking.py
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Any

import samples
from measure import Action, Report, Target, arguments_of, progress

PERCENT = 2.0
MILLISECOND = 1e-3


def a_millisecond(sample: Any) -> Any:
    """Do work that releases the GIL, as decoding does."""
    time.sleep(MILLISECOND)
    return sample


def loader_of(urls: list[str], kind: str) -> Any:
    import penstock

    dataset: Any = penstock.WebDataset(urls, shardshuffle=False)
    if kind == "tiny":
        dataset = dataset.decode().to_tuple("json", "cls").batched(256)
    else:
        dataset = dataset.map(a_millisecond).to_tuple("json", "cls").batched(32)
    return penstock.WebLoader(dataset, num_workers=2, batch_size=None, engine="threads")


def run(watched: bool, urls: list[str], kind: str) -> Action:
    from penstock.engine.observer import StatsListener
    from penstock.pipeline.data_pipeline import DataPipeline

    loader = loader_of(urls, kind)
    if not watched:
        loader.loader.meter = StatsListener()  # records nothing

    def epoch() -> float:
        begin = time.process_time()
        for _ in loader if watched else DataPipeline.__iter__(loader):
            pass
        return time.process_time() - begin

    return epoch


def told(name: str, count: int, seconds: list[float], cpu: list[float]) -> dict[str, Any]:
    each = min(cpu) / count * 1e6
    return {"loader": name, "samples/s": count / min(seconds), "CPU µs each": each}


def measured(kind: str, count: int, options: Any, report: Report) -> None:
    """Measure both in one process, interleaved: two processes differ by more than the cost."""
    urls = samples.shards_of("tiny", "plain", count, None, options.data)
    ways = {"with statistics": run(True, urls, kind), "without": run(False, urls, kind)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    cpu: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(options.rounds + 1):
        progress(f"{kind}: round {number} of {options.rounds}")
        for name in list(ways) if number % 2 else reversed(ways):
            begin = time.perf_counter()
            used = ways[name]()
            if number:  # the first round warms up
                seconds[name].append(time.perf_counter() - begin)
                cpu[name].append(used)
    progress("")
    report.table(kind, [told(name, count, seconds[name], cpu[name]) for name in ways])
    # Other programs affect wall time more than CPU time; slow drift affects both of a round.
    pairs = zip(cpu["with statistics"], cpu["without"])
    extra = statistics.median(more - less for more, less in pairs)
    cost = extra / min(seconds["without"]) * 100
    report.targets.append(Target(f"{kind}: cost", cost, PERCENT, "%", at_most=True))


def main() -> int:
    parser = arguments_of(__doc__)
    parser.set_defaults(rounds=15)
    parser.add_argument("--tiny-count", type=int, default=50_000, help="samples (default 50,000)")
    options = parser.parse_args()
    report = Report("Looking inside", options.json)
    measured("tiny", options.tiny_count, options, report)
    measured("a millisecond", 2000, options, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
