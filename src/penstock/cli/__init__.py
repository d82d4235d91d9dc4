"""The ``penstock`` command: one file per subcommand, loaded when it is asked for.

A command is a module here with two functions,

    add_arguments(parser)      says what it takes
    run(arguments) → int       does it; 0 is success

and a row in :data:`COMMANDS`. Errors of the library end a command as one line on stderr, status 1;
wrong usage is status 2, Ctrl-C is 130. ``--help`` loads neither numpy nor torch.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Mapping, Sequence

from penstock import __version__
from penstock.errors import PenstockError

COMMANDS: Mapping[str, tuple[str, str]] = {
    "bench": ("penstock.cli.bench", "read shards as a training run would, say where time goes"),
    "cache": ("penstock.cli.cache", "list, clear or verify the shards kept on this machine"),
    "demo": ("penstock.cli.demo", "make a small data set, stream it, train on it, show a batch"),
    "index": ("penstock.cli.index", "make the index of shards: where every sample is"),
    "lengths": ("penstock.cli.lengths", "draw how long samples are; compare ways to batch them"),
    "native": ("penstock.cli.native", "build the native image module, or say whether it is there"),
}
"""Name → (module, one line for ``--help``)."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the result is the exit status.

    >>> main([])  # doctest: +ELLIPSIS
    usage: penstock ...
    2
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    parser = _parser(argv)
    arguments = parser.parse_args(argv)
    if arguments.run is None:
        parser.print_help()
        return 2
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has gone (``penstock … | head``): nothing is left to say, and
        # the interpreter must not try to flush either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (PenstockError, OSError) as error:
        words = [str(error), *getattr(error, "__notes__", ())]
        print("penstock: " + " ".join(" ".join(words).split()), file=sys.stderr)
        return 1


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    """All commands by name; the arguments only of the one that stands in ``argv``."""
    parser = argparse.ArgumentParser(
        prog="penstock", description="Feeds accelerators with training data from tar shards."
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    asked = next((word for word in argv if not word.startswith("-")), None)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=summary.capitalize() + ".")
        if name == asked:
            loaded = importlib.import_module(module)
            loaded.add_arguments(command)
            command.set_defaults(run=loaded.run)
    return parser
