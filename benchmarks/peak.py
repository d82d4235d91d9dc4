"""Read a shard and print, as JSON, how much memory that took: a fresh process of memory.py.

    python benchmarks/peak.py LIBRARY URL SHUFFLE

It imports as little as it can, so that no memory freed by its own imports hides what reading takes.
"""

from __future__ import annotations

import sys


def status_kilobytes(field: str) -> int:
    """``VmRSS``: resident now. ``VmHWM``: the most that ever was."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))


def main(library: str, url: str, shuffle: int) -> None:
    module = __import__(library)
    dataset = module.WebDataset(url, shardshuffle=False)
    if shuffle:
        dataset = dataset.shuffle(shuffle)
    try:
        with open("/proc/self/clear_refs", "w") as peak:
            peak.write("5")  # what the imports took at their worst does not count as room
    except OSError:
        pass  # then the peak may be theirs, and the growth told is an upper bound
    before = status_kilobytes("VmRSS")
    number = 0
    for _ in dataset:
        number += 1
    after = status_kilobytes("VmHWM")
    print(f'{{"samples": {number}, "before_kb": {before}, "peak_kb": {after}}}')


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
