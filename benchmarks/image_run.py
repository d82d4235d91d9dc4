"""Run one epoch of one loader, in a separate process, for images.py. Prints JSON.

python benchmarks/image_run.py TABLE NAME FORMS COUNT BATCH WORKERS URL...
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import sys
import time
from pathlib import Path
from typing import Any

import image_peers
from image_peers import Data, Loader

WARM_BATCHES = 4


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def length(batch: Any) -> int:
    """Return the number of samples in a batch of any loader."""
    return len(batch[0])


def epoch(loader: Loader, data: Data) -> dict[str, Any]:
    """Iterate over one epoch and return its time and CPU time."""
    begun, cpu, marks, counts = time.perf_counter(), cpu_seconds(), [], []
    stream = iter(loader.batches(data, *loader.arguments))
    first: Any = None
    for batch in stream:
        marks.append(time.perf_counter())
        counts.append(length(batch))
        if first is None:
            shape = getattr(batch[0], "shape", None)
            first = [str(getattr(batch[0], "dtype", "")), list(shape) if shape is not None else []]
    warm = min(WARM_BATCHES, len(marks) // 3)
    del batch, stream  # workers end, so that their CPU time is counted
    return {
        "samples": sum(counts),
        "first_s": marks[0] - begun,
        # Measure from a batch at which all workers are busy; start-up is reported separately.
        "seconds": marks[-1] - marks[warm],
        "timed": sum(counts[warm + 1 :]),
        "cpu_s": cpu_seconds() - cpu,
        "batch": first,
    }


def main(table: str, name: str, forms: str, *rest: str) -> None:
    loader: Loader = getattr(image_peers, table)[name]
    count, batch, workers, *urls = rest
    data = Data(urls, Path(forms), int(batch), int(workers), int(count))
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[: max(data.workers, 1)])
    answer: dict[str, Any]
    try:
        _import(loader.imports)
        answer = epoch(loader, data) if data.count else _formed(loader, data)
    except ImportError as problem:
        answer = {"missing": f"{type(problem).__name__}: {problem}".splitlines()[0]}
    with contextlib.suppress(BrokenPipeError):
        print("\n" + json.dumps(answer), flush=True)
    os._exit(0)  # some loaders leave threads that never end


def _import(modules: tuple[str, ...]) -> None:
    """Import the loader's packages; a broken package counts as missing."""
    for module in modules:
        try:
            importlib.import_module(module)
        except (OSError, RuntimeError) as problem:
            raise ImportError(str(problem)) from problem


def _formed(loader: Loader, data: Data) -> dict[str, Any]:
    """Write the data in the loader's own format, if it has one and it is missing."""
    if loader.form is not None:
        made = data.forms / f"{loader.form.__name__}.done"
        if not made.exists():
            loader.form(data)
            made.touch()
    return {"formed": True}


if __name__ == "__main__":
    main(*sys.argv[1:])
