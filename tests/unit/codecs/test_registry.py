from __future__ import annotations

import subprocess
import sys

import pytest

from penstock.codecs import DECODERS, ENCODERS, CodecTable
from penstock.codecs.registry import ANY_PICKLE


def test_every_entry_names_a_function_that_is_there():
    for table in (DECODERS, ENCODERS, ANY_PICKLE):
        for extension in table:
            assert callable(table[extension]), extension


def test_the_documented_extensions_are_decoded_and_no_others():
    documented = (
        "txt text transcript cls cls2 index inx id json jsn pyd pickle pkl pth ten tb mp msg"
        " npy npz cbor"
    )
    assert set(DECODERS) == set(documented.split())


def test_the_documented_extensions_are_encoded():
    documented = (
        "cls cls2 class count index inx id txt text transcript html htm pyd pickle pkl pth npy npz"
        " ten tenbin tb json jsn mp msgpack msg cbor jpg jpeg img image png ppm pgm pbm tiff tif"
        " webp"
    )
    assert set(documented.split()) <= set(ENCODERS)


def test_a_table_can_be_spread_into_a_dict_of_functions():
    assert {**CodecTable({"json": "records:json_loads"})}["json"](b"[1]") == [1]


def test_an_extension_can_be_added_changed_and_taken_away():
    table = CodecTable({"a": "records:json_loads"})
    table["b"] = len
    assert table["b"](b"123") == 3
    del table["b"]
    assert list(table) == ["a"]
    with pytest.raises(KeyError):
        table["b"]


def test_importing_the_codecs_loads_neither_numpy_nor_torch():
    code = "import penstock.codecs, sys; print({'numpy', 'torch', 'PIL'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
