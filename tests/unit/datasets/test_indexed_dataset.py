"""Shards as a map-style data set."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from penstock import (
    DataPipeline,
    DecodingError,
    DynamicBatchSampler,
    PlannedBatchSampler,
    RoundRobin,
    SampleError,
    ShardWriter,
    WebDataset,
    WebLoader,
    build_index,
)
from penstock.datasets.indexed_dataset import IndexedDataset


@pytest.fixture
def urls(tmp_path: Path) -> str:
    with ShardWriter(f"{tmp_path}/x-%03d.tar", maxcount=4) as sink:
        for number in range(10):
            sink.write({"__key__": f"k{number}", "cls": number, "txt": f"text {number}"})
    return f"{tmp_path}/x-{{000..002}}.tar"


def label(sample: dict[str, Any]) -> Any:
    return sample["cls"]


def test_it_gives_what_reading_in_order_gives(urls: str) -> None:
    dataset = IndexedDataset(urls, local_paths=True)
    expected = list(WebDataset(urls, shardshuffle=False))
    assert list(dataset) == expected
    assert [dataset[n] for n in reversed(range(len(dataset)))] == expected[::-1]
    assert dataset[-1] == expected[-1]


def test_making_one_reads_nothing(tmp_path: Path) -> None:
    dataset = IndexedDataset(f"{tmp_path}/nothing-{{0..1}}.tar").decode().map(label)
    assert "not read yet" in repr(dataset)
    with pytest.raises(OSError, match="nothing-"):
        len(dataset)


def test_a_slice_is_a_data_set(urls: str) -> None:
    dataset = IndexedDataset(urls).decode().map(label)
    assert list(dataset[2:6]) == [2, 3, 4, 5]
    assert list(dataset[::-3]) == [9, 6, 3, 0]
    assert list(dataset[2:8][::2][-2:]) == [4, 6]
    assert list(dataset.subset([7, 1, -1])[:2]) == [7, 1]
    assert dataset[2:4].keys == ["k2", "k3"]
    assert len(dataset[20:]) == 0


def test_a_number_out_of_range_is_an_index_error(urls: str) -> None:
    dataset = IndexedDataset(urls)
    for number in (10, -11):
        with pytest.raises(IndexError, match="the data set has 10"):
            dataset[number]
    with pytest.raises(IndexError):
        dataset.subset([10])


def test_a_sample_by_its_key(urls: str) -> None:
    dataset = IndexedDataset(urls, transformations=["rgb8", label])
    assert dataset.by_key("k7") == 7
    assert dataset[5:8].by_key("k7") == 7
    for where, key in ((dataset, "nobody"), (dataset[5:7], "k7")):
        with pytest.raises(SampleError, match=key):
            where.by_key(key)


def test_transforms_are_added_to_this_or_to_a_new_one(urls: str) -> None:
    dataset = IndexedDataset(urls)
    mapped = dataset.decode().map(label)
    assert type(dataset[3]) is dict
    assert mapped[3] == 3
    assert dataset.add_transform(len) is dataset
    assert dataset[3] == 4


def test_an_error_in_a_transform_says_where(urls: str) -> None:
    dataset = IndexedDataset(urls).map(lambda sample: sample["jpg"])
    with pytest.raises(KeyError) as caught:
        dataset[5]
    assert "x-001.tar, sample 'k5' at byte" in caught.value.__notes__[0]
    bad = IndexedDataset(urls).map(lambda sample: {**sample, "json": b"{"}).decode()
    with pytest.raises(DecodingError):
        bad[0]


def test_runs_are_the_shards(urls: str) -> None:
    dataset = IndexedDataset(urls)
    assert dataset.runs() == [(0, 4), (4, 8), (8, 10)]
    assert dataset[2:9].runs() == [(0, 2), (2, 6), (6, 7)]
    assert dataset[3:3].runs() == []


def test_it_can_be_pickled_before_and_after_use(urls: str) -> None:
    dataset = IndexedDataset(urls).decode().map(label)
    assert pickle.loads(pickle.dumps(dataset))[3] == 3
    dataset[0]
    assert list(pickle.loads(pickle.dumps(dataset[4:6]))) == [4, 5]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_it_goes_to_torch_workers(urls: str, method: str) -> None:
    data = pytest.importorskip("torch.utils.data")
    dataset = IndexedDataset(urls).decode().map(label)
    dataset[0]
    loader = data.DataLoader(
        dataset, batch_size=3, num_workers=2, multiprocessing_context=method, shuffle=False
    )
    assert [batch.tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]


def test_a_column_of_a_slice_has_the_samples_of_the_slice(tmp_path: Path) -> None:
    with ShardWriter(f"{tmp_path}/c-%03d.tar", maxcount=4, verbose=0) as sink:
        for number in range(10):
            sink.write({"__key__": f"k{number}", "txt": "x" * (number + 1)})
    columns = {"duration": "txt:bytes"}
    index = build_index(f"{tmp_path}/c-{{000..002}}.tar", tmp_path / "i.parquet", columns=columns)
    data = IndexedDataset(f"{tmp_path}/c-{{000..002}}.tar", index=index)
    assert data.column("duration").tolist() == list(range(1, 11))
    part = data[8:2:-2]
    assert part.column("duration").tolist() == [9, 7, 5]
    assert PlannedBatchSampler(part, budget=100).lengths.tolist() == [9, 7, 5]
    assert DynamicBatchSampler(part, 100, 2).lengths.tolist() == [9, 7, 5]


def test_a_loader_and_a_mix_take_it_as_it_is(urls: str) -> None:
    pytest.importorskip("torch")
    dataset = IndexedDataset(urls).decode().map(label)
    loader = WebLoader(dataset, batch_size=4, num_workers=0)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    pipeline = DataPipeline(RoundRobin([dataset, dataset]))
    stream = iter(pipeline)
    assert [next(stream) for _ in range(4)] == [0, 0, 1, 1]
    resumed = DataPipeline(RoundRobin([dataset, dataset]))
    resumed.load_state_dict(pipeline.state_dict())
    with pytest.warns(UserWarning, match="run again up to the saved step"):
        assert list(resumed) == list(stream)
