from __future__ import annotations

import numpy as np
import pytest
import torch

import penstock as wds
from penstock.batches.collate import combine_values
from penstock.errors import SampleError


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "int64"),
        ([1.5, 2.5], "float64"),
        ([1, 2.5], "float64"),
        ([True, False], "bool"),
        ([np.float64(1), np.float64(2)], "float64"),
        ([np.float32(1), np.float32(2)], "float32"),
        ([np.int16(1), np.int16(2)], "int16"),
    ],
)
def test_numbers_become_an_array(values, kind):
    found = combine_values(values)
    assert isinstance(found, np.ndarray)
    assert (found.dtype, found.tolist()) == (kind, values)


@pytest.mark.parametrize(
    "values",
    [["a", "b"], [b"a", b"b"], [None, None], [[1], [2, 3]], [(1,), (2,)], [{"a": 1}], [1, "x"],
     [1, None], [np.str_("a"), np.str_("b")], [object]],
)  # fmt: skip
def test_everything_else_becomes_a_list(values):
    found = combine_values(values)
    assert isinstance(found, list)
    assert found == values


def test_arrays_and_tensors_are_stacked():
    arrays = combine_values([np.zeros((2, 3), np.uint8), np.ones((2, 3), np.uint8)])
    assert (arrays.shape, arrays.dtype) == ((2, 2, 3), "uint8")
    tensors = combine_values([torch.zeros(2, 3), torch.ones(2, 3)])
    assert isinstance(tensors, torch.Tensor)
    assert tensors.shape == (2, 2, 3)


def test_combining_can_be_turned_off():
    assert combine_values([1, 2], combine_scalars=False) == [1, 2]
    tensors = [torch.zeros(2), torch.ones(3)]
    assert combine_values(tensors, combine_tensors=False) == tensors


@pytest.mark.parametrize("make", [np.zeros, torch.zeros])
def test_shapes_must_be_equal(make):
    with pytest.raises(
        SampleError, match=r"all shapes must be equal in collation, got .*\(2,\), \(3,\)"
    ):
        combine_values([make(2), make(3)])


def test_samples_become_columns_in_the_order_of_the_first():
    found = wds.default_collation_fn([{"b": 1, "a": "x"}, {"a": "y", "b": 2}])
    assert list(found) == ["b", "a"]
    assert found["a"] == ["x", "y"]
    for samples in ([(1, "x"), (2, "y")], [[1, "x"], [2, "y"]]):
        numbers, letters = wds.default_collation_fn(samples)
        assert (numbers.tolist(), letters) == ([1, 2], ["x", "y"])


def test_samples_must_be_alike():
    for samples in ([{"a": 1}, {"b": 1}], [(1,), (1, 2)]):
        with pytest.raises(SampleError, match="keys don't match in different samples"):
            wds.default_collation_fn(samples)
    with pytest.raises(SampleError, match="needs dicts or tuples, not int"):
        wds.default_collation_fn([1, 2])
