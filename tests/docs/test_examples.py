"""The scripts in examples/ run as a user would run them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIGITS = ROOT / "examples" / "train_digits.py"  # takes a minute; has a test in a small form
EXAMPLES = sorted(set((ROOT / "examples").glob("*.py")) - {DIGITS})


def run(example: Path, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(example), *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_keeps_its_shards_in_the_folder_given(
    example: Path, tmp_path: Path
) -> None:
    if re.search(r"^(import|from) torch", example.read_text(), re.MULTILINE):
        if importlib.util.find_spec("torch") is None:
            pytest.skip("needs torch")
        assert "torch" in (example.read_text().split('"""')[1]), "its docstring must say so"
    assert run(example, "shards", cwd=tmp_path)
    assert list((tmp_path / "shards").glob("*.tar"))


def test_an_example_without_a_folder_leaves_nothing_behind(tmp_path: Path) -> None:
    run(ROOT / "examples" / "quickstart.py", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_digits_are_learnt_from_planned_batches(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("soundfile")
    said = run(DIGITS, "shards", "--small", cwd=tmp_path)
    assert "planned batches" in said
    right = [float(share) for share in re.findall(r"([\d.]+)% of 30 unheard sounds right", said)]
    assert right[-1] > 60 > right[0]
    assert list((tmp_path / "shards").glob("*.tar"))
    assert (tmp_path / "shards" / "padding.svg").read_text().startswith("<svg")
