"""``convert``: shards as a table of text, numbers and JSON."""

from __future__ import annotations

import base64
import contextlib
import csv
import dataclasses
import io
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.errors import PenstockError, PipelineError, SampleError, WriteError, parsing
from penstock.nearest_name import suggest
from penstock.redact import printable
from penstock.storage import open_url
from penstock.storage.replaced_inputs import refuse_replaced_inputs
from penstock.tools.field_spec import FieldSpec
from penstock.tools.field_values import is_readable, kind_of, read_value, text_in
from penstock.tools.inputs import LocatedSample, Shards, handler_for, list_shards, read_samples
from penstock.tools.outputs import refuse_existing

ROWS_AT_ONCE = 1000
Row = dict[str, Any]


@dataclasses.dataclass
class Converted:
    """How much was converted."""

    output: str
    rows: int = 0
    columns: list[str] = dataclasses.field(default_factory=list)
    skipped: int = 0
    messages: list[str] = dataclasses.field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return dataclasses.asdict(self)


def convert(
    shards: Shards,
    output: str,
    *,
    to: str,
    list_file: str | None = None,
    fields: FieldSpec | str | None = None,
    on_error: str = "abort",
    force: bool = False,
) -> Converted:
    """Write the samples as rows of a table: ``jsonl``, ``tsv``, ``csv`` or ``parquet``.

    The columns are ``__key__`` and the ``fields``; by default those of the first sample that hold
    text, numbers or JSON. A sample without a field has no value there. JSON is an object in
    ``jsonl`` and text elsewhere; other data, which only ``fields`` brings in, is bytes in
    ``parquet``, and elsewhere text if it is text in the first sample, else base64. A TSV has no
    quotes, so a value with a tab or a line end is a SampleError there. The output appears when it
    is complete.
    """
    if to not in FORMATS:
        known = ", ".join(FORMATS)
        raise PipelineError(f"a table is {known}, not {to!r}{suggest(to, FORMATS)}")
    urls = list_shards(shards, list_file)
    refuse_replaced_inputs([output], urls)
    refuse_existing(output, force)
    spec = FieldSpec(fields) if isinstance(fields, str) else fields
    handler, skipped = handler_for(on_error)
    done = Converted(output)
    rows = SampleRows(read_samples(urls, handler=handler), spec, handler, to)
    to_terminal = output == "-" and sys.stdout.isatty()
    if to_terminal and to == "parquet":
        raise PipelineError("Parquet is not written to a terminal: name a file, or pipe the output")
    with open_url(output, "wb") as stream:
        done.rows = FORMATS[to](_Escaping(stream) if to_terminal else stream, rows)
        if spec is not None:
            spec.check_found()
    done.columns, done.skipped, done.messages = rows.columns, skipped.count, skipped.messages
    return done


class _Escaping:
    """Escapes the characters that a terminal would interpret."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, data: bytes) -> None:
        text = printable(data.decode("utf-8", "surrogateescape"), keep="\n\t")
        self._stream.write(text.encode())


class SampleRows:
    """The samples as rows; ``columns`` is known before the first."""

    def __init__(
        self,
        samples: Iterator[LocatedSample],
        spec: FieldSpec | None,
        handler: Callable[[Exception], bool],
        form: str,
    ) -> None:
        self.spec, self.handler, self.form = spec, handler, form
        self._texts: set[str] = set()  # columns that hold text in the first sample
        first = next(samples, None)
        self._samples = samples if first is None else itertools.chain([first], samples)
        if spec is not None:
            self.columns = ["__key__", *spec.names]
            if form != "parquet" and first is not None:
                chosen = spec.select(first.fields)
                self._texts = {name for name, data in chosen.items() if text_in(data) is not None}
        else:
            fields = [] if first is None else sorted(filter(is_readable, first.fields))
            self.columns = ["__key__", *fields]

    def source(self, column: str) -> str:
        """Return a field whose kind the column has."""
        return column if self.spec is None else self.spec.sources[column][0]

    def __iter__(self) -> Iterator[Row]:
        for located in self._samples:
            try:
                yield self._row(located)
            except PenstockError as error:
                if not self.handler(error):
                    raise

    def _row(self, located: LocatedSample) -> Row:
        row: Row = {"__key__": located.key}
        if self.spec is None:
            chosen = {f: data for f, data in located.fields.items() if is_readable(f)}
            for field in chosen:
                if field not in self.columns:
                    raise SampleError(
                        f"the field {field!r} was not in the first sample: name the columns with "
                        f"--fields '{' '.join([*self.columns[1:], field])}'",
                        origin=located.origin,
                    )
        else:
            chosen = self.spec.select(located.fields)
        for column, data in chosen.items():
            row[column] = self._value(column, data, located)
        if self.form == "tsv":
            for column, value in row.items():
                if isinstance(value, str) and any(mark in value for mark in "\t\n\r"):
                    raise SampleError(
                        f"{column} has a tab or a line end, which a TSV cannot hold: --to csv and "
                        "--to jsonl can",
                        origin=located.origin,
                    )
        return row

    def _value(self, column: str, data: bytes, located: LocatedSample) -> Any:
        field = self.source(column)
        if not is_readable(field):
            if column not in self._texts:
                return data if self.form == "parquet" else base64.b64encode(data).decode("ascii")
            if (text := text_in(data)) is not None:
                return text
            raise SampleError(
                f"the field {field!r} is text in the first sample, and no text here",
                origin=located.origin,
            )
        try:
            value = read_value(field, data, located.key, located.shard)
        except PenstockError as error:
            error.locate(located.origin)
            raise
        if kind_of(field) == "json" and self.form != "jsonl":
            text = json.dumps(value, ensure_ascii=False)
            return text.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair
        return value


def _write_jsonl(stream: Any, rows: SampleRows) -> int:
    count = 0
    for row in rows:
        text = json.dumps(row, ensure_ascii=False) + "\n"
        stream.write(text.encode("utf-8", "backslashreplace"))
        count += 1
    return count


def _write_separated(delimiter: str) -> Callable[[Any, SampleRows], int]:
    def write(stream: Any, rows: SampleRows) -> int:
        text = io.StringIO()
        options: Any = {"delimiter": delimiter, "lineterminator": "\n"}
        if delimiter == "\t":
            options |= {"quoting": csv.QUOTE_NONE, "quotechar": None}
        writer = csv.DictWriter(text, rows.columns, **options)
        writer.writeheader()
        count = 0
        for count, row in enumerate(rows, 1):
            writer.writerow(row)
            if count % ROWS_AT_ONCE == 0:
                stream.write(_taken(text))
        stream.write(_taken(text))
        return count

    return write


def _taken(text: io.StringIO) -> bytes:
    data = text.getvalue().encode("utf-8", "surrogateescape")
    text.seek(0)
    text.truncate()
    return data


def _write_parquet(stream: Any, rows: SampleRows) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {"text": pa.string(), "json": pa.string(), "number": pa.int64()}
    schema = pa.schema(
        [("__key__", pa.string())]
        + [(name, types.get(kind_of(rows.source(name)), pa.binary())) for name in rows.columns[1:]]
    )
    count = 0
    with contextlib.closing(pq.ParquetWriter(_Unseekable(stream), schema)) as writer:
        for batch in _batches(rows):
            with parsing(lambda why: WriteError(f"a value does not fit its column: {why}")):
                table = pa.Table.from_pylist(batch, schema)
            writer.write_table(table)
            count += len(batch)
    return count


class _Unseekable:
    """The part of a file that Parquet's writer needs; closing is left to the owner."""

    def __init__(self, stream: Any) -> None:
        self.write, self.tell, self.flush = stream.write, stream.tell, stream.flush
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def writable(self) -> bool:
        return True

    def readable(self) -> bool:
        return False

    def seekable(self) -> bool:
        return False


def _batches(rows: Iterable[Row]) -> Iterator[list[Row]]:
    iterator = iter(rows)
    while batch := list(itertools.islice(iterator, ROWS_AT_ONCE)):
        yield batch


FORMATS: dict[str, Callable[[Any, SampleRows], int]] = {
    "jsonl": _write_jsonl,
    "tsv": _write_separated("\t"),
    "csv": _write_separated(","),
    "parquet": _write_parquet,
}
"""Name in ``--to`` → its writer."""
