"""Whether the GPU waits for data: ResNet-50 in bf16, channels-last, batches of 256.

Each row runs in a separate process, on its share of the cores: synthetic data that is already on
the GPU; penstock with CPU decoding on all cores, in a few worker processes with a few threads each
and on threads of the trainer's own process; penstock with GPU decoding on half of the cores;
WebDataset with torch workers and torchvision's decoder. The targets: at least 0.97 of the
throughput with synthetic data, and a GPU wait in the loader's own statistics that agrees with the
lost time. First, the pixels decoded by the GPU are compared with those decoded by the CPU.

    python benchmarks/gpu.py --photos PHOTOS.tar
    python benchmarks/gpu.py --device cpu --tiny        every path, on any machine, in a minute

A folder ``carried/`` next to the project, if there is one, is added to the import path: packages
for a machine without a network. Prints a line per row and one JSON object at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CARRIED = ROOT / "carried"
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "benchmarks")]
if CARRIED.is_dir():
    sys.path.append(str(CARRIED))

PART_OF_SYNTHETIC = 0.97
AGREES_WITHIN = 0.03
LEVELS_APART, LEVELS_APART_MEAN = 2, 0.3  # of 255: between pixels of GPU and CPU
AGREEMENT = "pixels of GPU and CPU"
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
SHARDS = 8
ROW_LIMIT_S = 110
Batches = Iterable[tuple[Any, Any]]


# ── rows: each yields batches on the device ──────────────────────────────────────────────


class Setting:
    """The parameters of a row."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        self.options, self.torch = options, torch
        self.device = torch.device(options.device)
        self.batch, self.size, self.cores = options.batch, options.size, options.cores
        shards = sorted(map(str, Path(options.shards).glob("*.tar")))
        self.urls = shards * options.passes
        self.loader: Any = None


def synthetic(setting: Setting) -> Batches:
    """Yield the same batch repeatedly, on the device from the start."""
    torch, n = setting.torch, setting.size
    images = torch.randn(setting.batch, 3, n, n, device=setting.device, dtype=torch.bfloat16)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (setting.batch,), device=setting.device)
    while True:
        yield images, labels


def penstock_cpu(setting: Setting) -> Batches:
    """Decode, crop and resize in processes with threads; normalise on the device."""
    processes = max(setting.cores // 4, 1)
    threads = max(setting.cores // processes, 1)
    return _penstock(setting, "cpu", num_workers=processes, threads=threads, prefetch_factor=4)


def penstock_threads(setting: Setting) -> Batches:
    """The same on threads of this process, which share the GIL with the trainer."""
    return _penstock(setting, "cpu", num_workers=max(setting.cores, 1), engine="threads")


def penstock_gpu(setting: Setting) -> Batches:
    """Read and plan in processes; decode, crop and resize on the device."""
    kind = setting.device.type
    return _penstock(setting, kind, num_workers=setting.options.workers, prefetch_factor=4)


def penstock_gpu_threads(setting: Setting) -> Batches:
    """The same, but read and plan on threads of this process."""
    return _penstock(setting, setting.device.type, num_workers=2, engine="threads")


def _penstock(setting: Setting, decode_on: str, **options: Any) -> Batches:
    import penstock

    crop = penstock.RandomResizedCrop(setting.size, flip=0.5, decode_on=decode_on)
    dataset = penstock.WebDataset(setting.urls, shardshuffle=100).shuffle(1000)
    dataset = dataset.to_tuple("jpg", "cls").map_tuple(crop, int)
    dataset = dataset.batched(setting.batch, partial=False)
    loader = penstock.WebLoader(dataset, batch_size=None, **options)
    setting.loader = loader.to_device(
        setting.device, dtype="bfloat16", mean=MEAN, std=STD, channels_last=True
    )
    return setting.loader  # type: ignore[no-any-return]


def torch_workers(setting: Setting) -> Batches:
    """WebDataset (or a plain tar reader) in torch's worker processes, as its users run it."""
    from torch.utils.data import DataLoader

    dataset: Any = _webdataset(setting) or PlainTars(setting)
    loader = DataLoader(
        dataset,
        batch_size=None,
        num_workers=max(setting.cores, 1),
        pin_memory=setting.device.type == "cuda",
        prefetch_factor=4,
    )
    torch = setting.torch
    mean = torch.tensor(MEAN, device=setting.device).view(1, 3, 1, 1) * 255
    std = torch.tensor(STD, device=setting.device).view(1, 3, 1, 1) * 255
    for images, labels in loader:
        moved = images.to(setting.device, non_blocking=True)
        moved = moved.to(torch.float32, memory_format=torch.channels_last)
        moved = moved.sub_(mean).div_(std).to(torch.bfloat16)
        yield moved, labels.to(setting.device, non_blocking=True)


def _recipe() -> Callable[[bytes], Any]:
    from image_recipe import by_pillow, by_torchvision

    try:
        from torchvision.io import decode_jpeg  # noqa: F401
    except (ImportError, OSError, RuntimeError):
        return by_pillow
    return by_torchvision


def _stacked(pairs: list[Any]) -> tuple[Any, Any]:
    import numpy as np
    import torch

    images = np.stack([image for image, _ in pairs])
    return torch.from_numpy(images), torch.tensor([int(label) for _, label in pairs])


def _webdataset(setting: Setting) -> Any:
    try:
        import webdataset
    except ImportError:
        return None
    dataset = webdataset.WebDataset(setting.urls, shardshuffle=100).shuffle(1000)
    dataset = dataset.to_tuple("jpg", "cls").map_tuple(_recipe(), int)
    return dataset.batched(setting.batch, collation_fn=_stacked, partial=False)


class PlainTars:
    """An iterable data set over tars by the standard library, if WebDataset is not installed."""

    def __init__(self, setting: Setting) -> None:
        from torch.utils.data import IterableDataset

        IterableDataset.register(PlainTars)
        self.urls, self.batch = setting.urls, setting.batch

    def __iter__(self) -> Iterator[Any]:
        from image_peers import Data
        from torch.utils.data import get_worker_info

        worker = get_worker_info()
        urls = self.urls[worker.id :: worker.num_workers] if worker else self.urls
        recipe, kept = _recipe(), []
        for picture, label in Data(urls, Path()).pairs():
            kept.append((recipe(picture), label))
            if len(kept) == self.batch:
                yield _stacked(kept)
                kept = []


ROWS: dict[str, tuple[Callable[[Setting], Batches], float, dict[str, str]]] = {
    # name: (batches, part of the cores, environment)
    "synthetic": (synthetic, 1.0, {}),
    "penstock, CPU decoding": (penstock_cpu, 1.0, {}),
    "penstock, CPU decoding, wheels": (penstock_cpu, 1.0, {"PENSTOCK_NATIVE": "0"}),
    "penstock, CPU, threads alone": (penstock_threads, 1.0, {}),
    "penstock, GPU decoding": (penstock_gpu, 0.5, {}),
    "penstock, GPU, threads alone": (penstock_gpu_threads, 0.5, {}),
    "torch workers": (torch_workers, 1.0, {}),
    "synthetic again": (synthetic, 1.0, {}),
}


# ── one row, in its own process ─────────────────────────────────────────────────────────


def trained(setting: Setting) -> Callable[[Any, Any], None]:
    """Run one training step."""
    torch = setting.torch
    model: Any
    if setting.options.tiny:
        layers = [torch.nn.Conv2d(3, 8, 7, 4), torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten()]
        model = torch.nn.Sequential(*layers, torch.nn.Linear(8, 1000))
    else:
        from torchvision.models import resnet50

        model = resnet50()
    model = model.to(setting.device, torch.bfloat16, memory_format=torch.channels_last)
    if setting.options.compile:
        model = torch.compile(model)
    torch.backends.cudnn.benchmark = True
    fused = {"fused": True} if setting.device.type == "cuda" else {}
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9, **fused)
    criterion = torch.nn.CrossEntropyLoss()

    def step(images: Any, labels: Any) -> None:
        loss = criterion(model(images).float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return step


def finish(setting: Setting) -> None:
    if setting.device.type == "cuda":
        setting.torch.cuda.synchronize()


def loader_alone(batches: Batches, setting: Setting, steps: int) -> float:
    """Return images per second without a model."""
    stream = iter(batches)
    for _ in islice(stream, max(steps // 4, 1)):
        pass
    finish(setting)
    begin, count = time.perf_counter(), 0
    for images, _ in islice(stream, steps):
        count += len(images)
    finish(setting)
    return count / (time.perf_counter() - begin)


def measured(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Warm up, measure a number of steps, and add the loader's own statistics."""
    make, _, _ = ROWS[name]
    setting = Setting(options)
    step = trained(setting)
    for images, labels in islice(synthetic(setting), 3):  # cudnn benchmarks its algorithms
        step(images, labels)
    finish(setting)
    begun = time.perf_counter()
    stream = iter(make(setting))
    waits, count, first = 0.0, 0, None
    before = None
    for number in range(options.warm + options.steps):
        asked = time.perf_counter()
        pair = next(stream, None)
        if pair is None:
            raise SystemExit(f"{name}: the data ended after {number} steps; give --passes")
        if first is None:
            first = time.perf_counter() - begun
        if number == options.warm:
            finish(setting)
            asked = begin = time.perf_counter()
            count, waits = 0, 0.0
            before = setting.loader.stats() if setting.loader is not None else None
        else:
            waits += time.perf_counter() - asked
        step(*pair)
        count += len(pair[0])
    finish(setting)
    seconds = time.perf_counter() - begin
    answer = {
        "images_s": count / seconds,
        "steps": options.steps,
        "first_batch_s": first,
        "host_wait_share": waits / seconds,
    }
    if setting.loader is not None and before is not None:
        now = setting.loader.stats()
        answer["gpu_wait_share"] = (now.device_wait_s - before.device_wait_s) / seconds
        answer["lead_s"] = now.device_lead_s
        answer["line"], answer["says"] = now.line(), now.bottleneck
        answer["stats"] = json.loads(now.to_json())
    del stream
    if make is not synthetic:
        answer["loader_alone_images_s"] = loader_alone(make(setting), setting, options.steps // 2)
    return answer


def agreement(options: argparse.Namespace) -> dict[str, Any]:
    """Compare pixels decoded by the GPU with those of the CPU, in levels of 255."""
    import penstock

    setting = Setting(options)
    made = []
    for decode_on in ("cpu", "cuda"):
        crop = penstock.RandomResizedCrop(setting.size, flip=0.5, decode_on=decode_on)
        dataset = penstock.WebDataset(setting.urls[:1], shardshuffle=False)
        dataset = dataset.to_tuple("jpg").map_tuple(crop).batched(setting.batch)
        loader = penstock.WebLoader(dataset, batch_size=None).to_device(setting.device)
        made.append([images.cpu().short() for (images,) in islice(loader, 2)])
    apart = setting.torch.cat([(a - b).abs().flatten() for a, b in zip(*made)]).float()
    return {"max_levels": apart.max().item(), "mean_levels": apart.mean().item()}


def row_process(name: str, options: argparse.Namespace) -> int:
    """Run a row in the child process; its last line is always JSON."""
    try:
        answer = agreement(options) if name == AGREEMENT else measured(name, options)
    except BaseException as problem:  # noqa: BLE001 - reported to the parent
        traceback.print_exc()
        answer = {"failed": f"{type(problem).__name__}: {problem}"[:300]}
    print("\n" + json.dumps(answer), flush=True)
    os._exit(0)


# ── all rows ────────────────────────────────────────────────────────────────────────────


def run_row(name: str, options: argparse.Namespace, shards: str) -> dict[str, Any]:
    """Run one row on its share of the cores."""
    # Without the native module no CPU thread helps: all pixels are the GPU's.
    part, extra = ROWS[name][1:] if name in ROWS else (1.0, {"PENSTOCK_NATIVE": "0"})
    cores = sorted(os.sched_getaffinity(0))
    mine = cores[: max(int(len(cores) * part), 1)]
    words = ["--row", name, "--shards", shards, "--cores", str(len(mine))]
    for word in ("device", "batch", "size", "steps", "warm", "passes", "workers"):
        words += [f"--{word}", str(getattr(options, word))]
    words += [f"--{flag}" for flag in ("tiny", "compile") if getattr(options, flag)]
    begun = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, __file__, *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **extra},
        preexec_fn=lambda: os.sched_setaffinity(0, mine),
    )
    try:
        out, _ = process.communicate(timeout=ROW_LIMIT_S)
        answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        answer = {"failed": f"not done after {ROW_LIMIT_S} s"}
    except (IndexError, ValueError):
        answer = {"failed": f"its process ended with {process.returncode}"}
    return {**answer, "cores": len(mine), "took_s": round(time.perf_counter() - begun, 1)}


def told(name: str, answer: dict[str, Any], top: float) -> str:
    if "failed" in answer:
        return f"{name:<32} {answer['failed']}"
    if "max_levels" in answer:
        apart = f"{answer['mean_levels']:.4f} levels of 255 in the mean"
        return f"{name:<32} apart by {apart}, {answer['max_levels']:.0f} at most"
    words = [f"{name:<32} {answer['images_s']:8,.0f} images/s  {answer['images_s'] / top:5.3f}"]
    words.append(f"{answer['cores']} cores")
    if "loader_alone_images_s" in answer:
        words.append(f"alone {answer['loader_alone_images_s']:,.0f}")
    words.append(f"host waits {answer['host_wait_share']:.1%}")
    if "gpu_wait_share" in answer:
        words.append(f"GPU waits {answer['gpu_wait_share']:.1%} of the time, by its statistics")
    if answer.get("lead_s") is not None:
        words.append(f"host {1e3 * answer['lead_s']:.1f} ms ahead")
    return "  ".join(words)


def verdicts(found: dict[str, dict[str, Any]], top: float) -> list[dict[str, Any]]:
    """Return the targets and what was reached."""
    kept: list[dict[str, Any]] = []
    pixels = found.get(AGREEMENT, {})
    kept.append(
        {
            "what": f"{AGREEMENT}: levels of 255 apart at most",
            "value": pixels.get("max_levels"),
            "limit": LEVELS_APART,
            "reached": pixels.get("max_levels", 255) <= LEVELS_APART
            and pixels.get("mean_levels", 255) <= LEVELS_APART_MEAN,
        }
    )
    for name in ("penstock, CPU decoding", "penstock, GPU decoding"):
        answer = found.get(name, {})
        if "images_s" not in answer:
            kept.append({"what": f"{name}: measured at all", "reached": False})
            continue
        part = answer["images_s"] / top
        kept.append(
            {
                "what": f"{name}: part of synthetic",
                "value": round(part, 4),
                "limit": PART_OF_SYNTHETIC,
                "reached": part >= PART_OF_SYNTHETIC,
            }
        )
        if "gpu_wait_share" in answer:
            apart = abs(max(1 - part, 0) - answer["gpu_wait_share"])
            kept.append(
                {
                    "what": f"{name}: GPU wait by statistics and loss are apart by",
                    "value": round(apart, 4),
                    "limit": AGREES_WITHIN,
                    "reached": apart <= AGREES_WITHIN,
                }
            )
    return kept


def made_shards(options: argparse.Namespace, folder: Path) -> str:
    """Write shards of repeated photographs."""
    import samples

    photos = options.photos
    if photos is None:
        from images import made_photographs

        (folder / "made").mkdir()
        photos = made_photographs(folder / "made")
    samples.SHARDS = SHARDS
    urls = samples.shards_of("photos", "plain", options.count, photos, folder)
    return str(Path(urls[0]).parent)


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--photos", type=Path, help="tar or folder of real JPEG photographs")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--count", type=int, default=8000, help="samples written (default 8000)")
    parser.add_argument("--passes", type=int, default=12, help="over them per epoch (default 12)")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--warm", type=int, default=30, help="steps not counted (default 30)")
    parser.add_argument("--steps", type=int, default=150, help="steps counted (default 150)")
    parser.add_argument("--workers", type=int, default=2, help="for GPU decoding (default 2)")
    parser.add_argument("--tiny", action="store_true", help="a small model and little data")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--only", action="append", help="rows whose name has this word")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    parser.add_argument("--shards", help=argparse.SUPPRESS)
    parser.add_argument("--cores", type=int, default=1, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tiny and options.row is None:
        options.count, options.passes, options.batch, options.size = 160, 4, 16, 64
        options.warm, options.steps = 4, 16
    return options


def main() -> int:
    options = options_of()
    if options.row is not None:
        return row_process(options.row, options)
    names = [n for n in ROWS if not options.only or any(word in n for word in options.only)]
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="penstock-gpu-") as folder:
        begun = time.perf_counter()
        shards = made_shards(options, Path(folder))
        print(f"shards made in {time.perf_counter() - begun:.1f} s", flush=True)
        for name in [AGREEMENT, *names]:
            found[name] = run_row(name, options, shards)
            rates = [found[n]["images_s"] for n in found if "images_s" in found[n]]
            synthetics = [
                found[n]["images_s"] for n in found if "synth" in n and "images_s" in found[n]
            ]
            print(told(name, found[name], max(synthetics or rates or [1.0])), flush=True)
    top = max(
        (a["images_s"] for n, a in found.items() if "synth" in n and "images_s" in a), default=1.0
    )
    reached = verdicts(found, top)
    for verdict in reached:
        print("met   " if verdict["reached"] else "MISSED", verdict)
    print(json.dumps({"device": options.device, "rows": found, "targets": reached}))
    return 0 if all(verdict["reached"] for verdict in reached) else 1


if __name__ == "__main__":
    sys.exit(main())
