"""Makes the wheel: a plain one, or with ``PENSTOCK_WHEEL=native`` one with the native module.

PENSTOCK_WHEEL=native pip wheel --no-deps .

Such a wheel is for machines like this one, of any Python, and needs neither compiler nor libjpeg
there: where libjpeg-turbo could not be linked into the module, it lies beside it. For PyPI, build
it on a manylinux image and let ``auditwheel repair`` check it. Whoever passes it on passes on
libjpeg-turbo, too, whose licence asks to say: this software is based in part on the work of the
Independent JPEG Group.
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


class NativeModule(BuildHookInterface[Any]):
    """Called by the build of every wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable" or os.environ.get("PENSTOCK_WHEEL") != "native":
            return
        sys.path.insert(0, str(Path(self.root, "src")))
        from penstock.transforms import native

        module = native.build(Path(self.directory, "native", native.BROUGHT.name))
        system = re.sub(r"[-.]", "_", sysconfig.get_platform())
        build_data.update(pure_python=False, tag=f"py3-none-{system}")
        for file in (module, *libjpeg(module)):
            build_data["force_include"][str(file)] = f"penstock/transforms/native/{file.name}"


def libjpeg(module: Path) -> list[Path]:
    """The library that the module asks for, if it is not inside."""
    told = subprocess.run(["ldd", str(module)], capture_output=True, text=True, check=True).stdout
    return [Path(found) for found in re.findall(r"libjpeg\S* => (\S+)", told)]
