"""Interleaved documents to packed rows of tokens: python examples/documents.py [FOLDER]

Documents as MMC4 has them (JSONL and a folder of images) become dashed shards. They are read in
random order, filtered before anything is decoded, turned into tokens, one for each
patch of an image, and packed into rows. Without a folder it works in a temporary one.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

import penstock as wds
from penstock import documents

PATCH = 16  # an image takes a token for each patch of 16 x 16 pixels
IMAGE_TOKEN = 256  # after the 256 tokens of bytes of text
ROW_LENGTH = 1024


def write_mmc4(folder: Path, count: int = 60) -> None:
    """A file of documents and a folder of images, drawn."""
    rng = random.Random(1)
    (folder / "images").mkdir(exist_ok=True)
    with open(folder / "docs.jsonl", "w") as lines:
        for number in range(count):
            texts = [f"Sentence {place} of document {number}. " for place in range(5)]
            infos, matrix = [], []
            for place in range(rng.randint(0, 3)):
                name = f"{number}-{place}.jpg"
                size = (rng.choice([48, 96]), rng.choice([48, 96]))
                Image.new("RGB", size, (number, 80 * place, 90)).save(folder / "images" / name)
                row = [rng.uniform(0.1, 0.4) for _ in texts]
                about = {"image_name": name, "matched_text_index": row.index(max(row))}
                infos.append({**about, "matched_sim": max(row)})
                matrix.append(row)
            data = {"text_list": texts, "image_info": infos, "similarity_matrix": matrix}
            lines.write(json.dumps(data) + "\n")


def to_tokens(document: documents.Document) -> dict:
    """Bytes of text, and for each image as many tokens as it has patches."""
    ids: list[int] = []
    for piece in document.pieces:
        if isinstance(piece, documents.ImagePiece):
            width, height = piece.size()
            ids += [IMAGE_TOKEN] * (width // PATCH * (height // PATCH))
        else:
            ids += piece.text.encode()
    return {"tokens": np.array(ids, np.int64), "images": document.images}


def decode_images(row: dict) -> dict:
    """The patches of the row's images, one for each image token, in the order of the tokens."""
    patches = [np.zeros((0, PATCH, PATCH, 3), np.uint8)]
    for image in (image for images in row["images"] for image in images):
        pixels = image.decode("rgb8")
        height, width = pixels.shape[0] // PATCH, pixels.shape[1] // PATCH
        pixels = pixels[: height * PATCH, : width * PATCH]
        grid = pixels.reshape(height, PATCH, width, PATCH, 3).swapaxes(1, 2)
        patches.append(grid.reshape(-1, PATCH, PATCH, 3))
    return {**row, "images": np.concatenate(patches)}


def main(folder: Path) -> None:
    write_mmc4(folder)
    shards = documents.convert(
        str(folder / "docs.jsonl"),
        str(folder / "docs-%03d.tar"),
        to="dashed",
        images=folder / "images",
        maxcount=20,
    )
    dataset = (
        wds.WebDataset(shards, group="dashed", index=True, shardshuffle=3, seed=1)
        .documents(assign="optimal", threshold=0.15, min_images=1, max_images=3)
        .map(to_tokens)
        .packed(ROW_LENGTH, "tokens", buffer=50)
        .map(decode_images)
    )
    rows = list(dataset)
    for row in rows:
        assert (row["tokens"] == IMAGE_TOKEN).sum() == len(row["images"])
    used = sum(int(row["lengths"].sum()) for row in rows)
    print(f"{len(rows)} rows of {ROW_LENGTH} tokens, {used / len(rows) / ROW_LENGTH:.0%} full")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
