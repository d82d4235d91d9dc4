from __future__ import annotations

import io
import subprocess
import sys

import pytest

from penstock.errors import StorageError
from penstock.storage import gopen, open_url

COPY = (
    "import sys\n"
    "from penstock.storage import open_url\n"
    "with open_url('-') as source, open_url('-', 'wb') as target:\n"
    "    while piece := source.read(1000):\n"
    "        target.write(piece)\n"
    "assert not sys.stdin.buffer.closed and not sys.stdout.buffer.closed\n"
    "print('after')\n"
)


def test_standard_input_and_output_carry_bytes_and_stay_open():
    data = bytes(range(256)) * 500
    run = subprocess.run([sys.executable, "-c", COPY], input=data, capture_output=True, check=True)
    assert run.stdout == data + b"after\n"


def test_a_second_reader_goes_on_where_the_first_stopped(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"abcdef"))))
    for opener in (open_url, gopen):
        with opener("-") as stream:
            assert len(stream.read(3)) == 3
    assert sys.stdin.buffer.read() == b""


def test_standard_streams_without_bytes_are_an_error(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(StorageError, match="standard input"):
        open_url("-")
    with pytest.raises(StorageError, match="standard output"):
        open_url("-", "wb")
