"""Remove secrets from URLs before they appear in messages, logs, samples, metadata or index files.

All redaction is done here. A URL may contain a password (``https://me:secret@host/``) or a
signature (``?X-Amz-…``); the command of a ``pipe:`` URL may contain such a URL, or a secret as an
option. :func:`redact` is for people: it removes everything that might be a secret.
:func:`redact_for_disk` is for files: of a command it keeps only the program and the URLs.
:func:`canonical_url` is for programs: it removes only what is known to be a secret, so that two
objects keep two names and one object has one name however it was signed.
"""

from __future__ import annotations

import hashlib
import os.path
import re
import shlex
from typing import Any

_WEB = re.compile(r"https?://", re.IGNORECASE)
_PASSWORD = re.compile(r"^(?!abfss?:)([A-Za-z][A-Za-z0-9+.-]*://)[^/?#@]*@(?!.*@)", re.DOTALL)
_PERHAPS_PASSWORD = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://[^:]*):(.*)@", re.DOTALL)
_OBJECT = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_IN_COMMAND = re.compile(r"https?://[^\s'\"]+", re.IGNORECASE)
_SECRET_WORD = (
    r"(?:signature|token|secret|passw|pwd|auth|credential|jwt|bearer|cookie|"
    r"(?:api|access|private|sse.c).?key)"
)
_VALUE = r"""("[^"]*"?|'[^']*'?|(?:(?:basic|bearer|token)\s+)?[^\s'"]+)"""
_COMMAND_SECRETS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        # curl -u me:secret, -b name=secret, -ume:secret, -H 'X-Any: secret', sshpass -p secret
        r"((?:^|\s)(?:-u|--user|--proxy-user|--pass)[=\s]\s*)" + _VALUE,
        r"""((?:^|\s)-b\s*)(['"]?[^\s'"=]+=(?:[^\s'"]|(?<=;)\s)*['"]?)""",
        r"""((?:^|\s)-u)([^\s'"]+:[^\s'"]*)""",
        r"((?:^|\s)(?:(?-i:-H)|--header)[=\s]?\s*)(?!['\"]?(?:range|if-|accept|user-agent))"
        + _VALUE,
        r"(\bsshpass\s+-p\s*)" + _VALUE,
        # --http-password secret, --token=secret
        rf"((?:^|\s)--[\w-]*{_SECRET_WORD}[\w-]*[=\s]\s*)" + _VALUE,
        # AWS_SECRET_ACCESS_KEY=secret, X-Auth-Token: secret, Bearer secret
        rf"((?:^pipe:|[\s'\"])[\w-]*{_SECRET_WORD}[\w-]*[:=]\s*)" + _VALUE,
        r"(\bbearer\s+)([^\s'\"]+)",
    )
)
"""Secrets in a command: the text before one, and the secret itself."""
_SECRET = re.compile(
    r"x-(amz|goog)-.*|(.*[-_.])?(sig|auth)([-_.].*)?|"
    r".*(signature|token|secret|passw|pwd|authori[sz]|authentic|oauth|credential|jwt|api.?key|"
    r"access.?(key|id)|key.?pair|session).*|expires|policy",
    re.IGNORECASE,
)
_PARAMETER = re.compile(r"[;&]([^;&=/]*)=[^;&/]*")
"""A parameter in the path of a URL: ``/a.tar;token=secret``."""
_PERHAPS_SECRET = re.compile(r"key|code", re.IGNORECASE)
"""Parameters that hold a secret or the object's name: a digest of the value keeps them distinct."""
_BESIDE_SIG = re.compile(r"s[vetpr]|ss|srt|sip|spr|sk[a-z]+", re.IGNORECASE)
"""Parameters that belong to an Azure signature (``sig``) and change with it."""


def redact(url: str) -> str:
    """Return the URL for messages: without password and query values.

    A mistyped password may contain a ``/``. So everything between a ``:`` and a later ``@`` is
    removed, although a port and an unusual path may look the same. Control characters are escaped.

    >>> redact("https://me:secret@host/a.tar?X-Signature=abc")
    'https://host/a.tar?...'
    >>> redact("https://me:se/cret@host/a.tar"), redact("https://me:se?cret@host/a.tar")
    ('https://me:...@host/a.tar', 'https://me:...')
    >>> redact("pipe:curl -u me:secret https://host/a.tar?token=abc")
    'pipe:curl -u ... https://host/a.tar?...'
    """
    return printable(_redact_secrets(url))


def _redact_secrets(url: str) -> str:
    if is_command(url):
        return _hide_options(_IN_COMMAND.sub(lambda found: _redact_secrets(found[0]), url))
    web = _WEB.search(url)
    if web is not None and web.start():  # after a space, or after another scheme (fsspec)
        return _redact_secrets(url[: web.start()]) + _redact_secrets(url[web.start() :])
    # In abfs://CONTAINER@ACCOUNT/… the part before the @ is not a password.
    url = _PASSWORD.sub(r"\1", url)
    if (found := _PERHAPS_PASSWORD.match(url)) and not (web and "?" in found[1]):
        if web and "?" in found[2]:  # the rest may be the value of a query parameter
            return f"{found[1]}:..."
        url = f"{found[1]}:...@{url[found.end() :]}"
    if web is None:
        return url
    head, mark, _ = url.partition("?")
    head, fragment, _ = head.partition("#")
    return _hide_parameters(head) + (f"{mark or fragment}..." if mark or fragment else "")


def redact_for_disk(url: str) -> str:
    """Return the URL for files on disk: redacted; of a command, only the program and its URLs.

    >>> redact_for_disk("pipe:TOKEN=abc curl -H 'X: y' https://host/a.tar?sig=x")
    'pipe:curl ... https://host/a.tar?...'
    >>> redact_for_disk("pipe:cat a.tar")
    'pipe:cat ...'
    """
    if not is_command(url):
        return redact(url)
    try:
        words = shlex.split(url[len("pipe:") :])
    except ValueError:  # an unterminated quotation
        return "pipe:..."
    programs = (word for word in words if word != "env" and not re.match(r"\w+=", word))
    program = os.path.basename(next(programs, ""))
    if not re.fullmatch(r"[\w.+-]+", program, re.ASCII):
        program = "..."
    kept = [f"pipe:{program}", *["..."] * (len(words) > 1)]
    return " ".join(kept + [redact(word) for word in words if _OBJECT.match(word)])


def canonical_url(url: str) -> str:
    """Return the URL as the name of an object: without password and signature.

    >>> canonical_url("https://me:secret@host/get?shard=7&X-Amz-Signature=abc&X-Amz-Date=1")
    'https://host/get?shard=7'
    >>> canonical_url("https://host/get?key=7")
    'https://host/get?key=~7902699b'
    >>> canonical_url("s3://bucket/a.tar"), canonical_url("data/a?b@c.tar")
    ('s3://bucket/a.tar', 'data/a?b@c.tar')
    """
    if not any(map(url.__contains__, "@?#;&")) and not is_command(url):
        return url  # nearly always
    if is_command(url):
        return _hide_options(_IN_COMMAND.sub(lambda found: canonical_url(found[0]), url))
    web = _WEB.search(url)
    if web is None:
        return url if "://" not in url else _redact_secrets(url)
    if web.start():
        return canonical_url(url[: web.start()]) + canonical_url(url[web.start() :])
    head, mark, query = url.partition("?")
    if "@" in query and not _PASSWORD.match(head) and ":" in head[8:]:
        return _redact_secrets(url)  # the text before the ? may be half of a password
    pairs = query.partition("#")[0].split("&") if mark else []
    words = [pair.partition("=")[0] for pair in pairs]
    signed = "sig" in words
    kept = [
        _hash_value(pair) if _PERHAPS_SECRET.fullmatch(word) else pair
        for pair, word in zip(pairs, words)
        if not (_SECRET.fullmatch(word) or (signed and _BESIDE_SIG.fullmatch(word)))
    ]
    head = _redact_secrets(head).removesuffix("#...")  # a fragment is never sent
    return f"{head}?{'&'.join(kept)}" if kept else head


def is_command(url: str) -> bool:
    """Return whether the URL is a ``pipe:`` command, in upper or lower case.

    >>> is_command("pipe:cat a.tar"), is_command("PIPE:cat a.tar"), is_command("a.tar")
    (True, True, False)
    """
    return url[:5].lower() == "pipe:"


def printable(text: str, keep: str = "") -> str:
    r"""Escape the characters that a terminal would interpret, except those in ``keep``.

    >>> printable("a\x1b[31mb\u202e\udcff.tar")
    'a\\x1b[31mb\\u202e\\udcff.tar'
    """
    if text.isprintable():
        return text  # nearly always
    return "".join(
        letter if letter.isprintable() or letter in keep else _escape(letter) for letter in text
    )


def _escape(letter: str) -> str:
    return letter.encode("unicode_escape").decode("ascii")


def _hide_parameters(head: str) -> str:
    """Remove the values of secret parameters from the path of a URL."""
    if "=" not in head:
        return head

    def hide(found: re.Match[str]) -> str:
        secret = _SECRET.fullmatch(found[1])
        return f"{found[0].partition('=')[0]}=..." if secret else found[0]

    return _PARAMETER.sub(hide, head)


def _hash_value(pair: str) -> str:
    word, _, value = pair.partition("=")
    if re.fullmatch(r"~[0-9a-f]{8}", value):
        return pair  # already a digest
    data = value.encode("utf-8", "surrogateescape")
    return f"{word}=~{hashlib.sha256(data).hexdigest()[:8]}"


def _hide_options(command: str) -> str:
    """Remove the values of options, variables and headers that may be secrets from a command.

    >>> _hide_options("pipe:MY_TOKEN=abc get -H 'X-Api-Key: def' s3://bucket/token=1/a.tar")
    'pipe:MY_TOKEN=... get -H ... s3://bucket/token=1/a.tar'
    """
    for pattern in _COMMAND_SECRETS:
        command = pattern.sub(r"\1...", command)
    return command


def describe_beginning(data: bytes) -> str:
    """Describe how data begins, for messages about data that cannot be read.

    >>> describe_beginning(b""), describe_beginning(b" <HTML>Not found</HTML>")
    ('is empty', "begins with '<HTML>'")
    >>> describe_beginning(b"not at all")
    "begins with b'not at a'"
    """
    if not data:
        return "is empty"
    if tag := re.match(rb"\s*(<[!?/\w][ -;=?-~]{0,60}>?)", data):
        return f"begins with {tag[1].decode('ascii')!r}"
    return f"begins with {data[:8]!r}"


def redact_value(value: Any) -> Any:
    """Redact the URLs in an argument (a string, list or tuple), for ``repr``.

    >>> redact_value(["https://me:secret@host/a.tar", 7])
    ['https://host/a.tar', 7]
    """
    if isinstance(value, str):
        return redact(value) if "://" in value or is_command(value) else value
    if type(value) in (list, tuple):
        return type(value)(map(redact_value, value))
    return value
