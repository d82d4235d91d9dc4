"""What a type checker says about programs that use the library."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
PROGRAM = """
from typing import Any, assert_type

import penstock as wds
from penstock.shards.sample_reader import Sample

dataset = wds.WebDataset("x.tar", index=True)
assert_type(len(dataset), int)
loader = wds.WebLoader(dataset, batch_size=None, num_workers=2, engine="threads")
for sample in loader:
    assert_type(sample, Sample)
assert_type(wds.WebLoader(dataset, batch_size=4), wds.WebLoader[Any])
wds.WebLoader([1, 2], batch_size=None, collate_fn=str, prefetch_factor=2, device="cpu")
wds.WebLoader(dataset, engine="thread")  # type: ignore[call-overload]
wds.WebLoader(dataset, num_worker=2)  # type: ignore[call-overload]
"""


def test_loader_is_generic_and_checks_its_arguments(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = subprocess.run(  # strict: an ignore that nothing needs is an error too
        [sys.executable, "-m", "mypy", "--strict", str(program)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
