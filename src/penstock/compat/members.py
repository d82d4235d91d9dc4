"""Reading a shard in three steps, each a stage of its own: open, take apart, group.

``url_opener`` gives open streams, ``tar_file_expander`` the files in them, ``group_by_keys``
samples. Programs use the steps to put one of their own in between. Where that is not needed,
``tarfile_to_samples`` does all three at once, faster, and finds keys that stand twice.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from penstock.errors import DuplicateError, Origin
from penstock.handlers import Handler, reraise_exception
from penstock.shards.open_shard import open_shard
from penstock.shards.sample_reader import Sample, base_plus_ext, text_of
from penstock.shards.tar_reader import Tape
from penstock.redact import named
from penstock.stages.reading.tar_samples import shard_place
from penstock.storage import gopen

File = dict[str, Any]
"""``fname`` and ``data`` of one file, and ``__url__`` of its shard."""

Select = Callable[[str], bool]
Rename = Callable[[str], str]

META = r"__[^/]*__($|/)"
meta_prefix = meta_suffix = "__"


class EndOfShard(dict[str, Any]):
    """What stands between the files of two shards: an empty dict.

    Asked for ``fname`` it gives an empty name, which belongs to no sample; so grouping functions
    that were written before there was such a mark pass it over.

    >>> EndOfShard() == {}, EndOfShard()["fname"]
    (True, '')
    """

    def __missing__(self, name: str) -> str:
        return ""


END_OF_SHARD = EndOfShard()
CUT_SHARD = EndOfShard()
"""The mark behind a damaged shard: the sample before it is not complete."""


def valid_sample(sample: Any) -> bool:
    """True for a dict with something in it that is not marked ``__bad__``.

    >>> valid_sample({"__key__": "a"}), valid_sample({}), valid_sample({"__bad__": True})
    (True, False, False)
    """
    return isinstance(sample, dict) and bool(sample) and not sample.get("__bad__")


def url_opener(
    data: Iterable[Any], handler: Handler = reraise_exception, **kw: Any
) -> Iterator[File]:
    """Opens the shards of a shard list: each dict with ``url`` gets an open ``stream``.

    Further arguments go to :func:`~penstock.gopen`. What cannot be opened goes to ``handler``.
    """
    for shard in data:
        try:
            url, _ = shard_place(shard)
            opened = {**(shard if isinstance(shard, dict) else {"url": url})}
            opened["stream"] = gopen(url, **kw)
        except Exception as error:  # noqa: BLE001 - the handler decides
            if handler(error):
                continue
            return
        yield opened


def tar_file_iterator(
    fileobj: Any,
    skip_meta: str | None = META,
    handler: Handler = reraise_exception,
    select_files: Select | None = None,
    rename_files: Rename | None = None,
) -> Iterator[File]:
    """The files of one open tar: dicts with ``fname`` and ``data``.

    Names that match ``skip_meta`` are passed over, ``rename_files`` gives the others their names,
    and ``select_files`` chooses among those. Damage goes to ``handler`` and ends the tar.
    """
    try:
        with open_shard(str(getattr(fileobj, "name", "a stream")), stream=fileobj) as tape:
            yield from _Files(tape, skip_meta, handler, select_files, rename_files)
    except Exception as error:  # noqa: BLE001 - the handler decides
        handler(error)


def tar_file_expander(
    data: Iterable[File],
    handler: Handler = reraise_exception,
    select_files: Select | None = None,
    rename_files: Rename | None = None,
    eof_value: Any = END_OF_SHARD,
) -> Iterator[Any]:
    """The files of open tars (dicts with ``url`` and ``stream``), one tar after another.

    After each comes ``eof_value``, unless that is None. A damaged tar gives the files before the
    damage, then goes to ``handler``; if that says go on, the next tar follows.
    """
    for source in data:
        try:
            url, stream = shard_place(source)
            common = {"__url__": named(url)}
            if source.get("local_path") is not None:
                common["__local_path__"] = source["local_path"]
            with open_shard(url, stream=stream) as tape:
                for file in _Files(tape, META, handler, select_files, rename_files):
                    yield {**file, **common}
        except Exception as error:  # noqa: BLE001 - the handler decides
            go_on = handler(error)
            if eof_value is END_OF_SHARD:
                yield CUT_SHARD
            if not go_on:
                return
            continue
        if eof_value is not None:
            yield eof_value


class _Files:
    """The files of a tape that are wanted, under the names they are wanted by."""

    def __init__(
        self,
        tape: Tape,
        skip_meta: str | None,
        handler: Handler,
        select: Select | None,
        rename: Rename | None,
    ) -> None:
        self.tape, self.handler, self.select, self.rename = tape, handler, select, rename
        self.skip_meta = re.compile(skip_meta) if skip_meta is not None else None
        self.name = ""
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[File]:
        self.tape.want = self.want
        for member in self.tape:
            if self.error is not None:
                error, self.error = self.error, None
                if not self.handler(error):
                    return
            elif member.data is not None:
                yield {"fname": self.name, "data": member.data}

    def want(self, raw: bytes) -> bool:
        """Whether the data of the next member is to be read; an error waits until it is passed."""
        name = text_of(raw)
        if "/" not in name and name.startswith(meta_prefix) and name.endswith(meta_suffix):
            return False
        if self.skip_meta is not None and self.skip_meta.match(name):
            return False
        try:
            self.name = self.rename(name) if self.rename is not None else name
            return self.select is None or bool(self.select(self.name))
        except Exception as error:  # noqa: BLE001 - the handler decides
            self.error = error
            return False


def group_by_keys(
    data: Iterable[File],
    keys: Callable[[str], tuple[str | None, str | None]] = base_plus_ext,
    lcase: bool = True,
    suffixes: Iterable[str] | None = None,
    handler: Handler = reraise_exception,
) -> Iterator[Sample]:
    """Samples of files that stand next to each other and share a key.

    ``keys(fname)`` splits a name into key and field; with ``lcase`` fields are in small letters.
    ``suffixes`` are the fields to keep. A field that stands twice in a sample goes to ``handler``;
    if that says go on, the later one is left out.

    >>> files = [{"fname": "a.JPG", "data": b"1", "__url__": "x.tar"}]
    >>> list(group_by_keys(files))
    [{'__key__': 'a', '__url__': 'x.tar', 'jpg': b'1'}]
    """
    wanted = None if suffixes is None else set(suffixes)
    sample: Sample = {}
    for file in data:
        if file == {}:  # the end of a shard
            if valid_sample(sample) and file is not CUT_SHARD:
                yield sample
            sample = {}
            continue
        try:
            key, field = keys(file["fname"])
        except Exception as error:  # noqa: BLE001 - the handler decides
            if handler(error):
                continue
            break
        if key is None or field is None:
            continue
        field = field.lower() if lcase else field
        if key != sample.get("__key__"):
            if valid_sample(sample):
                yield sample
            sample = {"__key__": key, "__url__": file.get("__url__")}
        if field in sample:
            if handler(_stands_twice(file, field, sample)):
                continue
            break
        if wanted is None or field in wanted:
            sample[field] = file["data"]
        if file.get("__local_path__") is not None:
            sample["__local_path__"] = file["__local_path__"]
    if valid_sample(sample):
        yield sample


def _stands_twice(file: File, field: str, sample: Sample) -> DuplicateError:
    return DuplicateError(
        f"duplicate file name in tar file: {file['fname']!r} is a second {field!r}",
        origin=Origin(str(file.get("__url__")), sample["__key__"]),
    )


def tarfile_samples(
    src: Iterable[Any],
    handler: Handler = reraise_exception,
    select_files: Select | None = None,
    rename_files: Rename | None = None,
) -> Iterator[Sample]:
    """The samples of all shards of a shard list, by the three steps."""
    streams = url_opener(src, handler)
    return group_by_keys(
        tar_file_expander(streams, handler, select_files, rename_files), handler=handler
    )
