"""Write samples into shards and read them back: python examples/quickstart.py [FOLDER]

Needs only penstock. Without a folder it uses a temporary one.
"""

import sys
import tempfile
from pathlib import Path

import numpy as np

import penstock as wds


def main(folder: Path) -> None:
    # A sample is a dict: a key, and fields whose names are file extensions.
    with wds.ShardWriter(str(folder / "points-%06d.tar"), maxcount=100, verbose=0) as writer:
        for number in range(300):
            writer.write(
                {
                    "__key__": f"{number:06d}",
                    "npy": np.full(4, number, np.float32),
                    "cls": number % 10,
                    "json": {"even": number % 2 == 0},
                }
            )

    # A shard is a plain tar file: `tar tf points-000000.tar` lists 000000.cls, 000000.json, …
    dataset = (
        wds.WebDataset(str(folder / "points-{000000..000002}.tar"), shardshuffle=3, seed=1)
        .shuffle(100)
        .decode()
        .select(lambda sample: sample["json"]["even"])
        .to_tuple("npy", "cls")
        .batched(16)
    )
    print(dataset.describe())
    for points, labels in dataset:
        print(points.shape, labels)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
