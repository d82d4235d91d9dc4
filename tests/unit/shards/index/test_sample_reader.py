"""Single samples by their row, from any thread and process."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import SampleError, ShardError, ShardWriter, TarWriter
from penstock.errors import StaleIndexError
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


FEW_FILES = """
import os, random, resource, sys
import penstock as wds

folder, how = sys.argv[1:]
urls = folder + "/train-{000..099}.tar"
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
if how == "few left":  # the process needs most of its files for something else
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(52)]
expected = [b"%d" % n * 20_000 for n in range(200)]
if how == "threads":
    stream = wds.WebDataset(urls, index=True, shardshuffle=100, seed=1).shuffle(150)
    found = [s["bin"] for s in wds.WebLoader(stream.map(dict), batch_size=None, engine="threads")]
    assert sorted(found) == sorted(expected)
else:
    data = wds.IndexedDataset(urls)
    rows = list(range(200)) * 2
    random.Random(0).shuffle(rows)
    for row in rows:
        assert data[row]["bin"] == expected[row]
print("read")
"""


@pytest.mark.parametrize("how", ["many left", "few left", "threads"])
def test_more_shards_than_files_that_may_be_open_are_read(tmp_path: Path, how: str) -> None:
    with ShardWriter(f"{tmp_path}/train-%03d.tar", maxcount=2, index=True) as sink:
        for number in range(200):
            sink.write({"__key__": f"k{number}", "bin": b"%d" % number * 20_000})
    command = [sys.executable, "-c", FEW_FILES, str(tmp_path), how]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr) == ("read\n", "")


def test_a_shard_overwritten_while_it_is_open_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.tar"
    with TarWriter(str(path)) as sink:
        for number in range(200):
            sink.write({"__key__": f"k{number:03d}", "txt": f"old {number:03d}"})
    reader = SampleReader(open_index(str(path)))
    for row in range(50):
        assert reader.read(row)["txt"] == b"old %03d" % row
    data = path.read_bytes().replace(b"old ", b"new ")
    with path.open("r+b") as file:
        file.write(data)
    os.utime(path)  # a clock that ticks slowly may not have moved since the shard was made
    mixed = []
    with pytest.raises(ShardError, match=r"written to while it was read.*x\.tar"):
        mixed += [reader.read(row) for row in range(50, 200)]
    assert len(mixed) < 64
    with pytest.raises(StaleIndexError, match="other content"):
        reader.read(199)


def test_a_small_shard_overwritten_in_place_is_noticed_within_its_samples(tmp_path):
    urls = [str(tmp_path / f"{n}.tar") for n in range(3)]
    for n, url in enumerate(urls):
        with TarWriter(url) as writer:
            for row in range(20):
                writer.write({"__key__": f"{n}-{row}", "txt": b"old" * 300})
    reader = SampleReader(open_index(urls, True))
    reader.read(20)
    data = Path(urls[1]).read_bytes().replace(b"old", b"new")
    with open(urls[1], "r+b") as file:
        file.write(data)
    os.utime(urls[1])
    with pytest.raises(ShardError, match=r"written to while it was read.*1\.tar"):
        for row in range(21, 41):
            reader.read(row)


def test_many_rows_are_read_as_each_of_them(tmp_path: Path) -> None:
    with ShardWriter(str(tmp_path / "x-%d.tar"), maxcount=30, verbose=0) as sink:
        for number in range(90):
            size = (0, 700, 9_000, 33_000)[number % 4]
            sink.write({"__key__": f"{number:03d}", "a": os.urandom(size), "b": b"%d" % number})
    reader = SampleReader(open_index(str(tmp_path / "x-{0..2}.tar")), max_open=1)
    rows = [89, 3, 3, 40, 41, 0, 42, 70, 2, 1, 88, 31]
    assert reader.read_many(rows) == [reader.read(row) for row in rows]
    assert reader.read_many([]) == []
    with pytest.raises(SampleError, match="there is no sample 90"):
        reader.read_many([1, 90])


def test_shard_replaced_before_it_is_opened_again_is_an_error(tmp_path: Path) -> None:
    with ShardWriter(str(tmp_path / "x-%d.tar"), maxcount=1, verbose=0) as sink:
        for number in range(2):
            sink.write({"__key__": f"{number}", "a": b"x"})
    reader = SampleReader(open_index(str(tmp_path / "x-{0..1}.tar")), max_open=1)
    for row in (0, 1, 0, 1):
        assert reader.read(row)["__key__"] == str(row)
    with TarWriter(str(tmp_path / "x-0.tar")) as one:
        one.write({"__key__": "other", "a": b"y"})
    with pytest.raises(StaleIndexError):
        reader.read(0)
    os.remove(tmp_path / "x-0.tar")
    with pytest.raises(FileNotFoundError):
        reader.read(0)
