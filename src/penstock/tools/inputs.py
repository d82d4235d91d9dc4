"""Shard arguments to URLs, and shards to samples with their origin."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from penstock.errors import Origin, StorageError, UnsafeError, UrlError, ran_out
from penstock.handlers import Handler, ask, describe, reraise_exception
from penstock.redact import is_command, redact
from penstock.shards.open_shard import open_shard
from penstock.shards.sample_reader import READ_ERRORS, Sample, Samples
from penstock.shards.tar_reader import TarReader
from penstock.storage import open_url
from penstock.storage.listing import find_shards, look_up
from penstock.storage.urls import UrlLimit, split_urls
from penstock.tools.outputs import refuse_zeromq

MESSAGES_KEPT = 100
"""Problems beyond this number are only counted."""

Shards = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]


def list_shards(shards: Shards, list_file: str | None = None) -> list[str]:
    """Return the URLs of all shards that arguments name, followed by those in a list file.

    Arguments may have braces, wildcards, ``::`` and folders, see
    :func:`penstock.storage.urls.expand_urls`. The list file (``-``: standard input) has one such
    argument per line; empty lines and those that begin with ``#`` are ignored. Commands
    (``pipe:``) in a list file are refused with an UnsafeError: whoever wrote the list could run
    anything. Its braces expand to at most a million shards in all.

    >>> list_shards(["train-{0..1}.tar", "val.tar"])
    ['train-0.tar', 'train-1.tar', 'val.tar']
    """
    texts = [shards] if isinstance(shards, (str, os.PathLike)) else list(shards)
    found = [url for text in texts for url in find_shards(text)]
    if list_file is not None:
        limit = UrlLimit()
        parts = [part for line in _lines(list_file) for part in split_urls(line)]
        listed = [url for part in parts for url in look_up(limit.expand(part))]
        _refuse_commands(listed, list_file)  # here, since braces may hide one
        found += listed
    for url in found:
        refuse_zeromq(url)
    if not found:
        raise UrlError("no shards: name at least one, or a file that lists them with -l FILE")
    return found


def _lines(list_file: str) -> list[str]:
    with open_url(list_file, buffer_bytes=-1) as stream:
        text = stream.read().decode("utf-8", "surrogateescape")
    lines = [line.strip() for line in text.split("\n")]
    return [line for line in lines if line and not line.startswith("#")]


def _refuse_commands(urls: Iterable[str], list_file: str) -> None:
    for url in urls:
        if is_command(url):
            raise UnsafeError(
                f"a list of shards may not run commands, but {redact(list_file)} has "
                f"{redact(url)!r}: give it as an argument"
            )


class LocatedSample(NamedTuple):
    """A sample of raw bytes and where it is."""

    sample: Sample
    shard: str
    number: int
    """The shard's place in the list."""
    offset: int

    @property
    def key(self) -> str:
        return str(self.sample["__key__"])

    @property
    def origin(self) -> Origin:
        return Origin(self.shard, self.key, self.offset)

    @property
    def fields(self) -> dict[str, Any]:
        """The sample without ``__key__`` and ``__url__``."""
        return {f: value for f, value in self.sample.items() if f not in ("__key__", "__url__")}


def read_samples(
    shards: Iterable[str],
    *,
    want: Callable[[bytes], bool] | None = None,
    handler: Handler = reraise_exception,
    reader: Callable[[TarReader], TarReader] = lambda tape: tape,
) -> Iterator[LocatedSample]:
    """Iterate over the samples of shards, in order.

    ``want(name)`` says whether a member is needed; the others are skipped, and a sample without
    needed members does not appear. An error goes to ``handler``: if that returns true, reading
    continues with the next shard, if false it ends. ``reader`` may replace each shard's reader.
    """
    for number, url in enumerate(shards):
        try:
            with open_shard(url, want=want) as tape:
                samples = Samples(reader(tape), handler)
                for sample in samples:
                    yield LocatedSample(sample, url, number, samples.offset)
                if samples.stopped:
                    return
        except READ_ERRORS as error:
            if getattr(error, "asked", False):
                raise
            if not ask(handler, error):
                return


def read_keys(keys: str | Sequence[str]) -> list[str]:
    """Return the keys that a file lists, one per line; or that commas separate; or as given.

    >>> read_keys("a,b"), read_keys(["a", "b"])
    (['a', 'b'], ['a', 'b'])
    """
    if not isinstance(keys, str):
        return list(keys)
    if keys != "-" and not os.path.exists(keys) and "://" not in keys:
        return [key for key in keys.split(",") if key]
    with open_url(keys, buffer_bytes=-1) as stream:
        text: str = stream.read().decode("utf-8", "surrogateescape")
    return [line for line in text.split("\n") if line]


class SkippedErrors:
    """A handler for ``--on-error skip``: skips what fails, counts it, keeps the first messages.

    Errors that say nothing about the data (no memory, no disk space, no network) are raised.
    """

    def __init__(self) -> None:
        self.count = 0
        self.messages: list[str] = []

    def __call__(self, error: Exception) -> bool:
        if ran_out(error) or isinstance(error, StorageError):
            raise error
        self.add(str(error) or describe(error))
        return True

    def add(self, message: str) -> None:
        """Count a problem."""
        self.count += 1
        if len(self.messages) < MESSAGES_KEPT:
            self.messages.append(message)


def handler_for(on_error: str) -> tuple[Handler, SkippedErrors]:
    """Return the handler for ``abort`` or ``skip``, and where it counts what was skipped."""
    skipped = SkippedErrors()
    return (skipped if on_error == "skip" else reraise_exception), skipped
