"""PaddedBatch: what a batch holds and how it moves."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from penstock import PaddedBatch, PaddedData, batch_pad_right
from penstock.errors import SampleError, UnknownKeyError

torch = pytest.importorskip("torch")


@pytest.fixture
def batch():
    return PaddedBatch(
        [
            {"id": "a", "wav": torch.ones(2), "label": 3, "score": 0.5, "tokens": np.array([1, 2])},
            {"id": "b", "wav": torch.ones(4), "label": 4, "score": 1.5, "tokens": np.array([5000])},
        ]
    )


def test_tensors_and_arrays_are_padded_and_numbers_stacked(batch):
    assert isinstance(batch.wav, PaddedData)
    assert batch.wav.lengths.tolist() == [0.5, 1.0]
    assert batch.tokens.data.tolist() == [[1, 2], [5000, 0]]
    assert (batch.label.dtype, batch.score.dtype) == (torch.int64, torch.float64)
    assert batch.id == ["a", "b"]


def test_values_come_by_attribute_key_position_and_in_order(batch):
    assert batch["id"] is batch.id is batch.at_position(0)
    ids, wav, *_ = batch
    assert ids == ["a", "b"]
    assert wav is batch.wav
    assert (len(batch), batch.batchsize) == (2, 2)
    assert batch.keys() == ["id", "wav", "label", "score", "tokens"]
    assert "wav" in batch
    assert "x" not in batch
    with pytest.raises(KeyError, match="no key 'x'"):
        batch["x"]
    with pytest.raises(AttributeError):
        batch.x


def test_casting_leaves_labels_tokens_and_absolute_lengths_exact(batch):
    assert batch.to(torch.half) is batch
    assert batch.wav.data.dtype == torch.half
    assert batch.score.dtype == torch.half
    assert batch.tokens.data.tolist() == [[1, 2], [5000, 0]]
    assert batch.label.dtype == torch.int64
    assert batch.wav.lengths.dtype == torch.half
    assert batch.wav.absolute.tolist() == [2, 4]


def test_moving_takes_every_form_of_torch(batch):
    for arguments in ((torch.device("cpu"),), ("cpu", torch.float64), (torch.ones(1),)):
        batch.to(*arguments, non_blocking=True)
    batch.to(device="meta", copy=True)
    assert batch.wav.data.device.type == batch.wav.lengths.device.type == "meta"
    assert batch.label.device.type == "meta"


def test_only_the_keys_that_are_named_move():
    batch = PaddedBatch([{"x": torch.ones(1), "y": torch.ones(1)}], device_prep_keys=["x"])
    batch.to(torch.float64)
    assert (batch.x.data.dtype, batch.y.data.dtype) == (torch.float64, torch.float32)


def test_a_key_named_as_a_method_does_not_take_its_place():
    batch = PaddedBatch([{"to": 1, "pin_memory": 2, "audio.pth": torch.ones(2), "keys": 5}])
    assert batch["to"].tolist() == [1]
    assert batch["audio.pth"].data.shape == (1, 2)
    assert batch.to("cpu") is batch
    assert "to" in batch.keys()  # noqa: SIM118


def test_a_value_may_be_replaced(batch):
    batch.label = torch.zeros(2)
    assert batch["label"].tolist() == [0, 0]
    batch.note = "kept beside"
    assert batch.note == "kept beside"
    assert "note" not in batch


def test_keys_are_those_of_the_first_sample():
    batch = PaddedBatch([{"x": 1}, {"x": 2, "more": 3}])
    assert batch.keys() == ["x"]
    with pytest.raises(UnknownKeyError, match=r"sample 1 \('b'\) has no 'x'"):
        PaddedBatch([{"id": "a", "x": 1}, {"id": "b"}])
    with pytest.raises(SampleError, match="there are none"):
        PaddedBatch([])


def test_padding_may_be_restricted_and_stacking_left_out():
    rows = [{"x": torch.ones(1), "y": torch.ones(2)}, {"x": torch.ones(3), "y": torch.ones(2)}]
    batch = PaddedBatch(rows, padded_keys=["x"])
    assert batch.x.data.shape == (2, 3)
    assert batch.y.shape == (2, 2)
    listed = PaddedBatch(rows, padded_keys=[], nonpadded_stack=False)
    assert [len(one) for one in listed.x] == [1, 3]
    listed.to(torch.float64)
    assert listed.x[1].dtype == torch.float64


def test_options_of_a_key_replace_those_of_all():
    rows = [{"x": torch.ones(1), "y": torch.ones(1)}, {"x": torch.ones(2), "y": torch.ones(2)}]
    batch = PaddedBatch(
        rows, padding_kwargs={"value": 5}, per_key_padding_kwargs={"y": {"multiple_of": 4}}
    )
    assert batch.x.data[0].tolist() == [1, 5]
    assert batch.y.data[0].tolist() == [1, 0, 0, 0]


def test_a_padding_function_of_the_users_is_called():
    def left(tensors, value):
        flipped, lengths = batch_pad_right([t.flip(0) for t in tensors], value=value)
        return flipped.flip(1), lengths

    batch = PaddedBatch(
        [{"x": torch.tensor([1, 2])}, {"x": torch.tensor([3])}],
        padding_func=left,
        padding_kwargs={"value": 9},
    )
    assert batch.x.data.tolist() == [[1, 2], [9, 3]]
    assert batch.x.absolute.tolist() == [2, 1]


def test_arrays_stay_arrays_when_nothing_is_converted():
    batch = PaddedBatch([{"x": [np.ones(1)]}, {"x": [np.ones(2)]}], apply_default_convert=False)
    assert type(batch.x[0][0]) is np.ndarray


def test_the_key_that_cannot_be_padded_is_named():
    with pytest.raises(SampleError) as caught:
        PaddedBatch([{"x": torch.ones(1, 2)}, {"x": torch.ones(1, 3)}])
    assert "'x'" in caught.value.__notes__[0]


def test_a_batch_pickles_and_prints(batch):
    again = pickle.loads(pickle.dumps(batch))
    assert again.wav.absolute.tolist() == [2, 4]
    assert again.id == ["a", "b"]
    assert repr(again).startswith("PaddedBatch({'id': ['a', 'b']")
