"""The same code on penstock and on WebDataset: python examples/drop_in.py [FOLDER]

Needs only penstock. If the package webdataset is installed too, both read the same shards and the
results are compared. Without a folder it uses a temporary one.
"""

import importlib.util
import sys
import tempfile
from pathlib import Path

import penstock


def write(wds, pattern: str) -> None:
    with wds.ShardWriter(pattern, maxcount=50, verbose=0) as writer:
        for number in range(100):
            writer.write({"__key__": f"{number:04d}", "txt": f"line {number}", "cls": number % 7})


def read(wds, shards: str) -> list:
    dataset = (
        wds.WebDataset(shards, shardshuffle=False)
        .shuffle(20, seed=5)
        .decode()
        .to_tuple("txt", "cls")
        .map_tuple(str.upper, None)
    )
    return list(dataset)


def main(folder: Path) -> None:
    libraries = [penstock]  # import penstock as wds
    if importlib.util.find_spec("webdataset") is not None:
        import webdataset

        libraries.append(webdataset)  # import webdataset as wds
    for writer in libraries:
        write(writer, str(folder / f"{writer.__name__}-%04d.tar"))
        shards = str(folder / f"{writer.__name__}-{{0000..0001}}.tar")
        results = [read(reader, shards) for reader in libraries]
        for reader, result in zip(libraries, results):
            print(f"written by {writer.__name__}, read by {reader.__name__}: {result[:2]} …")
            assert result == results[0], "the same code must yield the same samples"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made))
