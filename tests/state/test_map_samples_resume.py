"""Pipelines over map-style datasets resume exactly, on 1, 2 and 3 ranks, and move between them."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from numbered import write_shards
from PIL import Image

import penstock as wds
from penstock.testing import assert_resumes

COUNT = 42


@pytest.fixture
def root(tmp_path):
    for number in range(COUNT):
        path = tmp_path / "root" / f"c{number % 3}" / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4), (number, 0, 0)).save(path)
    return tmp_path / "root"


def number(sample):
    return int(sample["__key__"].rpartition("/")[2])


def make(root, **options):
    options = {"shuffle": True, "seed": 3, **options}
    return wds.ImageFolder(root).pipeline(raw=True, **options).map(number).shuffle(5)


@pytest.mark.parametrize("world", [1, 2, 3])
def test_an_image_folder_resumes_on_every_rank(root, monkeypatch, world):
    monkeypatch.setenv("WORLD_SIZE", str(world))
    seen = []
    for rank in range(world):
        monkeypatch.setenv("RANK", str(rank))
        assert_resumes(lambda: make(root, lanes=6, ends="exact"), every=3)
        seen += make(root, lanes=6, ends="exact")
    assert sorted(seen) == list(range(COUNT))


def test_an_image_folder_moves_to_other_numbers_of_ranks(root, monkeypatch):
    seen, states = [], None
    for world, steps in ((1, 4), (3, 3), (2, 5), (3, None)):
        saved = []
        monkeypatch.setenv("WORLD_SIZE", str(world))
        for rank in range(world):
            monkeypatch.setenv("RANK", str(rank))
            pipeline = make(root, lanes=6, ends="exact")
            if states is not None:
                pipeline.load_state_dict(states)
            seen += islice(iter(pipeline), steps)
            saved.append(json.loads(json.dumps(pipeline.state_dict())))
        states = saved
    assert sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize(("ends", "each"), [("drop", 20), ("pad", 21)])
def test_ranks_get_equally_many_items(root, monkeypatch, ends, each):
    monkeypatch.setenv("WORLD_SIZE", "2")
    marked = 0
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        pipeline = wds.ImageFolder(root).pipeline(raw=True, ends=ends).batched(4, None)
        samples = [sample for batch in pipeline for sample in batch]
        assert len(samples) == each
        marked += sum(sample.get("__pad__", False) for sample in samples)
    assert marked == max(2 * each - COUNT, 0)


def test_a_view_of_indexed_shards_resumes(tmp_path):
    urls = write_shards(tmp_path, 3, 10)
    dataset = wds.IndexedDataset(urls).decode()[::2]
    pipeline = dataset.pipeline(shuffle=True, seed=1).map(lambda sample: sample["cls"])
    assert sorted(pipeline) == list(range(0, 30, 2))
    assert_resumes(lambda: wds.IndexedDataset(urls)[::2].pipeline(shuffle=True).shuffle(4), every=2)
    raw = list(dataset.pipeline(raw=True))
    assert raw[1]["cls"] == b"2"
