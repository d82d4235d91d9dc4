"""One process of a distributed job in test_ranks.py: trains, and reports the samples it saw."""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from numbered import end_rank
from torch.nn.parallel import DistributedDataParallel

import penstock as wds


def numbers(sample):
    return int(sample["cls"]), bool(sample.get("__pad__", False))


def make_data(plan):
    data = wds.WebDataset(
        plan["urls"],
        index=True,
        shardshuffle=2,
        ends=plan["ends"],
        lanes=plan["lanes"],
        seed=1,
    )
    return data.map(numbers).batched(plan["batch"])


def make_loader(plan):
    data = make_data(plan)
    if plan["workers"] is None:
        return data
    return wds.WebLoader(data, batch_size=None, num_workers=plan["workers"])


def run_epoch(loader, model, optimizer, sync):
    """Run one epoch; return the numbers of every batch, and which of them are padding."""
    seen = []
    for cls, pads in loader:
        seen.append([[int(n), bool(pad)] for n, pad in zip(cls, pads)])
        out = model(torch.as_tensor(cls, dtype=torch.float32)[:, None]).sum()
        if sync:  # the gradients are summed over the ranks: a rank with more batches would hang
            optimizer.zero_grad()
            out.backward()
            optimizer.step()
    return seen


def train(plan):
    """Train some epochs on this rank of the group."""
    sync = plan["ends"] != "exact"
    torch.manual_seed(0)
    model: torch.nn.Module = torch.nn.Linear(1, 1)
    model = DistributedDataParallel(model) if sync else model
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    loader = make_loader(plan)
    epochs = []
    for _ in range(plan["epochs"]):
        epochs.append(run_epoch(loader, model, optimizer, sync))
        dist.barrier()
    return {"len": len(loader), "epochs": epochs}


def main(folder, rank, world):
    torch.set_num_threads(1)
    # The rank comes from torch.distributed here, not from variables.
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=60),
    )
    with open(f"{folder}/plans.json") as file:
        plans = json.load(file)
    with open(f"{folder}/told-{rank}.json", "w") as file:
        json.dump([train(plan) for plan in plans], file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
    end_rank()
