"""``verify --repair``: a good copy of a damaged shard, and a report of every change."""

from __future__ import annotations

import collections
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.codecs import Decoder
from penstock.errors import DecodingError, PipelineError, UnsafeError, WriteError
from penstock.redact import redact
from penstock.shards.byte_windows import FileWindow
from penstock.shards.open_shard import open_shard
from penstock.shards.sample_reader import READERS_OWN, base_plus_ext, is_meta, text_of
from penstock.shards.writing import TarWriter
from penstock.storage.replaced_inputs import refuse_replaced_inputs
from penstock.storage.urls import is_stream
from penstock.tools.findings import Change
from penstock.tools.inputs import Shards, list_shards
from penstock.tools.outputs import make_folder, outputs_for, refuse_existing
from penstock.tools.tar_walk import Fault, TarEntry, TolerantReader
from penstock.tools.verification import make_decoder, split_words, unsafe_name

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def repair(
    shards: Shards,
    output: str,
    *,
    list_file: str | None = None,
    require: str | Sequence[str] = (),
    decode: bool = False,
    force: bool = False,
) -> Iterator[Change]:
    """Write a good copy of each shard and yield every change.

    ``output`` is a folder with a slash at its end, a pattern such as ``good-%06d.tar``, or for one
    shard a name. Members of one key are put together; of a damaged shard the complete samples are
    kept. Left out are special members, names without key or extension, samples that lack a field
    of ``require``, and with ``decode`` samples that cannot be decoded. Unsafe names are made safe,
    and a key that occurs again becomes ``KEY~2``. The content of fields is never changed. A shard
    without any complete sample is not written.
    """
    urls = list_shards(shards, list_file)
    repairer = Repairer(urls, output, require=require, decode=decode, force=force)
    for url in urls:
        yield from repairer.repair(url)


class Repairer:
    """Repairs shards one by one; :func:`repair` is its simple form.

    Outputs that exist are an :class:`~penstock.tools.outputs.ExistsError` at once.
    """

    def __init__(
        self,
        shards: Sequence[str],
        output: str,
        *,
        require: str | Sequence[str] = (),
        decode: bool = False,
        force: bool = False,
    ) -> None:
        self.outputs = dict(zip(shards, outputs_for(shards, output)))
        if len(self.outputs) < len(shards):
            twice = next(url for url in self.outputs if list(shards).count(url) > 1)
            raise PipelineError(f"{redact(twice)!r} is named twice: --repair writes one copy of it")
        refuse_replaced_inputs(self.outputs.values(), shards)
        for url, name in self.outputs.items():
            if is_stream(url):
                raise PipelineError(
                    f"a shard is read twice for --repair, but {redact(url)!r} can be read once: "
                    "copy it to a file"
                )
            refuse_existing(name, force)
            make_folder(name)
        self.require = [word.lower().split(";") for word in split_words(require)]
        self.decoder = make_decoder() if decode else None
        self.samples = 0
        self.written: list[str] = []
        self._keys: set[str] = set()  # of all shards written

    def repair(self, url: str) -> Iterator[Change]:
        """Write the good copy of one shard and yield the changes."""
        with MemberStore() as store:
            salvage = Salvage(url, store)
            with open_shard(url) as tape:
                changes = list(salvage.read(TolerantReader.of(tape)))
                yield from changes
                yield from self._write(url, salvage)

    def _write(self, url: str, salvage: Salvage) -> Iterator[Change]:
        sink: TarWriter | None = None
        try:
            for sample in salvage.samples:
                data = {field: salvage.store.read(place) for field, place in sample.fields.items()}
                reason = self._reason_to_leave_out(sample, data)
                if reason is not None:
                    yield sample.changed(url, *reason)
                    continue
                key = self._free_key(sample.key)
                if key != sample.key:
                    yield sample.changed(url, "PS203", f"{sample.key!r} is renamed to {key!r}")
                if sink is None:
                    sink = TarWriter(self.outputs[url], encoder=False, keep_meta=True)
                try:
                    sink.write({"__key__": key, **data})
                except WriteError as error:
                    yield sample.changed(url, "PS204", f"{key!r} is left out: {error.message}")
                    continue
                self._keys.add(key)
                self.samples += 1
        except BaseException:
            if sink is not None:
                sink.abort()
            raise
        if sink is None:
            yield Change("PS207", url, "no shard is written, since no sample is complete")
        else:
            sink.close()
            self.written.append(self.outputs[url])

    def _reason_to_leave_out(
        self, sample: GatheredSample, data: dict[str, bytes]
    ) -> tuple[str, str] | None:
        for choices in self.require:
            if not any(field in data for field in choices):
                return "PS301", f"{sample.key!r} is left out: it has no {' or '.join(choices)}"
        return _undecodable(self.decoder, sample.key, data) if self.decoder else None

    def _free_key(self, key: str) -> str:
        number, free = 2, key
        while free in self._keys:
            free, number = f"{key}~{number}", number + 1
        return free


def _undecodable(decoder: Decoder, key: str, data: dict[str, bytes]) -> tuple[str, str] | None:
    for field, value in data.items():
        if not value:
            continue
        try:
            decoder({"__key__": key, field: value})
        except (DecodingError, UnsafeError) as error:
            return "PS304", f"{key!r} is left out: {error.message}"
    return None


class MemberStore:
    """The data of members until they are written: in the shard itself, or in a temporary file."""

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._spool: Any = None

    def __enter__(self) -> MemberStore:
        return self

    def __exit__(self, *_: object) -> None:
        if self._spool is not None:
            self._spool.close()

    def use(self, window: Any) -> bool:
        """Return True if the shard is a local file, from which the data can be read later.

        Otherwise :meth:`put` copies it to a temporary file.
        """
        if isinstance(window, FileWindow):
            self._descriptor = window.descriptor
            return True
        self._spool = tempfile.TemporaryFile(prefix="penstock-repair-")  # noqa: SIM115
        return False

    def put(self, entry: TarEntry) -> tuple[int, int]:
        """Keep a member's data and return its offset and size."""
        if self._spool is None:
            return entry.data_offset, entry.size
        place = self._spool.tell(), entry.size
        self._spool.write(entry.data)
        return place

    def read(self, place: tuple[int, int]) -> bytes:
        """Return the data that :meth:`put` kept."""
        offset, size = place
        if self._spool is None:
            pieces: list[bytes] = []
            while size and (piece := os.pread(self._descriptor or 0, size, offset)):
                pieces.append(piece)
                offset, size = offset + len(piece), size - len(piece)
            return b"".join(pieces)
        self._spool.seek(offset)
        data: bytes = self._spool.read(size)
        self._spool.seek(0, os.SEEK_END)
        return data


class GatheredSample:
    """A sample as it will be written: offset and size of each field."""

    def __init__(self, key: str, offset: int) -> None:
        self.key, self.offset = key, offset
        self.fields: dict[str, tuple[int, int]] = {}
        self.suspect = False
        """Whether a fault beside it may have taken a field."""

    def changed(self, url: str, code: str, change: str) -> Change:
        return Change(code, url, change, self.key, self.offset)


class Salvage:
    """The samples of one damaged shard."""

    def __init__(self, url: str, store: MemberStore) -> None:
        self.url, self.store = url, store
        self.samples: list[GatheredSample] = []
        self._by_key: dict[str, GatheredSample] = {}
        self._run: GatheredSample | None = None
        self._after_fault = False

    def read(self, reader: TolerantReader) -> Iterator[Change]:
        """Read the shard and yield the changes that it needs; fills ``samples``."""
        in_place = self.store.use(reader.window)
        for item in reader.entries((lambda name: False) if in_place else (lambda name: True)):
            if isinstance(item, Fault):
                yield from self._fault(item)
            else:
                yield from self._member(item)
        yield from self._close_run()
        yield from self._judge_suspects()

    def _fault(self, fault: Fault) -> Iterator[Change]:
        code, offset = fault.code, fault.offset
        if code == "PS106":
            yield Change(code, self.url, "an end marker is written", None, offset)
            self._suspect(self._run)
        elif code == "PS104":
            yield from self._close_run()
            yield Change(code, self.url, "what can be read after the marker is kept", None, offset)
        else:
            key, field = (None, None) if not fault.name else base_plus_ext(text_of(fault.name))
            change = f"what cannot be read is left out ({fault.message})"
            yield Change(code, self.url, change, key, offset, field)
            if self._run is not None and key == self._run.key:
                yield self._run.changed(self.url, code, f"{key!r} is incomplete and left out")
                self._run = None
            elif key is None:
                self._suspect(self._run)
            self._after_fault = code == "PS102"
            yield from self._close_run()

    @staticmethod
    def _suspect(sample: GatheredSample | None) -> None:
        if sample is not None:
            sample.suspect = True

    def _member(self, entry: TarEntry) -> Iterator[Change]:
        name = text_of(entry.name)
        key, field = base_plus_ext(name)
        if entry.special is not None:
            yield self._left_out("PS206", f"{entry.special}, {name!r}", entry)
            return
        if is_meta(name):
            yield self._left_out("PS204", f"{name!r}, which is part of no sample", entry)
            return
        if key is None or field is None:
            yield self._left_out("PS204", f"the name {name!r}", entry)
            return
        if unsafe_name(name) is not None:
            safe = _safe(key), _safe(field)
            if not all(safe):
                yield self._left_out("PS205", f"the name {name!r}", entry)
                return
            (key, field), change = safe, f"{name!r} is renamed to {'.'.join(safe)!r}"
            yield Change("PS205", self.url, change, key, entry.offset, field)
        field = field.lower()
        if self._run is None or self._run.key != key:
            yield from self._close_run()
            self._run = GatheredSample(key, entry.offset)
            self._run.suspect, self._after_fault = self._after_fault, False
        if field in self._run.fields or field in READERS_OWN:
            second = "second " * (field in self._run.fields)
            yield self._left_out("PS202", f"the {second}{field!r} of {key!r}", entry)
            return
        self._run.fields[field] = self.store.put(entry)

    def _left_out(self, code: str, what: str, entry: TarEntry) -> Change:
        return Change(code, self.url, f"{what} is left out", None, entry.offset)

    def _close_run(self) -> Iterator[Change]:
        run, self._run = self._run, None
        if run is None or not run.fields:
            return
        earlier = self._by_key.get(run.key)
        if earlier is None:
            self._by_key[run.key] = run
            self.samples.append(run)
            return
        common = [field for field in run.fields if field in earlier.fields]
        names = ", ".join(run.fields)
        if any(
            self.store.read(run.fields[f]) != self.store.read(earlier.fields[f]) for f in common
        ):
            self.samples.append(run)  # it gets another key when it is written
            return
        if common:
            text = f"{', '.join(common)} of {run.key!r} again, with the same content: left out"
            yield run.changed(self.url, "PS203", text)
        if len(common) < len(run.fields):
            text = f"{names} of {run.key!r} put together with {', '.join(earlier.fields)}"
            yield run.changed(self.url, "PS201", text)
        earlier.fields = {**run.fields, **earlier.fields}
        earlier.suspect |= run.suspect

    def _judge_suspects(self) -> Iterator[Change]:
        """Leave out samples next to a fault that lack fields which most samples have."""
        sure = [sample for sample in self.samples if not sample.suspect] or self.samples
        counts = collections.Counter(frozenset(sample.fields) for sample in sure)
        usual = max(counts, key=lambda fields: (counts[fields], len(fields)), default=frozenset())
        kept = []
        for sample in self.samples:
            missing = sorted(usual - set(sample.fields)) if sample.suspect else []
            if missing:
                text = f"{sample.key!r} is left out: beside the fault, without {', '.join(missing)}"
                yield sample.changed(self.url, "PS101", text)
            else:
                kept.append(sample)
        self.samples = kept


def _safe(name: str) -> str:
    """Return the name as a relative path without ``..`` and control characters.

    >>> _safe("/etc/../x\\x1b"), _safe("..")
    ('etc/x_', '')
    """
    parts = [part for part in name.split("/") if part not in ("", ".", "..")]
    return _CONTROL.sub("_", "/".join(parts))
