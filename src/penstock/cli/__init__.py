"""The ``penstock`` command: one module per subcommand, imported when it is asked for.

A command is a module here with

    EXAMPLE                    one call that runs, for ``--help``
    add_arguments(parser)      adds its arguments
    run(arguments) → int       does the work; returns the exit status

and a row in :data:`COMMANDS`. :mod:`penstock.tools` says how a command is written. An error of the
library ends a command with one line on stderr and the status that
:mod:`penstock.cli.exit_status` has for it. On Ctrl-C the line says what was kept: a command
that keeps something sets ``arguments.kept``. ``--help`` imports neither numpy nor torch.

These modules are no commands: ``arguments`` (options that several commands have), ``report`` (what
is printed), ``progress`` (bars), ``shard_output`` (commands that write shards), ``half_blocks``
(images in a terminal), ``exit_status``.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from penstock import __version__
from penstock.cli import progress
from penstock.cli.exit_status import INTERRUPTED, READER_GONE, WRONG_USAGE, status_of
from penstock.cli.report import Report
from penstock.errors import PenstockError
from penstock.redact import printable

COMMANDS: Mapping[str, tuple[str, str]] = {
    "bench": ("penstock.cli.bench", "read shards as a training run would; report the bottleneck"),
    "cache": ("penstock.cli.cache", "list, fill, clear or verify the shard cache of this machine"),
    "cat": ("penstock.cli.cat", "write the samples of shards to one shard"),
    "completion": ("penstock.cli.completion", "print a script that completes commands in bash"),
    "convert": ("penstock.cli.convert", "write samples as a table, or documents in another layout"),
    "create": ("penstock.cli.create", "write shards from folders, plans, tables or images"),
    "demo": ("penstock.cli.demo", "make a small data set, stream it, train on it, show a batch"),
    "diff": ("penstock.cli.diff", "report samples added, removed, moved and changed"),
    "extract": ("penstock.cli.extract", "write the members of shards as files"),
    "head": ("penstock.cli.head", "print the first samples with their text and numbers"),
    "index": ("penstock.cli.index", "make the index of shards, which makes them random access"),
    "job": ("penstock.cli.job", "show, verify or clean up a job, given the folder of its outputs"),
    "lengths": ("penstock.cli.lengths", "draw the lengths of samples; compare ways to batch them"),
    "ls": ("penstock.cli.ls", "list samples with the sizes of their fields"),
    "native": ("penstock.cli.native", "build the native image module, or report its state"),
    "proc": ("penstock.cli.proc", "run a shell command for every sample"),
    "run": ("penstock.cli.run", "apply a function to shards: restartable, on one machine or many"),
    "select": ("penstock.cli.select", "write or list some samples of shards"),
    "show": ("penstock.cli.show", "show one sample: its members, and its picture in the terminal"),
    "sort": ("penstock.cli.sort", "write the samples of shards in another order"),
    "spec": ("penstock.cli.spec", "check or show the spec of a data set: sources, shares, passes"),
    "split": ("penstock.cli.split", "write shards of another size"),
    "stats": ("penstock.cli.stats", "report samples, fields, sizes, lengths and classes"),
    "verify": ("penstock.cli.verify", "find faults in shards, each with a code and its byte"),
}
"""Name → (module, one line for ``--help``)."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors suggest the nearest name, and cannot paint the terminal."""

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            from penstock.nearest_name import suggest

            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action,
                f"{value!r} is none of {', '.join(known)}{suggest(str(value), known)}",
            )

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(WRONG_USAGE, f"{self.prog}: {printable(message)}\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status.

    >>> main([])  # doctest: +ELLIPSIS
    usage: penstock ...
    2
    """
    argv = sys.argv[1:] if argv is None else list(argv)
    place = next((n for n, word in enumerate(argv) if not word.startswith("-")), len(argv))
    parser, command = make_parser(argv[place] if place < len(argv) else None)
    arguments, unknown = parser.parse_known_args(argv[:place])
    if command is not None and not unknown:
        arguments, unknown = _parse(command, argv[place + 1 :])
    if unknown:
        _refuse(command or parser, unknown)
    if arguments.run is None:
        parser.print_help()
        return WRONG_USAGE
    with warnings.catch_warnings():
        warnings.showwarning = _print_warning
        return _run(arguments)


def _parse(parser: Parser, words: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    """Parse the words after a command; options may come between its positional arguments."""
    nested = (argparse.PARSER, argparse.REMAINDER)
    if any(action.nargs in nested for action in parser._actions):
        return parser.parse_known_args(words)
    return parser.parse_known_intermixed_args(words)


def _run(arguments: argparse.Namespace) -> int:
    progress.hide(getattr(arguments, "quiet", False))
    Report.running = arguments.command
    try:
        status = int(arguments.run(arguments))
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:
        print(f"penstock: interrupted; {printable(arguments.kept)}", file=sys.stderr)
        return INTERRUPTED
    except (PenstockError, OSError) as error:
        status = status_of(error)
        if status == READER_GONE:
            # Nobody reads our output any more, and the interpreter must not try to flush it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return status
        words = " ".join([str(error), *getattr(error, "__notes__", ())])
        lines = words.splitlines() if words.endswith("^") else [" ".join(words.split())]
        print("penstock: " + "\n".join(map(printable, lines)), file=sys.stderr)
        return status


def make_parser(asked: str | None = None) -> tuple[Parser, Parser | None]:
    """Return the parser of all commands, and that of ``asked``, the only one with arguments.

    A word that is no command ends the program with status 2 and names the nearest.
    """
    parser = Parser(
        prog="penstock", description="Feeds accelerators with training data from tar shards."
    )
    parser.add_argument("--version", action="version", version=f"penstock {__version__}")
    parser.set_defaults(run=None)
    commands = parser.add_subparsers(metavar="COMMAND", title="commands")
    found = None
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(
            name,
            help=summary,
            description=summary[:1].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        if name == asked:
            loaded = importlib.import_module(module)
            loaded.add_arguments(command)
            if example := getattr(loaded, "EXAMPLE", None):
                more = f"{command.epilog}\n\n" if command.epilog else ""
                command.epilog = f"{more}example:\n  {example}"
            command.set_defaults(run=loaded.run, command=name, kept="nothing was written")
            found = command
    if asked is not None and asked not in COMMANDS:
        from penstock.nearest_name import suggest

        known = ", ".join(COMMANDS)
        parser.error(
            f"there is no command {asked!r}{suggest(asked, COMMANDS)} (there are: {known})"
        )
    return parser, found


def _refuse(parser: Parser, unknown: Sequence[str]) -> NoReturn:
    """End with status 2 and the option nearest to the first unknown one."""
    from penstock.nearest_name import suggest

    word = next((word for word in unknown if word.startswith("-")), unknown[0])
    flags = [flag for action in parser._actions for flag in action.option_strings]
    hint = suggest(word.partition("=")[0], flags) if word.startswith("-") else ""
    parser.error(f"unknown argument {word!r}{hint}")


def _print_warning(message: Warning | str, *place: Any, **more: Any) -> None:
    text = " ".join(str(message).split())
    print(f"penstock: warning: {printable(text)}", file=sys.stderr)
