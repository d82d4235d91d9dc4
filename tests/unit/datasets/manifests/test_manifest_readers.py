"""Manifests from files: JSON, JSON lines, CSV, Parquet, Arrow; and files that are wrong."""

from __future__ import annotations

import io
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import DynamicItemDataset
from penstock.datasets.manifests import json_stream as jsonpairs
from penstock.datasets.manifests.json_stream import JsonPairs
from penstock.errors import ManifestError, MissingPackage, StorageError

ROWS = {
    "u1": {
        "wav": "{root}/a.wav",
        "duration": 1.5,
        "words": "so {laughs} $5",
        "tags": ["{root}", 1],
    },
    "u2": {"wav": "{root}/b.wav", "duration": 2, "words": "yes", "tags": []},
}


@pytest.fixture
def written(tmp_path):
    """Writes a text file and gives its path."""

    def write(text, name="m.json"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.mark.parametrize("indent", [None, 2])
def test_json_is_read_with_replacements_in_values_only(written, indent):
    path = written(json.dumps(ROWS, indent=indent))
    data = DynamicItemDataset.from_json(path, {"root": "/data"}).data
    assert data["u1"] == {
        "wav": "/data/a.wav", "duration": 1.5, "words": "so {laughs} $5", "tags": ["/data", 1],
    }  # fmt: skip
    assert data["u2"]["duration"] == 2
    assert type(data["u2"]["duration"]) is int


def test_several_replacements_are_made_at_once(written):
    path = written('{"a": {"x": "{one}{two}", "y": "{one}"}}')
    data = DynamicItemDataset.from_json(path, {"one": "{two}", "two": 2}).data
    assert data["a"] == {"x": "{two}2", "y": "{two}"}


def test_braces_in_a_text_need_no_replacement(written):
    path = written('{"a": {"x": "{laughs} a {b"}}')
    assert DynamicItemDataset.from_json(path).data["a"] == {"x": "{laughs} a {b"}


def test_a_folder_that_was_not_given_is_told(written):
    with pytest.raises(ManifestError, match=r"\{root\}/.*replacements=.*m\.json"):
        DynamicItemDataset.from_json(written(json.dumps(ROWS)), {"rot": "/data"})


def test_the_first_arguments_are_those_of_the_reference(written):
    path = written('{"a": {"x": 1}}')
    item = {"func": lambda x: -x, "takes": "x", "provides": "y"}
    assert DynamicItemDataset.from_json(path, {}, [item], ["y"])[0] == {"y": -1}


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "line 1"),
        ("[]", r"line 1: '\{' is expected"),
        ("{", "line 1"),
        ('{"a": {"x": 1}', "line 1: ',' or '}'.*end of the file"),
        ('{"a": {"x": 1},\n"b": {"x" 1}}', "line 2"),
        ('{"a": {"x": 1},\n\n"b": {"x": nope}}', "line 3"),
        ('{"a": {"x": 1}\n"b": {}}', "line 2"),
        ('{"a": {"x": 1},\n}', "line 2: an id"),
        ('{"a": {"x": "', "line 1: Unterminated"),
        ('{"a": {}}\n{"b": {}}', "line 2: more stands behind"),
        ('{"a": 3}', r"not int .*sample 'a'"),
        ('{"a": {"id": 3}}', r"'id' is kept .*sample 'a'"),
        ('{"a": {}, "b": {}, "a": {}}', r"stands again in row 3 .*sample 'a'"),
        ('{"a": ' + "[" * 100_000, "nested too deep"),
    ],
)
def test_json_that_is_wrong_is_told_with_file_and_line(written, text, where):
    with pytest.raises(ManifestError, match=where) as caught:
        DynamicItemDataset.from_json(written(text))
    assert "m.json" in str(caught.value)


def test_an_empty_object_is_an_empty_data_set(written):
    assert len(DynamicItemDataset.from_json(written(" {\n} "))) == 0


def test_a_file_that_is_no_text_or_is_not_there_is_told(tmp_path):
    (tmp_path / "m.json").write_bytes(b'{"a": {"x": "\xff"}}')
    with pytest.raises(ManifestError, match="UTF-8"):
        DynamicItemDataset.from_json(tmp_path / "m.json")
    with pytest.raises(StorageError, match=r"none\.json"):
        DynamicItemDataset.from_json(tmp_path / "none.json")


def test_half_a_surrogate_pair_comes_back(written):
    path = written('{"a": {"x": "\\ud800"}, "\\ud801": {"x": "b"}}')
    assert dict(DynamicItemDataset.from_json(path).data) == {
        "a": {"x": "\ud800"},
        "\ud801": {"x": "b"},
    }


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text("},{\":\\ a\n")
    | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("}, "), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


@given(
    st.lists(st.tuples(st.text(), VALUES), max_size=12),
    st.integers(1, 60),
    st.sampled_from([None, 1]),
    st.booleans(),
)
def test_json_read_in_blocks_of_any_size_is_json(pairs, block, indent, short):
    body = ",".join(f"{json.dumps(k)}: {json.dumps(v, indent=indent)}" for k, v in pairs)
    before = jsonpairs.BLOCK, jsonpairs.SHORT
    jsonpairs.BLOCK, jsonpairs.SHORT = block, 0 if short else 1 << 12
    try:
        read = [pair for some in JsonPairs(io.StringIO("{" + body + "}"), "m") for pair in some]
    finally:
        jsonpairs.BLOCK, jsonpairs.SHORT = before
    assert read == pairs


def test_json_lines_have_their_id_inside(written):
    path = written('{"id": "a", "n": 1}\n\n{"n": 2, "id": "b"}\n', "m.jsonl")
    assert dict(DynamicItemDataset.from_jsonl(path).data) == {"a": {"n": 1}, "b": {"n": 2}}
    path = written('{"n": 1}\n{"n": 2}', "m.jsonl")
    assert DynamicItemDataset.from_jsonl(path, id_key=None).data[1] == {"n": 2}


@pytest.mark.parametrize(
    ("line", "what"),
    [("{", "line 2"), ("[]", "line 2: a row is"), ("{}", "line 2: a row has its id under 'id'")],
)
def test_a_wrong_line_is_told(written, line, what):
    path = written('{"id": "a"}\n' + line, "m.jsonl")
    with pytest.raises(ValueError, match=rf"{what}.*m\.jsonl"):
        DynamicItemDataset.from_jsonl(path)


def test_csv_has_durations_as_numbers_and_the_rest_as_texts(written):
    text = (
        "ID, duration, wav, words\n"
        'u1, 1.5, $root/a.wav, "it\'s $5, ok"\n\n'
        "u2, 2, $root/b.wav, $rooted\n"
    )
    data = DynamicItemDataset.from_csv(written(text, "m.csv"), {"root": "/data"}).data
    assert data["u1"] == {"duration": 1.5, "wav": "/data/a.wav", "words": "it's $5, ok"}
    assert data["u2"] == {"duration": 2.0, "wav": "/data/b.wav", "words": "$rooted"}


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("wav\nx\n", "column 'ID'"),
        ("", "column 'ID'"),
        ("ID,wav\nu1\n", "line 2: the row has 1 values, the header 2"),
        ("ID,wav\nu1,a\nu2,a,b\n", "line 3"),
        ("ID,duration\nu1,1\nu2,long\n", "line 3: a duration is a number, not 'long'"),
        ("ID,x\nu1,1\nu1,2\n", "stands again in row 2"),
        ("ID,id\nu1,1\n", "none is 'id'"),
        ("ID,x\nu1,$root/a\n", "replacements="),
    ],
)
def test_csv_that_is_wrong_is_told_with_file_and_line(written, text, what):
    with pytest.raises(ValueError, match=what) as caught:
        DynamicItemDataset.from_csv(written(text, "m.csv"))
    assert "m.csv" in str(caught.value)


def test_a_csv_without_ids_is_a_key_error(written):
    with pytest.raises(KeyError):
        DynamicItemDataset.from_csv(written("wav\nx\n", "m.csv"))


def test_parquet_and_arrow_give_the_same_rows(tmp_path):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    count = (1 << 16) + 10
    table = pa.table(
        {"id": [f"u{i}" for i in range(count)], "n": range(count), "x": [None, 2.5] * (count // 2)}
    )
    pq.write_table(table, tmp_path / "m.parquet", row_group_size=1000)
    dataset = DynamicItemDataset.from_parquet(tmp_path / "m.parquet")
    assert len(dataset) == count
    assert dataset.data["u65540"] == {"n": 65540, "x": None}
    assert dataset.column("n").sum() == sum(range(count))
    numbered = DynamicItemDataset.from_arrow_dataset(table.drop(["id"]), output_keys=["id", "n"])
    assert numbered[65541] == {"id": 65541, "n": 65541}
    assert numbered.data[3] == {"n": 3, "x": 2.5}
    assert DynamicItemDataset.from_arrow_dataset(table, id_key="id").data["u3"]["x"] == 2.5
    with pytest.raises(ValueError, match="'id' is kept"):
        DynamicItemDataset.from_arrow_dataset(table)


class Foreign:
    """Like a data set of Hugging Face: rows by number, columns by name."""

    column_names = ("n", "text")

    def __init__(self):
        self.reads = 0

    def __len__(self):
        return 3

    def __getitem__(self, key):
        if isinstance(key, str):
            return [self[i][key] for i in range(3)]
        self.reads += 1
        return {"n": key * 1.5, "text": f"t{key}"}


def test_a_foreign_data_set_stays_where_it_is_and_is_not_changed():
    foreign = Foreign()
    dataset = DynamicItemDataset.from_arrow_dataset(foreign, output_keys=["id", "n", "text"])
    assert foreign.reads == 0
    assert dataset[2] == {"id": 2, "n": 3.0, "text": "t2"}
    assert foreign.reads == 1
    assert not hasattr(foreign, "keys")
    assert dataset.filtered_sorted({"n": 1}, sort_key="n", reverse=True).data_ids == [2, 1]


def test_what_is_no_arrow_data_set_is_told():
    with pytest.raises(ManifestError, match="list is none"):
        DynamicItemDataset.from_arrow_dataset([])


def test_everything_but_parquet_works_without_pyarrow(written, monkeypatch):
    path = written(json.dumps(ROWS))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert len(DynamicItemDataset.from_json(path, {"root": ""})) == 2
    with pytest.raises(MissingPackage, match=r"penstock\[index\]"):
        DynamicItemDataset.from_parquet(path)
