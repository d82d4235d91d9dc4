"""How fast the command is: cat, split, create and verify beside cat, GNU tar and plain reading.

Every call is a process, as in a shell. Outputs are removed before each call, untimed. ``cat`` and
``tar`` leave data in the page cache, penstock's commands end when it is on disk: "cat and sync" is
shown for comparison.

    python benchmarks/tools.py --photos-count 9000        # about 1 GB
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import samples
from measure import Report, Target, Timing, arguments_of, progress

import penstock

CAT_TIMES, CREATE_TIMES, VERIFY_SHARE, HELP_S = 2.0, 1.5, 0.5, 0.1
FLOOR, TAR, READ = "cat to disk", "GNU tar", "reading"
COMMAND = f"{sys.executable} -m penstock"


def make_inputs(folder: Path, number: int, photos: Path | None) -> int:
    """Write ``x.tar`` and the same samples as ``files/``; return the bytes of the fields."""
    shutil.rmtree(folder, ignore_errors=True)
    files = folder / "files"
    files.mkdir(parents=True)
    size = 0
    with penstock.TarWriter(str(folder / "x.tar"), encoder=False) as sink:
        for sample in samples.samples("photos", number, photos):
            size += sink.write(sample)
            for field, value in sample.items():
                if isinstance(value, bytes):
                    (files / f"{sample['__key__']}.{field}").write_bytes(value)
    return size


def lines() -> dict[str, str]:
    """Name → a call in the folder of the inputs; outputs go to ``out/``."""
    read = "import penstock\nfor s in penstock.WebDataset('x.tar'): pass"
    return {
        FLOOR: "cat x.tar > out/x.tar",
        "cat and sync": "cat x.tar > out/x.tar; sync out/x.tar",
        "penstock cat": f"{COMMAND} cat x.tar -o out/x.tar",
        "penstock split": f"{COMMAND} split x.tar -o 'out/%06d.tar' --size 256MB --no-index",
        "penstock sort": f"{COMMAND} sort x.tar -o 'out/%06d.tar' --by random --no-index",
        TAR: "tar cf out/x.tar --sort=name -C files .",
        "penstock create": f"{COMMAND} create files -o 'out/%06d.tar' --size 256MB --no-index",
        READ: f'{sys.executable} -c "{read}"',
        "penstock verify": f"{COMMAND} verify x.tar || test $? = 1",
        "penstock --help": f"{COMMAND} --help > out/help",
    }


def run(line: str, folder: Path) -> float:
    out = folder / "out"
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    os.sync()  # what earlier calls wrote is not waited for by this one
    source = str(Path(penstock.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": source}
    # An installed package has compiled modules.
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment["PYTHONPYCACHEPREFIX"] = str(folder.absolute() / "bytecode")
    begin = time.perf_counter()
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, env=environment, capture_output=True, text=True
    )
    seconds = time.perf_counter() - begin
    if done.returncode:
        raise SystemExit(f"{line}: {done.stderr}")
    return seconds


def main() -> int:
    parser = arguments_of(__doc__)
    samples.add_options(parser)
    options = parser.parse_args()
    report = Report("The command", options.json)
    folder = options.data / "tools"
    size = make_inputs(folder, options.photos_count, options.photos)
    calls = lines()
    timings = {name: Timing([], None) for name in calls}
    for number in range(options.rounds + 1):
        for name, line in calls.items():
            progress(f"round {number} of {options.rounds}: {name}")
            seconds = run(line, folder)
            if number:  # the first round warms the page cache
                timings[name].seconds.append(seconds)
    progress("")
    shutil.rmtree(folder, ignore_errors=True)
    rows: list[dict[str, Any]] = [
        {
            "call": name,
            "best s": timing.best,
            "median s": timing.median,
            "MB/s": size / timing.best / 1e6,
        }
        for name, timing in timings.items()
    ]
    report.table(f"photos, {size / 1e6:.0f} MB", rows)
    best = {name: timing.best for name, timing in timings.items()}
    for name in ("penstock cat", "penstock split"):
        times = best[name] / best[FLOOR]
        report.targets.append(Target(f"{name}: times {FLOOR}", times, CAT_TIMES, at_most=True))
    times = best["penstock create"] / best[TAR]
    report.targets.append(Target(f"create: times {TAR}", times, CREATE_TIMES, at_most=True))
    share = best[READ] / best["penstock verify"]
    report.targets.append(Target("verify: share of the reading speed", share, VERIFY_SHARE))
    seconds = best["penstock --help"]
    report.targets.append(Target("penstock --help", seconds, HELP_S, unit="s", at_most=True))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
