"""A loader on threads: how much memory it takes, and that it takes no more in time."""

from __future__ import annotations

import gc
import os
import threading
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch  # noqa: F401 - loaded before anything is traced

import penstock as wds
from penstock.engine.executor import Engine
from penstock.memory import batch_buffers as blocks
from penstock.memory.batch_buffers import Store, whole
from penstock.memory.output import empty

MEGABYTE = 1 << 20


@pytest.fixture
def traced():
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.fixture
def held(monkeypatch):
    """The most memory that a store had, after each time it was asked for some; in bytes."""
    found, flat = [0], Store.flat

    def watched(self, *arguments):
        memory = flat(self, *arguments)
        found.append(max(found[-1], self.held_bytes))
        return memory

    monkeypatch.setattr(Store, "flat", watched)
    return found


def photograph(n):
    time.sleep(2e-4)
    return np.full(MEGABYTE, n % 200, np.uint8), n


def in_place(n):
    time.sleep(2e-4)
    out = empty((16_000,), "uint8")
    out[:] = n % 200
    return out, n


def loader(items, work, size, **options):
    data = wds.DataPipeline(range(items)).map(work).batched(size)
    return wds.WebLoader(data, num_workers=3, batch_size=None, engine="threads", **options)


@pytest.mark.parametrize("most", [24, 48])
def test_a_loop_that_is_slow_does_not_let_more_pile_up_than_allowed(traced, most, monkeypatch):
    monkeypatch.setattr(blocks, "system_memory", lambda size: np.empty(size, np.uint8))  # traced
    made = loader(150, photograph, 4, max_memory=most * MEGABYTE, prefetch_factor=50)
    before = tracemalloc.get_traced_memory()[0]
    for step, (_, numbers) in enumerate(made):
        assert len(numbers) in (4, 2)
        time.sleep(0.01 if step < 12 else 0)
    peak = tracemalloc.get_traced_memory()[1] - before
    assert peak < (most + 8) * MEGABYTE  # what the loop holds, and one item for each thread


def test_one_batch_larger_than_allowed_still_comes():
    made = loader(16, photograph, 8, max_memory="1MB")
    assert [len(numbers) for _, numbers in made] == [8, 8]


def resident_bytes():
    statm = Path("/proc/self/statm")
    if not statm.exists():
        pytest.skip("this system has no /proc, which tells the memory in use")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_memory_stays_flat_over_twenty_epochs(traced):
    made = loader(48, in_place, 8)
    for epoch in range(20):
        for pixels, numbers in made:
            assert pixels[:, 0].tolist() == numbers.tolist()
        del pixels, numbers
        if epoch == 4:
            gc.collect()
            before, resident = tracemalloc.get_traced_memory()[0], resident_bytes()
            held = made.loader.store.held_bytes
    gc.collect()
    assert made.loader.store.held_bytes <= held + 128_000  # one more block, if a thread was slow
    assert tracemalloc.get_traced_memory()[0] - before < 500_000  # a few blocks
    assert resident_bytes() - resident < 8 * MEGABYTE


def test_batches_are_made_in_the_same_memory_again():
    addresses = [pixels.data_ptr() for pixels, _ in loader(800, in_place, 8)]
    # Of a hundred batches: thirty-two samples ahead, two that wait, one made, one in the loop.
    assert len(set(addresses)) <= 4 + 2 + 1 + 1 + 4


def test_batches_that_are_kept_keep_what_they_hold():
    kept = list(loader(160, in_place, 8))
    assert len({pixels.data_ptr() for pixels, _ in kept}) == 20
    for pixels, numbers in kept:
        assert pixels.amin(1).tolist() == pixels.amax(1).tolist() == numbers.tolist()


ROW, BATCH, BATCHES = 16_000, 64, 8
BLOCK = ROW * BATCH


def numbered(events):
    """Makes samples; from the ninth of a batch on, once the loop has the batch before."""

    def work(n):
        time.sleep(5e-3)  # long enough for a chunk to be one sample
        batch, place = divmod(n, BATCH)
        if batch > 1 and place >= 8:
            events[batch - 1].wait(20)
        out = empty((ROW,), "uint8")
        out[:] = n % 200
        return out, n

    return work


def test_two_blocks_are_enough_for_a_loop_that_waits_for_data(held):
    events = [threading.Event() for _ in range(BATCHES)]
    made = loader(BATCH * BATCHES, numbered(events), BATCH)
    for step, (pixels, numbers) in enumerate(made):
        assert pixels[:, -1].tolist() == (numbers % 200).tolist()
        events[step].set()
    assert step == BATCHES - 1
    # Beside them, rows that wait for a block to come back: at most nine, and one of each thread.
    assert 2 * BLOCK <= held[-1] <= 2 * BLOCK + 12 * ROW


def test_a_block_is_found_when_its_first_and_last_samples_are_elsewhere():
    flat = Store().flat(BLOCK, ROW, np.dtype("uint8"))
    flat[:] = 7
    rows = list(flat.reshape(BATCH, ROW))
    for number in [*range(9), BATCH - 2, BATCH - 1]:
        rows[number] = np.full(ROW, 8, np.uint8)
    batch = whole(rows)
    assert batch is not None
    assert np.shares_memory(batch, flat)
    assert batch[:, 0].tolist() == [row[0] for row in rows]


@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_loop_that_is_slow_has_no_more_blocks_than_batches_wait(held, prefetch):
    made = loader(BATCH * BATCHES, in_place, BATCH, prefetch_factor=prefetch)
    for _ in made:
        time.sleep(0.02)
    # In the loop, waiting, being made, and one into which samples ahead go.
    assert held[-1] <= (1 + prefetch + 2) * BLOCK + BATCH // 4 * ROW


def test_a_chunk_has_no_more_items_than_there_is_memory_for():
    engine = Engine(2, batch_size=64, budget_bytes=100)
    engine.item_bytes, engine.in_flight, engine.queued_bytes, engine.batch_bytes = 5.0, 4, 20, 10
    assert engine.spare == 6
    assert not engine.full
    engine.in_flight = 20
    assert engine.spare == 0
    assert engine.full
