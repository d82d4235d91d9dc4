"""Replaces ``{data_folder}`` and ``$data_folder`` in the strings of a manifest."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import Origin, ReplacementError


class Replacements:
    """Replaces names by values in all strings of a column, also in nested ones.

    Only the given names are replaced: a transcript may contain other braces and dollar signs. A
    string that starts with an unknown name and a slash must be a path and raises a ManifestError.

    >>> change = Replacements({"root": "/data"}, "{}", "train.json")
    >>> change("wav", ["{root}/a.wav", "{laughs} yes"])
    ['/data/a.wav', '{laughs} yes']
    """

    def __init__(self, names: Mapping[str, Any] | None, form: str, manifest: str) -> None:
        self.names = {name: str(value) for name, value in (names or {}).items()}
        self.manifest = manifest
        known = "|".join(sorted(map(re.escape, self.names), key=len, reverse=True)) or r"(?!)"
        self._mark = form[0]
        self._plain: tuple[str, str] | None = None
        if form == "{}":
            self._known = re.compile(r"\{(" + known + r")\}")
            self._root = re.compile(r"\{(\w+)\}/")
            if len(self.names) == 1:  # the usual case, without a regular expression
                ((name, text),) = self.names.items()
                self._plain = None if "{" in text else ("{" + name + "}", text)
        else:
            self._known = re.compile(r"\$(" + known + r")(?!\w)")
            self._root = re.compile(r"\$(\w+)/")

    def __call__(self, key: str, values: Sequence[Any]) -> Sequence[Any]:
        kinds = set(map(type, values))
        if kinds <= {int, float, bool, type(None)}:
            return values
        if kinds != {str}:
            return [self._replace(key, value) for value in values]
        if self._mark not in "".join(values):
            return values
        if self._plain is not None:
            values = [value.replace(*self._plain) for value in values]
        mark = self._mark
        return [self._replace(key, value) if mark in value else value for value in values]

    def _replace(self, key: str, value: Any) -> Any:
        if isinstance(value, str):
            if self._mark not in value:
                return value
            root = self._root.match(value)
            if root is not None and root[1] not in self.names:
                raise ReplacementError(
                    f"{key!r} begins with {root[0]!r}, and no replacement was given for it: "
                    f"{value!r}; give replacements={{{root[1]!r}: …}}, or to the command "
                    f"--replace {root[1]}=…",
                    origin=Origin(self.manifest),
                )
            return self._known.sub(lambda found: self.names[found[1]], value)
        if isinstance(value, dict):
            return {inner: self._replace(key, one) for inner, one in value.items()}
        if isinstance(value, list):
            return [self._replace(key, one) for one in value]
        return value
