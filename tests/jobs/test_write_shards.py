"""write_shards: any dataset into shards, in parallel, and again after a kill."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from PIL import Image

import penstock as wds
from penstock.errors import PipelineError, SampleError, WriteError
from penstock.shards.index import Index


def digests(folder):
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.glob("*.tar"))
    }


def pairs(count=25):
    return [(f"text {n}", n) for n in range(count)]


def read(urls):
    samples = wds.WebDataset(urls, shardshuffle=False).decode()
    return [(sample["__key__"], sample["txt"], sample["cls"]) for sample in samples]


WANTED = [(f"{n:09d}", f"text {n}", n) for n in range(25)]


def test_a_map_style_dataset_is_written_with_its_index(tmp_path):
    urls = wds.write_shards(
        pairs(), tmp_path / "x-%03d.tar", fields=("txt", "cls"), maxcount=10, jobs=2
    )
    assert urls == [str(tmp_path / f"x-{n:03d}.tar") for n in range(3)]
    assert read(urls) == WANTED
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".penstock",
        *(f"x-{n:03d}.tar" for n in range(3)),
        "x.index.parquet",
    ]
    assert len(Index.load(tmp_path / "x.index.parquet")) == 25


def test_an_iterable_is_written_in_order(tmp_path):
    options = {"fields": ("txt", "cls"), "maxcount": 10}
    urls = wds.write_shards(iter(pairs()), tmp_path / "x-%03d.tar", **options)
    assert read(urls) == WANTED
    assert len(Index.load(tmp_path / "x.index.parquet")) == 25
    (tmp_path / "same").mkdir()
    wds.write_shards(pairs(), tmp_path / "same" / "x-%03d.tar", jobs=2, **options)
    assert digests(tmp_path / "same") == digests(tmp_path)


def test_shards_may_be_limited_by_their_size(tmp_path):
    options = {"fields": ("txt", "cls"), "maxsize": 50, "index": False}
    urls = wds.write_shards(pairs(), tmp_path / "x-%03d.tar", **options)
    assert len(urls) > 3
    assert read(urls) == WANTED
    assert not (tmp_path / "x.index.parquet").exists()


def test_items_may_be_dicts(tmp_path):
    rows = [{"text": f"text {n}", "label": n, "more": None} for n in range(25)]
    fields = {"txt": "text", "cls": "label"}
    assert read(wds.write_shards(rows, tmp_path / "x-%d.tar", fields=fields, jobs=1)) == WANTED
    with pytest.raises(SampleError, match="fields="):
        wds.write_shards(rows, tmp_path / "y-%d.tar", jobs=1)


def test_items_may_be_encoded_by_a_function(tmp_path):
    def encode(item):
        return {"txt": item[0], "cls": item[1], "__key__": f"own{item[1]}"}

    urls = wds.write_shards(pairs(3), tmp_path / "x-%d.tar", encode=encode, key=None, jobs=1)
    assert [key for key, _, _ in read(urls)] == ["own0", "own1", "own2"]
    with pytest.raises(PipelineError, match="not both"):
        wds.write_shards(pairs(), tmp_path / "y-%d.tar", encode=encode, fields=("txt", "cls"))


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (None, "as a dict, not None: to leave items out"),
        (["txt"], "as a dict, not a list"),
        ({"txt": "x", "__key__": "own"}, "keys are made by key='%09d': pass key=None to use it"),
    ],
)
@pytest.mark.parametrize("kind", [list, iter])
def test_what_encode_may_not_return_is_refused_with_the_item(tmp_path, kind, returned, words):
    with pytest.raises(SampleError, match=words) as caught:
        wds.write_shards(
            kind(pairs(3)), tmp_path / "x-%d.tar", encode=lambda item: returned, jobs=1
        )
    assert any("item 0" in note for note in caught.value.__notes__)
    assert list(tmp_path.glob("*.tar")) == []


@pytest.mark.parametrize("kind", [list, iter])
def test_a_refused_name_says_what_to_do_in_write_shards(tmp_path, kind):
    with pytest.raises(WriteError, match="write 'txt'; fields are named by fields=") as caught:
        wds.write_shards(kind(pairs(3)), tmp_path / "x-%d.tar", fields=("TXT", "cls"), jobs=1)
    assert "check=" not in str(caught.value)


def test_torch_and_numpy_values_are_encoded(tmp_path):
    torch = pytest.importorskip("torch")
    images = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).reshape(2, 3, 4, 4)
    dataset = torch.utils.data.TensorDataset(images, torch.tensor([4, 5]))
    encode = lambda item: {"png": item[0], "cls": int(item[1])}  # noqa: E731
    urls = wds.write_shards(dataset, tmp_path / "x-%d.tar", encode=encode, jobs=1)
    found = list(wds.WebDataset(urls, shardshuffle=False).decode("rgb8"))
    assert [sample["cls"] for sample in found] == [4, 5]
    assert (found[1]["png"] == images[1].numpy().transpose(1, 2, 0)).all()

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(pairs())

    options = {"fields": ("txt", "cls")}
    assert read(wds.write_shards(Stream(), tmp_path / "y-%d.tar", **options)) == WANTED


def test_an_image_folder_is_written_without_encoding_again(tmp_path):
    for n in range(6):
        path = tmp_path / "root" / f"c{n % 2}" / f"{n}.v1.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 40 * n, np.uint8)).save(path, quality=70)
    dataset = wds.ImageFolder(tmp_path / "root")
    urls = wds.write_shards(dataset, tmp_path / "x-%d.tar", maxcount=4, jobs=2)
    found = list(wds.WebDataset(urls, shardshuffle=False))
    assert [sample["jpg"] for sample in found] == [open(p, "rb").read() for p, _ in dataset.samples]  # noqa: SIM115
    assert [int(sample["cls"]) for sample in found] == dataset.targets


def test_a_wrong_item_names_its_number(tmp_path):
    with pytest.raises(SampleError, match="tuples of 2 values") as caught:
        wds.write_shards([*pairs(3), ("alone",)], tmp_path / "x-%d.tar", jobs=1)
    assert any("item" in note for note in caught.value.__notes__)


def test_wrong_arguments_are_refused(tmp_path):
    for options in ({"key": "same"}, {"maxcount": 0}):
        with pytest.raises(PipelineError):
            wds.write_shards(pairs(), tmp_path / "x-%d.tar", **options)
    with pytest.raises(PipelineError, match="shard's number"):
        wds.write_shards(pairs(), tmp_path / "x.tar")
    with pytest.raises(PipelineError, match="iterable"):
        wds.write_shards(7, tmp_path / "x-%d.tar")
    assert wds.write_shards([], tmp_path / "x-%d.tar") == []


PROGRAM = textwrap.dedent(
    """
    import os, signal, sys
    import penstock as wds

    class Rows:
        fingerprint = "rows"

        def __init__(self, die_at):
            self.die_at = die_at

        def __len__(self):
            return 60

        def __getitem__(self, n):
            if n == self.die_at:
                os.kill(os.getppid() if sys.argv[3] == "map" else os.getpid(), signal.SIGKILL)
                signal.pause()
            return (f"text {n}", n)

    rows = Rows(int(sys.argv[2]))
    dataset = rows if sys.argv[3] == "map" else (rows[n] for n in range(60))
    options = {"fields": ("txt", "cls"), "maxcount": 10, "jobs": 2}
    wds.write_shards(dataset, os.path.join(sys.argv[1], "x-%02d.tar"), **options)
    """
)


@pytest.mark.parametrize("kind", ["map", "iterable"])
def test_a_killed_call_run_again_gives_the_same_bytes(tmp_path, kind):
    def run(folder, die_at):
        folder.mkdir(exist_ok=True)
        command = [sys.executable, "-c", PROGRAM, str(folder), str(die_at), kind]
        return subprocess.run(command, check=False, env=dict(os.environ)).returncode

    assert run(tmp_path / "whole", -1) == 0
    for die_at in (35, 52):
        assert run(tmp_path / "killed", die_at) == -signal.SIGKILL
    assert 0 < len(digests(tmp_path / "killed")) < 6
    assert run(tmp_path / "killed", -1) == 0
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")
    assert len(Index.load(tmp_path / "killed" / "x.index.parquet")) == 60
    # The paused worker of a killed process may still hold its temporary file, which the next
    # writer removes.
    left = [name for name in os.listdir(tmp_path / "killed") if not name.endswith(".part")]
    assert sorted(left) == sorted(os.listdir(tmp_path / "whole"))


def test_shards_may_go_to_a_bucket(seaweed, no_keys, tmp_path, monkeypatch):
    from penstock.storage.auth.named_keys import use_keys

    monkeypatch.setenv("HOME", str(tmp_path))
    use_keys({"team": {"buckets": ["shards"], **seaweed.key()}})
    prefix = seaweed.fresh()
    options = {"fields": ("txt", "cls"), "maxcount": 10, "jobs": 2}
    urls = wds.write_shards(pairs(), f"{prefix}/x-%03d.tar", **options)
    assert urls == [f"{prefix}/x-{n:03d}.tar" for n in range(3)]
    assert read(urls) == WANTED
    assert len(wds.WebDataset(urls, index=True)) == 25


def test_broken_call_is_not_continued_with_another_dataset(tmp_path):
    pattern, options = tmp_path / "x-%02d.tar", {"fields": ("txt", "cls"), "maxcount": 2, "jobs": 1}
    rows = [("old", n) for n in range(10)]
    with pytest.raises(SampleError):
        wds.write_shards([*rows[:5], ("alone",), *rows[6:]], pattern, **options)
    with pytest.raises(PipelineError, match="planned differently: dataset changed"):
        wds.write_shards([("new", n) for n in range(10)], pattern, **options)
    wds.write_shards(rows, pattern, **options)
    shards = f"{tmp_path}/x-{{00..04}}.tar"
    assert {sample["txt"] for sample in wds.WebDataset(shards).decode()} == {"old"}


def test_shards_of_another_dataset_are_not_replaced(tmp_path):
    options = {"fields": ("txt", "cls"), "maxcount": 2, "jobs": 1}
    wds.write_shards([("old", n) for n in range(6)], tmp_path / "x-%02d.tar", **options)
    with pytest.raises(PipelineError, match="exists already"):
        wds.write_shards([("new", n) for n in range(3)], tmp_path / "x-%02d.tar", **options)


@pytest.mark.parametrize("kind", ["parallel", "in order"])
def test_shards_of_another_dataset_are_replaced_on_request(tmp_path, kind):
    options = {"fields": ("txt", "cls"), "maxcount": 2, "jobs": 1}
    options |= {} if kind == "parallel" else {"maxsize": 1e9}
    wds.write_shards([("old", n) for n in range(4)], tmp_path / "x-%02d.tar", **options)
    with pytest.raises((PipelineError, WriteError), match="exists already"):
        wds.write_shards([("new", n) for n in range(4)], tmp_path / "x-%02d.tar", **options)
    options["force"] = True
    urls = wds.write_shards([("new", n) for n in range(4)], tmp_path / "x-%02d.tar", **options)
    found = [sample["txt"] for sample in wds.WebDataset(urls, index=True).decode()]
    assert found == ["new"] * 4
