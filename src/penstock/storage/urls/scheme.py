"""The scheme of a URL, and the path of a local one."""

from __future__ import annotations

import os
import re
from urllib.parse import quote, unquote

from penstock.errors import UrlError

# At least two letters: `C:\data` is a drive on Windows, not a scheme.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):")


def scheme_of(url: str) -> str:
    """Return the scheme in lower case; empty for local files and ``-`` (standard input, output).

    Write a local file whose name begins like a scheme with its folder: ``./run:1.tar``.

    >>> scheme_of("s3://bucket/train-0.tar"), scheme_of("pipe:cat a.tar")
    ('s3', 'pipe')
    >>> scheme_of("data/train-0.tar"), scheme_of("C:/data/train-0.tar"), scheme_of("-")
    ('', '', '')
    """
    match = _SCHEME.match(url)
    return match[1].lower() if match else ""


def local_path(url: str) -> str | None:
    """Return the path of a plain name or ``file:`` URL; None for other schemes and ``-``.

    Only ``file:`` URLs are percent-decoded: in a plain name ``#``, ``?`` and ``%20`` are literal. A
    ``file:`` URL that names another machine raises a :class:`~penstock.errors.UrlError`.

    >>> local_path("a%20b#1.tar"), local_path("file:///data/a%20b.tar"), local_path("pipe:cat x")
    ('a%20b#1.tar', '/data/a b.tar', None)
    """
    scheme = scheme_of(url)
    if scheme == "":
        return None if url == "-" else url
    if scheme != "file":
        return None
    path = url[len("file:") :]
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        if host not in ("", "localhost"):
            raise UrlError(
                f"a file: URL names a file of this machine, but {url!r} names the host {host!r}: "
                f"write file:///{host}/{rest} for /{host}/{rest}, or file:{host}/{rest} for a "
                "path from the working folder"
            )
        path = slash + rest
    path = unquote(path)
    if os.name == "nt" and re.match(r"/[A-Za-z]:", path):
        path = path[1:]
    return path


def is_remote(url: str) -> bool:
    """Return whether opening the shard takes at least one network round trip.

    >>> is_remote("s3://bucket/a.tar"), is_remote("a.tar"), is_remote("pipe:cat a.tar")
    (True, False, False)
    """
    return local_path(url) is None and not is_stream(url)


def is_stream(url: str) -> bool:
    """Return whether the shard can only be read once: a command or standard input.

    >>> is_stream("pipe:cat a.tar"), is_stream("-"), is_stream("a.tar")
    (True, True, False)
    """
    return url == "-" or scheme_of(url) == "pipe"


def encode_name(folder: str, name: str) -> str:
    """Return a file's name as it is written in URLs below a folder: the same file, literally.

    >>> encode_name("file:///data", "a%2e.tar"), encode_name("s3://bucket", "a%2e.tar")
    ('a%252e.tar', 'a%2e.tar')
    """
    scheme = scheme_of(folder)
    if scheme in ("file", "http", "https"):
        return quote(name, errors="surrogateescape")
    if scheme and "::" in name:  # fsspec would open what is after it
        raise UrlError(f"a name with '::' cannot be part of a URL, but this one is {name!r}")
    return name


def join_name(folder: str, name: str) -> str:
    """Return the URL or path of a file below a folder; the name is taken literally.

    >>> join_name("file:///data", "a%2e.tar"), join_name("s3://bucket/x/", "a.tar")
    ('file:///data/a%252e.tar', 's3://bucket/x/a.tar')
    """
    return f"{folder}{'' if folder.endswith('/') else '/'}{encode_name(folder, name)}"
