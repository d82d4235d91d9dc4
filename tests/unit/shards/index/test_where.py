"""The expression language of ``where=``."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import PipelineError, TarWriter
from penstock.shards.index import Index, IndexedShard, build_index
from penstock.shards.index.where import Where, matching_rows

ROWS: list[dict[str, Any]] = [
    {"width": 64, "score": 0.5, "lang": "de", "ok": True, "tags": ["a"]},
    {"width": 256, "score": 1.5, "lang": "fr", "ok": False, "tags": ["a", "b"]},
    {"width": None, "score": None, "lang": None, "ok": None, "tags": None},
    {"width": 512, "score": -2.0, "lang": "de-AT", "ok": True, "tags": []},
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    """Four samples in two shards; the third has no values, and only the second has ``seg.png``."""
    folder = tmp_path_factory.mktemp("where")
    for number in range(2):
        with TarWriter(str(folder / f"part-{number}.tar")) as sink:
            for row in (0, 1) if number == 0 else (2, 3):
                sample = {"__key__": f"k{row}", "json": json.dumps(ROWS[row]), "txt": "ö" * row}
                sink.write(sample | ({"seg.png": b"x" * 7} if row == 1 else {}))
    columns = {name: f"json:{name}" for name in ("score", "lang", "ok", "tags")}
    return build_index(
        str(folder / "part-{0..1}.tar"),
        folder / "x.parquet",
        columns={**columns, "width": lambda sample: json.loads(sample["json"])["width"]},
    )


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("width >= 256", [1, 3]),
        ("64 <= width < 512", [0, 1]),
        ("64 < width <= 512 and score > 0", [1]),
        ("width != 256", [0, 3]),
        ("not width == 256", [0, 3]),
        ("width is None", [2]),
        ("width is not None", [0, 1, 3]),
        ("width == 64 or score is None", [0, 2]),
        ("width == 64 or not (score < 1)", [0, 1]),
        ("lang in ['de', 'fr']", [0, 1]),
        ("lang not in ('de', 'fr')", [3]),
        ("width in {64, 512.0}", [0, 3]),
        ("score in (-2, 1.5)", [1, 3]),
        ("lang in []", []),
        ("lang not in ()", [0, 1, 2, 3]),
        ("ok", [0, 3]),
        ("not ok", [1]),
        ("ok == False", [1]),
        ("width + 1 == 65", [0]),
        ("width - score * 2 == 253", [1]),
        ("-width < -256", [3]),
        ("+width == 64", [0]),
        ("width / 100 == 0.64", [0]),
        ("width / (width - 64) > 0", [1, 3]),
        ("startswith(lang, 'de')", [0, 3]),
        ("endswith(lang, 'AT')", [3]),
        ("contains(lang, 'r')", [1]),
        ("matches(lang, '^d.$')", [0]),
        ("len(lang) == 2", [0, 1]),
        ("len(tags) > 0", [0, 1]),
        ("len(key) == 2", [0, 1, 2, 3]),
        ("has('seg.png')", [1]),
        ("not has('seg.png') and has('json')", [0, 2, 3]),
        ("key == 'k2' or key == 'k0'", [0, 2]),
        ("endswith(shard, 'part-1.tar')", [2, 3]),
        ("endswith(shard, 'part-1.tar') and width == 512", [3]),
        ("endswith(shard, 'part-0.tar') or has('seg.png')", [0, 1]),
        ("True", [0, 1, 2, 3]),
        ("1 > 2", []),
        ("width >= 256\n  and lang == 'fr'", [1]),
        ("  ok", [0, 3]),
    ],
)
def test_expression_chooses_rows(index: Index, text: str, rows: list[int]) -> None:
    found = matching_rows(index, text)
    assert (found.tolist(), found.dtype) == (rows, np.int64)


def test_bytes_is_the_sum_of_the_fields(index: Index) -> None:
    sizes = [sum(size for _, size in index.fields_of(row).values()) for row in range(4)]
    for row, size in enumerate(sizes):
        assert row in matching_rows(index, f"bytes == {size}")


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("widht >= 256", 1, "did you mean 'width'"),
        ("ok and langs == 'de'", 8, "did you mean 'lang'"),
        ("'ö' == lang and widht > 1", 17, "no column 'widht'"),
        ("width >=", 9, "cannot be parsed"),
        ("width ** 2 > 3", 1, "'**' is not part"),
        ("__import__('os').system('x')", 1, "is not a function"),
        ("lang.upper() == 'x'", 1, "is not a function"),
        ("tags[0] == 'a'", 1, "a subscript is not part"),
        ("(lambda: 1)()", 1, "is not a function"),
        ("[x for x in tags]", 1, "ListComp is not part"),
        ("f'{lang}' == 'x'", 1, "an f-string is not part"),
        ("contain(lang, 'a')", 1, "did you mean 'contains'"),
        ("contains(lang)", 1, "takes 2 arguments"),
        ("contains(lang, key)", 16, "a text in quotes"),
        ("matches(lang, '(')", 1, "failed"),
        ("contains(width, 'a')", 10, "takes a text"),
        ("len(width) > 1", 1, "takes a text or a list"),
        ("width", 1, "true or false"),
        ("width and ok", 1, "join conditions"),
        ("width > 'a'", 9, "cannot be applied to"),
        ("lang + 1 == 2", 1, "takes numbers"),
        ("width == None", 10, "is None"),
        ("width is 3", 10, "use == to compare"),
        ("'a' in lang", 8, "contains()"),
        ("lang in ['a', None]", 15, "constants only"),
        ("lang in ['a', 3]", 9, "one type"),
        ("width in ['a']", 10, "compares"),
        ("width == 99999999999999999999999", 10, "too large"),
        ("width * 9223372036854775807 > 1", 1, "failed"),
        ("b'a' == lang", 1, "a number or a text"),
        ("(lang, 'a')", 1, "after 'in'"),
        ("not " * 200 + "ok", None, "deep"),
        ("(" * 5000 + "ok" + ")" * 5000, None, ""),
        ("\0", None, ""),
        ("", None, "is an expression"),
        ("ok or " * 100_000 + "ok", None, "at most"),
    ],
)
def test_wrong_expression_is_refused_with_its_position(
    index: Index, text: str, position: int | None, words: str
) -> None:
    with pytest.raises(PipelineError) as error:
        matching_rows(index, text)
    message = str(error.value)
    assert words in message
    if position is not None:
        first, shown, caret = message.splitlines()
        assert f"at character {position}" in first
        assert shown == f"  {text}"
        assert caret == " " * (position + 1) + "^"


def test_user_column_wins_over_the_computed_one(tmp_path: Path) -> None:
    with TarWriter(str(tmp_path / "x.tar")) as sink:
        sink.write({"__key__": "a", "txt": "hello"})
    columns = {"bytes": lambda sample: 99}
    index = build_index(str(tmp_path / "x.tar"), tmp_path / "x.parquet", columns=columns)
    assert matching_rows(index, "bytes == 99").tolist() == [0]


def test_column_without_any_value_matches_nothing(tmp_path: Path) -> None:
    with TarWriter(str(tmp_path / "x.tar")) as sink:
        sink.write({"__key__": "a", "json": "{}"})
    index = build_index(str(tmp_path / "x.tar"), tmp_path / "x.parquet", columns={"n": "json:n"})
    for text in (
        "n > 3",
        "n == 'a'",
        "not (n > 3)",
        "n in (1, 2)",
        "n + 1 > 0",
        "contains(n, 'a')",
    ):
        assert matching_rows(index, text).tolist() == []
    assert matching_rows(index, "n is None").tolist() == [0]


def test_rows_are_those_of_the_selected_shards(index: Index) -> None:
    assert matching_rows(index.select([1]), "width == 512").tolist() == [1]
    assert matching_rows(index.select([1, 0]), "width > 0").tolist() == [1, 2, 3]
    assert matching_rows(index.select([1, 0]), "has('seg.png')").tolist() == [3]
    assert matching_rows(index.select([]), "width > 0").tolist() == []


def test_expression_of_json_text_names_the_columns_it_reads() -> None:
    assert Where("has('x') and (a > 1 or b in (2, 3)) and a < 9").names == ["a", "b"]


ATOMS = [
    ("a < 1", "a < 1"),
    ("a == b", "a = b"),
    ("a != 2", "a <> 2"),
    ("-1 < a <= b", "-1 < a AND a <= b"),
    ("a in (1, 2)", "a IN (1, 2)"),
    ("a not in (1, 2)", "a NOT IN (1, 2)"),
    ("a in ()", "a IN ()"),
    ("a not in ()", "a NOT IN ()"),
    ("t not in ('x', 'yy')", "t NOT IN ('x', 'yy')"),
    ("t == 'x'", "t = 'x'"),
    ("len(t) >= 2", "length(t) >= 2"),
    ("a is None", "a IS NULL"),
    ("t is not None", "t IS NOT NULL"),
    ("a + b * 2 > 1", "a + b * 2 > 1"),
    ("a - b <= 0", "a - b <= 0"),
    ("a / b > 0.4", "CAST(a AS REAL) / b > 0.4"),
    ("-a >= b", "-a >= b"),
]
CONDITIONS = st.recursive(
    st.sampled_from(ATOMS),
    lambda inner: st.one_of(
        inner.map(lambda one: (f"not ({one[0]})", f"NOT ({one[1]})")),
        st.tuples(inner, inner, st.sampled_from(["and", "or"])).map(
            lambda three: tuple(
                f"({left}) {three[2]} ({right})" for left, right in zip(three[0], three[1])
            )
        ),
    ),
    max_leaves=5,
)
NUMBER = st.one_of(st.none(), st.integers(-3, 3))
TABLE = st.lists(
    st.tuples(NUMBER, NUMBER, st.sampled_from([None, "", "x", "yy"])), min_size=1, max_size=30
)


@given(CONDITIONS, TABLE)
def test_nulls_follow_sql(condition: tuple[str, str], rows: list[tuple[Any, ...]]) -> None:
    a, b, texts = zip(*rows)
    table = pa.table(
        {
            "shard": pa.array([0] * len(rows), pa.int32()),
            "key": pa.array([str(n) for n in range(len(rows))]),
            "offset": pa.array([0] * len(rows), pa.int64()),
            "size": pa.array([1] * len(rows), pa.int64()),
            "fields": pa.array(["a"] * len(rows)).dictionary_encode(),
            "field_offsets": pa.array([[0]] * len(rows), pa.list_(pa.int64())),
            "field_sizes": pa.array([[1]] * len(rows), pa.list_(pa.int64())),
            "a": pa.array(a, pa.int64()),
            "b": pa.array(b, pa.int64()),
            "t": pa.array(texts, pa.string()),
        }
    )
    index = Index.of_table([IndexedShard("x.tar", len(rows))], table)
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute("CREATE TABLE s (n INTEGER, a INTEGER, b INTEGER, t TEXT)")
        numbered = [(number, *row) for number, row in enumerate(rows)]
        database.executemany("INSERT INTO s VALUES (?, ?, ?, ?)", numbered)
        found = database.execute(f"SELECT n FROM s WHERE {condition[1]} ORDER BY n").fetchall()
    assert matching_rows(index, condition[0]).tolist() == [n for (n,) in found]
