"""Single samples by their row, from any thread and process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import SampleError, ShardError, TarWriter
from penstock.shards.index import SampleReader, open_index

MakeShards = Callable[..., str]


def test_fields_of_any_size_are_whole(tmp_path: Path) -> None:
    sizes = [0, 1, 511, 512, 513, 32_000, 33_000, 200_000]
    samples = []
    with TarWriter(str(tmp_path / "x.tar")) as sink:
        for number, size in enumerate(sizes):
            fields = {"a": os.urandom(size), "b": b"tail", "c": os.urandom(sizes[-1 - number])}
            samples.append(fields)
            sink.write({"__key__": f"k{number}", **fields})
    reader = SampleReader(open_index(str(tmp_path / "x.tar")))
    for row, fields in enumerate(samples):
        sample = reader.read(row)
        assert {name: sample[name] for name in fields} == fields


def test_few_shards_stay_open(make_shards: MakeShards) -> None:
    index = open_index(make_shards(40, 4))
    reader = SampleReader(index, max_open=2)
    before = len(os.listdir("/proc/self/fd"))
    for row in range(40):
        assert reader.read(row)["txt"] == b"text %d" % row
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    reader.close()
    assert len(os.listdir("/proc/self/fd")) <= before


def test_threads_may_share_a_reader(make_shards: MakeShards) -> None:
    reader = SampleReader(open_index(make_shards(40, 2)), max_open=2)
    wrong: list[int] = []

    def read(first: int) -> None:
        for turn in range(300):
            row = (first * 7 + turn * 13) % 40
            if reader.read(row)["txt"] != b"text %d" % row:
                wrong.append(row)

    threads = [threading.Thread(target=read, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def _read(reader: SampleReader, results: multiprocessing.Queue[bytes]) -> None:
    results.put(reader.read(5)["txt"])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_reader_goes_to_another_process(make_shards: MakeShards, method: str) -> None:
    reader = SampleReader(open_index(make_shards()))
    reader.read(5)
    context = multiprocessing.get_context(method)
    results: multiprocessing.Queue[bytes] = context.Queue()
    process = context.Process(target=_read, args=(reader, results))
    process.start()
    assert results.get(timeout=60) == b"text 5"
    process.join()
    assert pickle.loads(pickle.dumps(reader)).read(5) == reader.read(5)


def test_a_row_that_is_not_there_is_told(make_shards: MakeShards) -> None:
    reader = SampleReader(open_index(make_shards()))
    for row in (10, -1):
        with pytest.raises(SampleError, match="the index has 10"):
            reader.read(row)


def test_a_shard_that_is_cut_while_it_is_open_is_an_error(
    make_shards: MakeShards, tmp_path: Path
) -> None:
    reader = SampleReader(open_index(make_shards(4, 4)))
    reader.read(0)
    os.truncate(tmp_path / "train-000.tar", 1000)
    with pytest.raises(ShardError, match="cut short"):
        reader.read(3)


def test_a_read_does_not_ask_which_process_it_is_in(
    make_shards: MakeShards, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = SampleReader(open_index(make_shards(4, 4)))
    reader.read(0)
    monkeypatch.setattr(os, "getpid", None)
    assert reader.read(1)["__key__"] == "k1"


def _opened_anew(reader: SampleReader, results: multiprocessing.Queue[bool]) -> None:
    before = dict(reader._files)
    reader.read(0)
    results.put(reader._files[0] is not before[0])


def test_a_forked_reader_opens_its_shards_itself(make_shards: MakeShards) -> None:
    reader = SampleReader(open_index(make_shards(4, 4)))
    reader.read(0)
    context = multiprocessing.get_context("fork")
    results: multiprocessing.Queue[bool] = context.Queue()
    process = context.Process(target=_opened_anew, args=(reader, results))
    process.start()
    assert results.get(timeout=60)
    process.join()
