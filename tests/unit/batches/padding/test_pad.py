"""Padding: one batch of tensors of different sizes, with lengths that stay exact."""

from __future__ import annotations

import pickle
from collections import namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    BatchsizeGuesser,
    PaddedBatch,
    PaddedData,
    batch_pad_right,
    clean_padding,
    length_to_mask,
    mod_default_collate,
    pad_right_to,
    recursive_to,
    relative_time_to_absolute,
    undo_padding,
)
from penstock.batches.padding.pad import pad_batch
from penstock.errors import SampleError

torch = pytest.importorskip("torch")


@given(st.lists(st.lists(st.integers(0, 9), max_size=9), min_size=1, max_size=6))
def test_padding_and_undoing_it_gives_the_samples_back(samples):
    batch, lengths = batch_pad_right(
        [torch.tensor(s, dtype=torch.int64) for s in samples], value=-1
    )
    width = max(map(len, samples))
    assert batch.tolist() == [s + [-1] * (width - len(s)) for s in samples]
    assert lengths.dtype == torch.float32
    assert undo_padding(batch, lengths) == samples
    assert undo_padding(pad_batch([torch.tensor(s) for s in samples])) == samples


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=5))
def test_any_dimensions_are_padded_when_they_are_named(shapes):
    tensors = [torch.arange(h * w).reshape(h, w) + 1 for h, w in shapes]
    padded = pad_batch(tensors, dim=(1, 0))
    assert padded.data.shape == (len(shapes), max(h for h, _ in shapes), max(w for _, w in shapes))
    assert padded.shapes.tolist() == [list(shape) for shape in shapes]
    assert padded.absolute.tolist() == [w for _, w in shapes]
    for row, tensor in zip(padded.data, tensors):
        assert torch.equal(row[: tensor.shape[0], : tensor.shape[1]], tensor)
        assert row.sum() == tensor.sum()


def test_the_lengths_are_those_of_the_dimension_that_is_named():
    batch, lengths = batch_pad_right([torch.ones(2, 3), torch.ones(2, 6)], dim=-1)
    assert batch.shape == (2, 2, 6)
    assert lengths.tolist() == [0.5, 1.0]


def test_a_dimension_that_may_not_differ_is_told():
    with pytest.raises(SampleError, match=r"dimension 1 has sizes \[3, 4\].*dim=\(0, 1\)"):
        batch_pad_right([torch.ones(2, 3), torch.ones(2, 4)])
    with pytest.raises(SampleError, match="many dimensions"):
        batch_pad_right([torch.ones(2), torch.ones(2, 4)])
    with pytest.raises(SampleError, match="nothing to pad"):
        batch_pad_right([])
    with pytest.raises(SampleError, match="no dim=3"):
        batch_pad_right([torch.ones(2)], dim=3)


def test_a_width_may_be_rounded_up():
    batch, lengths = batch_pad_right([torch.ones(5), torch.ones(3)], multiple_of=8)
    assert batch.shape == (2, 8)
    assert lengths.tolist() == [5 / 8, 3 / 8]


@pytest.mark.parametrize("count", [1, 2])
def test_a_batch_never_shares_memory_with_its_samples(count):
    samples = [torch.ones(3) for _ in range(count)]
    batch, _ = batch_pad_right(samples)
    batch.fill_(7)
    assert samples[0].tolist() == [1, 1, 1]
    padded, _ = pad_right_to(samples[0], (3,))
    padded.fill_(7)
    assert samples[0].tolist() == [1, 1, 1]
    array = np.ones(3)
    PaddedBatch([{"x": array}] * count).x.data.fill_(7)
    assert array.tolist() == [1, 1, 1]


def test_samples_without_length_have_lengths_all_the_same():
    batch, lengths = batch_pad_right([torch.zeros(0), torch.zeros(0)])
    assert batch.shape == (2, 0)
    assert lengths.tolist() == [1.0, 1.0]
    assert pad_batch([torch.zeros(0), torch.zeros(2)]).absolute.tolist() == [0, 2]


def test_single_numbers_are_stacked():
    batch, lengths = batch_pad_right([torch.tensor(1), torch.tensor(2)])
    assert batch.tolist() == [1, 2]
    assert lengths.tolist() == [1.0, 1.0]
    made = PaddedBatch(
        [{"x": torch.tensor(1), "y": np.float32(2)}, {"x": torch.tensor(3), "y": 4.0}]
    )
    assert made.x.tolist() == [1, 3]


def test_types_are_promoted_and_arrays_are_taken():
    batch, _ = batch_pad_right([torch.ones(1, dtype=torch.int32), torch.ones(2)])
    assert batch.dtype == torch.float32
    readonly = np.ones(2)
    readonly.flags.writeable = False
    assert batch_pad_right([readonly, np.ones(3)])[0].dtype == torch.float64


@pytest.mark.parametrize("mode", ["replicate", "reflect", "circular"])
def test_other_modes_are_those_of_torch(mode):
    sample = torch.tensor([[1.0, 2, 3], [4, 5, 6]])
    batch, _ = batch_pad_right([sample, torch.ones(2, 5)], mode, dim=1)
    expected = torch.nn.functional.pad(sample, (0, 2), mode=mode)
    assert torch.equal(batch[0], expected)


def test_padding_to_a_shape_says_which_part_is_valid():
    padded, valid = pad_right_to(torch.ones(2, 3), (4, 3), value=9)
    assert valid == [0.5, 1.0]
    assert padded[2:].eq(9).all()
    for shape in ((1, 3), (4,), (4, 3, 1)):
        with pytest.raises(ValueError, match="cannot be padded"):
            pad_right_to(torch.ones(2, 3), shape)


def test_relative_lengths_become_half_with_the_data_and_absolute_ones_stay_exact():
    samples = [torch.zeros(77_777), torch.zeros(560_000)]
    for padded in (pad_batch(samples), PaddedData(*batch_pad_right(samples))):
        cast = padded.to(torch.half)
        assert cast.data.dtype == cast.lengths.dtype == torch.half
        assert cast.absolute.tolist() == [77_777, 560_000]
        assert [len(sample) for sample in undo_padding(cast)] == [77_777, 560_000]
    assert padded.to("cpu").lengths.dtype == torch.float32
    tokens = pad_batch([torch.ones(1, dtype=torch.int64)]).to(torch.half)
    assert (tokens.data.dtype, tokens.lengths.dtype) == (torch.int64, torch.half)


def test_padding_is_removed_by_relative_lengths_of_either_shape():
    batch = torch.arange(12).reshape(3, 4)
    for shape in ((3,), (3, 1)):
        lengths = torch.tensor([0.5, 1.0, 0.25]).reshape(shape)
        assert undo_padding(batch, lengths) == [[0, 1], [4, 5, 6, 7], [8]]
        assert clean_padding(batch, lengths, mask_value=-1)[2].tolist() == [8, -1, -1, -1]
        seconds = relative_time_to_absolute(batch, lengths, 4)
        assert (seconds.shape, seconds.flatten().tolist()) == (shape, [0.5, 1.0, 0.25])


def test_integer_lengths_are_absolute_only_if_one_is_above_one():
    batch = torch.arange(8).reshape(2, 4)
    assert undo_padding(batch, torch.tensor([1, 1])) == batch.tolist()
    assert undo_padding(batch, torch.tensor([1, 0])) == [[0, 1, 2, 3], []]
    assert undo_padding(batch, torch.tensor([1, 3])) == [[0], [4, 5, 6]]
    padded = pad_batch([torch.tensor([7]), torch.tensor([8])], multiple_of=4)
    assert undo_padding(padded) == [[7], [8]]


@pytest.mark.parametrize("lengths", [[3.0, 4.0], [3, 5]])
def test_a_length_above_the_width_of_the_batch_is_an_error(lengths):
    with pytest.raises(SampleError, match="longer than its batch, which is 4 wide"):
        undo_padding(torch.zeros(2, 4), torch.tensor(lengths))


def test_padded_data_is_a_pair_and_pickles_with_its_lengths():
    padded = pad_batch([torch.ones(1), torch.ones(2)])
    data, lengths = padded
    assert lengths.tolist() == [0.5, 1.0]
    assert data is padded.data
    assert len(padded) == 2
    again = pickle.loads(pickle.dumps(padded))
    assert type(again) is PaddedData
    assert again.absolute.tolist() == [1, 2]
    assert again.shapes.tolist() == [[1], [2]]
    assert PaddedData(data, torch.tensor([0.5, 1.0])).absolute.tolist() == [1, 2]


def test_masks_come_from_absolute_lengths():
    mask = length_to_mask(torch.tensor([1, 2, 3]), max_len=4)
    assert mask.tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 0]]
    assert mask.dtype == torch.int64
    assert length_to_mask(torch.tensor([1.0, 2.0])).dtype == torch.float32
    assert length_to_mask(torch.tensor([1]), dtype=torch.bool).dtype == torch.bool
    with pytest.raises(SampleError, match="one dimension, not shape"):
        length_to_mask(torch.ones(2, 2))


def test_padding_is_cleaned_along_any_dimension():
    cleaned = clean_padding(torch.ones(2, 3, 4), torch.tensor([0.5, 1.0]), len_dim=2, mask_value=-1)
    assert cleaned[0].tolist() == [[1, 1, -1, -1]] * 3
    assert cleaned[1].min() == 1


def test_times_are_in_seconds():
    seconds = relative_time_to_absolute(torch.ones(2, 8000), torch.tensor([0.25, 1]), 16000)
    assert seconds.tolist() == [0.125, 0.5]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], torch.int64),
        ([1.0, 2.5], torch.float64),
        ([1, 2.5], torch.float64),
        ([True, False], torch.bool),
        ([np.float32(1), np.float32(2)], torch.float32),
        ([torch.ones(2), torch.zeros(2)], torch.float32),
        ([np.ones(2, np.int16), np.zeros(2, np.int16)], torch.int16),
    ],
)
def test_what_can_be_stacked_is_stacked(values, kind):
    assert mod_default_collate(values).dtype == kind
    assert len(mod_default_collate(values)) == 2


@pytest.mark.parametrize(
    "values",
    [["a", "b"], [None, 1], [[1], [2]], [torch.ones(1), torch.ones(2)], [1, "a"], [1 << 70, 1],
     [np.array(["a"]), np.array(["b"])]],
)  # fmt: skip
def test_what_cannot_be_stacked_stays_a_list(values):
    assert mod_default_collate(values) is values


def test_moving_reaches_everything_and_leaves_texts_alone():
    Pair = namedtuple("Pair", "a b")
    value = {"x": Pair(torch.ones(1), "text"), "y": [(torch.ones(1), None)], "z": b"raw", "t": int}
    moved = recursive_to(value, torch.float64)
    assert moved["x"].a.dtype == torch.float64
    assert type(moved["x"]) is Pair
    assert moved["y"][0][0].dtype == torch.float64
    assert (moved["x"].b, moved["z"], moved["t"]) == ("text", b"raw", int)


def test_the_size_of_a_batch_is_guessed():
    guess = BatchsizeGuesser()
    batch = PaddedBatch([{"x": torch.ones(1)}] * 5)
    values = [batch, torch.ones(4, 2), (torch.ones(3, 1), 0), {"ab": 1}, 7, None, [], torch.ones(2)]
    assert [guess(value) for value in values] == [5, 4, 3, 2, 1, 1, 1, 2]


def test_gradients_pass_through_padding():
    one = torch.ones(2, requires_grad=True)
    batch, _ = batch_pad_right([one, torch.ones(3)])
    batch.sum().backward()
    assert one.grad.tolist() == [1, 1]
