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
import uuid
import zipfile

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from penstock.codecs import Decoder
from penstock.codecs.safe_pickle import unpickler as pickles
from penstock.codecs.safe_pickle.interpreter import PickleReader
from penstock.codecs.safe_pickle.unpickler import torch_loads, unpickle_loads
from penstock.errors import DecodingError, PenstockError, UnsafeError
from penstock.testing.codecs import measure_memory

REFUSED = (PenstockError, pickle.UnpicklingError, TypeError, ValueError, KeyError)

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
    | st.complex_numbers(allow_nan=False) | st.dates() | st.datetimes() | st.times()
    | st.timedeltas() | st.decimals(allow_nan=False) | st.fractions() | st.uuids()
)  # fmt: skip
keys = st.recursive(
    scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner), max_leaves=3
)
values = st.recursive(
    scalars | st.frozensets(keys) | st.builds(bytearray, st.binary()),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.tuples(inner, inner, inner, inner)
        | st.dictionaries(keys, inner)
        | st.sets(keys)
        | st.builds(collections.deque, st.lists(inner))
        | st.builds(collections.OrderedDict, st.dictionaries(keys, inner))
        | st.dictionaries(keys, inner).map(lambda items: collections.defaultdict(list, items))
        | inner.map(lambda value: [value, value])
    ),
    max_leaves=10,
)
protocols = st.integers(0, pickle.HIGHEST_PROTOCOL)


@given(values, protocols)
def test_any_plain_value_is_what_pickle_reads(value, protocol):
    data = pickle.dumps(value, protocol)
    found, wanted = unpickle_loads(data), pickle.loads(data)
    assert found == wanted
    assert described(found) == described(wanted)


def described(value):
    """A value with the types of all its parts; sets in an order of their own."""
    kind = type(value).__name__
    if isinstance(value, dict):
        return kind, [(described(key), described(part)) for key, part in value.items()]
    if isinstance(value, (set, frozenset)):
        return kind, sorted(map(repr, map(described, value)))
    if isinstance(value, (list, tuple, collections.deque)):
        return kind, [described(part) for part in value]
    return kind, repr(value)


@given(st.lists(values, max_size=3), st.booleans())
def test_any_plain_value_in_a_torch_file_is_what_pickle_reads(value, zipped):
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=zipped)
    wanted = pickle.loads(pickle.dumps(value, 2))  # torch's protocol
    assert described(torch_loads(stream.getvalue())) == described(wanted)


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
    with measure_memory() as peak, contextlib.suppress(PenstockError):
        unpickle_loads(GREEDY[name])
    assert peak[0] < 4 << 20


def test_what_is_no_pickle_is_a_decoding_error():
    for data in (b"", b"N", b".", b"]a.", b"K\x01\x86.", b"\x80\x05\x96" + bytes(8), b"h\x05."):
        with pytest.raises(DecodingError, match="pickle"):
            unpickle_loads(data)


def test_an_array_cannot_be_larger_than_its_bytes():
    array = pickle.dumps(np.zeros(4, np.uint8), 2)
    wanted = array.replace(b"K\x01K\x04\x85", b"K\x01J\x00\x00\x00\x70\x85")
    assert wanted != array
    with measure_memory() as peak, pytest.raises(DecodingError, match="no uint8 array"):
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


def test_the_reader_finds_the_end_of_each_pickle():
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        value = {"a": [1, 2.5, "x" * 300, b"y" * 300, 1 << 100, None, (1, 2, 3, 4)], "b": {1}}
        data = pickle.dumps([value] * 300, protocol)
        reader = PickleReader(b"xyz" + data + b"more", pickles.find, at=3)
        assert reader.load() == [value] * 300
        assert reader.at == len(data) + 3


@given(st.binary(max_size=60))
def test_noise_is_refused_or_read(data):
    with measure_memory() as peak, contextlib.suppress(Exception):
        unpickle_loads(data)
    assert peak[0] < 4 << 20


shared = torch.arange(10)
TORCH_VALUES = {
    "view": torch.arange(6.0).reshape(2, 3).T,
    "part of a storage": shared[3:7:2],
    "expanded": torch.ones(1).expand(5, 4),
    "empty": torch.zeros(0, 3),
    "number": torch.tensor(3.5),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "uint16": torch.ones(3, dtype=torch.uint16),
    "bool": torch.tensor([True, False]),
    "complex": torch.tensor([1 + 2j]),
    "with gradient": torch.ones(2, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.ones(2)),
}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "older format"])
@pytest.mark.parametrize("name", list(TORCH_VALUES))
def test_tensors_of_a_torch_file_are_what_torch_reads(name, zipped):
    stream = io.BytesIO()
    torch.save(TORCH_VALUES[name], stream, _use_new_zipfile_serialization=zipped)
    found, wanted = torch_loads(stream.getvalue()), TORCH_VALUES[name]
    assert type(found) is type(wanted)
    assert (found.dtype, found.shape, found.stride(), found.requires_grad) == (
        wanted.dtype, wanted.shape, wanted.stride(), wanted.requires_grad,
    )  # fmt: skip
    assert torch.equal(found, wanted)
    assert not found._is_view()


def test_tensors_of_a_torch_file_share_memory_as_they_did():
    found = torch_loads(pickles.torch_dumps([shared, shared[2:5]]))
    found[0][3] = 77
    assert found[1].tolist() == [2, 77, 4]


def test_the_weights_of_a_model_come_back_with_their_versions():
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    found = torch_loads(pickles.torch_dumps(model.state_dict()))
    assert found._metadata == model.state_dict()._metadata
    model.load_state_dict(found)


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_tensors_of_a_torch_file_come_back(layout):
    tensor = torch.eye(3).to_sparse(layout=layout)
    found = torch_loads(pickles.torch_dumps(tensor))
    assert found.layout == layout
    assert torch.equal(found.to_dense(), tensor.to_dense())


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "older format"])
def test_arrays_in_a_torch_file_come_back(zipped):
    value = {"x": np.arange(6.0).reshape(2, 3), "n": np.float32(2.5), "t": torch.ones(2)}
    stream = io.BytesIO()
    torch.save(value, stream, _use_new_zipfile_serialization=zipped)
    found = Decoder()({"__key__": "a", "pth": stream.getvalue()})["pth"]
    assert np.array_equal(found["x"], value["x"])
    assert found["n"] == value["n"]
    assert torch.equal(found["t"], value["t"])


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
    with pytest.raises(DecodingError, match="compressed, or larger than the file"):
        torch_loads(stream.getvalue())


def test_many_shared_values_are_read_as_they_are_and_stay_shared():
    pair, record, array = (1, "a"), {"box": (0, 0, 1, 1)}, np.arange(3)
    ids = [uuid.UUID(int=n) for n in range(3)]
    value = [{pair: record, "x": [record], ids[n % 3]: array} for n in range(200)]
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps(value, protocol)
        found = unpickle_loads(data)
        assert found[0][pair] is found[199][pair] == record
        assert found[0][ids[0]] is found[3][ids[0]]
        assert list(found[0]) == list(value[0])
