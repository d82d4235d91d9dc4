"""Writes src/penstock/__init__.pyi: the lazily loaded public names, for type checkers.

``--check`` only compares (a test does that).
"""

from __future__ import annotations

from pathlib import Path

from make_fluent import write

import penstock

TARGET = Path(__file__).parent.parent / "src" / "penstock" / "__init__.pyi"


def source() -> str:
    lines = ["# Made by tools/make_facade.py from penstock/__init__.py; do not edit.", ""]
    for module, names in sorted(penstock._PUBLIC.items()):
        lines += [f"from {module} import {name} as {name}" for name in sorted(names)]
    return "\n".join([*lines, "", "__version__: str", ""])


if __name__ == "__main__":
    write(source(), TARGET)
