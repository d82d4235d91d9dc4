"""Small shards like those in the documents: drawn pictures with a JSON file each."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from PIL import Image

import penstock as wds

SHARDS, SAMPLES = 4, 6
HEIGHT, WIDTH = 40, 48


def draw(number, extension):
    """Return a picture of two colours, with a different edge for each number, as a file."""
    pixels = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    pixels[: number % HEIGHT] = (255, 10 * (number % 25), 0)
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "JPEG" if extension == "jpg" else "PNG")
    return stream.getvalue()


def write_shards(folder, name, extension):
    for shard in range(SHARDS):
        with wds.TarWriter(str(folder / f"{name}-{shard:06d}.tar"), encoder=False) as sink:
            for index in range(SAMPLES):
                number = shard * SAMPLES + index
                about = {"ImageID": f"{number:04x}", "annotations": [{"category_id": number}]}
                sink.write(
                    {
                        "__key__": f"{number:04x}",
                        extension: draw(number, extension),
                        "json": json.dumps(about).encode(),
                    }
                )
    return str(folder / f"{name}-{{000000..{SHARDS - 1:06d}}}.tar")


@pytest.fixture(scope="session")
def pages(tmp_path_factory):
    """Shards of png and json, as one URL with braces."""
    return write_shards(tmp_path_factory.mktemp("pages"), "publaynet-train", "png")


@pytest.fixture(scope="session")
def photos(tmp_path_factory):
    """Shards of jpg and json, read through a command, as one URL with braces."""
    url = write_shards(tmp_path_factory.mktemp("photos"), "openimages-train", "jpg")
    return f"pipe:cat {url} || true"


@pytest.fixture(scope="session")
def photo_shard(photos):
    """The first of the shards of photos, as a path."""
    return (
        photos.removeprefix("pipe:cat ")
        .removesuffix(" || true")
        .replace(f"{{000000..{SHARDS - 1:06d}}}", "000000")
    )
