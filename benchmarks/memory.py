"""Memory for reading a 1 GB shard of 100 KB samples, without interpreter and imports.

Each reader runs in a fresh process (``peak.py``). The shard is written first and deleted after.

    python benchmarks/memory.py
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import samples
from measure import Report, Target, arguments_of, progress

MEGABYTES = 64.0
SAMPLE_BYTES = 100_000
COUNT = 10_000

# name, library, prefix of the URL, size of the shuffle buffer
WAYS = (
    ("penstock", "penstock", "", 0),
    ("penstock, pipe:cat", "penstock", "pipe:cat ", 0),
    ("penstock, shuffle(100)", "penstock", "", 100),
    ("webdataset", "webdataset", "", 0),
    ("webdataset, shuffle(100)", "webdataset", "", 100),
)


def stream(number: int) -> Iterator[samples.Sample]:
    """Yield samples of 100 KB, each different from the previous one."""
    data = random.Random(0).randbytes(2 * SAMPLE_BYTES)
    for index in range(number):
        begin = index % SAMPLE_BYTES
        yield {"__key__": f"{index:08d}", "bin": data[begin : begin + SAMPLE_BYTES]}


def measured(library: str, url: str, shuffle: int, number: int) -> dict[str, Any]:
    """Run one fresh process and return its output."""
    command = [sys.executable, str(Path(__file__).with_name("peak.py")), library, url, str(shuffle)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if answer["samples"] != number:
        raise SystemExit(f"{library} read {answer['samples']} samples of {number}")
    return answer


def main() -> int:
    parser = arguments_of(__doc__)
    parser.add_argument("--count", type=int, default=COUNT, help=f"samples (default {COUNT:,})")
    options = parser.parse_args()
    report = Report("Memory", options.json)
    options.data.mkdir(parents=True, exist_ok=True)
    told = []
    with tempfile.TemporaryDirectory(dir=options.data, prefix="memory-") as folder:
        shard = Path(folder) / "large.tar"
        progress("making the shard")
        samples.write_plain(shard, stream(options.count))
        size = shard.stat().st_size
        for name, library, prefix, shuffle in WAYS:
            progress(name)
            answer = measured(library, f"{prefix}{shard}", shuffle, options.count)
            before, peak = answer["before_kb"] / 1024, answer["peak_kb"] / 1024
            row = {"reader": name, "imports MiB": before, "peak MiB": peak, "above": peak - before}
            told.append(row)
    progress("")
    report.table(f"a shard of {size / 1e9:.2f} GB", told)
    above = told[0]["above"] * 1.048576  # MiB to MB
    report.targets.append(Target("above the imports", above, MEGABYTES, "MB", at_most=True))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
