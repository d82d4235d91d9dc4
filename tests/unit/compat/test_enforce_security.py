"""``wds.utils.enforce_security``: refuses what ``WDS_SECURE`` refuses, from code."""

from __future__ import annotations

import subprocess
import sys

import pytest

import penstock as wds


@pytest.fixture
def insecure(monkeypatch):
    monkeypatch.delenv("WDS_SECURE", raising=False)
    yield
    wds.utils.enforce_security = False


@pytest.mark.usefixtures("insecure")
def test_commands_are_refused_while_it_is_set():
    assert not wds.utils.enforce_security
    wds.utils.enforce_security = True
    with pytest.raises(ValueError, match="enforce_security"):
        wds.gopen("pipe:echo ran")
    with pytest.raises(ValueError, match="WDS_SECURE"):
        wds.WebDataset("x.tar").decode(allow_pickle=True)
    wds.utils.enforce_security = False
    with wds.gopen("pipe:echo ran") as stream:
        assert stream.read() == b"ran\n"


@pytest.mark.usefixtures("insecure")
def test_processes_started_later_are_as_strict():
    wds.utils.enforce_security = True
    code = "import penstock; penstock.gopen('pipe:echo ran').read()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "UnsafeError" in done.stderr


def test_code_cannot_switch_off_what_the_environment_demands(monkeypatch):
    monkeypatch.setenv("WDS_SECURE", "1")
    wds.utils.enforce_security = False
    assert wds.utils.enforce_security
    with pytest.raises(ValueError, match="WDS_SECURE"):
        wds.gopen("pipe:echo ran")


@pytest.mark.usefixtures("insecure")
def test_it_can_be_imported_by_name():
    from penstock.utils import enforce_security

    assert enforce_security is False
