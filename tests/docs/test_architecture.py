"""ARCHITECTURE.md, the home page of the manual and package docstrings name the files there are."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "penstock"
PACKAGES = [
    path.parent
    for path in sorted(SOURCE.rglob("__init__.py"))
    if path.parent != SOURCE and "compat" not in path.parts
]


def entries_of(folder):
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    return modules | {path.parent.name for path in folder.glob("*/__init__.py")}


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_package_names_its_modules_in_its_docstring_or_in_a_table(folder):
    text = (folder / "__init__.py").read_text()
    named = set(re.findall(r"\w+", ast.get_docstring(ast.parse(text)) or ""))
    named |= set(re.findall(r'^    "(\w+)":', text, re.MULTILINE))
    assert entries_of(folder) <= named


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_exist(page):
    files = [f"/{path.relative_to(ROOT)}" for path in SOURCE.rglob("*.*")]
    files += [f"/{path.relative_to(ROOT)}" for path in ROOT.glob("[bdt]*/**/*.*")]
    files += [f"/{path.name}" for path in ROOT.iterdir()]
    named = set(re.findall(r"`([a-z_0-9/]+\.(?:pyi?|c|h))`", (ROOT / page).read_text()))
    assert named
    assert [name for name in sorted(named) if not any(f.endswith(f"/{name}") for f in files)] == []


def test_home_page_of_the_manual_links_every_page():
    docs = ROOT / "docs"
    linked = set(re.findall(r"\]\(([^)#]+\.md)\)", (docs / "index.md").read_text()))
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")} - {"index.md"}
    assert pages <= linked


@pytest.mark.parametrize("python", ["3.14", "3.15"])
def test_image_and_compression_install_without_a_compiler_on_new_pythons(python):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = {
        requirement.name
        for requirement in map(Requirement, extras["image"] + extras["compression"])
        if requirement.marker is None or requirement.marker.evaluate({"python_version": python})
    }
    assert "pillow" in needed
    # They have no wheels for free-threaded builds, which markers cannot tell from others.
    assert needed.isdisjoint({"simplejpeg", "zstandard", "lz4"})


def test_readme_lists_every_extra_for_users():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = set(project["optional-dependencies"])
    extras -= {"all", "bench", "dev", "docs", "index", "readers", "servers"}
    words = set(re.findall(r"`(\w+)`", (ROOT / "README.md").read_text()))
    assert extras <= words
