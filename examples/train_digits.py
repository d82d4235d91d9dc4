"""Train on audio clips of any length: python examples/train_digits.py [FOLDER] [--tar DIGITS.tar]

Needs penstock[torch,audio]. Learns to classify spoken digits, in about a minute on a CPU. The tar
holds recordings named like ``7_jackson_32.wav``: digit 7, speaker jackson. Without a tar it
synthesises ten "digits": two-part tones that differ as vowels do, of many lengths, with noise.
Shards, index and the drawing are written to the folder, or to a temporary one. ``--small`` runs in
a few seconds.
"""

import argparse
import io
import json
import math
import random
import tarfile
import tempfile
import time
from pathlib import Path

import numpy as np
import soundfile
import torch
from torch import nn

import penstock as wds

RATE = 8000
FRAME, STEP, BANDS = 256, 80, 40  # a spectrum of 32 ms every 10 ms, in 40 bands


# ── data ────────────────────────────────────────────────────────────────────────────────────────


def recordings(tar: str):
    """Yield the recordings of a tar, as (key, digit, WAV file)."""
    with tarfile.open(tar) as archive:
        for member in archive:
            if member.name.endswith(".wav"):
                name = Path(member.name).stem
                yield name, int(name.split("_")[0]), archive.extractfile(member).read()


FORMANTS = [
    *((270, 2290), (390, 1990), (530, 1840), (660, 1720), (730, 1090)),
    *((570, 840), (440, 1020), (300, 870), (640, 1190), (490, 1350)),
]


def made_up(count: int):
    """Yield synthetic digits: digit n glides from the n-th vowel to vowel n + 3."""
    rng = np.random.default_rng(0)
    for number in range(count):
        digit = number % 10
        length = int(RATE * min(max(rng.lognormal(math.log(0.4), 0.5), 0.14), 2.3))
        t = np.arange(length) / RATE
        glide = np.linspace(0, 1, length)
        pitch, size = rng.uniform(90, 220), rng.uniform(0.9, 1.1)
        sound = 0.2 * np.sign(np.sin(2 * np.pi * pitch * t))
        for low, high in zip(FORMANTS[digit], FORMANTS[(digit + 3) % 10]):
            phase = 2 * np.pi * np.cumsum(size * (low + (high - low) * glide)) / RATE
            sound += np.sin(phase) * (1 + 0.5 * np.sin(2 * np.pi * pitch * t))
        sound = 0.2 * sound + rng.normal(0, rng.uniform(0.02, 0.15), length)
        file = io.BytesIO()
        soundfile.write(file, sound.clip(-1, 1), RATE, format="WAV")
        yield f"{digit}_made_{number}", digit, file.getvalue()


def write_shards(folder: Path, sounds) -> dict[str, list[str]]:
    """Shuffle the clips and write them to shards; every tenth is for the test."""
    sounds = sorted(sounds)
    random.Random(0).shuffle(sounds)
    parts = {"test": sounds[::10], "train": [s for n, s in enumerate(sounds) if n % 10]}
    written: dict[str, list[str]] = {}
    for name, part in parts.items():
        with wds.ShardWriter(str(folder / f"{name}-%06d.tar"), maxcount=500, verbose=0) as writer:
            for key, digit, wav in part:
                writer.write({"__key__": key, "wav": wav, "cls": digit})
        written[name] = sorted(map(str, folder.glob(f"{name}-*.tar")))
    return written


# ── model ───────────────────────────────────────────────────────────────────────────────────────


def filters() -> torch.Tensor:
    """Return the matrix of frequencies by bands: narrow bands below, wide ones above."""
    edges = torch.logspace(0, math.log10(FRAME // 2), BANDS + 1).long().unique()
    bank = torch.zeros(FRAME // 2 + 1, len(edges) - 1)
    for band, (low, high) in enumerate(zip(edges.tolist(), edges.tolist()[1:])):
        bank[low:high, band] = 1 / (high - low)
    return bank


BANK, WINDOW = filters(), torch.hann_window(FRAME)


def spectrum(wav: bytes) -> torch.Tensor:
    """Return the clip as a logarithmic spectrum, one row for every 10 ms."""
    signal, _rate = soundfile.read(io.BytesIO(wav), dtype="float32")
    signal = torch.from_numpy(signal)
    signal = nn.functional.pad(signal, (0, max(FRAME - len(signal), 0)))
    frames = signal.unfold(0, FRAME, STEP) * WINDOW
    return (torch.fft.rfft(frames).abs().square() @ BANK + 1e-6).log()


class Classifier(nn.Module):
    """Convolutions over time, and the mean over the part of each row that is not padding."""

    def __init__(self, bands: int) -> None:
        super().__init__()
        layers = []
        for before, after in ((bands, 64), (64, 96), (96, 128)):
            layers += [nn.Conv1d(before, after, 5, padding=2), nn.ReLU()]
        self.layers, self.last = nn.Sequential(*layers), nn.Linear(256, 10)

    def forward(self, rows: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        mask = (torch.arange(rows.shape[1]) < lengths[:, None])[:, None]
        found = self.layers(rows.transpose(1, 2)) * mask
        mean = found.sum(2) / lengths[:, None]
        return self.last(torch.cat([mean, found.max(2).values], 1))


def ready(sample: dict) -> dict:
    """Return the model's inputs for a sample."""
    rows = spectrum(sample["wav"])
    return {"rows": (rows - rows.mean()) / rows.std(), "digit": int(sample["cls"])}


class Spectra(torch.utils.data.Dataset):
    """Spectra by number, computed once and kept: they are small."""

    def __init__(self, shards: list[str], index) -> None:
        self.samples = wds.IndexedDataset(shards, index)
        self.made: dict[int, dict] = {}

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> dict:
        if number not in self.made:
            self.made[number] = ready(self.samples[number])
        return self.made[number]


def accuracy(model: nn.Module, loader) -> float:
    right = count = 0
    with torch.no_grad():
        for batch in loader:
            said = model(batch.rows.data, batch.rows.absolute).argmax(1)
            right += int((said == batch.digit).sum())
            count += len(batch)
    return right / count


def main(folder: Path, tar: str | None, small: bool) -> None:
    for old in folder.glob("*.tar"):
        old.unlink()
    shards = write_shards(folder, recordings(tar) if tar else made_up(300 if small else 3000))
    index = {
        name: wds.build_index(urls, folder / f"{name}.parquet", columns={"seconds": "wav:seconds"})
        for name, urls in shards.items()
    }
    train, test = (Spectra(shards[name], index[name]) for name in ("train", "test"))

    # At most 40 s of audio in a batch, including padding. The plan needs only the index.
    budget = 10 if small else 40
    sampler = wds.PlannedBatchSampler(index["train"], budget, length="seconds", seed=1)
    loader = wds.SaveableDataLoader(train, batch_sampler=sampler, collate_fn=wds.PaddedBatch)
    tests = wds.make_dataloader(test, batch_size=50, collate_fn=wds.PaddedBatch)
    report = wds.padding_report(sampler, sampler.lengths, budget, name="planned batches")
    print(report)
    fixed = [list(range(n, min(n + 64, len(train)))) for n in range(0, len(train), 64)]
    plain = wds.padding_report(fixed, lengths=sampler.lengths, name="64 at a time")
    print(f"64 clips at a time, at random, would be {plain.padding:.1%} padding")
    (folder / "padding.svg").write_text(report.to_svg())

    torch.manual_seed(1)
    began = time.perf_counter()
    model = Classifier(len(train[0]["rows"][0]))
    epochs = 6 if small else 12
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, epochs * len(loader) + epochs)
    for epoch in range(epochs):
        losses = []
        for batch in loader:
            said = model(batch.rows.data, batch.rows.absolute)
            loss = nn.functional.cross_entropy(said, batch.digit)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
        print(
            f"epoch {epoch}: {len(losses)} batches, loss {np.mean(losses):.3f}, "
            f"{accuracy(model, tests):.1%} of {len(test)} unheard sounds right, "
            f"{time.perf_counter() - began:.0f} s",
            flush=True,
        )
    (folder / "loader.json").write_text(json.dumps(loader.state_dict()))  # goes into a checkpoint


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description="Learn spoken digits.")
    arguments.add_argument("folder", nargs="?")
    arguments.add_argument("--tar", help="recordings, e.g. the Free Spoken Digit Dataset")
    arguments.add_argument("--small", action="store_true", help="little data, a few epochs")
    given = arguments.parse_args()
    torch.set_num_threads(1)
    if given.folder:
        Path(given.folder).mkdir(parents=True, exist_ok=True)
        main(Path(given.folder), given.tar, given.small)
    else:
        with tempfile.TemporaryDirectory() as made:
            main(Path(made), given.tar, given.small)
