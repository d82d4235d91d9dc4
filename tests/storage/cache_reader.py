"""A process that reads shards repeatedly through a cache and compares their bytes.

    python cache_reader.py STORE CACHE LIMIT PAUSE_S TIMES NAME...

Prints "reading NAME" after the first bytes of a shard and "read NAME" after the last. Exits with
status 3 if a byte is wrong.
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
                pieces: list[bytes] = []
                while piece := shard.read(100_000):
                    if not pieces:
                        print("reading", name, flush=True)
                    pieces.append(piece)
            if b"".join(pieces) != (Path(store) / name).read_bytes():
                print("wrong bytes", name, flush=True)
                return 3
            print("read", name, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
