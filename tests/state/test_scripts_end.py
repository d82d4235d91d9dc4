"""A script that ends with open shards ends silently."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import penstock as wds
import penstock.shards.index.random_access as module

stream = iter(wds.WebDataset({urls!r}, index=True, shardshuffle=2))
kept = [next(stream) for _ in range(20)]
for name in ("_OpenShard", "_REOPENED", "os"):  # as Python does when it ends
    setattr(module, name, None)
"""


def test_open_shards_close_without_a_message_when_a_script_ends(urls):
    command = [sys.executable, "-c", SCRIPT.format(urls=urls)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
