"""Check keys and fields before they are written.

A member's name is key + "." + field, and the reader splits it at the first dot of its last
component (:mod:`penstock.shards.sample_reader`). Names that would be split differently are refused
when they are written, because the reader could not detect them.
"""

from __future__ import annotations

import re

from penstock.shards.sample_reader import is_meta

is_plain_key = re.compile(r"(?!__)(?:[^/.\0]+/)*[^/.\0]+").fullmatch
"""Fast check: matches keys that have no problem; :func:`key_problem` checks the others."""


def key_problem(key: str) -> str | None:
    """Return why the key would not read back, and the remedy; None if it would.

    >>> key_problem("v1.2/img_1") is None
    True
    >>> key_problem("v1.2/img.0001")
    "the part after its first dot would be read as part of the field: write 'v1.2/img_0001'"
    """
    parts = key.split("/")
    if parts[0] == "" and len(parts) > 1:
        return "it is an absolute path: remove the '/' at its beginning"
    if ".." in parts:
        return "it leaves its folder: remove the '..'"
    if "." in parts[-1]:
        better = "/".join([*parts[:-1], parts[-1].replace(".", "_")])
        return f"the part after its first dot would be read as part of the field: write {better!r}"
    if not parts[-1]:
        return "it ends in '/', so the sample has no name: add one after it"
    if is_meta(key):
        return "names like __x__ are reserved for members that are no samples: use another"
    return None


def field_problem(field: str) -> str | None:
    """Return why the field would not read back, and the remedy; None if it would.

    >>> field_problem("seg.png") is None, field_problem("JPG")
    (True, "fields are read in lower case: write 'jpg'")
    """
    if "/" in field:
        return "the part before a '/' would be read as part of the key: move it into the key"
    if field != field.lower():
        return f"fields are read in lower case: write {field.lower()!r}"
    return None
