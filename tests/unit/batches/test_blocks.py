"""Batches in place: rows of blocks are recognised, and memory is used again only when free."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest
import torch

from penstock.batches import blocks as module
from penstock.batches.blocks import Blocks, Store, whole
from penstock.batches.collate import default_collation_fn
from penstock.transforms.rows import empty, give_by


@pytest.fixture(autouse=True)
def _nobody_gives():
    yield
    give_by(None)


def rows(blocks, numbers, shape=(64, 128), dtype="float32"):
    """The arrays of samples with these numbers, as one thread would make them."""
    made = []
    for number in numbers:
        at = blocks.rows(1, number)
        at.at(0)
        array = empty(shape, dtype)
        array[:] = number
        made.append(array)
    return made


def steady(size=4):
    blocks = Blocks(Store(), size)
    rows(blocks, range(8))
    return blocks


def test_rows_of_a_block_are_the_batch_itself():
    found = rows(steady(), range(8, 12))
    (batch,) = default_collation_fn([(array,) for array in found])
    assert batch.ctypes.data == found[0].ctypes.data
    assert batch[:, 0, 0].tolist() == [8, 9, 10, 11]


def test_tensors_on_rows_are_the_batch_itself():
    found = [torch.from_numpy(array) for array in rows(steady(), range(8, 12))]
    (batch,) = default_collation_fn([(tensor,) for tensor in found])
    assert isinstance(batch, torch.Tensor)
    assert batch.data_ptr() == found[0].data_ptr()
    assert batch[:, -1, -1].tolist() == [8, 9, 10, 11]


def test_views_of_rows_may_have_other_axes():
    found = [array.T for array in rows(steady(), range(8, 12))]
    batch = whole(found)
    assert batch.shape == (4, 128, 64)
    assert np.array_equal(batch, np.array(found))


@pytest.mark.parametrize("order", [[8, 9, 11, 10], [9, 10, 11], [8, 10], [8, 9, 10, 12]])
def test_rows_out_of_order_are_copied(order):
    made = dict(zip(range(8, 16), rows(steady(), range(8, 16))))
    found = [made[number] for number in order]
    assert whole(found) is None
    (batch,) = default_collation_fn([(array,) for array in found])
    assert batch[:, 0, 0].tolist() == order


def test_a_last_batch_that_is_short_is_in_place_too():
    assert whole(rows(steady(), range(8, 10))).shape == (2, 64, 128)


def test_parts_of_other_shapes_and_types_are_not_taken_for_rows():
    found = rows(steady(), range(8, 12))
    assert whole([found[0].view("uint8"), *found[1:]]) is None
    assert whole([found[0][:10], *found[1:]]) is None
    assert whole([found[0], found[1].astype("float64")]) is None
    assert whole([np.zeros((64, 128), "float32")]) is None


def test_a_row_is_given_once():
    blocks = steady()
    (first,) = rows(blocks, [9])
    (second,) = rows(blocks, [9])
    assert not np.shares_memory(first, second)


def test_samples_of_many_shapes_get_memory_of_their_own():
    blocks = Blocks(Store(), 256)
    found = [rows(blocks, [n], shape=(100 + n, 50))[0] for n in range(40)]
    assert not blocks._open
    assert all(array.base is None for array in found)


def test_memory_is_used_again_when_the_last_view_is_gone():
    store = Store()
    first = store.empty((4, 64, 128), "float32")
    address, tensor = first.ctypes.data, torch.from_numpy(first[2])
    del first
    gc.collect()
    assert store.empty((4, 64, 128), "float32").ctypes.data != address
    del tensor
    gc.collect()
    assert address in [store.empty((4, 64, 128), "float32").ctypes.data for _ in range(2)]


def test_nothing_is_remembered_of_blocks_that_are_gone():
    before = len(module._blocks)
    found = rows(steady(), range(8, 40))
    assert len(module._blocks) > before
    del found
    give_by(None)
    gc.collect()
    assert len(module._blocks) == before


def test_a_store_travels_empty():
    store = Store(most_bytes=5)
    store.empty((100, 1000), "uint8")
    assert pickle.loads(pickle.dumps(store)).most_bytes == 5


def test_objects_and_small_arrays_are_numpys_own():
    store = Store()
    assert store.empty((100_000,), "O").base is None
    assert store.empty((10,), "uint8").base is None


def test_mixed_types_are_stacked_as_numpy_does():
    values = [np.ones((200, 200), "float32"), np.ones((200, 200), "float64")]
    (batch,) = default_collation_fn([(value,) for value in values])
    assert batch.dtype == np.float64


def test_tensors_that_numpy_cannot_hold_are_stacked_by_torch():
    values = [torch.ones(200, 200, dtype=torch.bfloat16), torch.zeros(200, 200).bfloat16()]
    (batch,) = default_collation_fn([(value,) for value in values])
    assert batch.dtype == torch.bfloat16
    grown = [torch.ones(200, 200, requires_grad=True), torch.ones(200, 200)]
    assert default_collation_fn([(value,) for value in grown])[0].requires_grad
