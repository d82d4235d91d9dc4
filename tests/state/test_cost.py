"""Going on costs as much at the end of an epoch as at its beginning, and the state stays small."""

from __future__ import annotations

import json
import os
import tarfile

import pytest
from numbered import number

import penstock as wds
from penstock.shards.index import open_index

SHARDS, EACH, BATCH = 25, 4000, 100
SAMPLE_BYTES = 1024
PLACES = (0.01, 0.5, 0.99)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A hundred thousand samples: a header and a block of data each."""
    folder = tmp_path_factory.mktemp("large")
    urls = []
    for shard in range(SHARDS):
        blocks = []
        for n in range(shard * EACH, (shard + 1) * EACH):
            member = tarfile.TarInfo(f"{n:07d}.cls")
            data = b"%d" % n
            member.size = len(data)
            blocks += [member.tobuf(tarfile.USTAR_FORMAT), data.ljust(512, b"\0")]
        urls.append(str(folder / f"d{shard:03d}.tar"))
        with open(urls[-1], "wb") as file:
            file.write(b"".join(blocks) + bytes(1024))
    open_index(urls, True)
    return urls


class Meter:
    """Counts what is read and decoded."""

    def __init__(self):
        self.read_bytes = self.decoded = 0
        self.pread = os.pread

    def __call__(self, descriptor, size, offset):
        data = self.pread(descriptor, size, offset)
        self.read_bytes += len(data)
        return data

    def decode(self, sample):
        self.decoded += 1
        return number(sample)


def in_order(urls, meter):
    data = wds.WebDataset(urls, index=True, shardshuffle=8).map(meter.decode)
    return data.listed(BATCH)


def buffered(urls, meter):
    data = wds.WebDataset(urls, index=True, shardshuffle=8).map(meter.decode)
    return data.shuffle(1000).listed(BATCH)


def streamed(urls, meter):
    data = wds.WebDataset(urls, shardshuffle=25).map(meter.decode)
    return data.shuffle(1000).listed(BATCH)


def mixed(urls, meter):
    half = SHARDS // 2
    parts = [
        wds.WebDataset(part, index=True, shardshuffle=8) for part in (urls[:half], urls[half:])
    ]
    mix = wds.DataPipeline(wds.RandomMix(parts, longest=True), wds.map(meter.decode))
    return mix.listed(BATCH)


# Samples that the first batch may cost: its own, and for each one taken from a buffer the one or
# two that are put there instead. Streaming reads by windows: one per sample that is made again.
MOST = {in_order: BATCH, buffered: 3 * BATCH, streamed: 3 * BATCH, mixed: BATCH}
MOST_BYTES = {streamed: 3 * BATCH * 5000 + (300 << 10)}


@pytest.mark.parametrize("lanes", [None, 16])
@pytest.mark.parametrize("make", MOST)
def test_going_on_costs_the_same_anywhere(large, make, lanes, monkeypatch):
    steps = SHARDS * EACH // BATCH
    stops = [int(place * steps) for place in PLACES]
    whole = make(large, Meter())
    whole.lanes = lanes
    states = {}
    for step, _ in enumerate(whole, start=1):
        if step in stops:
            states[step] = json.dumps(whole.state_dict())
    costs = []
    for stop in stops:
        meter = Meter()
        monkeypatch.setattr(os, "pread", meter)
        data = make(large, meter)
        data.lanes = lanes
        data.load_state_dict(json.loads(states[stop]))
        next(iter(data))
        monkeypatch.undo()
        costs.append((meter.decoded, meter.read_bytes))
    decoded, read_bytes = zip(*costs)
    assert max(decoded) - min(decoded) <= BATCH, costs
    assert max(decoded) <= MOST[make], costs
    most_bytes = MOST_BYTES.get(make, MOST[make] * SAMPLE_BYTES)
    assert max(read_bytes) <= most_bytes, costs
    if make is not streamed:
        assert max(read_bytes) - min(read_bytes) <= BATCH * SAMPLE_BYTES, costs


@pytest.mark.parametrize("make", [buffered, streamed, mixed])
def test_the_state_of_64_lanes_with_a_buffer_of_a_thousand_is_small(large, make):
    data = make(large, Meter())
    data.lanes = 64
    sizes = []
    for step, _ in enumerate(data):
        if step in (0, 20, 300, 900):
            state = data.state_dict()
            assert state["lanes"] == 64
            sizes.append(len(json.dumps(state)))
    assert max(sizes) <= 64 << 10


def repeated(urls, size):
    return wds.WebDataset(urls, shardshuffle=25).map(number).repeat(3).shuffle(size)


def expanded(urls, size):
    samples = wds.WebDataset(urls, shardshuffle=25).map(number).listed(2).map(list)
    return wds.DataPipeline(samples.unlisted(), wds.shuffle(size))


LARGE_BUFFERS = {
    "indexed": lambda urls, size: wds.WebDataset(urls, index=True).map(number).shuffle(size),
    "streamed": lambda urls, size: wds.WebDataset(urls).map(number).shuffle(size),
    "repeated": repeated,
    "expanded": expanded,
    "mixed": lambda urls, size: wds.DataPipeline(
        wds.RandomMix([wds.WebDataset(urls[:12]), wds.WebDataset(urls[12:])]),
        wds.map(number),
        wds.shuffle(size),
    ),
}


@pytest.mark.parametrize("kind", LARGE_BUFFERS)
def test_the_state_of_a_buffer_of_ten_thousand_is_small_and_resumes(large, kind):
    make = LARGE_BUFFERS[kind]
    first = make(large, 10_000)
    stream = iter(first)
    for _ in range(12_000):
        next(stream)
    saved = json.dumps(first.state_dict())
    assert len(saved) <= 64 << 10
    second = make(large, 10_000)
    second.load_state_dict(json.loads(saved))
    resumed = iter(second)
    assert [next(resumed) for _ in range(300)] == [next(stream) for _ in range(300)]
