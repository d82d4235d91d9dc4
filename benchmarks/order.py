"""The cost of order and state: reading by index, tickets, and states sent with the items.

*Reading*: in any order by an index, with a state taken every 100 samples, compared with streaming
the same shards in order. *Tickets*: with and without asking for the ticket of every item. *Loader*:
WebLoader, whose workers send states, compared with torch's DataLoader on the same pipeline.

    python benchmarks/order.py --photos PHOTOS.tar
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import samples
from measure import (
    Action,
    Prepare,
    Report,
    Rival,
    Target,
    Timing,
    arguments_of,
    interleaved,
    progress,
)
from read import by_penstock, count

PART_OF_STREAMING = {"photos": 0.8}
TICKET_US = 2.0
STATE_EVERY = 100
BATCH = 64
STREAMING = "streaming, in order"
SHUFFLED = "indexed, shuffled, state every 100"


# ── reading ─────────────────────────────────────────────────────────────────────────────────


def by_index(options: dict[str, Any], every: int, urls: list[str]) -> Action:
    import penstock

    dataset = penstock.WebDataset(urls, index=True, **options)
    len(dataset)  # the index is opened once per process, before the first epoch

    def read_all() -> int:
        number = 0
        for _ in dataset:
            number += 1
            if every and number % every == 0:
                dataset.state_dict()
        return number

    return read_all


READERS: dict[str, Prepare] = {
    STREAMING: by_penstock,
    "indexed, in order": partial(by_index, {"shardshuffle": 0}, 0),
    "indexed, shuffled": partial(by_index, {"shardshuffle": 16}, 0),
    "indexed, shuffled, one lane": partial(by_index, {"shardshuffle": 16, "lanes": 1}, 0),
    SHUFFLED: partial(by_index, {"shardshuffle": 16}, STATE_EVERY),
}


def compare_reading(report: Report, options: Any) -> None:
    with ExitStack() as stack:
        rivals = [stack.enter_context(Rival(name, made)) for name, made in READERS.items()]
        for kind, number in samples.chosen(options):
            urls = samples.shards_of(kind, "plain", number, options.photos, options.data)
            timings = interleaved(rivals, [urls], options.rounds, kind)
            for name, timing in timings.items():
                if timing.result != number:
                    raise SystemExit(f"{name} gave {timing.result} samples of {number}")
            report.table(f"reading {kind}", reading_rows(timings, number))
            if kind in PART_OF_STREAMING:
                part = timings[STREAMING].best / timings[SHUFFLED].best
                what = f"{kind}: {SHUFFLED}, part of the speed of streaming"
                report.targets.append(Target(what, part, PART_OF_STREAMING[kind]))


def reading_rows(timings: dict[str, Timing], number: int) -> list[dict[str, Any]]:
    plain = timings[STREAMING]
    return [
        {
            "reader": name,
            "samples/s": number / timing.best,
            "median": number / timing.median,
            "µs/sample": timing.best / number * 1e6,
            "x streaming": plain.best / timing.best,
            "by medians": plain.median / timing.median,
        }
        for name, timing in timings.items()
    ]


# ── tickets ─────────────────────────────────────────────────────────────────────────────────

PIPELINES = ("a list, mapped", "streaming", "streaming, shuffle(1000)", "indexed")
Clock = Callable[[], float]


def in_turn(actions: dict[str, Action], rounds: int, clock: Clock, note: str) -> dict[str, Timing]:
    """Like ``interleaved``, but in this process: for small differences and loaders with workers."""
    timings = {name: Timing([], None) for name in actions}
    for number in range(rounds + 1):
        progress(f"{note}: round {number} of {rounds}")
        for name, action in actions.items():
            begin = clock()
            timings[name].result = action()
            if number:
                timings[name].seconds.append(clock() - begin)
    progress("")
    return timings


def ticket_pipeline(which: str, urls: list[str]) -> Any:
    import penstock

    if which == "a list, mapped":
        return penstock.DataPipeline(list(range(100_000))).map(abs)
    if which == "indexed":
        return penstock.WebDataset(urls, index=True, shardshuffle=16)
    dataset = penstock.WebDataset(urls, shardshuffle=False)
    return dataset.shuffle(1000) if "shuffle" in which else dataset


def run_through(pipeline: Any, ask: bool) -> int:
    """Iterate over one epoch, with or without asking for each item's ticket."""
    run = pipeline.begin(pipeline.context())
    if not ask:
        return count(run)
    number = 0
    for _ in run:
        _ = run.ticket
        number += 1
    return number


def compare_tickets(report: Report, options: Any) -> None:
    urls = samples.shards_of("tiny", "plain", options.tiny_count, None, options.data)
    rows = []
    for which in PIPELINES:
        pipeline = ticket_pipeline(which, urls)
        actions = {
            "without": partial(run_through, pipeline, False),
            "asked": partial(run_through, pipeline, True),
        }
        # CPU time, because other programs disturb wall time by more than the difference.
        timings = in_turn(actions, options.rounds, time.process_time, f"tickets, {which}")
        number = timings["asked"].result
        without, asked = (timings[name].best / number * 1e6 for name in ("without", "asked"))
        names = {"pipeline": which, "µs/item": without, "with tickets": asked}
        rows.append({**names, "for the ticket": asked - without})
        what = f"{which}: a ticket"
        report.targets.append(Target(what, asked - without, TICKET_US, "µs", at_most=True))
    report.table("tickets, processor time", rows)


# ── the loader ──────────────────────────────────────────────────────────────────────────────


def unchanged(item: Any) -> Any:
    """Return the batch unchanged; torch's conversion would cost both the same."""
    return item


def by_loader(stamped: bool, workers: int, batch: int, urls: list[str]) -> Action:
    from torch.utils.data import DataLoader

    import penstock

    dataset: Any = penstock.WebDataset(urls, index=True, shardshuffle=16)
    dataset = dataset.listed(batch) if batch > 1 else dataset
    loader: Any = penstock.WebLoader if stamped else DataLoader
    made = loader(dataset, batch_size=None, num_workers=workers, collate_fn=unchanged)
    return partial(count, made)


def compare_loaders(report: Report, options: Any) -> None:
    urls = samples.shards_of("tiny", "plain", options.tiny_count, None, options.data)
    rows = []
    for workers, batch in ((0, 1), (0, BATCH), (1, BATCH)):
        actions = {
            "DataLoader": by_loader(False, workers, batch, urls),
            "WebLoader": by_loader(True, workers, batch, urls),
        }
        name = f"{workers} workers, batches of {batch}"
        clock = time.perf_counter if workers else time.process_time
        timings = in_turn(actions, options.rounds, clock, f"loader, {name}")
        number = timings["WebLoader"].result
        plain, ours = (timings[which].best / number * 1e6 for which in actions)
        rows.append(
            {
                "loader": name,
                "DataLoader µs/item": plain,
                "WebLoader": ours,
                "for the state": ours - plain,
                "per sample": (ours - plain) / batch,
            }
        )
    report.table("states that travel with the items", rows)


def main() -> int:
    parser = arguments_of(__doc__)
    samples.add_options(parser)
    parts = {"reading": compare_reading, "tickets": compare_tickets, "loader": compare_loaders}
    parser.add_argument("--part", choices=list(parts), help="this part alone")
    options = parser.parse_args()
    report = Report("Order and state", options.json)
    for name, compare in parts.items():
        if options.part in (None, name):
            compare(report, options)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
