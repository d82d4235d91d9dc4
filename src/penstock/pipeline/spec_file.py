"""Parse the YAML or JSON of a spec into values that know their line and column.

YAML is read with the core schema of YAML 1.2: ``true``, ``false``, ``null``, integers and floats.
``no``, ``on``, dates and ``1:30`` are texts, ``1e-3`` is a number and ``007`` is 7. Keys are
texts as they are written.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from penstock.errors import PipelineError, optional
from penstock.redact import redact

MAX_BYTES = 16 << 20
MAX_DEPTH = 40
MAX_NODES = 1_000_000
"""Values of a spec; those of an alias count each time it is used."""

MAX_WRITTEN = 250_000
"""Values that are written in a spec: PyYAML takes seconds and 200 MB for so many."""
MAX_BITS = 64
"""Of a whole number: larger ones are neither a count nor a weight, and fail where they are used."""

Position = tuple[int, int]
"""A line and a column, counted from 1."""

_TAG = "tag:yaml.org,2002:"
_CORE_SCHEMA: Sequence[tuple[str, str, str, Callable[[str], Any]]] = (
    ("null", r"~|null|Null|NULL|", "~nN", lambda text: None),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF", lambda text: text.lower() == "true"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789", lambda text: _integer(text)),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
        "-+.0123456789",
        lambda text: float(re.sub(r"\.(?=[iInN])", "", text)),
    ),
)
"""Tag, pattern, first characters and constructor of the plain values that are not texts."""


def _integer(text: str) -> int:
    """
    >>> _integer("007"), _integer("0x1F"), _integer("0o17"), _integer("-3")
    (7, 31, 15, -3)
    """
    base = {"0x": 16, "0o": 8}.get(text[:2], 10)
    return int(text, base)


@functools.cache
def _loader_class() -> Any:
    """Return a loader of PyYAML that makes nodes with the tags of the core schema."""
    base: Any = optional("yaml", "yaml", "reading a spec").SafeLoader
    loader: Any = type(
        "CoreLoader",
        (base,),
        {"yaml_implicit_resolvers": {}, "composed": 0, "compose_node": _compose_counted(base)},
    )
    for name, pattern, first, _ in _CORE_SCHEMA:
        known = [*first, ""] if name == "null" else list(first)
        loader.add_implicit_resolver(_TAG + name, re.compile(rf"(?:{pattern})\Z"), known)
    loader.add_implicit_resolver(_TAG + "merge", re.compile(r"<<\Z"), ["<"])
    return loader


def _compose_counted(base: Any) -> Any:
    """Return the method that composes a node, and stops at ``MAX_WRITTEN``.

    A composed node takes many times the memory of its text, so this is before they are counted.
    """

    def compose_node(self: Any, parent: Any, index: Any) -> Any:
        self.composed += 1
        if self.composed > MAX_WRITTEN:
            mark = self.peek_event().start_mark
            self.file.fail_count(MAX_WRITTEN, (mark.line + 1, mark.column + 1))
        return base.compose_node(self, parent, index)

    return compose_node


class Table(dict[str, Any]):
    """A mapping of a spec, with the positions of its keys and values."""

    position: Position = (1, 1)

    def __init__(self) -> None:
        super().__init__()
        self.keys_at: dict[str, Position] = {}
        self.values_at: dict[str, Position] = {}
        self.texts: dict[str, str] = {}
        """The values that are not mappings or lists, as they are written: ``007``."""


class Items(list[Any]):
    """A list of a spec, with the positions of its items."""

    position: Position = (1, 1)

    def __init__(self) -> None:
        super().__init__()
        self.items_at: list[Position] = []


class SpecFile:
    """One file of a spec. ``name`` is for messages, ``folder`` for relative paths."""

    def __init__(self, name: str, folder: str) -> None:
        self.name, self.folder, self.nodes = name, folder, 0
        self._json: str | None = None
        self._loader: Any = None
        self._merged: dict[int, int] = {}  # by mapping: how many of its pairs are merged

    def describe(self, position: Position | None) -> str:
        """Return file, line and column for a message."""
        line, column = position or (1, 1)
        return f"{redact(self.name)}:{line}:{column}"

    def fail(self, message: str, position: Position | None = None) -> NoReturn:
        """Raise an error with file, line and column."""
        raise PipelineError(f"{self.describe(position)}: {message}")

    def fail_count(self, most: int, position: Position | None = None) -> NoReturn:
        """Raise the error for too many values."""
        self.fail(f"the spec has more than {most:,} values", position)

    # ── files ───────────────────────────────────────────────────────────────────────────

    def parse(self, data: bytes) -> Any:
        """Return the values of a file, with their positions."""
        if len(data) > MAX_BYTES:
            self.fail(f"a spec has at most {MAX_BYTES >> 20} MiB")
        try:
            text = data.decode()
        except UnicodeDecodeError:
            self.fail("a spec is UTF-8 text")
        loader_class = _loader_class()
        import yaml

        try:
            if self.name.lower().endswith(".json"):
                text = self._check_json(text)
            self._loader = loader_class(text)
            self._loader.file = self
            node = self._loader.get_single_node()
            if node is None:
                self.fail("the spec is empty")
            return self._value(node, ())
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            position = (mark.line + 1, mark.column + 1) if mark is not None else None
            self.fail(f"this is not YAML: {error.problem or error.context}", position)
        except yaml.YAMLError as error:
            self.fail(f"this is not YAML: {error}")
        except RecursionError:
            self.fail("the spec is nested too deeply")

    def _check_json(self, text: str) -> str:
        """Return JSON as text that a YAML parser accepts."""
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            self.fail(f"this is not JSON: {error.msg}", (error.lineno, error.colno))
        except ValueError as error:  # a number of thousands of digits
            self.fail(f"this JSON cannot be read: {error}")
        if _count_values(value, MAX_WRITTEN) > MAX_WRITTEN:
            self.fail_count(MAX_WRITTEN)
        self._json = text
        return text.replace("\t", " ")  # between values: inside texts JSON escapes them

    def _value(self, node: Any, above: tuple[int, ...]) -> Any:
        position = _position(node)
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self.fail_count(MAX_NODES, position)
        if len(above) > MAX_DEPTH:
            self.fail(f"the spec is nested more than {MAX_DEPTH} levels deep", position)
        if id(node) in above:
            self.fail("an alias occurs inside the value that it names", position)
        above = (*above, id(node))
        if node.id == "mapping" and node.tag == _TAG + "map":
            return self._table(node, above)
        if node.id == "sequence" and node.tag == _TAG + "seq":
            items = Items()
            items.position = position
            items.extend(self._value(item, above) for item in node.value)
            items.items_at = [_position(item) for item in node.value]
            return items
        return self._scalar(node, position)

    def _table(self, node: Any, above: tuple[int, ...]) -> Table:
        table = Table()
        table.position = _position(node)
        own: set[str] = set()
        for number, (key, value) in enumerate(self._pairs(node)):
            at = _position(key)
            if key.id != "scalar":
                self.fail("a key is a text", at)
            word = self._text(key)
            if word in own:
                self.fail(f"the key {word!r} occurs twice", at)
            if number >= self._merged[id(node)]:
                own.add(word)
            table.texts.pop(word, None)
            table[word] = self._value(value, above)
            table.keys_at[word] = at
            table.values_at[word] = _position(value)
            if value.id == "scalar":
                table.texts[word] = self._text(value)
        return table

    def _pairs(self, node: Any) -> list[tuple[Any, Any]]:
        """Return keys and values; merged ones (``<<``) come first, since others replace them."""
        if id(node) not in self._merged:
            own = sum(key.tag != _TAG + "merge" for key, _ in node.value)
            self._loader.flatten_mapping(node)
            self._merged[id(node)] = len(node.value) - own
        pairs: list[tuple[Any, Any]] = node.value
        return pairs

    def _scalar(self, node: Any, position: Position) -> Any:
        if node.id == "scalar" and node.tag in (_TAG + "str", _TAG + "merge"):
            return self._text(node)
        for name, _, _, make in _CORE_SCHEMA:
            if node.id == "scalar" and node.tag == _TAG + name:
                try:
                    value = make(node.value)
                except ValueError:
                    self.fail(f"this is not a number: {node.value[:40]!r}", position)
                if isinstance(value, int) and value.bit_length() > MAX_BITS:
                    self.fail(f"a number of a spec has at most {MAX_BITS} bits", position)
                return value
        self.fail(f"a spec has plain values only, not {node.tag!r}", position)

    def _text(self, node: Any) -> str:
        if self._json is None or node.style != '"':
            return str(node.value)
        # JSON writes characters outside the BMP as two escapes, which YAML reads as two characters.
        return str(json.loads(self._json[node.start_mark.index : node.end_mark.index]))

    # ── values of Python ────────────────────────────────────────────────────────────────

    def wrap(self, value: Any, depth: int = 0) -> Any:
        """Return a value of Python as one of a spec, at line 1 and column 1."""
        if depth > MAX_DEPTH:
            self.fail(f"the spec is nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, Mapping):
            table = Table()
            for key, inner in value.items():
                table[str(key)] = self.wrap(inner, depth + 1)
            table.keys_at = dict.fromkeys(table, (1, 1))
            table.values_at = dict.fromkeys(table, (1, 1))
            plain = ((k, v) for k, v in table.items() if not isinstance(v, (dict, list)))
            table.texts = {key: "" if inner is None else str(inner) for key, inner in plain}
            return table
        if isinstance(value, (list, tuple)):
            items = Items()
            items.extend(self.wrap(inner, depth + 1) for inner in value)
            items.items_at = [(1, 1)] * len(items)
            return items
        return value


def unwrap(value: Any) -> Any:
    """Return a value of a spec as one of Python."""
    if isinstance(value, dict):
        return {key: unwrap(inner) for key, inner in value.items()}
    return [unwrap(inner) for inner in value] if isinstance(value, list) else value


def _count_values(value: Any, most: int) -> int:
    """Return the number of values in a JSON value; a larger number than ``most`` may be too low.

    >>> _count_values({"a": [1, 2]}, 100)
    5
    """
    waiting, count = [value], 1
    while waiting and count <= most:
        one = waiting.pop()
        if isinstance(one, dict):
            waiting += one.values()
            count += 2 * len(one)
        elif isinstance(one, list):
            waiting += one
            count += len(one)
    return count


def _position(node: Any) -> Position:
    return node.start_mark.line + 1, node.start_mark.column + 1


def find_near(word: str, known: Sequence[str]) -> str | None:
    """Return the known word that is one edit away: a letter more, less, other, or two swapped.

    >>> find_near("wieght", ["weight"]), find_near("scale", ["shards"])
    ('weight', None)
    """
    for other in known:
        if abs(len(word) - len(other)) > 1 or word == other:
            continue
        pairs = zip(word, other)
        same = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(word), len(other)))
        one, two = word[same:], other[same:]
        edits = {(one[1:], two[1:]), (one[1:], two), (one, two[1:])}
        if any(a == b for a, b in edits) or (one[:2] == two[:2][::-1] and one[2:] == two[2:]):
            return other
    return None
