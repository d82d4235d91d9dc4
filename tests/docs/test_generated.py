"""The pages that are made from the code say what the code says now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import penstock
from penstock import env

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("tool", ["make_api", "make_environment"])
def test_a_generated_page_is_up_to_date(tool: str) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / f"{tool}.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_every_variable_stands_in_the_page_of_variables() -> None:
    page = (ROOT / "docs" / "environment.md").read_text()
    for name, meaning in env.VARIABLES.items():
        assert f"| `{name}` | {meaning} |" in page


def test_nothing_else_reads_the_environment() -> None:
    """So that the page of variables is complete; doctests may set one."""
    package = ROOT / "src" / "penstock"
    readers = [
        path.relative_to(package).as_posix()
        for path in sorted(package.rglob("*.py"))
        for line in path.read_text().splitlines()
        if ("os.environ" in line or "getenv" in line) and ">>>" not in line
    ]
    assert set(readers) == {"env.py"}


def test_every_public_name_stands_in_the_page_of_names() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    for name in penstock.__all__:
        assert f"\n| `{name}` | " in page, name
