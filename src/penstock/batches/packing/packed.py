"""Packs sequences into rows of a fixed length, on a stream."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.batches.bucketing.length_buffer import LengthBufferRun
from penstock.batches.collate import Collation
from penstock.batches.lengths import check_length, measure_sample
from penstock.batches.packing.bin_packing import FITS
from penstock.context import Context
from penstock.errors import Origin, PipelineError, SampleError
from penstock.handlers import Handler, reraise_exception
from penstock.stages.drop_guard import Dropping
from penstock.stages.run import Run, State, Ticket, reading_state
from penstock.stages.shuffle import ABSENT
from penstock.stages.stage import Stage

ROW_FIELDS = {"segment_ids", "positions", "lengths", "cu_seqlens"}
"""The fields of a row besides those of the samples."""
OVER = ("error", "skip", "alone", "cut", "split")


class packed(Stage[Any, dict[str, Any]]):
    """Packs sequences into rows of ``row_length``, several to a row, with their boundaries.

    ``key`` is the field to pack, or several that have the same length in each sample (tokens and
    their labels); None packs samples that are sequences themselves, as ``tokens``. A row is a
    dict: each packed field (padded with ``pad_value``), ``segment_ids`` (1, 1, 2, 2, 2, and 0 for
    padding), ``positions`` (from 0 in each sequence), ``lengths``, ``cu_seqlens`` (where each
    sequence begins, and the end), and for every other field a list with one value per sequence.
    Tensors are packed into tensors, everything else into arrays.

    From a buffer of ``buffer`` samples, a row takes those that have waited longest, and then the
    two that fill it best (``fit="best"``); or repeatedly the oldest that fits (``"first"``).
    Nothing is lost or cut: a sample longer than a row is an error, unless ``over`` is ``"skip"``
    (left out and counted), ``"alone"`` (in a separate, longer row), ``"cut"`` (its beginning is
    kept) or ``"split"`` (packed in pieces). ``drop_end`` drops the rows that are not full when
    the data ends.

    >>> row, *more = packed(6, buffer=3)([[1, 2, 3], [4, 5], [6, 7, 8], [9]])
    >>> row["tokens"].tolist(), row["segment_ids"].tolist(), row["positions"].tolist()
    ([1, 2, 3, 6, 7, 8], [1, 1, 1, 2, 2, 2], [0, 1, 2, 0, 1, 2])
    >>> more[0]["tokens"].tolist(), more[0]["lengths"].tolist(), more[0]["cu_seqlens"].tolist()
    ([4, 5, 9, 0, 0, 0], [2, 1], [0, 2, 3])
    """

    def __init__(
        self,
        row_length: int,
        key: str | Sequence[str] | None = None,
        fit: str = "best",
        buffer: int = 2000,
        *,
        pad_value: Any = 0,
        over: str = "error",
        drop_end: bool = False,
        handler: Handler = reraise_exception,
    ) -> None:
        if row_length < 1 or buffer < 1:
            raise PipelineError(
                f"{self.name}: row_length and buffer must be at least 1: {row_length}, {buffer}"
            )
        if fit not in FITS or over not in OVER:
            raise PipelineError(
                f"{self.name}: fit is one of {sorted(FITS)}, not {fit!r}, and over one of {OVER}, "
                f"not {over!r}"
            )
        self.row_length, self.fit, self.buffer = int(row_length), fit, int(buffer)
        self.keys = (key,) if isinstance(key, str) or key is None else tuple(key)
        if clash := ROW_FIELDS.intersection(self.keys):
            raise PipelineError(
                f"{self.name}: {sorted(clash)} are fields that every row has: rename yours first"
            )
        self.pad_value, self.over, self.drop_end = pad_value, over, drop_end
        self.handler = handler

    @property
    def collation_fn(self) -> Collation:
        """The function that makes a row, under the name that batching stages use."""
        return self.row

    def start(self, source: Run[Any], context: Context) -> Run[Any]:
        return PackedRun(self, source, context)

    def row(self, samples: list[Any]) -> dict[str, Any]:
        """Return one row of these samples: a ``collate_fn`` for planned rows.

        Together they must not be longer than ``row_length``, unless there is only one.

        >>> packed(5, "x").row([{"x": [1, 2], "id": "a"}, {"x": [3], "id": "b"}])["id"]
        ['a', 'b']
        """
        lengths = [self.length(sample) for sample in samples]
        size = max(self.row_length, sum(lengths)) if len(samples) == 1 else self.row_length
        if sum(lengths) > size:
            raise SampleError(
                f"{self.name}: samples of total length {sum(lengths)} do not fit into a row of "
                f"{size}"
            )
        row: dict[str, Any] = {}
        for key in self.keys:
            values = samples if key is None else [sample[key] for sample in samples]
            row["tokens" if key is None else key] = concatenate(values, size, self.pad_value)
        first = next(iter(row.values()))
        row.update(describe_row(lengths, size, first))
        if self.keys != (None,):
            for field in dict.fromkeys(name for sample in samples for name in sample):
                if field not in row:
                    row[field] = [sample.get(field) for sample in samples]
        return row

    def length(self, sample: Any) -> int:
        """Return the length of a sample, which all its packed fields must have."""
        length = int(check_length(measure_sample(sample, self.keys[0], len), self.keys[0]))
        for key in self.keys[1:]:
            if measure_sample(sample, key, len) != length:
                raise SampleError(
                    f"{self.name}: packed fields must have one length, but {self.keys[0]!r} "
                    f"has {length} and {key!r} {len(sample[key])}"
                )
        return length

    def piece(self, sample: Any, begin: int, end: int) -> Any:
        """Return part of a sample: its packed fields are cut, the others are unchanged."""
        if self.keys == (None,):
            return sample[begin:end]
        cut = {key: sample[key][begin:end] for key in self.keys if key is not None}
        return {**sample, **cut}


def concatenate(values: list[Any], size: int, pad_value: Any) -> Any:
    """Return the sequences in one new array or tensor, padded to ``size``."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(values[0], torch.Tensor):
        kind: Any = values[0].dtype
        for value in values[1:]:
            kind = torch.promote_types(kind, value.dtype)
        row = torch.full((size, *values[0].shape[1:]), pad_value, dtype=kind)
    else:
        import numpy as np

        values = [np.asarray(value) for value in values]
        kind = np.result_type(*values)
        row = np.full((size, *values[0].shape[1:]), pad_value, dtype=kind)
    begin = 0
    for value in values:
        row[begin : begin + len(value)] = value
        begin += len(value)
    return row


def describe_row(lengths: list[int], size: int, like: Any) -> dict[str, Any]:
    """Return ``ROW_FIELDS``: the sequence that each position belongs to, and where in it."""
    import numpy as np

    count = np.asarray(lengths, np.int64)
    ends = np.cumsum(count)
    segments, positions = np.zeros((2, size), np.int32)
    used = int(ends[-1])
    segments[:used] = np.repeat(np.arange(1, len(lengths) + 1), count)
    positions[:used] = np.arange(used) - np.repeat(ends - count, count)
    found: dict[str, Any] = {
        "segment_ids": segments,
        "positions": positions,
        "lengths": count,
        "cu_seqlens": np.concatenate([[0], ends]).astype(np.int32),
    }
    if not isinstance(like, np.ndarray):
        import torch

        return {name: torch.from_numpy(value.copy()) for name, value in found.items()}
    return found


def stack_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return rows as one batch: fields with a value per token are stacked, others listed.

    >>> rows = packed(4, buffer=2)([[1, 2], [3, 4], [5, 6, 7]])
    >>> batch = stack_rows(list(rows))
    >>> batch["tokens"].shape, [lengths.tolist() for lengths in batch["lengths"]]
    ((2, 4), [[2, 2], [3]])
    """
    sizes = {len(row["segment_ids"]) for row in rows}
    if len(sizes) > 1:
        raise SampleError(
            f"rows of different lengths {sorted(sizes)} cannot be stacked: over='alone' makes "
            "longer ones; use over='split', 'cut' or 'skip'"
        )
    batch: dict[str, Any] = {}
    for name, value in rows[0].items():
        values = [row[name] for row in rows]
        if name in ("lengths", "cu_seqlens") or not hasattr(value, "shape"):
            batch[name] = values
        elif type(value).__module__.startswith("torch"):
            import torch

            batch[name] = torch.stack(values)
        else:
            import numpy as np

            batch[name] = np.stack(values)
    return batch


class PackedRun(LengthBufferRun):
    """Runs :class:`packed`. Its state is the buffer, as tickets.

    With ``over="split"``, the ticket of a piece is (the sample's ticket, its begin, its end).
    """

    stage: packed

    def __init__(self, stage: Any, source: Run[Any], context: Context) -> None:
        super().__init__(stage, source, context, stage.buffer)
        self.one_each = False

    def __iter__(self) -> Iterator[dict[str, Any]]:
        waiting, source = self.waiting, self.source
        dropping, dropped = Dropping(self), 0
        while len(waiting) >= self.size:  # after a resume between the rows of a split sample
            yield self._row()
        for item in () if self.ended_early else source:
            added = self._add(item)
            if self.ended_early:
                break
            dropped = 0 if added else dropping.more(dropped)
            while len(waiting) >= self.size:
                yield self._row()
        while waiting.lengths and not self.stage.drop_end:
            yield self._row()

    def _add(self, item: Any) -> bool:
        """Put a sample, or its pieces, into the buffer; return False if it is left out."""
        stage, ticket = self.stage, self.source.ticket
        try:
            length = stage.length(item)
            if length > stage.row_length and stage.over in ("error", "skip"):
                if stage.over == "skip":
                    self.skip()
                    return False
                raise SampleError(
                    f"{stage.name}: a sequence of {length} is longer than a row of "
                    f"{stage.row_length}: choose over='skip', 'alone', 'cut' or 'split'"
                )
        except Exception as error:  # noqa: BLE001 - the handler decides
            self.ended_early = not self.failed(error, stage.handler, item)
            return False
        if stage.over == "split":
            for begin in range(0, length, stage.row_length):
                end = min(begin + stage.row_length, length)
                piece = stage.piece(item, begin, end) if length > stage.row_length else item
                self.waiting.add(end - begin, piece, [ticket, begin, end])
        else:
            if stage.over == "cut" and length > stage.row_length:
                item, length = stage.piece(item, 0, stage.row_length), stage.row_length
            self.waiting.add(length, item, ticket)
        return True

    def _row(self) -> dict[str, Any]:
        items = FITS[self.stage.fit](self.waiting, self.stage.row_length)
        self.samples = [
            self._fetch_piece(item.ticket) if item.data is ABSENT else item.data for item in items
        ]
        self.tickets = [item.ticket for item in items]
        row: dict[str, Any] = self._batch()
        return row

    def _fetch_piece(self, ticket: Ticket) -> Any:
        """Read again the part of a sample that was packed."""
        stage = self.stage
        with reading_state():
            if stage.over == "split":
                sample, begin, end = self.source.fetch(ticket[0]), ticket[1], ticket[2]
            else:
                sample, begin, end = self.source.fetch(ticket), 0, stage.row_length
            if stage.over not in ("split", "cut") or stage.length(sample) <= end - begin:
                return sample
            return stage.piece(sample, begin, end)

    def _sample_ticket(self, ticket: Ticket) -> Ticket:
        return ticket[0] if self.stage.over == "split" else ticket

    def origin(self, ticket: Ticket) -> Origin | None:
        return self.source.origin(self._sample_ticket(ticket[0])) if ticket else None

    def origins(self, ticket: Ticket) -> list[Origin]:
        found = [self.source.origins(self._sample_ticket(one)) for one in ticket or ()]
        return [origin for some in found for origin in some]

    def _note_range(self, error: Exception) -> None:
        origin = self.origin(self._ticket)
        if origin is not None:
            error.add_note(f"in the row that begins with {origin}")

    def state(self) -> State:
        return [self.waiting.state(), self.ended_early, self.source.saved()]

    def restore(self, state: State) -> None:
        buffer, self.ended_early, source = state
        self.waiting.restore(buffer)
        self.source.take(source)

    def fetch(self, ticket: Ticket) -> Any:
        return self.stage.row([self._fetch_piece(one) for one in ticket])
