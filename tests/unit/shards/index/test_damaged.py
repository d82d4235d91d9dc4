"""Index files that are damaged, of an earlier version, or written by someone hostile.

Run with ``--flips 5000`` to flip more bits than the tests usually do.
"""

from __future__ import annotations

import json
import logging
import random
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock import PipelineError, ShardWriter, WebDataset, ignore_and_continue
from penstock.errors import PenstockError, StaleIndexError
from penstock.shards.index import Index, SampleReader, build_index, open_index
from penstock.shards.index.checksum import parquet_writer
from penstock.storage import open_url

MakeShards = Callable[..., str]

EVERY = 5
"""One flip in so many is also read with index=True, which rebuilds: that costs an fsync each."""


def samples_of(urls: str, index: Any) -> list[dict[str, Any]]:
    reader = SampleReader(open_index(urls, index))
    return [reader.read(row) for row in range(len(reader.index))]


def metadata_at(path: Path) -> dict[str, Any]:
    about: dict[str, Any] = json.loads(pq.read_schema(path).metadata[b"penstock"])
    return about


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table], **about: Any) -> None:
    """Write the index again as an earlier version did: without checksums, and changed."""
    table = pq.read_table(path)
    told = {name: v for name, v in metadata_at(path).items() if name != "checksum"} | about
    for shard in told["shards"]:
        shard.pop("ends", None)
    metadata = {b"penstock": json.dumps(told).encode()}
    pq.write_table(change(table).replace_schema_metadata(metadata), path, compression="zstd")


def unchanged(table: pa.Table) -> pa.Table:
    return table


def with_bit_flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def bits_to_flip(data: bytes, count: int) -> list[int]:
    """Bits all over the file: half of them in the footer, and all of the last 16 bytes."""
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    chosen = random.Random(len(data))
    bits = [chosen.randrange(8 * footer) for _ in range(count // 2)]
    bits += [chosen.randrange(8 * footer, 8 * len(data)) for _ in range(count - count // 2)]
    mark = data.rindex(b"penstock-file-crc32:")
    targets = [*range(4), *range(footer, footer + 8), *range(mark, mark + 28)]
    bits += [8 * byte + chosen.randrange(8) for byte in targets]
    return bits + list(range(8 * (len(data) - 16), 8 * len(data)))


def test_no_flipped_bit_gives_other_samples_or_a_foreign_exception(
    tmp_path: Path, flips: int
) -> None:
    with ShardWriter(f"{tmp_path}/train-%03d.tar", maxcount=40, index=True) as sink:
        for number in range(200):
            text = f"text {number}" * (number % 30)
            sink.write({"__key__": f"k{number}", "cls": number, "txt": text})
    urls, path = f"{tmp_path}/train-{{000..004}}.tar", tmp_path / "train.index.parquet"
    expected = samples_of(urls, True)
    whole = path.read_bytes()
    for turn, bit in enumerate(bits_to_flip(whole, flips)):
        for index in [path, True] if turn % EVERY == 0 else [path]:
            path.write_bytes(with_bit_flipped(whole, bit))
            try:
                found = samples_of(urls, index)
            except StaleIndexError:
                continue
            assert found == expected, f"bit {bit} of {len(whole)} bytes"


def test_no_flipped_bit_of_an_index_without_checksums_is_a_foreign_exception(
    make_shards: MakeShards, tmp_path: Path, flips: int
) -> None:
    urls, path = make_shards(40, 10), tmp_path / "train.index.parquet"
    open_index(urls)
    rewrite(path, unchanged)
    whole = path.read_bytes()
    chosen = random.Random(0)
    for bit in [chosen.randrange(8 * len(whole)) for _ in range(flips)]:
        path.write_bytes(with_bit_flipped(whole, bit))
        try:
            samples_of(urls, path)
        except PenstockError:
            continue


def test_an_index_cut_anywhere_is_made_again(make_shards: MakeShards, tmp_path: Path) -> None:
    urls, path = make_shards(8, 4), tmp_path / "train.index.parquet"
    expected = samples_of(urls, True)
    whole = path.read_bytes()
    for end in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with pytest.raises(StaleIndexError, match=r"damaged.*penstock index.*train\.index"):
            Index.load(path)
        assert samples_of(urls, True) == expected


@pytest.mark.parametrize("with_checksum", [True, False])
def test_a_damaged_index_is_not_what_it_is_made_from_again(
    make_shards: MakeShards,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    with_checksum: bool,
) -> None:
    urls, path = make_shards(40, 10), tmp_path / "train.index.parquet"
    expected = samples_of(urls, True)
    if with_checksum:
        text = path.read_bytes()
        assert text.count(b'"samples": 10') == 4
        path.write_bytes(text.replace(b'"samples": 10', b'"samples": 11', 1))
    else:
        shards = metadata_at(path)["shards"]
        shards[1]["samples"] = 9
        rewrite(path, unchanged, shards=shards)
    with caplog.at_level(logging.WARNING, "penstock.shards.index"):
        assert samples_of(urls, True) == expected
    assert "from the shards" in caplog.text
    assert samples_of(urls, path) == expected


def test_a_damaged_index_is_not_used_by_the_command_either(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    urls, path = make_shards(40, 10), tmp_path / "train.index.parquet"
    expected = samples_of(urls, True)
    table = pq.read_table(path)
    swapped = table.column("offset").to_pylist()
    swapped[3], swapped[4] = swapped[4], swapped[3]
    place = table.column_names.index("offset")
    rewrite(path, lambda table: table.set_column(place, "offset", pa.array(swapped)))
    build_index(urls, path)
    assert samples_of(urls, path) == expected


def test_parts_that_are_damaged_or_have_no_checksum_are_read_again(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    urls, path = make_shards(12, 4), tmp_path / "x.parquet"
    with (tmp_path / "train-002.tar").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(PenstockError):
        build_index(urls, path)
    parts = sorted((tmp_path / "x.parquet.parts").iterdir())
    assert len(parts) == 2
    parts[0].write_bytes(with_bit_flipped(parts[0].read_bytes(), 8000))
    rewrite(parts[1], lambda table: table.slice(0, 3))
    make_shards(12, 4)
    assert len(build_index(urls, path)) == 12


def test_an_index_without_checksums_is_read_with_one_notice(
    make_shards: MakeShards, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    urls, path = make_shards(8, 4), tmp_path / "train.index.parquet"
    expected = samples_of(urls, True)
    rewrite(path, unchanged)
    for _ in range(2):
        assert samples_of(urls, path) == samples_of(urls, True) == expected
    assert len(caplog.messages) == 1
    assert "no checksum" in caplog.text
    build_index(urls, path)
    assert Index.load(path).path == str(path)
    assert "checksum" in metadata_at(path)


def test_a_damaged_index_with_columns_of_the_user_is_not_replaced(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    urls, path = make_shards(8, 4), tmp_path / "train.index.parquet"
    build_index(urls, path, columns={"label": "cls:value"})
    damage = with_bit_flipped(path.read_bytes(), 8 * 300)
    path.write_bytes(damage)
    with pytest.raises(StaleIndexError, match="damaged"):
        open_index(urls, True)
    with pytest.raises(PipelineError, match="label"):
        ShardWriter(f"{tmp_path}/train-%03d.tar", index=True, start_shard=7)
    assert path.read_bytes() == damage


TYPES = {
    "key": pa.large_string(),
    "offset": pa.int32(),
    "size": pa.float64(),
    "fields": pa.string(),
    "field_offsets": pa.list_(pa.int32()),
    "field_sizes": pa.large_list(pa.int64()),
}


@pytest.mark.parametrize("name", TYPES)
def test_a_column_of_another_type_is_refused(
    make_shards: MakeShards, tmp_path: Path, name: str
) -> None:
    urls, path = make_shards(8, 4), tmp_path / "train.index.parquet"
    open_index(urls)
    place = pq.read_schema(path).names.index(name)

    def change(table: pa.Table) -> pa.Table:
        return table.set_column(place, name, table.column(name).cast(TYPES[name]))

    rewrite(path, change)
    with pytest.raises(StaleIndexError, match=f"column '{name}' holds"):
        Index.load(path)


VALUES: dict[str, list[Any]] = {
    "offset": [-512, 1 << 62, None],
    "size": [-1, 1 << 62, None],
    "key": [None],
    "fields": ["[", "[1, 2]", "one two three", None],
    "field_offsets": [[0], [-1, -1], [1 << 62, 0], [None, 512], None],
    "field_sizes": [[1], [-1, -1], [1 << 62, 0], None],
}


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, own in VALUES.items() for v in own])
def test_a_value_that_cannot_be_is_refused(
    make_shards: MakeShards, tmp_path: Path, name: str, value: Any
) -> None:
    urls, path = make_shards(8, 4), tmp_path / "train.index.parquet"
    open_index(urls)
    schema = pq.read_schema(path)

    def change(table: pa.Table) -> pa.Table:
        values = table.column(name).to_pylist()
        values[2] = value
        place = table.column_names.index(name)
        return table.set_column(place, name, pa.array(values, schema.field(name).type))

    rewrite(path, change)
    with pytest.raises(StaleIndexError, match="damaged"):
        samples_of(urls, path)


ENTRIES = [{"samples": "4"}, {"samples": -1}, {"size_bytes": 4.5}, {"url": 3}, {"compressed": 1}]
TEXTS: list[Any] = [3, [], {"shards": 3}, {"shards": [3]}, {"shards": [{}]}]


@pytest.mark.parametrize("entry", ENTRIES)
def test_metadata_of_a_shard_that_cannot_be_is_refused(
    make_shards: MakeShards, tmp_path: Path, entry: dict[str, Any]
) -> None:
    path = tmp_path / "train.index.parquet"
    open_index(make_shards(8, 4))
    shards = metadata_at(path)["shards"]
    shards[0].update(entry)
    rewrite(path, unchanged, shards=shards)
    with pytest.raises(StaleIndexError, match="damaged"):
        Index.load(path)


@pytest.mark.parametrize("text", [b"\xff", b"{", b"[" * 100_000, *TEXTS])
def test_metadata_that_cannot_be_is_refused(
    make_shards: MakeShards, tmp_path: Path, text: Any
) -> None:
    path = tmp_path / "train.index.parquet"
    open_index(make_shards(8, 4))
    if isinstance(text, dict):
        text["version"] = 1
    data = text if isinstance(text, bytes) else json.dumps(text).encode()
    table = pq.read_table(path).replace_schema_metadata({b"penstock": data})
    pq.write_table(table, path)
    with pytest.raises(StaleIndexError):
        Index.load(path)


def forge(path: Path, *urls: str) -> None:
    """Write the index again, with its checksum, as if it had more shards."""
    table = pq.read_table(path)
    about = metadata_at(path)
    about["shards"] += [{"url": url, "samples": 0, "size_bytes": 0} for url in urls]
    schema = table.schema.with_metadata({b"penstock": json.dumps(about).encode()})
    with open_url(str(path), "wb") as stream, parquet_writer(stream, schema) as writer:
        writer.write_table(table)


@pytest.fixture
def server() -> Iterator[tuple[str, list[str]]]:
    """A web server that has nothing: its address, and what it was asked for."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_HEAD = do_GET

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}", asked
        running.shutdown()
        thread.join()


def test_an_index_does_not_decide_which_places_are_asked(
    make_shards: MakeShards, tmp_path: Path, server: tuple[str, list[str]]
) -> None:
    address, asked = server
    outside = tmp_path / "outside"
    outside.mkdir()
    data = tmp_path / "data"
    data.mkdir()
    make_shards(4, 4, name="outside/secret")
    few, path = make_shards(8, 4, name="data/train"), data / "train.index.parquet"
    open_index(few)
    forge(path, f"{address}/a.tar", f"train-009.tar::{address}/b.tar", "../outside/secret-000.tar")
    assert len(open_index(few, path)) == 8
    more = make_shards(12, 4, name="data/train")
    assert len(open_index(more, True)) == 12
    build_index(more, path)
    assert asked == []
    assert {Path(shard["url"]).name for shard in metadata_at(path)["shards"]} == {
        f"train-{n:03d}.tar" for n in range(3)
    }


def test_an_index_that_names_a_command_is_refused(make_shards: MakeShards, tmp_path: Path) -> None:
    path = tmp_path / "train.index.parquet"
    open_index(make_shards(8, 4))
    forge(path, f"pipe:touch {tmp_path}/ran")
    with pytest.raises(StaleIndexError, match="a command"):
        Index.load(path)
    assert not (tmp_path / "ran").exists()


def test_a_damaged_index_is_not_skipped_by_a_handler(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    urls, path = make_shards(8, 4), tmp_path / "train.index.parquet"
    open_index(urls)
    fields = pa.array(["cls"] * 8).dictionary_encode()
    place = pq.read_schema(path).names.index("fields")
    rewrite(path, lambda table: table.set_column(place, "fields", fields))
    with pytest.raises(StaleIndexError, match="damaged"):
        list(WebDataset(urls, index=path, handler=ignore_and_continue))
