"""Threads that meet: nothing is lost, counted twice or mixed up, with an interpreter lock or not.

On a Python with the lock, threads change places as often as it can; on a free-threaded one they
run at the same time, and most of these would fail if something was guarded by the lock alone.
"""

from __future__ import annotations

import gc
import itertools
import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import penstock as wds
from penstock.context import SharedCounts
from penstock.loaders.device.device_copy import DeviceIdle
from penstock.loaders.measuring import has_gil, measure
from penstock.loaders.stats.recorder import StatsRecorder
from penstock.memory.batch_buffers import STEADY, Blocks, Store, whole
from penstock.memory.output import empty
from penstock.shards.index import open_index
from penstock.shards.index.random_access import SampleReader, _OpenShard
from penstock.shards.lazy_bytes import ShardFile
from penstock.storage.readers.read_ahead import ReadAhead
from penstock.storage.urls import expand_urls
from waiting import wait_until

SAMPLES, SHARDS, BATCH = 240, 6, 16
LARGE = 24_000  # bytes: read later, on the thread that needs them
BROKEN = 7  # every so many samples cannot be decoded


@pytest.fixture(autouse=True)
def _threads_take_turns_often():
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("races")
    pattern = os.path.join(folder, "n-%03d.tar")
    with wds.ShardWriter(pattern, maxcount=SAMPLES // SHARDS, verbose=0, index=True) as writer:
        for number in range(SAMPLES):
            data = number.to_bytes(2, "big") * (LARGE // 2)
            writer.write({"__key__": f"{number:05d}", "bin": data, "cls": number})
    return os.path.join(folder, f"n-{{000..{SHARDS - 1:03d}}}.tar")


def together(*functions):
    """Run the functions at once, each on a thread; what one raises is raised here."""
    errors = []
    start = threading.Barrier(len(functions))

    def run(function):
        try:
            start.wait()
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(one,), daemon=True) for one in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    if errors:
        raise errors[0]


def pixels(sample):
    data, number = sample
    if number % BROKEN == 3:
        raise ValueError("broken")
    out = empty((LARGE // 4,), "float32")
    out[:] = np.frombuffer(data, "uint8")[: LARGE // 4]
    out *= 2
    return out, number


def pipeline(urls, index):
    options = {"index": True, "shardshuffle": 3, "lanes": 4} if index else {"shardshuffle": False}
    data = wds.WebDataset(urls, seed=5, **options).shuffle(20).decode()
    data = data.to_tuple("bin", "cls").map(pixels, handler=wds.ignore_and_continue)
    return data.batched(BATCH)


def rows(batches):
    return [(np.asarray(x).tobytes(), np.asarray(n).tolist()) for x, n in batches]


def open_shards():
    gc.collect()
    return len(_OpenShard.open_files) + len(ShardFile.open_files)


@pytest.mark.parametrize("index", [False, True])
def test_batches_counts_and_files_are_those_of_the_plain_pipeline(numbered, index):
    opened = open_shards()
    plain = pipeline(numbered, index)
    expected = [rows(plain) for _ in range(3)]
    assert sum(len(n) for _, n in expected[0]) == SAMPLES - sum(
        number % BROKEN == 3 for number in range(SAMPLES)
    )
    data = pipeline(numbered, index)
    loader = wds.WebLoader(data, num_workers=6, batch_size=None, engine="threads")
    for epoch, batches in enumerate(expected):
        kept, seen = [], []
        for number, batch in enumerate(loader):
            seen += rows([batch])
            if number % 3 == 0:
                kept.append((number, batch))  # others' memory is used again meanwhile
            del batch
        assert seen == batches
        assert [rows([own])[0] for _, own in kept] == [batches[n] for n, _ in kept]
        stats = loader.stats()
        assert stats.samples == SAMPLES
        assert stats.batches == len(batches)
        assert {stage.items for stage in stats.stages} == {SAMPLES}
        skipped = sum(number % BROKEN == 3 for number in range(SAMPLES))
        assert sum(stats.skipped.values()) == (epoch + 1) * skipped
    del loader, data, plain, kept
    # Threads that are just ending close the last ones.
    wait_until(lambda: open_shards() <= opened, "all shards are closed")


def test_loaders_on_threads_of_ones_own_do_not_meet(numbered):
    expected = rows(pipeline(numbered, True))
    data = pipeline(numbered, True)
    results = [None] * 3

    def run(place):
        own = data.compose()  # the stages themselves are shared
        loader = wds.WebLoader(own, num_workers=2, batch_size=None, engine="threads")
        results[place] = rows(loader)

    together(*(lambda place=place: run(place) for place in range(3)))
    assert results == [expected] * 3


def at_work():
    return [thread for thread in threading.enumerate() if thread.name == "penstock-loader"]


def test_an_epoch_that_was_left_does_not_count_in_the_next():
    taken, reached, gate = threading.Event(), threading.Event(), threading.Event()
    begun = []

    def source():
        begun.append(1)
        first = len(begun) == 1
        for number in itertools.count() if first else range(SAMPLES):
            if first and taken.is_set():
                reached.set()
                gate.wait(60)
            yield number

    def slow(number):
        time.sleep(5e-4)
        return number

    data = wds.DataPipeline(source).map(slow).batched(10, collation_fn=list)
    loader = wds.WebLoader(
        data, num_workers=2, batch_size=None, engine="threads", prefetch_factor=50
    )
    left = iter(loader)
    next(left)
    (old,) = at_work()
    taken.set()
    while not reached.wait(5):
        next(left)  # the queue was full
    left.close()
    stream = iter(loader)
    next(stream)
    gate.set()  # now the thread of the first epoch goes on, and sees that nobody wants it
    old.join(60)
    assert len(list(stream)) == SAMPLES // 10 - 1
    assert loader.stats().samples == SAMPLES


def test_statistics_can_be_asked_for_by_other_threads_at_any_time(tmp_path, monkeypatch):
    monkeypatch.setattr("penstock.loaders.stats.exporters.json.dump", lambda *_: None)  # takes long
    gauge, over, pieces = StatsRecorder(), threading.Event(), itertools.count()

    class Work:
        seconds, at_work, waited_seconds, begin, times, tickets = 1e-6, 1e-6, 0.0, 0.0, [], [0]

    class Rows:
        runs = ()

    def works():
        while not over.is_set():
            work = Work()
            work.thread = next(pieces) % 300
            gauge.worked(Rows, work)
            gauge.last_steps.append((1e-3, 1e-3))

    def asks():
        try:
            for _ in range(60):
                stats = gauge.stats("threads", 2)
                stats.to_prometheus()
                stats.to_trace(tmp_path / "trace.json")
        finally:
            over.set()

    together(works, asks)
    assert len(gauge.threads_seen) == min(next(pieces), 300)


def test_counts_of_several_threads_are_all_there():
    counts = SharedCounts(2)

    def count():
        for _ in range(20_000):
            counts.add(1)

    together(*[count] * 4)
    assert counts.total(1) == 80_000


def test_shards_that_several_threads_open_and_drop_are_counted(numbered):
    before = open_shards()
    reader = SampleReader(open_index(expand_urls(numbered), True), max_open=1)
    each = SAMPLES // SHARDS

    def read(place):
        for number in range(600):
            row = (number + place) % SHARDS * each
            assert reader.read(row)["__key__"] == f"{row:05d}"

    together(*(lambda place=place: read(place) for place in range(4)))
    reader.close()
    assert open_shards() == before


class SlowStore(Store):
    """Takes its time, so that threads meet there."""

    def flat(self, *asked):
        time.sleep(1e-3)
        return super().flat(*asked)


def test_rows_that_several_threads_ask_for_are_one_block_a_batch():
    size, batches, shape, kind = 4, 150, (20_000,), np.dtype("uint8")
    blocks = Blocks(SlowStore(), size)
    for number in range(STEADY):  # by then it is known that samples are alike
        assert blocks.place(1, number, 0, shape, kind) is None
    made = [[None] * size for _ in range(batches)]
    start = threading.Barrier(size)

    def fill(slot):
        for batch in range(2, batches):
            start.wait(60)
            row = made[batch][slot] = blocks.place(1, batch * size + slot, 0, shape, kind)
            row[:] = batch

    together(*(lambda slot=slot: fill(slot) for slot in range(size)))
    for batch in range(2, batches):
        found = whole(made[batch])
        assert found is not None
        assert (found == batch).all()


class Mark:
    """A moment on a device's clock, passed at once."""

    def __init__(self, at_ms):
        self.at_ms = at_ms

    def query(self):
        return True

    def elapsed_time(self, other):
        return other.at_ms - self.at_ms


def test_waits_are_counted_once_whoever_asks():
    waits, over = DeviceIdle(), threading.Event()

    def trains():
        try:
            for step in range(20_000):
                waits.between(Mark(step), Mark(step + 0.5))
        finally:
            over.set()

    def asks():
        while not over.is_set():
            assert waits.seconds >= 0

    together(trains, asks, asks)
    assert waits.seconds == pytest.approx(10.0)


class Memory:
    """A source in memory, so that fetching threads are as fast as possible."""

    def __init__(self, data):
        self.data, self.size = data, len(data)

    def fill(self, offset, view, report, *, response=None, stop=None):
        for at in range(0, len(view), 64):
            piece = self.data[offset + at : offset + min(at + 64, len(view))]
            view[at : at + len(piece)] = piece
            report(at + len(piece))


def test_a_reader_is_always_woken_for_the_bytes_it_waits_for():
    data = np.random.default_rng(1).bytes(60_000)

    def read():
        for _ in range(6):
            window = ReadAhead(Memory(data), 0, ahead_bytes=4096, part_bytes=256, connections=3)
            got = bytearray()
            while len(got) < len(data):
                got += window.read(len(got), 300)
            assert got == data

    together(read, read)


def test_an_engine_for_free_threads_is_not_measured(monkeypatch):
    def heavy(number):
        return sum(i * i for i in range(20_000)) + number

    def source():
        yield from range(50)

    monkeypatch.setattr("penstock.loaders.measuring.cores", lambda: 2)
    monkeypatch.setattr("penstock.loaders.measuring.has_gil", lambda: False)
    for begin in (list(range(50)), source):
        engine, why = measure(wds.DataPipeline(begin, wds.split_by_worker).map(heavy))
        assert engine == "threads"
        assert "no interpreter lock" in why


def test_a_package_that_brings_the_lock_back_is_noticed(monkeypatch):
    locks = []

    def heavy(number):
        locks.append(number)
        return sum(i * i for i in range(20_000)) + number

    monkeypatch.setattr("penstock.loaders.measuring.cores", lambda: 2)
    monkeypatch.setattr("penstock.loaders.measuring.has_gil", lambda: bool(locks))
    _, why = measure(wds.DataPipeline(list(range(50))).map(heavy))
    assert "no interpreter lock" not in why


def test_without_the_lock_no_sentence_blames_it(monkeypatch):
    monkeypatch.setattr("penstock.loaders.stats.recorder.has_gil", lambda: False)
    stats = StatsRecorder().stats("threads", 2)
    assert not stats.interpreter_lock
    assert not type(stats).from_json(stats.to_json()).interpreter_lock


SCRIPT = """
import sys
import numpy as np
import penstock as wds
from penstock.transforms.images import RandomResizedCrop
assert not sys._is_gil_enabled(), "import penstock"
data = wds.DataPipeline([np.full((40, 40, 3), n, "uint8") for n in range(64)])
data = data.map(RandomResizedCrop(16), rng=True).map(lambda x: {"x": x}).batched(8)
loader = wds.WebLoader(data, num_workers=2, batch_size=None, engine="threads")
assert sum(len(batch["x"]) for batch in loader) == 64
loader.stats().to_json()
assert not sys._is_gil_enabled(), "a loader at work"
"""


@pytest.mark.skipif(has_gil(), reason="this Python has the interpreter's lock")
def test_nothing_here_brings_the_lock_back():
    environment = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
    subprocess.run([sys.executable, "-c", SCRIPT], check=True, env=environment, timeout=60)
