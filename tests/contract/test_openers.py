"""Every opener keeps the same promises."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

from penstock.storage import SCHEMES
from penstock.testing.openers import OpenerContract


class TestLocalPath(OpenerContract):
    schemes = ("",)
    seekable = True

    def make_url(self, tmp_path, data):
        (tmp_path / "a b%20#?.tar").write_bytes(data)
        return str(tmp_path / "a b%20#?.tar")

    def missing_url(self, tmp_path):
        return str(tmp_path / "missing.tar")

    def target_url(self, tmp_path):
        return str(tmp_path / "out.tar")


class TestFileUrl(OpenerContract):
    schemes = ("file",)
    seekable = True

    def make_url(self, tmp_path, data):
        (tmp_path / "a b.tar").write_bytes(data)
        return f"file://{tmp_path}/a%20b.tar"

    def missing_url(self, tmp_path):
        return f"file:{tmp_path}/missing.tar"

    def target_url(self, tmp_path):
        return f"file:{tmp_path}/out%20put.tar"


class TestPipe(OpenerContract):
    schemes = ("pipe",)
    atomic = False

    def make_url(self, tmp_path, data):
        (tmp_path / "a.tar").write_bytes(data)
        return f"pipe:cat {tmp_path}/a.tar"

    def missing_url(self, tmp_path):
        return f"pipe:cat {tmp_path}/missing.tar 2> /dev/null"

    def target_url(self, tmp_path):
        return f"pipe:cat > {tmp_path}/out.tar"

    def stored(self, tmp_path, url):
        path = tmp_path / "out.tar"
        return path.read_bytes() if path.exists() else None


class TestStandard(OpenerContract):
    schemes = ("-",)
    atomic = False

    @pytest.fixture(autouse=True)
    def _keep_standard_streams(self, monkeypatch):
        self.replace = monkeypatch.setattr

    def make_url(self, tmp_path, data):
        source = io.BufferedReader(io.BytesIO(data))
        self.replace(sys, "stdin", io.TextIOWrapper(source))
        return "-"

    def missing_url(self, tmp_path):
        self.replace(sys, "stdin", None)
        return "-"

    def target_url(self, tmp_path):
        self.target = io.BytesIO()
        self.replace(sys, "stdout", io.TextIOWrapper(self.target))
        return "-"

    def stored(self, tmp_path, url):
        return self.target.getvalue()


def test_every_scheme_has_a_contract_case():
    covered = {scheme for case in OpenerContract.__subclasses__() for scheme in case.schemes}
    # The cases of network storage stand beside the servers that they need.
    for file in (Path(__file__).parent.parent / "storage").glob("test_*.py"):
        for schemes in re.findall(r"^    schemes = \((.*)\)$", file.read_text(), re.MULTILINE):
            covered.update(re.findall(r'"([^"]*)"', schemes))
    assert covered >= set(SCHEMES)
