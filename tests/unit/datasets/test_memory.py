"""memory="ram": one copy of the shards in the machine's memory, for all processes."""

from __future__ import annotations

import glob
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap

import pytest

import penstock as wds
from penstock.datasets import shared_bytes
from penstock.datasets.shared_bytes import PREFIX, SharedBytes
from penstock.errors import PipelineError, ShardError, StaleIndexError, StorageError

pytestmark = pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="needs /dev/shm")


@pytest.fixture
def urls(tmp_path):
    with wds.ShardWriter(str(tmp_path / "x-%d.tar"), maxcount=10, index=True, verbose=0) as sink:
        for n in range(30):
            sink.write({"__key__": f"s{n:03d}", "bin": os.urandom(5000 + n), "cls": n})
    return str(tmp_path / "x-{0..2}.tar")


def copies():
    return set(glob.glob(f"/dev/shm/{PREFIX}-*"))


def test_samples_are_those_of_the_shards(urls):
    before = copies()
    kept, plain = wds.IndexedDataset(urls, memory="ram"), wds.IndexedDataset(urls)
    assert list(kept) == list(plain)
    assert kept.by_key("s007") == plain.by_key("s007")
    assert kept.__getitems__([3, 29]) == [plain[3], plain[29]]
    with_paths = {"local_paths": True}
    assert (
        wds.IndexedDataset(urls, memory="ram", **with_paths)[12]
        == (wds.IndexedDataset(urls, **with_paths)[12])
    )
    assert len(copies() - before) == 1  # shared by the two
    kept.close()
    assert kept[3] == plain[3]


def test_the_copy_goes_with_its_last_user(urls):
    before = copies()
    one, two = (wds.IndexedDataset(urls, memory="ram") for _ in range(2))
    assert one[0] == two[0]
    one.close()
    assert len(copies() - before) == 1
    del two
    assert copies() == before


def test_the_shards_are_read_once(urls, monkeypatch):
    first = wds.IndexedDataset(urls, memory="ram")
    wanted = list(first)
    monkeypatch.setattr(
        "penstock.datasets.memory_reader.open_url", lambda *_, **__: pytest.fail("read again")
    )
    assert list(wds.IndexedDataset(urls, memory="ram")) == wanted


def sum_of(dataset):
    return sum(int(sample["cls"]) for sample in dataset), len(copies())


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_share_one_copy(urls, method):
    dataset = wds.IndexedDataset(urls, memory="ram")
    before = len(copies()) + (not dataset._shared)
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        found = pool.map(sum_of, [dataset] * 4)
    assert found == [(435, before)] * 4
    assert dataset[0]["cls"] == b"0"


def test_torch_workers_read_from_memory(urls):
    torch = pytest.importorskip("torch")
    dataset = wds.IndexedDataset(urls, memory="ram").map(lambda sample: int(sample["cls"]))
    loader = torch.utils.data.DataLoader(dataset, batch_size=5, num_workers=2)
    assert sorted(n for batch in loader for n in batch.tolist()) == list(range(30))


def test_what_does_not_fit_is_a_clear_error(urls, monkeypatch):
    before = copies()
    monkeypatch.setattr(shared_bytes, "free_bytes", lambda folder: 100_000)
    with pytest.raises(StorageError, match=r'memory="ram" needs 215,040 bytes.*100,000 now'):
        wds.IndexedDataset(urls, memory="ram")[0]
    assert copies() == before


def test_a_full_memory_folder_is_a_clear_error(monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    before = copies()
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageError, match="do not fit"):
        SharedBytes("full", [10], lambda n: iter([b"0123456789"]), what="ten bytes")
    assert copies() == before


@pytest.mark.parametrize("version", [1, 2])
def test_the_limit_of_a_container_counts(tmp_path, monkeypatch, version):
    base = tmp_path / "memory" if version == 1 else tmp_path
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    names = names if version == 1 else ("memory.max", "memory.current")
    inner = base / "job" / "step"
    inner.mkdir(parents=True)
    groups = {base: ("max", 7), inner.parent: (1000, 700), inner: (2000, 600)}
    for folder, values in groups.items():
        for name, value in zip(names, values):
            (folder / name).write_text(f"{value}\n")
        (folder / "memory.stat").write_text("anon 5\ninactive_file 50\nactive_file 9\n")
    own = tmp_path / "own"
    own.write_text("5:cpu:/job\n4:memory:/job/step\n" if version == 1 else "0::/job/step\n")
    limits = shared_bytes.container_limits(str(tmp_path), str(own))
    assert sorted(limits)[:-1] == [350, 1450]
    assert len(shared_bytes.container_limits(str(tmp_path), str(tmp_path / "none"))) == 1
    monkeypatch.setattr(shared_bytes, "container_limits", lambda: limits)
    assert shared_bytes.free_bytes("/dev/shm") == 315


def test_a_failed_copy_leaves_nothing(urls, tmp_path):
    before = copies()
    dataset = wds.IndexedDataset(urls, memory="ram")
    shard = tmp_path / "x-1.tar"
    shard.write_bytes(shard.read_bytes()[:-512])
    with pytest.raises(StaleIndexError):
        dataset[0]
    with pytest.raises(ShardError, match="another size"):
        SharedBytes("short", [10], lambda n: iter([b"0"]), what="ten bytes")
    assert copies() == before


def test_a_copy_that_a_killed_process_left_half_done_is_made_anew(urls, tmp_path):
    """The process is killed between the first shard and the second."""
    program = textwrap.dedent(
        """
        import os, signal, sys
        import penstock as wds
        from penstock.datasets.memory_reader import MemoryReader

        parts = MemoryReader._parts

        def dying(self, number):
            if number == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return parts(self, number)

        MemoryReader._parts = dying
        wds.IndexedDataset(sys.argv[1], memory="ram")[0]
        """
    )
    before = copies()
    done = subprocess.run([sys.executable, "-c", program, urls], check=False)
    assert done.returncode == -signal.SIGKILL
    assert len(copies() - before) == 1
    assert list(wds.IndexedDataset(urls, memory="ram")) == list(wds.IndexedDataset(urls))
    assert copies() == before


def test_copies_that_nobody_uses_are_deleted_by_the_next(urls):
    path = f"/dev/shm/{PREFIX}-{os.getuid()}-left"
    with open(path, "wb") as file:
        file.write(b"left by a process that was killed")
    dataset = wds.IndexedDataset(urls, memory="ram")
    dataset[0]
    assert not os.path.exists(path)


def test_wrong_words_are_refused(urls):
    with pytest.raises(PipelineError, match='"ram"'):
        wds.IndexedDataset(urls, memory="gpu")


def test_compressed_shards_are_refused(tmp_path):
    with wds.TarWriter(str(tmp_path / "x.tar.gz")) as sink:
        sink.write({"__key__": "a", "txt": "a"})
    with pytest.raises(ShardError, match="compressed"):
        wds.IndexedDataset(str(tmp_path / "x.tar.gz"), memory="ram")[0]


def test_a_pipeline_reads_from_memory(urls):
    pipeline = wds.IndexedDataset(urls, memory="ram").pipeline(shuffle=True)
    assert sorted(int(sample["cls"]) for sample in pipeline) == list(range(30))
