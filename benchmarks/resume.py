"""The cost of resuming in mid-epoch: seconds, bytes and samples to the first batch.

Tiny samples, shuffled, decoded and batched, resumed at 1 %, 50 % and 99 % of an epoch, each time
in a fresh process (``resuming.py``) without loader workers. "same" says whether the first batch is
the one that would have come next. Bytes are those of read calls. Opening (the index, for those that
have one) is reported separately: it is done once per process, whatever the position in the epoch.

    python benchmarks/resume.py --samples 1000000 --streaming-python OTHER/bin/python

MosaicML Streaming needs other package versions: pass the Python that has it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import resuming
import samples
from measure import Report, Target, arguments_of, progress

QUIET = {**os.environ, "PYTHONWARNINGS": "ignore"}
PLACES = (0.01, 0.5, 0.99)
SHARDS = 100
STATE_BYTES = 64 << 10
NAMES = {
    "penstock-indexed": "penstock, indexed",
    "penstock-streaming": "penstock, shuffle(1000)",
    "webdataset": "WebDataset, skipping",
    "stateful": "StatefulDataLoader over WebDataset",
    "streaming": "MosaicML Streaming",
}


def shards_of(count: int, data: Path) -> Path:
    """Return the folder with the samples in 100 indexed shards; write it if missing."""
    from penstock import ShardWriter

    folder = data / f"resume-{count}"
    if not folder.is_dir():
        partial = data / f"resume-{count}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        options: Any = {"maxcount": -(-count // SHARDS), "encoder": False, "verbose": 0}
        with ShardWriter(str(partial / "%04d.tar"), **options) as sink:
            for number, sample in enumerate(samples.samples("tiny", count, None)):
                if number % 10_000 == 0:
                    progress(f"making {count:,} samples: {number:,}")
                sink.write(sample)
        partial.rename(folder)
    return folder


class Processes:
    """Runs resuming.py, each time in a fresh process."""

    def __init__(self, folder: Path, streaming_python: str) -> None:
        self.folder, self.streaming_python = str(folder), streaming_python

    def tell(self, action: str, name: str, *numbers: int) -> dict[str, Any]:
        python = self.streaming_python if name == "streaming" else sys.executable
        file = f"{self.folder}/{name}.states"
        program = str(Path(__file__).with_name("resuming.py"))
        command = [python, program, action, name, self.folder, file, *map(str, numbers)]
        done = subprocess.run(command, stdout=subprocess.PIPE, env=QUIET, text=True, check=True)
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return answer


def installed(name: str, options: argparse.Namespace) -> bool:
    """Return whether a rival's package is installed; print it if not."""
    if name == "streaming":
        command = [options.streaming_python, "-c", "import streaming"]
        there = not subprocess.run(command, capture_output=True).returncode
    else:
        package = {"webdataset": "webdataset", "stateful": "torchdata"}.get(name, "penstock")
        there = importlib.util.find_spec(package) is not None
    if not there:
        print(f"{NAMES[name]}: not installed", file=sys.stderr)
    return there


def measured(run: Processes, name: str, marks: list[int], rounds: int) -> list[dict[str, Any]]:
    """Return a row per position in the epoch."""
    if name == "streaming" and not Path(run.folder, "mds").is_dir():
        progress(f"{NAMES[name]}: making its data")
        run.tell("make", name)
    progress(f"{NAMES[name]}: one epoch")
    states = run.tell("walk", name, *marks)["state_bytes"]
    rows = []
    for place, mark in zip(PLACES, marks):
        progress(f"{NAMES[name]}: resuming at {place:.0%}")
        told = [run.tell("resume", name, mark) for _ in range(rounds)]
        rows.append(
            {
                "reader": f"{NAMES[name]}, {place:.0%}",
                "opening s": min(one["open_s"] for one in told),
                "first batch s": min(one["first_s"] for one in told),
                "opening kB": max(one["open_bytes"] for one in told) // 1000,
                "first batch kB": max(one["first_bytes"] for one in told) // 1000,
                "decoded": max(one["decoded"] for one in told),
                "same": "yes" if all(one["same"] for one in told) else "no",
                "state bytes": states[str(mark)],
            }
        )
    return rows


def check_costs(report: Report, name: str, rows: list[dict[str, Any]], batch_kb: float) -> None:
    """Check that the cost does not depend on the position, and that nothing is lost."""
    label = NAMES[name]
    read = [row["first batch kB"] for row in rows]
    decoded = [row["decoded"] for row in rows]
    apart = float(max(read) - min(read))
    for what, value, limit, unit in (
        ("bytes read, most less least", apart, batch_kb, "kB"),
        ("samples decoded", float(max(decoded)), float(resuming.BATCH), "samples"),
        ("resumed at another batch", float(sum(row["same"] == "no" for row in rows)), 0, "times"),
    ):
        report.targets.append(Target(f"{label}: {what}", value, limit, unit, at_most=True))


def state_sizes(run: Processes, report: Report, batches: int) -> None:
    """Measure states with 64 lanes and a buffer of 1,000 samples, in mid-epoch."""
    rows = []
    for name in ("penstock-indexed", "penstock-streaming"):
        progress(f"{NAMES[name]}: size of the state")
        size = run.tell("sizes", name, batches // 2)
        rows.append({"reader": NAMES[name], "as JSON": size["json"], "pickled": size["pickle"]})
        what = f"{NAMES[name]}: state of 64 lanes, 1,000 samples waiting"
        report.targets.append(Target(what, float(size["json"]), STATE_BYTES, "bytes", at_most=True))
    report.table("bytes of a state, 64 lanes, shuffle(1000)", rows)


def main() -> int:
    parser = arguments_of(__doc__)
    parser.set_defaults(rounds=3)
    parser.add_argument("--samples", type=int, default=100_000, help="default 100,000")
    parser.add_argument("--only", choices=list(NAMES), action="append", help="these rivals alone")
    parser.add_argument(
        "--streaming-python", default=sys.executable, help="a Python with mosaicml-streaming"
    )
    options = parser.parse_args()
    report = Report("Resuming", options.json)
    folder = shards_of(options.samples, options.data)
    run = Processes(folder, options.streaming_python)
    batches = options.samples // resuming.BATCH
    marks = [int(batches * place) for place in PLACES]
    size = sum(path.stat().st_size for path in folder.glob("*.tar"))
    batch_kb = size / options.samples * resuming.BATCH / 1000
    for name in options.only or NAMES:
        if installed(name, options):
            rows = measured(run, name, marks, options.rounds)
            progress("")
            report.table(f"{options.samples:,} samples", rows)
            if name.startswith("penstock"):
                check_costs(report, name, rows, batch_kb)
    state_sizes(run, report, batches)
    progress("")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
