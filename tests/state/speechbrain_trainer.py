"""Trains with SpeechBrain's ``Brain`` on penstock's data; the process may kill itself.

    python speechbrain_trainer.py FOLDER KIND [DIE_AFTER]

Each step is a line of ``FOLDER/steps``: the epoch, the ids of the batch, and the loss. After the
step DIE_AFTER the process is killed; the next one resumes from SpeechBrain's checkpoint.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import types
from pathlib import Path

if importlib.util.find_spec("torchaudio") is None:
    # SpeechBrain imports it only to check its version, and reads audio with soundfile.
    stand_in = types.ModuleType("torchaudio")
    stand_in.__spec__ = importlib.machinery.ModuleSpec("torchaudio", None)
    vars(stand_in).update(__version__="2.13.0", list_audio_backends=lambda: ["soundfile"])
    sys.modules["torchaudio"] = stand_in

import speechbrain as sb
import torch
from penstock.dataio.dataloader import SaveableDataLoader, make_dataloader
from penstock.dataio.dataset import DynamicItemDataset
from penstock.dataio.sampler import DynamicBatchSampler
from speechbrain.utils.checkpoints import Checkpointer
from speechbrain.utils.epoch_loop import EpochCounter

import penstock as wds

COUNT = 40
LENGTHS = [100 + 97 * number % 900 for number in range(COUNT)]


def sound(number: int) -> torch.Tensor:
    return torch.full((LENGTHS[number],), number / COUNT)


def manifest() -> DynamicItemDataset:
    rows = {f"utt{n}": {"number": n, "length": length} for n, length in enumerate(LENGTHS)}
    dataset = DynamicItemDataset(rows)
    dataset.add_dynamic_item(sound, takes="number", provides="signal")
    dataset.set_output_keys(["id", "signal"])
    return dataset


def batches(dataset: DynamicItemDataset) -> DynamicBatchSampler:
    return DynamicBatchSampler(dataset, 4000, num_buckets=10, length_func=lambda x: x["length"])


def planned_loader(folder: Path) -> SaveableDataLoader:
    dataset = manifest()
    return make_dataloader(dataset, batch_sampler=batches(dataset))


def looped_loader(folder: Path) -> wds.LoopedLoader:
    """The loader of SpeechBrain's tutorial on shards."""
    if not (folder / "a-000000.tar").exists():
        with wds.ShardWriter(f"{folder}/a-%06d.tar", maxcount=10, verbose=0) as writer:
            for n in range(COUNT):
                writer.write({"__key__": f"utt{n}", "audio.pth": sound(n)})
    dataset = (
        wds.WebDataset(f"{folder}/a-{{000000..000003}}.tar", shardshuffle=4, seed=1)
        .decode()
        .rename(id="__key__", signal="audio.pth")
        .repeat()
        .then(
            wds.dynamic_bucketed_batch,
            len_key="signal",
            buffersize=16,
            sampler_kwargs={"target_batch_numel": 3000, "max_batch_numel": 4000},
        )
    )
    return make_dataloader(dataset, looped_nominal_epoch=6)


LOADERS = {"planned": planned_loader, "looped": looped_loader}


class SimpleBrain(sb.Brain):
    """Learns the mean of a signal; logs every step."""

    log: Path
    die_after: int | None = None

    def compute_forward(self, batch, stage):
        if self.optimizer_step == self.die_after:
            os.kill(os.getpid(), signal.SIGKILL)
        signals, lengths = batch.to(self.device).signal
        mask = sb.dataio.dataio.length_to_mask(lengths * signals.shape[1], signals.shape[1])
        return self.modules.model((signals * mask).mean(1, keepdim=True))

    def compute_objectives(self, predictions, batch, stage):
        loss = ((predictions - 1) ** 2).mean()
        with self.log.open("a") as file:
            file.write(json.dumps([self.epoch, list(batch.id), loss.item()]) + "\n")
        return loss

    def on_stage_start(self, stage, epoch=None):
        self.epoch = epoch


def make_brain(folder: Path, **options) -> SimpleBrain:
    torch.manual_seed(0)
    run_opts = {"device": "cpu", "noprogressbar": True, "ckpt_interval_minutes": 0}
    brain = SimpleBrain(
        {"model": torch.nn.Linear(1, 1)},
        opt_class=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        run_opts={**run_opts, **options.pop("run_opts", {})},
        **options,
    )
    brain.log = folder / "steps"
    return brain


def main(folder: Path, kind: str, die_after: int | None = None) -> None:
    loader, counter = LOADERS[kind](folder), EpochCounter(limit=3)
    checkpointer = Checkpointer(folder / "checkpoints", {"loader": loader, "counter": counter})
    brain = make_brain(folder, checkpointer=checkpointer, run_opts={"ckpt_interval_steps": 1})
    checkpointer.add_recoverable("model", brain.modules)
    brain.die_after = die_after
    brain.fit(counter, loader)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:]))
