"""What may be a key or a field.

A member's name is key + "." + field, and reading takes it apart at the first dot of its last part
(:mod:`penstock.shards.sample_reader`). Names that would come back as something else are refused
here, while the data is still at hand, and not by whoever reads the shard.
"""

from __future__ import annotations

import re

from penstock.shards.sample_reader import is_meta

is_plain_key = re.compile(r"(?!__)(?:[^/.\0]+/)*[^/.\0]+").fullmatch
"""Quickly true for keys that nothing can be said against; others are looked at more closely."""


def key_problem(key: str) -> str | None:
    """Why the key would not read back, and what to do; None where it would.

    >>> key_problem("v1.2/img_1") is None
    True
    >>> key_problem("v1.2/img.0001")
    "the part behind its first dot would be read as part of the field: write 'v1.2/img_0001'"
    """
    parts = key.split("/")
    if parts[0] == "" and len(parts) > 1:
        return "it is an absolute path: leave the '/' at its beginning away"
    if ".." in parts:
        return "it leaves its folder: leave the '..' away"
    if "." in parts[-1]:
        better = "/".join([*parts[:-1], parts[-1].replace(".", "_")])
        return f"the part behind its first dot would be read as part of the field: write {better!r}"
    if not parts[-1]:
        return "it ends in '/', so the sample has no name of its own: put one behind it"
    if is_meta(key):
        return "names like __x__ are kept for what is no sample: begin it differently"
    return None


def field_problem(field: str) -> str | None:
    """Why the field would not read back, and what to do; None where it would.

    >>> field_problem("seg.png") is None, field_problem("JPG")
    (True, "fields are read in lower case: write 'jpg'")
    """
    if "/" in field:
        return "what stands before a '/' would be read as part of the key: put it into the key"
    if field != field.lower():
        return f"fields are read in lower case: write {field.lower()!r}"
    return None
