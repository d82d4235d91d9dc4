"""Batches on their way from a worker: small tensors by value, all others as torch has it."""

from __future__ import annotations

import pickle
from collections import namedtuple

import numpy as np
import pytest

import penstock as wds
from penstock.loaders.small_tensors import SMALL_BYTES, ByValue, wrap_small_tensors

torch = pytest.importorskip("torch")

SMALL = {
    "labels": torch.arange(5),
    "nothing": torch.empty(0, 3),
    "a number": torch.tensor(3.5),
    "flags": torch.tensor([[True], [False]]),
    "halves": torch.ones(2, dtype=torch.float16),
    "as large as it may be": torch.zeros(SMALL_BYTES, dtype=torch.uint8),
}
AS_TORCH_HAS_IT = {
    "large": torch.zeros(SMALL_BYTES + 1, dtype=torch.uint8),
    "bfloat16": torch.zeros(2, dtype=torch.bfloat16),
    "floats of 8 bits": torch.zeros(2, dtype=torch.float8_e4m3fn),
    "sparse": torch.eye(2).to_sparse(),
    "columns first": torch.zeros(2, 3).T,
    "with a gradient": torch.zeros(2, requires_grad=True),
    "conjugated": torch.zeros(2, dtype=torch.complex64).conj(),
    "of another class": torch.nn.Parameter(torch.zeros(2), requires_grad=False),
    "shared": torch.zeros(2).share_memory_(),
}


@pytest.mark.parametrize("kind", SMALL)
def test_a_small_tensor_arrives_as_it_left(kind):
    tensor = SMALL[kind]
    sent = wrap_small_tensors((["a", "b"], tensor))
    assert type(sent[1]) is ByValue
    texts, found = pickle.loads(pickle.dumps(sent))
    assert texts == ["a", "b"]
    assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(found, tensor)
    found.zero_()  # it is the trainer's own


@pytest.mark.parametrize("kind", AS_TORCH_HAS_IT)
def test_any_other_tensor_is_left_to_torch(kind):
    tensor = AS_TORCH_HAS_IT[kind]
    assert wrap_small_tensors([tensor])[0] is tensor


def test_tensors_are_found_in_what_batches_are_made_of():
    one = torch.arange(2)
    pair = namedtuple("pair", "x y")(one, one)
    assert wrap_small_tensors(pair) is pair  # torch rebuilds it; we leave it alone
    sent = wrap_small_tensors(
        {"a": [one], "b": (one, {"c": one}), "d": [one] * 100, "e": ["x"] * 100}
    )
    assert type(sent["a"][0]) is type(sent["b"][1]["c"]) is type(sent["d"][99]) is ByValue
    assert type(sent["b"]) is tuple
    assert sent["e"] == ["x"] * 100


@pytest.mark.parametrize("size", [None, 4])
def test_batches_of_workers_are_the_same_as_without(tmp_path, size):
    name = str(tmp_path / "x.tar")
    with wds.TarWriter(name) as sink:
        for number in range(40):
            sink.write({"__key__": f"{number:03}", "cls": number, "npy": np.arange(3) + number})
    data = wds.WebDataset(name, shardshuffle=False).decode().to_tuple("cls", "npy")
    data = data.batched(8) if size is None else data

    def batches(workers):
        loader = wds.WebLoader(data, num_workers=workers, batch_size=size)
        return [[column.tolist() for column in batch] for batch in loader]

    assert batches(1) == batches(0)
    for labels, _ in wds.WebLoader(data, num_workers=1, batch_size=size):
        assert type(labels) is torch.Tensor
        assert not labels.is_shared()
