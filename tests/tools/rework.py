"""What the tests of the commands that write shards share: keys, other readers, kills."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest

import penstock as wds


def keys(*shards):
    """The keys of all samples, shard by shard."""
    return [sample["__key__"] for shard in shards for sample in wds.WebDataset(str(shard))]


def digests(folder):
    """Name → SHA-256 of every file below a folder."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def shards_in(folder):
    return {name: digest for name, digest in digests(folder).items() if name.endswith(".tar")}


def check_other_readers(shard):
    """GNU tar, tarfile and WebDataset read the same keys as penstock does."""
    names = subprocess.run(["tar", "tf", shard], check=True, capture_output=True, text=True).stdout
    with tarfile.open(shard) as archive:
        assert archive.getnames() == names.split()
    if importlib.util.find_spec("webdataset") is None:
        return  # the extra "readers" installs it
    code = (
        "import sys, webdataset\n"
        "for sample in webdataset.WebDataset(sys.argv[1], shardshuffle=False):\n"
        "    print(sample['__key__'])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(shard)],
        capture_output=True,
        text=True,
    )
    if "No module named" in done.stderr:
        pytest.skip("WEBDATASET CANNOT BE IMPORTED")
    assert done.stdout.split("\n")[:-1] == keys(shard), done.stderr


def wait_for_group(group):
    """Wait until killed workers are gone: until then they hold the locks of their files."""
    end = time.monotonic() + 5
    with contextlib.suppress(ProcessLookupError):
        while time.monotonic() < end:
            os.killpg(group, 0)
            time.sleep(0.01)


def kill_and_repeat(command, folder, rounds, program):
    """Kill a command at random moments, run it to its end, and return what is then there.

    ``folder`` is the working directory; the outputs are in ``folder/out``.
    """
    environment = {
        **os.environ,
        "PATH": f"{program}:{os.environ['PATH']}",
        "PYTHONPATH": str(Path(wds.__file__).parents[1]),
    }
    started = time.monotonic()
    subprocess.run(
        ["bash", "-c", command.replace("out/", "whole/")],
        cwd=folder,
        env=environment,
        check=True,
        capture_output=True,
    )
    whole_s = time.monotonic() - started
    for _ in range(rounds):
        process = subprocess.Popen(
            ["bash", "-c", f"exec {command}"],
            cwd=folder,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        time.sleep(random.uniform(0.3, 1.0) * whole_s)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        wait_for_group(process.pid)
        for path in Path(folder, "out").glob("*.tar"):
            with tarfile.open(path) as archive:  # complete, if it is visible
                archive.getnames()
    done = subprocess.run(
        ["bash", "-c", command], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = {path.name for path in Path(folder, "out").iterdir()}
    wanted = {path.name for path in Path(folder, "whole").iterdir()}
    assert found == wanted, (found ^ wanted, done.stderr)
    assert shards_in(folder / "out") == shards_in(folder / "whole")
