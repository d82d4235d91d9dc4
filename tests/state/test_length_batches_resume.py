"""Buckets and packing, stopped after any batch, go on as if they had not been."""

from __future__ import annotations

import functools

import pytest
from numbered import number

import penstock as wds
from penstock.testing import assert_resumes

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes in total")
SIZES = {"target_batch_numel": 30, "max_batch_numel": 40}


def measured(sample):
    n = number(sample)
    return {"__key__": sample["__key__"], "n": n, "length": 1 + n * 7 % 13}


def streaming(urls, **options):
    return wds.WebDataset(urls, shardshuffle=3, empty_check=False, **options).map(measured)


def indexed(urls, **options):
    return wds.WebDataset(urls, index=True, shardshuffle=2, **options).map(measured)


def buckets(data, **options):
    sizes = {"len_key": "length", "len_fn": None, "buffersize": 9, "collate_fn": None}
    return data.then(wds.dynamic_bucketed_batch, **{**sizes, "sampler_kwargs": SIZES, **options})


def tokens(sample):
    return {**sample, "x": [sample["n"]] * sample["length"]}


def rows(data, **options):
    return data.map(tokens).then(wds.packed, 20, "x", buffer=7, **options)


def later(sample):
    """A sample that turns out longer than it was said to be."""
    return {**sample, "x": [0] * (sample["length"] * (1 + sample["n"] % 3))}


def real_length(sample):
    return len(sample["x"])


def longest_first(databuffer):
    import random

    return random.sample(range(len(databuffer)), min(3, len(databuffer)))


WAYS = {
    "buckets": buckets,
    "hurried": lambda data: buckets(data, max_wait=5),
    "dropping": lambda data: buckets(data, drop_end=True),
    "parts": lambda data: buckets(data, prepare=later, prepared_len=real_length),
    "own sampler": lambda data: buckets(data, sampler_fn=longest_first, sampler_kwargs={}),
    "partial": lambda data: data.compose(
        functools.partial(
            wds.dynamic_bucketed_batch,
            len_key="length",
            len_fn=None,
            buffersize=9,
            collate_fn=None,
            sampler_kwargs=SIZES,
        )
    ).shuffle(3),
    "taken apart": lambda data: buckets(data).unlisted().shuffle(4).listed(3),
    "packed": rows,
    "first fit": lambda data: rows(data, fit="first"),
    "split": lambda data: data.map(tokens).packed(5, "x", buffer=7, over="split").shuffle(2),
    "cut": lambda data: data.map(tokens).packed(5, "x", buffer=7, over="cut").shuffle(2),
    "rows in batches": lambda data: rows(data).batched(2, collation_fn=wds.stack_rows),
    "repeated": lambda data: buckets(data.repeat(2)),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("make", [streaming, indexed])
def test_batches_by_length_go_on_after_every_one(urls, make, way):
    assert assert_resumes(lambda: WAYS[way](make(urls))) < 20_000


@pytest.mark.parametrize("way", ["buckets", "parts", "packed", "split"])
def test_they_go_on_in_lanes(urls, way):
    assert_resumes(lambda: WAYS[way](indexed(urls, lanes=4)))


@pytest.mark.parametrize("way", ["buckets", "parts", "packed", "first fit"])
@pytest.mark.parametrize("workers", [0, 2])
def test_they_go_on_through_a_loader_and_its_workers(urls, way, workers):
    def make():
        context = "fork" if workers else None
        return wds.WebLoader(
            WAYS[way](indexed(urls, lanes=4)),
            batch_size=None,
            num_workers=workers,
            multiprocessing_context=context,
        )

    assert_resumes(make, every=1 if workers == 0 else 4)


@pytest.mark.parametrize("way", ["buckets", "packed"])
def test_another_number_of_ranks_goes_on_and_nothing_is_lost(urls, way, monkeypatch):
    def at(rank, ranks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        return WAYS[way](indexed(urls, lanes=4, ends="exact"))

    def numbers(batch):
        return batch["n"] if isinstance(batch, dict) else [sample["n"] for sample in batch]

    seen, states = [], []
    for rank in range(4):
        pipeline = at(rank, 4)
        stream = iter(pipeline)
        seen += numbers(next(stream))
        states.append(pipeline.state_dict())
    for rank in range(2):
        pipeline = at(rank, 2)
        pipeline.load_state_dict(states)
        for batch in pipeline:
            seen += numbers(batch)
    assert sorted(seen) == list(range(24))


def test_a_state_names_samples_and_holds_none(urls):
    big = lambda sample: {**sample, "x": b"pixels" * 10_000}  # noqa: E731
    size_bytes = assert_resumes(lambda: buckets(indexed(urls).map(big)))
    assert size_bytes < 10_000
