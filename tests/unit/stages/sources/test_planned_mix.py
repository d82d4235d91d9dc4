"""``mix``: what it takes, what it refuses, and what its samples carry."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import warnings
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

import penstock as wds
from penstock.shards.index import open_index
from penstock.shards.index.random_access import _OpenShard


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sources a (60 samples), b (30) and c (10), in three shards each."""
    found = tmp_path_factory.mktemp("sources")
    for name, count in (("a", 60), ("b", 30), ("c", 10)):
        for shard in range(3):
            with wds.TarWriter(str(found / f"{name}-{shard}.tar")) as sink:
                for n in range(shard, count, 3):
                    sink.write({"__key__": f"{name}{n:03d}", "cls": n})
        open_index(str(found / f"{name}-{{0..2}}.tar"), True)
    return found


def source(folder: Path, name: str, **options: Any) -> Any:
    options = {"index": True, "shardshuffle": 2, **options}
    return wds.WebDataset(str(folder / f"{name}-{{0..2}}.tar"), **options)


def all_three(folder: Path, *args: Any, **options: Any) -> Any:
    return wds.mix({name: source(folder, name) for name in "abc"}, *args, **options)


def test_without_weights_every_sample_comes_once(folder: Path) -> None:
    pipeline = all_three(folder)
    keys = [sample["__key__"] for sample in pipeline]
    assert len(keys) == len(set(keys)) == len(pipeline) == 100
    again = [sample["__key__"] for sample in pipeline]
    assert sorted(again) == sorted(keys)
    assert again != keys


def test_passes_may_be_parts(folder: Path) -> None:
    counts = Counter(s["__key__"] for s in all_three(folder, [1, 2.5, 0], mode="epochs"))
    assert Counter(counts.values()) == {1: 60, 2: 15, 3: 15}


@pytest.mark.parametrize(("until", "total"), [("each", 100), ("first", None), ("all", None)])
def test_until_ends_the_epoch(folder: Path, until: str, total: int | None) -> None:
    pipeline = all_three(folder, [1, 1, 1], until=until)
    length = len(pipeline)  # of the epoch that comes next
    counts = Counter(s["__source__"] for s in pipeline)
    assert sum(counts.values()) == length == (total or length)
    if until == "first":
        assert counts["c"] == 10
    if until == "all":
        assert counts["a"] == 60
        assert counts["b"] > 30


def test_mixture_without_end_has_no_length_and_repeats(folder: Path) -> None:
    pipeline = all_three(folder, [1, 1, 1], until="forever")
    with pytest.raises(TypeError):
        len(pipeline)
    assert len(list(islice(iter(pipeline), 5000))) == 5000
    stats = pipeline.stats().sources
    assert sum(one.samples for one in stats.values()) == 5000
    assert stats["a"].target == pytest.approx(1 / 3)
    assert stats["c"].passes == pytest.approx(stats["c"].samples / 10)
    assert len(list(all_three(folder, [1, 1, 1], until="forever").with_epoch(70))) == 70


def test_source_of_weight_zero_is_never_opened(folder: Path) -> None:
    gone = wds.WebDataset("no/such-{0..9}.tar", index=True)
    pipeline = wds.mix([source(folder, "a"), gone], [1, 0], until="forever")
    assert {s["__source__"] for s in islice(iter(pipeline), 100)} == {"0"}


@pytest.mark.parametrize(
    ("weights", "options", "words"),
    [
        ([1, -1, 1], {}, "weight of 'b' is a number of at least 0"),
        ([1, float("nan"), 1], {}, "weight of 'b'"),
        ([0, 0, 0], {}, "all sources are 0"),
        ([1, 1], {}, "3 sources and 2 weights"),
        ({"a": 1, "b": 1, "d": 1}, {}, "no source 'd'"),
        ({"a": 1, "b": 1}, {}, "'c' has no weight"),
        ("abc", {}, "weights is a list or a dict"),
        ([1, 1, 1], {"mode": "blend"}, "mode is one of"),
        ([1, 1, 1], {"until": "end"}, "until is one of"),
        (None, {"until": "all"}, "needs weights"),
        ([1, 1, 1], {"mode": "epochs", "until": "all"}, "decide the end"),
        ([{"step": {0: 1, 5: 2}}, 1, 1], {"mode": "epochs"}, "numbers of passes"),
    ],
)
def test_wrong_arguments_are_refused(
    folder: Path, weights: Any, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(wds.PipelineError, match=words):
        all_three(folder, weights, **options)


def test_no_sources_are_refused() -> None:
    for wrong in ([], {}, "abc", 3):
        with pytest.raises(wds.PipelineError, match="mix"):
            wds.mix(wrong)  # type: ignore[arg-type]


def plus(sample: Any) -> Any:
    return {**sample, "cls": int(sample["cls"]) + 1000}


def fail_on_seven(sample: Any) -> Any:
    if int(sample["cls"]) == 7:
        raise ValueError("seven")
    return sample


def test_stages_of_a_source_apply_to_its_samples_alone(folder: Path) -> None:
    parts = {"a": source(folder, "a").map(plus), "b": source(folder, "b").decode()}
    pipeline = wds.mix(parts)
    for engine in ("processes", "threads"):
        loader = wds.WebLoader(pipeline, batch_size=None, engine=engine)
        found = {s["__key__"]: int(s["cls"]) for s in loader}
        assert found["a005"] == 1005
        assert found["b005"] == 5
        assert len(found) == 90


def test_handler_of_a_source_skips_its_samples(folder: Path) -> None:
    skipping = source(folder, "a").map(fail_on_seven, handler=wds.ignore_and_continue)
    keys = {s["__key__"] for s in wds.mix([skipping, source(folder, "b")])}
    assert len(keys) == 89
    assert "a007" not in keys
    with pytest.raises(ValueError, match="seven"):
        list(wds.mix([source(folder, "a").map(fail_on_seven), source(folder, "b")]))


def test_source_that_changes_the_number_of_samples_is_mixed_as_a_stream(folder: Path) -> None:
    parts = [source(folder, "a").select(lambda s: int(s["cls"]) % 2), source(folder, "b")]
    pipeline = wds.mix(parts, [1, 1], until="each")
    assert "mixed as streams, since '0' has the stage select" in pipeline.describe()
    assert Counter(s["__source__"] for s in pipeline) == {"0": 30, "1": 30}
    assert pipeline.stats().sources["0"].samples == 30


@pytest.mark.parametrize("mode", ["quota", "random"])
@pytest.mark.parametrize("until", ["first", "all", "each", "forever"])
def test_streams_are_mixed_with_the_same_words(folder: Path, mode: str, until: str) -> None:
    parts = {name: source(folder, name, index=None) for name in "abc"}

    def make() -> Any:
        return wds.mix(parts, [3, 2, 1], mode=mode, until=until)

    keys = [s["__key__"] for s in islice(iter(make()), 400)]
    counts = Counter(key[0] for key in keys)
    if until == "each":
        assert sorted(keys) == sorted(set(keys))
        assert len(keys) == 100
    if until == "all":
        assert min(counts["a"] - 60, counts["b"] - 30, counts["c"] - 10) >= 0
    if until == "forever":
        assert counts["a"] == pytest.approx(200, abs=1 if mode == "quota" else 40)
    first = make()
    stream = iter(first)
    head = [next(stream)["__key__"] for _ in range(11)]
    second = make()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert head + [s["__key__"] for s in islice(iter(second), len(keys) - 11)] == keys


def test_same_shards_twice_are_noticed(folder: Path) -> None:
    with pytest.warns(UserWarning, match="'0' and '1' both read"):
        wds.mix([source(folder, "a"), source(folder, "a")], [1, 1])
    inner = wds.mix([source(folder, "a"), source(folder, "b")])
    with pytest.warns(UserWarning, match="'0' and '1' both read"):
        wds.mix([inner, source(folder, "a")])
    streams = [source(folder, "a", index=None) for _ in range(2)]
    with pytest.warns(UserWarning, match="'0' and '1' both read"):
        wds.mix(streams)


def test_parts_of_the_same_shards_are_not_noticed(folder: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        wds.mix([source(folder, "a", fold=wds.Fold(2, use)) for use in range(2)])
        wds.mix([source(folder, "a").select(bool), source(folder, "a").select(callable)])
        wds.mix([source(folder, "a"), source(folder, "a")], [1, 0])


def test_stream_of_weight_0_is_never_opened(folder: Path) -> None:
    nowhere = wds.WebDataset(str(folder / "nowhere.tar"), index=True)
    pipeline = wds.mix([source(folder, "a").select(bool), nowhere], [1, 0])
    stream = iter(pipeline)
    next(stream)
    state = json.loads(json.dumps(pipeline.state_dict()))
    assert len(list(stream)) == 59
    earlier = {**state, "data": "that of all sources"}  # as saved by earlier versions
    del earlier["mixture"], earlier["check"]
    for one in (state, earlier):
        second = wds.mix([source(folder, "a").select(bool), nowhere], [1, 0])
        second.load_state_dict(one)
        assert len(list(second)) == 59


def test_mixture_travels_to_worker_processes(folder: Path) -> None:
    pipeline = all_three(folder, [1, 1, 1], until="each")
    copied = pickle.loads(pickle.dumps(pipeline))
    assert [s["__key__"] for s in copied] == [s["__key__"] for s in pipeline]
    loader = wds.WebLoader(all_three(folder), batch_size=None, num_workers=2)
    assert len({s["__key__"] for s in loader}) == 100


def test_hundred_sources_keep_few_files_open(tmp_path: Path) -> None:
    parts = []
    for number in range(100):
        for shard in range(2):
            with wds.TarWriter(str(tmp_path / f"s{number:03d}x-{shard}.tar")) as sink:
                sink.write({"__key__": f"{number}-{shard}", "cls": number})
        parts.append(wds.WebDataset(str(tmp_path / f"s{number:03d}x-{{0..1}}.tar"), index=True))
    before = len(_OpenShard.open_files)
    most = 0
    for _ in islice(iter(wds.mix(parts, [1] * 100, until="forever")), 500):
        most = max(most, len(_OpenShard.open_files) - before)
    assert 32 < most <= 64


@pytest.mark.parametrize(
    "code",
    [
        "import penstock as wds; wds.mix([[1]]); from penstock.mix import RandomMix",
        "from penstock.mix import RandomMix; import penstock as wds; wds.mix([[1]])",
        "import penstock.mix, penstock as wds; wds.mix([[1]]); wds.mix.RoundRobin",
        "import penstock as wds; m = wds.mix; import penstock.mix; m([[1]]); wds.mix([[1]])",
        "import penstock.mix, pickle; pickle.loads(pickle.dumps(penstock.mix))([[1]])",
    ],
)
def test_mix_is_a_function_and_a_module_in_any_order_of_import(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sources_that_share_an_index_file_extend_it_while_they_are_mixed(tmp_path: Path) -> None:
    for source in range(20):
        with wds.TarWriter(str(tmp_path / f"s{source:02d}.tar")) as sink:
            for n in range(5):
                sink.write({"__key__": f"{source}-{n}", "cls": n})
    sources = [
        wds.WebDataset(str(tmp_path / f"s{n:02d}.tar"), index=True, shardshuffle=4)
        for n in range(20)
    ]
    mixed = wds.mix(sources, [1] * 20, until="forever")
    next(iter(mixed))
    copy = pickle.loads(pickle.dumps(mixed))  # as for a worker process
    for pipeline in (copy, mixed):
        assert len({sample["__source__"] for sample in islice(pipeline, 200)}) == 20


def test_index_that_another_process_replaces_is_opened_again(tmp_path: Path) -> None:
    for name in "ab":
        with wds.TarWriter(str(tmp_path / f"{name}-0.tar")) as sink:
            sink.write({"__key__": name, "cls": 1})
        wds.build_index(str(tmp_path / f"{name}-0.tar"), tmp_path / f"{name}.index.parquet")
    sources = [wds.WebDataset(str(tmp_path / f"{n}-0.tar"), index=True) for n in "ab"]
    (stage,) = wds.mix(sources).pipeline
    stage.parts[0].samples.opened()
    index = tmp_path / "a.index.parquet"
    (tmp_path / "new").write_bytes(index.read_bytes())
    (tmp_path / "new").replace(index)
    assert [sample["__key__"] for sample in wds.DataPipeline(stage)] in (["a", "b"], ["b", "a"])
