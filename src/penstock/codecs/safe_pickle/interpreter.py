"""Read pickles by interpreting their opcodes, without calling anything that they name.

A pickle is a program: it names functions and calls them. Python's unpickler runs it; this reader
looks up every name in a table of replacements, and any other name raises
:class:`~penstock.errors.UnsafeError`. The cost of reading is bounded by the pickle's size:

- time: work that is not proportional to the size (hashing or copying shared values, reducing
  fractions) is charged to a budget, and keys that share a hash are counted;
- memory: claimed sizes are never allocated, only the bytes that are present are copied;
- depth: a result nested more than ``MAX_DEPTH`` containers deep is refused, because CPython
  overflows its C stack when it hashes deep tuples or frees deep deques and defaultdicts.
"""

from __future__ import annotations

import codecs
import pickle
import struct
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Collection
from typing import Any, ClassVar

from penstock.codecs.hash_collisions import MAX_EQUAL_HASHES, check_count, odd_keys
from penstock.errors import DecodingError, PenstockError, UnsafeError, ran_out

MAX_DEPTH = 500
_MAX_KEY_DEPTH = 100
_FREE_WORK = 1_000_000  # a few tenths of a second

_PLAIN = frozenset((str, bytes, float, bool, type(None), int, set, frozenset, bytearray))
_SIZED = frozenset((str, bytes, bytearray, list, tuple, dict))
_SEQUENCES = frozenset((list, tuple, deque))
_DICTS = frozenset((dict, OrderedDict, defaultdict, Counter))


class Name:
    """The replacement of a name in a pickle: a function to call, or a type as an argument."""

    __slots__ = ("call", "kind")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, call: Callable[..., Any] | None, kind: Any = None) -> None:
        self.call, self.kind = call, kind


class Unfinished:
    """A value that a later BUILD opcode completes. It must not be used before."""

    __slots__ = ("memo_keys",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self) -> None:
        self.memo_keys: list[int] = []
        """Its entries in the memo, which the finished value replaces."""

    def finish(self, reader: PickleReader, state: Any) -> Any:
        """Return the value, from its state in the pickle."""
        raise NotImplementedError


class Internal:
    """A part of a value that must not be in the result, such as the storage of a tensor."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]


class Budget:
    """Limits the work, and the memory for copies, of reading ``size`` bytes."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._left = _FREE_WORK + 4 * size

    def charge(self, work: int) -> None:
        """Count work. Raise DecodingError if it is out of proportion to the size."""
        self._left -= work
        if self._left < 0:
            raise DecodingError("pickle: reading it takes more work than its size justifies")


def _text(data: bytes) -> str:
    return str(data, "utf-8", "surrogatepass")


def _latin1(data: bytes) -> str:
    return data.decode("latin1")


def _signed(data: bytes) -> int:
    return int.from_bytes(data, "little", signed=True)


def _int_line(line: bytes) -> int:
    return line == b"01" if line in (b"00", b"01") else int(line, 0)


def _quoted_line(line: bytes) -> str:
    line = line.strip()
    if len(line) < 2 or line[:1] != line[-1:] or line[:1] not in (b"'", b'"'):
        raise ValueError("a string without quotes")
    return _latin1(codecs.escape_decode(line[1:-1])[0])


_MEMOIZE, _MARK, _STOP = pickle.MEMOIZE[0], pickle.MARK[0], pickle.STOP[0]
_CONSTANTS = {
    pickle.NONE[0]: None,
    pickle.NEWTRUE[0]: True,
    pickle.NEWFALSE[0]: False,
    pickle.EMPTY_TUPLE[0]: (),
}
_NUMBERS = {
    pickle.BININT1[0]: struct.Struct("B"),
    pickle.BININT2[0]: struct.Struct("<H"),
    pickle.BININT[0]: struct.Struct("<i"),
    pickle.BINFLOAT[0]: struct.Struct(">d"),
}
_COUNTED: dict[int, tuple[int, Callable[[bytes], Any]]] = {  # bytes of the length field
    pickle.SHORT_BINUNICODE[0]: (1, _text),
    pickle.BINUNICODE[0]: (4, _text),
    pickle.BINUNICODE8[0]: (8, _text),
    pickle.SHORT_BINBYTES[0]: (1, bytes),
    pickle.BINBYTES[0]: (4, bytes),
    pickle.BINBYTES8[0]: (8, bytes),
    pickle.BYTEARRAY8[0]: (8, bytearray),
    pickle.SHORT_BINSTRING[0]: (1, _latin1),
    pickle.BINSTRING[0]: (4, _latin1),
    pickle.LONG1[0]: (1, _signed),
    pickle.LONG4[0]: (4, _signed),
}
_LINES: dict[int, Callable[[bytes], Any]] = {
    pickle.INT[0]: _int_line,
    pickle.LONG[0]: lambda line: int(line.rstrip(b"L")),
    pickle.FLOAT[0]: float,
    pickle.STRING[0]: _quoted_line,
    pickle.UNICODE[0]: lambda line: str(line, "raw-unicode-escape"),
}
_TUPLES = {pickle.TUPLE1[0]: 1, pickle.TUPLE2[0]: 2, pickle.TUPLE3[0]: 3}
_GETS = {pickle.BINGET[0]: 1, pickle.LONG_BINGET[0]: 4}
_PUTS = {pickle.BINPUT[0]: 1, pickle.LONG_BINPUT[0]: 4}


class PickleReader:
    """Reads one pickle, which begins at byte ``at`` of the data.

    ``find(module, name)`` returns a :class:`Name` or a plain value; ``persistent`` resolves a
    persistent id. Several pickles of one file share a ``budget``. After :meth:`load`, ``at`` is the
    offset of the byte after the pickle.
    """

    def __init__(
        self,
        data: bytes,
        find: Callable[[str, str], Any],
        *,
        persistent: Callable[[PickleReader, Any], Any] | None = None,
        budget: Budget | None = None,
        at: int = 0,
    ) -> None:
        self.data, self.at = data, at
        self.budget = budget or Budget(len(data))
        self._find, self._persistent = find, persistent
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: dict[int, Any] = {}
        self._containers = self._unfinished = 0
        self._named = False
        self._fragile: list[Any] = []
        self._hashes: dict[int, tuple[Any, int, set[int]]] = {}

    def load(self) -> Any:
        """Return the value. Raise DecodingError if the pickle is damaged or too expensive."""
        try:
            self._run()
            value = self._stack.pop()
            if self._unfinished:
                raise DecodingError("pickle: a value is not complete at its end")
            part = isinstance(value, Internal) and self._persistent is not None
            if (self._named or self._containers > MAX_DEPTH) and not part:
                self._check(value)
            return value
        except BaseException as error:
            # CPython frees nested deques and defaultdicts recursively and would crash, so they are
            # emptied one by one while the list still references them all.
            for container in self._fragile:
                container.clear()
            if isinstance(error, PenstockError) or not isinstance(error, Exception):
                raise
            if ran_out(error):
                raise
            cause = f"{type(error).__name__}: {error}"
            raise DecodingError(
                f"pickle: damaged or cut at byte {min(self.at, len(self.data))}: {cause:.200}"
            ) from error

    def admit(self, keys: Collection[Any], container: Collection[Any] | None = None) -> None:
        """Raise DecodingError if hashing or comparing the keys would take too long.

        Called before the keys are hashed. ``container`` is the dict or set that they are added to,
        if it may already have keys.
        """
        odd = odd_keys(keys)
        if not odd:
            return
        for key in odd:
            self._charge_hash(key, 0)
        if len(odd) + len(container or ()) <= MAX_EQUAL_HASHES:
            return
        count, hashes = 0, set[int]()
        if container is not None:
            _, count, hashes = self._hashes.get(id(container)) or (None, 0, hashes)
            if not count and container:
                known = odd_keys(container)
                count, hashes = len(known), set(map(hash, known))
            # The entry references the container, so that its id is not reused.
            self._hashes[id(container)] = container, count + len(odd), hashes
        hashes.update(map(hash, odd))
        check_count(count + len(odd), hashes)

    def watch(self, container: Any) -> Any:
        """Remember a new deque or defaultdict, to be emptied if reading fails."""
        self._fragile.append(container)
        return container

    def _charge_hash(self, key: Any, depth: int) -> None:
        """Charge the cost of hashing: each hash of a tuple hashes all its items again."""
        kind = type(key)
        if kind is tuple:
            if depth >= _MAX_KEY_DEPTH:
                raise DecodingError(f"pickle: a key of tuples nested over {_MAX_KEY_DEPTH} deep")
            self.budget.charge(1 + len(key))
            for item in odd_keys(key):
                self._charge_hash(item, depth + 1)
        elif kind is not frozenset:  # it caches its hash
            self.budget.charge(sys.getsizeof(key) >> 5)

    def _run(self) -> None:
        """Interpret opcodes up to STOP.

        Slices beyond the end are short. That is detected, because the next opcode is then missing.
        """
        data, stack, memo = self.data, self._stack, self._memo
        at = self.at
        try:
            while True:
                code = data[at]
                at += 1
                if code == _MEMOIZE:
                    memo[len(memo)] = stack[-1]
                    if self._unfinished:
                        self._put(len(memo) - 1)
                elif code in _COUNTED:
                    width, make = _COUNTED[code]
                    begin = at + width
                    at = begin + int.from_bytes(data[at:begin], "little")
                    stack.append(make(data[begin:at]))
                elif code in _NUMBERS:
                    number = _NUMBERS[code]
                    stack.append(number.unpack_from(data, at)[0])
                    at += number.size
                elif code in _GETS:
                    width = _GETS[code]
                    self._get(int.from_bytes(data[at : at + width], "little"))
                    at += width
                elif code in _PUTS:
                    width = _PUTS[code]
                    self._put(int.from_bytes(data[at : at + width], "little"))
                    at += width
                elif code == _MARK:
                    self._marks.append(len(stack))
                elif code in _CONSTANTS:
                    stack.append(_CONSTANTS[code])
                elif code in _TUPLES:
                    size = _TUPLES[code]
                    if len(stack) < size:
                        raise IndexError("too few values for a tuple")
                    stack[-size:] = [tuple(stack[-size:])]
                    self._containers += 1
                elif code in _LINES:
                    end = data.index(b"\n", at)
                    stack.append(_LINES[code](data[at:end]))
                    at = end + 1
                elif code == _STOP:
                    return
                else:
                    self.at = at
                    if code not in self._OTHERS:
                        raise DecodingError(f"pickle: no plain value needs the opcode {code:#x}")
                    self._OTHERS[code](self)
                    at = self.at
        finally:
            self.at = at

    def _skip(self, count: int) -> None:
        self.at += count

    def _line(self) -> str:
        end = self.data.index(b"\n", self.at)
        line, self.at = self.data[self.at : end], end + 1
        return line.decode("utf-8")

    def _pop_marked(self) -> list[Any]:
        """Remove and return the items that were pushed since the last mark."""
        mark = self._marks.pop()
        items = self._stack[mark:]
        del self._stack[mark:]
        return items

    def _put(self, key: int) -> None:
        if key >> 32:  # written in digits, such numbers may share a hash
            raise DecodingError("pickle: a memo index of more than 32 bits")
        value = self._memo[key] = self._stack[-1]
        if self._unfinished and isinstance(value, Unfinished):
            value.memo_keys.append(key)

    def _get(self, key: int) -> None:
        value = self._memo[key]
        if self._unfinished and isinstance(value, Unfinished):
            raise DecodingError("pickle: a value is used before it is complete")
        self._stack.append(value)

    def _push(self, container: Any) -> None:
        self._containers += 1
        self._stack.append(container)

    def _name(self, module: Any, name: Any) -> None:
        if not (isinstance(module, str) and isinstance(name, str)):
            raise DecodingError("pickle: a name that is no text")
        self._named = True
        self._stack.append(self._find(module, name))

    def _call(self) -> None:
        """Execute REDUCE or NEWOBJ."""
        arguments, name = self._stack.pop(), self._stack.pop()
        if type(name) is not Name or name.call is None or type(arguments) is not tuple:
            raise UnsafeError("pickle: something is called that is no function")
        self.budget.charge(sum(len(one) for one in arguments if type(one) in _SIZED))
        value = name.call(self, *arguments)
        self._unfinished += isinstance(value, Unfinished)
        self._push(value)

    def _build(self) -> None:
        """Complete an array, a dtype or a UUID; set the attributes of an OrderedDict."""
        state, target = self._stack.pop(), self._stack.pop()
        if isinstance(target, Unfinished):
            value = target.finish(self, state)
            self._memo.update(dict.fromkeys(target.memo_keys, value))
            self._unfinished -= 1
            self._stack.append(value)
            return
        if type(target) is not OrderedDict or type(state) is not dict:
            raise UnsafeError("pickle: a state is set where there is none")
        for name in state:  # torch stores the versions of modules there
            if not isinstance(name, str) or hasattr(OrderedDict, name):
                raise UnsafeError(f"pickle: an OrderedDict with the attribute {name!r:.40}")
        vars(target).update(state)
        self._stack.append(target)

    def _append(self, items: list[Any]) -> None:
        target = self._stack[-1]
        if type(target) is not list and type(target) is not deque:
            raise DecodingError("pickle: items are appended where there is no list")
        target.extend(items)

    def _set(self, items: list[Any]) -> None:
        target, keys = self._stack[-1], items[::2]
        if type(target) not in _DICTS or len(items) % 2:
            raise DecodingError("pickle: keys are set where there is no dict")
        self.admit(keys, target)
        if type(target) is dict:
            target.update(zip(keys, items[1::2]))
            return
        for key, value in zip(keys, items[1::2]):
            target[key] = value

    def _dict(self) -> None:
        items = self._pop_marked()
        self._push({})
        self._set(items)

    def _frozenset(self) -> None:
        items = self._pop_marked()
        self.admit(items)
        self._stack.append(frozenset(items))

    def _add(self) -> None:
        items, target = self._pop_marked(), self._stack[-1]
        if type(target) is not set:
            raise DecodingError("pickle: members are added where there is no set")
        self.admit(items, target)
        target.update(items)

    def _refer(self) -> None:
        if self._persistent is None:
            raise UnsafeError("pickle: a reference to something outside of the pickle")
        self._stack.append(self._persistent(self, self._stack.pop()))

    _OTHERS: ClassVar[dict[int, Callable[[PickleReader], Any]]] = {
        code[0]: handle
        for code, handle in {
            pickle.PROTO: lambda self: self._skip(1),
            pickle.FRAME: lambda self: self._skip(8),
            pickle.POP: lambda self: self._stack.pop(),
            pickle.POP_MARK: _pop_marked,
            pickle.PUT: lambda self: self._put(int(self._line())),
            pickle.GET: lambda self: self._get(int(self._line())),
            pickle.TUPLE: lambda self: self._push(tuple(self._pop_marked())),
            pickle.EMPTY_LIST: lambda self: self._push([]),
            pickle.LIST: lambda self: self._push(self._pop_marked()),
            pickle.APPEND: lambda self: self._append([self._stack.pop()]),
            pickle.APPENDS: lambda self: self._append(self._pop_marked()),
            pickle.EMPTY_DICT: lambda self: self._push({}),
            pickle.DICT: _dict,
            pickle.SETITEM: lambda self: self._set([self._stack.pop(-2), self._stack.pop()]),
            pickle.SETITEMS: lambda self: self._set(self._pop_marked()),
            pickle.EMPTY_SET: lambda self: self._stack.append(set()),
            pickle.ADDITEMS: _add,
            pickle.FROZENSET: _frozenset,
            pickle.GLOBAL: lambda self: self._name(self._line(), self._line()),
            pickle.STACK_GLOBAL: lambda self: self._name(self._stack.pop(-2), self._stack.pop()),
            pickle.REDUCE: _call,
            pickle.NEWOBJ: _call,
            pickle.BUILD: _build,
            pickle.BINPERSID: _refer,
        }.items()
    }

    def _check(self, root: Any) -> None:
        """Refuse a result that is nested too deep, or that contains a name or a part of a value.

        Containers are visited once, children before parents, so that each height is computed once.
        In a cycle heights are undefined; there the number of fragile containers is the bound.
        """
        heights: dict[int, int] = {}  # 0 while the children are being visited
        path: list[list[Any]] = [[0, iter((root,)), 0]]  # id, children, height of the children
        circular = False
        while path:
            visit = path[-1]
            for child in visit[1]:
                known = heights.get(id(child))
                if known is None:
                    if parts := _parts(child):
                        heights[id(child)] = 0
                        path.append([id(child), iter(parts), 0])
                        break
                    known = heights[id(child)] = 1
                circular = circular or not known
                visit[2] = max(visit[2], known)
            else:
                path.pop()
                heights[visit[0]] = height = visit[2] + 1
                if path:
                    path[-1][2] = max(path[-1][2], height)
            if max(len(path) - 1, visit[2]) > MAX_DEPTH:
                raise DecodingError(f"pickle: values are nested more than {MAX_DEPTH} deep")
        if circular and len(self._fragile) > MAX_DEPTH:
            raise DecodingError(
                f"pickle: a cycle of values with more than {MAX_DEPTH} deques or defaultdicts"
            )


def _parts(value: Any) -> list[Any]:
    """Return the items of a container, without values that cannot contain others.

    The keys of a dict are omitted: they are hashable, hence no names, and not deep.
    """
    kind = type(value)
    if kind in _SEQUENCES:
        return [part for part in value if type(part) not in _PLAIN]
    if kind in _DICTS:
        parts = [part for part in value.values() if type(part) not in _PLAIN]
        return [*parts, *vars(value).values()] if kind is OrderedDict else parts
    if isinstance(value, (Name, Unfinished, Internal)):
        raise UnsafeError("pickle: a function or class is no plain value")
    return []
