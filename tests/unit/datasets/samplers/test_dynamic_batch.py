"""Batches by buckets of length."""

from __future__ import annotations

import json
import logging
import pickle
import zlib
from collections.abc import Iterable
from itertools import chain
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    BalancingDataSampler,
    DynamicBatchSampler,
    DynamicItemDataset,
    PipelineError,
    SampleError,
)
from penstock.datasets.samplers.bucket_boundaries import make_lognormal_boundaries

torch = pytest.importorskip("torch")

LENGTHS = [(1 + (n * 7919) % 3400) / 100 for n in range(2000)] + [50.0, 700.0]

# Arguments, number of batches, digests of the batches of the first epoch and of the next:
# what SpeechBrain 1.1.2 gives on LENGTHS with a budget of 600.
AS_IN_SPEECHBRAIN: list[tuple[dict[str, Any], int, int, int]] = [
    ({"num_buckets": 200}, 97, 3903954800, 1529667757),
    ({"num_buckets": 60, "seed": 7, "epoch": 3}, 74, 2524076247, 3428296089),
    ({"num_buckets": 1}, 2002, 2835822703, 3296435382),
    (
        {"num_buckets": 200, "shuffle": False, "batch_ordering": "ascending"},
        *(97, 3807975336, 3807975336),
    ),
    (
        {"num_buckets": 20, "batch_ordering": "descending", "max_batch_ex": 9},
        *(226, 1150003302, 3773296746),
    ),
    ({"num_buckets": 200, "drop_last": True}, 22, 514007280, 3725996041),
    (
        {"bucket_boundaries": [3, 8, 20.5, 34], "max_batch_ex": 40, "shuffle": False},
        *(88, 1154206234, 2838187161),
    ),
]


class Manifest:
    """Rows by id, as a data set of a manifest has them."""

    def __init__(self, rows: dict[str, dict[str, Any]]) -> None:
        self.data, self.data_ids = rows, list(rows)

    def __len__(self) -> int:
        return len(self.data)


class Columns(Manifest):
    def column(self, name: str) -> Any:
        return np.array([row.get(name, np.nan) for row in self.data.values()])


def digest(batches: Iterable[Any]) -> int:
    return zlib.crc32(json.dumps(list(batches)).encode())


def sampler_of(lengths: Any, budget: float = 600, **arguments: Any) -> DynamicBatchSampler:
    if "bucket_boundaries" not in arguments:
        arguments.setdefault("num_buckets", 20)
    return DynamicBatchSampler(range(len(lengths)), budget, lengths_list=lengths, **arguments)


@pytest.mark.parametrize(("arguments", "count", "first", "second"), AS_IN_SPEECHBRAIN)
def test_batches_are_those_of_speechbrain_epoch_by_epoch(
    arguments: dict[str, Any], count: int, first: int, second: int
) -> None:
    sampler = sampler_of(LENGTHS, **arguments)
    assert len(sampler) == count
    assert (digest(sampler), digest(sampler)) == (first, second)


@pytest.mark.parametrize(
    ("count", "place", "value"),
    [
        (5, 0, "0x1.5aac310004ec7p+6"),
        (200, 0, "0x1.bb201fc816569p+1"),
        (200, 57, "0x1.a18819c19f0c2p+4"),
        (200, 130, "0x1.0d43de2a1cce1p+6"),
        (1000, 3, "0x1.ec572ff4d9e3ap+0"),
    ],
)
def test_boundaries_are_bit_for_bit_those_that_scipy_gives(
    count: int, place: int, value: str
) -> None:
    assert float(make_lognormal_boundaries(count, 600)[place]).hex() == value


def one_by_one(
    lengths: list[float], budget: float, bounds: list[float], order: list[int]
) -> list[list[int]]:
    """Each sample to its bucket, and a bucket that is full is a batch."""
    sizes = [max(1, int(budget / bound)) for bound in bounds] + [1]
    waiting: list[list[int]] = [[] for _ in sizes]
    batches = []
    for number in order:
        bucket = sum(bound < lengths[number] for bound in bounds)
        waiting[bucket].append(number)
        if len(waiting[bucket]) == sizes[bucket]:
            batches.append(waiting[bucket])
            waiting[bucket] = []
    return batches + [rest for rest in waiting if rest]


@given(
    lengths=st.lists(st.integers(1, 60).map(float), min_size=1, max_size=60),
    bounds=st.lists(st.integers(1, 50).map(float), min_size=1, max_size=6, unique=True),
    budget=st.integers(10, 100),
    seed=st.integers(0, 1000),
)
def test_planning_all_at_once_gives_what_going_one_by_one_gives(
    lengths: list[float], bounds: list[float], budget: int, seed: int
) -> None:
    bounds = sorted(bounds)
    order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(seed)).tolist()
    expected = one_by_one(lengths, budget, bounds, order)
    sampler = sampler_of(lengths, budget, bucket_boundaries=bounds, seed=seed)
    assert sorted(sampler) == sorted(expected)
    assert len(sampler) == len(expected)
    in_order = sampler_of(lengths, budget, bucket_boundaries=bounds, shuffle=False)
    turns = torch.randperm(len(in_order), generator=torch.Generator().manual_seed(42)).tolist()
    unmixed = one_by_one(lengths, budget, bounds, list(range(len(lengths))))
    assert list(in_order) == [unmixed[turn] for turn in turns]


@given(
    lengths=st.lists(st.floats(0.01, 100), min_size=1, max_size=200),
    budget=st.floats(1, 100),
    buckets=st.integers(1, 50),
    most=st.none() | st.integers(1, 5),
)
def test_no_batch_is_above_the_budget_except_a_single_sample(
    lengths: list[float], budget: float, buckets: int, most: int | None
) -> None:
    sampler = sampler_of(lengths, budget, num_buckets=buckets, max_batch_ex=most)
    batches = list(sampler)
    assert sorted(chain(*batches)) == list(range(len(lengths)))
    for batch in batches:
        longest = max(sampler.get_durations(batch))
        assert len(batch) == 1 or len(batch) * longest <= budget * (1 + 1e-9)
        assert most is None or len(batch) <= most


def test_the_epoch_goes_up_by_itself_and_set_epoch_in_step_changes_nothing() -> None:
    forgotten, reminded = sampler_of(LENGTHS), sampler_of(LENGTHS)
    seen = []
    for epoch in range(3):
        reminded.set_epoch(epoch)
        assert list(forgotten) == list(reminded)
        seen.append(digest(forgotten.plan(epoch)))
    assert len(set(seen)) == 3
    reminded.set_epoch(1)
    assert digest(reminded) == seen[1]


def test_lengths_come_from_rows_from_columns_or_from_a_list() -> None:
    rows = {
        f"u{n}": {"duration": length, "frames": length * 100} for n, length in enumerate(LENGTHS)
    }
    expected = list(sampler_of(LENGTHS))
    for data in (Manifest(rows), Columns(rows)):
        assert list(DynamicBatchSampler(data, 600, 20)) == expected
        for frames in ("frames", lambda row: row["frames"]):
            assert list(DynamicBatchSampler(data, 60_000, 20, frames)) == expected
    tensor = torch.tensor(LENGTHS, dtype=torch.float64)
    assert list(sampler_of(tensor)) == expected


def test_a_sample_above_the_budget_is_alone_left_out_or_an_error() -> None:
    lengths = [3.0, 11.0, 4.0, 30.0]
    alone = sampler_of(lengths, 10)
    assert alone.over_budget.tolist() == [1, 3]
    assert sorted(batch for batch in alone if 1 in batch or 3 in batch) == [[1], [3]]
    skipped = sampler_of(lengths, 10, over="skip")
    assert sorted(chain(*skipped)) == [0, 2]
    assert len(skipped) == len(list(skipped))
    with pytest.raises(SampleError, match=r"sample 1 has 11 \(2 of 4 samples are longer\)"):
        sampler_of(lengths, 10, over="error")


@pytest.mark.parametrize("bad", [None, float("nan"), float("inf"), 0, -2.5, "long"])
def test_a_length_that_is_none_names_its_sample(bad: Any) -> None:
    with pytest.raises(SampleError, match="finite number above 0: sample 2 has"):
        sampler_of([1.0, 2.0, bad, 3.0])
    rows = {"a": {"duration": 1.0}, "b": {"duration": bad}}
    with pytest.raises(SampleError, match=r"sample 1 \('b'\) has"):
        DynamicBatchSampler(Manifest(rows), 10, 2)


def test_a_row_without_a_length_names_its_id() -> None:
    rows: dict[str, dict[str, Any]] = {"a": {"duration": 1.0}, "b": {"text": "x"}}
    with pytest.raises(SampleError, match=r"length of sample 'b' is missing.*'duration'"):
        DynamicBatchSampler(Manifest(rows), 10, 2)
    with pytest.raises(SampleError, match=r"sample 1 \('b'\) has nan"):
        DynamicBatchSampler(Columns(rows), 10, 2)


def test_no_samples_are_no_batches() -> None:
    for arguments in ({}, {"shuffle": False, "batch_ordering": "ascending"}, {"drop_last": True}):
        sampler = sampler_of([], **arguments)
        assert (len(sampler), list(sampler), list(sampler)) == (0, [], [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_buckets": None}, "give num_buckets"),
        ({"num_buckets": 0}, "at least 1"),
        ({"bucket_boundaries": [1, 3, 2]}, "must increase"),
        ({"bucket_boundaries": [1, 1]}, "must increase"),
        ({"bucket_boundaries": [0, 1]}, "above 0"),
        ({"batch_ordering": "longest"}, "random, ascending, descending"),
        ({"over": "drop"}, "alone, skip, error"),
        ({"max_batch_ex": 0}, "at least 1 sample"),
        ({"budget": 0}, "max_batch_length"),
        ({"budget": float("nan")}, "max_batch_length"),
    ],
)
def test_arguments_that_cannot_work_are_told(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises((PipelineError, SampleError), match=message):
        sampler_of([1.0, 2.0], **arguments)


def test_lengths_must_be_as_many_as_samples_and_must_be_somewhere() -> None:
    with pytest.raises(PipelineError, match="3 lengths for 2 samples"):
        DynamicBatchSampler(range(2), 10, 2, lengths_list=[1, 2, 3])
    with pytest.raises(PipelineError, match="give lengths_list"):
        DynamicBatchSampler(range(2), 10, 2)


def test_verbose_logs_the_batches_of_the_first_epoch(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "penstock.datasets"):
        sampler = sampler_of([1.0, 2.0, 3.0], 6, num_buckets=2, verbose=True)
        list(sampler)
        told = len([line for line in caplog.messages if line.startswith("batch ")])
        list(sampler)
    assert told == len(sampler)
    assert len([line for line in caplog.messages if line.startswith("batch ")]) == told
    assert sum("a batch" in line for line in caplog.messages) == 2


def test_it_is_the_batch_sampler_of_a_torch_loader_and_can_be_sent_to_another_process() -> None:
    data = torch.arange(50)
    lengths = [float(1 + n % 9) for n in range(50)]
    sampler = pickle.loads(pickle.dumps(sampler_of(lengths, 30)))
    expected = list(sampler_of(lengths, 30))
    loader = torch.utils.data.DataLoader(data, batch_sampler=sampler)
    assert [batch.tolist() for batch in loader] == expected
    assert len(loader) == len(expected)


def test_lengths_of_a_manifest_that_is_filtered_are_those_that_are_left() -> None:
    rows = {f"u{n}": {"duration": length} for n, length in enumerate(LENGTHS)}
    data = DynamicItemDataset(rows)
    assert list(DynamicBatchSampler(data, 600, 20)) == list(sampler_of(LENGTHS))
    short = data.filtered_sorted(key_max_value={"duration": 30}, sort_key="duration", reverse=True)
    sampler = DynamicBatchSampler(short, 600, 20)
    kept = sorted((length for length in LENGTHS if length <= 30), reverse=True)
    assert sampler.lengths.tolist() == kept
    by_function = DynamicBatchSampler(short, 600, 20, lambda row: row["duration"])
    assert list(by_function) == list(sampler)
    classes = DynamicItemDataset({str(n): {"speaker": "abb"[n % 3]} for n in range(30)})
    weights = BalancingDataSampler(classes, "speaker").weights
    assert weights.tolist() == BalancingDataSampler(Classes(), "speaker").weights.tolist()


class Classes:
    def __len__(self) -> int:
        return 30

    def column(self, name: str) -> Any:
        return np.array(list("abb" * 10))
