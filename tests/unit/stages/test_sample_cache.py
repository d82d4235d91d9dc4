from __future__ import annotations

import dataclasses
import multiprocessing
import os
import pickle
import random
import re
import signal
import sqlite3
import struct
import sys
from itertools import islice
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.context import Context
from penstock.errors import (
    MissingPackage,
    PenstockError,
    PipelineError,
    StorageError,
    UnsafeError,
    WriteError,
)
from penstock.pipeline.data_pipeline import DataPipeline
from penstock.stages.repeat import repeat
from penstock.stages.run import as_run, start
from penstock.stages.sample_cache import Cached, DBCache, LMDBCached

fork = multiprocessing.get_context("fork")


def samples(count: int, prefix: str = "s") -> list[dict[str, Any]]:
    return [{"__key__": f"{prefix}{n}", "cls": n, "npy": numpy.arange(n)} for n in range(count)]


def classes(items: Any) -> list[int]:
    return [item["cls"] for item in items]


def no_source() -> Any:
    raise RuntimeError("the source was asked")
    yield


def each_kind(folder: Any) -> list[Any]:
    return [Cached(), LMDBCached(folder / "lmdb"), DBCache(folder / "x.db", 10_000)]


def make_kind(kind: str, folder: Any) -> Any:
    if kind == "lmdb":
        pytest.importorskip("lmdb")
    return each_kind(folder)[["memory", "lmdb", "sqlite"].index(kind)]


@pytest.fixture(params=["memory", "lmdb", "sqlite"])
def cache(request: Any, tmp_path: Any) -> Any:
    return make_kind(request.param, tmp_path)


@pytest.fixture(params=["lmdb", "sqlite"])
def disk_cache(request: Any, tmp_path: Any) -> Any:
    return make_kind(request.param, tmp_path)


# What all caches promise.


def test_the_second_pass_comes_from_the_cache_in_the_first_ones_order(cache: Any) -> None:
    first = [{"__key__": key} for key in "cab"]
    assert list(cache(first)) == first
    assert list(cache(no_source())) == first


def test_samples_with_the_same_key_do_not_collapse(cache: Any) -> None:
    twins = [{"__key__": "same", "cls": n} for n in range(6)]
    list(cache(twins))
    assert classes(cache([])) == [0, 1, 2, 3, 4, 5]


def test_a_pass_that_was_left_early_caches_nothing(cache: Any) -> None:
    assert classes(islice(cache(samples(10)), 9)) == list(range(9))
    assert classes(cache(samples(3))) == [0, 1, 2]
    assert classes(cache(no_source())) == [0, 1, 2]


def test_a_pass_that_failed_caches_nothing(cache: Any) -> None:
    def failing() -> Any:
        yield from samples(5)
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        list(cache(failing()))
    assert classes(cache(samples(2))) == [0, 1]


def test_changes_made_by_later_stages_do_not_stick(cache: Any) -> None:
    for _ in range(3):
        for sample in cache(samples(3)):
            assert set(sample) == {"__key__", "cls", "npy"}
            sample["cls"] = "changed"
            del sample["npy"]
            sample["new"] = 1


def test_an_empty_source_makes_a_complete_empty_cache(cache: Any) -> None:
    assert list(cache([])) == []
    assert list(cache(no_source())) == []


def test_a_replayed_item_has_its_number_as_ticket(cache: Any) -> None:
    for _ in range(2):
        run = cache.start(as_run("abc"), Context())
        assert [(item, run.ticket) for item in run] == [("a", 0), ("b", 1), ("c", 2)]
    run = cache.start(as_run(no_source()), Context())
    assert [run.ticket for _ in run] == [0, 1, 2]
    assert run.origin(1) is None


def test_repeat_reads_the_source_once(cache: Any) -> None:
    asked = []

    def source(stream: Any = None) -> Any:
        asked.append(1)
        yield from "ab"

    first = cache.start(start(source, None, Context()), Context())
    assert list(repeat(3).start(first, Context())) == list("ababab")
    assert len(asked) == 1


def test_each_worker_has_a_cache_of_its_own(cache: Any) -> None:
    for number in range(3):
        context = Context(worker=number, num_workers=3)
        list(cache.start(as_run([number] * (number + 1)), context))
    for number in range(3):
        context = Context(worker=number, num_workers=3)
        assert list(cache.start(as_run([]), context)) == [number] * (number + 1)


def test_another_number_of_workers_makes_the_cache_anew(cache: Any) -> None:
    list(cache.start(as_run([0, 2]), Context(worker=0, num_workers=2)))
    assert list(cache.start(as_run([0, 3, 6]), Context(worker=0, num_workers=3))) == [0, 3, 6]
    assert list(cache.start(as_run([0, 4]), Context(rank=0, world_size=2))) == [0, 4]


def test_a_cache_that_is_called_still_knows_its_worker(
    cache: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUM_WORKERS", "2")
    for number in "01":
        monkeypatch.setenv("WORKER", number)
        assert list(cache([number])) == [number]


def test_two_iterations_at_once_both_give_everything(cache: Any) -> None:
    both = zip(cache(samples(4)), cache(samples(4)))
    assert [(a["cls"], b["cls"]) for a, b in both] == [(0, 0), (1, 1), (2, 2), (3, 3)]
    list(cache(samples(4)))
    assert len(list(zip(cache(no_source()), cache(no_source())))) == 4


def test_a_cache_can_be_pickled(cache: Any) -> None:
    list(cache("ab"))
    assert pickle.loads(pickle.dumps(cache)) == cache


# Cached


def test_what_is_kept_in_memory_does_not_travel_with_the_stage() -> None:
    cache = Cached()
    list(cache(samples(100)))
    assert len(pickle.dumps(cache)) < 200


def test_lists_are_copied_too_but_not_the_values_in_them() -> None:
    cache: Any = Cached()
    array = numpy.zeros(1)
    list(cache([[1, array]]))
    for item in cache([]):
        item[1][0] = 7
        item.append("more")
    assert list(cache([])) == [[1, array]]
    assert array[0] == 7


# The caches on disk


def test_a_new_process_would_find_the_cache(disk_cache: Any) -> None:
    list(disk_cache(samples(3)))
    twin = pickle.loads(pickle.dumps(disk_cache))
    got = list(twin(no_source()))
    assert classes(got) == [0, 1, 2]
    numpy.testing.assert_array_equal(got[2]["npy"], [0, 1])


@given(
    items=st.lists(st.dictionaries(st.text(), st.binary() | st.integers() | st.text())),
    chunk=st.integers(1, 4),
)
def test_any_samples_come_back_as_they_were(
    items: Any, chunk: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    for cache in [LMDBCached(folder / "lmdb", chunksize=chunk), DBCache(folder / "x.db", 1000)]:
        assert list(cache(items)) == items
        assert list(cache(no_source())) == items


def test_a_sample_that_could_not_be_read_again_is_refused_at_once(disk_cache: Any) -> None:
    sample = {"__key__": "k7", "__url__": "a.tar", "when": object()}
    with pytest.raises(WriteError, match=r"the field 'when' is a builtins\.object") as caught:
        list(disk_cache([sample]))
    assert str(caught.value).endswith("(a.tar, sample 'k7')")


def test_a_function_inside_a_sample_is_refused_at_once(disk_cache: Any) -> None:
    with pytest.raises(WriteError, match="put the cache before"):
        list(disk_cache([{"f": lambda: 0}]))
    with pytest.raises(WriteError, match="the field 'f' is a"):
        list(disk_cache([{"f": os.getpid}]))


def test_nothing_but_the_cache_stays_in_the_folder(tmp_path: Any) -> None:
    list(islice(LMDBCached(tmp_path / "lmdb")(samples(3)), 1))
    list(LMDBCached(tmp_path / "lmdb")(samples(3)))
    list(DBCache(tmp_path / "x.db", 3)(samples(3)))
    assert sorted(os.listdir(tmp_path)) == ["lmdb", "x.db"]
    assert os.listdir(tmp_path / "lmdb") == ["rank0of1-worker0of1.lmdb"]


def test_a_file_that_is_no_cache_is_told_and_left_alone(disk_cache: Any) -> None:
    path = disk_cache.path(Context())
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(b"something else" * 1000)
    with pytest.raises(StorageError, match=os.path.basename(path)):
        list(disk_cache(samples(1)))
    assert os.path.getsize(path) == 14000


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Any) -> None:
    (tmp_path / "file").write_bytes(b"")
    for cache in [LMDBCached(tmp_path / "file"), DBCache(tmp_path / "file" / "x.db", 1)]:
        with pytest.raises(StorageError, match="cannot make a cache"):
            list(cache(samples(1)))


def test_three_forked_workers_fill_one_cache_without_mixing(disk_cache: Any) -> None:
    go = fork.Barrier(3)

    def work(number: int) -> None:
        context = Context(worker=number, num_workers=3)
        go.wait(20)
        mine = samples(200, prefix=f"w{number}-")
        list(disk_cache.start(as_run(mine), context))

    children = [fork.Process(target=work, args=(number,)) for number in range(3)]
    for child in children:
        child.start()
    for child in children:
        child.join(60)
        assert child.exitcode == 0
    for number in range(3):
        context = Context(worker=number, num_workers=3)
        got = list(disk_cache.start(as_run(no_source()), context))
        assert [item["__key__"] for item in got] == [f"w{number}-{n}" for n in range(200)]


def test_processes_of_the_same_place_do_not_disturb_each_other(disk_cache: Any) -> None:
    go, results = fork.Barrier(3), fork.SimpleQueue()

    def work() -> None:
        go.wait(20)
        results.put(classes(disk_cache(samples(300))))

    children = [fork.Process(target=work) for _ in range(3)]
    for child in children:
        child.start()
    assert [results.get() for _ in children] == [list(range(300))] * 3
    for child in children:
        child.join(60)
    assert classes(disk_cache(no_source())) == list(range(300))


def test_a_pass_killed_in_the_middle_is_made_again_from_the_start(disk_cache: Any) -> None:
    reached = fork.Event()

    def work() -> None:
        for sample in disk_cache(samples(2000, prefix="old")):
            if sample["cls"] == 1500:
                reached.set()
                signal.pause()

    child = fork.Process(target=work)
    child.start()
    assert reached.wait(60)
    # While it lives, others get everything and keep nothing.
    assert classes(disk_cache(samples(5))) == list(range(5))
    os.kill(child.pid or 0, signal.SIGKILL)
    child.join(20)
    assert classes(disk_cache(samples(5))) == list(range(5))
    assert classes(disk_cache(no_source())) == list(range(5))


def test_a_worker_forked_while_the_cache_is_read_reads_it_too(disk_cache: Any) -> None:
    list(disk_cache(samples(5)))
    items = iter(disk_cache(no_source()))
    next(items)
    results = fork.SimpleQueue()
    child = fork.Process(target=lambda: results.put(classes(disk_cache(no_source()))))
    child.start()
    assert results.get() == [0, 1, 2, 3, 4]
    child.join(20)
    assert classes(items) == [1, 2, 3, 4]


def test_a_child_that_outlives_an_abandoned_pass_does_not_lock_the_cache(disk_cache: Any) -> None:
    items = iter(disk_cache(samples(5)))
    next(items)
    child = fork.Process(target=signal.pause)
    child.start()
    try:
        items.close()  # type: ignore[attr-defined]
        list(disk_cache(samples(5)))
        assert classes(disk_cache(no_source())) == [0, 1, 2, 3, 4]
    finally:
        child.kill()
        child.join(20)


def test_a_hostile_cache_file_runs_no_code(tmp_path: Any) -> None:
    class Hostile:
        def __reduce__(self) -> Any:
            return (os.mkdir, (str(tmp_path / "broken-in"),))

    cache = LMDBCached(tmp_path / "lmdb", pickler=pickle)
    list(islice(cache([Hostile()]), 5))
    with pytest.raises(UnsafeError, match="mkdir") as caught:
        list(LMDBCached(tmp_path / "lmdb")([]))
    assert "item 0" in caught.value.__notes__[0]
    with sqlite3.connect(tmp_path / "x.db") as database:
        database.execute("create table samples (number integer primary key, data blob)")
        database.execute("insert into samples values (0, ?)", (pickle.dumps(Hostile()),))
    with pytest.raises(UnsafeError, match="mkdir"):
        list(DBCache(tmp_path / "x.db", 1)([]))
    assert not (tmp_path / "broken-in").exists()


# LMDBCached


def test_a_pickler_of_ones_own_is_used(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = LMDBCached(tmp_path / "lmdb", pickler=pickle)
    list(cache([Context(seed=3)]))
    assert list(cache([])) == [Context(seed=3)]
    assert pickle.loads(pickle.dumps(cache)) == cache
    monkeypatch.setenv("WDS_SECURE", "1")
    with pytest.raises(UnsafeError, match="WDS_SECURE"):
        list(cache([]))


def test_a_map_size_too_small_is_told(tmp_path: Any) -> None:
    with pytest.raises(StorageError, match="map_size=65536 is too small"):
        list(LMDBCached(tmp_path / "lmdb", map_size=65536)([b"x" * 1000] * 500))


def test_a_missing_lmdb_names_the_extra(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lmdb", None)
    with pytest.raises(MissingPackage, match=r"pip install .*\[lmdb\]"):
        list(LMDBCached(tmp_path / "lmdb")(samples(1)))


def test_a_cache_deleted_while_it_is_read_is_made_anew(tmp_path: Any) -> None:
    cache = LMDBCached(tmp_path / "lmdb")
    list(cache("ab"))
    old = iter(cache([]))
    assert next(old) == "a"
    os.unlink(cache.path(Context()))
    assert list(cache("xyz")) == ["x", "y", "z"]
    assert list(cache([])) == ["x", "y", "z"]
    assert list(old) == ["b"]


# DBCache


def test_a_pass_ends_with_size_samples_and_the_cache_is_complete(tmp_path: Any) -> None:
    cached = DBCache(tmp_path / "x.db", 3)(samples(10))
    assert classes(cached) == [0, 1, 2]
    assert classes(cached) == [0, 1, 2]


def test_taking_just_size_samples_completes_the_cache(tmp_path: Any) -> None:
    list(islice(DBCache(tmp_path / "x.db", 3)(samples(10)), 3))
    assert classes(DBCache(tmp_path / "x.db", 3)(no_source())) == [0, 1, 2]


def test_the_old_ways_of_use_all_work(tmp_path: Any) -> None:
    data = samples(4)
    assert classes(DBCache(str(tmp_path / "a.db"), 4)(data)) == [0, 1, 2, 3]
    assert classes(DBCache(str(tmp_path / "b.db"), 4, source=data)) == [0, 1, 2, 3]
    assert classes(DBCache(str(tmp_path / "b.db"), 4).source_(no_source())) == [0, 1, 2, 3]
    assert classes(start(DBCache(tmp_path / "c.db", 4), as_run(data), Context())) == [0, 1, 2, 3]
    beginning = start(DBCache(tmp_path / "d.db", 4, data), None, Context())
    assert classes(repeat(2).start(beginning, Context())) == [0, 1, 2, 3] * 2


def test_without_a_name_everything_passes(tmp_path: Any) -> None:
    assert classes(DBCache(None, 2)(samples(5))) == [0, 1, 2, 3, 4]


def test_shuffled_replays_differ_by_epoch_and_not_by_run(tmp_path: Any) -> None:
    stage: Any = DBCache(tmp_path / "x.db", 50, shuffle=True)

    def epoch(number: int) -> list[int]:
        run = stage.start(as_run(list(range(50))), dataclasses.replace(Context(), epoch=number))
        items = [(item, run.ticket) for item in run]
        assert all(item == ticket for item, ticket in items)
        return [item for item, _ in items]

    assert epoch(0) == list(range(50))
    one, two = epoch(1), epoch(2)
    assert one == epoch(1) != two != list(range(50))
    assert sorted(one) == sorted(two) == list(range(50))


def test_a_database_of_somebody_else_is_left_alone(tmp_path: Any) -> None:
    with sqlite3.connect(tmp_path / "x.db") as database:
        database.execute("create table cache (key text primary key, data blob)")
    with pytest.raises(StorageError, match="not a cache made by this library"):
        list(DBCache(tmp_path / "x.db", 3)(samples(3)))


def test_arguments_that_cannot_work_are_refused(tmp_path: Any) -> None:
    with pytest.raises(PipelineError, match="size must be at least 1"):
        DBCache("x.db", 0)
    with pytest.raises(PipelineError, match="chunksize"):
        LMDBCached("x", chunksize=0)
    with pytest.raises(PipelineError, match="needs a source"):
        iter(DBCache("x.db", 1))
    with pytest.raises(PipelineError, match="source=, so it must begin"):
        DBCache("x.db", 1, source=[1]).start(as_run([1]), Context())


def test_cached_is_what_a_complete_pass_kept() -> None:
    pipeline = DataPipeline([1, 2, 3], Cached())
    assert pipeline.stage(1).cached is None
    next(iter(pipeline))
    assert pipeline.stage(1).cached is None
    assert list(pipeline) == pipeline.stage(1).cached == [1, 2, 3]
    pipeline.stage(1).cached = [4]
    assert list(pipeline) == [4]
    pipeline.stage(1).cached = None
    assert list(pipeline) == [1, 2, 3]


# ── damaged files ───────────────────────────────────────────────────────────────────────


def replay_in_child(cache: Any) -> tuple[int | None, str]:
    """How a child process ends that reads the cache, and its error message."""
    results = fork.SimpleQueue()

    def read() -> None:
        try:
            list(cache([]))
        except PenstockError as error:
            results.put(" ".join([str(error), *getattr(error, "__notes__", ())]))
        else:
            results.put("")

    child = fork.Process(target=read)
    child.start()
    child.join(60)
    if child.is_alive():
        child.kill()
        child.join()
        return None, "it never ended"
    return child.exitcode, "" if results.empty() else results.get()


@pytest.mark.parametrize("kept", [0, 1, 100, 4096, 4500, 8192, 12288, 20480, 0.5, 0.999])
def test_a_truncated_lmdb_file_is_an_error_and_not_a_crash(tmp_path: Any, kept: float) -> None:
    cache = LMDBCached(tmp_path)
    list(cache([{"x": bytes(3000)} for _ in range(200)]))
    (path,) = tmp_path.iterdir()
    size = path.stat().st_size
    os.truncate(path, int(kept * size) if 0 < kept < 1 else int(kept))
    status, message = replay_in_child(cache)
    assert status == 0
    assert "delete it" in message
    assert str(path) in message


def test_an_lmdb_file_that_is_truncated_while_it_is_read_is_an_error(tmp_path: Any) -> None:
    cache = LMDBCached(tmp_path)
    list(cache([{"x": bytes(3000)} for _ in range(200)]))
    (path,) = tmp_path.iterdir()

    def cut_in_the_middle(source: Any) -> Any:
        for number, item in enumerate(cache(source)):
            if number == 10:
                os.truncate(path, 8192)
            yield item

    status, message = replay_in_child(cut_in_the_middle)
    assert status == 0
    assert "delete it" in message


def database_that_loops(path: Any, kind: str) -> None:
    """An SQLite file that looks like a cache, and in which counting the samples never ends."""
    with sqlite3.connect(path) as database:
        database.execute("pragma page_size = 512")
        if kind == "view":
            database.execute(
                "create view samples as with recursive n(number) as "
                "(select 0 union all select number + 1 from n) select number, x'00' as data from n"
            )
            return
        database.execute("create table samples (number integer primary key, data blob)")
        rows = [(number, bytes(99)) for number in range(4000)]
        database.executemany("insert into samples values (?, ?)", rows)
        root = database.execute("select rootpage from sqlite_master").fetchall()[0][0]
    data = bytearray(path.read_bytes())
    # 18 pages below each other, each of which leads to the next one fifty times.
    pages = range(40, 58)
    for page, below in zip((root, *pages), (*pages, 3)):
        cells = b"".join(struct.pack(">IB", below, number) for number in range(50))
        start = 512 - len(cells)
        head = struct.pack(">BHHHBI", 5, 0, 50, start, 0, below)
        places = b"".join(struct.pack(">H", start + 5 * number) for number in range(50))
        body = head + places
        data[(page - 1) * 512 : page * 512] = body + bytes(start - len(body)) + cells
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["view", "pages"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_database_in_which_counting_never_ends_is_an_error(
    tmp_path: Any, kind: str, shuffle: bool
) -> None:
    path = tmp_path / "samples.db"
    database_that_loops(path, kind)
    status, message = replay_in_child(DBCache(path, 10, shuffle=shuffle))
    assert status == 0
    assert "DBCache" in message
    assert str(path) in message


def test_a_number_that_no_file_could_hold_takes_no_memory(tmp_path: Any) -> None:
    path = tmp_path / "samples.db"
    list(DBCache(path, 10)([{"x": n} for n in range(10)]))
    with sqlite3.connect(path) as database:
        database.execute("insert into samples values (?, ?)", (1 << 60, b""))
    with pytest.raises(StorageError, match="damaged"):
        list(DBCache(path, 10, shuffle=True)([]))


def flip_bits(path: Any, rng: random.Random) -> None:
    data = bytearray(path.read_bytes())
    items = [found.start() for found in re.finditer(b"__key__", data)]
    for _ in range(rng.choice([1, 1, 3])):
        # Of LMDB's own structures some end the process: it maps the file into memory.
        inside = rng.choice(items) + rng.randrange(150)
        place = inside if path.suffix == ".lmdb" else rng.randrange(len(data))
        data[place] ^= 1 << rng.randrange(8)
    path.unlink()  # LMDB keeps a file that was opened
    path.write_bytes(data)


@pytest.mark.parametrize("kind", ["lmdb", "sqlite"])
def test_flipped_bits_never_give_a_wrong_sample(kind: str, tmp_path: Any) -> None:
    items = [{"__key__": f"k{n}", "cls": n, "txt": f"text {n} " * 20} for n in range(60)]
    list(make_kind(kind, tmp_path)(items))
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    whole, errors = path.read_bytes(), 0
    for seed in range(150):
        flip_bits(path, random.Random(seed))
        read = iter(make_kind(kind, tmp_path)(no_source()))
        got = []
        try:
            while (item := next(read, None)) is not None:
                got.append(item)
            assert len(got) == len(items), seed
        except StorageError as error:
            errors += str(path) in str(error)
        except PenstockError:
            errors += 1
        assert got == items[: len(got)], seed
        path.unlink()
        path.write_bytes(whole)
    assert errors > 50


def test_a_flipped_bit_in_an_item_is_an_error_that_names_it(disk_cache: Any, tmp_path: Any) -> None:
    list(disk_cache([{"txt": "the needle"}]))
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data.replace(b"the needle", b"the noodle"))
    again = pickle.loads(pickle.dumps(disk_cache))
    with pytest.raises(StorageError, match="item 0 is damaged; delete the file"):
        list(again(no_source()))


@pytest.mark.parametrize("items", [[], [{"cls": 1}], samples(5)])
def test_caches_of_earlier_versions_are_read(items: list[Any], tmp_path: Any) -> None:
    lmdb = pytest.importorskip("lmdb")
    data = [pickle.dumps(item) for item in items]
    with sqlite3.connect(tmp_path / "x.db") as database:
        database.execute("CREATE TABLE samples (number integer primary key, data blob)")
        database.executemany("insert into samples values (?, ?)", enumerate(data))
    database.close()
    (tmp_path / "lmdb").mkdir()
    path = str(tmp_path / "lmdb/rank0of1-worker0of1.lmdb")
    environment = lmdb.open(path, subdir=False, lock=False)
    with environment.begin(write=True) as change:
        change.cursor().putmulti([(struct.pack(">Q", n), one) for n, one in enumerate(data)])
    environment.close()
    for kind in ("lmdb", "sqlite"):
        read = list(make_kind(kind, tmp_path)(no_source()))
        assert [str(item) for item in read] == [str(item) for item in items]
