"""How fast samples are read, without decoding, in one process.

Compares, on the same shards and interleaved: penstock, WebDataset, the standard library's tarfile
(as a stream and with seeking), and the lower bound: reading the files in chunks of 1 MiB.

    python benchmarks/read.py --photos PHOTOS.tar
"""

from __future__ import annotations

import os
import sys
import tarfile
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal

import samples
from measure import (
    Action,
    Prepare,
    Report,
    Rival,
    Target,
    arguments_of,
    beside_webdataset,
    interleaved,
)

TIMES_WEBDATASET = {"photos": 6.0, "tiny": 20.0}
PART_OF_FLOOR = {"photos": 0.5}
PIECE_BYTES = 1 << 20
Mode = Literal["r|", "r:"]


def count(dataset: Iterable[Any]) -> int:
    """Iterate to the end and discard the samples."""
    number = 0
    for _ in dataset:
        number += 1
    return number


def by_penstock(urls: list[str]) -> Action:
    import penstock

    return lambda: count(penstock.WebDataset(urls, shardshuffle=False))


def by_webdataset(urls: list[str]) -> Action:
    import webdataset

    return lambda: count(webdataset.WebDataset(urls, shardshuffle=False))


def by_tarfile(mode: Mode, urls: list[str]) -> Action:
    return lambda: sum(_tarfile_samples(url, mode) for url in urls)


def _tarfile_samples(path: str, mode: Mode) -> int:
    """Read every member's data and return the number of keys."""
    number, last = 0, ""
    with tarfile.open(path, mode) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                file.read()
            key = member.name.partition(".")[0]
            number += key != last
            last = key
    return number


def by_reading(urls: list[str]) -> Action:
    def read_all() -> None:
        for url in urls:
            with open(url, "rb", buffering=0) as file:
                while file.read(PIECE_BYTES):
                    pass

    return read_all


RIVALS: dict[str, Prepare] = {
    "penstock": by_penstock,
    "webdataset": by_webdataset,
    "tarfile, stream": partial(by_tarfile, "r|"),
    "tarfile, seek": partial(by_tarfile, "r:"),
    "floor: 1 MiB reads": by_reading,
}
FLOOR = "floor: 1 MiB reads"


def main() -> int:
    parser = arguments_of(__doc__)
    samples.add_options(parser)
    options = parser.parse_args()
    report = Report("Reading", options.json)
    with ExitStack() as stack:
        rivals = [stack.enter_context(Rival(name, made)) for name, made in RIVALS.items()]
        for kind, number in samples.chosen(options):
            for form in samples.FORMS:
                case = f"{kind}, {form}"
                urls = samples.shards_of(kind, form, number, options.photos, options.data)
                timings = interleaved(rivals, [urls], options.rounds, case)
                for name, timing in timings.items():
                    if name != FLOOR and timing.result != number:
                        raise SystemExit(f"{name} gave {timing.result} samples of {number}: {case}")
                size = sum(map(os.path.getsize, urls))
                report.table(case, beside_webdataset("reader", timings, FLOOR, number, size))
                ours = timings["penstock"].best
                report.targets.append(
                    Target(
                        f"{case}: times WebDataset",
                        timings["webdataset"].best / ours,
                        TIMES_WEBDATASET[kind],
                    )
                )
                if kind in PART_OF_FLOOR:
                    part = timings[FLOOR].best / ours
                    what = f"{case}: part of the floor's bytes per second"
                    report.targets.append(Target(what, part, PART_OF_FLOOR[kind]))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
