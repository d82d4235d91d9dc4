"""Write golden files with the installed version: ``python tests/golden/make.py FOLDER``.

Run it once for a version, before the code changes. ``test_golden.py`` checks that later versions
load what it wrote. It never overwrites a file.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import sys
import threading
from pathlib import Path

from pipelines import FOLLOWING, PIPELINES, SHARDS, STOP, take

import penstock as wds


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    os.chdir(folder)
    with wds.ShardWriter("numbers-%03d.tar", maxcount=16, verbose=0, index=True) as writer:
        for n in range(64):
            writer.write({"__key__": f"s{n:04d}", "cls": n, "json": {"n": n}})
    times = {path.name: path.stat().st_mtime_ns for path in sorted(Path(".").glob("*.tar"))}
    Path("mtimes.json").write_text(json.dumps(times) + "\n")
    states = {}
    for name, make in PIPELINES.items():
        pipeline = make()
        stream = iter(pipeline)
        take(stream, STOP)
        state = json.loads(json.dumps(pipeline.state_dict()))
        states[name] = {"state": state, "following": take(stream, FOLLOWING)}
    Path("states.json").write_text(json.dumps(states, separators=(",", ":")) + "\n")
    write_shard_cache()
    list(wds.DataPipeline(wds.WebDataset(SHARDS), wds.DBCache("samples.db", 100)))


def write_shard_cache() -> None:
    """Fill a shard cache from a server, as ``cache_dir=`` does."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=".")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        list(wds.WebDataset(f"{base}/numbers-000.tar", cache_dir="cache", shardshuffle=False))
        server.shutdown()


if __name__ == "__main__":
    main()
