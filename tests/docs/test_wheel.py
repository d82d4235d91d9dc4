"""The wheel: a plain one for everybody, or one that brings the native module along."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from penstock.transforms import native
from penstock.errors import PipelineError

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


def wheel(folder, kind):
    options = ("--no-deps", "--no-build-isolation", "--no-index")
    pip("wheel", *options, "-w", str(folder), ".", PENSTOCK_WHEEL=kind)
    (made,) = folder.glob("*.whl")
    return made


def used_by(wheel, folder):
    """What an installation of that wheel alone, by a user with an empty cache, loads."""
    pip("install", "--no-deps", "--no-index", "--target", str(folder / "site"), str(wheel))
    variables = {"PYTHONPATH": str(folder / "site"), "XDG_CACHE_HOME": str(folder / "cache")}
    command = [sys.executable, "-c", USED]
    environment = {k: v for k, v in os.environ.items() if k != "PENSTOCK_NATIVE"} | variables
    told = subprocess.run(command, check=True, capture_output=True, env=environment, cwd=folder)
    return json.loads(told.stdout)


def test_a_plain_wheel_is_for_every_machine(tmp_path):
    made = wheel(tmp_path, "")
    assert made.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(made).namelist() if name.endswith(".so")]
    assert not used_by(made, tmp_path)["loaded"]


@pytest.mark.skipif(sys.platform != "linux", reason="asks ldd")
def test_a_wheel_may_bring_the_native_module_with_its_libjpeg(tmp_path):
    try:
        native.build(tmp_path / "picture.so")
    except PipelineError as error:
        pytest.skip(f"no native module: {error}")
    made = wheel(tmp_path, "native")
    assert "none-any" not in made.name
    used = used_by(made, tmp_path)
    assert used["loaded"]
    assert used["path"].endswith("site/penstock/native/picture.so")
    assert all(str(tmp_path) in library for library in used["libraries"])
