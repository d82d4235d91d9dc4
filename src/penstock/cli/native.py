"""``penstock native``: build the native image module, or report its state."""

from __future__ import annotations

import argparse

from penstock.cli.arguments import add_json_argument
from penstock.cli.report import Report
from penstock.transforms import native

EXAMPLE = "penstock native status"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="?", choices=("status", "build"), default="status", help="what to do"
    )
    parser.add_argument(
        "--to",
        metavar="FILE",
        help="build: the file to write (default: in the cache folder, or PENSTOCK_NATIVE)",
    )
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    report = Report.of(arguments)
    if arguments.what == "build":
        file = native.build(arguments.to)
        report.say(f"built {file}")
        if arguments.to is not None and file != native.path():
            report.say(f"to use it set PENSTOCK_NATIVE={file}")
    else:
        file = native.path()
        if native.load() is not None:
            report.say(f"in use: {file}")
        elif file.exists():
            report.say(f"switched off by PENSTOCK_NATIVE=0: {file}")
        else:
            report.say(f"not built; it is optional, and 'penstock native build' makes {file}")
    report.figures.update(path=str(file), built=file.exists(), used=native.load() is not None)
    report.close()
    return 0
