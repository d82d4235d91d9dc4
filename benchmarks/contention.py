"""The cost of the GIL for a loader on threads, and for the trainer next to it, on any machine.

Decoding is replaced by a sleep of the same duration: the native module is built with a sleep
instead of its decoder, so that sixteen "cores" decode on a machine with two. The rest is work under
the GIL: reading, planning, passing items between threads, batching. The trainer is a loop of tiny
torch operations, each of which releases and reacquires the GIL, as in a real step; then it waits
for a simulated device.

    python benchmarks/contention.py --photos PHOTOS.tar

For 1, 4 and 16 threads it prints the speed of the loader alone; how many times longer the trainer's
own part of a step takes while the loader runs; and the Python time per sample, which is the time
that all threads together hold the GIL, measured with a decoder that takes no time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]

OPERATIONS = 500
STEP_S = 0.053
"""A step of ResNet-50 on a fast GPU, for a batch of 256."""
DECODES, SLEEPS = "result = decode(w, o, out);", "result = SLEEP ? usleep(SLEEP) : DONE;"


def built(folder: Path, sleep_us: int) -> Path:
    """Build the native module with a sleep instead of its decoder."""
    from penstock.transforms.native import SOURCE

    text = SOURCE.read_text()
    if DECODES not in text:
        raise SystemExit(f"{SOURCE}: the line that decodes is not there any more: {DECODES}")
    source, target = folder / f"stub-{sleep_us}.c", folder / f"stub-{sleep_us}.so"
    source.write_text(text.replace(DECODES, SLEEPS))
    words = ["-O2", "-shared", "-fPIC", f"-I{SOURCE.parent}", f"-DSLEEP={sleep_us}"]
    words += [str(source), "-o", str(target), "-ljpeg", "-lm"]
    subprocess.run(["cc", *words], check=True)
    return target


def loader_of(options: argparse.Namespace, threads: int) -> Any:
    """Return a loader with the transforms of ImageNet training."""
    import penstock

    urls = sorted(map(str, Path(options.shards).glob("*.tar"))) * 100
    crop = penstock.RandomResizedCrop(224, flip=0.5)
    dataset = penstock.WebDataset(urls, shardshuffle=100).shuffle(1000)
    dataset = dataset.to_tuple("jpg", "cls").map_tuple(crop, int)
    dataset = dataset.batched(options.batch, partial=False)
    return penstock.WebLoader(dataset, num_workers=threads, batch_size=None, engine="threads")


def operations(torch: Any) -> Any:
    """Run the trainer's own part of a step."""
    value = torch.zeros(8)

    def step() -> float:
        begin = time.perf_counter()
        for _ in range(OPERATIONS):
            value.add_(1.0).mul_(0.5)
        return time.perf_counter() - begin

    return step


def median(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def alone(options: argparse.Namespace, threads: int) -> tuple[float, float]:
    """Return samples per second, and microseconds of user CPU time per sample."""
    stream = iter(loader_of(options, threads))
    warm = list(islice(stream, 8))
    del warm
    begin, cpu, count = time.perf_counter(), os.times().user, 0
    for batch in islice(stream, options.steps):
        count += len(batch[0])
        del batch
    seconds = time.perf_counter() - begin
    return count / seconds, (os.times().user - cpu) / count * 1e6


def beside(options: argparse.Namespace, threads: int) -> dict[str, Any]:
    """Measure a trainer that consumes the loader's batches."""
    import torch

    torch.set_num_threads(1)
    step = operations(torch)
    quiet = median([step() for _ in range(50)])
    loader = loader_of(options, threads)
    stream = iter(loader)
    for _ in islice(stream, 8):
        pass
    took, waited = list[float](), 0.0
    begin = last = time.perf_counter()
    for _ in islice(stream, options.steps):
        now = time.perf_counter()
        waited += now - last
        took.append(step())
        # The device is busy for the rest of the step; the host has nothing to do.
        time.sleep(max(STEP_S - (time.perf_counter() - now), 0))
        last = time.perf_counter()
    seconds = time.perf_counter() - begin
    told = json.loads(loader.stats().to_json())
    return {
        "slower": median(took) / quiet,
        "quiet_ms": quiet * 1e3,
        "waits": waited / seconds,
        "rate": options.batch * options.steps / seconds,
        "says": told["bottleneck"],
        "pipeline": told["pipeline"],
        "samples": told["samples"],
    }


def row(options: argparse.Namespace) -> dict[str, Any]:
    """Measure one row in this process and print it as JSON."""
    if options.row == "alone":
        rate, cpu = alone(options, options.threads)
        return {"alone": rate, "cpu_us": cpu}
    return beside(options, options.threads)


def rows(options: argparse.Namespace, folder: Path) -> Iterator[dict[str, Any]]:
    sleeps, at_once = built(folder, options.sleep_us), built(folder, 0)
    for threads in options.list:
        found: dict[str, Any] = {"threads": threads}
        for what, stub in (("alone", at_once), ("alone", sleeps), ("beside", sleeps)):
            words = ["--row", what, "--threads", str(threads), "--shards", options.shards]
            words += ["--batch", str(options.batch), "--steps", str(options.steps)]
            done = subprocess.run(
                [sys.executable, __file__, *words],
                capture_output=True,
                text=True,
                env={**os.environ, "PENSTOCK_NATIVE": str(stub)},
            )
            if done.returncode:
                raise SystemExit(done.stderr)
            answer = json.loads(done.stdout.splitlines()[-1])
            if stub is at_once:
                found["python_us"] = answer["cpu_us"]
            else:
                found.update(answer)
        yield found


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--photos", type=Path, help="tar or folder of real JPEG photographs")
    parser.add_argument("--sleep-us", type=int, default=1500, help="a picture takes (1500)")
    parser.add_argument("--count", type=int, default=2000, help="samples written (2000)")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--steps", type=int, default=40, help="batches measured (40)")
    parser.add_argument("--list", type=int, nargs="+", default=[1, 4, 16], help="threads")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--shards", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> int:
    options = options_of()
    if options.row is not None:
        print(json.dumps(row(options)))
        sys.stdout.flush()
        os._exit(0)
    import samples

    with tempfile.TemporaryDirectory(prefix="penstock-lock-") as folder:
        urls = samples.shards_of("photos", "plain", options.count, options.photos, Path(folder))
        options.shards = str(Path(urls[0]).parent)
        for found in rows(options, Path(folder)):
            print(
                f"{found['threads']:3} threads  alone {found['alone']:8,.0f} samples/s, "
                f"{found['python_us']:6.1f} µs of Python each; beside a trainer "
                f"{found['rate']:8,.0f} samples/s, its own part of a step takes "
                f"{found['slower']:5.2f} times as long, and it waits {found['waits']:.0%}",
                flush=True,
            )
            print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
