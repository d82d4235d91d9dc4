"""A manifest in the workers of torch's loader, forked and spawned: the same batches, one memory."""

from __future__ import annotations

import multiprocessing
import pickle
import sys

import pytest

from penstock import DynamicItemDataset, PaddedBatch, provides, takes

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")


@takes("n")
@provides("signal", "twice")
def signal(n):
    yield torch.full((n % 7 + 1,), float(n))
    yield n * 2


def manifest(count):
    rows = {
        f"utt{i:06d}": {"n": i, "text": f"a text for number {i}", "l": [i]} for i in range(count)
    }
    return DynamicItemDataset(rows, [signal], ["id", "signal", "twice", "text", "l"])


@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_workers_give_the_batches_that_the_process_itself_gives(kind):
    dataset = manifest(3000).filtered_sorted(sort_key="n", reverse=True)[:40]
    plain = torch.utils.data.DataLoader(dataset, batch_size=8, collate_fn=PaddedBatch)
    workers = torch.utils.data.DataLoader(
        dataset, batch_size=8, collate_fn=PaddedBatch, num_workers=2, multiprocessing_context=kind
    )
    count = 0
    for mine, theirs in zip(plain, workers, strict=True):
        assert mine.id == theirs.id
        assert torch.equal(mine.signal.data, theirs.signal.data)
        assert torch.equal(mine.signal.absolute, theirs.signal.absolute)
        assert torch.equal(mine.twice, theirs.twice)
        assert (mine.text, mine.l) == (theirs.text, theirs.l)
        count += len(mine)
    assert count == 40


def own_bytes() -> int:
    """Memory that only this process has, and no file."""
    total = private = 0
    with open("/proc/self/smaps") as file:
        for line in file:
            if line.startswith("Private_"):
                private += int(line.split()[1])
            elif line.startswith("Anonymous:"):
                total += min(private, int(line.split()[1]))
                private = 0
    return total * 1024


def read_everything(dataset, say):
    before = own_bytes()
    total = sum(sample["n"] + len(sample["text"]) for sample in dataset)
    say.send((total, own_bytes() - before, type(dataset._table.ids._data).__name__))


@pytest.mark.parametrize("kind", ["fork", "spawn"])
def test_a_worker_that_reads_every_row_copies_none_of_them(kind):
    dataset = manifest(150_000)
    dataset.set_output_keys(["n", "text"])
    context = multiprocessing.get_context(kind)
    size = len(pickle.dumps(dataset))
    assert size > 8 << 20
    for _ in range(2):  # the second spawned one maps the same file
        hear, say = context.Pipe(False)
        process = context.Process(target=read_everything, args=(dataset, say))
        process.start()
        total, gained, where = hear.recv()
        process.join()
        assert total == sum(i + len(f"a text for number {i}") for i in range(150_000))
        assert gained < size / 4
        assert where == ("bytes" if kind == "fork" else "memoryview")


def test_a_small_manifest_is_sent_as_it_is():
    context = multiprocessing.get_context("spawn")
    dataset = manifest(3)
    dataset.set_output_keys(["n", "text"])
    hear, say = context.Pipe(False)
    process = context.Process(target=read_everything, args=(dataset, say))
    process.start()
    assert hear.recv()[2] == "bytes"
    process.join()
