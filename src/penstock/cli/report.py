"""The output of a command: text for a person, or with ``--json`` objects for a script.

A command that lists items prints each with :meth:`Report.row`: one line of text, or one JSON object
per line. A command with one result collects it in :attr:`Report.figures`, and :meth:`Report.close`
prints that as one JSON object. Every object has ``"schema": "penstock.COMMAND/1"``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from penstock.redact import printable


class Report:
    """Prints sentences and rows for a person, or figures for a script.

    >>> report = Report("count", as_json=True)
    >>> report.say("3 shards")
    >>> report.figures["shards"] = 3
    >>> report.close()
    {"schema": "penstock.count/1", "shards": 3}
    """

    running = "command"
    """The command that this process runs; :func:`penstock.cli.main` sets it."""

    def __init__(
        self,
        command: str | None = None,
        *,
        as_json: bool = False,
        quiet: bool = False,
        to_stderr: bool = False,
    ) -> None:
        self.schema = f"penstock.{command or self.running}/1"
        self.as_json, self.quiet, self.to_stderr = as_json, quiet, to_stderr
        self.figures: dict[str, Any] = {}

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> Report:
        """Return the report that ``--json`` and ``--quiet`` ask for.

        Where the output of the command is standard output (``-o -``), text goes to stderr.
        """
        return cls(
            as_json=getattr(arguments, "json", False),
            quiet=getattr(arguments, "quiet", False),
            to_stderr=getattr(arguments, "output", None) == "-",
        )

    @property
    def pictures(self) -> bool:
        """Whether stdout is a terminal that a person looks at."""
        return not self.as_json and not self.to_stderr and sys.stdout.isatty()

    def say(self, text: str = "") -> None:
        """Print a line for a person now. Control characters, of file names say, are escaped."""
        if not self.as_json and not self.quiet:
            self._print(printable(text, keep="\n\t"))

    def row(self, text: str, figures: Mapping[str, Any], *, raw: bool = False) -> None:
        """Print one item of a list: the text, or the figures as one line of JSON.

        ``raw`` prints the text as it is, for commands that read it; line ends are still escaped.
        """
        if self.as_json:
            self._print(json.dumps({"schema": self.schema, **figures}))
        elif raw and "\n" not in text:
            sys.stdout.flush()
            sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape") + b"\n")
        else:
            self._print(printable(text, keep="\t"))

    def close(self) -> None:
        """Print the figures as one JSON object, where there are any."""
        if self.as_json and self.figures:
            self._print(json.dumps({"schema": self.schema, **self.figures}))

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr if self.to_stderr else sys.stdout, flush=sys.stdout.isatty())
