from __future__ import annotations

import logging
from pathlib import Path

import pytest

from penstock.errors import MissingPackage, StorageError
from penstock.storage import SCHEMES, Opener, gopen, gopen_schemes, open_url


def test_an_unknown_scheme_is_an_error_that_names_it_and_a_way_out():
    with pytest.raises(StorageError, match=r"'nowhere' \(known: local paths, .*pipe.*\).*pipe:"):
        open_url("nowhere://x/a.tar")


def test_the_users_own_opener_wins(monkeypatch):
    calls = []
    monkeypatch.setitem(gopen_schemes, "pipe", lambda *args, **kw: calls.append((args, kw)))
    open_url("pipe:x", "wb", colour=1)
    gopen("pipe:y")
    gopen("pipe:z", bufsize=7)
    assert calls == [
        (("pipe:x", "wb", 8192), {"colour": 1}),
        (("pipe:y", "rb", 8192), {}),
        (("pipe:z", "rb", 7), {}),
    ]


def test_the_users_default_opener_gets_unknown_schemes(monkeypatch):
    monkeypatch.setitem(gopen_schemes, "__default__", lambda url, mode, bufsize: (url, mode))
    assert open_url("nowhere://x") == ("nowhere://x", "rb")


def test_a_missing_package_is_told_with_its_extra(monkeypatch):
    opener = Opener("penstock_has_no_such_module:open", "somepackage", "some")
    monkeypatch.setitem(SCHEMES, "some", opener)
    with pytest.raises(
        MissingPackage, match=r"reading some:// .*'somepackage'.*pip install .*\[some\]"
    ):
        open_url("some://x")


def test_the_url_is_rewritten_first(monkeypatch, tmp_path):
    (tmp_path / "a.tar").write_bytes(b"hello")
    monkeypatch.setenv("WDS_REWRITE", f"s3://bucket={tmp_path}")
    with open_url("s3://bucket/a.tar") as stream:
        assert stream.read() == b"hello"


def test_an_option_that_the_opener_does_not_have_is_refused(tmp_path):
    with pytest.raises(TypeError, match="colour"):
        open_url(str(tmp_path / "a.tar"), "wb", colour=1)


def test_opening_is_logged_on_demand(monkeypatch, caplog):
    caplog.set_level(logging.INFO, "penstock.storage")
    open_url("/dev/null").close()
    assert not caplog.messages
    monkeypatch.setenv("GOPEN_VERBOSE", "1")
    open_url("/dev/null").close()
    assert caplog.messages == ["open /dev/null (rb)"]


def test_paths_are_opened_as_files_whatever_their_name(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    Path("run:1.tar").write_bytes(b"hello")
    with open_url(Path("run:1.tar")) as stream:
        assert stream.read() == b"hello"


def test_gopen_reads_as_much_as_was_asked(monkeypatch, tmp_path):
    (tmp_path / "a").write_bytes(bytes(100_000))
    monkeypatch.setenv("GOPEN_BUFFER", "512")
    with gopen(tmp_path / "a") as stream:
        assert len(stream.read(90_000)) == 90_000
        assert stream.size_bytes == 100_000
        assert stream.read_range(99_990, 100) == bytes(10)


@pytest.mark.parametrize("name", ["a\0b.tar", "\ud800.tar"])
@pytest.mark.parametrize("mode", ["rb", "wb"])
def test_a_name_that_no_file_can_have_is_an_error_of_the_storage(name, mode):
    with pytest.raises(StorageError, match="no file can have the name"):
        open_url(name, mode)
