"""How fast encoded samples are written: ShardWriter(encoder=False) of penstock and WebDataset.

The lower bound is writing files of the same size in chunks of 1 MiB, with and without an fsync for
each. The written shards are read back once with the standard library.

    python benchmarks/write.py --photos PHOTOS.tar
"""

from __future__ import annotations

import os
import shutil
import sys
import tarfile
from contextlib import ExitStack
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

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
    progress,
)

TIMES_WEBDATASET = 3.0
PIECE_BYTES = 1 << 20
FLOOR = "floor: 1 MiB writes"
SYNCED = "floor, then fsync"


@lru_cache(maxsize=1)
def ready(kind: str, number: int, photos: Path | None) -> list[samples.Sample]:
    """Return the samples, in memory before timing starts."""
    return list(samples.samples(kind, number, photos))


def emptied(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _writing(library: Any, options: dict[str, Any], folder: Path, *which: Any) -> Action:
    stream = ready(*which)
    pattern = str(emptied(folder) / "%04d.tar")
    per_shard = -(-len(stream) // samples.SHARDS)

    def write_all() -> None:
        with library.ShardWriter(pattern, maxcount=per_shard, encoder=False, **options) as sink:
            for sample in stream:
                sink.write(sample)

    return write_all


def by_penstock(out: Path, *which: Any) -> Action:
    import penstock

    return _writing(penstock, {"verbose": 0}, out / "penstock", *which)


def by_webdataset(out: Path, *which: Any) -> Action:
    import webdataset

    return _writing(webdataset, {"verbose": 0}, out / "webdataset", *which)


@lru_cache(maxsize=1)
def ready_pieces(kind: str, number: int, photos: Path | None) -> list[bytes]:
    """Return about as many bytes as plain shards of the samples have."""
    fields = (v for s in ready(kind, number, photos) for v in s.values() if isinstance(v, bytes))
    total = sum(512 + -(-len(value) // 512) * 512 for value in fields)
    return [b"\1" * PIECE_BYTES] * (total // PIECE_BYTES) + [b"\1" * (total % PIECE_BYTES)]


def by_file(sync: bool, out: Path, *which: Any) -> Action:
    pieces = ready_pieces(*which)
    folder = emptied(out / ("synced" if sync else "floor"))
    per_shard = -(-len(pieces) // samples.SHARDS)

    def write_all() -> None:
        for number in range(samples.SHARDS):
            with open(folder / f"{number:04d}.tar", "wb", buffering=0) as file:
                for piece in pieces[number * per_shard : (number + 1) * per_shard]:
                    file.write(piece)
                if sync:  # needed if shards must survive a power failure
                    os.fsync(file.fileno())

    return write_all


RIVALS: dict[str, Prepare] = {
    "penstock": by_penstock,
    "webdataset": by_webdataset,
    FLOOR: partial(by_file, False),
    SYNCED: partial(by_file, True),
}


def check(folder: Path, number: int) -> None:
    """Raise if not every sample was written."""
    members = 0
    for path in sorted(folder.glob("*.tar")):
        with tarfile.open(path) as archive:
            members += sum(member.isfile() for member in archive)
    if members != 2 * number:
        raise SystemExit(f"{folder.name} wrote {members} members of {2 * number}")


def main() -> int:
    parser = arguments_of(__doc__)
    samples.add_options(parser)
    options = parser.parse_args()
    report = Report("Writing", options.json)
    out = options.data / "written"
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, out, ignore_errors=True)
        rivals = [stack.enter_context(Rival(name, made)) for name, made in RIVALS.items()]
        for kind, number in samples.chosen(options):
            which = (kind, number, options.photos)
            timings = interleaved(rivals, [out, *which], options.rounds, kind)
            for name in ("penstock", "webdataset"):
                progress(f"{kind}: reading back what {name} wrote")
                check(out / name, number)
            progress("")
            size = sum(len(v) for s in ready(*which) for v in s.values() if isinstance(v, bytes))
            report.table(kind, beside_webdataset("writer", timings, FLOOR, number, size))
            times = timings["webdataset"].best / timings["penstock"].best
            report.targets.append(Target(f"{kind}: times WebDataset", times, TIMES_WEBDATASET))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
