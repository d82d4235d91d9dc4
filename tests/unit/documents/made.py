"""Documents for the tests."""

from __future__ import annotations

import base64
import io
import json
import random
import tarfile

import numpy as np
from PIL import Image


def picture(seed=0, size=(12, 9), format="JPEG"):
    """The bytes of a small image."""
    pixels = np.random.default_rng(seed).integers(0, 255, (size[1], size[0], 3), np.uint8)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, format)
    return stream.getvalue()


def mmc4(n, rng):
    """The JSON of a document as MMC4 has it, and its images by name."""
    texts = [f"Sentence {n}.{i}." for i in range(rng.randint(1, 6))]
    names = [f"Img{n}-{i}.JPG" if i % 2 else f"img{n}.{i}.jpg" for i in range(rng.randint(0, 4))]
    matrix = [[round(rng.uniform(0.1, 0.4), 6) for _ in texts] for _ in names]
    infos = []
    for name, row in zip(names, matrix):
        index = row.index(max(row))
        about = {"image_name": name, "raw_url": f"https://example.org/{name}?n={n}"}
        infos.append({**about, "matched_text_index": index, "matched_sim": row[index]})
    data = {"text_list": texts, "image_info": infos, "similarity_matrix": matrix, "url": f"u{n}"}
    images = {name: picture(1000 * n + i) for i, name in enumerate(names)}
    return data, images


def write_source(folder, count=200, seed=0):
    """MMC4's JSONL file and a folder of images; gives both paths and all images by URL."""
    rng = random.Random(seed)
    (folder / "images").mkdir()
    by_url = {}
    with open(folder / "docs.jsonl", "w") as file:
        for n in range(count):
            data, images = mmc4(n, rng)
            file.write(json.dumps(data) + "\n")
            for info in data["image_info"]:
                data = images[info["image_name"]]
                (folder / "images" / info["image_name"]).write_bytes(data)
                by_url[info["raw_url"]] = data
    return str(folder / "docs.jsonl"), str(folder / "images"), by_url


def write_members(path, members):
    """A tar of these (name, bytes) pairs."""
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return str(path)


def sample(texts=("A", "B"), images=(), matrix=None, key="a", **fields):
    """A raw sample: images are (name, index, similarity) or dicts."""
    infos = []
    for image in images:
        if not isinstance(image, dict):
            name, index, similarity = image
            image = {"image_name": name, "matched_text_index": index, "matched_sim": similarity}
        infos.append(image)
    data = {"text_list": list(texts), "image_info": infos}
    if matrix is not None:
        data["similarity_matrix"] = matrix
    return {"__key__": key, "__url__": "x.tar", "json": json.dumps(data).encode(), **fields}


def encoded(data):
    return base64.b64encode(data).decode()
