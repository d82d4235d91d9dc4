"""Sources that every worker process would repeat are reported, and no others."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import IterableDataset, get_worker_info

import penstock as wds
from penstock.stages.sources.split import Split

INDEX = "all.index"
ITEMS = [{"__key__": str(number), "x": number} for number in range(6)]


class Numbers(IterableDataset):  # type: ignore[type-arg]
    """A user's own, which gives each worker its part."""

    def __iter__(self) -> Any:
        info = get_worker_info()
        assert info is not None
        return iter(range(info.id, 6, info.num_workers))


class Own(wds.DataPipeline):  # type: ignore[type-arg]
    """A user's own kind of pipeline."""


class OwnSplit(Split):
    def part(self, context: Any) -> tuple[int, int]:
        return context.worker, context.num_workers


def part(source: Any = ITEMS) -> Any:
    info = get_worker_info()
    assert info is not None
    return [item for number, item in enumerate(source) if number % info.num_workers == info.id]


def mine(item: Any) -> bool:
    info = get_worker_info()
    assert info is not None
    return bool(item["x"] % info.num_workers == info.id)


def loader(data: Any, **options: Any) -> Any:
    return wds.WebLoader(data, **{"batch_size": None, "num_workers": 2, **options})


@pytest.mark.parametrize(
    "data",
    [
        lambda urls: wds.DataPipeline(ITEMS),
        lambda urls: wds.DataPipeline(range(6), wds.map(abs), wds.batched(2, None)),
        lambda urls: wds.DataPipeline(ITEMS, wds.split_by_node, wds.shuffle(3)),
        lambda urls: wds.DataPipeline(wds.SimpleShardList(urls), wds.tarfile_to_samples()),
        lambda urls: wds.DataPipeline(wds.DataPipeline(ITEMS), wds.map(dict)),
        lambda urls: wds.RoundRobin([wds.WebDataset(urls), ITEMS]),
    ],
)
def test_what_each_worker_gives_all_of_is_told_with_the_remedy(data: Any, shards: Any) -> None:
    with pytest.warns(UserWarning, match="each of the 2 worker processes yields all of") as seen:
        loader(data(shards(2, 3)))
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert "split_by_worker" in str(seen[0].message)
    assert "engine='threads'" in str(seen[0].message)


def test_the_warning_tells_the_truth_and_the_remedies_help() -> None:
    with pytest.warns(UserWarning, match="yields all of range"):
        assert sorted(loader(wds.DataPipeline(range(6)))) == sorted([*range(6)] * 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sorted(loader(wds.DataPipeline(range(6), wds.split_by_worker))) == [*range(6)]
        assert sorted(loader(wds.DataPipeline(range(6)), engine="threads")) == [*range(6)]


@pytest.mark.parametrize(
    "data",
    [
        lambda urls: wds.WebDataset(urls, shardshuffle=2),
        lambda urls: wds.WebDataset(urls, shardshuffle=2).select(mine).batched(2),
        lambda urls: wds.WebDataset(urls, shardshuffle=False, workersplitter=None),
        lambda urls: wds.WebDataset(urls, resampled=True),
        lambda urls: wds.WebDataset(urls, shardshuffle=2, index=INDEX),
        lambda urls: wds.RoundRobin([wds.WebDataset(urls), wds.WebDataset(urls, index=INDEX)]),
        lambda urls: wds.RandomMix([wds.WebDataset(urls), Numbers()]),
        lambda urls: wds.DataPipeline(wds.RandomMix([wds.WebDataset(urls)]), wds.map(dict)),
        lambda urls: wds.DataPipeline(wds.ResampledShards(urls), wds.tarfile_to_samples()),
        lambda urls: wds.DataPipeline(
            wds.SimpleShardList(urls), wds.split_by_worker, wds.tarfile_to_samples()
        ),
        lambda urls: wds.DataPipeline(ITEMS, OwnSplit()),
        lambda urls: wds.DataPipeline(ITEMS, wds.resampled()),
        lambda urls: wds.DataPipeline(ITEMS, wds.repeat()),
        lambda urls: wds.DataPipeline(ITEMS, wds.select(mine)),
        lambda urls: wds.DataPipeline(ITEMS, wds.shuffle(6)).with_epoch(10),
        lambda urls: wds.DataPipeline(ITEMS, part),
        lambda urls: wds.DataPipeline(part),
        lambda urls: wds.DataPipeline(Numbers()),
        lambda urls: Own(ITEMS),
        lambda urls: Numbers(),
        lambda urls: ITEMS,
    ],
)
def test_there_is_no_false_alarm(
    data: Any, shards: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    urls = shards(2, 3)
    wds.build_index(urls, INDEX)
    made = data(urls)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader(made)


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 0}, {"num_workers": 1}, {"engine": "threads"}, {"worker_init_fn": print}],
)
def test_where_nothing_comes_twice_nothing_is_told(options: dict[str, Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loader(wds.DataPipeline(ITEMS), **options)
