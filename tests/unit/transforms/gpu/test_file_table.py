"""The pictures of a batch as one table, and the memory that it travels in."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import threading
import time
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
from PIL import Image

import penstock as wds
from penstock.transforms.gpu.file_table import FileTable, make_native_jobs
from penstock.transforms.jpeg_fallback import choose_reduction

torch = pytest.importorskip("torch")
from penstock.memory.shared_blocks import SharedBlockPool, current_pool, view_block  # noqa: E402


def picture(height: int, width: int, seed: int, kind: str = "JPEG", **options: Any) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), np.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, kind, **options)
    return data.getvalue()


def waiting() -> list[Any]:
    crop = wds.RandomResizedCrop(16, flip=0.5, decode_on="cuda")
    middle = wds.ResizeCenterCrop(20, 16, interpolation="bicubic", decode_on="cuda")
    usual = [crop(picture(40, 60, n)) for n in range(3)]
    odd = [crop(picture(40, 60, 4, progressive=True)), crop(picture(30, 30, 5, "PNG"))]
    return [*usual, *odd, middle(picture(400, 500, 6))]


def facts(one: Any) -> Any:
    return bytes(one.data), one.plan, one.header, repr(one.transform), one.decode().tolist()


@pytest.mark.parametrize("travels", [False, True])
def test_the_pictures_of_a_table_are_those_it_was_made_of(travels: bool) -> None:
    before = waiting()
    files = FileTable.of(before)
    if travels:
        files = pickle.loads(ForkingPickler.dumps(files))
    assert len(files) == 6
    assert [facts(one) for one in files] == [facts(one) for one in before]
    assert facts(files[-2]) == facts(before[-2])
    assert [facts(one) for one in files[-2:0:-2]] == [facts(one) for one in before[-2:0:-2]]
    assert type(files[0].plan.flip) is bool
    assert files.size == (16, 16)
    assert "6 pictures" in repr(files)


def test_it_may_travel_twice() -> None:
    before = waiting()
    there = pickle.loads(ForkingPickler.dumps(FileTable.of(before)))
    back = pickle.loads(ForkingPickler.dumps(there))
    assert [facts(one) for one in back] == [facts(one) for one in before]


def test_a_picture_outlives_its_batch_and_keeps_the_memory() -> None:
    current_pool().blocks.clear()
    files = pickle.loads(ForkingPickler.dumps(FileTable.of(waiting())))
    one = files[1]
    expected = facts(one)
    del files
    for seed in range(4):  # others come, and must not get that memory
        crop = wds.RandomResizedCrop(16, decode_on="cuda")
        other = pickle.loads(ForkingPickler.dumps(FileTable.of([crop(picture(40, 60, seed + 9))])))
        del other
    assert facts(one) == expected


@pytest.mark.parametrize("looks", [memoryview, np.asarray])
def test_memory_that_came_back_is_lent_again_and_other_memory_is_not(looks: Any) -> None:
    lent = SharedBlockPool()
    first, second = lent.lend(1000), lent.lend(1000)
    data = view_block(first)
    part = looks(data)[:10]
    del data
    assert all(lent.lend(1000) is not one for one in (first, second)), "both are still looked at"
    del part
    assert lent.lend(1000) is first


def test_blocks_that_are_too_small_or_never_come_back_are_let_go_of() -> None:
    lent = SharedBlockPool()
    small = lent.lend(10)
    view_block(small)
    large = lent.lend(10 << 20)
    assert [block is large for block, _ in lent.blocks] == [True]
    for _ in range(50):
        lent.lend(10)
    assert len(lent.blocks) == 16


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_lends_memory_of_its_own() -> None:
    view_block(current_pool().lend(10))  # it is back, and the fork sees that, too

    def look(answer: Any) -> None:
        answer.put(len(current_pool().blocks))

    context: Any = multiprocessing.get_context("fork")
    answer = context.SimpleQueue()
    process = context.Process(target=look, args=(answer,))
    process.start()
    process.join(30)
    assert current_pool().blocks
    assert answer.get() == 0


def test_memory_with_a_name_is_not_kept() -> None:
    strategy, lent = torch.multiprocessing.get_sharing_strategy(), SharedBlockPool()
    torch.multiprocessing.set_sharing_strategy("file_system")
    try:
        block = lent.lend(10)
    finally:
        torch.multiprocessing.set_sharing_strategy(strategy)
    assert len(block) > 10
    assert lent.blocks == [], "whoever has it last lets its name go, too"


def in_a_fork(work: Any) -> None:
    process = os.fork()
    if process == 0:
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(process, 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("first", ["parent", "fork"])
def test_memory_that_a_fork_may_look_at_is_not_lent_again(first: str) -> None:
    lent = SharedBlockPool()
    block = lent.lend(1000)
    held = [view_block(block)]
    in_a_fork(held.clear if first == "fork" else int)
    if first == "parent":
        held.clear()
    assert lent.lend(1000) is not block
    held.clear()
    later = lent.lend(1000)
    assert later is not block
    assert all(one is not block for one, _ in lent.blocks), "it is let go of"
    view_block(later)
    assert lent.lend(1000) is later, "what came since the fork is as before"


def test_two_threads_are_never_lent_the_same_memory() -> None:
    lent, together, got = SharedBlockPool(), threading.Barrier(2), list[Any]()
    view_block(lent.lend(1000))

    class Slow:
        """A block that lets others run between the look at its mark and what is done then."""

        def __init__(self, block: Any) -> None:
            self.block = block

        def __len__(self) -> int:
            time.sleep(0.05)
            return len(self.block)

    lent.blocks = [(Slow(block), mark) for block, mark in lent.blocks]

    def lend() -> None:
        together.wait(10)
        got.append(lent.lend(1000))

    threads = [threading.Thread(target=lend) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(got) == 2
    assert got[0] is not got[1]


def test_what_is_ordered_of_a_table_is_what_is_ordered_one_by_one() -> None:
    files = FileTable.of(waiting())
    out = np.arange(6) * 1000
    jobs = make_native_jobs(files.table, files.transforms, out)
    for job, one, to in zip(jobs, files, out):
        assert (job["out"], job["size"], job["file"]) == (to, len(one.data), -1)
        assert bytes(job["form"]) == one.transform._form_bytes
        if one.plan is not None:
            assert tuple(job["plan"]) == one.plan
            assert job["reduction"] == choose_reduction(one.plan)
    assert jobs["reduction"][-1] == 8
    assert jobs.itemsize == 168, "as picture.c has it"
