"""Outputs: nothing is overwritten by accident, and every input shard has its own."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from penstock.errors import Origin, PipelineError, StorageError, UrlError
from penstock.redact import redact
from penstock.storage import MissingFile, open_url
from penstock.storage.streams import storage_error
from penstock.storage.urls import join_name, local_path, scheme_of

_NUMBER = re.compile(r"%0?[0-9]*d")
_ZMQ = re.compile(r"zr?(push|pull|pub|sub)(\+\w+)?:", re.IGNORECASE)


class ExistsError(StorageError, FileExistsError):
    """An output that is there already; ``force`` replaces it."""


def refuse_zeromq(url: str) -> None:
    """Raise UrlError for the address of a ZeroMQ socket, which ``tarp`` took as a shard."""
    if _ZMQ.match(url):
        raise UrlError(
            f"ZeroMQ addresses are not supported, but {redact(url)!r} is one: write to a file or a "
            "pipe, and read that"
        )


def exists(url: str) -> bool:
    """Whether there is a file or object of that name; never for streams and commands."""
    if url == "-" or scheme_of(url) == "pipe":
        return False
    path = local_path(url)
    if path is not None:
        return os.path.lexists(path) and not path.startswith("/dev/")
    try:
        with open_url(url) as stream:
            stream.read(1)  # some stores send no request before the first read
    except MissingFile:
        return False
    return True


def refuse_existing(url: str, force: bool = False) -> None:
    """Raise ExistsError if the output exists and ``force`` is false."""
    refuse_zeromq(url)
    if not force and exists(url):
        raise exists_error(url)


def exists_error(url: str) -> ExistsError:
    return ExistsError(
        "the output exists already: choose another name, or say --force to replace it",
        origin=Origin(url),
    )


def make_folder(url: str) -> None:
    """Make the folder of a local output, if it is not there."""
    path = local_path(url)
    if path is None or url == "-":
        return
    try:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    except OSError as error:
        raise storage_error("cannot make the folder", os.path.dirname(path), error) from error


def shard_name(pattern: str, number: int) -> str:
    """Return the name of output shard ``number``: the pattern with ``%06d`` filled in.

    >>> shard_name("out-%06d.tar", 7)
    'out-000007.tar'
    """
    if len(_NUMBER.findall(pattern)) != 1:
        raise PipelineError(
            f"a pattern of shards has one number such as %06d, but {redact(pattern)!r} has not"
        )
    return _NUMBER.sub(lambda found: found[0] % number, pattern)


def outputs_for(shards: Sequence[str], output: str) -> list[str]:
    """Return one output for each shard: in a folder (``OUT/``), numbered (``%06d``), or the one.

    >>> outputs_for(["a/x.tar", "a/y.tar"], "good/"), outputs_for(["x.tar"], "good.tar")
    (['good/x.tar', 'good/y.tar'], ['good.tar'])
    """
    if output.endswith("/"):
        names = [os.path.basename(shard) for shard in shards]
        if len(set(names)) < len(names) or not all(names):
            raise PipelineError(
                f"several shards would have one name in {redact(output)}: use a pattern with %06d"
            )
        return [join_name(output, name) for name in names]
    if "%" in output:
        return [shard_name(output, number) for number in range(len(shards))]
    if len(shards) == 1:
        return [output]
    raise PipelineError(
        f"{len(shards)} shards need a folder/ or a pattern such as out-%06d.tar as output, not "
        f"{redact(output)!r}"
    )
