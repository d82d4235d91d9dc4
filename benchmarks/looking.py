"""What the loader's statistics cost: the same loader with them and without, turn by turn.

Tiny samples, where every microsecond counts, and items that take a millisecond on threads.

    python benchmarks/looking.py
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import samples
from measure import Action, Report, Rival, Target, arguments_of, interleaved

PERCENT = 2.0
MILLISECOND = 1e-3


def a_millisecond(sample: Any) -> Any:
    """Work that releases the lock, as decoding does."""
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
    from penstock.loaders.meter import Meter
    from penstock.pipeline.pipeline import DataPipeline

    loader = loader_of(urls, kind)
    if watched:
        return lambda: sum(1 for _ in loader)
    loader.loader.meter = Meter()  # hears nothing
    return lambda: sum(1 for _ in DataPipeline.__iter__(loader))


RIVALS: dict[str, Callable[..., Action]] = {
    "with statistics": partial(run, True),
    "without": partial(run, False),
}


def main() -> int:
    parser = arguments_of(__doc__)
    parser.add_argument("--tiny-count", type=int, default=50_000, help="samples (default 50,000)")
    options = parser.parse_args()
    report = Report("Looking inside", options.json)
    with ExitStack() as stack:
        rivals = [stack.enter_context(Rival(name, made)) for name, made in RIVALS.items()]
        for kind, count in (("tiny", options.tiny_count), ("a millisecond", 2000)):
            urls = samples.shards_of("tiny", "plain", count, None, options.data)
            timings = interleaved(rivals, [urls, kind], options.rounds, kind)
            rows = [
                {"loader": name, "samples/s": count / t.best, "median": count / t.median}
                for name, t in timings.items()
            ]
            report.table(kind, rows)
            cost = (timings["with statistics"].best / timings["without"].best - 1) * 100
            report.targets.append(Target(f"{kind}: cost", cost, PERCENT, "%", at_most=True))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
