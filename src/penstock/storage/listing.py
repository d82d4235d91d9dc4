"""The shards that a remote pattern stands for: ``s3://bucket/train-*.tar``, ``gs://bucket/train/``.

Expanding names is the business of :mod:`penstock.storage.urls`, which asks nobody; here the stores are
asked what they have. So it is done late, when a list of shards is first needed.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.errors import UrlError
from penstock.redact import shown
from penstock.storage.urls import expand_urls, local_path, rewrite_url, scheme_of

from penstock.storage.routes import fsspec_knows, goes_through_ais
from penstock.storage.client.store import Listed

STORES = {
    "s3": "penstock.storage.objects.s3:S3Store",
    "gs": "penstock.storage.objects.gcs:GoogleStore",
    "az": "penstock.storage.objects.azure:AzureStore",
    "abfs": "penstock.storage.objects.azure:AzureStore",
    "abfss": "penstock.storage.objects.azure:AzureStore",
    "hf": "penstock.storage.objects.huggingface:HubStore",
    "ais": "penstock.storage.objects.aistore:AisStore",
}
"""Which stores can be listed; made with the URL as only argument."""

_WILD = re.compile(r"[*?\[]")
_SHARD = re.compile(r"\.tar(\.[^/.]+)?$|\.tgz$")


def find_shards(urls: Any) -> list[str]:
    """:func:`penstock.storage.urls.expand_urls`, and then every remote pattern looked up.

    >>> find_shards("train-{0..1}.tar::s3://bucket/val.tar")
    ['train-0.tar', 'train-1.tar', 's3://bucket/val.tar']
    """
    return look_up(expand_urls(urls))


def look_up(urls: Iterable[str]) -> list[str]:
    """The URLs, with what they match in place of those that are patterns."""
    found: list[str] = []
    for url in urls:
        found += list_urls(url) if is_pattern(url) else [url]
    return found


def is_pattern(url: str) -> bool:
    """Whether the URL is a remote pattern, or a remote folder (with ``/`` at its end).

    Plain web servers have no list of what they hold, and ``?`` in their URLs begins a query.

    >>> is_pattern("s3://bucket/*.tar"), is_pattern("s3://bucket/train/"), is_pattern("a/*.tar")
    (True, True, False)
    """
    scheme = scheme_of(url)
    if scheme in ("", "pipe", "file", "http", "https"):
        return False
    return url.endswith("/") or _WILD.search(url) is not None


def list_urls(pattern: str) -> list[str]:
    """The objects that match a remote pattern, or the shards in a remote folder, sorted.

    ``*`` and ``?`` stop at a slash, ``**`` does not. A folder ends in ``/``; its shards are the
    ``.tar``, ``.tar.*`` and ``.tgz`` directly in it. No match is a
    :class:`~penstock.errors.UrlError`, a store that refuses or fails a StorageError.
    """
    place = rewrite_url(pattern)
    if local_path(place) is not None:
        return expand_urls([place])
    folder = place.endswith("/")
    prefix = place if folder else _WILD.split(place, maxsplit=1)[0]
    matches = _folder_test(place) if folder else _pattern_test(place)
    rest = place[len(prefix) :]  # where it has no slash, folders below need not be listed
    deep = "/" in rest or "**" in rest
    found = sorted({one.url for one in _listed(prefix, deep) if matches(one.url)})
    if not found:
        seen = shown(pattern)
        what = f"the folder {seen!r} holds no .tar" if folder else f"{seen!r} matches nothing"
        raise UrlError(f"no shards: {what}; check the bucket and the spelling")
    return found


def _listed(prefix: str, deep: bool) -> Iterator[Listed]:
    scheme = scheme_of(prefix)
    name = STORES.get("ais" if goes_through_ais(scheme) else scheme)
    if name is not None:
        module, _, kind = name.partition(":")
        return iter(getattr(importlib.import_module(module), kind)(prefix).list(prefix, deep=deep))
    if fsspec_knows(scheme):
        from penstock.storage.objects.fsspec import list_fsspec

        return list_fsspec(prefix, deep=deep)
    known = ", ".join(sorted(STORES))
    raise UrlError(
        f"{scheme}:// cannot be listed (those can: {known}, and all of fsspec's): name the shards "
        f"one by one, such as {os.path.dirname(prefix)}/train-{{000..099}}.tar"
    )


def _folder_test(folder: str) -> Any:
    def matches(url: str) -> bool:
        name = url[len(folder) :]
        return url.startswith(folder) and "/" not in name and _SHARD.search(name) is not None

    return matches


def _pattern_test(pattern: str) -> Any:
    try:
        regex = re.compile(_translated(pattern), re.DOTALL)
    except re.error:
        raise UrlError(
            f"{shown(pattern)!r} is no pattern: in [a-z], the first must not come after the last"
        ) from None
    return lambda url: url == pattern or regex.fullmatch(url) is not None


def _translated(pattern: str) -> str:
    """The pattern as a regular expression.

    >>> _translated("s3://b/**/a-?.tar")
    's3://b/(?:.*/)?a\\\\-[^/]\\\\.tar'
    """
    words = []
    for word in re.findall(r"\*\*/|\*\*|\*|\?|\[!?\]?[^\]]*\]|.", pattern, re.DOTALL):
        if word in _WILDCARDS:
            words.append(_WILDCARDS[word])
        elif len(word) > 1:
            inside = word[1:-1].replace("\\", "\\\\")
            words.append(f"[^{inside[1:]}]" if inside.startswith("!") else f"[{inside}]")
        else:
            words.append(re.escape(word))
    return "".join(words)


_WILDCARDS = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
