"""URLs without their secrets: as messages, logs, samples and index files may show them.

A web address may hold a password (``https://me:secret@host/``) or a signature (``?X-Amz-…``), and
the command of a ``pipe:`` may hold such an address. :func:`shown` is for people: it leaves out
whatever might be a secret. :func:`named` is for programs: it leaves out what is known to be one, so
that two objects still have two names, and one object has one name however it was signed.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

_PASSWORD = re.compile(r"^(?!abfss?:)([A-Za-z][A-Za-z0-9+.-]*://)[^/?#@]*@(?!.*@)", re.DOTALL)
_PERHAPS_PASSWORD = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://[^:]*):(.*)@", re.DOTALL)
_IN_COMMAND = re.compile(r"https?://[^\s'\"]+", re.IGNORECASE)
_OPTION = re.compile(
    r"""((?:^|\s)(?:-u|--user|--oauth2-bearer|--password)[=\s]\s*|authorization:\s*)"""
    r"""("[^"]*"|'[^']*'|(?:basic|bearer)?\s*[^\s'"]+)""",
    re.IGNORECASE,
)
_ASSIGNED = re.compile(
    r"""((?:^pipe:|[\s'"])[\w-]*"""
    r"""(?:signature|token|secret|passw|pwd|auth|credential|jwt|(?:api|access|private).?key)"""
    r"""[\w-]*[:=]\s*)"""
    r"""("[^"]*"|'[^']*'|(?:(?:basic|bearer|token)\s+)?[^\s'"]+)""",
    re.IGNORECASE,
)
"""Variables and headers in a command: ``AWS_SECRET_ACCESS_KEY=…``, ``X-Auth-Token: …``."""
_SECRET = re.compile(
    r"x-(amz|goog)-.*|(.*[-_.])?(sig|auth)([-_.].*)?|"
    r".*(signature|token|secret|passw|pwd|authori[sz]|authentic|oauth|credential|jwt|api.?key|"
    r"access.?(key|id)|key.?pair).*|expires|policy",
    re.IGNORECASE,
)
_PERHAPS_SECRET = re.compile(r"key|code", re.IGNORECASE)
"""What may be a secret or the name of the object: a digest of it tells objects apart."""
_BESIDE_SIG = re.compile(r"s[vetpr]|ss|srt|sip|spr|sk[a-z]+", re.IGNORECASE)
"""What belongs to an Azure signature (``sig``) and changes with it."""


def shown(url: str) -> str:
    """The URL as messages may show it: without a password or the values of its query.

    A password may be mistyped, with a ``/`` in it. So nothing between a ``:`` and a later ``@`` is
    shown, although a port and an odd path may look the same.

    >>> shown("https://me:secret@host/a.tar?X-Signature=abc")
    'https://host/a.tar?...'
    >>> shown("https://me:se/cret@host/a.tar"), shown("https://me:se?cret@host/a.tar")
    ('https://me:...@host/a.tar', 'https://me:...')
    >>> shown("pipe:curl -u me:secret https://host/a.tar?token=abc")
    'pipe:curl -u ... https://host/a.tar?...'
    """
    if url.startswith("pipe:"):
        return _without_options(_IN_COMMAND.sub(lambda found: shown(found[0]), url))
    # In abfs://CONTAINER@ACCOUNT/… what stands before the @ is no password.
    url = _PASSWORD.sub(r"\1", url)
    web = url.lower().startswith(("http://", "https://"))
    if (found := _PERHAPS_PASSWORD.match(url)) and not (web and "?" in found[1]):
        if web and "?" in found[2]:  # what follows may be a query's value
            return f"{found[1]}:..."
        url = f"{found[1]}:...@{url[found.end() :]}"
    head, mark, _ = url.partition("?")
    return f"{head}?..." if mark and web else url


def named(url: str) -> str:
    """The URL as the name of an object: without a password, and without its signature.

    >>> named("https://me:secret@host/get?shard=7&X-Amz-Signature=abc&X-Amz-Date=1")
    'https://host/get?shard=7'
    >>> named("https://host/get?key=7")
    'https://host/get?key=~7902699b'
    >>> named("s3://bucket/a.tar"), named("data/a?b@c.tar")
    ('s3://bucket/a.tar', 'data/a?b@c.tar')
    """
    if "@" not in url and "?" not in url and not url.startswith("pipe:"):
        return url  # nearly always
    if url.startswith("pipe:"):
        return _without_options(_IN_COMMAND.sub(lambda found: named(found[0]), url))
    if not url.lower().startswith(("http://", "https://")):
        return url if "://" not in url else shown(url)
    head, mark, query = url.partition("?")
    if "@" in query and not _PASSWORD.match(head) and ":" in head[8:]:
        return shown(url)  # half a password may stand before the ?
    pairs = query.split("&") if mark else []
    words = [pair.partition("=")[0] for pair in pairs]
    signed = "sig" in words
    kept = [
        _digested(pair) if _PERHAPS_SECRET.fullmatch(word) else pair
        for pair, word in zip(pairs, words)
        if not (_SECRET.fullmatch(word) or (signed and _BESIDE_SIG.fullmatch(word)))
    ]
    head = shown(head)
    return f"{head}?{'&'.join(kept)}" if kept else head


def _digested(pair: str) -> str:
    word, _, value = pair.partition("=")
    if re.fullmatch(r"~[0-9a-f]{8}", value):
        return pair  # a name of its own
    return f"{word}=~{hashlib.sha256(value.encode()).hexdigest()[:8]}"


def _without_options(command: str) -> str:
    """The command without the values of options, variables and headers that may be secrets.

    >>> _without_options("pipe:MY_TOKEN=abc get -H 'X-Api-Key: def' s3://bucket/token=1/a.tar")
    "pipe:MY_TOKEN=... get -H 'X-Api-Key: ...' s3://bucket/token=1/a.tar"
    """
    return _ASSIGNED.sub(r"\1...", _OPTION.sub(r"\1...", command))


def shown_value(value: Any) -> Any:
    """An argument as ``repr`` may show it: URLs in strings, lists and tuples without secrets.

    >>> shown_value(["https://me:secret@host/a.tar", 7])
    ['https://host/a.tar', 7]
    """
    if isinstance(value, str):
        return shown(value) if "://" in value or value.startswith("pipe:") else value
    if type(value) in (list, tuple):
        return type(value)(map(shown_value, value))
    return value
