"""A process that reads shards through a cache, again and again, and compares their bytes.

    python cache_reader.py STORE CACHE LIMIT PAUSE_S TIMES NAME...

Prints "read NAME" after each; a wrong byte ends it with status 3.
"""

from __future__ import annotations

import random
import sys
import warnings
from pathlib import Path

from slow_store import install

from penstock.storage.cache.shard_cache import ShardCache


def main() -> int:
    store, folder, limit, pause_s, times, *names = sys.argv[1:]
    warnings.simplefilter("ignore")
    install(store, pause_s=float(pause_s))
    cache = ShardCache(folder, int(limit) if int(limit) >= 0 else None)
    order = random.Random()
    for _ in range(int(times)):
        for name in order.sample(names, len(names)):
            with cache.open(f"slow://{name}") as shard:
                pieces = []
                while piece := shard.read(100_000):
                    pieces.append(piece)
            if b"".join(pieces) != (Path(store) / name).read_bytes():
                print("wrong bytes", name, flush=True)
                return 3
            print("read", name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
