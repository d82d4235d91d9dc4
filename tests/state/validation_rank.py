"""A rank of a validation that test_validation.py runs: prints what it added up.

Run as ``validation_rank.py STAGES URL…`` with the variables that torchrun sets.
"""

from __future__ import annotations

import json
import sys

import torch
import torch.distributed as dist
from numbered import end_rank

import penstock as wds

BATCH = 13


def make(kind, urls):
    data = wds.WebDataset(urls, index=True, shardshuffle=2, ends="pad").decode()
    if kind == "dicts":
        return wds.WebLoader(data.batched(BATCH), batch_size=None, num_workers=2)
    if kind == "rebatched":
        return wds.WebLoader(data.to_tuple("cls", "__pad__"), batch_size=5).unbatched().batched(4)
    return wds.WebLoader(data.to_tuple("cls", "__pad__").batched(BATCH), batch_size=None)


def main(kind, *urls):
    dist.init_process_group("gloo")
    total = torch.zeros(3, dtype=torch.float64)
    steps = 0
    for batch in make(kind, list(urls)):
        numbers, padding = (
            (batch["cls"], batch["__pad__"]) if kind == "dicts" else map(torch.as_tensor, batch)
        )
        assert padding.dtype == torch.bool, padding
        total += torch.tensor([numbers[~padding].sum(), (~padding).sum(), padding.sum()])
        steps += 1
        dist.all_reduce(torch.ones(1))  # as DDP: hangs unless all ranks take as many steps
    dist.all_reduce(total)
    print(json.dumps([steps, *total.int().tolist()]), flush=True)
    end_rank()


if __name__ == "__main__":
    main(*sys.argv[1:])
