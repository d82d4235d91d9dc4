"""Bearer tokens: fetched when first needed, kept until shortly before they expire, never shown.

A token belongs to the process that fetched it: its pickle and ``repr`` contain only the way to
fetch it again.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from penstock.storage.auth.named_keys import Key, named_keys

MARGIN_S = 60.0
"""A token is renewed this long before it expires, so that it lasts for the requests in flight."""
RECENT_S = 5.0


@dataclasses.dataclass(slots=True)
class Token:
    """A token and the function that fetches it and returns its text and its time of expiry.

    The text is None if there are no credentials: requests are then anonymous. The time is None for
    a token that does not expire.

    >>> token = Token(lambda: ("very secret", None))
    >>> token.headers()
    {'Authorization': 'Bearer very secret'}
    >>> token
    Token(...)
    """

    fetch: Callable[[], tuple[str | None, float | None]]
    _text: str | None = None
    _ends: float | None = None
    _got: float = 0.0
    _known: bool = False

    def text(self) -> str | None:
        """Return the token; fetch or renew it if necessary."""
        if not self._known or (self._ends is not None and time.time() > self._ends - MARGIN_S):
            self._text, self._ends = self.fetch()
            self._got, self._known = time.monotonic(), True
        return self._text

    def headers(self) -> dict[str, str]:
        """Return the Authorization header; empty without credentials."""
        text = self.text()
        return {} if text is None else {"Authorization": f"Bearer {text}"}

    def renew(self) -> bool:
        """Fetch the token again after it was refused. Return False if that cannot help."""
        # A new token may be what another thread has just fetched for the same refusal.
        recent = self._known and time.monotonic() - self._got < RECENT_S
        before, self._known = self._text, False
        return self.text() != before or recent

    def __repr__(self) -> str:
        return "Token(...)"

    def __reduce__(self) -> tuple[type[Token], tuple[object]]:
        return (Token, (self.fetch,))


def find_scheme_key(url: str) -> Key | None:
    """Return the named key whose pattern fits the URL most closely *and* names its scheme.

    A bucket name alone is not enough here: a secret for an S3 server must not be sent to another
    cloud that happens to have a bucket of the same name.
    """
    scheme, _, path = url.partition("://")
    best, found = -1, None
    for key in named_keys().values():
        own = tuple(one for one in key.buckets if one.startswith(f"{scheme}://"))
        fit = dataclasses.replace(key, buckets=own).measure_fit(scheme, path)
        if fit > best:
            best, found = fit, key
    return found


def find_token(url: str, usual: Token) -> Token:
    """Return the secret of the named key that fits the URL, or else the ``usual`` token."""
    key = find_scheme_key(url)
    if key is not None and key.anonymous:
        return Token(no_token)
    return usual if key is None or key.access_key is None else Token(_OfKey(url))


def no_token() -> tuple[None, None]:
    """Return no credentials: for anonymous requests."""
    return None, None


@dataclasses.dataclass(frozen=True, slots=True)
class _OfKey:
    """Looks up the token by the URL, so that pickles contain no token."""

    url: str

    def __call__(self) -> tuple[str | None, float | None]:
        key = find_scheme_key(self.url)
        credentials = key.credentials() if key is not None else None
        return (None if credentials is None else credentials.secret.reveal()), None
