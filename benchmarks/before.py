"""How much slower or faster this checkout is than an earlier one.

Runs penstock's part of read.py, order.py, resume.py and images.py with both checkouts, interleaved:
in every round each case runs once with either. A ratio of 1.03 means that this checkout takes 3 %
more time.

    git worktree add ../before COMMIT
    python benchmarks/before.py ../before --photos PHOTOS.tar
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import images
import order
import resume
import resuming
import samples
from measure import Action, Report, Rival, Target, arguments_of, progress

HERE = Path(__file__).resolve().parent
AT_MOST = 1.03
LOADERS = ("penstock, wheels", "penstock, native")
Rows = list[dict[str, Any]]


def prepared(checkout: str, case: str, urls: list[str]) -> Action:
    """Return a case's action with the penstock of a checkout."""
    source = f"{checkout}/src"
    if sys.path[0] != source:
        sys.path.insert(0, source)
    import penstock

    if not str(penstock.__file__).startswith(source):
        raise SystemExit(f"penstock was imported from {penstock.__file__}, not from {source}")
    return order.READERS[case](urls)


def compare(case: str, rounds: int, runs: dict[str, Callable[[], dict[str, float]]]) -> Rows:
    """Run both checkouts once per round; return a row for each value that they return."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in runs}
    for number in range(rounds + 1):
        progress(f"{case}: round {number} of {rounds}" if number else f"{case}: warming up")
        for name in list(runs)[:: 1 if number % 2 else -1]:
            for what, value in runs[name]().items():
                if number:
                    found[name].setdefault(what, []).append(value)
    progress("")
    rows: Rows = []
    for what in found["now"]:
        was, now = found["before"][what], found["now"][what]
        medians = statistics.median(now) / statistics.median(was)
        names = {"case": f"{case}: {what}", "before": min(was), "now": min(now)}
        rows.append({**names, "ratio": min(now) / min(was), "by medians": medians})
    return rows


def compare_reading(options: Any, checkouts: dict[str, str]) -> Rows:
    rows: Rows = []
    with ExitStack() as stack:
        rivals = {
            name: stack.enter_context(Rival(name, partial(prepared, checkout)))
            for name, checkout in checkouts.items()
        }

        def run(rival: Rival, case: str, urls: list[str], number: int) -> dict[str, float]:
            seconds, result = rival.run(case, urls)
            if result != number:
                raise SystemExit(f"{rival.name} gave {result} samples of {number}: {case}")
            return {"µs/sample": seconds / number * 1e6}

        for kind, number in samples.chosen(options):
            urls = samples.shards_of(kind, "plain", number, options.photos, options.data)
            for case in order.READERS:
                runs = {name: partial(run, rivals[name], case, urls, number) for name in rivals}
                rows += compare(f"{kind}, {case}", options.rounds, runs)
    return rows


def _answer(checkout: str, *command: Any) -> dict[str, Any]:
    """Return what a program of the benchmarks prints, run with the penstock of a checkout."""
    environment = {**os.environ, "PYTHONPATH": f"{checkout}/src", "PYTHONWARNINGS": "ignore"}
    words = [sys.executable, *map(str, command)]
    done = subprocess.run(words, stdout=subprocess.PIPE, env=environment, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def compare_resuming(options: Any, checkouts: dict[str, str]) -> Rows:
    rows: Rows = []
    folder = resume.shards_of(options.tiny_count, options.data)
    mark = options.tiny_count // resuming.BATCH // 2
    with tempfile.TemporaryDirectory() as kept:

        def run(which: str, name: str) -> dict[str, float]:
            states = f"{kept}/{name}-{which}"
            checkout = checkouts[name]
            program = HERE / "resuming.py"
            if not os.path.exists(states):
                _answer(checkout, program, "walk", which, folder, states, mark)
            answer = _answer(checkout, program, "resume", which, folder, states, mark)
            if not answer["same"]:
                raise SystemExit(f"{name} resumed at another batch: {which}")
            return {"opening s": answer["open_s"], "first batch s": answer["first_s"]}

        for which in ("penstock-indexed", "penstock-streaming"):
            runs = {name: partial(run, which, name) for name in checkouts}
            rows += compare(f"resume, {which}", options.rounds, runs)
    return rows


def compare_images(options: Any, checkouts: dict[str, str]) -> Rows:
    rows: Rows = []
    options.data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.data, prefix="images-") as made:
        photos = options.photos or images.made_photographs(Path(made))
        count = options.photos_count
        urls = samples.shards_of("photos", "plain", count, photos, Path(made, "shards"))

        def run(loader: str, name: str) -> dict[str, float]:
            words = ("LOADERS", loader, made, count, options.batch, images.CORES, *urls)
            answer = _answer(checkouts[name], HERE / "image_run.py", *words)
            each = answer["seconds"] / answer["timed"] * 1e3
            cpu = answer["cpu_s"] / answer["samples"] * 1e3
            return {"ms/image": each, "CPU ms/image": cpu, "first batch s": answer["first_s"]}

        for loader in LOADERS:
            runs = {name: partial(run, loader, name) for name in checkouts}
            rows += compare(loader, options.rounds, runs)
    return rows


PARTS = {"reading": compare_reading, "resuming": compare_resuming, "images": compare_images}


def main() -> int:
    parser = arguments_of(__doc__)
    samples.add_options(parser)
    parser.add_argument("before", type=Path, help="a checkout of the earlier commit")
    parser.add_argument("--part", choices=list(PARTS), help="this part alone")
    parser.add_argument("--batch", type=int, default=256, help="of photographs (default 256)")
    options = parser.parse_args()
    checkouts = {"before": str(options.before.resolve()), "now": str(HERE.parent)}
    sys.path.insert(0, f"{HERE.parent}/src")  # for resume.py, which writes the shards itself
    report = Report("Before and now", options.json)
    for name, part in PARTS.items():
        if options.part in (None, name):
            rows = part(options, checkouts)
            report.table(name, rows)
            for row in rows:
                ratio = min(row["ratio"], row["by medians"])
                report.targets.append(Target(row["case"], ratio, AT_MOST, at_most=True))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
