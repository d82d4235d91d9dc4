"""Batches in place on threads: they are made so, and share their memory with nothing else."""

from __future__ import annotations

import time

import numpy as np
import pytest

import penstock as wds
from penstock.memory import batch_buffers as blocks
from penstock.memory.output import empty

SIZE = 8


def made(sample):
    time.sleep(3e-4)
    row = empty((32, 400), "float32")
    row[:] = sample["cls"]
    return row, sample["cls"]


def twice(sample):
    return sample[0], sample[0], sample[1]


def part(sample):
    return sample[0], sample[0][:16], sample[1]


def turned(sample):
    return sample[0].T, sample[1]


def again(source):
    """Every eight samples once more."""
    kept = []
    for sample in source:
        kept.append(sample)
        if len(kept) == SIZE:
            yield from kept + kept
            kept = []


@pytest.fixture
def data(tmp_path):
    with wds.TarWriter(str(tmp_path / "numbers.tar")) as sink:
        for number in range(96):
            sink.write({"__key__": f"{number:04}", "cls": number})
    return wds.WebDataset(str(tmp_path / "numbers.tar"), shardshuffle=False).decode().map(made)


@pytest.fixture
def in_place(monkeypatch):
    found = []
    whole = blocks.whole

    def watched(values):
        block = whole(values)
        found.append(block is not None)
        return block

    monkeypatch.setattr(blocks, "whole", watched)
    return found


def loader(data, size=None):
    return wds.WebLoader(data, num_workers=2, batch_size=size, engine="threads")


def test_batches_of_a_stream_without_an_index_are_made_in_place(data, in_place):
    for _ in loader(data.batched(SIZE)):
        pass
    assert sum(in_place) >= 8


def test_batches_of_the_loader_are_made_in_place(data, in_place):
    for _ in loader(data, SIZE):
        pass
    assert sum(in_place) >= 8


@pytest.mark.parametrize("pair", [twice, part])
@pytest.mark.parametrize("size", [None, SIZE])
def test_an_array_that_stands_twice_in_a_sample_is_two_in_the_batch(data, pair, size):
    data = data.map(pair) if size else data.map(pair).batched(SIZE)
    for first, second, numbers in loader(data, size):
        first.fill_(-1)
        assert second[:, 0, 0].tolist() == numbers.tolist()


def test_samples_that_a_stage_gives_twice_are_not_changed_with_the_first_batch(data):
    for stages in (data.compose(again), data.compose(again).map(lambda sample: sample)):
        seen = []
        for first, numbers in loader(stages.batched(SIZE)):
            assert first[:, 0, 0].tolist() == numbers.tolist()
            first.fill_(-1)
            seen += numbers.tolist()
        assert len(seen) == 192


def test_all_batches_lie_in_memory_alike(data):
    for first, _ in loader(data.map(turned).batched(SIZE)):
        assert first.is_contiguous()
        assert first.shape == (SIZE, 400, 32)


def test_rows_that_are_kept_keep_what_they_hold(data):
    kept = []
    for first, numbers in loader(data.batched(SIZE)):
        kept.append((first[3, 2:5], int(numbers[3])))
        del first
    for first, _ in loader(data.batched(SIZE)):
        first.fill_(-1)
    assert all(np.all(row.numpy() == number) for row, number in kept)


@pytest.mark.parametrize("engine_threads", [0, 3])
def test_a_transform_that_keeps_copies_gives_them_unchanged_again(engine_threads):
    kept = {}

    def remembered(n):
        if n % 64 not in kept:
            time.sleep(5e-4)
            made = empty((32, 32, 3), "float32")
            made[:] = n % 64 + 1
            kept[n % 64] = made.copy()
        return kept[n % 64], n

    data = wds.DataPipeline(range(256)).map(remembered).batched(16)
    for pixels, numbers in wds.WebLoader(
        data, num_workers=engine_threads, batch_size=None, engine="threads"
    ):
        assert pixels[:, 0, 0, 0].tolist() == (numbers % 64 + 1).tolist()
        pixels.zero_()  # the loop may do with its batch as it likes
    assert all((value == number + 1).all() for number, value in kept.items())


def test_batches_of_lanes_are_made_in_place(tmp_path, in_place):
    pattern = str(tmp_path / "n-%d.tar")
    with wds.ShardWriter(pattern, maxcount=60, verbose=0, index=True) as sink:
        for number in range(480):
            sink.write({"__key__": f"{number:04}", "cls": number})
    urls = str(tmp_path / "n-{0..7}.tar")
    data = wds.WebDataset(urls, index=True, shardshuffle=8, seed=1, lanes=4).decode().map(made)
    loader = wds.WebLoader(data.batched(SIZE), num_workers=2, batch_size=None, engine="threads")
    for rows, numbers in loader:
        assert (rows == numbers[:, None, None]).all()
    # not the first ones: their rows' shape is not known yet
    assert sum(in_place) > len(in_place) * 3 // 4


@pytest.mark.parametrize("size", [2, 3, 4])
def test_batches_behind_a_filter_stay_as_they_are(tmp_path, size):
    with wds.TarWriter(str(tmp_path / "numbers.tar")) as sink:
        for number in range(300):
            sink.write({"__key__": f"{number:04}", "cls": number})
    chosen = np.random.default_rng(size).random(300) < 0.5
    data = wds.WebDataset(str(tmp_path / "numbers.tar"), shardshuffle=False).decode()
    data = data.select(lambda sample: chosen[sample["cls"]]).map(made).batched(size)
    loader = wds.WebLoader(data, num_workers=3, batch_size=None, engine="threads")
    for rows, numbers in list(loader):
        assert (rows == numbers[:, None, None]).all()
