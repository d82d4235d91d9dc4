"""Find the shards that match a remote pattern: ``s3://bucket/train-*.tar``, ``gs://bucket/train/``.

:mod:`penstock.storage.urls` expands names without any request; this module sends requests to the
stores, so it is used only when a list of shards is first needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

from penstock.errors import UrlError
from penstock.redact import redact
from penstock.storage.client.store import Listed, Store
from penstock.storage.schemes import (
    SCHEMES,
    find_opener,
    fsspec_knows,
    gopen_schemes,
    import_name,
)
from penstock.storage.urls import (
    expand_urls,
    has_wildcards,
    local_path,
    rewrite_url,
    scheme_of,
)

_WILD = re.compile(r"[*?\[]")
_SHARD = re.compile(r"\.tar(\.[^/.]+)?$|\.tgz$")


def find_shards(urls: Any) -> list[str]:
    """Expand URLs (:func:`penstock.storage.urls.expand_urls`) and list every remote pattern.

    >>> find_shards("train-{0..1}.tar::s3://bucket/val.tar")
    ['train-0.tar', 'train-1.tar', 's3://bucket/val.tar']
    """
    return look_up(expand_urls(urls))


def look_up(urls: Iterable[str]) -> list[str]:
    """Return the URLs, with each remote pattern replaced by its matches."""
    found: list[str] = []
    for url in urls:
        found += list_urls(url) if is_pattern(url) else [url]
    return found


def is_pattern(url: str) -> bool:
    """Return whether the URL is a remote pattern or a remote folder (ends in ``/``).

    Plain web servers cannot list their files, and ``?`` in their URLs begins a query. Nor can the
    program's own openers (``gopen_schemes``).

    >>> is_pattern("s3://bucket/*.tar"), is_pattern("s3://bucket/train/"), is_pattern("a/*.tar")
    (True, True, False)
    """
    scheme = scheme_of(url)
    if scheme in ("", "pipe", "file", "http", "https") or scheme in gopen_schemes:
        return False
    return url.endswith("/") or has_wildcards(url)


def list_urls(pattern: str) -> list[str]:
    """Return the objects that match a remote pattern, or the shards in a remote folder, sorted.

    ``*`` and ``?`` stop at a slash, ``**`` does not. A folder ends in ``/``; its shards are the
    ``.tar``, ``.tar.*`` and ``.tgz`` directly in it. No match raises a
    :class:`~penstock.errors.UrlError`; a store that refuses or fails, a StorageError.
    """
    url = rewrite_url(pattern)
    if local_path(url) is not None:
        return expand_urls([url])
    folder = url.endswith("/")
    prefix = url if folder else _WILD.split(url, maxsplit=1)[0]
    matches = _match_folder(url) if folder else _match_pattern(url)
    rest = url[len(prefix) :]  # without a slash in it, subfolders need not be listed
    deep = "/" in rest or "**" in rest
    found = sorted({one.url for one in list_prefix(prefix, deep=deep) if matches(one.url)})
    if not found:
        seen = redact(pattern)
        what = f"the folder {seen!r} holds no .tar" if folder else f"{seen!r} matches nothing"
        raise UrlError(f"no shards: {what}; check the bucket and the spelling")
    return found


def store_of(url: str) -> Store | None:
    """Return the store of a remote URL that this library can list; None for all others."""
    opener = find_opener(scheme_of(url))
    if opener is None or not opener.store:
        return None
    store: Store = import_name(opener.store)(url)
    return store


def list_prefix(prefix: str, *, deep: bool = True) -> Iterator[Listed]:
    """Return the remote objects whose URLs begin with ``prefix``; see :meth:`Store.list`."""
    scheme = scheme_of(prefix)
    store = store_of(prefix)
    if store is not None:
        return store.list(prefix, deep=deep)
    if fsspec_knows(scheme):
        from penstock.storage.objects.fsspec import list_fsspec

        return list_fsspec(prefix, deep=deep)
    known = ", ".join(sorted(name for name, row in SCHEMES.items() if row.store))
    raise UrlError(
        f"{scheme}:// cannot be listed (those can: {known}, and all of fsspec's): name the shards "
        f"one by one, such as {os.path.dirname(prefix)}/train-{{000..099}}.tar"
    )


def _match_folder(folder: str) -> Any:
    def matches(url: str) -> bool:
        name = url[len(folder) :]
        return url.startswith(folder) and "/" not in name and _SHARD.search(name) is not None

    return matches


def _match_pattern(pattern: str) -> Any:
    try:
        regex = re.compile(_translate(pattern), re.DOTALL)
    except re.error:
        raise UrlError(
            f"{redact(pattern)!r} is no pattern: in [a-z], the first must not come after the last"
        ) from None
    return lambda url: url == pattern or regex.fullmatch(url) is not None


def _translate(pattern: str) -> str:
    """Return the pattern as a regular expression.

    >>> _translate("s3://b/**/a-?.tar")
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
