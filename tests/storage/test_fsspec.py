"""Schemes that only fsspec knows; its file system in memory stands for all of them."""

from __future__ import annotations

import builtins

import pytest
from folders import write_list_and_read
from servers_clouds import fresh_name, make_shard

from penstock.errors import StorageError
from penstock.storage import gopen_schemes, open_url
from penstock.storage.objects.fsspec import list_fsspec
from penstock.testing.openers import OpenerContract

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def memory():
    """The file system in memory, empty before and after."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


class TestFsspec(OpenerContract):
    seekable = True

    @pytest.fixture(autouse=True)
    def _memory(self, memory):
        self.memory = memory

    def make_url(self, tmp_path, data):
        name = f"/{fresh_name()}/a.tar"
        self.memory.pipe_file(name, data)
        return f"memory:/{name}"

    def missing_url(self, tmp_path):
        return "memory://nothing/here.tar"

    def target_url(self, tmp_path):
        return f"memory://{fresh_name()}/out.tar"


def test_a_data_set_is_written_listed_and_read(memory):
    write_list_and_read("memory://set", list_fsspec)


def test_nothing_but_the_file_is_left_behind(memory):
    with open_url("memory://a.tar", "wb") as stream:
        stream.write(b"hello")
    open_url("memory://b.tar", "wb").abort()
    assert list(memory.store) == ["/a.tar"]


def test_a_file_that_ends_before_its_size_is_an_error(memory, monkeypatch):
    memory.pipe_file("/a.tar", make_shard())
    stream = open_url("memory://a.tar")
    stream.size_bytes += 1
    with pytest.raises(StorageError, match=r"ends too early.*memory://a.tar, byte \d+"):
        stream.read()


def test_a_users_own_opener_comes_before_fsspec(memory, monkeypatch):
    monkeypatch.setitem(gopen_schemes, "memory", lambda url, mode, size: "mine")
    assert open_url("memory://a.tar") == "mine"


def test_without_fsspec_the_scheme_has_no_opener(monkeypatch):
    real = builtins.__import__

    def without(name, *values, **options):
        if name.startswith("fsspec"):
            raise ImportError(name)
        return real(name, *values, **options)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(StorageError, match="no opener for 'memory'"):
        open_url("memory://a.tar")


def test_a_scheme_that_nobody_knows_has_no_opener():
    with pytest.raises(StorageError, match="no opener for 'nosuch'"):
        open_url("nosuch://a.tar")


def test_errors_of_a_file_system_do_not_show_a_password(monkeypatch, memory):
    def fail(*values, **options):
        raise RuntimeError("the server said no")

    monkeypatch.setattr(type(memory), "open", fail)
    with pytest.raises(StorageError, match="the server said no") as info:
        open_url("memory://me:s3cret@host/a.tar")
    assert "s3cret" not in str(info.value)
