"""A fork waits for threads that may hold a lock of the TLS library."""

from __future__ import annotations

import os
import threading
import time

import pytest

from penstock.storage.client import fork_safety as forks
from penstock.storage.client.response import TransientError
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.client.store import Request
from penstock.storage.client.transport import send
from waiting import wait_until

pytestmark = pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="tells no threads")


def fork_and_end():
    """Fork; the status of the child, which can enter the gate at once."""
    child = os.fork()
    if child == 0:
        with forks.block_forks():
            os._exit(0)
    return os.waitpid(child, 0)[1]


class Lingers:
    """Keeps its thread in the system for a while when Python is done with it."""

    def __del__(self):
        time.sleep(0.3)


def test_a_fork_waits_for_a_thread_that_is_inside():
    inside, left = threading.Event(), []

    def stay():
        with forks.block_forks():
            inside.set()
            time.sleep(0.2)
            left.append(True)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    assert fork_and_end() == 0
    assert left
    thread.join()


def enter():
    with forks.block_forks():
        pass


def send_without_tls():
    """Make a request, which may be signed; nothing answers."""
    with pytest.raises(TransientError):
        send(Request("GET", "http://127.0.0.1:1/x"), patience=RetryPolicy())


@pytest.mark.parametrize("use", [enter, send_without_tls])
def test_a_fork_waits_for_a_thread_that_has_ended_until_the_system_has_forgotten_it(use):
    of_thread, numbers = threading.local(), []

    def use_and_end():
        use()
        of_thread.lingers = Lingers()
        numbers.append(threading.get_native_id())

    thread = threading.Thread(target=use_and_end)
    thread.start()
    wait_until(lambda: numbers and thread not in threading.enumerate(), "the thread ends")
    assert os.path.exists(f"/proc/self/task/{numbers[0]}")
    assert fork_and_end() == 0
    assert not os.path.exists(f"/proc/self/task/{numbers[0]}")


def test_a_fork_does_not_wait_for_ever(monkeypatch):
    monkeypatch.setattr(forks, "LONGEST_WAIT_S", 0.1)
    inside, end = threading.Event(), threading.Event()

    def stay():
        with forks.block_forks():
            inside.set()
            end.wait(30)

    thread = threading.Thread(target=stay)
    thread.start()
    inside.wait()
    begin = time.monotonic()
    assert fork_and_end() == 0
    assert time.monotonic() - begin < 5
    end.set()
    thread.join()


def test_nobody_enters_while_a_fork_is_under_way():
    gate = forks.Gate()
    entered = threading.Event()

    def enter():
        with gate.block_forks():
            entered.set()

    gate.shut()
    thread = threading.Thread(target=enter)
    thread.start()
    assert not entered.wait(0.1)
    gate.open()
    assert entered.wait(10)
    thread.join()


def test_threads_that_are_gone_are_not_remembered(monkeypatch):
    monkeypatch.setattr(forks, "_MOST_KNOWN", 4)
    gate = forks.Gate()

    def pass_through():
        with gate.block_forks():
            pass

    for _ in range(20):
        thread = threading.Thread(target=pass_through)
        thread.start()
        thread.join()
    assert len(gate._used_by) < 20
