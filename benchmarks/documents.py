"""How fast interleaved documents are read and decoded, and samples from memory.

Documents: base64 shards as OpenFlamingo writes them, with images of 300 to 800 pixels that become
224 x 224. Read by penstock on threads, and by the straightforward loop: json.loads, base64, Pillow,
scipy's assignment, then filters. Once all documents are kept; once the images of half of them are
not similar enough.

Memory: random access to samples of 10 KB with ``memory="ram"`` and through the page cache. There is
no target: the page cache is memory as well, so only a system call is saved. Copying 10 KB takes
0.9 µs from shared memory and 1.1 µs by ``pread``; index, key and dict take another 1.2 µs.
``memory="ram"`` pays off where shards would come from a network or a disk again.

    pip install scipy; python benchmarks/documents.py --documents 400
"""

from __future__ import annotations

import base64
import io
import json
import os
import random
import sys
import tarfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from measure import Action, Report, Rival, Target, arguments_of, interleaved, progress

THREADS = 2
SAMPLES, SAMPLE_BYTES, READS = 20_000, 10_000, 50_000


def photograph(rng: np.random.Generator, size: int) -> bytes:
    """A JPEG with edges and noise, of the size of a web image."""
    from PIL import Image

    low = rng.integers(0, 255, (size // 16, size // 16, 3), np.uint8)
    image = Image.fromarray(low).resize((size, size), Image.Resampling.BICUBIC)
    stream = io.BytesIO()
    image.save(stream, "JPEG", quality=85)
    return stream.getvalue()


def write_documents(folder: Path, count: int) -> list[str]:
    """Base64 shards of documents with three images; those of every second one match no text."""
    shards = [folder / f"documents-{count}-{n}.tar" for n in range(2)]
    if all(shard.exists() for shard in shards):
        return [str(shard) for shard in shards]
    folder.mkdir(parents=True, exist_ok=True)
    rng, draws = np.random.default_rng(0), random.Random(0)
    photographs = [photograph(rng, size) for size in (320, 480, 640, 800) for _ in range(8)]
    for number, shard in enumerate(shards):
        with tarfile.open(f"{shard}.part", "w") as tar:
            for n in range(number, count, 2):
                texts = [f"Sentence {place} of document {n}. " * 3 for place in range(12)]
                images = [draws.choice(photographs) for _ in range(3)]
                low = 0.3 if n // 2 % 2 else 0.1
                matrix = [[low + draws.uniform(0, 0.1) for _ in texts] for _ in images]
                infos = [
                    {
                        "image_name": f"{n}-{i}.jpg",
                        "matched_text_index": i,
                        "image_base64": base64.b64encode(image).decode(),
                    }
                    for i, image in enumerate(images)
                ]
                about = {"text_list": texts, "image_info": infos, "similarity_matrix": matrix}
                data = json.dumps(about).encode()
                member = tarfile.TarInfo(f"{n:06d}.json")
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
        os.replace(f"{shard}.part", shard)
    return [str(shard) for shard in shards]


def by_loop(shards: list[str], threshold: float) -> Action:
    """The straightforward loop: everything is decoded, then filtered."""
    from PIL import Image
    from scipy.optimize import linear_sum_assignment

    def run() -> tuple[int, int]:
        documents = images = 0
        for shard in shards:
            with tarfile.open(shard) as tar:
                for member in tar:
                    data = json.loads(tar.extractfile(member).read())  # type: ignore[union-attr]
                    pixels = []
                    for info in data["image_info"]:
                        stream = io.BytesIO(base64.b64decode(info["image_base64"]))
                        image = Image.open(stream).convert("RGB")
                        image = image.resize((256, 256), Image.Resampling.BILINEAR)
                        pixels.append(np.asarray(image.crop((16, 16, 240, 240))))
                    matrix = np.array(data["similarity_matrix"])
                    found = linear_sum_assignment(-matrix)
                    kept = int((matrix[found] >= threshold).sum())
                    if kept:
                        documents += 1
                        images += kept
        return documents, images

    return run


def by_penstock(shards: list[str], threshold: float) -> Action:
    import penstock as wds

    crop = wds.ResizeCenterCrop(256, 224, layout="HWC")

    def decode(document: Any) -> int:
        return sum(crop(image.data).shape == (224, 224, 3) for image in document.images)

    def run() -> tuple[int, int]:
        dataset = wds.WebDataset(shards, shardshuffle=False)
        dataset = dataset.documents(assign="optimal", threshold=threshold, min_images=1).map(decode)
        options: dict[str, Any] = {"batch_size": None, "num_workers": THREADS}
        found = list(wds.WebLoader(dataset, engine="threads", **options))
        return len(found), sum(found)

    return run


def write_samples(folder: Path) -> str:
    import penstock as wds

    pattern = folder / f"memory-{SAMPLES}-%d.tar"
    if not (folder / f"memory-{SAMPLES}.index.parquet").exists():
        with wds.ShardWriter(str(pattern), maxcount=SAMPLES // 4, verbose=0, index=True) as sink:
            for n in range(SAMPLES):
                sink.write({"__key__": f"{n:06d}", "bin": random.Random(n).randbytes(SAMPLE_BYTES)})
    return str(folder / f"memory-{SAMPLES}-{{0..3}}.tar")


def random_access(url: str, memory: str | None) -> Action:
    import penstock as wds

    dataset = wds.IndexedDataset(url, memory=memory)
    rows = np.random.default_rng(1).integers(0, len(dataset), READS).tolist()
    dataset[0]

    def run() -> int:
        return sum(len(dataset[row]["bin"]) for row in rows)

    return run


def in_memory(url: str) -> Action:
    return random_access(url, "ram")


def from_page_cache(url: str) -> Action:
    return random_access(url, None)


def main() -> int:
    parser = arguments_of(__doc__)
    parser.add_argument("--documents", type=int, default=2000, help="documents (default 2000)")
    arguments = parser.parse_args()
    report = Report("Interleaved documents, and samples in memory", arguments.json)
    progress("writing the shards")
    shards = write_documents(arguments.data, arguments.documents)
    with ExitStack() as stack:
        rivals = [
            stack.enter_context(Rival("loop", by_loop)),
            stack.enter_context(Rival("penstock", by_penstock)),
        ]
        for threshold, what, limit in ((0, "all documents", 3), (0.25, "half filtered out", 5)):
            timings = interleaved(rivals, (shards, threshold), arguments.rounds, what)
            results = {timing.result for timing in timings.values()}
            assert len(results) == 1, results
            rows = []
            for name, timing in timings.items():
                rate = arguments.documents / timing.best
                ratio = timings["loop"].best / timing.best
                rows.append({"reader": name, "documents/s": rate, "x loop": ratio})
            report.table(what, rows)
            ratio = timings["loop"].best / timings["penstock"].best
            report.targets.append(Target(f"documents per second, {what}", ratio, limit))
    url = write_samples(arguments.data)
    with ExitStack() as stack:
        rivals = [
            stack.enter_context(Rival("page cache", from_page_cache)),
            stack.enter_context(Rival("memory", in_memory)),
        ]
        timings = interleaved(rivals, (url,), arguments.rounds, "random access")
        rows = [
            {"reader": name, "samples/s": READS / timing.best, "µs": timing.best / READS * 1e6}
            for name, timing in timings.items()
        ]
        report.table("random access, 10 KB", rows)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
