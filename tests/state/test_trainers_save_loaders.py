"""The ways in which other libraries save and restore loaders, with ours."""

from __future__ import annotations

import json
import warnings
from itertools import islice

import accelerate
import lightning.pytorch as lightning
import pytest
import torch
import transformers
from lightning.fabric.utilities import types
from numbered import flat, number, plus_one, through_json
from torchdata.stateful_dataloader import StatefulDataLoader

import penstock as wds

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*worker processes in total"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]


def streaming(urls):
    return wds.WebDataset(urls, shardshuffle=3, empty_check=False).shuffle(5).map(number)


def indexed(urls, lanes=4):
    return wds.WebDataset(urls, index=True, shardshuffle=2, lanes=lanes).shuffle(8).map(number)


def stateful_loader(data, batch_size, **options):
    return StatefulDataLoader(data, batch_size, **options)


# ── torchdata's StatefulDataLoader over our data sets ───────────────────────────────────


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [streaming, indexed])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_torchdatas_stateful_loader_goes_on_at_every_third_step(urls, make, workers, batch_size):
    def loader():
        return stateful_loader(make(urls), batch_size, num_workers=workers)

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
    def loader():
        return stateful_loader(indexed(urls), None, num_workers=2)

    first = loader()
    epochs = [list(first) for _ in range(3)]
    second = loader()
    list(second)
    stream = iter(second)
    begun = [next(stream) for _ in range(5)]
    third = loader()
    third.load_state_dict(second.state_dict())
    assert [begun + list(third), list(third)] == epochs[1:]


def mapped(make):
    """A pipeline's items by way of another pipeline, whose epochs count."""
    return lambda urls: wds.DataPipeline(make(urls))


UNEVEN = {
    "three shards": lambda urls: streaming(urls[:3]),
    "five lanes": lambda urls: indexed(urls, lanes=5),
    "fewer lanes than workers": lambda urls: indexed(urls, lanes=1),
    "a length": lambda urls: wds.WebDataset(urls, resampled=True).map(number).with_epoch(9),
    "nested": mapped(lambda urls: streaming(urls[:3])),
    "replayed": lambda urls: streaming(urls[:3]).compose(every_second),
}
"""Data sets whose workers do not all end at the same step."""


def every_second(source):
    return (item for place, item in enumerate(source) if place % 2)


def plain(items):
    return [item.tolist() if hasattr(item, "tolist") else item for item in items]


@pytest.mark.filterwarnings("ignore:.*cannot save what it keeps")
@pytest.mark.parametrize("data", UNEVEN)
@pytest.mark.parametrize(
    ("workers", "batch_size", "persistent"),
    [(0, None, False), (0, 4, False), (2, None, False), (2, 4, False), (2, None, True)],
)
def test_torchdatas_stateful_loader_resumes_after_workers_have_ended(
    urls, data, workers, batch_size, persistent
):
    """Stopped near the end of an epoch and after it, with two epochs to come."""

    def loader():
        options = {"num_workers": workers, "persistent_workers": persistent}
        return stateful_loader(UNEVEN[data](urls), batch_size, **options)

    first = loader()
    seen, states = [], []
    for item in first:
        seen.append(item)
        states.append(through_json(first.state_dict()))
    states.append(through_json(first.state_dict()))  # after StopIteration
    wanted = [plain(seen), plain(first), plain(first)]
    assert len(set(map(str, wanted))) == 3
    for step in range(max(len(seen) - 4, 1), len(seen) + 1):
        second = loader()
        second.load_state_dict(states[step - 1])
        assert [plain(seen[:step]) + plain(second), plain(second), plain(second)] == wanted
    second = loader()
    second.load_state_dict(states[-1])
    assert [plain(second), plain(second)] == wanted[1:]


# ── Lightning: loaders with state_dict and load_state_dict are part of its checkpoints ──


def lightning_run(loader, folder, steps, checkpoint=None, *, save="after the run"):
    """The numbers of the batches that a Trainer gave to training, and where it saved."""
    seen, path = [], str(folder / f"at-{steps}.ckpt")

    class SaveLast(lightning.Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == steps and save == "in the last step":
                trainer.save_checkpoint(path)

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch, _):
            seen.append(batch)
            return self.layer(torch.tensor(batch, dtype=torch.float32)[:, None]).sum()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 1e-9)

    trainer = lightning.Trainer(
        max_steps=steps,
        max_epochs=-1,
        accelerator="cpu",
        callbacks=[SaveLast()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.fit(Model(), loader, ckpt_path=checkpoint, weights_only=False)
    if save == "after the run":
        trainer.save_checkpoint(path)
    return seen, path


@pytest.mark.parametrize("workers", [0, 2])
def test_lightnings_checkpoints_bring_the_loader_back(urls, tmp_path, workers):
    def loader():
        return wds.WebLoader(indexed(urls).listed(3), batch_size=None, num_workers=workers)

    all_batches, _ = lightning_run(loader(), tmp_path, 13)
    begun, path = lightning_run(loader(), tmp_path, 5)
    rest, _ = lightning_run(loader(), tmp_path, 13, path)
    assert begun + rest == all_batches
    assert len(rest) == 8


def loaded(data, workers=0):
    return wds.WebLoader(data.listed(3), batch_size=None, num_workers=workers)


def endless(urls):
    return wds.WebDataset(urls, resampled=True).map(number)


class Wrapper:
    """A program's own loader around another one: its epoch is begun by the first ``next()``."""

    def __init__(self, loader, most=None):
        self.loader, self.most = loader, most
        self.state_dict, self.load_state_dict = loader.state_dict, loader.load_state_dict

    def __iter__(self):
        yield from islice(self.loader, self.most)


class Pairs(Wrapper):
    """Takes two items for each batch."""

    def __iter__(self):
        stream = iter(self.loader)
        for first in stream:
            yield [first, *islice(stream, 1)]


def of_torch(dataset, kind=wds.SaveableDataLoader, **options):
    return kind(dataset, batch_size=3, collate_fn=list, **options)


def shuffled_list():
    torch.manual_seed(1)
    return of_torch(list(range(24)), shuffle=True)


WITHOUT_LENGTH = {
    "wrapped": lambda urls: Wrapper(loaded(streaming(urls))),
    "wrapped, workers": lambda urls: Wrapper(loaded(streaming(urls), workers=2)),
    "wrapped pipeline": lambda urls: Wrapper(streaming(urls).listed(3)),
    "pairs": lambda urls: Pairs(streaming(urls[:3])),
    "SaveableDataLoader": lambda urls: of_torch(streaming(urls)),
    "SaveableDataLoader, workers": lambda urls: of_torch(streaming(urls), num_workers=2),
    "wrapped SaveableDataLoader": lambda urls: Wrapper(of_torch(streaming(urls))),
    "wrapped SaveableDataLoader of a list": lambda urls: Wrapper(shuffled_list()),
    "torchdata": lambda urls: of_torch(streaming(urls), StatefulDataLoader),
    "a stream": lambda urls: loaded(streaming(urls)),
    "worker processes": lambda urls: loaded(streaming(urls), workers=2),
    "an epoch of the loader": lambda urls: loaded(endless(urls)).with_epoch(8),
    "an epoch of the data set": lambda urls: loaded(endless(urls).with_epoch(24)),
    "a pipeline": lambda urls: streaming(urls).listed(3),
    "stages after the loader": lambda urls: loaded(streaming(urls)).unlisted().shuffle(9).listed(3),
}


@pytest.mark.parametrize("save", ["after the run", "in the last step"])
@pytest.mark.parametrize("kind", WITHOUT_LENGTH)
def test_lightnings_checkpoints_do_not_count_the_batch_that_it_read_ahead(
    urls, tmp_path, kind, save
):
    if kind == "torchdata" and save == "after the run":
        pytest.skip("Lightning resets torchdata's loader when the run ends")
    make = WITHOUT_LENGTH[kind]
    all_batches, _ = lightning_run(make(urls), tmp_path, 18)
    assert all_batches[:8] != all_batches[8:16]
    for stop in (1, 5, 7, 8, 10, 16):  # within an epoch of eight steps, and at its end
        begun, path = lightning_run(make(urls), tmp_path, stop, save=save)
        rest, _ = lightning_run(make(urls), tmp_path, 18, path)
        assert (stop, begun + rest) == (stop, all_batches)


def test_lightning_fails_without_losing_the_batch_that_it_read_ahead(urls, tmp_path):
    def loader():
        return loaded(streaming(urls).map(fails_once))

    def fails_once(n):
        if n in failing:
            failing.clear()
            raise OSError("the disk is full")
        return n

    failing = set()
    first, second = loader(), loader()
    second.set_epoch(1)  # Lightning has called iter() once before
    whole = list(second)
    failing.add(whole[4][1])
    with pytest.raises(OSError, match="disk is full"):
        lightning_run(first, tmp_path, 8)
    second = loader()
    second.load_state_dict(through_json(first.state_dict()))
    assert list(second) == whole[3:]  # the fourth was read, and not trained on


def test_lightning_takes_our_loaders_for_stateful(urls):
    loader = wds.WebLoader(indexed(urls), batch_size=None)
    assert isinstance(loader, types._Stateful)
    assert isinstance(loader.unbatched().shuffle(3), types._Stateful)


# ── Accelerate: objects registered for checkpointing are saved with its states ──────────


def test_accelerates_checkpoints_bring_the_loader_back(urls, tmp_path):
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


def test_preparing_a_loader_says_what_to_register(urls):
    loader = wds.WebLoader(indexed(urls).listed(3), batch_size=None)
    with pytest.warns(UserWarning, match="register_for_checkpointing") as told:
        assert accelerate.Accelerator(cpu=True).prepare(loader) is loader
    assert len([one for one in told if "register" in str(one.message)]) == 1


def test_preparing_a_registered_loader_is_silent(urls):
    accelerator = accelerate.Accelerator(cpu=True)
    loader = wds.WebLoader(indexed(urls).listed(3), batch_size=None)
    accelerator.register_for_checkpointing(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        accelerator.prepare(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_skip_first_batches_takes_a_loader_and_warns_of_the_epoch(urls, workers):
    loader = wds.WebLoader(indexed(urls).listed(3), batch_size=None, num_workers=workers)
    wanted = list(indexed(urls).listed(3))
    with pytest.warns(UserWarning, match=r"next epoch may repeat .*set_epoch"):
        rest = accelerate.skip_first_batches(loader, 2)
    assert list(rest) == wanted[2:]


def test_skip_first_batches_refuses_a_loader_with_stages_after_it(urls):
    """Accelerate makes a DataLoader of the data set, without them."""
    loader = wds.WebLoader(indexed(urls).listed(3), batch_size=None).map(plus_one)
    with (
        pytest.raises(AttributeError, match="would lose the stages"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        accelerate.skip_first_batches(loader, 2)


def test_a_loader_has_the_attributes_of_torchs(urls):
    options = {"batch_size": 3, "num_workers": 2, "collate_fn": plus_one, "prefetch_factor": 5}
    loader = wds.WebLoader(indexed(urls), **options)
    plain_loader = torch.utils.data.DataLoader(indexed(urls), **options)
    for name in (*options, "drop_last", "pin_memory", "timeout", "persistent_workers", "in_order"):
        assert getattr(loader, name) == getattr(plain_loader, name)
    assert not hasattr(loader, "nonsense")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("dispatch", [False, True])
def test_a_loader_prepared_by_accelerate_has_no_state_of_our_data_set(urls, dispatch, workers):
    """It reads one batch ahead, and says so to nobody."""
    settings = accelerate.DataLoaderConfiguration(dispatch_batches=dispatch)
    accelerator = accelerate.Accelerator(cpu=True, dataloader_config=settings)
    data = indexed(urls)
    loader = torch.utils.data.DataLoader(data, batch_size=3, num_workers=workers)
    stream = iter(accelerator.prepare(loader))
    next(stream)
    with pytest.raises(wds.StateError, match=r"(a batch ahead|by a loader).* a WebLoader"):
        data.state_dict()


def test_a_saveable_loader_that_accelerate_prepared_has_no_state(tmp_path):
    accelerator = accelerate.Accelerator(cpu=True)
    loader = wds.SaveableDataLoader(range(24), batch_size=2, shuffle=True)
    accelerator.register_for_checkpointing(loader)
    next(iter(loader))
    accelerator.save_state(tmp_path / "alone")
    stream = iter(accelerator.prepare(loader))
    next(stream)
    for call in (accelerator.save_state, accelerator.load_state):
        with pytest.raises(wds.StateError, match=r"register_for_checkpointing instead of prepare"):
            call(tmp_path / "alone")


# ── The Hugging Face Trainer: a callback saves, and set_epoch comes from len() ──────────


def in_dict(numbers):
    return {"n": numbers}


def hugging_face_run(loader, folder, steps, checkpoint=None):
    """The numbers of the batches that a Trainer gave to training, and where it saved."""
    seen = []

    class SaveLoader(transformers.TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            path = f"{args.output_dir}/checkpoint-{state.global_step}/loader.json"
            with open(path, "w") as file:
                json.dump(loader.state_dict(), file)

    class Trainer(transformers.Trainer):
        def get_train_dataloader(self):
            return loader

        def compute_loss(self, model, inputs, **kwargs):
            seen.append(inputs["n"])
            return model(torch.ones(1, 1)).sum()

    arguments = transformers.TrainingArguments(
        str(folder),
        max_steps=steps,
        save_steps=steps,
        ignore_data_skip=True,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        optim="sgd",
    )
    trainer = Trainer(torch.nn.Linear(1, 1), arguments, callbacks=[SaveLoader()])
    if checkpoint is not None:
        with open(f"{checkpoint}/loader.json") as file:
            loader.load_state_dict(json.load(file))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trainer.train(resume_from_checkpoint=checkpoint)
    return seen, str(folder / f"checkpoint-{steps}")


def test_the_hugging_face_trainer_resumes_in_later_epochs_of_a_length(urls, tmp_path):
    def loader():
        return loaded(streaming(urls)).map(in_dict).with_length(8)

    all_batches, _ = hugging_face_run(loader(), tmp_path, 20)
    for stop in (3, 8, 10, 16, 17):
        begun, path = hugging_face_run(loader(), tmp_path, stop)
        rest, _ = hugging_face_run(loader(), tmp_path, 20, path)
        assert (stop, begun + rest) == (stop, all_batches)


def test_the_hugging_face_trainer_cannot_resume_later_epochs_without_a_length(urls, tmp_path):
    def loader():
        return loaded(streaming(urls)).map(in_dict)

    _, path = hugging_face_run(loader(), tmp_path, 11)
    with pytest.raises(
        wds.StateError, match=r"in epoch 1, but set_epoch\(\) .* epoch 0.*with_length"
    ):
        hugging_face_run(loader(), tmp_path, 20, path)


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
