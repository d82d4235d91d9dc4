"""Columns that a user adds to an index."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from penstock import DecodingError, PipelineError, SampleError, ShardError, TarWriter
from penstock.shards.index import Index, build_index
from penstock.shards.index.columns import Measure


def indexed(tmp_path: Path, samples: list[dict[str, Any]], **columns: Any) -> Index:
    with TarWriter(str(tmp_path / "x.tar")) as sink:
        for number, sample in enumerate(samples):
            sink.write({"__key__": f"k{number}", **sample})
    return build_index(str(tmp_path / "x.tar"), tmp_path / "x.parquet", columns=columns)


def test_pictures_are_measured_by_their_header(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    stream = io.BytesIO()
    image.new("RGB", (30, 20)).save(stream, "png")
    index = indexed(tmp_path, [{"png": stream.getvalue()}], w="jpg;png:width", h="png:height")
    assert (index.column("w").tolist(), index.column("h").tolist()) == ([30], [20])


def test_sound_is_measured_by_its_header(tmp_path: Path) -> None:
    soundfile = pytest.importorskip("soundfile")
    stream = io.BytesIO()
    soundfile.write(stream, np.zeros(12000, np.float32), 8000, format="WAV")
    index = indexed(
        tmp_path, [{"wav": stream.getvalue()}], duration="wav:seconds", frames="wav:samples"
    )
    assert index.column("duration").tolist() == [1.5]
    assert index.column("frames").tolist() == [12000]


def test_values_and_paths_into_them(tmp_path: Path) -> None:
    samples = [
        {"cls": 3, "json": {"person": {"age": 7, "tags": ["x", "y"]}}},
        {"txt": "no class", "json": {"person": None}},
    ]
    index = indexed(
        tmp_path,
        samples,
        label="cls:value",
        age="json:person.age",
        tag="json:person.tags.1",
        letters="txt:length",
        both=lambda sample: len(sample) - 2,
    )
    assert index.columns == ["label", "age", "tag", "letters", "both"]
    assert index.column("label")[0] == 3
    assert math.isnan(index.column("label")[1])
    assert index.column("age")[0] == 7
    assert index.column("tag").tolist() == ["y", None]
    assert index.column("letters")[1] == 8
    assert index.column("both").tolist() == [2, 2]


def test_shards_whose_columns_differ_in_type_go_together(tmp_path: Path) -> None:
    for name, value in (("a", None), ("b", 1), ("c", 2.5)):
        with TarWriter(str(tmp_path / f"{name}.tar")) as sink:
            sink.write({"__key__": "x", "json": {"v": value}})
    index = build_index(
        f"{tmp_path}/{{a,b,c}}.tar", tmp_path / "x.parquet", columns={"v": "json:v"}
    )
    assert index.column("v").tolist()[1:] == [1.0, 2.5]


def test_a_column_that_is_not_there_is_told(tmp_path: Path) -> None:
    index = indexed(tmp_path, [{"cls": 1}], label="cls:value")
    with pytest.raises(SampleError, match=r"no column 'age' \(it has: label\).*--column age="):
        index.column("age")


def test_bytes_that_are_no_picture_are_told_with_their_origin(tmp_path: Path) -> None:
    with pytest.raises(DecodingError, match=r"'png:width'.*x\.tar, sample 'k0'"):
        indexed(tmp_path, [{"png": b"no picture"}], w="png:width")


def test_a_value_that_is_no_text_is_told_with_its_origin(tmp_path: Path) -> None:
    samples = [{"json": b'"a"'}, {"json": b'"\\ud800"'}]
    with pytest.raises(ShardError, match=r"column 'name' is no text: .*x\.tar, sample 'k1'"):
        indexed(tmp_path, samples, name="json:value")


def test_a_measure_that_nobody_knows_is_told() -> None:
    with pytest.raises(PipelineError, match=r"'weight' is no measure.*seconds"):
        Measure("cls:weight")({"__key__": "a", "cls": b"3"})


def test_the_file_can_be_read_without_penstock(tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    indexed(tmp_path, [{"cls": 1, "txt": "a"}], label="cls:value")
    table = pq.read_table(tmp_path / "x.parquet")
    assert table.to_pylist() == [
        {
            "shard": 0,
            "key": "k0",
            "offset": 0,
            "size": 2048,
            "fields": "cls txt",
            "field_offsets": [512, 1536],
            "field_sizes": [1, 1],
            "label": 1,
        }
    ]
    about = json.loads(table.schema.metadata[b"penstock"])
    assert (about["version"], about["columns"]) == (1, {"label": "cls:value"})
    assert about["shards"][0]["url"] == "x.tar"
    assert about["shards"][0]["samples"] == 1


def test_json_column_named_like_a_picture_property_is_the_json_key(tmp_path: Path) -> None:
    index = indexed(
        tmp_path,
        [{"json": {"width": 7, "seconds": 2.5}}, {"json": {}}],
        width="json:width",
        seconds="json:seconds",
        size_bytes="json:bytes",
    )
    assert index.column("width").tolist()[0] == 7
    assert math.isnan(index.column("width")[1])
    assert index.column("seconds").tolist()[0] == 2.5
    assert index.column("size_bytes").tolist()[1] == 2
