"""Every Python block of the README and of docs/ runs, a page's blocks one after the other."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def script(page: Path) -> str:
    """The page's blocks as one program, each at the line where it stands, for readable errors."""
    text, lines = page.read_text(), []
    for block in BLOCK.finditer(text):
        first = text.count("\n", 0, block.start(1))
        lines += [""] * (first - len(lines)) + block.group(1).splitlines()
    return "\n".join(lines) + "\n"


WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_snippets_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    program = tmp_path / page.with_suffix(".py").name
    program.write_text(script(page))
    folder = tmp_path / "work"
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"{page.relative_to(ROOT)}:\n{done.stderr}"


def test_the_readme_has_an_example() -> None:
    assert ROOT / "README.md" in WITH_CODE


def test_the_readme_fits_on_three_screens() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 170


def test_a_block_stands_in_the_program_at_its_line_in_the_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n```python\nx = 1\n```\ntext\n```python\nx += 1\n```\n")
    assert script(page).splitlines() == ["", "", "", "x = 1", "", "", "", "x += 1"]
