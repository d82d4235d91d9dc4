"""Amazon's signature, version 4, which proves to an S3 server who sent a request.

The body's checksum is signed too, so a server that checks signatures also refuses a body that was
damaged in transit. Secrets are kept in a :class:`Secret`, which is never shown.
"""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import hmac
import urllib.parse
from collections.abc import Mapping
from typing import NoReturn

from penstock.errors import PipelineError

_ALGORITHM = "AWS4-HMAC-SHA256"
_EMPTY_SHA256 = hashlib.sha256().hexdigest()


class Secret:
    """A text that is never shown: not in ``repr``, not in messages, not in pickles.

    >>> Secret("wJalrXUt"), f"{Secret('wJalrXUt')}"
    (Secret(***), 'Secret(***)')
    """

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text, for the code that signs with it."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and hmac.compare_digest(
            self._text.encode(), other._text.encode()
        )

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __reduce__(self) -> NoReturn:
        raise PipelineError(
            "secrets are not pickled: pass the name of a key, and let each process look it up"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Credentials:
    """An access key and its secret; ``source`` says where they were found.

    ``expires_at`` is in seconds since 1970; None if they do not expire.
    """

    access_key: str = dataclasses.field(repr=False)
    secret: Secret = dataclasses.field(repr=False)
    token: Secret | None = dataclasses.field(default=None, repr=False)
    expires_at: float | None = None
    source: str = ""


def quote(text: str, safe: str = "") -> str:
    """Percent-encode as the signature requires: everything but letters, digits and ``-_.~``.

    >>> quote("a b/ü+=", safe="/")
    'a%20b/%C3%BC%2B%3D'
    """
    return urllib.parse.quote(text, safe=safe + "-_.~")


def query_string(query: Mapping[str, str]) -> str:
    """Return the query in the order and encoding that is signed.

    >>> query_string({"uploads": "", "prefix": "a b/"})
    'prefix=a%20b%2F&uploads='
    """
    pairs = sorted((quote(name), quote(value)) for name, value in query.items())
    return "&".join(f"{name}={value}" for name, value in pairs)


def sign(
    method: str,
    url: str,
    headers: Mapping[str, str],
    body: bytes | None,
    credentials: Credentials,
    *,
    region: str,
    service: str = "s3",
    now: datetime.datetime | None = None,
) -> dict[str, str]:
    """Return the headers with the signature added.

    The URL must be encoded by :func:`quote` and :func:`query_string`, exactly as it will be sent.

    >>> who = Credentials("AKIA", Secret("wJalrXUt"))
    >>> then = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
    >>> sign("GET", "https://b.s3.amazonaws.com/k", {}, None, who, region="us-east-1",
    ...      now=then)["Authorization"][:59]
    'AWS4-HMAC-SHA256 Credential=AKIA/20260101/us-east-1/s3/aws4'
    """
    moment = (now or datetime.datetime.now(datetime.UTC)).strftime("%Y%m%dT%H%M%SZ")
    parts = urllib.parse.urlsplit(url)
    out = dict(headers)
    out["x-amz-date"] = moment
    out["x-amz-content-sha256"] = hashlib.sha256(body).hexdigest() if body else _EMPTY_SHA256
    if credentials.token is not None:
        out["x-amz-security-token"] = credentials.token.reveal()
    signed = {
        name.lower(): " ".join(value.split())
        for name, value in out.items()
        if name.lower().startswith("x-amz-") or name.lower() in ("content-md5", "content-type")
    }
    signed["host"] = _host(parts)
    names = ";".join(sorted(signed))
    lines = [method, parts.path or "/", parts.query]
    lines += [f"{name}:{signed[name]}" for name in sorted(signed)]
    lines += ["", names, out["x-amz-content-sha256"]]
    scope = f"{moment[:8]}/{region}/{service}/aws4_request"
    canonical = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    text = "\n".join([_ALGORITHM, moment, scope, canonical])
    key = ("AWS4" + credentials.secret.reveal()).encode()
    for part in scope.split("/"):
        key = _hmac(key, part)
    out["Authorization"] = (
        f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, "
        f"SignedHeaders={names}, Signature={_hmac(key, text).hex()}"
    )
    return out


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")


def _host(parts: urllib.parse.SplitResult) -> str:
    # HTTP clients leave the scheme's default port out of the Host header.
    host = parts.netloc.rpartition("@")[2].lower()
    return host.removesuffix({"http": ":80", "https": ":443"}.get(parts.scheme, ":"))
