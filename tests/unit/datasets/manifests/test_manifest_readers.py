"""Manifests from files: JSON, JSON lines, CSV, Parquet, Arrow; and files that are wrong."""

from __future__ import annotations

import contextlib
import io
import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import DynamicItemDataset
from penstock.datasets.manifests import json_stream as jsonpairs
from penstock.datasets.manifests.json_stream import JsonPairs
from penstock.errors import ManifestError, MissingPackage, PenstockError, StorageError

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
        ('{"a": {}}\n{"b": {}}', "line 2: there is more text after"),
        ('{"a": 3}', r"not int .*sample 'a'"),
        ('{"a": {"id": 3}}', r"'id' is reserved .*sample 'a'"),
        ('{"a": {}, "b": {}, "a": {}}', r"occurs again in row 3 .*sample 'a'"),
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
    [("{", "line 2"), ("[]", "line 2: a row must be"), ("{}", "line 2: .* id under 'id'")],
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
        ("ID,duration\nu1,1\nu2,long\n", "line 3: a duration must be a number, not 'long'"),
        ("ID,x\nu1,1\nu1,2\n", "occurs again in row 2"),
        ("ID,id\nu1,1\n", "none of them 'id'"),
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
    with pytest.raises(ValueError, match="'id' is reserved"):
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
    with pytest.raises(ManifestError, match="not list"):
        DynamicItemDataset.from_arrow_dataset([])


def test_everything_but_parquet_works_without_pyarrow(written, monkeypatch):
    path = written(json.dumps(ROWS))
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert len(DynamicItemDataset.from_json(path, {"root": ""})) == 2
    with pytest.raises(MissingPackage, match="pip install pyarrow"):
        DynamicItemDataset.from_parquet(path)


@pytest.mark.parametrize("rows", [1, 300])
def test_a_number_with_too_many_digits_is_told(written, rows):
    values = ["1"] * (rows - 1) + ["9" * 5000]
    pairs = [f'"u{n}": {{"x": {value}}}' for n, value in enumerate(values)]
    with pytest.raises(ManifestError, match=rf"line {rows}: .*digits.*m\.json"):
        DynamicItemDataset.from_json(written("{" + ",\n".join(pairs) + "}"))
    lines = [f'{{"id": "u{n}", "x": {value}}}' for n, value in enumerate(values)]
    with pytest.raises(ManifestError, match=rf"line {rows}: .*digits.*m\.jsonl"):
        DynamicItemDataset.from_jsonl(written("\n".join(lines), "m.jsonl"))


@pytest.mark.parametrize("depth", [300, 450, 900, 3000, 100_000])
def test_values_nested_deep_are_read_or_told(written, depth):
    """Parsing, packing and reading a value each have another limit."""
    value = "[" * depth + "]" * depth
    for read, text, name in (
        (DynamicItemDataset.from_json, f'{{"a": {{"x": {value}}}}}', "m.json"),
        (DynamicItemDataset.from_jsonl, f'{{"id": "a", "x": {value}}}', "m.jsonl"),
    ):
        try:
            assert len(repr(read(written(text, name)).data["a"]["x"])) == 2 * depth
        except ManifestError:
            assert depth >= 900


def odd_tables():
    import pyarrow as pa

    broken = pa.StringArray.from_buffers(
        1, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff"), None
    )
    columns = {
        "time": pa.array([1], pa.timestamp("ns")),
        "duration": pa.array([2**60], pa.duration("s")),
        "broken text": broken,
    }
    tables = {name: pa.table({"id": ["a"], "x": column}) for name, column in columns.items()}
    tables["lists as ids"] = pa.table({"id": [[1], [2]]})
    twice = [pa.array(["a"]), pa.array([1]), pa.array([2])]
    tables["a column twice"] = pa.Table.from_arrays(twice, ["id", "x", "x"])
    return tables


@pytest.mark.parametrize("name", odd_tables())
def test_parquet_with_values_that_python_does_not_have_is_told(tmp_path, name):
    import pyarrow.parquet as pq

    table = odd_tables()[name]
    pq.write_table(table, tmp_path / "m.parquet")
    with pytest.raises(ManifestError, match=r"m\.parquet"):
        DynamicItemDataset.from_parquet(tmp_path / "m.parquet")
    with pytest.raises(ManifestError, match="arrow data set"):
        DynamicItemDataset.from_arrow_dataset(table, id_key="id")


def test_damage_anywhere_in_a_parquet_manifest_is_a_manifest_error(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = tmp_path / "m.parquet"
    table = pa.table({"id": [f"u{n}" for n in range(50)], "n": range(50), "w": [["a"]] * 50})
    pq.write_table(table, path)
    whole = path.read_bytes()
    for byte in range(0, len(whole), 7):
        damage = bytearray(whole)
        damage[byte] ^= 1 << byte % 8
        path.write_bytes(damage)
        with contextlib.suppress(PenstockError):
            DynamicItemDataset.from_parquet(path)
