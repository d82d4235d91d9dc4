from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.errors import StorageError, UnsafeError
from penstock.storage import gopen, open_url
from penstock.storage.local.pipes import PipeReader
from waiting import is_running, wait_until


def read_all(stream, size=1000):
    return b"".join(iter(lambda: stream.read(size), b""))


def children() -> set[int]:
    """The processes that this one has started and not yet waited for, zombies too."""
    found = set()
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid, parent = status.parent.name, status.read_text().rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.add(int(pid))
    return found


@pytest.fixture(autouse=True)
def _no_process_is_left():
    before = children()
    yield
    gc.collect()
    assert children() <= before


@pytest.mark.parametrize("opener", [open_url, gopen])
@pytest.mark.parametrize("count", [0, 512, 100_000])
def test_a_command_that_fails_at_any_point_is_always_an_error(opener, count):
    for _ in range(20):
        with opener(f"pipe:head -c {count} /dev/zero; exit 3") as stream:
            with pytest.raises(StorageError, match=f"status 3.* byte {count}\\)"):
                read_all(stream)
            with pytest.raises(StorageError, match="status 3"):
                stream.read(1)


def test_the_bytes_before_a_failure_are_given_first():
    with open_url("pipe:echo hello; exit 3") as stream:
        assert stream.read(100) == b"hello\n"
        with pytest.raises(StorageError, match="pipe:echo hello; exit 3, byte 6"):
            stream.read(100)


def test_a_late_failure_is_waited_for():
    with (
        open_url("pipe:echo hello; exec >&-; sleep 0.2; exit 3") as stream,
        pytest.raises(StorageError, match="status 3"),
    ):
        read_all(stream)


def test_a_command_that_was_killed_is_an_error():
    with (
        open_url("pipe:echo x; kill -9 $$") as stream,
        pytest.raises(StorageError, match="SIGKILL"),
    ):
        read_all(stream)


def test_a_command_that_does_not_exist_is_an_error():
    url = "pipe:no-such-command-anywhere 2> /dev/null"
    with open_url(url) as stream, pytest.raises(StorageError, match="status 127"):
        stream.read()


def test_statuses_can_be_ignored():
    for status in (3, 141):
        with open_url(f"pipe:echo x; exit {status}", ignore_status=[3]) as stream:
            assert stream.read() == b"x\n"


def test_closing_early_is_quiet_and_leaves_no_process():
    before = children()
    stream = open_url("pipe:echo $$; (sleep 1000 & echo $!; wait) | cat; exit 3")
    lines = b""
    while lines.count(b"\n") < 2:
        lines += stream.read(100)
    shell, sleeper = map(int, lines.split())
    assert is_running(sleeper)
    stream.close()
    stream.close()
    assert not is_running(shell)
    assert children() == before  # no zombie either
    wait_until(lambda: not is_running(sleeper), "the orphan is killed")


def test_a_command_that_will_not_listen_is_ended_by_force(monkeypatch):
    monkeypatch.setattr("penstock.storage.local.pipes._GRACE_S", 0.1)
    stream = open_url("pipe:trap '' TERM PIPE; echo $$; while :; do sleep 0.05; done")
    shell = int(stream.read(100))
    stream.close()
    assert not is_running(shell)


def test_a_stream_that_is_dropped_leaves_no_process():
    for opener in (open_url, gopen):
        stream = opener("pipe:cat /dev/zero")
        stream.read(10)
        before = children()
        del stream
        gc.collect()
        assert len(children()) == len(before) - 1


def test_a_command_that_does_not_exit_is_an_error_after_the_timeout():
    with (
        open_url("pipe:echo $$; exec >&-; sleep 1000", timeout=0.1) as stream,
        pytest.raises(StorageError, match=r"did not exit within 0\.1 s"),
    ):
        read_all(stream)


def test_without_process_descriptors_it_works_as_well(monkeypatch):
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    with open_url("pipe:echo x; exit 3") as stream, pytest.raises(StorageError, match="status 3"):
        stream.read()
    stream = open_url("pipe:cat /dev/zero")
    stream.read(1)
    stream.close()
    with (
        open_url("pipe:exec >&-; sleep 1000", timeout=0.1) as stream,
        pytest.raises(StorageError, match="did not exit"),
    ):
        stream.read()


def test_a_forked_process_does_not_end_the_command():
    stream = open_url("pipe:echo a; sleep 0.3; echo b")
    assert stream.read(100) == b"a\n"
    child = os.fork()
    if child == 0:
        stream.close()
        os._exit(0)
    os.waitpid(child, 0)
    assert stream.read() == b"b\n"
    stream.close()


def test_commands_are_refused_when_secure(monkeypatch):
    monkeypatch.setenv("WDS_SECURE", "1")
    for mode in ("rb", "wb"):
        with pytest.raises(UnsafeError, match="pipe:echo x"):
            open_url("pipe:echo x", mode)


def test_a_command_that_cannot_be_run_is_an_error():
    with pytest.raises(StorageError, match="cannot be run"):
        PipeReader("pipe:" + "x" * 3_000_000)


def test_closing_a_writer_waits_for_the_command(tmp_path):
    with open_url(f"pipe:sleep 0.2; cat > {tmp_path}/a", "wb") as stream:
        stream.write(b"hello")
    assert (tmp_path / "a").read_bytes() == b"hello"


def test_a_writing_command_that_fails_is_always_an_error():
    for _ in range(20):
        stream = open_url("pipe:cat > /dev/null; exit 3", "wb")
        stream.write(b"hello")
        with pytest.raises(StorageError, match=r"status 3.*byte 5"):
            stream.close()
        stream.close()


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("exit 3", "status 3"),
        ("exit 0", "stopped reading"),
        ("exec <&-; sleep 9", "stopped reading"),
    ],
)
def test_a_command_that_stops_reading_is_an_error(monkeypatch, command, reason):
    monkeypatch.setattr("penstock.storage.local.pipes._GRACE_S", 0.2)
    with (
        pytest.raises(StorageError, match=reason),
        open_url(f"pipe:{command}", "wb", buffer_bytes=0) as stream,
    ):
        for _ in range(100):
            stream.write(bytes(1_000_000))


def test_an_aborted_command_does_not_see_a_good_end(tmp_path):
    url = f"pipe:cat > {tmp_path}/part && mv {tmp_path}/part {tmp_path}/done"
    with pytest.raises(KeyError), open_url(url, "wb") as stream:
        stream.write(b"hello")
        stream.flush()
        raise KeyError
    assert not (tmp_path / "done").exists()


def test_an_interrupt_from_the_keyboard_ends_the_command():
    # A background job of a shell is started with SIGINT ignored.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), open_url("pipe:cat /dev/zero") as stream:
            stream.read(1)
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


INTERRUPTED_WHILE_IT_STARTS = """
import os, signal, subprocess
from penstock.storage import open_url

popen = subprocess.Popen

class Interrupted(popen):
    def _execute_child(self, *arguments, **keywords):
        super()._execute_child(*arguments, **keywords)
        os.kill(os.getpid(), signal.SIGINT)  # the command runs, the caller does not have it yet

subprocess.Popen = Interrupted
signal.signal(signal.SIGINT, signal.default_int_handler)
try:
    open_url("pipe:sleep 600")
except KeyboardInterrupt:
    pass
print(open(f"/proc/self/task/{os.getpid()}/children").read())
"""


def test_an_interrupt_while_a_command_starts_ends_it():
    program = [sys.executable, "-c", INTERRUPTED_WHILE_IT_STARTS]
    printed = subprocess.run(program, check=True, capture_output=True, text=True, timeout=60).stdout
    assert printed.split() == []
