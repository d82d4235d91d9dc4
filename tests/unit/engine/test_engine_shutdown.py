"""A loader on threads ends when it should: in the loop, in the garbage, in another process."""

from __future__ import annotations

import gc
import os
import pickle
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import penstock as wds
from penstock.engine.executor import Engine
from waiting import wait_for_threads


def slow(n):
    time.sleep(1e-3)
    return n


def loader(data, threads=3, **options):
    return wds.WebLoader(
        data, num_workers=threads, engine="threads", **{"batch_size": None, **options}
    )


def ours():
    return [thread for thread in threading.enumerate() if thread.name.startswith("penstock-")]


def script(body, timeout_s=60, **options):
    """Run a program in a new process; one that hangs fails the test."""
    program = "import penstock as wds, time, threading, os, sys, signal\n" + textwrap.dedent(body)
    return subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        **options,
    )


def test_no_thread_is_left_behind_the_last_item():
    assert list(loader(wds.DataPipeline(range(50)).map(slow))) == list(range(50))
    assert not ours()


def test_an_abandoned_iterator_ends_its_threads():
    stream = iter(loader(wds.DataPipeline(range(10_000)).map(slow)))
    assert [next(stream), next(stream)] == [0, 1]
    assert ours()
    del stream
    wait_for_threads("penstock-")


def test_an_iterator_in_a_cycle_ends_its_threads_when_it_is_collected():
    stream = iter(loader(wds.DataPipeline(range(10_000)).map(slow)))
    next(stream)
    knot = [stream]
    knot.append(knot)
    del stream, knot
    gc.collect()
    wait_for_threads("penstock-")


def test_breaking_out_of_the_loop_ends_the_threads():
    for item in loader(wds.DataPipeline(range(10_000)).map(slow)):
        if item == 3:
            break
    wait_for_threads("penstock-")


def test_a_loader_that_is_never_iterated_has_no_threads():
    loader(wds.DataPipeline(range(9)).map(slow))
    assert not ours()


def test_an_error_comes_to_the_loop_with_its_traceback_and_origin(tmp_path):
    url = str(tmp_path / "a.tar")
    with wds.TarWriter(url) as writer:
        for n in range(30):
            writer.write({"__key__": f"{n:03d}", "cls": n})

    def picky(sample):
        time.sleep(1e-3)
        if sample["__key__"] == "017":
            raise ZeroDivisionError("seventeen")
        return sample

    stream = iter(loader(wds.WebDataset(url, shardshuffle=False).map(picky).to_tuple("cls")))
    with pytest.raises(ZeroDivisionError, match="seventeen") as caught:
        for _ in range(30):
            next(stream)
    assert [entry.name for entry in caught.traceback].count("picky") == 1
    (note,) = caught.value.__notes__
    assert note.startswith("in map: ")
    assert "'017'" in note
    wait_for_threads("penstock-")


def test_what_stands_before_an_error_is_given_first():
    def picky(n):
        time.sleep(1e-3 if n < 20 else 0)
        return 1 // (20 - n) if n >= 20 else n

    stream = iter(loader(wds.DataPipeline(range(40)).map(picky)))
    assert [next(stream) for _ in range(20)] == list(range(20))
    with pytest.raises(ZeroDivisionError):
        next(stream)
    assert list(stream) == []


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_outside_a_transform_comes_to_the_loop(threads, monkeypatch):
    def rows(engine, chunk):
        if chunk.first >= 20:
            raise MemoryError("no block")

    monkeypatch.setattr(Engine, "rows", rows)
    given = []
    with pytest.raises(MemoryError, match="no block"):
        given.extend(loader(wds.DataPipeline(range(100)).map(slow), threads))
    assert given == list(range(len(given)))
    assert 20 <= len(given) < 100
    wait_for_threads("penstock-")


def test_an_error_of_the_source_waits_for_its_turn():
    def source():
        yield from range(10)
        raise OSError("the line is dead")

    stream = iter(loader(wds.DataPipeline(source).map(slow)))
    assert [next(stream) for _ in range(10)] == list(range(10))
    with pytest.raises(OSError, match="dead"):
        next(stream)


def test_an_error_of_the_collation_comes_to_the_loop():
    stream = loader(wds.DataPipeline([[1, 2], [1]]).map(slow), batch_size=2)
    with pytest.raises(RuntimeError, match="equal size"):
        list(stream)
    wait_for_threads("penstock-")


def test_a_transform_that_drops_samples_drops_them():
    data = wds.DataPipeline(range(20)).map(slow).map(lambda n: n if n % 3 else None)
    assert list(loader(data)) == [n for n in range(20) if n % 3]


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_leaving_the_program_in_a_transform_leaves_the_loop(kind):
    def leave(n):
        time.sleep(1e-3)
        if n == 12:
            raise kind(3)
        return n

    seen = []
    with pytest.raises(kind):
        for n in loader(wds.DataPipeline(range(50)).map(leave)):
            seen.append(n)  # noqa: PERF402 - what came before counts
    assert seen == list(range(12))
    wait_for_threads("penstock-")


def test_sys_exit_in_a_transform_is_the_exit_status_of_the_program():
    done = script("""
        def leave(n):
            time.sleep(1e-3)
            sys.exit(7) if n == 30 else None
            return n
        for n in wds.WebLoader(wds.DataPipeline(range(99)).map(leave), num_workers=2,
                               batch_size=None, engine="threads"):
            pass
    """)
    assert done.returncode == 7, done.stderr


def test_a_program_ends_while_transforms_sleep():
    done = script("""
        def sleepy(n):
            time.sleep(0.001 if n < 20 else 1000)
            return n
        stream = iter(wds.WebLoader(wds.DataPipeline(range(99)).map(sleepy), num_workers=2,
                                    batch_size=None, engine="threads"))
        print(next(stream), next(stream))
    """)
    assert (done.returncode, done.stdout) == (0, "0 1\n"), done.stderr


def test_a_program_that_ends_in_the_middle_of_an_epoch_says_nothing():
    done = script("""
        stream = iter(wds.WebLoader(wds.DataPipeline(range(9999)).map(str), num_workers=2,
                                    batch_size=None, engine="threads"))
        print(next(stream))
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")


def test_an_interrupt_from_the_keyboard_ends_a_loop_that_waits():
    done = script("""
        import _thread
        def sleepy(n):
            if n >= 20:
                waiting.set()
                time.sleep(1000)
            return n
        waiting = threading.Event()
        def press():
            waiting.wait(30)
            os.kill(os.getpid(), signal.SIGINT)
        # A background job of a shell is started with SIGINT ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        threading.Thread(target=press, daemon=True).start()
        try:
            list(wds.WebLoader(wds.DataPipeline(range(99)).map(sleepy), num_workers=2,
                               batch_size=None, engine="threads"))
        except KeyboardInterrupt:
            print("interrupted")
    """)
    assert done.stdout == "interrupted\n", done.stderr


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_in_the_middle_has_a_loader_of_its_own():
    done = script("""
        def slow(n):
            time.sleep(0.001)
            return n
        def make():
            return wds.WebLoader(wds.DataPipeline(range(200)).map(slow), num_workers=3,
                                 batch_size=None, engine="threads")
        loader = make()
        stream = iter(loader)
        begun = [next(stream) for _ in range(5)]
        child = os.fork()
        if child == 0:
            try:
                next(stream)
            except wds.PipelineError as error:
                assert "parent process" in str(error)
                del stream
                os._exit(0 if list(make()) == list(range(200)) else 1)
            os._exit(2)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), begun + list(stream) == list(range(200)))
    """)
    assert done.stdout == "0 True\n", done.stderr


def test_two_iterators_at_a_time_do_not_disturb_each_other():
    made = loader(wds.DataPipeline(range(60)).map(slow))
    pairs = list(zip(iter(made), iter(made)))
    assert pairs == [(n, n) for n in range(60)]


def test_a_loader_inside_of_a_loader():
    inner = loader(wds.DataPipeline(range(40)).map(slow), 2)
    assert list(loader(wds.DataPipeline(inner).map(slow), 2)) == list(range(40))
    wait_for_threads("penstock-")


def test_a_loader_travels_to_another_process_and_runs_there():
    made = loader(wds.DataPipeline(list(range(30))).map(slow).listed(4))
    next(iter(made))
    sent = pickle.loads(pickle.dumps(made))
    assert list(sent) == list(wds.DataPipeline(list(range(30))).listed(4))


def test_a_thread_that_iterates_may_be_any():
    made, found = loader(wds.DataPipeline(range(30)).map(slow)), []
    thread = threading.Thread(target=lambda: found.extend(made))
    thread.start()
    thread.join(20)
    assert found == list(range(30))


def test_a_loop_that_is_left_at_any_moment_ends_its_threads():
    for moment in range(60):
        stream = iter(loader(wds.DataPipeline(range(10_000)).map(slow).listed(2), 2))
        next(stream)
        time.sleep(moment * 1e-4)
        stream.close()
    wait_for_threads("penstock-")


def test_torch_is_imported_before_the_threads_which_might_do_it_all_at_once():
    pytest.importorskip("torch")
    code = """
import sys
import penstock as wds

def found(n):
    return "torch.utils.data" in sys.modules

assert "torch" not in sys.modules
data = wds.DataPipeline(list(range(40))).map(found)
assert all(wds.WebLoader(data, batch_size=None, num_workers=4, engine="threads"))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
