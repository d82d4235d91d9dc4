"""SpeechBrain's own ``Brain`` and ``Checkpointer`` with penstock's data sets and loaders.

SpeechBrain needs torchaudio, for which not every build of torch has a wheel, and is therefore not
installed with the other test packages. In an environment of its own:

    pip install -c constraints.txt -e '.[torch,audio,index]' pytest hypothesis webdataset==1.0.2
    pip install --no-deps speechbrain
    pip install hyperpyyaml joblib packaging scipy sentencepiece tqdm huggingface_hub
    pytest tests/state/test_speechbrain.py

Where torchaudio is missing, an empty module takes its place.
"""

from __future__ import annotations

import importlib.util
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("speechbrain") is None:
    pytest.skip("speechbrain is not installed", allow_module_level=True)

from speechbrain_trainer import (
    COUNT,
    LENGTHS,
    batches,
    looped_loader,
    make_brain,
    manifest,
    planned_loader,
)

import penstock as wds

TRAINER = Path(__file__).parent / "speechbrain_trainer.py"


def steps(folder):
    return [json.loads(line) for line in (folder / "steps").read_text().splitlines()]


def test_a_brain_trains_on_batches_of_a_dynamic_batch_sampler(tmp_path):
    dataset, brain = manifest(), make_brain(tmp_path)
    options = {"batch_sampler": batches(dataset), "collate_fn": wds.PaddedBatch}
    brain.fit(range(3), dataset, train_loader_kwargs=options)
    epochs = [[ids for epoch, ids, _ in steps(tmp_path) if epoch == number] for number in range(3)]
    for batch in epochs:
        assert sorted(sum(batch, [])) == sorted(f"utt{n}" for n in range(COUNT))  # noqa: RUF017
        for ids in batch:
            assert len(ids) * max(LENGTHS[int(uid[3:])] for uid in ids) <= 4000
    assert epochs[0] != epochs[1] != epochs[2]


def test_a_batch_sampler_in_run_opts_is_refused_or_ignored_by_speechbrain(tmp_path):
    dataset = manifest()
    options = {"batch_sampler": batches(dataset)}
    if importlib.util.find_spec("speechbrain.utils.run_opts") is not None:  # since version 1.1
        with pytest.raises(TypeError, match="batch_sampler"):
            make_brain(tmp_path, run_opts=options)
        return
    brain = make_brain(tmp_path, run_opts=options)
    brain.fit(range(1), dataset, train_loader_kwargs={"collate_fn": wds.PaddedBatch})
    assert all(len(ids) == 1 for _, ids, _ in steps(tmp_path))


@pytest.mark.parametrize("kind", ["planned", "looped"])
def test_training_that_was_killed_resumes_with_the_same_batches_and_losses(tmp_path, kind):
    def train(name, *die_after):
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        words = [str(TRAINER), str(folder), kind, *map(str, die_after)]
        return subprocess.run([sys.executable, *words]).returncode, steps(folder)

    status, whole = train("whole")
    assert status == 0
    epochs = [epoch for epoch, _, _ in whole]
    assert set(epochs) == {1, 2, 3}
    last = epochs.count(1)  # step of the first epoch, after which there is a checkpoint, too
    for stop in (last, last + 2):
        assert train(f"killed {stop}", stop) == (-signal.SIGKILL, whole[:stop])
        assert train(f"killed {stop}") == (0, whole)


def test_a_loader_without_nominal_epochs_is_iterated_as_it_is(tmp_path):
    loader = looped_loader(tmp_path).loader
    brain = make_brain(tmp_path, run_opts={"optimizer_step_limit": 4})
    brain.fit(range(1), loader, train_loader_kwargs={"batch_size": None})
    assert len(steps(tmp_path)) == 4


def test_the_program_of_the_manual_runs(tmp_path, monkeypatch):
    page = Path(__file__).parents[2] / "docs" / "manifests.md"
    blocks = re.findall(r"^```py(?:thon)?\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    assert any("class SimpleBrain" in block for block in blocks)
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "manual"}
    exec("\n".join(blocks), space)
    assert space["epochs"].current == 2


def test_the_loader_of_the_tutorial_is_one_of_speechbrains(tmp_path):
    from speechbrain.dataio.dataloader import LoopedLoader

    loader = looped_loader(tmp_path)
    assert isinstance(loader, LoopedLoader)
    assert isinstance(loader, wds.LoopedLoader)
    assert [len(list(loader)) for _ in range(2)] == [6, 6]


def test_the_checkpointer_saves_both_loaders(tmp_path):
    from speechbrain.utils.checkpoints import Checkpointer

    def make():
        return {"planned": planned_loader(tmp_path), "looped": looped_loader(tmp_path)}

    loaders = make()
    streams = {name: iter(loader) for name, loader in loaders.items()}
    for stream in streams.values():
        next(stream)
    Checkpointer(tmp_path / "saved", loaders).save_checkpoint(end_of_epoch=False)
    others = make()
    Checkpointer(tmp_path / "saved", others).recover_if_possible()
    for name, stream in streams.items():
        assert [batch.id for batch in others[name]] == [batch.id for batch in stream]


def test_a_pipeline_of_the_package_webdataset_gets_no_second_batching(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    looped_loader(tmp_path)  # writes the shards
    pipeline = (
        webdataset.WebDataset(f"{tmp_path}/a-{{000000..000003}}.tar", shardshuffle=False)
        .decode()
        .rename(id="__key__", signal="audio.pth")
        .batched(8, collation_fn=wds.PaddedBatch)
    )
    loader = wds.make_dataloader(pipeline)
    assert [len(batch) for batch in loader] == [8] * 5
    assert next(iter(loader)).signal.data.shape[0] == 8
