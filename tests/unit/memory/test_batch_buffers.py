"""Batches in place: rows of blocks are recognised, and memory is used again only when free."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pytest
import torch

from penstock.batches.collate import default_collation_fn
from penstock.memory import batch_buffers as module
from penstock.memory.batch_buffers import Blocks, Store, whole
from penstock.memory.output import empty, give_by


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


def test_rows_with_other_axes_are_copied_so_that_all_batches_lie_alike():
    found = [array.T for array in rows(steady(), range(8, 12))]
    assert whole(found) is None
    (batch,) = default_collation_fn([(array,) for array in found])
    assert batch.flags.c_contiguous
    assert np.array_equal(batch, np.array(found))


def test_a_block_is_a_batch_once():
    found = rows(steady(), range(8, 12))
    first, second = default_collation_fn([(array, array) for array in found])
    assert not np.shares_memory(first, second)
    assert np.array_equal(first, second)


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


def test_samples_wait_elsewhere_for_the_block_that_comes_back():
    blocks = steady(16)
    first, second = whole(rows(blocks, range(16, 32))), whole(rows(blocks, range(32, 48)))
    ahead = rows(blocks, range(48, 51))
    size = second.nbytes
    assert blocks.store.held_bytes == 2 * size
    address = first.ctypes.data
    del first
    batch = whole(ahead + rows(blocks, range(51, 64)))
    assert batch.ctypes.data == address
    assert batch[:, 5, 7].tolist() == list(range(48, 64))
    assert second[:, 5, 7].tolist() == list(range(32, 48))
    assert blocks.store.held_bytes == 2 * size


def test_a_block_that_does_not_come_back_is_not_waited_for_long():
    blocks = steady(16)
    kept = [whole(rows(blocks, range(16 * n, 16 * n + 16))) for n in range(1, 6)]
    assert all(batch is not None for batch in kept)
    assert [batch[0, 0, 0] for batch in kept] == [16, 32, 48, 64, 80]
    assert len(blocks.store.spare(kept[0].nbytes).lent) == 5


def test_a_place_that_was_given_to_a_sample_is_not_written_by_another():
    blocks = steady()
    found = rows(blocks, range(8, 12))
    other = np.zeros_like(found[1])
    assert whole([found[0], other, *found[2:]]) is None
    assert found[1][0, 0] == 9


def test_an_array_that_did_not_ask_for_memory_is_copied_to_its_place():
    found = rows(steady(), [8, 10, 11])
    own = np.full_like(found[0], 9)
    batch = whole([found[0], own, *found[1:]])
    assert np.shares_memory(batch, found[0])
    assert not np.shares_memory(batch, own)
    assert batch[:, 0, 0].tolist() == [8, 9, 10, 11]


def test_memory_that_is_no_longer_needed_is_let_go():
    store, shape = Store(), (4, 64, 128)
    together = [store.empty(shape, "float32") for _ in range(5)]
    size = together[0].nbytes
    assert store.held_bytes == 5 * size
    del together
    for _ in range(3 * module.WATCHED):
        last = store.empty(shape, "float32")
        del last
    assert store.held_bytes == size


def test_memory_that_is_needed_together_now_and_then_is_kept():
    store, shape = Store(), (4, 64, 128)
    addresses = set()
    for _ in range(3 * module.WATCHED):
        pair = [store.empty(shape, "float32") for _ in range(2)]
        addresses |= {array.ctypes.data for array in pair}
        del pair
    assert len(addresses) == 2


def test_a_third_block_goes_when_two_are_enough_again():
    blocks = steady(16)
    kept = [whole(rows(blocks, range(16 * n, 16 * n + 16))) for n in range(1, 5)]
    size = kept[0].nbytes
    assert blocks.store.held_bytes == 4 * size
    for n in range(5, 5 + 3 * module.WATCHED):
        ahead = rows(blocks, range(16 * n, 16 * n + 2))  # before the loop lets go
        kept = kept[-1:]
        kept.append(whole(ahead + rows(blocks, range(16 * n + 2, 16 * n + 16))))
        assert kept[-1][:, 0, 0].tolist() == list(range(16 * n, 16 * n + 16))
        del ahead
    assert blocks.store.held_bytes == 2 * size


def test_a_row_that_a_batch_was_filled_up_with_is_given_to_no_later_sample():
    # Samples that a stage drops lower the numbers of those behind: number 9 comes twice.
    blocks = steady(2)
    (first,) = rows(blocks, [8])
    batch = whole([first, np.full_like(first, -1)])
    assert batch is not None
    (later,) = rows(blocks, [9])
    assert not np.shares_memory(later, batch)
    assert batch[:, 0, 0].tolist() == [8, -1]
