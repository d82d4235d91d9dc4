"""RandomResizedCrop(224) with flip from a JPEG's bytes, on one and on two threads.

    python benchmarks/transforms.py PHOTOS.tar [--rounds N]

Compared with the usual code on other libraries, interleaved: images per second of wall time, and
microseconds of CPU time per image, which other work on the machine disturbs less. The difference
from Pillow's result is in levels of 255: mean and 99th percentile.
"""

from __future__ import annotations

import io
import os
import random
import sys
import tarfile
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from measure import Report, Rival, arguments_of, interleaved

SIZE = 224


def photos(path: str) -> list[bytes]:
    with tarfile.open(path) as tar:
        found = (tar.extractfile(member) for member in tar if member.isfile())
        data = [file.read() for file in found if file is not None]
    return [one for one in data if one[:2] == b"\xff\xd8"]


Recipe = Callable[[bytes, int], Any]


def ours() -> Recipe:
    import penstock
    from penstock.context import CounterRng

    crop = penstock.RandomResizedCrop(SIZE, flip=0.5)
    return lambda data, number: crop(data, CounterRng(number))


def wheels() -> Recipe:
    os.environ["PENSTOCK_NATIVE"] = "0"
    return ours()


def native() -> Recipe:
    from penstock.transforms.native import load

    if load() is None:
        raise SystemExit("the native module is not built: penstock native build")
    return ours()


def box(height: int, width: int, number: int) -> tuple[int, int, int, int, bool]:
    from penstock.context import CounterRng
    from penstock.transforms.crop_plan import random_box

    draws = CounterRng(number)
    return (
        *random_box(height, width, (0.08, 1), (3 / 4, 4 / 3), draws),
        draws.random() < 0.5,
    )


def simplejpeg_and_opencv(filter: str) -> Recipe:
    import cv2
    import simplejpeg

    cv2.setNumThreads(0)
    kind = getattr(cv2, filter)

    def recipe(data: bytes, number: int) -> Any:
        pixels = simplejpeg.decode_jpeg(data, "RGB")
        top, left, height, width, flip = box(*pixels.shape[:2], number)
        part = pixels[top : top + height, left : left + width]
        made = cv2.resize(part, (SIZE, SIZE), interpolation=kind)
        row = np.empty((3, SIZE, SIZE), np.uint8)
        cv2.split(cv2.flip(made, 1) if flip else made, [row[0], row[1], row[2]])
        return row

    return recipe


def linear() -> Recipe:
    return simplejpeg_and_opencv("INTER_LINEAR")


def area() -> Recipe:
    return simplejpeg_and_opencv("INTER_AREA")


def pillow() -> Recipe:
    from PIL import Image

    def recipe(data: bytes, number: int) -> Any:
        image = Image.open(io.BytesIO(data))
        top, left, height, width, flip = box(image.height, image.width, number)
        part = (left, top, left + width, top + height)
        made = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=part)
        if flip:
            made = made.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.ascontiguousarray(np.asarray(made).transpose(2, 0, 1))

    return recipe


def reference() -> Recipe:
    """Crop, then resize, as torchvision does with Pillow images."""
    from PIL import Image

    def recipe(data: bytes, number: int) -> Any:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        top, left, height, width, flip = box(image.height, image.width, number)
        part = image.crop((left, top, left + width, top + height))
        made = np.asarray(part.resize((SIZE, SIZE), Image.Resampling.BILINEAR))
        return (made[:, ::-1] if flip else made).transpose(2, 0, 1)

    return recipe


RECIPES: dict[str, Callable[[], Recipe]] = {
    "penstock, native": native,
    "penstock, wheels": wheels,
    "simplejpeg + OpenCV linear": linear,
    "simplejpeg + OpenCV area": area,
    "Pillow, box=": pillow,
}


def prepare(name: str, path: str, threads: int) -> Callable[[], tuple[float, list[float]]]:
    data, recipe = photos(path), RECIPES[name]()
    exact = reference()
    chosen = random.Random(0).sample(range(len(data)), min(20, len(data)))
    apart = [np.abs(recipe(data[n], n).astype(int) - exact(data[n], n)).ravel() for n in chosen]
    levels = np.concatenate(apart)

    def work(first: int) -> None:
        for number in range(first, len(data), threads):
            recipe(data[number], number)

    def action() -> tuple[float, list[float]]:
        began = time.process_time()
        crew = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        spent = (time.process_time() - began) / len(data)
        return spent, [len(data), float(levels.mean()), float(np.percentile(levels, 99))]

    return action


def main() -> int:
    parser = arguments_of(__doc__)
    parser.add_argument("photos", help="a tar of JPEGs")
    arguments = parser.parse_args()
    report = Report("RandomResizedCrop(224) + flip, uint8 NCHW", arguments.json)
    for threads in (1, 2):
        rivals = [Rival(name, Prepared(name)) for name in RECIPES]
        case = f"{threads} thread{'s' * (threads > 1)}"
        timings = interleaved(rivals, (arguments.photos, threads), arguments.rounds, case)
        for rival in rivals:
            rival.__exit__()
        report.table(case, [row(name, timing) for name, timing in timings.items()])
    return report.finish()


class Prepared:
    """``prepare`` for one transform; can be pickled."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __call__(self, path: str, threads: int) -> Callable[[], Any]:
        return prepare(self.name, path, threads)


def row(name: str, timing: Any) -> dict[str, Any]:
    spent, (count, mean, high) = timing.result
    return {
        "chain": name,
        "images/s, best": count / timing.best,
        "median": count / timing.median,
        "CPU µs/image": spent * 1e6,
        "mean diff": mean,
        "p99": high,
    }


if __name__ == "__main__":
    sys.exit(main())
