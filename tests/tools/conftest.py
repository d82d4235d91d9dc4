"""The real command in a real shell, and shards to run it on."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tool_shards import picture

import penstock as wds

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def program(tmp_path_factory):
    """A folder with an executable ``penstock``."""
    folder = tmp_path_factory.mktemp("bin")
    script = folder / "penstock"
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m penstock "$@"\n')
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return folder


@pytest.fixture
def shell(program, tmp_path):
    """Runs a line in bash, in ``tmp_path``; returns what ``subprocess.run`` does."""

    def run(line, **variables):
        environment = {
            **os.environ,
            "PATH": f"{program}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT / 'src'}",
            **variables,
        }
        return subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.fixture
def shards(tmp_path):
    """``shards/train-{000000..000001}.tar`` with five samples each: jpg, cls, txt, json."""
    (tmp_path / "shards").mkdir()
    pattern = str(tmp_path / "shards" / "train-%06d.tar")
    with wds.ShardWriter(pattern, maxcount=5, encoder=False) as sink:
        for number in range(10):
            sink.write(
                {
                    "__key__": f"k{number:03d}",
                    "jpg": picture(number),
                    "cls": str(number % 3).encode(),
                    "txt": f"a picture of {number} apples".encode(),
                    "json": json.dumps({"id": number, "tags": ["a", "b"]}).encode(),
                }
            )
    return "shards/train-{000000..000001}.tar"


@pytest.fixture
def kills(request):
    """How often a command is killed; the long checks of ``dev.py soak`` do more."""
    return request.config.getoption("--kills")
