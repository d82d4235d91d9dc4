"""Write samples to one tar shard."""

from __future__ import annotations

import functools
import io
import os
import tarfile
import warnings
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any, Self, cast

from penstock.codecs import make_encoder
from penstock.errors import Origin, PenstockError, PipelineError, StorageError, WriteError
from penstock.nearest_name import check_arguments
from penstock.redact import redact
from penstock.shards.header import BLOCK
from penstock.shards.sample_reader import READERS_OWN, is_meta
from penstock.shards.writing.compression import COMPRESSORS, Compressing, compression_of
from penstock.shards.writing.shard_names import field_problem, is_plain_key, key_problem
from penstock.shards.writing.tar_headers import Headers
from penstock.storage import open_url
from penstock.storage.streams import CloseOrAbort, report_at_exit

RECORD_BYTES = 20 * BLOCK
"""A tar's length is a multiple of this, for historical reasons."""
GATHER_BYTES = 1 << 20
"""Samples are joined and written in pieces of about this size. For photographs, 1 MiB per write was
a quarter faster than 256 KiB, and twice as fast as one photograph per write."""
CACHED_BYTES = 256 << 10
"""The same for a stream that need not join them. What was read is then still in the CPU's cache:
for photographs on a busy machine, writing 1 MiB took up to three times as long."""
JOINED_BYTES = 4 << 10
"""Headers, fields and padding that have fewer bytes on average are joined before they are sent."""
LARGE_BYTES = 4 << 20
"""Larger samples are written without copying them into a piece."""

_PADDING = [bytes(-size % BLOCK) for size in range(BLOCK)]


class TarWriter(CloseOrAbort):
    """Writes samples to one tar shard.

    ``fileobj`` is a URL or path, which appears only when the writer is closed and not at all if
    the ``with`` block raises; or a binary stream, which is left open. ``compress`` is "gz", "bz2",
    "xz", "zst", "lz4", True (gz), False, or None: by the end of the name. ``encoder`` is passed to
    :func:`penstock.codecs.make_encoder`: True encodes values by extension, False accepts only
    bytes. ``keep_meta`` also writes fields that begin with "_" (text or bytes), except ``__key__``,
    ``__url__`` and ``__local_path__``; a set writes only the fields that it names. ``mtime`` is the
    time of all members, 0 by default, so that the same samples produce the same bytes. ``format``
    is "ustar", "gnu" or "pax" (or tarfile's number for one); None is ustar, extended by PAX headers
    if names or sizes need it.

    ``check=False`` accepts names that would not read back unchanged: dots in the last component of
    a key, duplicate keys, capitals in fields, and others.

    >>> import io
    >>> stream = io.BytesIO()
    >>> with TarWriter(stream) as sink:
    ...     sink.write({"__key__": "a", "cls": 3, "txt": "hello"})
    6
    >>> len(stream.getvalue())
    10240
    """

    remedy = ", or use check=False to write it anyway"
    """The end of messages about refused names; callers without ``check=`` set another one."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        check_arguments(cls, kwargs)
        return super().__new__(cls)

    def __init__(
        self,
        fileobj: Any,
        user: str = "bigdata",
        group: str = "bigdata",
        mode: int = 0o444,
        compress: bool | str | None = None,
        encoder: Any = True,
        keep_meta: bool | AbstractSet[str] = False,
        mtime: float | None = None,
        format: int | str | None = None,
        *,
        check: bool = True,
    ) -> None:
        self._open = False
        self.on_sample: Callable[[str, Any, list[bytes]], None] | None = None  # for an index
        self.keep_meta, self.check = keep_meta, check
        self._encode = make_encoder(encoder)
        self._header = Headers(user, group, mode, 0 if mtime is None else mtime, format)
        own = isinstance(fileobj, (str, os.PathLike))
        self.name = str(os.fspath(fileobj) if own else getattr(fileobj, "name", "a stream"))
        kind = compression_of(self.name if own else "", compress)
        if not own and not callable(getattr(fileobj, "write", None)):
            raise PipelineError(f"a TarWriter takes a URL, a path or a stream, not {fileobj!r}")
        packer = (
            COMPRESSORS[kind]() if kind else None
        )  # before opening the file: its package may be missing
        self.stream: Any = open_url(fileobj, "wb", buffer_bytes=0) if own else fileobj
        self._own, self._failed, self._open = own, False, True
        self._process = os.getpid()
        if not own:
            report_at_exit(self)
        self._send = _make_write_all(self.stream)
        self._compressing = Compressing(self._send, packer) if packer else None
        self._send_pieces = getattr(self.stream, "write_pieces", None)
        if self._compressing is not None:
            self._send, self._send_pieces = self._compressing.write, None
        self._gather_bytes = GATHER_BYTES if self._send_pieces is None else CACHED_BYTES
        self._pieces: list[bytes] = []
        self._waiting = self._position = 0
        self._keys: set[str] = set()
        self._suffixes: dict[str, bytes] = {}

    def write(self, obj: Mapping[str, Any]) -> int:
        """Write a sample and return the number of its fields' bytes.

        A sample that cannot be written raises :class:`~penstock.errors.WriteError` and leaves
        nothing in the shard; the next one may be written.
        """
        if not self._open:
            raise PipelineError(
                f"the writer is closed and cannot be written to ({redact(self.name)})"
            )
        if self._failed:
            raise self._lost_error()
        key, fields = self._encode_fields(obj)
        pieces: list[bytes] = []
        payload = 0
        header, stem = self._header, self._encode_key(key)
        for field, data in fields:
            suffix = self._suffixes.get(field) or self._encode_suffix(key, field)
            size = len(data)
            try:
                pieces += header(stem + suffix, size), data, _PADDING[size % BLOCK]
            except WriteError as exn:
                raise self._error(f"cannot write the field {field!r}: {exn}", key) from exn
            payload += size
        if self.check:
            self._check_sample(key, fields)
        self._put(pieces, payload)
        self._keys.add(key)
        if self.on_sample is not None:
            self.on_sample(key, fields, pieces)
        return payload

    @staticmethod
    def tarmode(fileobj: Any, compress: bool | str | None = None) -> str:
        """Return the mode in which ``tarfile.open`` writes such a shard.

        >>> TarWriter.tarmode("a.tar.gz"), TarWriter.tarmode("a.tar")
        ('w|gz', 'w|')
        """
        name = os.fspath(fileobj) if isinstance(fileobj, (str, os.PathLike)) else ""
        return f"w|{compression_of(name, compress) or ''}"

    @functools.cached_property
    def tarstream(self) -> tarfile.TarFile:
        """The shard as a :class:`tarfile.TarFile`, whose ``addfile`` adds members of any kind.

        They follow the samples that were written before. Its ``close`` has no effect.
        """
        if self.on_sample is not None:
            raise PipelineError(
                f"members cannot be added to {redact(self.name)}, whose index is recorded while it "
                "is written: leave out index="
            )
        return _AddedMembers(fileobj=cast(Any, _AddedBytes(self)), mode="w")

    def close(self) -> None:
        """End the shard and make it visible. Closing twice does nothing."""
        if not self._open:
            return
        if self._failed:
            self.abort()
            raise self._lost_error()
        try:
            self._flush()
            end = 2 * BLOCK
            self._send_all([bytes(end + -(self._position + end) % RECORD_BYTES)])
            if self._compressing is not None:
                self._compressing.finish()
            self._open = False
            if self._own:
                self.stream.close()
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Discard the shard. Bytes that a caller's stream received stay there, incomplete."""
        self._open = False
        if self._own:
            getattr(self.stream, "abort", self.stream.close)()

    def __del__(self) -> None:
        self.report_open()

    def report_open(self) -> None:
        """Warn if the writer is open. A stream that it opened has its own warning and clean-up."""
        if getattr(self, "_open", False) and not self._own and os.getpid() == self._process:
            self._process = -1  # warn once; the program may still close it
            warnings.warn(
                f"the shard written to {redact(self.name)} has no end, since its writer was never "
                "closed: call close() or use 'with'",
                RuntimeWarning,
                stacklevel=2,
            )

    def _put(self, pieces: list[bytes], payload: int) -> None:
        """Buffer the pieces of a complete sample, or write them at once if they are large."""
        size = payload + len(pieces) * BLOCK
        if size > LARGE_BYTES:
            self._flush()
            self._send_all(pieces)
            return
        self._pieces += pieces
        self._waiting += size
        if self._waiting > self._gather_bytes:
            self._flush()

    def _flush(self) -> None:
        pieces, size, self._pieces, self._waiting = self._pieces, self._waiting, [], 0
        if self._send_pieces is None or size < len(pieces) * JOINED_BYTES:
            pieces = [b"".join(pieces)]
        self._send_all(pieces)

    def _send_all(self, pieces: list[bytes]) -> None:
        try:
            if self._send_pieces is not None:
                self._send_pieces(pieces)
            else:
                for piece in pieces:
                    self._send(piece)
            self._position += sum(map(len, pieces))
        except BaseException:
            self._failed = True  # part of a sample may have been written
            raise

    def _encode_fields(self, obj: Mapping[str, Any]) -> tuple[str, list[tuple[str, bytes]]]:
        """Return the key, and the fields to write in their order."""
        if not isinstance(obj, Mapping):
            raise self._error(f"a sample is a dict, not {obj!r:.100}")
        try:
            sample = self._encode(obj)  # type: ignore[arg-type]  # any mapping works
        except PenstockError:
            raise
        except Exception as exn:
            exn.add_note(f"while encoding ({Origin(self.name, str(obj.get('__key__')))})")
            raise
        key = sample.get("__key__")
        if not isinstance(key, str) or not key:
            raise self._error(f"a sample needs a text as '__key__', not {key!r}")
        fields = []
        for field, data in sample.items():
            if not isinstance(field, str):
                raise self._error(f"the name of a field is a text, not {field!r}", key)
            if field[:1] == "_":
                if field in READERS_OWN or not self._keeps(field):
                    continue
                if isinstance(data, str):
                    data = self._encode_text(data, key)
            if type(data) is not bytes:
                data = self._as_bytes(key, field, data)
            fields.append((field, data))
        fields.sort()
        return key, fields

    def _keeps(self, field: str) -> bool:
        keep = self.keep_meta
        return field in keep if isinstance(keep, AbstractSet) else bool(keep)

    def _as_bytes(self, key: str, field: str, data: Any) -> bytes:
        if isinstance(data, (bytes, bytearray, memoryview)):
            return bytes(data)
        raise self._error(
            f"the field {field!r} is no bytes after encoding but {type(data).__name__}: "
            "give bytes, or an encoder for it",
            key,
        )

    def _encode_key(self, key: str) -> bytes:
        if not is_plain_key(key):
            if "\0" in key:
                raise self._error("a key with a NUL cannot be stored in a tar", key)
            problem = self.check and key_problem(key)
            if problem:
                raise self._refusal(f"the key {key!r}", problem, key)
        if self.check and key in self._keys:
            raise self._refusal(
                f"the key {key!r}", "it is already in this shard: keys must differ", key
            )
        return self._encode_text(key, key)

    def _encode_suffix(self, key: str, field: str) -> bytes:
        if "\0" in field:
            raise self._error(f"the field {field!r} has a NUL: a tar cannot store it", key)
        problem = self.check and field_problem(field)
        if problem:
            raise self._refusal(f"the field {field!r}", problem, key)
        suffix = b"." + self._encode_text(field, key)
        if len(self._suffixes) < 4096:  # field names that all differ must not fill memory
            self._suffixes[field] = suffix
        return suffix

    def _check_sample(self, key: str, fields: list[tuple[str, bytes]]) -> None:
        if not fields:
            raise self._refusal("the sample", "it has no fields and would not be read", key)
        if key.startswith("__"):
            for field, _ in fields:
                if is_meta(f"{key}.{field}"):
                    problem = "names like __x__ are reserved for members that are no samples"
                    raise self._refusal(f"the name {key}.{field}", problem, key)

    def _encode_text(self, text: str, key: str) -> bytes:
        try:
            return text.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as exn:
            raise self._error(f"{text!r} cannot be UTF-8: {exn.reason}", key) from exn

    def _refusal(self, what: str, problem: str, key: str) -> WriteError:
        return self._error(f"{what} would not read back: {problem}{self.remedy}", key)

    def _lost_error(self) -> StorageError:
        return StorageError(
            "nothing was stored, since an earlier write failed: write the shard again",
            origin=Origin(self.name),
        )

    def _error(self, message: str, key: str | None = None) -> WriteError:
        return WriteError(message, origin=Origin(self.name, key))


class _AddedMembers(tarfile.TarFile):
    """Writes members into the shard of a TarWriter, which itself writes the end."""

    fileobj: Any

    @property
    def offset(self) -> int:
        """The bytes of the shard so far, also those of the writer's samples."""
        return int(self.fileobj.tell())

    @offset.setter
    def offset(self, value: int) -> None:
        """Do nothing: ``tarfile`` counts only the members that it adds."""

    def addfile(self, tarinfo: tarfile.TarInfo, fileobj: Any = None) -> None:
        """Add a member. If part of it was written, an error makes the shard fail."""
        before = self.offset
        try:
            super().addfile(tarinfo, fileobj)
        except BaseException:
            if self.offset != before:
                self.fileobj.writer._failed = True
            raise

    def close(self) -> None:
        """Write nothing: the shard goes on."""


class _AddedBytes:
    """The position of a TarWriter, as the file that ``tarfile`` writes to."""

    def __init__(self, writer: TarWriter) -> None:
        self.writer = writer

    def tell(self) -> int:
        # Not _waiting, which is only an upper bound.
        return self.writer._position + sum(map(len, self.writer._pieces))

    def write(self, data: bytes) -> int:
        if not self.writer._open:
            raise PipelineError(f"the writer is closed ({redact(self.writer.name)})")
        self.writer._flush()
        self.writer._send_all([bytes(data)])
        return len(data)


def _make_write_all(stream: Any) -> Callable[[bytes], Any]:
    """Return the stream's ``write``, repeated if a raw stream accepts only part of the bytes."""
    write: Callable[[Any], Any] = stream.write
    if not isinstance(stream, io.RawIOBase):
        return write

    def write_all(data: bytes) -> None:
        view = memoryview(data)
        while len(view):
            view = view[write(view) or 0 :]

    return write_all
