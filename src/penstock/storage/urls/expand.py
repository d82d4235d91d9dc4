"""Expand a string, a path or a list of them to the URLs of shards."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Collection, Iterable

from penstock import env
from penstock.errors import UrlError
from penstock.redact import redact, redact_value
from penstock.storage.urls.braces import MAX_URLS, MEAN_CHARACTERS, expand_braces
from penstock.storage.urls.scheme import scheme_of

_VARIABLE = re.compile(r"\$\{(\w+)\}")
_SEPARATOR = re.compile(r"::(?![0-9a-fA-F:]*\])")
_ROUNDS = 10  # a variable's value may name further variables
_SHARDS = ("*.tar", "*.tar.*", "*.tgz")
_SPECS = (".yaml", ".yml", ".json")

UrlLike = str | os.PathLike[str]


def expand_urls(urls: UrlLike | Iterable[UrlLike], *, max_urls: int = MAX_URLS) -> list[str]:
    """Return the URLs of all shards, in order.

    A string is split at ``::``. In each part ``${X}`` is replaced by the variable ``WDS_X`` and
    braces are expanded (see :func:`~penstock.storage.urls.expand_braces`). In local names, ``~``,
    the wildcards ``*``, ``?``, ``[…]`` and ``**``, and a folder with a slash at its end (all shards
    in it) are looked up, sorted. The strings of a list are treated the same but not split. The name
    of an existing file or folder is never a pattern, nor is one with only ``[…]``: brackets are
    common in names, and WebDataset leaves them alone. A ``pipe:`` command keeps its wildcards; in a
    list, its ``${X}`` too.

    No shards, a pattern without a match, a pattern for more than ``max_urls`` shards and an unset
    variable raise a :class:`~penstock.errors.UrlError`.

    >>> expand_urls("train-{0..1}.tar::s3://bucket/val.tar")
    ['train-0.tar', 'train-1.tar', 's3://bucket/val.tar']
    """
    found: list[str] = []
    if isinstance(urls, str):
        for part in split_urls(urls):
            found += _expand(part, max_urls, with_variables=True)
    elif isinstance(urls, os.PathLike):
        found = _expand_path(urls, max_urls)
    elif not isinstance(urls, Iterable) or isinstance(urls, (bytes, bytearray)):
        raise UrlError(
            f"shards are named by a string, a path or a list of them, not by {redact_value(urls)!r}"
            f" ({type(urls).__name__})"
        )
    else:
        for url in urls:
            if isinstance(url, str):
                found += _expand(url, max_urls, with_variables=scheme_of(url) != "pipe")
            elif isinstance(url, os.PathLike):
                found += _expand_path(url, max_urls)
            else:
                raise UrlError(
                    "a list of shards holds strings and paths, but this one holds "
                    f"{redact_value(url)!r}"
                )
    if not found:
        raise UrlError(f"no shards: {redact_value(urls)!r} names none, give at least one URL")
    return found


def split_urls(text: str) -> list[str]:
    """Split a string at ``::``, except inside an IPv6 address.

    >>> split_urls("a.tar::http://[::1]:80/b.tar")
    ['a.tar', 'http://[::1]:80/b.tar']
    """
    return _SEPARATOR.split(text)


class UrlLimit:
    """Expands the patterns of files that are not trusted, to ``max_urls`` URLs in all."""

    def __init__(self, max_urls: int = 1_000_000) -> None:
        self._max_urls = max_urls
        self._count = self._characters = 0

    def expand(self, url: str) -> list[str]:
        """Return the URLs of a pattern; a UrlError if there are too many with those before."""
        found = expand_urls([url], max_urls=self._max_urls)
        self.add(found)
        return found

    def add(self, urls: Collection[str]) -> None:
        """Count URLs that need not be expanded."""
        self._count += len(urls)
        self._characters += sum(map(len, urls))
        if self._count > self._max_urls or self._characters > self._max_urls * MEAN_CHARACTERS:
            raise UrlError(
                f"these are more than {self._max_urls:,} shards in all, or "
                f"{self._max_urls * MEAN_CHARACTERS:,} characters: check the ranges of the patterns"
            )


def _expand(text: str, max_urls: int, *, with_variables: bool) -> list[str]:
    if not text:
        raise UrlError("no shards: an empty string names none (is there a '::' too many?)")
    if _is_existing_file(text):
        return [text]
    if with_variables:
        text = _fill_variables(text)
    found: list[str] = []
    for url in expand_braces(text, max_urls=max_urls, blanks=scheme_of(text) != "pipe"):
        found += _look_up(url)
        if len(found) > max_urls:
            raise UrlError(f"{redact(text)!r} matches more than {max_urls} shards")
    return found


def _expand_path(path: os.PathLike[str], max_urls: int) -> list[str]:
    text = os.fspath(path)
    if not isinstance(text, str):
        raise UrlError(f"paths of shards are text, not bytes: {text!r}")
    if scheme_of(text):
        if not os.path.exists(text):
            # pathlib has already merged the two slashes, so the URL cannot be restored.
            raise UrlError(
                f"a path cannot hold a URL, but this one is {redact(text)!r}: give a string"
            )
        text = os.path.join(os.curdir, text)
    if os.path.isdir(text):
        text = os.path.join(text, "")
    return _expand(text, max_urls, with_variables=False)


def _is_existing_file(text: str) -> bool:
    # Only names that could be patterns are looked up on disk: a list may have 100 000 URLs.
    if scheme_of(text) or not (re.search(r"[*?{]", text) or text.startswith("~")):
        return False
    return os.path.isfile(text)


def _fill_variables(text: str) -> str:
    def value(match: re.Match[str]) -> str:
        variable = f"WDS_{match[1]}"
        filled = env.text(variable)
        if filled is None:
            raise UrlError(
                f"{match[0]} in {redact(text)!r} needs the variable {variable}, which is not set"
            )
        return filled

    filled = text
    for _ in range(_ROUNDS):
        if not _VARIABLE.search(filled):
            return filled
        filled = _VARIABLE.sub(value, filled)
    if _VARIABLE.search(filled):
        raise UrlError(f"the variables in {redact(text)!r} name each other without end")
    return filled


def _look_up(url: str) -> list[str]:
    """Look up wildcards, folders and ~ of a local name; other URLs are returned as they are."""
    scheme = scheme_of(url)
    if scheme == "pipe" or url == "-":
        return [url]
    if url.lower().endswith(_SPECS):
        raise UrlError(
            f"shards are tar files, and {redact(url)!r} is a spec: read it with WebDataset(spec), "
            "or list its shards"
        )
    if scheme:
        return [url]
    path = os.path.expanduser(url)
    if path.endswith(("/", os.sep)):
        return _list_folder(path)
    if has_wildcards(path) and not os.path.exists(path):
        return _match_files(path)
    return [path]


def has_wildcards(name: str) -> bool:
    """Return whether a name can be a pattern. ``[…]`` alone is part of the name."""
    return "*" in name or "?" in name


def _match_files(pattern: str) -> list[str]:
    folder = os.path.dirname(pattern)
    while folder and not os.path.exists(folder):
        folder = os.path.dirname(folder)
    # The name of an existing folder is never a pattern.
    escaped = glob.escape(folder) + pattern[len(folder) :]
    matches = [path for path in glob.glob(escaped, recursive=True) if not os.path.isdir(path)]
    if not matches:
        raise UrlError(
            f"the pattern {pattern!r} matches no file (looked for {os.path.abspath(pattern)!r}): "
            "check the folder and the spelling"
        )
    # A file whose name begins like a scheme, such as "pipe:", is a file all the same.
    return sorted(os.path.join(os.curdir, m) if scheme_of(m) or m == "-" else m for m in matches)


def _list_folder(folder: str) -> list[str]:
    if not os.path.isdir(folder):
        raise UrlError(f"a name that ends in '/' is a folder of shards, but there is no {folder!r}")
    shards = {
        path
        for pattern in _SHARDS
        for path in glob.glob(glob.escape(folder) + pattern)
        if os.path.isfile(path)
    }
    if not shards:
        raise UrlError(f"no shards: the folder {folder!r} holds no {', '.join(_SHARDS)}")
    return sorted(shards)
