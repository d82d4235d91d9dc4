"""Packed tickets are the same tickets, and damaged ones are refused in little memory."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import tracemalloc
import zlib

import pytest

from penstock.errors import StateError
from penstock.stages.tickets import FEWEST, pack_lists, pack_tickets, unpack_lists, unpack_tickets

DICE = random.Random(0)
TICKETS = {
    "numbers": [DICE.randrange(10**6) for _ in range(1000)],
    "one number": [7] * FEWEST,
    "negative numbers": [DICE.randrange(-300, 300) for _ in range(1000)],
    "large numbers": [DICE.choice((2**63 - 1, -(2**63), 0)) for _ in range(1000)],
    "pairs": [(n % 7, n * 512) for n in range(1000)],
    "nested": [(0, [(1, (n % 7, n * 512)), n % 3]) for n in range(1000)],
    "two forms": [(0, n * 512) if n % 3 else (1, (n % 7, n * 512)) for n in range(1000)],
    "a few of another form": [(0, n * 512) if n % 50 else (1, (n % 7, n)) for n in range(1000)],
    "many columns": [([(n // 16, DICE.randrange(999)) for _ in range(16)], n) for n in range(500)]
    * 8,
    "edges of a byte": [n for edge in (127, 128, 255, 256, 32767, 32768) for n in (edge, -edge)]
    * 9,
}
UNPACKED = {
    "few": [1, 2, 3],
    "many forms": [(0,) * n for n in range(1, 100)],
    "two forms with None": [(1, 2) if n % 2 else (1, None) for n in range(100)],
    "None among numbers": [None, *range(100)],
    "truth values": [True, False] * 100,
    "fractions": [n / 3 for n in range(100)],
    "too large": [2**64 + n for n in range(100)],
    "texts": [str(n) for n in range(100)],
    "empty lists": [[] for _ in range(100)],
    "nothing": [],
}


@pytest.mark.parametrize("name", TICKETS)
def test_packed_tickets_are_the_same(name):
    tickets = TICKETS[name]
    packed = through_json(pack_tickets(tickets))
    assert unpack_lists({"buffer": packed})["buffer"] == through_json(tickets)
    assert isinstance(packed, dict)


@pytest.mark.parametrize("name", UNPACKED)
def test_tickets_of_no_common_form_stay_a_list(name):
    assert pack_tickets(UNPACKED[name]) == UNPACKED[name]


def test_tickets_of_batches_and_of_two_forms_are_packed_into_a_short_text():
    # 144,000 characters if only runs are shortened, and 14,450 as a list
    for name, most in (("many columns", 30_000), ("two forms", 6_000)):
        assert len(json.dumps(pack_tickets(TICKETS[name]))) < most


def test_every_long_list_of_a_state_is_packed():
    state = {"a": [1, {"buffer": [(n, n) for n in range(200)]}], "b": None}
    packed = pack_lists(state)
    assert isinstance(packed["a"][1]["buffer"], dict)
    assert unpack_lists(through_json(packed)) == through_json(state)


def test_text_that_expands_to_more_than_it_may_is_refused_in_little_memory():
    bomb = base64.b64encode(zlib.compress(bytes(1 << 28), 9)).decode()
    tracemalloc.start()
    for count in (1 << 28, 16 * len(bomb), len(bomb)):
        with pytest.raises(StateError, match="tickets cannot be unpacked"):
            unpack_tickets({"count": count, "form": 0, "widths": [1], "packed": bomb})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * len(bomb)


def test_damaged_tickets_are_refused_or_others():
    for name in ("nested", "two forms", "a few of another form"):
        check_damaged(pack_tickets(TICKETS[name]))


def check_damaged(packed):
    values = (None, -1, 0, 3, 10**30, "x", [], [0], [[0, 0], 0], {}, True, 1.5)
    for name in packed:
        for value in values:
            unpack_or_refuse({**packed, name: value})
        unpack_or_refuse({part: packed[part] for part in packed if part != name})
    for cut in range(0, len(packed["packed"]), 7):
        unpack_or_refuse({**packed, "packed": packed["packed"][:cut]})


def unpack_or_refuse(packed):
    with contextlib.suppress(StateError):
        unpack_tickets(packed)


def through_json(value):
    return json.loads(json.dumps(value))
