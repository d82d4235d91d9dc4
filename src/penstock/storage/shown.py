"""URLs as messages and logs may show them."""

from __future__ import annotations

import re

_PASSWORD = re.compile(r"^(?!abfss?:)([A-Za-z][A-Za-z0-9+.-]*://)[^/?#@]*@(?!.*@)", re.DOTALL)
_PERHAPS_PASSWORD = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*://[^:]*):(.*)@", re.DOTALL)


def shown(url: str) -> str:
    """The URL as messages may show it: without a password or the values of its query.

    A password may be mistyped, with a ``/`` in it. So nothing between a ``:`` and a later ``@`` is
    shown, although a port and an odd path may look the same.

    >>> shown("https://me:secret@host/a.tar?X-Signature=abc")
    'https://host/a.tar?...'
    >>> shown("https://me:se/cret@host/a.tar"), shown("https://me:se?cret@host/a.tar")
    ('https://me:...@host/a.tar', 'https://me:...')
    """
    # In abfs://CONTAINER@ACCOUNT/… what stands before the @ is no password.
    url = _PASSWORD.sub(r"\1", url)
    web = url.lower().startswith(("http://", "https://"))
    if (found := _PERHAPS_PASSWORD.match(url)) and not (web and "?" in found[1]):
        if web and "?" in found[2]:  # what follows may be a query's value
            return f"{found[1]}:..."
        url = f"{found[1]}:...@{url[found.end() :]}"
    head, mark, _ = url.partition("?")
    return f"{head}?..." if mark and web else url
