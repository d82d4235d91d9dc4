"""Where a loader's time goes: the slow part is named, the parts sum, the exports can be read."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.engine.segment_run import TOLD_ITEMS
from penstock.errors import PipelineError
from penstock.loaders.stats import bottleneck
from penstock.loaders.stats.recorder import StatsRecorder
from penstock.loaders.stats.stats import StageStats, Stats

SLEEP_S = 0.005


@pytest.fixture(autouse=True)
def _short_runs_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bottleneck, "SHORT_S", 0.05)


def slowly(value: Any) -> Any:
    time.sleep(SLEEP_S)
    return value


def slow_source() -> Iterator[dict[str, Any]]:
    for number in range(64):
        time.sleep(SLEEP_S)
        yield {"__key__": str(number), "x": np.zeros(4)}


def quick_source() -> list[dict[str, Any]]:
    return [{"__key__": str(n), "x": np.full(4, n), "raw": bytes(1000)} for n in range(64)]


def computing(sample: Any) -> Any:
    begin = time.thread_time()
    while time.thread_time() - begin < SLEEP_S:
        np.linalg.svd(np.ones((40, 40)))
    return sample


def heavy_collation(samples: list[Any]) -> Any:
    time.sleep(0.03)
    return len(samples)


def loader_of(source: Any, *stages: Any, engine: str = "threads", workers: int = 2) -> Any:
    data = penstock.DataPipeline(source, *stages)
    return penstock.WebLoader(data, batch_size=None, num_workers=workers, engine=engine)


def stats_after(loader: Any, step_s: float = 0.0) -> Stats:
    for _ in loader:
        if step_s:
            time.sleep(step_s)
    found: Stats = loader.stats()
    return found


# ── the interpreter's lock ──────────────────────────────────────────────────────────────


def contended(**changed: Any) -> Stats:
    """Figures as measured where sixteen threads and a trainer shared one lock."""
    figures: dict[str, Any] = {
        "engine": "threads",
        "workers": 16,
        "seconds": 13.5,
        "batches": 100,
        "cores": 16,
        "cores_busy": 5.0,
        "machine_busy": 0.4,
        "pool_busy": 0.38,
        "pipeline": {"reading": 9.3, "inline": 0.0, "pool": 0.2, "batching": 2.8, "blocked": 0.7},
        "pipeline_cpu_s": 3.0,
        "trainer_wait_s": 0.1,
        "trainer_step_s": 12.9,
        "last_waits": (0.01,) * 10,
    }
    return Stats(**{**figures, **changed})


def test_a_trainer_that_is_slowed_by_the_lock_is_not_told_that_all_is_well() -> None:
    stats = contended()
    assert 0.69 < stats.held_up < 0.71
    assert "interpreter lock" in stats.bottleneck
    assert "penstock native build" in stats.bottleneck
    assert "would change nothing" not in stats.bottleneck


def test_a_trainer_that_waits_hears_of_the_lock_too() -> None:
    assert "interpreter lock" in contended(trainer_wait_s=6.0).bottleneck
    batching = {"reading": 1.0, "inline": 0.0, "pool": 0.2, "batching": 9.8, "blocked": 0.7}
    said = contended(trainer_wait_s=6.0, pipeline=batching).bottleneck
    assert "waits for the interpreter lock" in said


@pytest.mark.parametrize(
    "changed",
    [
        {"pipeline_cpu_s": 11.5},
        {"machine_busy": 0.95},
        {"workers": 1},
        {"pool_busy": 0.0},
        {"pipeline": {"reading": 1.0, "inline": 0.0, "pool": 0.2, "batching": 2.8, "blocked": 9.0}},
    ],
)
def test_the_lock_is_not_blamed_without_cause(changed: dict[str, Any]) -> None:
    assert "would change nothing" in contended(**changed).bottleneck


def test_only_the_last_waits_are_told_and_rounded() -> None:
    stats = stats_after(loader_of(range(100), penstock.map(abs)))
    assert len(stats.last_waits) == 32
    assert all(share == round(share, 4) for share in stats.last_waits)


# ── the slow part is named ──────────────────────────────────────────────────────────────


def test_a_slow_stage_is_named_with_its_share_of_the_threads() -> None:
    stats = stats_after(loader_of(quick_source(), penstock.map(slowly), penstock.batched(4, None)))
    assert re.search(r"map uses \d+% of 2 threads", stats.bottleneck), stats.bottleneck
    assert "waits for something itself" in stats.bottleneck


def test_of_two_stages_the_slower_one_is_named() -> None:
    stages = penstock.map_dict(x=np.abs), penstock.map(slowly), penstock.batched(4, None)
    stats = stats_after(loader_of(quick_source(), *stages))
    assert "map uses" in stats.bottleneck
    seconds = {stage.name: stage.seconds for stage in stats.stages}
    assert seconds["map"] > 10 * seconds["map_dict"]


def test_a_stage_that_computes_is_told_from_one_that_waits() -> None:
    stats = stats_after(
        loader_of(quick_source(), penstock.map(computing), penstock.batched(4, None))
    )
    assert "map uses" in stats.bottleneck
    assert stats.stages[0].cpu_seconds > 0.8 * 64 * SLEEP_S
    asleep = stats_after(loader_of(quick_source(), penstock.map(slowly), penstock.batched(4, None)))
    assert asleep.stages[0].cpu_seconds < 0.5 * 64 * SLEEP_S


def test_a_slow_trainer_is_named() -> None:
    loader = loader_of(quick_source(), penstock.map(dict), penstock.batched(4, None))
    stats = stats_after(loader, step_s=0.02)
    assert "the trainer sets the pace" in stats.bottleneck
    assert stats.wait_share < 0.05


def test_a_slow_reader_is_named() -> None:
    stats = stats_after(loader_of(slow_source, penstock.map(dict), penstock.batched(4, None)))
    assert "reading takes" in stats.bottleneck, stats.bottleneck


def slow_shards(folder: Path, shards: int = 8) -> list[str]:
    """Shards of a hundred small samples that take a tenth of a second to open."""
    with penstock.ShardWriter(f"{folder}/%d.tar", maxcount=100, verbose=0) as writer:
        for number in range(100 * shards):
            writer.write({"__key__": f"{number:04d}", "cls": number})
    return [f"pipe:sleep 0.1; cat '{folder}/{shard}.tar'" for shard in range(shards)]


@pytest.mark.parametrize("shuffled", [0, 50])
def test_shards_that_are_slow_to_open_are_reading_also_where_samples_are_cheap(
    tmp_path: Path, shuffled: int
) -> None:
    data = penstock.WebDataset(slow_shards(tmp_path), shardshuffle=False).shuffle(shuffled)
    data = data.decode().to_tuple("cls").batched(10)
    stats = stats_after(penstock.WebLoader(data, batch_size=None, num_workers=2, engine="threads"))
    assert "reading takes" in stats.bottleneck, stats.bottleneck
    assert 0.5 < stats.pipeline["reading"] < stats.later_s


def test_each_wait_for_a_source_is_reading_also_where_samples_are_cheap() -> None:
    def source() -> Iterator[dict[str, Any]]:
        for number in range(600):
            if number % 100 == 50:
                time.sleep(0.1)
            yield {"x": number}

    stats = stats_after(loader_of(source, penstock.map(dict), penstock.batched(10, None)))
    assert 0.6 <= stats.pipeline["reading"] < stats.later_s


def test_fields_left_for_later_are_reading_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.TarWriter(str(tmp_path / "a.tar")) as writer:
        for number in range(100):
            writer.write({"__key__": f"{number:04d}", "bin": bytes(100_000)})
    monkeypatch.setattr("penstock.engine.applying.whole_sample", slowly)
    monkeypatch.setattr("penstock.engine.item_cost.DEAR_SECONDS", 1.0)
    monkeypatch.setattr("penstock.engine.item_cost.CHEAP_SECONDS", 1.0)
    data = penstock.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False)
    data = data.to_tuple("__key__").batched(10)
    stats = stats_after(penstock.WebLoader(data, batch_size=None, num_workers=2, engine="threads"))
    assert "reading takes" in stats.bottleneck, stats.bottleneck


def test_without_a_stage_in_between_reading_and_batching_are_named_both(tmp_path: Path) -> None:
    data = penstock.WebDataset(slow_shards(tmp_path, 4), shardshuffle=False).listed(10)
    stats = stats_after(penstock.WebLoader(data, batch_size=None, num_workers=2, engine="threads"))
    assert "reading and making batches" in stats.bottleneck, stats.bottleneck


def test_slow_batching_is_named() -> None:
    stages = penstock.map(dict), penstock.batched(4, heavy_collation)
    stats = stats_after(loader_of(quick_source(), *stages))
    assert "making batches takes" in stats.bottleneck, stats.bottleneck


def test_cheap_stages_on_many_small_samples_are_told_apart_from_reading() -> None:
    source = [{"__key__": str(n), "x": n} for n in range(20_000)]
    stats = stats_after(loader_of(source, penstock.map(dict), penstock.batched(100, None)))
    assert stats.samples == 20_000
    assert stats.pipeline["inline"] > 0
    assert stats.stages[0].items == 20_000


def test_processes_tell_of_the_trainer_only() -> None:
    stages = penstock.split_by_worker, penstock.map(slowly), penstock.batched(2, None)
    loader = loader_of(quick_source(), *stages, engine="processes")
    stats = stats_after(loader)
    assert stats.engine == "processes"
    assert stats.stages == ()
    assert stats.samples is None
    assert "worker processes" in stats.bottleneck
    assert stats.wait_share > 0.5


def test_without_workers_the_trainers_own_thread_is_named() -> None:
    loader = loader_of(quick_source(), penstock.map(slowly), penstock.batched(4, None), workers=0)
    assert "trainer's own thread" in stats_after(loader).bottleneck


def test_few_batches_name_nothing() -> None:
    loader = loader_of(quick_source(), penstock.map(slowly), penstock.batched(16, None))
    assert "too short to say" in stats_after(loader).bottleneck


@pytest.mark.parametrize("changed", [{"batches": 7}, {"seconds": 1.4, "first_batch_s": 0.5}])
def test_a_short_run_gets_no_advice(
    changed: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bottleneck, "SHORT_S", 1.0)
    assert "interpreter lock" in contended().bottleneck
    said = contended(**changed).bottleneck
    assert "too short to say" in said
    assert "processes" not in said


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"cores": 8, "cores_busy": 7.9}, "all 8 cores are busy"),
        ({"cores": 32, "cores_busy": 7.9}, "decode uses 96% of 8 threads: add threads or decode"),
        ({"cores": 32, "cores_busy": 1.0, "cpu": 0.1}, "interpreter lock"),
        ({"cores": 32, "cores_busy": 0.2, "cpu": 0.1}, "waits for something itself"),
        ({"cores": 2, "cores_busy": 1.0, "machine_busy": 1.0, "cpu": 0.4}, "all 2 cores are busy"),
        ({"cores": 2, "cores_busy": 1.0, "machine_busy": 1.0, "cpu": 0.11}, "all 2 cores are busy"),
        ({"cores": 2, "cores_busy": 0.2, "machine_busy": 1.0, "cpu": 0.02}, "waits for something"),
        ({"cores": 2, "cores_busy": 1.0, "busy": 0.1}, "too small to be worth handing over"),
    ],
)
def test_the_remedy_depends_on_what_the_cores_do(given: dict[str, float], expected: str) -> None:
    cpu = given.pop("cpu", 1.0)
    stats = Stats(
        engine="threads",
        workers=8,
        seconds=10.0,
        batches=50,
        stages=(StageStats("decode", 100, 10.0, 10.0 * cpu, 0.96),),
        pool_busy=given.pop("busy", 0.97),
        pipeline={"reading": 0.1, "inline": 0.0, "pool": 9.0, "batching": 0.1, "blocked": 0.0},
        trainer_wait_s=5.0,
        trainer_step_s=5.0,
        last_waits=(0.5,) * 10,
        **given,  # type: ignore[arg-type]
    )
    assert expected in stats.bottleneck


@pytest.mark.parametrize(
    ("given", "both"),
    [
        ({"cores_busy": 1.0}, True),
        ({"cores_busy": 0.6}, True),
        ({"cores_busy": 1.6}, False),
        ({"cores_busy": 1.0, "cores": 1}, False),
        ({"cores_busy": 1.0, "workers": 1}, False),
        ({"cores_busy": 1.0, "interpreter_lock": False}, False),
    ],
)
def test_on_a_busy_machine_the_lock_is_named_where_it_may_be_the_lock(
    given: dict[str, Any], both: bool
) -> None:
    figures: dict[str, Any] = {"engine": "threads", "workers": 2, "cores": 2, "machine_busy": 1.0}
    stats = Stats(
        seconds=10.0,
        batches=50,
        stages=(StageStats("crop", 100, 10.0, 4.5, 0.96),),
        pool_busy=0.97,
        pipeline={"reading": 0.1, "inline": 0.0, "pool": 9.0, "batching": 0.1, "blocked": 0.0},
        trainer_wait_s=5.0,
        trainer_step_s=5.0,
        **{**figures, **given},
    )
    assert "cores are busy" in stats.bottleneck
    assert ("interpreter lock" in stats.bottleneck) == both
    assert ("other programs" in stats.bottleneck) == both


def test_cheap_samples_are_counted_while_they_come() -> None:
    loader = loader_of(range(3000), penstock.map(abs), penstock.batched(10, None))
    stream = iter(loader)
    for number, _ in enumerate(stream, 1):
        told = loader.stats().samples
        assert 10 * number - TOLD_ITEMS <= told < 10 * number + 1000, (number, told)
    assert loader.stats().samples == 3000


# ── the figures ─────────────────────────────────────────────────────────────────────────


def test_the_parts_sum_to_the_whole() -> None:
    stages = penstock.map_dict(x=np.abs), penstock.map(slowly), penstock.batched(4, None)
    stats = stats_after(loader_of(quick_source(), *stages))
    assert sum(stage.share for stage in stats.stages) == pytest.approx(stats.pool_busy)
    assert 0 < (stats.pool_busy or 0) <= 1
    assert all(seconds >= 0 for seconds in stats.pipeline.values())
    assert 0 < sum(stats.pipeline.values()) <= stats.seconds
    spent = stats.first_batch_s + stats.trainer_wait_s + stats.trainer_step_s
    assert spent == pytest.approx(stats.seconds)
    assert all(0 <= share <= 1 for share in stats.last_waits)


def test_samples_batches_and_bytes_are_counted() -> None:
    stats = stats_after(loader_of(quick_source(), penstock.map(slowly), penstock.batched(4, None)))
    assert (stats.samples, stats.batches) == (64, 16)
    assert stats.bytes_read is not None
    assert 64_000 < stats.bytes_read < 100_000
    assert stats.stages[0].items == 64
    assert stats.stages[0].seconds > 32 * SLEEP_S
    assert len(stats.last_waits) == 15  # the first batch is a start, not a wait


@pytest.mark.parametrize("size", [4, 10])
def test_the_rate_is_that_of_the_batches_after_the_first(size: int) -> None:
    def source() -> Iterator[Any]:
        time.sleep(0.5)  # a start
        yield from ((np.full(1000, n),) for n in range(64))

    stages = penstock.map(slowly), penstock.batched(size)
    stats = stats_after(loader_of(source, *stages), step_s=0.01)
    assert stats.samples == 64
    assert stats.later_samples == pytest.approx(64 - size, abs=0.1)
    later_s = stats.trainer_wait_s + stats.trainer_step_s
    assert stats.samples_per_s == pytest.approx(stats.later_samples / later_s)
    assert stats.first_batch_s > 0.5


def test_one_batch_has_no_rate() -> None:
    stats = stats_after(loader_of(quick_source(), penstock.map(slowly), penstock.batched(64, None)))
    assert stats.samples == 64
    assert stats.samples_per_s is None
    assert "samples/s" not in stats.line()


def test_cores_are_busy_by_what_is_computed_after_the_first_batch() -> None:
    gauge = StatsRecorder()
    stream = gauge.watched(iter([1, 2]))
    begin = time.process_time()
    while time.process_time() - begin < 0.2:
        pass  # a start
    next(stream)
    time.sleep(0.1)
    next(stream)
    stream.close()
    assert gauge.stats("threads", 1).cores_busy * 0.1 < 0.1


def test_each_epoch_begins_at_zero() -> None:
    loader = loader_of(quick_source(), penstock.map(dict), penstock.batched(4, None))
    assert stats_after(loader).batches == stats_after(loader).batches == 16


def test_skipped_samples_are_counted() -> None:
    def odd(sample: Any) -> Any:
        if int(sample["__key__"]) % 4 == 0:
            raise ValueError("no")
        return sample

    stages = penstock.map(odd, penstock.ignore_and_continue), penstock.batched(4, None)
    stats = stats_after(loader_of(quick_source(), *stages))
    assert stats.skipped == {"map": 16}
    assert "16 skipped" in stats.line()


def _slow(number: int) -> int:
    time.sleep(4e-4)
    return number


def _slow_and_some(number: int) -> int | None:
    return _slow(number) if number % 3 else None


def counted(data: Any) -> tuple[int | None, set[int]]:
    batches = data.batched(10, collation_fn=list)
    loader = penstock.WebLoader(batches, batch_size=None, num_workers=2, engine="threads")
    for _ in loader:
        pass
    return loader.stats().samples, {stage.items for stage in loader.stats().stages}


@pytest.mark.parametrize("number", [5, 9, 12, 80])
def test_every_item_of_a_stage_is_counted_also_where_no_chunk_was_timed(number: int) -> None:
    assert counted(penstock.DataPipeline(list(range(number))).map(_slow)) == (number, {number})


def test_items_behind_a_stage_that_drops_some_are_counted_by_what_was_read() -> None:
    data = penstock.DataPipeline(list(range(100))).map(_slow_and_some).map(_slow)
    assert counted(data) == (100, {100})


def test_samples_that_go_through_two_rows_of_stages_are_counted_once() -> None:
    data = penstock.DataPipeline(list(range(100))).map(_slow).shuffle(5, initial=5).map(_slow)
    assert counted(data) == (100, {100})


def test_a_full_queue_shows_as_depth() -> None:
    loader = loader_of(quick_source(), penstock.map(dict), penstock.batched(4, None))
    stats = stats_after(loader, step_s=0.01)
    assert stats.queue_limit is not None
    assert stats.queue_depth is not None
    assert 0 < stats.queue_depth <= stats.queue_limit
    assert stats.pipeline["blocked"] > 0


def test_a_device_tells_how_long_it_waited() -> None:
    loader = loader_of(quick_source(), penstock.map(slowly), penstock.batched(4, None))
    stats = stats_after(loader.to_device("cpu"))
    assert stats.device_wait_s is not None
    assert 0.5 * stats.trainer_wait_s < stats.device_wait_s <= stats.trainer_wait_s * 1.05
    assert "map uses" in stats.bottleneck


def test_an_abandoned_epoch_has_figures_too() -> None:
    loader = loader_of(quick_source(), penstock.map(slowly), penstock.batched(4, None))
    stream = iter(loader)
    for _ in range(5):
        next(stream)
    del stream
    assert loader.stats().batches == 5


def test_a_loader_that_never_ran_has_figures() -> None:
    stats = loader_of(quick_source(), penstock.batched(4, None)).stats()
    assert stats.batches == 0
    assert stats.line() == "waits 0%"


def test_the_cache_is_counted(tmp_path: Path) -> None:
    for number in range(2):
        with penstock.TarWriter(str(tmp_path / f"{number}.tar")) as writer:
            writer.write({"__key__": "a", "txt": "hello"})
    urls = [f"pipe:cat {tmp_path}/{number}.tar" for number in range(2)]
    data = penstock.WebDataset(urls, shardshuffle=False, cache_dir=str(tmp_path / "cache"))
    loader = penstock.WebLoader(data, batch_size=None, num_workers=1, engine="threads")
    first, second = stats_after(loader), stats_after(loader)
    assert (first.cache_hits, first.cache_fetches) == (0, 2)
    assert (second.cache_hits, second.cache_fetches) == (2, 2)
    assert "2 shards there, 2 fetched" in str(second)


# ── the exports ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
def some() -> Stats:
    stages = penstock.map_dict(x=np.abs), penstock.map(slowly), penstock.batched(4, None)
    return stats_after(loader_of(quick_source(), *stages))


def test_json_gives_the_same_value_back(some: Stats) -> None:
    again = Stats.from_json(some.to_json())
    assert again == some
    assert again.bottleneck == some.bottleneck
    assert json.loads(some.to_json())["wait_share"] == some.wait_share


def test_json_of_another_version_is_refused(some: Stats) -> None:
    values = json.loads(some.to_json())
    with pytest.raises(PipelineError, match="version 9"):
        Stats.from_json(json.dumps({**values, "version": 9}))


def test_a_trace_needs_a_loader(some: Stats, tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="from a file"):
        Stats.from_json(some.to_json()).to_trace(tmp_path / "trace.json")


METRIC = re.compile(r'^[a-z_]+(\{[a-z]+="(?:[^"\\]|\\.)*"\})? [-+0-9.e]+$')


def test_prometheus_text_can_be_read_by_its_rules(some: Stats) -> None:
    types: dict[str, str] = {}
    seen: list[str] = []
    for line in some.to_prometheus().splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name not in types, "the lines of a metric stand together"
            types[name] = kind
        elif not line.startswith("# HELP "):
            assert METRIC.match(line), line
            seen.append(re.split(r"[ {]", line)[0])
    assert set(seen) == set(types)
    assert set(types.values()) <= {"counter", "gauge"}
    assert "penstock_loader_stage_seconds_total" in types


def test_names_with_quotes_are_escaped() -> None:
    stage = StageStats('map("x\\y")', 1, 0.1, 0.1, 0.5)
    text = Stats(engine="threads", workers=1, stages=(stage,)).to_prometheus()
    assert r'stage="map(\"x\\y\")"' in text


def test_a_trace_has_what_its_viewers_need(some: Stats, tmp_path: Path) -> None:
    some.to_trace(tmp_path / "trace.json")
    trace = json.loads((tmp_path / "trace.json").read_text())
    work = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert work
    assert all(event.keys() >= {"name", "ts", "dur", "pid", "tid"} for event in work)
    assert all(event["ts"] >= 0 and event["dur"] >= 0 for event in work)
    names = {event["args"]["name"] for event in trace["traceEvents"] if event["ph"] == "M"}
    assert "trainer" in names
    assert any(name.startswith("worker") for name in names)
    assert {"map", "batch", "waits for data", "step"} <= {event["name"] for event in work}


def test_the_table_ends_with_the_sentence(some: Stats) -> None:
    lines = str(some).splitlines()
    assert lines[0].split() == ["stage", "items", "seconds", "CPU", "s", "share"]
    assert lines[-1] == some.bottleneck


def test_watching_gives_every_item_and_closes_the_stream() -> None:
    closed: list[bool] = []

    def source() -> Iterator[int]:
        try:
            yield from range(3)
        finally:
            closed.append(True)

    gauge = StatsRecorder()
    stream = gauge.watched(source())
    assert next(stream) == 0
    stream.close()
    assert closed == [True]
