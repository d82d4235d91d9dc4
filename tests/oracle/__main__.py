"""``python tests/oracle CASE``: run a case, given as integer or JSON text; or random ones."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from oracle.cases import Case, make_case
from oracle.functions import write_data
from oracle.judge import Wrong, judge, shrink

REPORT_S = 30


def main() -> int:
    parser = argparse.ArgumentParser(prog="python tests/oracle", description=__doc__)
    parser.add_argument("cases", nargs="*", help="integers, or cases as JSON text")
    parser.add_argument("--minutes", type=float, default=0, help="run random cases for this long")
    parser.add_argument("--first", type=int, default=int(time.time()), help="of the random ones")
    parser.add_argument("--jobs", type=int, default=min(8, os.cpu_count() or 2))
    parser.add_argument("--shrink", action="store_true", help="look for a smaller failing case")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="oracle-") as folder:
        write_data(Path(folder))
        check = Check(Path(folder), arguments.shrink)
        for text in arguments.cases:
            check(int(text) if text.lstrip("-").isdigit() else Case.parse(text))
        if arguments.minutes:
            check.for_minutes(arguments.minutes, arguments.first, arguments.jobs)
    print(check.summary())
    return 1 if check.failed else 0


class Check:
    """Runs cases, prints what fails, and counts."""

    def __init__(self, data: Path, shrinks: bool) -> None:
        self.data, self.shrinks = data, shrinks
        self.counts: Counter[str] = Counter()
        self.failed: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, given: int | Case) -> None:
        case = make_case(given) if isinstance(given, int) else given
        try:
            verdict = judge(case, self.data)
        except Wrong as error:
            verdict = "failed"
            small = f"smaller: {shrink(case, self.data)}\n" if self.shrinks else ""
            with self._lock:
                self.failed.append(str(given))
                print(f"FAILED {given}: {error}\n{describe(given, case)}{small}", flush=True)
        with self._lock:
            self.counts[verdict] += 1
            self.counts[case.engine] += 1

    def for_minutes(self, minutes: float, first: int, jobs: int) -> None:
        """Run the cases of consecutive integers until the time is over."""
        begin, numbers = time.monotonic(), iter(range(first, sys.maxsize))

        def work() -> None:
            while time.monotonic() < begin + 60 * minutes:
                with self._lock:
                    number = next(numbers)
                self(number)

        print(f"cases from {first} on, {jobs} at a time, for {minutes:g} minutes", flush=True)
        with ThreadPoolExecutor(jobs) as pool:
            running = [pool.submit(work) for _ in range(jobs)]
            while wait(running, REPORT_S).not_done:
                print(f"{(time.monotonic() - begin) / 60:5.1f} min  {self.summary()}", flush=True)
            for job in running:
                job.result()

    def summary(self) -> str:
        return ", ".join(f"{count} {name}" for name, count in sorted(self.counts.items()))


def describe(given: int | Case, case: Case) -> str:
    """What the case is, and how to run it alone."""
    text = str(given) if isinstance(given, int) else f"'{case}'"
    return f"  case: {case}\n  run it: python tests/oracle {text}\n"


if __name__ == "__main__":
    sys.exit(main())
