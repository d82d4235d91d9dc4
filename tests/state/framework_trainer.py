"""Training programs that test_trainers_killed.py kills, each with a different library.

Run as ``framework_trainer.py KIND FOLDER``. A training resumes from the checkpoint in FOLDER if
there is one, and logs the loss of every step. With the variable ``STOP`` set it waits after that
step, to be killed. ``RANK`` and ``WORLD_SIZE`` identify the process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from glob import glob

import torch
from numbered import end_rank, number

import penstock as wds

EPOCHS, EVERY = 2, 4


class Model(torch.nn.Module):
    """Predicts the number of a sample from itself; its losses depend on the order of samples."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(1, 1)

    def forward(self, x, labels=None, **_):
        loss = (self.layer(x) - x).square().mean()
        return {"loss": loss} if labels is not None else loss


def row(sample):
    x = number(sample) / 48
    return {"x": torch.tensor([x]), "labels": torch.tensor([x])}


def indexed(folder):
    """With an index and lanes, the state of one rank is enough."""
    urls = f"{folder}/d{{000..003}}.tar"
    data = wds.WebDataset(urls, index=True, shardshuffle=2, lanes=4, ends="drop").map(row)
    # Workers that stay: a fork beside threads of torch that enter Python can hang (CPython 3.11).
    return wds.WebLoader(data.batched(4), batch_size=None, num_workers=2, persistent_workers=True)


def shuffled(folder):
    """With a shuffle buffer, the states of all ranks are gathered."""
    urls = f"{folder}/d{{000..003}}.tar"
    data = wds.WebDataset(urls, shardshuffle=4, nodesplitter=wds.split_by_node, empty_check=False)
    return wds.WebLoader(data.shuffle(20).map(row).batched(4), batch_size=None)


class Log:
    """The losses of this rank; waits after the step of the variable STOP."""

    def __init__(self, folder):
        rank = os.environ.get("RANK", "0")
        self.path, self.ready = f"{folder}/losses-{rank}", f"{folder}/ready-{rank}"

    def __call__(self, step, loss):
        with open(self.path, "a") as file:
            file.write(f"{step} {float(loss).hex()}\n")
        if step == int(os.environ.get("STOP", "-1")):
            with open(self.ready, "w"):
                pass
            signal.pause()


def ddp(folder, log):
    import torch.distributed as dist

    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    loader, step, epoch = shuffled(folder), 0, 0
    path = f"{folder}/checkpoint.pt"
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["data"])
        step, epoch = saved["step"], saved["epoch"]
    for epoch in range(epoch, EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            loss = model(batch["x"])
            loss.backward()
            optimizer.step()
            step += 1
            if step % EVERY == 0:
                data = loader.state_dict()  # on every rank: the ranks exchange their states
                if dist.get_rank() == 0:
                    parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                    torch.save({**parts, "data": data, "step": step, "epoch": epoch}, path)
            log(step, loss.detach())
    dist.barrier()  # gloo aborts a process whose peer has ended
    dist.destroy_process_group()


def lightning(folder, log, make=indexed):
    import lightning.pytorch as pl

    class Module(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _):
            return self.model(batch["x"])

        def on_train_batch_end(self, outputs, batch, batch_idx):
            log(self.global_step, outputs["loss"])

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1, momentum=0.9)

    checkpoints = pl.callbacks.ModelCheckpoint(
        f"{folder}/checkpoints", every_n_train_steps=EVERY, save_top_k=-1
    )
    trainer = pl.Trainer(
        max_epochs=EPOCHS,
        accelerator="cpu",
        strategy="ddp",
        devices=int(os.environ["WORLD_SIZE"]),
        callbacks=[checkpoints],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,
    )
    found = sorted(glob(f"{folder}/checkpoints/*.ckpt"), key=os.path.getmtime)
    last = found[-1] if found else None
    trainer.fit(Module(), make(folder), ckpt_path=last, weights_only=False)


def lightning_stream(folder, log):
    """A loader without a length, which Lightning reads one batch ahead."""
    lightning(folder, log, shuffled)


def accelerate(folder, log):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model, loader = Model(), indexed(folder)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(loader)
    step, path = 0, f"{folder}/checkpoint"
    if os.path.exists(f"{path}/step"):
        accelerator.load_state(path)
        with open(f"{path}/step") as file:
            step = int(file.read())
    for _ in range(step // 12, EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            loss = model(batch["x"])
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % EVERY == 0:
                accelerator.save_state(path)
                with open(f"{path}/step", "w") as file:
                    file.write(str(step))
            log(step, loss)


def transformers(folder, log):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    loader = indexed(folder)

    class SaveLoader(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            path = f"{args.output_dir}/checkpoint-{state.global_step}/loader.json"
            with open(path, "w") as file:
                json.dump(loader.state_dict(), file)

    class LoaderTrainer(Trainer):
        loss = None

        def get_train_dataloader(self):
            return loader

        def training_step(self, *args, **kwargs):
            self.loss = super().training_step(*args, **kwargs)
            return self.loss

    class LogLosses(TrainerCallback):
        """One step late: a checkpoint is saved after the callbacks of its step."""

        def on_step_begin(self, args, state, control, **kwargs):
            if trainer.loss is not None:
                log(state.global_step, trainer.loss)

        def on_train_end(self, args, state, control, **kwargs):
            log(state.global_step, trainer.loss)

    arguments = TrainingArguments(
        f"{folder}/checkpoints",
        num_train_epochs=EPOCHS,
        save_steps=EVERY,
        ignore_data_skip=True,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        learning_rate=0.1,
        optim="sgd",
    )
    trainer = LoaderTrainer(Model(), arguments, callbacks=[SaveLoader(), LogLosses()])
    found = sorted(glob(f"{folder}/checkpoints/checkpoint-*/loader.json"), key=os.path.getmtime)
    if found:
        with open(found[-1]) as file:
            loader.load_state_dict(json.load(file))
    trainer.train(resume_from_checkpoint=os.path.dirname(found[-1]) if found else None)


if __name__ == "__main__":
    torch.set_num_threads(1)
    kinds = {
        one.__name__: one for one in (ddp, lightning, lightning_stream, accelerate, transformers)
    }
    kinds[sys.argv[1]](sys.argv[2], Log(sys.argv[2]))
    if "WORLD_SIZE" in os.environ:
        end_rank()
