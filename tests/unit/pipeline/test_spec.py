"""Data sets described in YAML and JSON files."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import penstock as wds
from penstock.cli import main
from penstock.storage.urls import UrlLimit

WRONG = Path(__file__).parent / "wrong_specs"
EXPECTED: dict[str, list[str]] = json.loads((WRONG / "expected.json").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_wrong_spec_is_refused_with_file_line_and_column(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(WRONG)
    place, words = EXPECTED[name]
    with pytest.raises(wds.PenstockError) as error:
        wds.load_spec(name)
    message = str(error.value)
    assert message.startswith(f"{name}:{place}: "), message
    assert words in message


def test_every_wrong_spec_has_an_expectation() -> None:
    files = {path.name for path in WRONG.iterdir()} - {"expected.json", "fine.yaml"}
    assert files == set(EXPECTED)
    assert len(files) >= 60


def test_specs_are_bounded(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.yaml"
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    bomb.write_text("\n".join(["a0: &a0 [x]", *levels, "dataset: *a8"]))
    with pytest.raises(wds.PipelineError, match="more than 1,000,000 values"):
        wds.load_spec(bomb)
    bomb.write_text("[" * 100_000)
    with pytest.raises(wds.PipelineError, match=r"nested too deeply|not YAML"):
        wds.load_spec(bomb)
    bomb.write_bytes(b"a: b\n# " + b"x" * (17 << 20))
    with pytest.raises(wds.PipelineError, match="at most 16 MiB"):
        wds.load_spec(bomb)


SOURCE = {"shards": "a-{000000..399999}.tar"}
LONG = "x" * 9000


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"dataset": [SOURCE, SOURCE, SOURCE]}, "more than 1,000,000 shards in all"),
        ({"dataset": [SOURCE, {"include": "part.json"}, SOURCE]}, "shards in all"),
        ({"dataset": [{"shards": "a.tar", "join": {"shards": "{0..999999}.tar"}}]}, "in all"),
        ({"prefix": LONG, "datasets": [{"shards": "{0..99999}"}]}, "at most"),
        (
            {"vars": {"a": LONG, "b": "${a}" * 9000}, "dataset": [{"shards": "${b}.tar"}]},
            "the variables have more than",
        ),
        (
            {"prefix": "$a" * 9000, "vars": {"a": LONG}, "datasets": [{"shards": "b.tar"}]},
            "the variables have more than",
        ),
    ],
)
def test_a_small_spec_of_many_shards_or_long_names_is_refused(
    spec: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "part.json").write_text(json.dumps({"dataset": [SOURCE]}))
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    with pytest.raises(wds.PipelineError, match=words) as error:
        wds.load_spec(tmp_path / "spec.json")
    assert str(error.value).startswith(f"{tmp_path}/spec.json:1:")


def test_shards_of_wids_below_a_long_folder_are_counted_by_their_characters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("penstock.pipeline.spec.UrlLimit", lambda: UrlLimit(10))
    with pytest.raises(wds.PipelineError, match="more than 10 shards in all, or 5,120 characters"):
        wds.load_spec({"shardlist": [{"url": "a.tar"}] * 2, "base": "x" * 3000})


@pytest.mark.parametrize("name", ["flat.yaml", "flat.json"])
def test_a_long_flat_list_is_refused_before_it_is_composed(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(f'{{"dataset": [{"1," * 260_000}1]}}')
    with pytest.raises(wds.PipelineError, match=rf"{name}:1:\d+: .* more than 250,000 values"):
        wds.load_spec(path)


@pytest.mark.parametrize("name", ["a.yaml", "a.json"])
@pytest.mark.parametrize("number", ["9" * 10_000, "-" + "1" * 5000, "9" * 400, str(1 << 64)])
def test_a_number_of_too_many_digits_is_an_error_of_the_spec(
    name: str, number: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(f'{{"dataset": [{{"shards": "a.tar", "scale": {number}}}]}}')
    with pytest.raises(wds.PipelineError, match=rf"{name}:1:\d+: (this|a number)"):
        wds.WebDataset(path)


def test_a_number_of_too_many_hexadecimal_digits_is_an_error_of_the_spec(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(f"dataset: [{{shards: a.tar, weight: 0x{'f' * 10_000}}}]")
    with pytest.raises(wds.PipelineError, match=r"a.yaml:1:\d+: a number"):
        wds.load_spec(path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three sets of two shards each: a (20 samples), b (10), c (30)."""
    for name, count in (("a", 20), ("b", 10), ("c", 30)):
        for shard in range(2):
            with wds.TarWriter(str(tmp_path / f"{name}-{shard}.tar")) as sink:
                for n in range(shard, count, 2):
                    sink.write({"__key__": f"{name}{n:03d}", "cls": n})
    return tmp_path


DOCUMENT = """
dataset:
  - shards: a-{0..1}.tar
    scaleprob: 0.3
  - shards: b-{0..1}.tar
    extensions: nrm.jpg
    scale: [0.3, 1.0]
"""


@pytest.mark.parametrize("index", [None, True])
def test_spec_of_the_document_gives_every_sample_once_with_its_options(
    folder: Path, index: Any
) -> None:
    (folder / "train.yaml").write_text(DOCUMENT)
    samples = list(wds.WebDataset(str(folder / "train.yaml"), index=index, shardshuffle=2))
    assert Counter(s["__source__"] for s in samples) == {"0": 20, "1": 10}
    assert len({s["__key__"] for s in samples}) == 30
    tags = {s["__source__"]: s["__tags__"] for s in samples}
    assert tags == {
        "0": {"scaleprob": 0.3},
        "1": {"extensions": "nrm.jpg", "scale": [0.3, 1.0]},
    }
    with wds.TarWriter(str(folder / "copy.tar")) as sink:
        sink.write({**samples[0], "cls": 1})  # writers leave both out
    (copied,) = wds.WebDataset(str(folder / "copy.tar"))
    assert "__tags__" not in copied


def test_json_and_dict_are_read_alike(folder: Path) -> None:
    spec = {"dataset": [{"shards": str(folder / "a-{0..1}.tar"), "name": "a"}]}
    (folder / "train.json").write_text(json.dumps(spec))
    for source in (spec, folder / "train.json", wds.load_spec(spec)):
        assert len(list(wds.WebDataset(source))) == 20
    assert len(wds.WebDataset(spec, index=True)) == 20


FULL = """
penstock: 1
vars: {root: "${STAGE_FOLDER:-.}", name: a}
mix: quota
until: all
sources:
  - name: one
    shards: ${root}/${name}-{0..1}.tar
    weight: {linear: {0: 5, 200: 1}}
    where: "bytes > 0"
    fraction: 0.9
    scale: 3
  - include: inner.yaml
    name: two
    weight: 2
    outer: true
splits:
  val: {sources: [{shards: "b-{0..1}.tar", fold: {of: 2, use: 0}}]}
  test: [{shards: "b-{0..1}.tar", fold: {of: 2, use: 1}}]
  other: inner.yaml
"""
INNER = """
dataset:
  - {shards: "b-{0..1}.tar", name: b, scale: 1}
  - {shards: "c-{0..1}.tar", name: c, keys: "c00?"}
"""


def test_own_form_has_weights_subsets_includes_and_splits(folder: Path) -> None:
    (folder / "train.yaml").write_text(FULL)
    (folder / "inner.yaml").write_text(INNER)
    path = folder / "train.yaml"
    samples = list(wds.WebDataset(path, index=True))
    assert {s["__source__"] for s in samples} == {"one", "two/b", "two/c"}
    tags = {s["__source__"]: s["__tags__"] for s in samples}
    assert tags["two/b"] == {"outer": True, "scale": 1}
    assert tags["one"] == {"scale": 3}
    assert {s["__key__"] for s in samples if s["__source__"] == "two/c"} == {
        f"c{n:03d}" for n in range(10)
    }
    val = {s["__key__"] for s in wds.WebDataset(path, split="val")}
    test = {s["__key__"] for s in wds.WebDataset(path, split="test")}
    assert val | test == {f"b{n:03d}" for n in range(10)}
    assert not val & test
    assert len(list(wds.WebDataset(path, split="other"))) == 20
    with pytest.raises(wds.PipelineError, match=r"train.yaml:17:1: .*no split 'dev'"):
        wds.WebDataset(path, split="dev")
    spec = wds.load_spec(path, vars={"name": "c"})
    assert spec.sources[0].shards[0].endswith("c-0.tar")
    assert "one: " in str(spec)
    assert "splits: val, test, other" in str(spec)


def test_state_of_a_spec_resumes(folder: Path) -> None:
    (folder / "train.yaml").write_text(FULL)
    (folder / "inner.yaml").write_text(INNER)

    def make() -> Any:
        return wds.WebDataset(folder / "train.yaml", index=True, shardshuffle=2, lanes=4)

    expected = [s["__key__"] for s in make()]
    first = make()
    stream = iter(first)
    head = [next(stream)["__key__"] for _ in range(13)]
    second = make()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert head + [s["__key__"] for s in second] == expected


def test_shards_yml_of_webdataset_is_read(folder: Path) -> None:
    text = f"""
prefix: {folder}/
buckets: ""
datasets:
  - name: a
    shards: [a-0.tar, a-1.tar]
    choose: 1
  - name: c
    shards: c-{{0..1}}.tar
    resample: 4
"""
    (folder / "x.shards.yml").write_text(text)
    found = Counter(s["__source__"] for s in wds.WebDataset(folder / "x.shards.yml", index=True))
    assert found == {"a": 10, "c": 60}


def test_shards_yml_has_variables_and_at_most_one_bucket(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGE_FOLDER", str(folder))
    (folder / "sub").mkdir()
    (folder / "sub" / "b-0.tar").write_bytes((folder / "b-0.tar").read_bytes())
    (folder / "x.shards.yml").write_text(
        "prefix: $STAGE_FOLDER/\nbuckets: []\ndatasets:\n"
        "  - {name: a, shards: '${LETTER:-a}-{0..1}.tar'}\n"
        "  - {name: b, buckets: [sub], shards: b-0.tar}\n"
    )
    found = Counter(s["__source__"] for s in wds.WebDataset(folder / "x.shards.yml"))
    assert found == {"a": 20, "b": 5}


def test_wids_json_is_read(folder: Path) -> None:
    shards = [{"url": f"a-{n}.tar", "nsamples": 10} for n in range(2)]
    wids = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": shards}
    (folder / "wids.json").write_text(json.dumps(wids))
    assert len(list(wds.WebDataset(folder / "wids.json"))) == 20


def test_split_of_a_spec_without_splits_is_refused(folder: Path) -> None:
    wids = {"__kind__": "wids-shard-index-v1", "shardlist": [{"url": "a-0.tar", "nsamples": 10}]}
    (folder / "wids.json").write_text(json.dumps(wids))
    (folder / "x.shards.yml").write_text("datasets: [{shards: a-0.tar}]")
    for name in ("wids.json", "x.shards.yml"):
        with pytest.raises(wds.PipelineError, match="no split 'val'"):
            wds.WebDataset(folder / name, split="val")
    spec = wds.load_spec(folder / "wids.json")
    with pytest.raises(wds.PipelineError, match="chosen when a spec is read"):
        wds.WebDataset(spec, split="val")


def test_function_of_a_file_is_called_from_code_only(folder: Path) -> None:
    (folder / "data.py").write_text(
        f"def make():\n    return {{'dataset': [{{'shards': '{folder}/a-{{0..1}}.tar'}}]}}\n"
        "def pipeline():\n    import penstock\n    return penstock.DataPipeline([1, 2])\n"
    )
    assert len(list(wds.WebDataset(wds.load_spec(f"{folder}/data.py:make")))) == 20
    assert list(wds.WebDataset(wds.load_spec(f"{folder}/data.py:pipeline"))) == [1, 2]
    with pytest.raises(wds.PipelineError, match="no function 'other'"):
        wds.load_spec(f"{folder}/data.py:other")


def test_commands_need_permission(folder: Path) -> None:
    spec = {"dataset": [{"shards": f"pipe:cat {folder}/a-0.tar"}]}
    with pytest.raises(wds.UnsafeError, match="allow_pipe=True"):
        wds.WebDataset(spec)
    assert len(list(wds.WebDataset(spec, allow_pipe=True))) == 10
    with pytest.raises(wds.UnsafeError, match="allow_pipe=True"):
        wds.WebDataset({"dataset": [{"shards": "{pipe:cat a,-}"}]})


PLAIN = """
dataset:
  - name: 007
    shards: a-{0..1}.tar
    rate: 1e-3
    country: no
    switch: off
    day: 2024-01-31
    time: 1:30
    count: 007
    mask: 0x1F
    on: true
    nothing:
"""


def test_tags_are_those_of_yaml_1_2(folder: Path) -> None:
    (folder / "train.yaml").write_text(PLAIN)
    (source,) = wds.load_spec(folder / "train.yaml").sources
    assert source.name == "007"
    assert source.tags == {
        **{"rate": 0.001, "country": "no", "switch": "off", "day": "2024-01-31", "time": "1:30"},
        **{"count": 7, "mask": 31, "on": True, "nothing": None},
    }


def test_json_has_the_values_of_json(folder: Path) -> None:
    tags = {"rate": 1e-3, "text": "\U0001f600\t", "\U0001f600": [True, None]}
    spec = {"dataset": [{"shards": "a-{0..1}.tar", **tags}]}
    (folder / "train.json").write_text(json.dumps(spec, indent="\t"))
    assert wds.load_spec(folder / "train.json").sources[0].tags == tags


def test_merged_keys_are_replaced_by_own_ones(folder: Path) -> None:
    (folder / "train.yaml").write_text(
        "dataset:\n- &first {shards: 'a-{0..1}.tar', scale: 1, rate: 2}\n- {<<: *first, scale: 3}\n"
    )
    first, second = wds.load_spec(folder / "train.yaml").sources
    assert second.shards == first.shards
    assert second.tags == {"scale": 3, "rate": 2}


def test_variables_have_texts_as_written_and_defaults_with_braces(folder: Path) -> None:
    (folder / "train.yaml").write_text(
        "vars: {shard: 0, other: 001, none: }\n"
        "dataset:\n"
        "- shards: a-${shard}${none}.tar\n"
        "- {name: b, shards: 'b-${NOBODY:-{0..1}}.tar', where: \"key != '${other}'\"}\n"
        "- {name: c, shards: '${NOBODY:-${NOBODY2:-c}-${shard}}.tar', keys: '${NOBODY:-c}0*'}\n"
    )
    one, two, three = wds.load_spec(folder / "train.yaml").sources
    assert [Path(url).name for url in one.shards] == ["a-0.tar"]
    assert [Path(url).name for url in two.shards] == ["b-0.tar", "b-1.tar"]
    assert two.subset == {"where": "key != '001'"}
    assert [Path(url).name for url in three.shards] == ["c-0.tar"]
    assert three.subset == {"keys": "c0*"}


@pytest.mark.parametrize(
    ("line", "position", "words"),
    [
        ("where: widht > 3", "4:12", "no column 'widht'"),
        ("fold: {of: 2, use: 0, by: page}", "4:11", "no column 'page'"),
        ("keys: nowhere.txt", "4:11", "nowhere.txt"),
        ("join: {shards: 'b-{0..1}.tar', fields: [txt]}", "4:11", "no sample of"),
    ],
)
def test_fault_that_only_the_index_shows_has_line_and_column(
    folder: Path, line: str, position: str, words: str
) -> None:
    (folder / "train.yaml").write_text(
        f"dataset:\n  - name: x\n    shards: a-{{0..1}}.tar\n    {line}\n"
    )
    with pytest.raises(wds.PipelineError, match=words) as error:
        len(wds.WebDataset(folder / "train.yaml", index=True))
    assert f"train.yaml:{position}: " in str(error.value)


def test_arguments_that_belong_into_the_spec_are_refused(folder: Path) -> None:
    with pytest.raises(wds.PipelineError, match="where cannot be combined with a spec"):
        wds.WebDataset({"dataset": [{"shards": "a.tar"}]}, where="a > 1")
    with pytest.raises(wds.PipelineError, match="splits of a spec"):
        wds.WebDataset("a.tar", split="val")


def test_spec_command_checks_and_shows(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.yaml").write_text(FULL)
    (folder / "inner.yaml").write_text(INNER)
    assert main(["spec", "check", str(folder / "train.yaml")]) == 0
    assert "3 sources, 6 shards, no faults found" in capsys.readouterr().out
    assert main(["spec", "show", str(folder / "train.yaml"), "--json", "--samples", "30"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["schema"] == "penstock.spec-show/1"
    rows = {row["name"]: row for row in shown["sources"]}
    assert (rows["two/b"]["shards"], rows["two/b"]["samples"]) == (2, 10)
    assert rows["two/c"]["samples"] == 10
    assert sum(row["share"] for row in rows.values()) == pytest.approx(1)
    assert rows["one"]["requests_per_1000"] is None
    assert main(["spec", "show", str(folder / "train.yaml")]) == 0
    assert "two/c" in capsys.readouterr().out
    sources: list[dict[str, Any]] = [{"include": "inner.yaml", "weight": 3}]
    sources += [{"shards": "a-0.tar", "weight": 1}]
    sources += [{"name": "off", "shards": "nowhere.tar", "weight": 0}]
    (folder / "nested.json").write_text(json.dumps({"sources": sources}))
    assert main(["spec", "show", str(folder / "nested.json"), "--json", "--samples", "400"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["sources"]}
    assert rows["0/b"]["share"] + rows["0/c"]["share"] == pytest.approx(0.75, abs=0.05)
    assert rows["0/b"]["passes"] == pytest.approx(15, abs=1)  # of 300 samples b and c have 10 each
    assert (rows["off"]["samples"], rows["off"]["share"]) == (None, 0)
    assert main(["spec", "show", str(folder / "nested.json")]) == 0
    capsys.readouterr()
    assert main(["spec", "check", str(WRONG / "misspelt_weight.yaml")]) != 0
    assert "misspelt_weight.yaml:3:5" in capsys.readouterr().err
