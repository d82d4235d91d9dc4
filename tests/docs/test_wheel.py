"""The wheel: with the native module where it can be compiled, otherwise a plain one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.errors import PipelineError
from penstock.transforms import native

ROOT = Path(__file__).parents[2]
USED = """
import json
from penstock import native
loaded = native.load() is not None
maps = open("/proc/self/maps").read() if loaded else ""
libraries = sorted({line.split()[-1] for line in maps.splitlines() if "libjpeg" in line})
print(json.dumps({"loaded": loaded, "path": str(native.path()), "libraries": libraries}))
"""


def pip(*arguments, **variables):
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", *arguments]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **variables})


def wheel(folder, **variables):
    options = ("--no-deps", "--no-build-isolation", "--no-index")
    pip("wheel", *options, "-w", str(folder), ".", **{"PENSTOCK_WHEEL": "", **variables})
    (made,) = folder.glob("*.whl")
    return made


def used_by(wheel, folder):
    """Return what an installation of that wheel alone loads, with an empty cache folder."""
    pip("install", "--no-deps", "--no-index", "--target", str(folder / "site"), str(wheel))
    variables = {"PYTHONPATH": str(folder / "site"), "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-c", USED]
    environment = {k: v for k, v in os.environ.items() if k != "PENSTOCK_NATIVE"} | variables
    printed = subprocess.run(command, check=True, capture_output=True, env=environment, cwd=folder)
    return json.loads(printed.stdout)


def test_a_plain_wheel_fits_every_machine(tmp_path):
    made = wheel(tmp_path, PENSTOCK_WHEEL="plain")
    assert made.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(made).namelist() if name.endswith(".so")]
    assert not used_by(made, tmp_path)["loaded"]


@pytest.mark.skipif(sys.platform != "linux", reason="compiled by default on Linux only")
def test_a_wheel_without_a_compiler_is_a_plain_one(tmp_path):
    assert wheel(tmp_path, CC="no-such-compiler").name.endswith("-py3-none-any.whl")


def test_a_wheel_that_must_be_native_fails_without_a_compiler(tmp_path):
    with pytest.raises(subprocess.CalledProcessError):
        wheel(tmp_path, PENSTOCK_WHEEL="native", CC="no-such-compiler")


@pytest.mark.skipif(sys.platform != "linux", reason="compiled by default on Linux only")
def test_a_wheel_contains_the_native_module_and_its_libjpeg(tmp_path):
    try:
        native.build(tmp_path / "picture.so")
    except PipelineError as error:
        pytest.skip(f"no native module: {error}")
    made = wheel(tmp_path)
    assert "none-any" not in made.name
    used = used_by(made, tmp_path)
    assert used["loaded"]
    assert used["path"].endswith(f"site/penstock/transforms/native/{native.BUNDLED.name}")
    assert all(str(tmp_path) in library for library in used["libraries"])
