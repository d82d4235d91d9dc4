"""Outputs that would replace an input are refused, also with ``force``."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from penstock.errors import PipelineError
from penstock.redact import canonical_url, redact
from penstock.storage.urls import is_stream, local_path, rewrite_url


def refuse_replaced_inputs(
    outputs: Iterable[str],
    inputs: Iterable[str],
    is_output: Callable[[str], bool] = lambda place: False,
) -> None:
    """Raise PipelineError if an output is an input, also by another path to the same file.

    ``is_output`` is for outputs whose number is not known: it gets the real path of an input, and
    returns whether the file may be replaced or deleted.
    """
    folders: dict[str, str] = {}  # symbolic links are resolved once per folder, not per file

    def place_of(url: str) -> str | None:
        if is_stream(url):
            return None
        path = local_path(rewrite_url(url))
        if path is None:
            return canonical_url(url)
        folder, slash, name = path.rpartition("/")
        if folder not in folders:
            folders[folder] = os.path.realpath(os.path.expanduser(folder) or slash or ".")
        real = os.path.join(folders[folder], name)
        if os.path.islink(real):
            real = os.path.realpath(real)
        return None if real.startswith(("/dev/", "/proc/")) else real

    read = {place: url for url in inputs if (place := place_of(url)) is not None}
    replaced = [url for url in outputs if place_of(url) in read]
    replaced += [url for place, url in read.items() if is_output(place)]
    if replaced:
        raise PipelineError(
            f"the output {redact(replaced[0])!r} would replace an input: choose another folder"
        )
