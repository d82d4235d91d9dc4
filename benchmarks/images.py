"""How fast photographs become batches: RandomResizedCrop(224), flip, uint8 NCHW, batches of 256.

Complete loaders on two cores, interleaved, each turn in a fresh process: penstock with wheels alone
and with its native module, WebDataset, and the other loaders that are installed. Then tiny samples,
and the speed-up from a second thread.

    python benchmarks/images.py --photos PHOTOS.tar

Without ``--photos`` it makes noisy images of the same sizes; real ones decode differently.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import samples
from image_peers import LOADERS, TINY, Loader
from measure import Report, Target, arguments_of, progress

CORES = 2
TIMES_BEST = {"penstock, wheels": 1.4, "penstock, native": 2.0}
TIMES_TINY = 15.0
SCALING = 1.8
FIRST_BATCH_S = 1.0
PART_OF_MEMORY = 0.5
RUNNER = Path(__file__).with_name("image_run.py")
TURN_LIMIT_S = 240
WATCH_S = 0.2


class Memory(threading.Thread):
    """Measures the memory of a process and its descendants; shared pages count once."""

    def __init__(self, root: int) -> None:
        super().__init__(daemon=True)
        self.root, self.peak_bytes, self.done = root, 0, threading.Event()

    def run(self) -> None:
        while not self.done.wait(WATCH_S):
            self.peak_bytes = max(self.peak_bytes, sum(map(_resident, _tree(self.root))))


def _tree(root: int) -> list[int]:
    """Return a process and its descendants."""
    found = [root]
    for pid in found:
        for path in Path(f"/proc/{pid}/task").glob("*/children"):
            try:
                found += map(int, path.read_text().split())
            except OSError:
                continue  # it ended meanwhile
    return found


def _resident(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:")), 0)


class Turns:
    """Runs loaders in fresh processes."""

    def __init__(self, table: str, urls: list[str], forms: Path, options: argparse.Namespace):
        self.table, self.urls, self.forms, self.options = table, urls, forms, options

    def run(
        self,
        name: str,
        loader: Loader,
        *,
        count: int = 1,
        workers: int = CORES,
        memory: bool = False,
    ) -> dict[str, Any]:
        """Run one epoch; with ``count=0`` only write the data in the loader's format."""
        words = [self.table, name, self.forms, count, self.options.batch, workers, *self.urls]
        command = [sys.executable, RUNNER, *words]
        environment = {**os.environ, **dict(loader.environment), "OMP_NUM_THREADS": "1"}
        environment |= {"HF_HUB_OFFLINE": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "NO_COLOR": "1"}
        environment |= {
            "HF_DATASETS_CACHE": str(self.forms / "hf"),
            "DATA_OPTIMIZER_CACHE_FOLDER": str(self.forms / "lit"),
        }
        # Shared bytecode cache, filled by the first turns, as if all were installed alike.
        environment["PYTHONPYCACHEPREFIX"] = str(self.forms / "compiled")
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen(
            list(map(str, command)),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        watch = Memory(process.pid)
        if memory:
            watch.start()
        try:
            out, err = process.communicate(timeout=TURN_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return {"failed": f"not done after {TURN_LIMIT_S} s"}
        finally:
            watch.done.set()
        try:
            answer: dict[str, Any] = json.loads(out.splitlines()[-1])
        except (IndexError, ValueError):
            return {"failed": _last_line(err)}
        return {**answer, "peak_bytes": watch.peak_bytes}


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["ended without a word"])[-1][:160]


def rounds_of(
    turns: Turns, table: dict[str, Loader], number: int
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, str]]:
    """Run the turns of every loader that works here; report why the others do not."""
    kept: dict[str, list[dict[str, Any]]] = {}
    told: dict[str, str] = {}
    memory: dict[str, int] = {}
    for name, loader in table.items():  # the first round: forms, page cache, memory
        progress(f"{name}: warming up")
        answer = turns.run(name, loader, count=0)
        if "formed" in answer:
            answer = turns.run(name, loader, memory=True)
        if "samples" in answer:
            kept[name], memory[name] = [], answer["peak_bytes"]
        else:
            told[name] = "not installed" if "missing" in answer else f"failed: {answer['failed']}"
    names = list(kept)
    for round_ in range(number):
        turn = round_ % max(len(names), 1)
        for name in [*names[turn:], *names[:turn]]:
            progress(f"round {round_ + 1} of {number}: {name}")
            answer = turns.run(name, table[name])
            if "samples" in answer:
                kept[name].append({**answer, "peak_bytes": memory[name]})
    progress("")
    return {name: found for name, found in kept.items() if found}, told


def rate(answer: dict[str, Any]) -> float:
    """Return samples per second, once all workers are busy."""
    return float(answer["timed"] / max(answer["seconds"], 1e-9))


def best(answers: list[dict[str, Any]]) -> float:
    return max(map(rate, answers))


def cpu_ms(answers: list[dict[str, Any]]) -> float:
    return min(answer["cpu_s"] / answer["samples"] for answer in answers) * 1e3


def rows(
    found: dict[str, list[dict[str, Any]]], told: dict[str, str], table: dict[str, Loader]
) -> list[dict[str, Any]]:
    """Return the table's rows; the fastest other loader is 1."""
    peer = max((best(found[n]) for n in found if table[n].kind == "peer"), default=float("nan"))
    kept = []
    for name in table:
        row: dict[str, Any] = {"loader": name}
        if name in found:
            answers = found[name]
            row |= {
                "samples/s": best(answers),
                "median": statistics.median(map(rate, answers)),
                "x best peer": best(answers) / peer,
                "CPU ms each": cpu_ms(answers),
                "peak MB": answers[0]["peak_bytes"] / 1e6,
                "first batch s": min(answer["first_s"] for answer in answers),
            }
        else:
            row |= dict.fromkeys(
                ("samples/s", "median", "x best peer", "CPU ms each", "peak MB"), "-"
            )
            row["first batch s"] = told.get(name, "failed")
        kept.append(row)
    return kept


def image_targets(found: dict[str, list[dict[str, Any]]], report: Report) -> None:
    """Return the targets for the table of photographs."""
    kinds = {kind: [n for n in found if LOADERS[n].kind == kind] for kind in ("peer", "by hand")}
    ours = [name for name in TIMES_BEST if name in found]
    for name in ours:
        for kind, names in kinds.items():
            if names:
                top = max(names, key=lambda n: best(found[n]))
                what = (
                    f"{name}: times the best {'peer' if kind == 'peer' else 'chain by hand'}, {top}"
                )
                report.targets.append(
                    Target(what, best(found[name]) / best(found[top]), TIMES_BEST[name])
                )
        if kinds["peer"]:
            least = min(cpu_ms(found[n]) for n in kinds["peer"])
            what = f"{name}: CPU time per image, as part of the best peer's"
            value = cpu_ms(found[name]) / least
            report.targets.append(Target(what, value, 1.0, at_most=True))
        first = min(answer["first_s"] for answer in found[name])
        what = f"{name}: first batch after the import"
        report.targets.append(Target(what, first, FIRST_BATCH_S, "s", at_most=True))
        if "webdataset, Pillow" in found:
            theirs = found["webdataset, Pillow"][0]["peak_bytes"]
            part = found[name][0]["peak_bytes"] / theirs
            what = f"{name}: peak memory, as part of WebDataset's with {CORES} workers"
            report.targets.append(Target(what, part, PART_OF_MEMORY, at_most=True))


def scaling(turns: Turns, number: int, report: Report) -> None:
    """Compare one thread with two, penstock alone."""
    told = []
    for name in TIMES_BEST:
        counts: dict[int, list[dict[str, Any]]] = {1: [], CORES: []}
        for round_ in range(number):
            for threads, answers in counts.items():
                progress(f"{name}: {threads} threads, round {round_ + 1} of {number}")
                answer = turns.run(name, LOADERS[name], workers=threads)
                if "samples" in answer:
                    answers.append(answer)
        if all(counts.values()):
            one, two = (best(answers) for answers in counts.values())
            told.append({"threads": name, "1 thread": one, "2 threads": two, "gain": two / one})
            report.targets.append(Target(f"{name}: 1 to 2 threads", two / one, SCALING))
    progress("")
    if told:
        report.table("threads", told)


def tiny_targets(found: dict[str, list[dict[str, Any]]], report: Report) -> None:
    for ours, theirs in (
        ("penstock, plain", "webdataset, plain"),
        ("penstock, 2 workers", "webdataset, 2 workers"),
        ("penstock, threads", "webdataset, 2 workers"),
    ):
        if ours in found and theirs in found:
            value = best(found[ours]) / best(found[theirs])
            report.targets.append(Target(f"tiny: {ours} to {theirs}", value, TIMES_TINY))


def made_photographs(folder: Path) -> Path:
    """Make JPEG images with some structure, if no real ones are given."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(samples.DIFFERENT_PHOTOS):
        width, height = (500, 375) if number % 4 else (375, 500)
        coarse = Image.fromarray(rng.integers(0, 255, (24, 32, 3), np.uint8))
        fine = rng.normal(0, 6, (height, width, 3))
        picture = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC)) + fine
        data = io.BytesIO()
        Image.fromarray(picture.clip(0, 255).astype(np.uint8)).save(data, "JPEG", quality=92)
        (folder / f"{number:04d}.jpg").write_bytes(data.getvalue())
    return folder


def main() -> int:
    parser = arguments_of(__doc__)
    parser.set_defaults(rounds=3)
    parser.add_argument("--photos", type=Path, help="tar or folder of real JPEG photographs")
    parser.add_argument("--count", type=int, default=10_000, help="photographs (default 10,000)")
    parser.add_argument("--tiny-count", type=int, default=100_000, help="(default 100,000)")
    parser.add_argument("--batch", type=int, default=256, help="(default 256)")
    parser.add_argument("--only", choices=("photos", "tiny", "scaling"), help="one part alone")
    parser.add_argument("--loader", action="append", help="only loaders whose name has this word")
    options = parser.parse_args()
    report = Report("Images", options.json)
    table = {
        name: loader
        for name, loader in LOADERS.items()
        if not options.loader or any(word in name for word in options.loader)
    }
    options.data.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=options.data, prefix="images-") as made:
        folder = Path(made)
        if options.only != "tiny":
            (folder / "made").mkdir()
            photos = options.photos or made_photographs(folder / "made")
            urls = samples.shards_of("photos", "plain", options.count, photos, folder)
            turns = Turns("LOADERS", urls, folder, options)
            if options.only != "scaling":
                found, told = rounds_of(turns, table, options.rounds)
                report.table("photographs", rows(found, told, table))
                image_targets(found, report)
            scaling(turns, options.rounds, report)
        if options.only in (None, "tiny"):
            urls = samples.shards_of("tiny", "plain", options.tiny_count, None, folder)
            turns = Turns("TINY", urls, folder, options)
            found, told = rounds_of(turns, TINY, options.rounds)
            report.table("tiny samples", rows(found, told, TINY))
            tiny_targets(found, report)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
