"""Compare programs fairly: separate processes, interleaved; best and median of rounds.

On a busy machine, two programs measured one after the other run under different load. Here every
round runs every program ("rival") once, and each round begins with another one. The processes stay
alive between rounds, so that imports, caches and the C library's heap are warm and separate.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

Action = Callable[[], Any]
"""What is timed."""
Prepare = Callable[..., Action]
"""Called with a case's arguments, untimed; gives the action. Must be importable by name."""

BENCH_DATA = Path(__file__).resolve().parent.parent / "bench-data"


def _serve(prepare: Prepare, connection: Any) -> None:
    """Loop in a rival's process: receive arguments, send seconds and result."""
    while (arguments := connection.recv()) is not None:
        try:
            action = prepare(*arguments)
            begin = time.perf_counter()
            result = action()
            seconds = time.perf_counter() - begin
            connection.send((seconds, result, None))
        except Exception:  # noqa: BLE001 - reported to the parent, which stops
            connection.send((0.0, None, traceback.format_exc()))


class Rival:
    """One of the programs compared, in a fresh process. Use as a context manager."""

    def __init__(self, name: str, prepare: Prepare) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")  # nothing of the parent's heap
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(prepare, theirs), daemon=True)
        self._process.start()
        theirs.close()

    def __enter__(self) -> Rival:
        return self

    def __exit__(self, *reason: object) -> None:
        if self._process.is_alive():
            self._connection.send(None)
        self._process.join()

    def run(self, *arguments: Any) -> tuple[float, Any]:
        """Run one round; return seconds and result."""
        self._connection.send(arguments)
        try:
            seconds, result, problem = self._connection.recv()
        except EOFError:
            raise SystemExit(f"{self.name}: its process ended") from None
        if problem is not None:
            raise SystemExit(f"{self.name} failed:\n{problem}")
        return seconds, result


@dataclass
class Timing:
    """The measured rounds of one rival on one case."""

    seconds: list[float]
    result: Any
    """What the last round gave, for checking that the rivals did the same."""

    @property
    def best(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)


def interleaved(
    rivals: Sequence[Rival], arguments: Sequence[Any], rounds: int, note: str = ""
) -> dict[str, Timing]:
    """Run every rival once per round, after one warm-up round."""
    timings = {rival.name: Timing([], None) for rival in rivals}
    for number in range(rounds + 1):
        progress(f"{note}: round {number} of {rounds}" if number else f"{note}: warming up")
        turn = number % len(rivals)
        for rival in [*rivals[turn:], *rivals[:turn]]:
            seconds, result = rival.run(*arguments)
            if number:
                timings[rival.name].seconds.append(seconds)
            timings[rival.name].result = result
    progress("")
    return timings


def beside_webdataset(
    who: str, timings: dict[str, Timing], floor: str, number: int, size: int
) -> list[dict[str, Any]]:
    """Return the rows of a case, relative to WebDataset and to a lower bound."""
    theirs, lowest = timings["webdataset"], timings[floor]
    return [
        {
            who: name,
            "samples/s": number / timing.best,
            "median": number / timing.median,
            "MB/s": size / timing.best / 1e6,
            "x webdataset": theirs.best / timing.best,
            "by medians": theirs.median / timing.median,
            "x floor": lowest.best / timing.best,
        }
        for name, timing in timings.items()
    ]


def progress(text: str) -> None:
    """Print a line that overwrites itself, if the output is a terminal."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


@dataclass
class Target:
    """A target and the value that was reached."""

    what: str
    value: float
    limit: float
    unit: str = "x"
    at_most: bool = False

    @property
    def reached(self) -> bool:
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def __str__(self) -> str:
        verdict = "pass" if self.reached else "FAIL"
        bound = "at most" if self.at_most else "at least"
        return f"{verdict}  {self.what}: {self.value:.3g} {self.unit} ({bound} {self.limit:g})"


class Report:
    """Rows and targets, printed as tables for people or as JSON for programs."""

    def __init__(self, title: str, as_json: bool) -> None:
        self.title, self.as_json = title, as_json
        self.rows: list[dict[str, Any]] = []
        self.targets: list[Target] = []

    def table(self, caption: str, rows: Iterable[dict[str, Any]]) -> None:
        """Add the table of one case; each row is a dict of column → value."""
        kept = list(rows)
        self.rows += [{"case": caption, **row} for row in kept]
        if not self.as_json:
            _print_table(caption, kept)

    def finish(self) -> int:
        """Print the targets and return the exit status: 1 if one was missed."""
        if self.as_json:
            targets = [{**asdict(target), "reached": target.reached} for target in self.targets]
            answer = {"title": self.title, "machine": machine()}
            print(json.dumps({**answer, "rows": self.rows, "targets": targets}, indent=1))
        else:
            print(f"{self.title} ({', '.join(f'{k} {v}' for k, v in machine().items())})")
            for target in self.targets:
                print(" ", target)
        return 0 if all(target.reached for target in self.targets) else 1


def _print_table(caption: str, rows: list[dict[str, Any]]) -> None:
    cells = [[caption, *list(rows[0])[1:]], *([_shown(v) for v in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells)]
    for number, line in enumerate(cells):
        first, *others = (
            cell.ljust(width) if not column else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths))
        )
        print("  ".join([first, *others]))
        if not number:
            print("  ".join("─" * width for width in widths))
    print()


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def machine() -> dict[str, str]:
    """Return the Python version, the number of cores and the load."""
    load = f"{os.getloadavg()[0]:.1f}"
    return {"Python": platform.python_version(), "cores": str(os.cpu_count()), "load": load}


def arguments_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=(description or "").split("\n")[0])
    parser.add_argument("--rounds", type=int, default=7, help="rounds per case (default 7)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    parser.add_argument(
        "--data", type=Path, default=BENCH_DATA, help="folder for made data (default bench-data/)"
    )
    return parser
