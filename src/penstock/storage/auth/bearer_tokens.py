"""Bearer tokens: got when first needed, kept until shortly before they run out, never shown.

A token belongs to the process that got it: a pickle or a print of one holds only the way to get
it again.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

from penstock.storage.auth.named_keys import Key, named_keys

MARGIN_S = 60.0
"""A token is renewed this long before it runs out, so that it lasts for the requests under way."""
RECENT_S = 5.0


@dataclasses.dataclass(slots=True)
class Token:
    """A token and the function that gets it: ``fetch()`` gives the text and when it runs out.

    The text is None where there are no credentials, which means to ask without any. The time is
    None for a token that does not run out.

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
        """The token, which is got or renewed if need be."""
        if not self._known or (self._ends is not None and time.time() > self._ends - MARGIN_S):
            self._text, self._ends = self.fetch()
            self._got, self._known = time.monotonic(), True
        return self._text

    def headers(self) -> dict[str, str]:
        """The header that carries it; none without credentials."""
        text = self.text()
        return {} if text is None else {"Authorization": f"Bearer {text}"}

    def renew(self) -> bool:
        """Get it anew after it was refused; False where that cannot help."""
        # A token that is only just here may be what another thread got for the same refusal.
        recent = self._known and time.monotonic() - self._got < RECENT_S
        before, self._known = self._text, False
        return self.text() != before or recent

    def __repr__(self) -> str:
        return "Token(...)"

    def __reduce__(self) -> tuple[type[Token], tuple[object]]:
        return (Token, (self.fetch,))


def key_for(url: str) -> Key | None:
    """The named key whose pattern fits the URL most closely *and* names its scheme.

    A bare bucket name is not enough here: a secret that is meant for an S3 server must not be sent
    to another cloud that happens to have a bucket of the same name.
    """
    scheme, _, path = url.partition("://")
    best, found = -1, None
    for key in named_keys().values():
        own = tuple(one for one in key.buckets if one.startswith(f"{scheme}://"))
        fit = dataclasses.replace(key, buckets=own).closeness(scheme, path)
        if fit > best:
            best, found = fit, key
    return found


def token_for(url: str, usual: Token) -> Token:
    """The token of the named key that fits the URL (its secret), or else the ``usual`` one."""
    key = key_for(url)
    if key is not None and key.anonymous:
        return Token(no_token)
    return usual if key is None or key.access_key is None else Token(_OfKey(url))


def no_token() -> tuple[None, None]:
    """What is used where no credentials are wanted."""
    return None, None


@dataclasses.dataclass(frozen=True, slots=True)
class _OfKey:
    """Looks the token up by the URL, so that pickles hold no token."""

    url: str

    def __call__(self) -> tuple[str | None, float | None]:
        key = key_for(self.url)
        credentials = key.credentials() if key is not None else None
        return (None if credentials is None else credentials.secret.reveal()), None
