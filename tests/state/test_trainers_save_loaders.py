"""The ways in which other libraries save and restore loaders, with ours."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from numbered import flat, number

import penstock as wds

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*worker processes in total"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def streaming(urls):
    return wds.WebDataset(urls, shardshuffle=3, empty_check=False).shuffle(5).map(number)


def indexed(urls):
    return wds.WebDataset(urls, index=True, shardshuffle=2, lanes=4).shuffle(8).map(number)


def through_json(state):
    return json.loads(json.dumps(state))


# ── torchdata's StatefulDataLoader over our data sets ───────────────────────────────────


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [streaming, indexed])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_torchdatas_stateful_loader_goes_on_at_every_third_step(urls, make, workers, batch_size):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader():
        return stateful.StatefulDataLoader(make(urls), batch_size, num_workers=workers)

    def plain(items):
        return [item.tolist() if hasattr(item, "tolist") else item for item in items]

    first = loader()
    states, items = [], []
    for item in first:
        items.append(item)
        states.append(first.state_dict())
    seen = plain(items)
    assert sorted(flat(seen) if batch_size else seen) == list(range(24))
    for step in range(0, len(items) - 1, 3):
        second = loader()
        second.load_state_dict(states[step])
        assert plain(second) == plain(items[step + 1 :])


def test_torchdatas_stateful_loader_goes_on_into_the_next_epochs(urls):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader():
        return stateful.StatefulDataLoader(indexed(urls), None, num_workers=2)

    first = loader()
    epochs = [list(first) for _ in range(3)]
    second = loader()
    list(second)
    stream = iter(second)
    begun = [next(stream) for _ in range(5)]
    third = loader()
    third.load_state_dict(second.state_dict())
    assert [begun + list(third), list(third)] == epochs[1:]


# ── Lightning: loaders with state_dict and load_state_dict are part of its checkpoints ──


def lightning_run(urls, folder, steps, checkpoint=None, workers=0):
    """The numbers of the batches that a Trainer gave to training, and where it saved."""
    lightning = pytest.importorskip("lightning.pytorch")
    seen = []

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, _):
            seen.append(batch)
            return self.layer(torch.tensor(batch, dtype=torch.float32)[:, None]).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-9)

    data = indexed(urls).listed(3)
    loader = wds.WebLoader(data, batch_size=None, num_workers=workers)
    trainer = lightning.Trainer(
        max_steps=steps,
        max_epochs=-1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(Model(), loader, ckpt_path=checkpoint, weights_only=False)
    path = str(folder / f"at-{steps}.ckpt")
    trainer.save_checkpoint(path)
    return seen, path


@pytest.mark.parametrize("workers", [0, 2])
def test_lightnings_checkpoints_bring_the_loader_back(urls, tmp_path, workers):
    all_batches, _ = lightning_run(urls, tmp_path, 13, workers=workers)
    begun, path = lightning_run(urls, tmp_path, 5, workers=workers)
    rest, _ = lightning_run(urls, tmp_path, 13, path, workers)
    assert begun + rest == all_batches
    assert len(rest) == 8


def test_lightning_takes_our_loaders_for_stateful(urls):
    types = pytest.importorskip("lightning.fabric.utilities.types")
    loader = wds.WebLoader(indexed(urls), batch_size=None)
    assert isinstance(loader, types._Stateful)
    assert isinstance(loader.unbatched().shuffle(3), types._Stateful)


# ── Accelerate: objects registered for checkpointing are saved with its states ──────────


def test_accelerates_checkpoints_bring_the_loader_back(urls, tmp_path):
    accelerate = pytest.importorskip("accelerate")

    def begin():
        accelerator = accelerate.Accelerator(cpu=True)
        loader = wds.WebLoader(indexed(urls).listed(3), batch_size=None, num_workers=2)
        accelerator.register_for_checkpointing(loader)
        return accelerator, loader

    accelerator, loader = begin()
    stream = iter(loader)
    next(stream), next(stream)
    accelerator.save_state(str(tmp_path))
    rest = list(stream)
    accelerator, second = begin()
    accelerator.load_state(str(tmp_path))
    assert list(second) == rest


# ── Their protocol, without them ────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["pipeline", "loader", "stages behind a loader"])
def test_state_dict_and_load_state_dict_are_all_that_a_trainer_needs(urls, kind):
    def make():
        data = indexed(urls)
        if kind == "pipeline":
            return data
        loader = wds.WebLoader(data, batch_size=None, num_workers=2)
        return loader if kind == "loader" else loader.listed(3).unlisted()

    first = make()
    before = through_json(first.state_dict())
    stream = iter(first)
    begun = [next(stream) for _ in range(10)]
    state = through_json(first.state_dict())
    rest = list(stream)
    second = make()
    second.load_state_dict(state)
    assert through_json(second.state_dict()) == state  # saved again before the first step
    assert list(second) == rest
    third = make()
    third.load_state_dict(before)
    assert list(third) == begun + rest
