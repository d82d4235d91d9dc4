"""Read a shard and print its memory use as JSON; memory.py runs this in a fresh process.

    python benchmarks/peak.py LIBRARY URL SHUFFLE

It imports as little as possible, so that reading cannot reuse memory freed by imports.
"""

from __future__ import annotations

import sys


def status_kilobytes(field: str) -> int:
    """Return a field: ``VmRSS`` is the current resident memory, ``VmHWM`` its peak."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(field))


def main(library: str, url: str, shuffle: int) -> None:
    module = __import__(library)
    dataset = module.WebDataset(url, shardshuffle=False)
    if shuffle:
        dataset = dataset.shuffle(shuffle)
    try:
        with open("/proc/self/clear_refs", "w") as peak:
            peak.write("5")  # reset the peak, so that the imports' peak is not counted
    except OSError:
        pass  # the peak may be that of the imports; the growth is then an upper bound
    before = status_kilobytes("VmRSS")
    number = 0
    for _ in dataset:
        number += 1
    after = status_kilobytes("VmHWM")
    print(f'{{"samples": {number}, "before_kb": {before}, "peak_kb": {after}}}')


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
