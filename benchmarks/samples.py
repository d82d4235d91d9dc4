"""The samples that the benchmarks read and write, and their shards, which are written once.

*Photographs*: a JPEG and a label. Real ones from ``--photos`` (a tar or a folder), else random
bytes of the same sizes: nothing here decodes them. *Tiny*: 200 bytes of JSON and a label.

There are two kinds of shard. *plain*: one ustar header per member. *pax*: as WebDataset's own
writer makes them; its fractional timestamps put a PAX header before every member.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import random
import shutil
import tarfile
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from pathlib import Path

Sample = dict[str, str | bytes]

KINDS = ("photos", "tiny")
FORMS = ("plain", "pax")
SHARDS = 4
TINY_BYTES = 200
# Sizes of ImageNet's photographs, from the smallest to the largest in steps of a tenth.
PHOTO_BYTES = (2100, 27800, 39900, 75700, 92000, 105800, 123900, 140100, 154400, 178500, 300000)
DIFFERENT_PHOTOS = 250


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that select the samples and their number."""
    parser.add_argument("--photos", type=Path, help="tar or folder of real JPEG photographs")
    parser.add_argument("--photos-count", type=int, default=2500, help="samples (default 2500)")
    parser.add_argument("--tiny-count", type=int, default=20000, help="samples (default 20000)")
    parser.add_argument("--only", choices=KINDS, help="this kind of samples alone")


def chosen(options: argparse.Namespace) -> list[tuple[str, int]]:
    """Return the kinds and counts that the options select."""
    counts = {"photos": options.photos_count, "tiny": options.tiny_count}
    return [(kind, counts[kind]) for kind in KINDS if options.only in (None, kind)]


@lru_cache(maxsize=1)
def photographs(source: Path | None) -> list[bytes]:
    """Return the photographs of a tar or folder, or random bytes of the same sizes."""
    if source is None:
        rng = random.Random(0)
        return [_jpeg_like(rng, number) for number in range(DIFFERENT_PHOTOS)]
    if source.is_dir():
        files = (path for path in sorted(source.rglob("*")) if _is_jpeg(path.name))
        photos = [path.read_bytes() for path in islice(files, DIFFERENT_PHOTOS)]
    else:
        with tarfile.open(source) as archive:
            members = (m for m in archive if m.isfile() and _is_jpeg(m.name))
            opened = (archive.extractfile(m) for m in islice(members, DIFFERENT_PHOTOS))
            photos = [file.read() for file in opened if file is not None]
    if not photos:
        raise SystemExit(f"{source}: no .jpg or .jpeg files in it")
    return photos


def _is_jpeg(name: str) -> bool:
    return name.lower().endswith((".jpg", ".jpeg"))


def _jpeg_like(rng: random.Random, number: int) -> bytes:
    tenth, rest = divmod(number * (len(PHOTO_BYTES) - 1) / DIFFERENT_PHOTOS, 1)
    low, high = PHOTO_BYTES[int(tenth) : int(tenth) + 2]
    return b"\xff\xd8" + rng.randbytes(int(low + (high - low) * rest) - 4) + b"\xff\xd9"


def samples(kind: str, count: int, photos: Path | None) -> Iterator[Sample]:
    """Yield ``count`` samples with encoded fields."""
    if kind == "photos":
        pictures = photographs(photos)
        order = list(range(len(pictures)))
        random.Random(0).shuffle(order)
    rng = random.Random(1)
    for number in range(count):
        sample: Sample = {"__key__": f"{number:08d}"}
        if kind == "photos":
            sample["jpg"] = pictures[order[number % len(order)]]
        else:
            words = "".join(rng.choices("abcdefghij ", k=TINY_BYTES))
            text = json.dumps({"id": number, "text": words})
            sample["json"] = (text[: TINY_BYTES - 2] + '"}').encode()
        sample["cls"] = str(number % 1000).encode()
        yield sample


def shards_of(kind: str, form: str, count: int, photos: Path | None, data: Path) -> list[str]:
    """Return the paths of the shards with these samples; write them if missing."""
    source = f"-{_mark(photos)}" if kind == "photos" else ""
    name = f"{kind}{source}-{count}-{form}"
    folder = data / name
    if not folder.is_dir():
        partial = data / f"{name}.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        stream = samples(kind, count, photos)
        for number in range(SHARDS):
            size = count * (number + 1) // SHARDS - count * number // SHARDS
            write = write_plain if form == "plain" else write_pax
            write(partial / f"{number:04d}.tar", islice(stream, size))
        partial.rename(folder)
    return sorted(map(str, folder.glob("*.tar")))


def _mark(photos: Path | None) -> str:
    """Return a short name for the source of the photographs."""
    if photos is None:
        return "random"
    place = f"{photos.resolve()} {photos.stat().st_mtime_ns}"
    return hashlib.sha256(place.encode()).hexdigest()[:8]


def write_plain(path: Path, stream: Iterator[Sample]) -> None:
    """Write a ustar shard with the standard library, which is neutral."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as archive:
        for sample in stream:
            key = sample["__key__"]
            for field, value in sample.items():
                if isinstance(value, bytes):
                    member = tarfile.TarInfo(f"{key!s}.{field}")
                    member.size = len(value)
                    archive.addfile(member, io.BytesIO(value))


def write_pax(path: Path, stream: Iterator[Sample]) -> None:
    """Write a shard with WebDataset's writer."""
    import webdataset

    with webdataset.TarWriter(str(path), encoder=False) as archive:
        for sample in stream:
            archive.write(sample)
