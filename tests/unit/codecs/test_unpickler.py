from __future__ import annotations

import builtins
import collections
import contextlib
import datetime
import decimal
import fractions
import io
import operator
import os
import pathlib
import pickle
import struct
import subprocess
import sys
import uuid
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.codecs.safe_pickle import unpickler as pickles
from penstock.codecs.safe_pickle.opcode_scan import end_of_pickle, walk
from penstock.codecs.safe_pickle.unpickler import torch_loads, unpickle_loads
from penstock.errors import DecodingError, PenstockError, UnsafeError
from penstock.testing.codecs import measured

REFUSED = (PenstockError, pickle.UnpicklingError, TypeError, ValueError, KeyError)

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.dates() | st.datetimes() | st.times()
    | st.timedeltas() | st.decimals(allow_nan=False) | st.fractions() | st.uuids()
)  # fmt: skip
values = st.recursive(
    scalars | st.frozensets(st.integers()) | st.builds(bytearray, st.binary()),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner)
        | st.sets(scalars)
        | st.builds(collections.deque, st.lists(inner))
    ),
    max_leaves=10,
)
protocols = st.integers(2, pickle.HIGHEST_PROTOCOL)


@given(values, protocols)
def test_any_plain_value_comes_back(value, protocol):
    assert unpickle_loads(pickle.dumps(value, protocol)) == value


@given(
    hnp.arrays(hnp.scalar_dtypes() | hnp.array_dtypes(), hnp.array_shapes(min_side=0)), protocols
)
def test_any_array_comes_back(value, protocol):
    if not value.dtype.itemsize:
        return
    found = unpickle_loads(pickle.dumps(value, protocol))
    assert (found.dtype, found.shape, found.tobytes()) == (
        value.dtype,
        value.shape,
        value.tobytes(),
    )
    assert found.flags.writeable


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize(
    "value",
    [
        collections.OrderedDict(b=1, a=2),
        collections.Counter("hello"),
        collections.defaultdict(list, a=[1]),
        collections.defaultdict(None, a=1),
        collections.deque([1, 2], 3),
        {1, 2}, frozenset("a"), bytearray(b"x"), 1j, range(3), slice(1, 2, None),
        datetime.datetime(2020, 1, 2, tzinfo=datetime.UTC),
        datetime.timezone(datetime.timedelta(hours=2), "x"),
        decimal.Decimal("1.50"), fractions.Fraction(-1, 3), pathlib.PurePosixPath("a/b"),
        np.float32(1.5), np.int64(3), np.bool_(True), np.str_("x"),
        np.datetime64("2020-01-01", "s"), np.dtype("f4"), torch.Size([1, 2]), b"", "", (), [],
    ],
    ids=repr,
)  # fmt: skip
def test_every_admitted_kind_comes_back_in_every_protocol(value, protocol):
    found = unpickle_loads(pickle.dumps(value, protocol))
    assert type(found) is type(value)
    assert found == value


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6).reshape(2, 3),
        torch.arange(6.0).reshape(2, 3).T,
        torch.arange(10)[3:7:2],
        torch.zeros(0, 3),
        torch.tensor(3.5),
        torch.ones(3, dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.ones(2, requires_grad=True),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=lambda tensor: f"{type(tensor).__name__}-{tensor.dtype}-{tuple(tensor.shape)}",
)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_tensors_come_back(tensor, protocol):
    found = unpickle_loads(pickle.dumps({"t": [tensor]}, protocol))["t"][0]
    assert type(found) is type(tensor)
    assert (found.dtype, found.shape, found.requires_grad) == (
        tensor.dtype,
        tensor.shape,
        tensor.requires_grad,
    )
    assert torch.equal(found, tensor)


def test_what_is_shared_stays_shared_and_circles_close():
    array = np.zeros(3)
    pair = (array, array)
    value = [array, pair, {"a": array, "b": pair}]
    value.append(value)
    found = unpickle_loads(pickle.dumps(value))
    assert found[0] is found[1][0] is found[1][1] is found[2]["a"]
    assert found[1] is found[2]["b"]
    assert found[3] is found


def test_tuples_nested_many_times_over_take_no_time():
    value = (np.zeros(1),)
    for _ in range(60):
        value = (value, value)
    assert len(unpickle_loads(pickle.dumps(value))) == 2


def test_uuids_come_back_also_as_keys():
    value = {uuid.UUID(int=5): 1}
    assert unpickle_loads(pickle.dumps(value)) == value


class Evil:
    """Pickles as a call of any function with any arguments."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


ran = []


def touch(*_):
    ran.append(1)


@pytest.mark.parametrize(
    "evil",
    [
        Evil(os.system, "exit 1"),
        Evil(eval, "__import__('os').getpid()"),
        Evil(exec, "1"),
        Evil(getattr, "", "join"),
        Evil(getattr, Evil(getattr, "", "__class__"), "__base__"),
        Evil(operator.attrgetter, "x"),
        Evil(map, print, [1]),
        Evil(__import__, "os"),
        Evil(open, "/dev/null"),
        Evil(touch),
        Evil(pickle.loads, pickle.dumps(1)),
        Evil(np.load, "x"),
        Evil(np.frombuffer, b"x"),
        Evil(torch.load, "x"),
        Evil(torch.storage._load_from_bytes, pickle.dumps(Evil(touch))),
        Evil(type, "X", (), {}),
        np.array([Evil(touch)], dtype=object),
        np.ma.array([1]),
        np.random.default_rng(0),
        builtins.print,
        dict,
        [np.ndarray],
        uuid.UUID,
    ],
    ids=lambda evil: getattr(getattr(evil, "call", (evil,))[0], "__name__", str(type(evil))),
)
@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_pickle_cannot_run_code(evil, protocol):
    data = pickle.dumps(evil, protocol)
    ran.clear()  # pickling itself may call nothing, but be sure
    with pytest.raises(PenstockError):
        unpickle_loads(data)
    assert not ran


def test_the_refusal_names_the_function_and_the_way_out():
    with pytest.raises(UnsafeError, match=r"posix.system.*allow_pickle=True in code"):
        unpickle_loads(pickle.dumps(Evil(os.system, "exit 1")))


def glob(module, name):
    return b"c" + module.encode() + b"\n" + name.encode() + b"\n"


BUILD_ON_A_NAME = [
    glob(module, name) + b"(N}U\x04makec_codecs\nencode\nstb."
    for module, name in (
        ("_codecs", "encode"), ("collections", "OrderedDict"), ("numpy", "ndarray"),
        ("fractions", "Fraction"), ("uuid", "UUID"), ("numpy", "dtype"),
    )
]  # fmt: skip


@pytest.mark.parametrize("data", BUILD_ON_A_NAME, ids=lambda data: data.split(b"(")[0].decode())
def test_a_pickle_cannot_set_attributes_on_what_it_names(data):
    with pytest.raises(REFUSED):
        unpickle_loads(data)
    assert unpickle_loads(pickle.dumps(collections.OrderedDict(a=1), 2)) == {"a": 1}


def test_other_ways_in_are_shut():
    hostile = [
        glob("builtins", "str.join") + b".",  # a dotted name
        b"\x80\x04\x8c\x08builtins\x8c\x08str.join\x93.",
        b"Pposix.system\n.",  # persistent ids
        b"\x82\x01.",  # the extension registry
        b"(iposix\nsystem\n.",  # INST
        b"(" + glob("posix", "system") + b"o.",  # OBJ
    ]
    for data in hostile:
        with pytest.raises(REFUSED):
            unpickle_loads(data)


GREEDY = {
    "bytearray": b"\x80\x04" + glob("builtins", "bytearray") + b"J\x00\x00\x00\x70\x85R.",
    "bytes8": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 40) + b".",
    "bytearray8": b"\x80\x05\x96" + struct.pack("<Q", 1 << 36) + b".",
    "unicode8": b"\x80\x04\x8d" + struct.pack("<Q", 1 << 40) + b".",
    "bytes4": b"\x80\x04B\xff\xff\xff\x7f.",
    "memo": b"\x80\x02]r\xff\xff\xff\x7f.",
    "memo in text": b"]p2000000000\n.",
    "fraction": glob("fractions", "Fraction") + b"(V1e999999999\ntR.",
    "set of range": glob("builtins", "set")
    + glob("builtins", "range")
    + b"J\x00\x00\x00\x70\x85R\x85R.",
    "list of range": glob("builtins", "list")
    + glob("builtins", "range")
    + b"J\x00\x00\x00\x70\x85R\x85R.",
    "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"N.",
    "empty": b"",
    "long digits": b"L" + b"9" * 100000 + b"L\n.",
}


@pytest.mark.parametrize("name", list(GREEDY))
def test_a_pickle_cannot_take_more_memory_than_it_has_bytes(name):
    with measured() as peak, pytest.raises((*REFUSED, EOFError)):
        unpickle_loads(GREEDY[name])
    assert peak[0] < 4 << 20


def test_an_array_cannot_be_larger_than_its_bytes():
    array = pickle.dumps(np.zeros(4, np.uint8), 2)
    wanted = array.replace(b"K\x01K\x04\x85", b"K\x01J\x00\x00\x00\x70\x85")
    assert wanted != array
    with measured() as peak, pytest.raises(DecodingError, match="no uint8 array"):
        unpickle_loads(wanted)
    assert peak[0] < 4 << 20


def test_a_tensor_cannot_reach_beyond_its_storage():
    storage = pickle.dumps(torch.zeros(4).untyped_storage(), 2)
    assert storage
    data = pickle.dumps(torch.zeros(4), 2)
    wanted = data.replace(b"K\x00K\x04\x85", b"K\x00K\x05\x85")
    assert wanted != data
    with pytest.raises(DecodingError, match="beyond its storage"):
        unpickle_loads(wanted)


def test_the_walk_finds_the_end_of_each_pickle():
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        value = {"a": [1, 2.5, "x" * 300, b"y" * 300, 1 << 100, None, (1, 2, 3, 4)], "b": {1}}
        data = pickle.dumps([value] * 300, protocol)
        assert end_of_pickle(data) == len(data)
        assert end_of_pickle(b"xyz" + data + b"more", 3) == len(data) + 3


@given(st.binary(max_size=60))
def test_noise_is_refused_or_read(data):
    with measured() as peak, contextlib.suppress(Exception):
        unpickle_loads(data)
    assert peak[0] < 4 << 20


def test_torch_files_hold_tensors_and_plain_values_only():
    value = {"w": torch.ones(2), "n": [1, "a"]}
    assert torch_loads(pickles.torch_dumps(value))["w"].tolist() == [1, 1]
    stream = io.BytesIO()
    torch.save(Evil(touch), stream)
    ran.clear()
    with pytest.raises(UnsafeError, match="allow_pickle=True in code"):
        torch_loads(stream.getvalue())
    assert not ran
    pickles.torch_any(stream.getvalue())
    assert ran


def test_variables_keep_torch_files_and_pickles_safe(monkeypatch):
    data = pickles.torch_dumps(Evil(touch))
    monkeypatch.setenv("WDS_PYTORCH_WEIGHTS_ONLY", "1")
    with pytest.raises(UnsafeError):
        pickles.torch_any(data)
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(UnsafeError, match="WDS_SECURE"):
        pickles.torch_any(data)
    with pytest.raises(UnsafeError, match="WDS_SECURE"):
        pickles.unpickle_any(pickle.dumps(1))


def test_a_torch_file_with_packed_records_is_refused():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data/0", bytes(1 << 20))
    with pytest.raises(DecodingError, match="larger than the file"):
        torch_loads(stream.getvalue())


def doubled(start, step, times=36):
    """A value, and then again and again something made of the last one twice."""
    made = [step.replace(b"GET", b"h" + bytes([place])) for place in range(times)]
    return start + b"".join(b"\x94" + one for one in made)


def dtype_in_dtype(times=30):
    """The state of a type whose two fields are both the last type."""
    start = glob("numpy", "dtype") + b"(U\x02V0I00\nI01\ntR"
    state = b"(K\x03U\x01|N(U\x01aU\x01bt}(U\x01a(GETK\x00tU\x01b(GETK\x00tuK\x00K\x01K\x10tb"
    return doubled(start, b"0" + start + state, times)


UUID = glob("uuid", "UUID")
ENDLESS = {
    "key of a dict": b"\x80\x04}" + doubled(b")", b"GET\x86") + b"Ns.",
    "keys of a dict": b"\x80\x04}(" + doubled(b")", b"GET\x86") + b"Nu.",
    "member of a set": b"\x80\x04\x8f(" + doubled(b")", b"GET\x86") + b"\x90.",
    "member of a frozenset": b"\x80\x04(" + doubled(b")", b"GET\x86") + b"\x91.",
    "set of a list": glob("builtins", "set") + b"]" + doubled(b")", b"GET\x86") + b"a\x85R.",
    "pairs": glob("collections", "OrderedDict")
    + b"](](" + doubled(b")", b"GET\x86") + b"Nee\x85R.",
    "top of the stack again": b"\x80\x04})" + b"2\x86" * 40 + b"Ns.",
    "tuple of a list": b"\x80\x04}"
    + doubled(b"]Na", b"0](" + (glob("builtins", "tuple") + b"GET\x85R") * 2 + b"e")
    + b"\x940" + glob("builtins", "tuple") + b"h\x24\x85RNs.",
    "uuid": b"\x80\x04}"
    + doubled(b")", b"0" + UUID + b")\x81}U\x03intGETGET\x86sb") + b"Ns.",
    "path": b"\x80\x04}"
    + doubled(b")", b"0" + glob("pathlib", "PurePosixPath")
    + b"U\x01a\x85RN}U\x0e_cached_cpartsGETGET\x86s\x86b")
    + b"Ns.",
    "type in type": b"\x80\x04" + dtype_in_dtype() + b".",
    "nested tuples": b"\x80\x04})" + b"\x85" * 1_000_000 + b"Ns.",
    "nested marks": b"(" * 100_000 + b".",
    "nested lists around a name": glob("collections", "OrderedDict")
    + b")R0" + b"]" * 100_000 + b"a" * 99_999 + b".",
}  # fmt: skip
"""Pickles that would hash, compare or write out for ever, or end the process."""


@pytest.mark.parametrize("name", list(ENDLESS))
def test_a_pickle_that_would_never_end_is_an_error(name):
    read = (
        "import sys; from penstock.codecs import Decoder\n"
        "from penstock.errors import DecodingError\n"
        "try: Decoder()({'__key__': 'a', 'pyd': sys.stdin.buffer.read()})\n"
        "except DecodingError as error: sys.exit(len(str(error)) > 500)\n"
        "sys.exit(2)"
    )
    # In a process of its own: an unpickler that hangs cannot be interrupted, one that crashes
    # takes the tests along.
    done = subprocess.run([sys.executable, "-c", read], input=ENDLESS[name], timeout=60)
    assert done.returncode == 0


def test_many_shared_values_are_read_as_they_are_and_stay_shared():
    pair, record, array = (1, "a"), {"box": (0, 0, 1, 1)}, np.arange(3)
    ids = [uuid.UUID(int=n) for n in range(3)]
    value = [{pair: record, "x": [record], ids[n % 3]: array} for n in range(200)]
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(value, protocol)
        assert walk(data).tangled
        found = unpickle_loads(data)
        assert found[0][pair] is found[199][pair] == record
        assert found[0][ids[0]] is found[3][ids[0]]
        assert list(found[0]) == list(value[0])


def test_plain_lists_of_records_take_the_quick_way():
    records = [
        {"name": str(n), "box": (n, n + 1, 2.5), "tags": [], "none": None} for n in range(900)
    ]
    assert not walk(pickle.dumps(records)).tangled
    arrays = [np.zeros(3) for _ in range(50)]
    assert not walk(pickle.dumps([arrays, torch.zeros(3), records])).tangled
