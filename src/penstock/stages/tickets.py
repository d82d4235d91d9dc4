"""Many tickets as one short text, for the states of large buffers.

Tickets of one form are numbers, or equally long lists of such. They are taken apart into columns,
each column into its low bytes, the next bytes and so on, and these are compressed: the high bytes
of neighbouring numbers are mostly equal. Where the differences of neighbours are shorter, they are
stored instead. Tickets of a few forms, as those of a mixture, are packed form by form. Items of one
batch all have the ticket of the batch in theirs: it is stored once, and they have its number.
"""

from __future__ import annotations

import base64
import marshal
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from operator import itemgetter
from typing import Any

from penstock.errors import StateError

FEWEST = 64
"""Fewer tickets stay a list: packed, they would not be shorter."""
EXPANSION = 16
"""Bytes that one character of the text may stand for, so that a small text takes little memory."""
DEEPEST = 50
FEW_COLUMNS = 8
"""The most columns in which repeated strings are not searched for."""
LONG_LIST = 4
"""Lists inside tickets are stored once if they have as many parts, and most occur repeatedly."""
OWN_CODES = 512
"""From as many bytes on, a plane gets Huffman codes of its own: its bytes are unlike the others."""
MOST_FORMS = 16


def pack_tickets(tickets: Sequence[Any], *, tables: bool = True) -> Any:
    """Return tickets for a state: packed if there are many of one form, otherwise as a list.

    Without ``tables``, equal lists inside them are repeated.

    >>> packed = pack_tickets([(number % 3, number * 512) for number in range(1000)])
    >>> packed["count"], len(packed["packed"]) < 3000, unpack_tickets(packed)[-1]
    (1000, True, [0, 511488])
    """
    columns: list[array[int]] = []
    if len(tickets) < FEWEST:
        return list(tickets)
    form = _columns(tickets, columns, tables)
    if form is None:
        return _pack_forms(tickets, tables)
    widths, text = _compress(columns)
    try:
        shorter = _compress(list(map(_differences, columns)))
    except OverflowError:
        shorter = widths, text
    if len(shorter[1]) < len(text):
        (widths, text), form = shorter, {"steps": form}
    return {"count": len(tickets), "form": form, "widths": widths, "packed": text}


def _differences(column: array[int]) -> array[int]:
    return array("q", [column[0], *(after - before for before, after in pairwise(column))])


def _compress(columns: Sequence[array[int]]) -> tuple[list[int], str]:
    """Return the width of each column in bytes, and the text of all."""
    # In few columns only runs and frequencies count: searching for repeated strings takes longer
    # and finds none. In many, as those of batches, it finds equal parts.
    searching = [zlib.Z_DEFAULT_STRATEGY] if len(columns) > FEW_COLUMNS else []
    widths = list(map(_width, columns))
    planes = [plane for pair in zip(columns, widths) for plane in _planes(*pair)]
    for strategy in (*searching, zlib.Z_RLE, zlib.Z_HUFFMAN_ONLY):
        compressor = zlib.compressobj(6, zlib.DEFLATED, 15, 9, strategy)
        data = bytearray()
        for plane in planes:
            data += compressor.compress(plane)
            if len(plane) >= OWN_CODES:
                data += compressor.flush(zlib.Z_PARTIAL_FLUSH)
        data += compressor.flush()
        text = base64.b64encode(data).decode()
        if sum(map(len, planes)) <= len(text) * EXPANSION:  # the last is always long enough
            break
    return widths, text


def _pack_forms(tickets: Sequence[Any], tables: bool) -> Any:
    """Return tickets of a few forms packed form by form; as a list if none can be packed."""
    try:
        forms = list(map(_form, tickets))
    except (TypeError, RecursionError):  # not of numbers
        return list(tickets)
    numbers = {form: number for number, form in enumerate(dict.fromkeys(forms))}
    if not 1 < len(numbers) <= MOST_FORMS:
        return list(tickets)
    which = [numbers[form] for form in forms]
    groups = [
        pack_tickets([ticket for ticket, n in zip(tickets, which) if n == number], tables=tables)
        for number in numbers.values()
    ]
    if not any(isinstance(group, dict) for group in groups):
        return list(tickets)
    return {"packed": groups, "which": pack_tickets(which)}


def _form(ticket: Any) -> Any:
    if type(ticket) is int:
        return 0
    if type(ticket) not in (tuple, list):
        raise TypeError("a ticket is a number or a list")
    return tuple(map(_form, ticket))


def unpack_tickets(packed: Any, *, tables: bool = True) -> list[Any]:
    """Return the tickets of :func:`pack_tickets`."""
    try:
        if isinstance(packed["packed"], list):
            groups = [iter(_unpack_group(group, tables)) for group in packed["packed"]]
            which = _unpack_group(packed["which"], tables)
            if not all(type(n) is int and 0 <= n < len(groups) for n in which):
                raise ValueError("a form is not known")
            tickets = list(map(next, [groups[n] for n in which]))
            if len(tickets) < len(which) or any(list(group) for group in groups):
                raise ValueError("their number is not that of their order")
            return tickets
        count, form, widths = packed["count"], packed["form"], packed["widths"]
        return _unpack(count, form, widths, packed["packed"], tables)
    except (KeyError, TypeError, ValueError, RecursionError, zlib.error) as error:
        raise StateError(f"the state is damaged: tickets cannot be unpacked: {error}") from error


def _unpack_group(group: Any, tables: bool) -> list[Any]:
    if isinstance(group, dict):
        return unpack_tickets(group, tables=tables)
    if not isinstance(group, list):
        raise ValueError("a group is not a list")
    return group


def pack_lists(value: Any) -> Any:
    """Return a state in which every long list of tickets is packed."""
    if isinstance(value, dict):
        return {name: pack_lists(part) for name, part in value.items()}
    if not isinstance(value, (list, tuple)):
        return value
    packed = pack_tickets(value)
    return packed if isinstance(packed, dict) else [pack_lists(part) for part in value]


def unpack_lists(value: Any) -> Any:
    """Return a state in which the lists of :func:`pack_lists` are lists again."""
    if isinstance(value, dict):
        if "packed" in value:
            return unpack_tickets(value)
        return {name: unpack_lists(part) for name, part in value.items()}
    return [unpack_lists(part) for part in value] if isinstance(value, (list, tuple)) else value


def _columns(values: Sequence[Any], columns: list[array[int]], tables: bool, depth: int = 0) -> Any:
    """Add the columns of equally formed values; return their form, or None if they differ.

    The form of a number is 0, that of a list the list of its parts' forms. That of long lists which
    occur repeatedly is a dict with each of them once; the column has their numbers.
    """
    kinds = set(map(type, values))
    if kinds == {int}:
        try:
            columns.append(array("q", values))
        except OverflowError:
            return None
        return 0
    if not kinds <= {tuple, list} or depth > DEEPEST:
        return None
    repeated = tables and max(map(len, values)) >= LONG_LIST
    if repeated and (table := _table(values, columns)) is not None:
        return table
    if len(set(map(len, values))) != 1:
        return None
    form = []
    for place in range(len(values[0])):
        part = _columns(list(map(itemgetter(place), values)), columns, tables, depth + 1)
        if part is None:
            return None
        form.append(part)
    return form or None


def _table(values: Sequence[Any], columns: list[array[int]]) -> Any:
    """Return the form of lists that occur repeatedly, and add their numbers; None if few do."""
    try:
        texts = [marshal.dumps(value, 2) for value in values]  # lists are no keys of a dict
        rows = dict(zip(texts, values))
        if len(rows) > len(values) // 2:
            return None
        order = sorted(rows, key=rows.__getitem__)  # so that neighbours have small differences
    except (TypeError, ValueError):  # not of numbers
        return None
    numbers = {text: number for number, text in enumerate(order)}
    columns.append(array("q", [numbers[text] for text in texts]))
    parts = [part for text in order for part in rows[text]]
    lengths = [len(rows[text]) for text in order]
    # A table in a table could expand to any amount of memory.
    return {
        "lengths": pack_tickets(lengths, tables=False),
        "parts": pack_tickets(parts, tables=False),
    }


def _width(words: array[int]) -> int:
    low, high = min(words), max(words)
    bits = max((~low if low < 0 else low).bit_length(), high.bit_length() if high >= 0 else 0)
    return bits // 8 + 1  # with the sign


def _planes(words: array[int], width: int) -> list[bytes]:
    """Return all lowest bytes of the words, then all second ones, up to the width."""
    if sys.byteorder == "big":
        words = words[:]
        words.byteswap()
    data = words.tobytes()
    return [data[place::8] for place in range(width)]


def _unpack(count: int, form: Any, widths: list[int], text: str, tables: bool) -> list[Any]:
    if type(count) is not int or not all(type(w) is int and 0 < w <= 8 for w in widths):
        raise ValueError("a number is not valid")
    total = count * sum(widths)
    if not 0 < total <= len(text) * EXPANSION:
        raise ValueError(f"{total} bytes cannot be in {len(text)} characters")
    data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), total + 1)
    if len(data) != total:
        raise ValueError(f"they are {len(data)} bytes instead of {total}")
    columns, begin = [], 0
    for width in widths:
        columns.append(_numbers(data[begin : begin + count * width], count, width))
        begin += count * width
    if isinstance(form, dict) and "steps" in form:
        form, columns = form["steps"], list(map(_sums, columns))
    waiting = iter(columns)
    tickets = _assemble(form, waiting, tables)
    if next(waiting, None) is not None:
        raise ValueError("there are more columns than the form has")
    return tickets


def _numbers(planes: bytes, count: int, width: int) -> list[int]:
    data = bytearray(8 * count)
    for place in range(8):
        if place < width:
            data[place::8] = planes[place * count : (place + 1) * count]
        else:  # the sign
            data[place::8] = data[width - 1 :: 8].translate(_SIGNS)
    words = array("q", bytes(data))
    if sys.byteorder == "big":
        words.byteswap()
    return words.tolist()


_SIGNS = bytes(0 if byte < 128 else 255 for byte in range(256))


def _sums(steps: list[int]) -> list[int]:
    sums = list(accumulate(steps))
    if not -(1 << 63) <= min(sums) <= max(sums) < 1 << 63:
        raise ValueError("a number is too large")
    return sums


def _assemble(form: Any, columns: Iterator[list[int]], tables: bool) -> list[Any]:
    if isinstance(form, dict) and tables:
        lengths, parts = (_unpack_group(form[name], False) for name in ("lengths", "parts"))
        if not all(type(n) is int and n >= 0 for n in lengths) or sum(lengths) != len(parts):
            raise ValueError("the lists in them have other lengths")
        ends = list(accumulate(lengths))
        rows = [parts[end - length : end] for end, length in zip(ends, lengths)]
        numbers = _assemble(0, columns, tables)
        if not 0 <= min(numbers) <= max(numbers) < len(rows):
            raise ValueError("a list in them is not known")
        return [rows[number] for number in numbers]
    if form == 0 and type(form) is int:
        found = next(columns, None)
        if found is None:
            raise ValueError("there are fewer columns than the form has")
        return found
    if not isinstance(form, list) or not form:
        raise ValueError("their form is unknown")
    return list(map(list, zip(*[_assemble(part, columns, tables) for part in form])))
