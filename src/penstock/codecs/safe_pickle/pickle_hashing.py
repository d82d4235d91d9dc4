"""An unpickler that counts what its keys cost before it hashes them.

A pickle may use one value in many places. Tuples in tuples so grow twice as large with every few
bytes, and Python hashes a tuple by hashing all that is in it, in every place: forty such steps
as the key of a dict never end, and a million nested tuples end the process.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from penstock.errors import DecodingError, UnsafeError

_FREE = 1_000_000  # hashing so many values takes some milliseconds
_MAX_DEPTH = 1000

_python: Any = pickle._Unpickler  # only the unpickler written in Python lets us look in between


class CountingUnpickler(_python):  # type: ignore[misc]
    """Reads a pickle; keys that cost much more than the pickle is long are a DecodingError."""

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = dict(_python.dispatch)

    def __init__(self, file: Any, size: int) -> None:
        super().__init__(file)
        self._left = _FREE + 16 * size
        self._sizes: dict[int, tuple[int, int, Any]] = {}  # by id: size, depth, and the value

    def size_and_depth(self, value: Any) -> tuple[int, int]:
        """How many values are hashed for this one, and how deep they are nested."""
        if type(value) is int:
            return 1 + (value.bit_length() >> 9), 0
        if not isinstance(value, (tuple, frozenset)):
            return 1, 0
        known = self._sizes.get(id(value))
        if known is None:
            size, depth = 1, 0
            for item in value:
                item_size, item_depth = self.size_and_depth(item)
                size, depth = size + item_size, max(depth, item_depth)
            # The value is kept too: another one in its place would have the same id.
            known = self._sizes[id(value)] = min(size, 1 << 62), depth + 1, value
        return known[:2]

    def pay_for(self, keys: Iterable[Any]) -> None:
        """Before ``keys`` are hashed: a DecodingError if they, and those before, cost too much."""
        for key in keys:
            size, depth = self.size_and_depth(key)
            self._left -= size
            if self._left < 0 or depth > _MAX_DEPTH:
                raise DecodingError(
                    "pickle: keys of a dict or set in which tuples are nested without end"
                )

    def pay_for_call(self, arguments: Iterable[Any]) -> None:
        """Before a call that may make a set or a dict of its arguments' items."""
        for argument in arguments:
            if isinstance(argument, (list, tuple)):
                for item in argument:  # in a list of pairs, the keys are one level below
                    self.pay_for(item if isinstance(item, list) else (item,))


def _measured(code: bytes, before: Callable[[Any], None] | None = None) -> None:
    """Teach the opcode to measure what it makes; ``before`` is called before it makes it."""
    inner = CountingUnpickler.dispatch[code[0]]

    def load(self: Any) -> None:
        if before is not None:
            before(self)
        inner(self)
        if self.stack:
            self.size_and_depth(self.stack[-1])

    CountingUnpickler.dispatch[code[0]] = load


def _check_state(self: Any) -> None:
    """A state may not give parts to what can be a key: its size was taken without them."""
    target, state = self.stack[-2:]
    if isinstance(target, uuid.UUID):
        if not isinstance(state, dict) or type(state.get("int")) is not int:
            raise DecodingError("pickle: cannot make a UUID of that")
    elif type(target).__hash__ is not None:
        raise UnsafeError("pickle: a state is set where there is none")


for _code in (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3):
    _measured(_code)
# After a mark the stack holds what came since.
_measured(pickle.SETITEM, lambda self: self.pay_for(self.stack[-2:-1]))
_measured(pickle.SETITEMS, lambda self: self.pay_for(self.stack[::2]))
_measured(pickle.ADDITEMS, lambda self: self.pay_for(self.stack))
_measured(pickle.FROZENSET, lambda self: self.pay_for(self.stack))
_measured(pickle.REDUCE, lambda self: self.pay_for_call(self.stack[-1]))
_measured(pickle.NEWOBJ, lambda self: self.pay_for_call(self.stack[-1]))
_measured(pickle.NEWOBJ_EX, lambda self: self.pay_for_call(self.stack[-2]))
_measured(pickle.INST, lambda self: self.pay_for_call(self.stack))
_measured(pickle.OBJ, lambda self: self.pay_for_call(self.stack))
_measured(pickle.BUILD, _check_state)
