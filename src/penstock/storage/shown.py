"""URLs as messages and logs may show them."""

from __future__ import annotations

import re
from urllib.parse import urlsplit


def shown(url: str) -> str:
    """The URL as messages may show it: without a password or the values of its query.

    >>> shown("https://me:secret@host/a.tar?X-Signature=abc")
    'https://host/a.tar?...'
    """
    # In abfs://CONTAINER@ACCOUNT/… what stands before the @ is no password.
    url = re.sub(r"^(?!abfss?:)([A-Za-z][A-Za-z0-9+.-]*://)[^/?#]*@", r"\1", url)
    head, mark, _ = url.partition("?")
    return f"{head}?..." if mark and urlsplit(head).scheme in ("http", "https") else url
