"""Write samples to numbered shards."""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from penstock.errors import Origin, PipelineError, WriteError
from penstock.nearest_name import check_arguments
from penstock.redact import redact
from penstock.shards.writing.compression import compression_of
from penstock.shards.writing.tar_writer import TarWriter
from penstock.storage.streams import CloseOrAbort
from penstock.storage.urls import local_path, rewrite_url

logger = logging.getLogger("penstock.shards.writing")


class ShardWriter(CloseOrAbort):
    """Writes samples into shards ``pattern % 0``, ``pattern % 1``, …

    A new shard begins before a sample if the current one has ``maxcount`` samples or ``maxsize``
    bytes of fields. The first begins with the first sample. A shard appears under its name when
    it is complete; then ``post(fname)`` is called. If the ``with`` block raises, the current shard
    is discarded and those before it stay. ``opener(fname)`` returns another stream to write to,
    which is closed after each shard (after a failure aborted, if it has ``abort``).
    ``verbose`` logs each shard to "penstock.shards.writing". All other arguments are those of
    :class:`TarWriter`.

    ``skip_existing=True`` resumes after a writer that was stopped: pass the same samples from the
    start, and those of existing shards are not written again (``post`` is still called, because it
    may not have been called before). An existing shard that differs from these samples raises
    :class:`~penstock.errors.WriteError`.

    ``index=True`` also writes the index of the shards, next to them
    (:func:`penstock.shards.index.default_index_path`; or pass a path), when the writer is closed.

    ``shard`` is the number of the next shard, ``fname`` the current one's name, ``count`` and
    ``size`` its samples and bytes, ``total`` all samples.

    >>> import os, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with ShardWriter(os.path.join(folder, "train-%04d.tar"), maxcount=2) as sink:
    ...     for i in range(3):
    ...         size = sink.write({"__key__": str(i), "cls": i})
    >>> sorted(os.listdir(folder))
    ['train-0000.tar', 'train-0001.tar']
    """

    remedy = TarWriter.remedy

    def __init__(
        self,
        pattern: str | os.PathLike[str],
        maxcount: float = 100000,
        maxsize: float = 3e9,
        post: Callable[[str], Any] | None = None,
        start_shard: int = 0,
        verbose: int = 1,
        opener: Callable[[str], Any] | None = None,
        *,
        skip_existing: bool = False,
        index: bool | str | os.PathLike[str] = False,
        **kw: Any,
    ) -> None:
        self.pattern = os.path.expanduser(os.fspath(pattern))
        if not (maxcount >= 1 and maxsize > 0):
            raise PipelineError(
                f"a shard holds at least one sample: maxcount={maxcount!r}, maxsize={maxsize!r}"
            )
        self.maxcount, self.maxsize = maxcount, maxsize
        self.post, self.opener, self.verbose = post, opener, verbose
        self.skip_existing = skip_existing
        self.kw = kw
        check_arguments(ShardWriter, kw, TarWriter)
        TarWriter(io.BytesIO(), **kw).abort()  # check the arguments now
        self.shard = start_shard
        self.fname: str | None = None
        self.count = self.total = self.size = 0
        self.tarstream: TarWriter | None = None
        self._stream: Any = None
        fname = format_shard_name(self.pattern, start_shard)
        if skip_existing:
            self._exists(fname)
        self._index = _make_index_writer(
            index,
            [fname, format_shard_name(self.pattern, start_shard + 1)],
            opener=opener,
            check=kw.get("check", True),
        )

    def next_stream(self) -> TarWriter:
        """Finish the current shard and begin the next. A shard without samples is kept."""
        if self.tarstream is not None and self.count == 0:
            return self.tarstream
        self.finish()
        fname = format_shard_name(self.pattern, self.shard)
        kind = compression_of(fname, self.kw.get("compress"))
        options = {**self.kw, "compress": kind or False}
        if self.skip_existing and (path := self._exists(fname)) is not None:
            self._stream = Existing(fname, path)
        elif self.opener is not None:
            self._stream = self.opener(fname)
        else:
            self._stream = None
        self.tarstream = TarWriter(fname if self._stream is None else self._stream, **options)
        self.tarstream.remedy = self.remedy
        if self._index is not None:
            self.tarstream.on_sample = self._index.begin()
            self.tarstream.stream.crc32 = None if self._stream is not None else 0
        self.fname = fname
        self.shard += 1
        self.count = self.size = 0
        if self.verbose:
            there = " (exists already)" if isinstance(self._stream, Existing) else ""
            logger.info("writing %s%s, %d samples before it", redact(fname), there, self.total)
        return self.tarstream

    def write(self, obj: Mapping[str, Any]) -> int:
        """Write a sample and return the number of its fields' bytes (:meth:`TarWriter.write`)."""
        if self.tarstream is None or self.count >= self.maxcount or self.size >= self.maxsize:
            self.next_stream()
        if self.tarstream is None:
            raise PipelineError(f"{type(self).__name__}.next_stream must set self.tarstream")
        size = self.tarstream.write(obj)
        self.count += 1
        self.total += 1
        self.size += size
        return size

    def finish(self) -> None:
        """Complete the current shard, if there is one with samples, and call ``post``."""
        writer, stream = self.tarstream, self._stream
        if writer is None:
            return
        if self.count == 0:  # its only samples could not be written
            self.abort()
            return
        try:
            writer.close()
            if stream is not None:
                stream.close()
        except BaseException:
            self.abort()
            raise
        self.tarstream = self._stream = None
        if self.fname is None:
            return
        if self._index is not None:
            kind = compression_of(self.fname, self.kw.get("compress"))
            crc32 = getattr(writer.stream, "crc32", None)
            self._index.end(self.fname, compressed=kind is not None, crc32=crc32)
        if self.post is not None:
            self.post(self.fname)

    def close(self) -> None:
        """Complete the last shard, and the index. Closing twice does nothing."""
        self.finish()
        if self._index is not None:
            self._index.close()

    def abort(self) -> None:
        """Discard the current shard; those before it stay."""
        writer, self.tarstream = self.tarstream, None
        stream, self._stream = self._stream, None
        if writer is not None:
            writer.abort()
        if stream is not None:
            getattr(stream, "abort", stream.close)()

    def _exists(self, fname: str) -> str | None:
        """Return the path of the shard if it exists already."""
        path = local_path(rewrite_url(fname))
        if path is None:
            raise PipelineError(f"skip_existing=True works for local files, not for {fname!r}")
        return path if os.path.exists(path) else None


class Existing:
    """A stream for a shard that exists already: it compares instead of writing.

    A difference raises :class:`~penstock.errors.WriteError`. The length alone would not show one,
    since a tar is padded to whole records.
    """

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self._file = open(path, "rb")  # noqa: SIM115 - closed by close() or abort()

    def write(self, data: bytes) -> int:
        if self._file.read(len(data)) != data:
            raise self._differs()
        return len(data)

    def close(self) -> None:
        more = self._file.read(1)
        self._file.close()
        if more:
            raise self._differs()

    def abort(self) -> None:
        self._file.close()

    def _differs(self) -> WriteError:
        return WriteError(
            "the shard exists already but does not contain these samples: delete it to write it "
            "again",
            origin=Origin(self.name),
        )


def _make_index_writer(index: Any, names: list[str], **options: Any) -> Any:
    if not index:
        return None
    from penstock.shards.writing.index_on_write import IndexWriter  # imports numpy and pyarrow

    path = index if index is True else os.fspath(index)
    return IndexWriter(path, names, **options)


def format_shard_name(pattern: str, number: int) -> str:
    try:
        name, other = pattern % number, pattern % (number + 1)
    except (TypeError, ValueError) as exn:
        name = other = str(exn)
    if name == other:
        raise PipelineError(
            f"the pattern needs a place for the shard's number, such as 'train-%06d.tar' "
            f"(and any other percent sign twice), not {redact(pattern)!r}"
        )
    return name
