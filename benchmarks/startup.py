"""How long `import penstock` takes, and that it imports neither numpy nor torch.

Every import runs in a fresh interpreter, interleaved with WebDataset's, with ``-X importtime``.

    python benchmarks/startup.py
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys

from measure import Report, Target, arguments_of, progress

MILLISECONDS = 50.0
NOT_IMPORTED = ("numpy", "torch")
IMPORTS = ("penstock", "webdataset")

_LINE = re.compile(r"import time:\s+(\d+) \|\s+(\d+) \|( *)(\S+)")


def import_times(module: str) -> dict[str, tuple[float, float]]:
    """Return each imported module's milliseconds: own and cumulative."""
    command = [sys.executable, "-X", "importtime", "-c", f"import {module}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = (_LINE.match(line) for line in done.stderr.splitlines())
    return {m[4]: (int(m[1]) / 1000, int(m[2]) / 1000) for m in found if m is not None}


def modules_after(module: str) -> set[str]:
    """Return the names in ``sys.modules`` after the import."""
    code = f"import json, sys, {module}; print(json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.splitlines()[-1]))


def main() -> int:
    parser = arguments_of(__doc__)
    parser.add_argument("--top", type=int, default=0, help="also the slowest N modules of penstock")
    options = parser.parse_args()
    report = Report("Starting", options.json)
    times: dict[str, list[float]] = {module: [] for module in IMPORTS}
    slowest: dict[str, tuple[float, float]] = {}
    for number in range(options.rounds + 1):
        progress(f"round {number} of {options.rounds}")
        for module in IMPORTS:
            found = import_times(module)
            if number:  # the first round fills the page cache and writes .pyc files
                times[module].append(found[module][1])
            if module == "penstock":
                slowest = found
    progress("")
    loaded = {module: modules_after(module) for module in IMPORTS}
    report.table(
        "import",
        [
            {
                "module": module,
                "best ms": min(times[module]),
                "median ms": statistics.median(times[module]),
                "modules": len(loaded[module]),
                **{name: "yes" if name in loaded[module] else "no" for name in NOT_IMPORTED},
            }
            for module in IMPORTS
        ],
    )
    if options.top:
        own = sorted(slowest.items(), key=lambda item: -item[1][0])[: options.top]
        told = [{"module": n, "own ms": mine, "with its imports": all_} for n, (mine, all_) in own]
        report.table("slowest modules of the last round", told)
    best = min(times["penstock"])
    report.targets.append(Target("import penstock", best, MILLISECONDS, "ms", at_most=True))
    for name in NOT_IMPORTED:
        there = float(name in loaded["penstock"])
        report.targets.append(Target(f"imports {name}", there, 0, "times", at_most=True))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
