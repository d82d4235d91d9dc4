"""Writes docs/environment.md: every environment variable, from ``penstock.env.VARIABLES``.

``--check`` only compares (a test does that).
"""

from __future__ import annotations

import sys
from pathlib import Path

from penstock import env

TARGET = Path(__file__).parent.parent / "docs" / "environment.md"

HEAD = """\
# Environment variables

<!-- Made by tools/make_environment.py from penstock.env.VARIABLES; do not edit. -->

These are all the variables that penstock knows, and `penstock.env` is the only module that reads
them. An argument given in code always wins over a variable. Where the table says *1*, any value
but `0`, `no`, `off` and `false` will do. Those of network storage and its cache are explained in
[Network storage](storage.md).

| variable | what it does |
|---|---|
"""


def source() -> str:
    rows = [f"| `{name}` | {meaning} |" for name, meaning in env.VARIABLES.items()]
    return HEAD + "\n".join(rows) + "\n"


if __name__ == "__main__":
    if "--check" in sys.argv:
        stale = not TARGET.exists() or TARGET.read_text() != source()
        sys.exit("environment.md is stale: run tools/make_environment.py" if stale else 0)
    TARGET.write_text(source())
