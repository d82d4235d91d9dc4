"""Mixtures read small samples ahead, shard by shard."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock as wds
from penstock.context import Context
from penstock.shards.index import SampleReader, open_index
from penstock.stages.sources import read_ahead
from penstock.stages.sources.mixed_samples import MixedSamples

SOURCES, SHARDS, EACH = 40, 2, 12


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources of two shards with 12 samples each; every fifth sample has more than 16 KiB."""
    found = tmp_path_factory.mktemp("sources")
    for source in range(SOURCES):
        for shard in range(SHARDS):
            with wds.TarWriter(str(found / f"s{source:02d}x-{shard}.tar")) as sink:
                for n in range(EACH):
                    key = f"{source:02d}-{shard}-{n:02d}"
                    size = 40_000 if n % 5 == 4 else 30 * n
                    sink.write({"__key__": key, "a": key.encode(), "b": bytes(size)})
        open_index(str(found / f"s{source:02d}x-{{0..1}}.tar"), True)
    return found


def mixture(folder: Path, *, weights: Any = None, handler: Any = None, **options: Any) -> Any:
    chosen = {} if handler is None else {"handler": handler}
    parts = [
        wds.WebDataset(
            str(folder / f"s{n:02d}x-{{0..1}}.tar"), index=True, shardshuffle=2, **chosen
        )
        for n in range(SOURCES)
    ]
    return wds.mix(parts, weights, **options)


def stage_of(pipeline: Any) -> MixedSamples:
    stage = pipeline.pipeline[0]
    assert isinstance(stage, MixedSamples)
    return stage


def test_samples_are_those_that_are_read_one_by_one(folder: Path) -> None:
    pipeline = mixture(folder, weights=[1 + n % 3 for n in range(SOURCES)], until="all")
    stage = stage_of(pipeline)
    order = stage.order(0, 0)
    found = list(pipeline)
    assert found == [stage.reader.read(order.row(n)) for n in range(len(order))]


@pytest.mark.parametrize(("lanes", "run"), [(1, 7), (6, 1), (6, 5), (12, 16)])
def test_lanes_of_a_process_share_what_is_read(folder: Path, lanes: int, run: int) -> None:
    def make() -> Any:
        return wds.DataPipeline(mixture(folder), lanes=lanes).listed(run)

    keys = [sample["__key__"] for batch in make() for sample in batch]
    assert len(keys) == len(set(keys)) == SOURCES * SHARDS * EACH
    first = make()
    begun = [s["__key__"] for batch in islice(iter(first), 9) for s in batch]
    second = make()
    second.load_state_dict(first.state_dict())
    assert begun + [s["__key__"] for batch in second for s in batch] == keys


@pytest.mark.filterwarnings("ignore:.*both read")
def test_rows_of_many_positions_are_those_of_each(folder: Path) -> None:
    inner = mixture(folder, weights=[1] * SOURCES, until="each")
    outer = wds.mix({"a": inner, "b": mixture(folder)}, [2, 1], until="forever")
    for pipeline in (inner, outer):
        order = stage_of(pipeline).order(3, 1)
        positions = np.arange(0, 900, 3)
        assert order.rows(positions).tolist() == [order.row(n) for n in positions.tolist()]
        assert order.rows(positions[:0]).tolist() == []


def test_shard_is_opened_once_for_many_samples(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[int] = []
    original = SampleReader._open
    monkeypatch.setattr(
        SampleReader, "_open", lambda self, number: opened.append(number) or original(self, number)
    )
    # Large samples are read when they are used, and would open shards as well.
    monkeypatch.setattr(read_ahead, "LATER_BYTES", 1 << 20)
    pipeline = mixture(folder, weights=[1] * SOURCES, until="forever")
    stream = iter(pipeline)
    for _ in islice(stream, 8191):  # the windows of 1, 2, 4, … 4096 samples
        pass
    opened.clear()
    for _ in islice(stream, 8192):
        pass
    assert len(opened) < 4 * SOURCES * SHARDS


def test_few_bytes_are_read_ahead(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "WINDOW_BYTES", 20_000)
    pipeline = mixture(folder)
    stage = stage_of(pipeline)
    ahead = stage.order(0, 0).read_ahead(Context(), 0, 1)
    for position in range(len(stage.order(0, 0))):
        ahead.fill(position, len(pipeline))
        assert sum(len(s["b"]) for s in ahead.samples.values()) <= 40_000
        ahead.samples.pop(position, None)
    keys = {sample["__key__"] for sample in pipeline}
    assert len(keys) == len(pipeline)


def test_samples_that_nobody_takes_are_dropped(folder: Path) -> None:
    ahead = stage_of(mixture(folder)).order(0, 0).read_ahead(Context(), 0, 1)
    total = SOURCES * SHARDS * EACH
    for position in range(0, 200, 40):  # as after skip()
        ahead.fill(position, total)
    assert max(ahead.samples) < 200
    ahead.fill(900, total)
    ahead.fill(901, total)
    ahead.fill(903, total)
    assert min(ahead.samples) >= 900
    ahead.fill(5, total)  # the lane is far behind: it reads alone
    assert 5 not in ahead.samples
    ahead.clear()
    assert not ahead.samples
    ahead.fill(5, total)
    assert list(ahead.samples) in ([5], [])  # a large sample is not read ahead


def test_iterator_that_is_left_frees_what_was_read_ahead(folder: Path) -> None:
    pipeline = mixture(folder)
    order = stage_of(pipeline).order(0, 0)
    stream = iter(pipeline)
    for _ in islice(stream, 100):
        pass
    ahead = order.read_ahead(Context(), 0, 1)
    assert ahead.samples
    del stream
    assert not ahead.samples
    assert len(list(pipeline)) == len(pipeline)


def test_error_comes_with_the_sample_that_cannot_be_read(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    pipeline = mixture(tmp_path)
    order, stage = stage_of(pipeline).order(0, 0), stage_of(pipeline)
    bad = tmp_path / "s07x-1.tar"
    rows = map(stage.origin_of, map(order.row, range(len(order))))
    urls = [origin.url for origin in rows]
    first = urls.index(str(bad))
    bad.write_bytes(bad.read_bytes()[:2048])
    stream = iter(pipeline)
    assert len([next(stream) for _ in range(first)]) == first
    with pytest.raises(wds.StaleIndexError, match="2,048 bytes"):
        next(stream)
    rest = list(mixture(tmp_path, handler=wds.ignore_and_continue))
    assert len(rest) == SOURCES * SHARDS * EACH - EACH


def test_joined_samples_are_read_ahead(folder: Path, tmp_path: Path) -> None:
    with wds.TarWriter(str(tmp_path / "more.tar")) as sink:
        for n in range(0, EACH, 2):
            sink.write({"__key__": f"00-0-{n:02d}", "c": b"more" * n})
    join = wds.Join(str(tmp_path / "more.tar"), missing="fill", fill={"c": b"none"})
    names = [str(folder / f"s{n:02d}x-{{0..1}}.tar") for n in range(2)]
    joined = wds.WebDataset(names[0], index=True, shardshuffle=2, join=join)
    pipeline = wds.mix([joined, wds.WebDataset(names[1], index=True, shardshuffle=2)])
    stage = stage_of(pipeline)
    order = stage.order(0, 0)
    rows = [order.row(n) for n in range(len(order))]
    sizes = [len(sample.get("c", b"")) for sample in pipeline]
    assert sizes == [len(stage.reader.read(row).get("c", b"")) for row in rows]
    assert max(sizes) == 40
    assert sorted(stage.parts[0].samples.sizes_of(np.array([1, 2])).tolist()) == [2048, 3072]
