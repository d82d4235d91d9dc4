"""The outputs of one attempt at a task: written under temporary names, published or discarded.

Nothing is visible under a final name before :meth:`TaskWriter.publish`. Each output is complete
when it appears: a local file is renamed, an object is completed. Size, SHA-256 (unless the job has
no checksums) and number of samples are computed while the bytes are written.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from typing import IO, Any, Self

from penstock.errors import PenstockError, PipelineError, ShardError
from penstock.jobs.output_listing import split_at_number
from penstock.jobs.plan import Task, inside
from penstock.shards.open_shard import open_shard
from penstock.shards.sample_reader import base_plus_ext, is_meta, text_of
from penstock.shards.writing import TarWriter
from penstock.shards.writing.compression import compression_of
from penstock.storage import open_url
from penstock.storage.local.files import remove_parts
from penstock.storage.local.scratch_folder import ScratchFolder, sweep_scratch
from penstock.storage.small_files import delete_file, make_folder, stamp_file
from penstock.storage.streams import write_pieces
from penstock.storage.urls import local_path, rewrite_url

CHUNK_BYTES = 1 << 20
ERRORS_NAMED = 10
"""So many of the errors that a task's handler skips are in its record with key and message."""
MESSAGE_CHARACTERS = 500
IS_SHARD = re.compile(r"\.tar(\.[^/.]+)?$|\.t(gz|bz2|xz|zst)$").search

Output = dict[str, Any]
"""``{"name", "size", "sha256", "samples"}``: one output as a record describes it."""


def remove_leftovers(folder: str, task: Task, *, in_parts: bool) -> None:
    """Delete the temporary files of processes that died at a task, also of other machines.

    Of the folders that :meth:`TaskWriter.path` makes, those on this machine are deleted.
    """
    sweep_scratch()
    if (path := local_path(rewrite_url(folder))) is not None:
        for output in task.outputs:
            before, after = split_at_number(output) if in_parts else (output, None)
            remove_parts(inside(path, before), after)


class CheckedStream:
    """Passes bytes on to a stream and keeps their size and, with ``checksums``, their SHA-256.

    Closing it does nothing: the output is not visible until it is published.
    """

    def __init__(self, stream: Any, name: str, checksums: bool = True) -> None:
        self.stream, self.name = stream, name
        self.size = self.samples = 0  # counted by the writer of its samples
        self._hash = hashlib.sha256() if checksums else None
        self.closed = False

    def write(self, data: Any) -> int:
        return self.write_pieces([data])

    def write_pieces(self, pieces: list[Any]) -> int:
        """Write several buffers and return the number of their bytes."""
        size = 0
        for data in pieces:
            size += len(data) if type(data) is bytes else memoryview(data).nbytes
            if self._hash is not None:
                self._hash.update(data)
        self.size += size
        write_pieces(self.stream, pieces)
        return size

    def writable(self) -> bool:
        return True

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass

    def tell(self) -> int:
        return self.size

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    @property
    def sha256(self) -> str | None:
        return None if self._hash is None else self._hash.hexdigest()


class OutputFile:
    """One output while it is written.

    ``spooled`` keeps the bytes in a temporary file until they are published: for remote outputs
    that are finished long before the task is.
    """

    def __init__(self, folder: str, name: str, *, spooled: bool, checksums: bool) -> None:
        self.name, self.url = name, inside(folder, name)
        make_folder(os.path.dirname(self.url))
        self._spool: IO[bytes] | None = None
        self._stream: Any
        if spooled:
            self._spool = tempfile.TemporaryFile(prefix="penstock-job-")  # noqa: SIM115
            self._stream = self._spool
        else:
            self._stream = open_url(self.url, "wb", buffer_bytes=0)
        self.checked = CheckedStream(self._stream, self.url, checksums)

    def publish(self) -> None:
        """Make the output visible under its final name."""
        if self._spool is None:
            self._stream.close()
            return
        self._spool.seek(0)
        with open_url(self.url, "wb", buffer_bytes=0) as stream:
            shutil.copyfileobj(self._spool, stream, CHUNK_BYTES)
        self._spool.close()

    def abort(self) -> None:
        getattr(self._stream, "abort", self._stream.close)()

    @property
    def crc32(self) -> int | None:
        return getattr(self._stream, "crc32", None)

    def describe(self) -> Output:
        size, sha256 = self.checked.size, self.checked.sha256
        samples = self.checked.samples
        return {"name": self.name, "size": size, "sha256": sha256, "samples": samples}


class OutputShard(OutputFile):
    """One output shard while it is written."""

    def __init__(
        self,
        folder: str,
        name: str,
        *,
        encoder: Any,
        parts: Any,
        remedy: str,
        keep_meta: bool | set[str],
        **how: bool,
    ) -> None:
        super().__init__(folder, name, **how)
        self.kind = compression_of(name)
        self.payload = 0
        self._tar = TarWriter(
            self.checked, encoder=encoder, compress=self.kind or False, keep_meta=keep_meta
        )
        self._tar.name, self._tar.remedy = self.url, remedy  # for error messages
        self._rows: Any = None
        if parts is not None:
            from penstock.shards.writing.index_on_write import ShardRows  # loads numpy and pyarrow

            self._rows = ShardRows(parts)
            self._tar.on_sample = self._rows.add
            if self._spool is None:
                self._stream.crc32 = 0

    def write(self, sample: Mapping[str, Any]) -> int:
        size = self._tar.write(sample)
        self.checked.samples += 1
        self.payload += size
        return size

    def finish(self) -> None:
        """Write the end of the archive; no samples can follow."""
        self._tar.close()

    def publish(self) -> None:
        super().publish()
        if self._rows is not None:
            self._rows.end(self.url, compressed=self.kind is not None, crc32=self.crc32)

    def abort(self) -> None:
        self._tar.abort()
        super().abort()


class TaskWriter:
    """The writer of a task: samples, streams or files, published all at once.

    Called with a sample, it writes it to the task's output shard (``output=`` chooses one of
    several). ``open`` and ``path`` are for files of any other kind. ``remedy`` ends the messages
    about keys and fields that cannot be written: what the caller can do about it. ``keep_meta`` is
    that of the shards' :class:`~penstock.TarWriter`; a work that copies samples of other shards
    sets it before it writes.
    """

    def __init__(
        self,
        task: Task,
        folder: str,
        *,
        maxcount: float | None = None,
        maxsize: float | None = None,
        encoder: Any = True,
        index_parts: Any = None,
        remedy: str = "",
        checksums: bool = True,
    ) -> None:
        self.task, self.folder, self._checksums = task, folder, checksums
        self.keep_meta: bool | set[str] = False
        self.samples_in: int | None = 0
        self.kept: int | None = 0
        self.failed = 0
        self.errors = 0
        self.skipped: list[dict[str, Any]] = []
        self.in_parts = maxcount is not None or maxsize is not None
        self._maxcount = maxcount if maxcount is not None else float("inf")
        self._maxsize = maxsize if maxsize is not None else float("inf")
        self._encoder, self._index_parts, self._remedy = encoder, index_parts, remedy
        self._remote = local_path(rewrite_url(folder)) is None
        self._open: dict[str, OutputShard] = {}  # by the name in the plan
        self._files: list[OutputFile] = []
        self._temporary: dict[str, str] = {}  # output → path
        self._scratch: ScratchFolder | None = None

    def __call__(self, sample: Mapping[str, Any], output: str | None = None) -> int:
        """Write a sample; return the number of bytes of its fields."""
        return self._shard(self._planned(output)).write(sample)

    def count(self, *, kept: bool, failed: bool = False) -> None:
        """Count one input sample: something was written for it, or it failed, or it was dropped."""
        self.samples_in = (self.samples_in or 0) + 1
        self.kept = (self.kept or 0) + (kept and not failed)
        self.failed += failed

    def count_error(self, key: str | None, message: str) -> None:
        """Count an error that a handler skipped; the first few are named in the record."""
        self.errors += 1
        if len(self.skipped) < ERRORS_NAMED:
            self.skipped.append({"key": key, "message": message[:MESSAGE_CHARACTERS]})

    def count_all(self, samples_in: int | None) -> None:
        """Set the number of input samples if they were not counted one by one."""
        self.samples_in, self.kept = samples_in, None

    def open(self, output: str | None = None) -> Any:
        """Open a binary stream to an output of any kind; it need not be closed.

        For a shard, set its ``samples`` to the number of samples written.
        """
        file = self._file(self._planned(output))
        self._files.append(file)
        return file.checked

    def path(self, output: str | None = None) -> str:
        """Return a local path of the output's name for code that writes files itself."""
        name = self._planned(output)
        if self._scratch is None:
            self._scratch = ScratchFolder()
        path = os.path.join(self._scratch.path, str(len(self._temporary)), os.path.basename(name))
        os.makedirs(os.path.dirname(path))
        self._temporary[name] = path
        return path

    def finish(self) -> None:
        """Complete everything that was written, not yet under its final name."""
        if not self.in_parts:
            written = {*self._open, *self._temporary, *(file.name for file in self._files)}
            for name in self.task.outputs:
                if name not in written and IS_SHARD(name):
                    self._shard(name)  # no sample was kept: an empty shard says so
        for shard in self._open.values():
            shard.finish()
        for name, path in self._temporary.items():
            self._files.append(self._copy(name, path))

    def publish(self) -> None:
        """Make all outputs visible."""
        for file in self._files:
            file.publish()
        if self.in_parts:
            self._delete_more_parts()
        self._clear()

    def abort(self) -> None:
        """Discard everything that was written."""
        for file in self._files:
            with contextlib.suppress(OSError, PenstockError):
                file.abort()
        self._clear()

    def describe(self) -> list[Output]:
        return [file.describe() for file in self._files]

    def _planned(self, output: str | None) -> str:
        if output is None and len(self.task.outputs) == 1:
            return self.task.outputs[0]
        if output not in self.task.outputs:
            raise PipelineError(
                f"the task {self.task.name} writes {', '.join(self.task.outputs)}, not {output!r}"
            )
        return output

    def _shard(self, planned: str) -> OutputShard:
        """Return the shard that the next sample of a planned output goes to."""
        shard = self._open.get(planned)
        if shard is not None:
            if shard.checked.samples < self._maxcount and shard.payload < self._maxsize:
                return shard
            shard.finish()
        name = planned % self._parts_of(planned) if self.in_parts else planned
        shard = OutputShard(
            *(self.folder, name),
            spooled=self.in_parts and self._remote,
            checksums=self._checksums,
            encoder=self._encoder,
            parts=self._index_parts if IS_SHARD(name) else None,
            remedy=self._remedy,
            keep_meta=self.keep_meta,
        )
        self._files.append(shard)
        self._open[planned] = shard
        return shard

    def _file(self, name: str) -> OutputFile:
        return OutputFile(self.folder, name, spooled=False, checksums=self._checksums)

    def _parts_of(self, planned: str) -> int:
        return sum(file.name == planned % number for number, file in enumerate(self._files))

    def _copy(self, name: str, path: str) -> OutputFile:
        """Return a file that the user's code wrote as an output; its samples are counted."""
        if not os.path.exists(path):
            raise PipelineError(
                f"nothing was written to {path!r}, which is the path of the output {name!r}: the "
                "function must write to the path that it is given"
            )
        output = self._file(name)
        try:
            with open(path, "rb") as source:
                shutil.copyfileobj(source, output.checked, CHUNK_BYTES)
            output.checked.samples = count_samples(path) if IS_SHARD(name) else 0
        except BaseException:
            output.abort()
            raise
        return output

    def _delete_more_parts(self) -> None:
        """Delete further parts that an earlier version of the task left."""
        for planned in self.task.outputs:
            number = self._parts_of(planned)
            while is_there(url := inside(self.folder, planned % number)):
                delete_file(url)
                number += 1

    def _clear(self) -> None:
        if self._scratch is not None:
            self._scratch.remove()


def is_there(url: str) -> bool:
    """Return whether there is a file of that name."""
    try:
        stamp_file(url)
    except FileNotFoundError:
        return False
    return True


def count_samples(url: str) -> int:
    """Count the samples in a shard; only headers are read."""
    return sum(1 for _ in _keys(url))


def _keys(url: str) -> Iterator[str]:
    last = None
    with open_shard(url, want=lambda name: False) as tape:
        for member in tape:
            key, _ = base_plus_ext(text_of(member.name))
            if key is not None and key != last and not is_meta(text_of(member.name)):
                last = key
                yield key


def describe_output(folder: str, name: str) -> Output:
    """Describe an output by reading it completely; a missing one has the size None."""
    url = inside(folder, name)
    digest, size = hashlib.sha256(), 0
    try:
        with open_url(url) as stream:
            while data := stream.read(CHUNK_BYTES):
                digest.update(data)
                size += len(data)
        samples = count_samples(url) if IS_SHARD(name) else 0
    except FileNotFoundError:
        return {"name": name, "size": None, "sha256": None, "samples": 0}
    except ShardError:
        samples = 0
    return {"name": name, "size": size, "sha256": digest.hexdigest(), "samples": samples}
