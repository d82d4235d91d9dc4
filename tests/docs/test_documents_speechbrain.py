"""The code of SpeechBrain's tutorials on big data sets and on dynamic batches.

In the order of the documents, as it is written there. Only the import lines differ, by one word:
``penstock`` for ``webdataset`` and for ``speechbrain``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time

import numpy as np
import pytest

import penstock as sb
import penstock as speechbrain
import penstock as wds

torch = pytest.importorskip("torch")
pytest.importorskip("soundfile")

from penstock.dataio.batch import PaddedBatch  # noqa: E402
from penstock.dataio.dataset import DynamicItemDataset  # noqa: E402
from penstock.dataio.sampler import DynamicBatchSampler  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

RATE = 16000
COUNT = 60


@pytest.mark.parametrize(
    "lines",
    [
        "import penstock as sb; sb.dataio.iterators.dynamic_bucketed_batch",
        "import penstock as sb; sb.dataio.dataloader.make_dataloader",
        "import penstock as speechbrain; speechbrain.utils.data_pipeline.takes('x')",
        "import penstock as speechbrain; speechbrain.dataio.dataio.read_audio",
        "import penstock.dataio.dataset; penstock.dataio.dataset.DynamicItemDataset",
        "from penstock.utils.data_pipeline import provides, takes; import penstock.utils",
        "import penstock as wds; wds.utils.make_seed; wds.utils.data_utils.undo_padding",
    ],
)
def test_the_import_lines_of_the_tutorials_run_by_themselves(lines):
    subprocess.run([sys.executable, "-c", lines], check=True)


def seconds(number):
    return 0.5 + number * 7 % 30 / 4


# ── data loading for big data sets and shared file systems ──────────────────────────────────────


@pytest.fixture(scope="module")
def SHARDSDIR(tmp_path_factory):
    SHARDSDIR = tmp_path_factory.mktemp("shards")
    uttids = [f"utt{number:03d}" for number in range(COUNT)]
    texts = {uttid: f"the text of {uttid}" for uttid in uttids}
    audio = {u: torch.full((int(seconds(n) * 160),), float(n)) for n, u in enumerate(uttids)}
    with wds.ShardWriter(f"{SHARDSDIR}/shard-%06d.tar", maxcount=6) as writer:
        for uttid in uttids:
            audio_tensor = audio[uttid]
            example = {"__key__": uttid, "audio.pth": audio_tensor, "text": texts[uttid]}
            writer.write(example)
    return SHARDSDIR


def test_the_basics_can_be_written_down():
    dataset = (
        wds.WebDataset("data-archives/shard-00{00...24}.tar")
        .decode()
        .shuffle(size=1000)
        .batch(batchsize=10)
    )
    assert "batched(10)" in dataset.describe()


def test_the_basics_run(SHARDSDIR):
    dataset = (
        wds.WebDataset(f"{SHARDSDIR}/shard-0000{{00..09}}.tar", shardshuffle=False)
        .decode()
        .shuffle(size=1000)
        .batch(batchsize=10, collation_fn=None)
    )
    assert [len(batch) for batch in dataset] == [10] * 6


def streamed(SHARDSDIR):
    # The sounds here are a hundredth as long as theirs, and so is the budget.
    return (
        wds.WebDataset(str(SHARDSDIR) + "/shard-0000{00..09}.tar")
        .decode()
        .rename(id="__key__", signal="audio.pth", text="text")
        .repeat()
        .then(
            sb.dataio.iterators.dynamic_bucketed_batch,
            len_key="signal",
            sampler_kwargs={
                "target_batch_numel": 160 * 45.0,
                "max_batch_numel": 160 * 60.0,
            },
        )
    )


@pytest.mark.filterwarnings("ignore:.*shardshuffle.*")
def test_dynamic_batches_stream_without_end_and_within_the_budget(SHARDSDIR):
    dataset = streamed(SHARDSDIR)
    dataloader = sb.dataio.dataloader.make_dataloader(dataset, looped_nominal_epoch=5)
    seen = set()
    for _epoch in range(3):
        steps = 0
        for batch in dataloader:
            assert isinstance(batch, PaddedBatch)
            signal, lengths = batch.signal
            assert signal.numel() <= 160 * 60
            assert len(batch) == 1 or signal.numel() >= 160 * 45 * 0.8
            assert lengths.max() == 1
            numbers = [int(uttid[3:]) for uttid in batch.id]
            assert signal[:, 0].tolist() == numbers
            assert batch.text == [f"the text of {uttid}" for uttid in batch.id]
            assert 1 - lengths.mean() <= 0.2
            seen.update(numbers)
            steps += 1
        assert steps == 5
    assert len(seen) > COUNT / 3


def test_the_stream_of_the_tutorial_goes_on_exactly(SHARDSDIR):
    def make():
        return sb.dataio.dataloader.make_dataloader(streamed(SHARDSDIR), looped_nominal_epoch=5)

    whole = make()
    wanted = [batch.id for _ in range(2) for batch in whole]
    stopped = make()
    for _ in range(3):
        next(stopped)
    other = make()
    other.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert [batch.id for _ in range(2) for batch in other][:7] == wanted[3:]


# ── dynamic batching ────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def manifest(tmp_path_factory):
    """``data.json`` and the sounds it names, of different lengths."""
    folder = tmp_path_factory.mktemp("sounds")
    rows = {}
    for number in range(COUNT):
        length = int(seconds(number) * 1600)
        path = str(folder / f"{number}.wav")
        wds.write_audio(path, torch.full((length,), 0.5), RATE)
        rows[f"utt{number}"] = {"file_path": path, "length": length}
    (folder / "data.json").write_text(json.dumps(rows))
    return folder


@pytest.fixture
def train_data(manifest, monkeypatch):
    monkeypatch.chdir(manifest)
    train_data = DynamicItemDataset.from_json("data.json")

    @speechbrain.utils.data_pipeline.takes("file_path")
    @speechbrain.utils.data_pipeline.provides("signal")
    def audio_pipeline(file_path):
        sig = speechbrain.dataio.dataio.read_audio(file_path)
        return sig

    train_data.add_dynamic_item(audio_pipeline)
    train_data.set_output_keys(["signal", "file_path"])
    return train_data


def count_samples(dataloader):
    true_samples = 0
    padded_samples = 0
    t1 = time.time()
    for batch in dataloader:
        audio, lens = batch.signal
        true_samples += torch.sum(audio.shape[-1] * lens).item()
        padded_samples += torch.sum(audio.shape[-1] * (1 - lens)).item()

    elapsed = time.time() - t1
    tot_samples = true_samples + padded_samples
    return true_samples / tot_samples, padded_samples / tot_samples, elapsed


def test_batches_of_a_fixed_size_are_mostly_padding_and_sorted_ones_are_not(train_data):
    batch_size = 32
    dataloader = DataLoader(train_data, collate_fn=PaddedBatch, batch_size=batch_size)
    true_share, padding, elapsed = count_samples(dataloader)
    assert padding > 0.2
    assert true_share + padding == pytest.approx(1)
    assert elapsed >= 0
    sorted_data = train_data.filtered_sorted(sort_key="length")
    dataloader = DataLoader(sorted_data, collate_fn=PaddedBatch, batch_size=batch_size)
    # 60 sounds in batches of 32 are two halves: better, and no more than that
    assert count_samples(dataloader)[1] < padding


def test_dynamic_batches_of_the_tutorial_hold_every_sound_once(train_data):
    max_batch_len = 17
    lengths = [train_data.data[name]["length"] for name in train_data.data_ids]
    dynamic_batcher = DynamicBatchSampler(
        train_data,
        max_batch_length=max_batch_len,
        num_buckets=60,
        length_func=lambda x: x["length"] / 16000,
    )
    dataloader = DataLoader(train_data, batch_sampler=dynamic_batcher, collate_fn=PaddedBatch)
    paths = [path for batch in dataloader for path in batch.file_path]
    assert len(set(paths)) == len(paths) == COUNT
    assert count_samples(dataloader)[1] < 0.2
    for batch in dynamic_batcher:
        assert len(batch) * max(lengths[n] for n in batch) <= max_batch_len * 16000


@pytest.mark.parametrize("batch_ordering", ["ascending", "descending", "random"])
def test_batches_come_in_the_order_asked_for(train_data, batch_ordering):
    dynamic_batcher = DynamicBatchSampler(
        train_data,
        max_batch_length=40000,
        num_buckets=60,
        length_func=lambda x: x["length"],
        shuffle=True,
        batch_ordering=batch_ordering,
    )
    lengths = [train_data.data[name]["length"] for name in train_data.data_ids]
    longest = [max(lengths[n] for n in batch) for batch in dynamic_batcher]
    if batch_ordering != "random":
        assert longest == sorted(longest, reverse=batch_ordering == "descending")


def test_boundaries_can_be_given_by_hand(train_data):
    max_batch_len = 40000
    DynamicBatchSampler(
        train_data,
        max_batch_length=max_batch_len,
        bucket_boundaries=[max_batch_len],
        length_func=lambda x: x["length"],
    )
    max_batch_len = 20000
    n_buckets = 40
    buckets = np.linspace(0, max_batch_len, n_buckets)
    buckets_bounds = buckets[1:].tolist()
    dynamic_batcher = DynamicBatchSampler(
        train_data,
        max_batch_length=max_batch_len,
        bucket_boundaries=buckets_bounds,
        length_func=lambda x: x["length"] / 160,
    )
    assert sum(map(len, dynamic_batcher)) == COUNT
    n_buckets = 40
    max_batch_len = 20000
    batch_multiplier = 1.2
    buckets_bounds = [200]
    for _x in range(n_buckets):
        buckets_bounds.append(buckets_bounds[-1] * batch_multiplier)
    dynamic_batcher = DynamicBatchSampler(
        train_data,
        max_batch_length=max_batch_len,
        bucket_boundaries=buckets_bounds,
        length_func=lambda x: x["length"] / 160,
    )
    assert sum(map(len, dynamic_batcher)) == COUNT
