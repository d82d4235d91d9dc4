"""What one process of a distributed job does in test_ranks.py: trains, and tells what it saw."""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import penstock as wds


def numbers(sample):
    return int(sample["cls"]), bool(sample.get("__pad__", False))


def data_of(plan):
    data = wds.WebDataset(
        plan["urls"],
        index=True,
        shardshuffle=2,
        ends=plan["ends"],
        lanes=plan["lanes"],
        seed=1,
    )
    return data.map(numbers).batched(plan["batch"])


def loader_of(plan):
    data = data_of(plan)
    if plan["workers"] is None:
        return data
    return wds.WebLoader(data, batch_size=None, num_workers=plan["workers"])


def epoch_of(loader, model, optimizer, sync):
    """One epoch: the numbers of every batch, and which of them are pads."""
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
    """Some epochs of training, on this rank of the group."""
    sync = plan["ends"] != "exact"
    torch.manual_seed(0)
    model = torch.nn.Linear(1, 1)
    model = DistributedDataParallel(model) if sync else model
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    loader = loader_of(plan)
    told = {"len": len(loader), "epochs": []}
    for _ in range(plan["epochs"]):
        told["epochs"].append(epoch_of(loader, model, optimizer, sync))
        dist.barrier()
    return told


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
