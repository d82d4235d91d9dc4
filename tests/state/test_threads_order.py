"""A loader on threads: the order is the one without threads, whatever they do."""

from __future__ import annotations

import random
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numbered import copies, noisy, number, pair

import penstock as wds
from penstock.engine import executor as pool
from penstock.engine import item_cost as pace

pytestmark = pytest.mark.usefixtures("pool_gets_every_item")


def uneven(n):
    time.sleep(random.random() * 1e-3)
    return n


def numbers(loader):
    return [batch[0].tolist() for batch in loader]


def plain(urls, lanes, size):
    data = wds.WebDataset(urls, index=True, shardshuffle=2, seed=3, lanes=lanes)
    return data.map(number).map(noisy, rng=True).map(uneven).map(pair).batched(size)


def on_threads(data, threads, **options):
    return wds.WebLoader(data, num_workers=threads, batch_size=None, engine="threads", **options)


@pytest.mark.parametrize("lanes", [None, 1, 4])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_any_number_of_threads_gives_the_same_batches(urls, lanes, threads):
    expected = numbers(on_threads(plain(urls, lanes, 3), 0))
    assert numbers(on_threads(plain(urls, lanes, 3), threads)) == expected
    assert len(expected) == 8


def test_worker_processes_with_lanes_give_the_same_batches_as_threads(urls):
    data = plain(urls, 4, 3)
    processes = wds.WebLoader(data, num_workers=2, batch_size=None, multiprocessing_context="fork")
    assert numbers(processes) == numbers(on_threads(plain(urls, 4, 3), 3))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_streaming_shuffled_data_set_comes_in_its_order(urls, threads):
    def make():
        data = wds.WebDataset(urls, shardshuffle=4, seed=1).shuffle(7).decode()
        return data.map(uneven).to_tuple("cls", "txt").batched(4)

    assert numbers(on_threads(make(), threads)) == numbers(make().map(tensors))


def tensors(batch):
    return batch


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    threads=st.integers(1, 6),
    ahead=st.integers(1, 40),
    chunk=st.integers(1, 9),
    items=st.integers(0, 60),
    size=st.integers(1, 9),
    dropped=st.sets(st.integers(0, 59), max_size=20),
    failing=st.sets(st.integers(0, 59), max_size=5),
)
def test_drops_failures_and_expansions_leave_the_rest_in_order(
    monkeypatch, threads, ahead, chunk, items, size, dropped, failing
):
    def some(n):
        if n in failing:
            raise ValueError(n)
        return None if n in dropped else n

    def make():
        data = wds.DataPipeline(range(items)).map(some, handler=wds.ignore_and_continue)
        return data.compose(copies(3)).map(uneven).shuffle(4).map(plus).listed(size)

    def plus(n):
        return n + 1

    monkeypatch.setattr(pool, "LOOK_AHEAD", ahead)
    monkeypatch.setattr(pace, "CHUNK_ITEMS", chunk)
    data = make()
    assert list(on_threads(data, threads)) == list(make())
    skipped = data.skipped.get("map", 0)
    assert skipped == len({n for n in failing if n < items})


def test_items_are_worked_on_by_several_threads_at_a_time():
    at_work, most, lock = 0, 0, threading.Lock()

    def count(n):
        nonlocal at_work, most
        with lock:
            at_work += 1
            most = max(most, at_work)
        time.sleep(2e-3)
        with lock:
            at_work -= 1
        return n

    assert list(on_threads(wds.DataPipeline(range(60)).map(count), 4)) == list(range(60))
    assert 2 <= most <= 4


def test_no_more_is_taken_ahead_than_allowed():
    taken = []

    def source():
        for n in range(1000):
            taken.append(n)
            yield n

    stream = iter(on_threads(wds.DataPipeline(source).map(uneven), 2, prefetch_factor=2))
    for _ in range(5):
        next(stream)
    time.sleep(0.1)
    assert len(taken) <= 5 + 2 + 1 + 64
    stream.close()


def test_items_of_a_source_that_waits_come_in_their_order():
    def source():
        yield from range(5)
        time.sleep(0.2)  # items that are ready wait, too: they are taken by the thread that reads
        yield 5

    stream = iter(on_threads(wds.DataPipeline(source).map(uneven), 2))
    assert list(stream) == [0, 1, 2, 3, 4, 5]


def test_epochs_follow_each_other_with_orders_of_their_own(urls):
    loader, data = on_threads(plain(urls, None, 3), 3), plain(urls, None, 3)
    epochs = [numbers(loader) for _ in range(3)]
    assert epochs == [[batch[0].tolist() for batch in data] for _ in range(3)]
    assert epochs[0] != epochs[1]


def test_a_fixed_epoch_length_cuts_and_begins_again(urls):
    def make():
        data = wds.WebDataset(urls, index=True, shardshuffle=2, seed=3).map(number).map(uneven)
        return data.with_epoch(40)

    assert list(on_threads(make(), 3)) == list(make())


def test_two_sources_mixed_come_in_their_order(urls, others):
    def make():
        one, two = (
            wds.WebDataset(found, index=True, shardshuffle=2, seed=2).map(number).map(uneven)
            for found in (urls, others)
        )
        return wds.DataPipeline(wds.RandomMix([one, two], seed=1)).map(uneven)

    assert list(on_threads(make(), 3)) == list(make())


def test_global_generators_keep_to_the_training_loop(urls):
    def drawn(n):
        return n + random.random()

    def make():
        data = wds.WebDataset(urls, index=True, seed=3).map(number)
        return data.map(drawn, rng="global")

    where = set()

    def seen(n):
        where.add(threading.current_thread())
        return n

    with pytest.warns(UserWarning, match="generators of the whole process"):
        found = list(on_threads(make().map(seen), 3))
    assert found == list(make())
    assert where == {threading.current_thread()}


def test_batches_taken_apart_and_put_together_come_in_order(urls):
    def make():
        data = wds.WebDataset(urls, index=True, seed=3).map(number).map(pair).batched(5)
        return data.unbatched().map(uneven).batched(4)

    assert numbers(on_threads(make(), 2)) == numbers(make())
