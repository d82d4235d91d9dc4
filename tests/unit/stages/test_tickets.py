"""Packed tickets are the same tickets, and damaged ones are refused in little memory."""

from __future__ import annotations

import base64
import contextlib
import json
import random
import tracemalloc
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import StateError
from penstock.stages.tickets import FEWEST, pack_lists, pack_tickets, unpack_lists, unpack_tickets

DICE = random.Random(0)


def items_of(batches, count, most=10_000):
    """The tickets that ``shuffle(most)`` holds after ``count`` batches: lane, batch and place."""
    buffer, dice = [], random.Random(1)
    for batch in batches[:count]:
        for place in range(len(batch)):
            buffer.append((0, batch, place))
            if len(buffer) > most:
                buffer[dice.randrange(most)] = buffer.pop()
    return buffer


BATCHES = [[(n // 250, (n % 250 * 20 + m) * 20_480) for m in range(20)] for n in range(1500)]
OTHERS = [[(n, m) for m in range(n % 40)] for n in range(300)]
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
    "items of batches": items_of(BATCHES, 100),
    "items of batches of many lengths": items_of(OTHERS, 300, most=1000),
    "items of batches of items": items_of([items_of(OTHERS, 20)[n : n + 9] for n in range(99)], 99),
    "items of batches with None": [(0, [1, 2, 3, None, n % 3], n) for n in range(100)],
    "steps that are too large": [n // 50 * (2**63 - 1) - n % 50 * 2**57 for n in range(100)],
    "edges of a byte": [n for edge in (127, 128, 255, 256, 32767, 32768) for n in (edge, -edge)]
    * 9,
}
OLD = "eJzFztkNwCAMBFFjCGcg/Xeb6WGR/KT93jHTJTgyCh5UNHQMTCy82Dj4cOE+9N9F0f1FFN1fRZY8K/sB6FAK4Q=="
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


def test_tickets_of_the_buffers_of_large_shuffles_are_packed_into_a_short_text():
    # 600,000 characters if each item has all tickets of its batch
    tickets = items_of(BATCHES, 1500)
    assert len(tickets) == 10_000
    packed = through_json(pack_tickets(tickets))
    assert len(json.dumps(packed)) < 60_000
    assert unpack_tickets(packed) == through_json(tickets)
    one_by_one = [part for batch in BATCHES for part in batch]
    buffer = DICE.sample(one_by_one, 10_000)
    assert len(json.dumps(pack_tickets(buffer))) < 30_000  # of one shuffle(10_000)
    in_order = pack_tickets(one_by_one[:10_000])
    assert len(json.dumps(in_order)) < 9_000  # their differences are all equal


PAIRS = st.tuples(st.integers(0, 3), st.integers(-(2**63), 2**63 - 1))
PARTS = st.lists(PAIRS, max_size=6) | st.lists(st.lists(PAIRS, max_size=5), max_size=5)


@given(st.lists(PARTS, min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_packed_items_of_any_batches_are_the_same(batches, dice):
    tickets = [(dice.randrange(2), dice.choice(batches), n % 7) for n in range(2 * FEWEST)]
    assert unpack_lists(through_json(pack_lists(tickets))) == through_json(tickets)


def test_tickets_that_an_earlier_version_packed_are_unpacked():
    form = [0, [[0, 0]] * 4, 0]
    packed = {"count": 64, "form": form, "widths": [1, 1, 1, 1, 2, 1, 2, 1, 2, 1], "packed": OLD}
    tickets = [(0, [(n // 4, m * 512) for m in range(4)], n % 4) for n in range(64)]
    assert unpack_tickets(packed) == through_json(tickets)


def test_every_long_list_of_a_state_is_packed():
    state = {"a": [1, {"buffer": [(n, n) for n in range(200)]}], "b": None}
    packed = pack_lists(state)
    assert isinstance(packed["a"][1]["buffer"], dict)
    assert unpack_lists(through_json(packed)) == through_json(state)


def as_table(form):
    """A table of lists whose parts have tickets of another form."""
    parts = {**pack_tickets([[n, n] * 4 for n in range(1000)]), "form": form}
    return {"lengths": [1] * 1000, "parts": parts}


def test_text_that_expands_to_more_than_it_may_is_refused_in_little_memory():
    bomb = base64.b64encode(zlib.compress(bytes(1 << 28), 9)).decode()
    tracemalloc.start()
    for count in (1 << 28, 16 * len(bomb), len(bomb)):
        with pytest.raises(StateError, match="tickets cannot be unpacked"):
            unpack_tickets({"count": count, "form": 0, "widths": [1], "packed": bomb})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 * len(bomb)


@pytest.mark.parametrize("wrap", [lambda form: {"steps": form}, as_table])
def test_forms_inside_each_other_are_refused_in_little_memory(wrap):
    packed = pack_tickets([n * n for n in range(-5000, 5000)])
    packed = {**packed, "form": packed["form"]["steps"]}
    assert packed["form"] == 0
    for _ in range(8):
        packed = {**packed, "form": wrap(packed["form"])}
    tracemalloc.start()
    with pytest.raises(StateError, match="cannot be unpacked"):
        unpack_tickets(packed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20


def test_sums_above_64_bits_are_refused():
    packed = pack_tickets([(1 << 62) * (n % 2) for n in range(1000)])
    with pytest.raises(StateError, match="cannot be unpacked: a number is too large"):
        unpack_tickets({**packed, "form": {"steps": 0}})


def test_damaged_tickets_are_refused_or_others():
    for name in (
        "nested",
        "two forms",
        "a few of another form",
        "items of batches of many lengths",
    ):
        check_damaged(pack_tickets(TICKETS[name]))
    packed = pack_tickets(TICKETS["items of batches of many lengths"])
    lane, table, place = packed["form"]
    for name in table:
        for value in (None, -1, [], [1], ["x"], [[0]], {}, packed, pack_tickets(range(-99, 99))):
            damaged = [lane, {**table, name: value}, place]
            with pytest.raises(StateError, match="tickets cannot be unpacked"):
                unpack_tickets({**packed, "form": damaged})


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
