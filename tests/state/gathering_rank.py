"""One rank of test_one_state_for_all_ranks.py: saves state_dict(), on rank 0 only."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from itertools import islice

import torch
import torch.distributed as dist
from numbered import end_rank, number

import penstock as wds


def make(urls):
    data = wds.WebDataset(urls, shardshuffle=3, nodesplitter=wds.split_by_node, empty_check=False)
    return wds.WebLoader(data.map(number).shuffle(9).listed(3), batch_size=None)


def main(folder, rank):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/meeting",
        rank=rank,
        world_size=2,
        timeout=timedelta(seconds=120),
    )
    with open(f"{folder}/urls.json") as file:
        urls = json.load(file)
    told = {"describe": make(urls).describe()}
    reference = make(urls)
    told["whole"], told["next"] = list(reference), list(reference)
    first = make(urls)
    stream = iter(first)
    told["begun"] = list(islice(stream, 7))
    told["rest"] = list(resumed(urls, first))
    told["last"] = list(stream)
    told["complete"] = list(resumed(urls, first))
    with open(f"{folder}/told-{rank}.json", "w") as file:
        json.dump(told, file)
    dist.destroy_process_group()


def resumed(urls, loader):
    """Return a new loader that resumes from the state of rank 0."""
    state = loader.state_dict()
    box = [json.dumps(state) if dist.get_rank() == 0 else ""]
    dist.broadcast_object_list(box, src=0)
    again = make(urls)
    again.load_state_dict(json.loads(box[0]))
    return again


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
    end_rank()
