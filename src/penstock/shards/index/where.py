"""The expression language of ``where=``: choose rows of an index by its columns.

An expression is a Python expression of a small subset, compiled to :mod:`pyarrow.compute`. Only
the columns that it names are read, and no shard is opened.

=====================================  ========================================================
part                                   meaning
=====================================  ========================================================
``width``, ``lang``, …                 a column of the index
``key``                                the sample's key
``shard``                              the URL of its shard, as text
``bytes``                              the sum of the sizes of its fields
``1``, ``2.5``, ``"de"``, ``True``     constants
``and``, ``or``, ``not``               as in SQL, with null as "unknown"
``== != < <= > >=``                    comparisons, also chained: ``64 <= width < 512``
``lang in ("de", "fr")``, ``not in``   one of a list of constants
``age is None``, ``is not None``       whether there is no value
``+ - * /``                            arithmetic; ``/`` divides floats, and by zero is null
``has("seg.png")``                     whether the sample has the field
``contains(c, s)``                     whether text ``c`` contains the constant ``s``
``startswith(c, s)``, ``endswith``     whether text ``c`` begins or ends with it
``matches(c, re)``                     whether a regular expression (RE2) is found in text ``c``
``len(c)``                             characters of a text, items of a list
=====================================  ========================================================

A column of the index wins over ``key``, ``shard`` and ``bytes``. Nulls follow SQL: a comparison or
sum with null is null, ``not`` null is null, and a row is chosen only where the result is true. For
an empty list ``in ()`` is false and ``not in ()`` true, also for null.
"""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from penstock.errors import PipelineError
from penstock.nearest_name import suggest
from penstock.redact import canonical_url
from penstock.shards.index.index import Index
from penstock.shards.index.parquet_schema import arrow, split_fields

Array = np.ndarray[Any, np.dtype[Any]]

MAX_CHARACTERS = 100_000
"""Longest expression that is parsed; a longer list of keys belongs into ``keys=``."""
MAX_DEPTH = 100
"""Deepest nesting that is compiled."""
PSEUDO_COLUMNS = ("key", "shard", "bytes")

_ALLOWED = (
    *(ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Call, ast.Name, ast.Constant),
    *(ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd, ast.Add, ast.Sub, ast.Mult, ast.Div),
    *(ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In, ast.NotIn, ast.Is, ast.IsNot),
    *(ast.List, ast.Tuple, ast.Set, ast.Load),
)
_COMPARISONS = {
    ast.Eq: ("equal", "=="),
    ast.NotEq: ("not_equal", "!="),
    ast.Lt: ("less", "<"),
    ast.LtE: ("less_equal", "<="),
    ast.Gt: ("greater", ">"),
    ast.GtE: ("greater_equal", ">="),
}
_ARITHMETIC = {
    ast.Add: ("add_checked", "+"),
    ast.Sub: ("subtract_checked", "-"),
    ast.Mult: ("multiply_checked", "*"),
}
_TEXT_FUNCTIONS = {
    "contains": "match_substring",
    "startswith": "starts_with",
    "endswith": "ends_with",
    "matches": "match_substring_regex",
}
FUNCTIONS = ("has", *_TEXT_FUNCTIONS, "len")


def matching_rows(index: Index, text: str) -> Array:
    """Return the numbers of the rows for which the expression is true, in order (int64).

    An expression that cannot be parsed, names an unknown column, or applies an operator to types
    that it does not take is a :class:`~penstock.errors.PipelineError` that shows the position.

    >>> import os, tempfile, penstock
    >>> from penstock.shards.index import open_index
    >>> name = os.path.join(tempfile.mkdtemp(), "x.tar")
    >>> with penstock.TarWriter(name) as sink:
    ...     for key in ("a", "b", "c"):
    ...         size = sink.write({"__key__": key, "txt": key * 5})
    >>> matching_rows(open_index(name), "bytes == 5 and key != 'b'").tolist()
    [0, 2]
    """
    return Where(text).rows(index)


class Where:
    """A parsed expression; :meth:`rows` applies it to an index.

    ``names`` are the columns it reads, in order of appearance.

    >>> Where("width >= 256 and lang in ('de', 'fr')").names
    ['width', 'lang']
    """

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or not text.strip():
            raise PipelineError(f"where= is an expression such as 'width >= 256', not {text!r}")
        if len(text) > MAX_CHARACTERS:
            raise PipelineError(
                f"a where expression has at most {MAX_CHARACTERS:,} characters, not {len(text):,}: "
                "pass a long list of keys as keys="
            )
        # On one line: YAML folds long expressions, and messages give a character number.
        self.text = "".join(" " if c in "\n\r\t\f\v" else c for c in text).strip()
        self.tree = self._parse()
        self.names: list[str] = []
        self._check(self.tree, 0, self.tree)

    def _parse(self) -> ast.expr:
        try:
            return ast.parse(self.text, mode="eval").body
        except SyntaxError as error:
            at = len(self.text) if error.lineno != 1 or not error.offset else error.offset - 1
            self._fail(f"the expression cannot be parsed: {error.msg}", at)
        except (RecursionError, MemoryError):
            self._fail("the expression is nested too deeply", 0)
        except ValueError as error:
            self._fail(f"the expression cannot be parsed: {error}", 0)

    def _check(self, node: ast.AST, depth: int, parent: ast.AST) -> None:
        """Refuse everything outside the language, and collect the names of columns."""
        shown = node if hasattr(node, "col_offset") else parent  # an operator has no position
        if depth > MAX_DEPTH:
            self._refuse(f"the expression is nested more than {MAX_DEPTH} levels deep", shown)
        if not isinstance(node, _ALLOWED):
            self._refuse(f"{_describe(node)} is not part of the expression language", shown)
        if isinstance(node, ast.Constant) and not isinstance(
            node.value, (bool, int, float, str, type(None))
        ):
            self._refuse(f"a constant is a number or a text, not {node.value!r}", node)
        if isinstance(node, ast.Name) and node.id not in self.names:
            self.names.append(node.id)
        if isinstance(node, ast.Call):
            self._check_call(node)
            for argument in node.args:
                self._check(argument, depth + 1, node)
            return
        for child in ast.iter_child_nodes(node):
            self._check(child, depth + 1, node)

    def _check_call(self, node: ast.Call) -> None:
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name not in FUNCTIONS:
            shown = repr(name) if name else _describe(node.func)
            self._refuse(f"{shown} is not a function{suggest(name, FUNCTIONS)}", node)
        wanted = 1 if name in ("has", "len") else 2
        if node.keywords or len(node.args) != wanted:
            self._refuse(f"{name}() takes {wanted} argument{'s' * (wanted > 1)}", node)
        last = node.args[-1]
        text = isinstance(last, ast.Constant) and isinstance(last.value, str)
        if name != "len" and not text:
            self._refuse(f"the last argument of {name}() is a text in quotes", last)

    def rows(self, index: Index) -> Array:
        """Return the rows of the index for which the expression is true, in order (int64)."""
        value = _Evaluation(self, index).evaluate(self.tree)
        pa = arrow()
        if not pa.types.is_boolean(value.data.type) and not pa.types.is_null(value.data.type):
            self._refuse(
                f"the expression is true or false for each sample, but this is {value.kind}",
                self.tree,
            )
        chosen = value.data.fill_null(False) if not value.scalar else value.data
        if value.scalar:
            return np.arange(len(index) if chosen.as_py() else 0, dtype=np.int64)
        flags = _numpy(chosen)
        if value.codes is not None:
            flags = flags[value.codes]
        return np.flatnonzero(flags).astype(np.int64, copy=False)

    def _refuse(self, message: str, node: ast.AST) -> NoReturn:
        # The offsets of ast count bytes of UTF-8.
        start = getattr(node, "col_offset", 0)
        self._fail(message, len(self.text.encode()[:start].decode(errors="replace")))

    def _fail(self, message: str, at: int) -> NoReturn:
        begin = max(0, at - 60)  # a window of a long text
        shown = self.text[begin : begin + 120]
        raise PipelineError(
            f"where: {message}, at character {at + 1}\n  {shown}\n  {' ' * (at - begin)}^"
        )

    def __repr__(self) -> str:
        return f"Where({self.text!r})"


@dataclasses.dataclass(slots=True)
class _Value:
    """The value of a part of the expression.

    ``data`` is an Arrow scalar, or an array. With ``codes`` the array has one value for each
    distinct case (shard, or set of fields), and ``codes`` has the case of each row: functions of a
    URL are computed once per shard.
    """

    data: Any
    codes: Array | None = None

    @property
    def scalar(self) -> bool:
        return not hasattr(self.data, "__len__") or not hasattr(self.data, "null_count")

    @property
    def kind(self) -> str:
        return str(self.data.type)


class _Evaluation:
    """One expression applied to one index."""

    def __init__(self, where: Where, index: Index) -> None:
        self.where, self.index = where, index
        self.columns: dict[str, _Value] = {}
        self._fields: tuple[list[tuple[str, ...]], Array] | None = None
        self.pa = arrow()
        import pyarrow.compute

        self.pc = pyarrow.compute

    def evaluate(self, node: ast.AST) -> _Value:
        method = getattr(self, f"_{type(node).__name__.lower()}")
        value: _Value = method(node)
        return value

    def _constant(self, node: ast.Constant) -> _Value:
        if node.value is None:
            self.where._refuse("None is only compared by 'is None' and 'is not None'", node)
        try:
            return _Value(self.pa.scalar(node.value))
        except (self.pa.ArrowException, OverflowError):
            self.where._refuse(f"the number {node.value!r} is too large", node)

    def _name(self, node: ast.Name) -> _Value:
        name = node.id
        if name not in self.columns:
            self.columns[name] = self._column(name, node)
        return self.columns[name]

    def _column(self, name: str, node: ast.Name) -> _Value:
        index, pa = self.index, self.pa
        if name in index.columns:
            data = index.arrow_column(name)
            if pa.types.is_dictionary(data.type):
                data = data.cast(data.type.value_type)
            return _Value(data)
        if name == "key":
            return _Value(index.arrow_column("key"))
        if name == "shard":
            urls = [canonical_url(shard.url) for shard in index.shards]
            return _Value(pa.array(urls, pa.string()), index.shard)
        if name == "bytes":
            return _Value(pa.array(self._field_bytes()))
        known = [*index.columns, *(n for n in PSEUDO_COLUMNS if n not in index.columns)]
        self.where._refuse(
            f"the index has no column {name!r}, only {', '.join(known)}{suggest(name, known)}",
            node,
        )

    def _field_bytes(self) -> Array:
        sums = []
        for chunk in self.index.arrow_column("field_sizes").chunks:
            ends = np.concatenate([[0], np.cumsum(_numpy(chunk.value_lengths()))])
            total = np.concatenate([[0], np.cumsum(_numpy(chunk.flatten()))])
            sums.append(total[ends[1:]] - total[ends[:-1]])
        return np.concatenate([np.zeros(0, np.int64), *sums])

    def _call(self, node: ast.Call) -> _Value:
        name, last = ast.unparse(node.func), node.args[-1]
        if name == "has":
            return self._has(str(getattr(last, "value", "")))
        value = self.evaluate(node.args[0])
        if self.pa.types.is_null(value.data.type):  # a column that is empty throughout
            value = _Value(value.data.cast(self.pa.string()), value.codes)
        if name == "len":
            return self._length(value, node)
        pattern = last.value if isinstance(last, ast.Constant) else None
        function = getattr(self.pc, _TEXT_FUNCTIONS[name])
        if not self._is_text(value.data.type):
            self.where._refuse(f"{name}() takes a text, not {value.kind}", node.args[0])
        return self._apply(lambda data: function(data, pattern), [value], node, f"{name}()")

    def _has(self, field: str) -> _Value:
        if self._fields is None:
            self._fields = self._field_sets()
        sets, codes = self._fields
        return _Value(self.pa.array([field in names for names in sets], self.pa.bool_()), codes)

    def _field_sets(self) -> tuple[list[tuple[str, ...]], Array]:
        """Return the distinct sets of fields, and the number of each row's set."""
        known: dict[str, int] = {}
        parts = [np.zeros(0, np.int32)]
        for chunk in self.index.arrow_column("fields").chunks:
            texts = chunk.dictionary.to_pylist()
            numbers = np.array([known.setdefault(t, len(known)) for t in texts] or [0], np.int32)
            parts.append(numbers[_numpy(chunk.indices)])
        return [split_fields(text) for text in known], np.concatenate(parts)

    def _length(self, value: _Value, node: ast.AST) -> _Value:
        types, kind = self.pa.types, value.data.type
        if self._is_text(kind):
            function = self.pc.utf8_length
        elif types.is_list(kind) or types.is_large_list(kind):
            function = self.pc.list_value_length
        else:
            self.where._refuse(f"len() takes a text or a list, not {value.kind}", node)
        return self._apply(function, [value], node, "len()")

    def _is_text(self, kind: Any) -> bool:
        types = self.pa.types
        return any(test(kind) for test in (types.is_string, types.is_large_string, types.is_null))

    def _boolop(self, node: ast.BoolOp) -> _Value:
        both = isinstance(node.op, ast.And)
        function = self.pc.and_kleene if both else self.pc.or_kleene
        value = self._truth(node.values[0])
        for part in node.values[1:]:
            word = "and" if both else "or"
            value = self._apply(function, [value, self._truth(part)], node, word)
        return value

    def _truth(self, node: ast.expr) -> _Value:
        value, types = self.evaluate(node), self.pa.types
        if types.is_null(value.data.type):
            return self._apply(lambda data: data.cast(self.pa.bool_()), [value], node, "and")
        if not types.is_boolean(value.data.type):
            self.where._refuse(
                f"'and', 'or' and 'not' join conditions, and this is {value.kind}", node
            )
        return value

    def _unaryop(self, node: ast.UnaryOp) -> _Value:
        if isinstance(node.op, ast.Not):
            return self._apply(self.pc.invert, [self._truth(node.operand)], node, "not")
        value = self._number(node.operand)
        if isinstance(node.op, ast.UAdd):
            return value
        return self._apply(self.pc.negate_checked, [value], node, "-")

    def _number(self, node: ast.expr) -> _Value:
        """Evaluate an operand of arithmetic: integers become 64 bits wide."""
        value, types = self.evaluate(node), self.pa.types
        kind = value.data.type
        if types.is_boolean(kind) or (self._is_text(kind) and not types.is_null(kind)):
            self.where._refuse(f"arithmetic takes numbers, and this is {value.kind}", node)
        if types.is_integer(kind) and kind != self.pa.uint64():
            value = self._apply(lambda data: data.cast(self.pa.int64()), [value], node, "cast")
        return value

    def _binop(self, node: ast.BinOp) -> _Value:
        operands = [self._number(node.left), self._number(node.right)]
        if isinstance(node.op, ast.Div):
            return self._apply(self._divide, operands, node, "/")
        function, sign = _ARITHMETIC[type(node.op)]
        return self._apply(getattr(self.pc, function), operands, node, sign)

    def _divide(self, left: Any, right: Any) -> Any:
        pa, pc = self.pa, self.pc
        left, right = left.cast(pa.float64()), right.cast(pa.float64())
        divisor = pc.if_else(pc.equal(right, 0.0), pa.scalar(None, pa.float64()), right)
        return pc.divide(left, divisor)

    def _compare(self, node: ast.Compare) -> _Value:
        parts = [node.left, *node.comparators]
        result = self._compare_two(node, parts[0], node.ops[0], parts[1])
        for left, operator, right in zip(parts[1:], node.ops[1:], parts[2:]):
            value = self._compare_two(node, left, operator, right)
            result = self._apply(self.pc.and_kleene, [result, value], node, "and")
        return result

    def _compare_two(
        self, node: ast.Compare, left: ast.expr, operator: ast.cmpop, right: ast.expr
    ) -> _Value:
        if isinstance(operator, (ast.Is, ast.IsNot)):
            if not (isinstance(right, ast.Constant) and right.value is None):
                self.where._refuse("'is' is only followed by None: use == to compare", right)
            function = self.pc.is_null if isinstance(operator, ast.Is) else self.pc.is_valid
            return self._apply(function, [self.evaluate(left)], node, "is")
        if isinstance(operator, (ast.In, ast.NotIn)):
            value = self._in(self.evaluate(left), right)
            if isinstance(operator, ast.NotIn):
                value = self._apply(self.pc.invert, [value], node, "not in")
            return value
        name, sign = _COMPARISONS[type(operator)]
        operands = [self.evaluate(left), self.evaluate(right)]
        return self._apply(getattr(self.pc, name), operands, right, sign)

    def _in(self, value: _Value, node: ast.expr) -> _Value:
        if not isinstance(node, (ast.List, ast.Tuple, ast.Set)):
            self.where._refuse(
                "'in' is followed by a list of constants, such as ('de', 'fr'); "
                "for a part of a text use contains()",
                node,
            )
        pa, pc = self.pa, self.pc
        if not node.elts:  # as in SQL: nothing is in an empty list, not even null
            return _Value(pa.scalar(False))
        try:
            wanted = pa.array([self._listed(item) for item in node.elts])
        except (pa.ArrowException, OverflowError):
            self.where._refuse("the constants of a list have one type", node)
        common = self._common_type(value, wanted.type, node)

        def apply(data: Any) -> Any:
            data = data.cast(common)
            found = pc.is_in(data, value_set=wanted.cast(common))
            return pc.if_else(pc.is_null(data), pa.scalar(None, pa.bool_()), found)

        return self._apply(apply, [value], node, "in")

    def _common_type(self, value: _Value, wanted: Any, node: ast.AST) -> Any:
        """Return the type in which a value is compared with the constants of a list."""
        pa, types = self.pa, self.pa.types
        kinds = [kind for kind in (wanted, value.data.type) if not types.is_null(kind)]
        if all(types.is_integer(kind) for kind in kinds):
            return pa.int64()
        if all(types.is_integer(kind) or types.is_floating(kind) for kind in kinds):
            return pa.float64()
        if all(self._is_text(kind) for kind in kinds):
            return pa.string()
        if any(kind != kinds[0] for kind in kinds):
            self.where._refuse(f"'in' compares {value.kind} with {wanted}", node)
        return kinds[0]

    def _listed(self, node: ast.expr) -> Any:
        sign = 1
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            sign, node = -1, node.operand
        if not isinstance(node, ast.Constant) or node.value is None:
            self.where._refuse("a list has constants only; for no value use 'is None'", node)
        if sign < 0 and isinstance(node.value, (bool, str)):
            self.where._refuse(f"'-' takes a number, not {node.value!r}", node)
        return -node.value if sign < 0 else node.value  # type: ignore[operator]

    def _list(self, node: ast.AST) -> NoReturn:
        self.where._refuse("a list is only used after 'in'", node)

    _tuple = _set = _list

    def _apply(
        self, function: Callable[..., Any], values: Sequence[_Value], node: ast.AST, sign: str
    ) -> _Value:
        """Call a compute function; values in different codes are expanded to rows first."""
        arrays = [value for value in values if not value.scalar]
        codes = arrays[0].codes if arrays else None
        if any(value.codes is not codes for value in arrays):
            values, codes = [self._expand(value) for value in values], None
        try:
            return _Value(function(*(value.data for value in values)), codes)
        except (self.pa.ArrowException, OverflowError) as error:
            if isinstance(error, (self.pa.ArrowNotImplementedError, self.pa.ArrowTypeError)):
                kinds = " and ".join(value.kind for value in values)
                self.where._refuse(f"{sign!r} cannot be applied to {kinds}", node)
            self.where._refuse(f"{sign!r} failed: {str(error).splitlines()[0]}", node)

    def _expand(self, value: _Value) -> _Value:
        if value.scalar or value.codes is None:
            return value
        return _Value(value.data.take(self.pa.array(value.codes)))


def _numpy(data: Any) -> Array:
    if hasattr(data, "chunks"):  # a ChunkedArray takes no arguments
        parts = [chunk.to_numpy(zero_copy_only=False) for chunk in data.chunks]
        joined: Array = np.concatenate(parts) if parts else np.zeros(0, bool)
        return joined
    array: Array = data.to_numpy(zero_copy_only=False)
    return array


def _describe(node: ast.AST) -> str:
    name = {
        ast.Attribute: "a dotted name",
        ast.Subscript: "a subscript",
        ast.Lambda: "a function",
        ast.IfExp: "'if'",
        ast.NamedExpr: "an assignment",
        ast.JoinedStr: "an f-string",
        ast.Starred: "'*'",
        ast.Pow: "'**'",
        ast.Mod: "'%'",
        ast.FloorDiv: "'//'",
        ast.BitAnd: "'&' (write 'and')",
        ast.BitOr: "'|' (write 'or')",
        ast.Invert: "'~' (write 'not')",
    }
    return name.get(type(node), type(node).__name__)
