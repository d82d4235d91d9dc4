"""Arguments that several commands take, and how their values are checked."""

from __future__ import annotations

import argparse
from collections.abc import Callable


def add_json_argument(parser: argparse.ArgumentParser) -> None:
    """The ``--json`` that every command has whose figures a script might read."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object on stdout and nothing else"
    )


def at_least(lowest: int) -> Callable[[str], int]:
    """The type of a whole number that must not be lower; for ``add_argument(type=...)``.

    >>> at_least(1)("20")
    20
    """

    def whole_number(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = lowest - 1
        if number < lowest:
            raise argparse.ArgumentTypeError(f"must be a number of at least {lowest}, not {text!r}")
        return number

    return whole_number
