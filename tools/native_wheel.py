"""Build hook: compile the native module into the package when it is installed.

``PENSTOCK_WHEEL`` chooses:

- ``auto`` (default): compile it on Linux if a C compiler and libjpeg-turbo's headers are installed;
  otherwise install without it.
- ``native``: compile it, and fail if that is impossible.
- ``plain``: do not compile it. The wheel then fits every machine.

A wheel with the module fits machines like this one, with any Python version, and needs neither a
compiler nor libjpeg there: if libjpeg-turbo could not be linked statically, its shared library is
put into the wheel. For PyPI, build on a manylinux image and check with ``auditwheel repair``.
Distributing such a wheel distributes libjpeg-turbo, whose licence asks to say: this software is
based in part on the work of the Independent JPEG Group.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CHOICES = ("auto", "native", "plain")


class NativeModule(BuildHookInterface[Any]):
    """Runs at every build of a wheel, and at every editable installation."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        choice = os.environ.get("PENSTOCK_WHEEL") or "auto"
        if choice not in CHOICES:
            raise ValueError(f"PENSTOCK_WHEEL is one of {', '.join(CHOICES)}, not {choice!r}")
        if choice == "plain" or (choice == "auto" and sys.platform != "linux"):
            return
        sys.path.insert(0, str(Path(self.root, "src")))
        from penstock.errors import PipelineError
        from penstock.transforms import native

        folder = native.BUNDLED.parent if version == "editable" else Path(self.directory, "native")
        try:
            module = native.build(folder / native.BUNDLED.name)
        except PipelineError as error:
            if choice == "native":
                raise
            self.app.display_warning(f"penstock is installed without its native module: {error}")
            return
        self.app.display_info(f"penstock is installed with its native module ({module.name})")
        if version == "editable":
            return
        system = re.sub(r"[-.]", "_", sysconfig.get_platform())
        build_data.update(pure_python=False, tag=f"py3-none-{system}")
        for file in (module, *libjpeg(module)):
            build_data["force_include"][str(file)] = f"penstock/transforms/native/{file.name}"


def libjpeg(module: Path) -> list[Path]:
    """Return the libjpeg that the module loads, unless it is linked statically."""
    needed = subprocess.run(["ldd", str(module)], capture_output=True, text=True, check=True).stdout
    return [Path(found) for found in re.findall(r"libjpeg\S* => (\S+)", needed)]
