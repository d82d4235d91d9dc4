"""What a command tells: sentences for a person, or with ``--json`` one object for a script."""

from __future__ import annotations

import json
import sys
from typing import Any


class Report:
    """Takes sentences and figures as they come; prints the ones or the others.

    >>> report = Report(as_json=True)
    >>> report.say("3 shards")
    >>> report.figures["shards"] = 3
    >>> report.close()
    {"shards": 3}
    """

    def __init__(self, *, as_json: bool = False) -> None:
        self.as_json = as_json
        self.figures: dict[str, Any] = {}

    @property
    def pictures(self) -> bool:
        """Whether a person sees stdout on a terminal."""
        return not self.as_json and sys.stdout.isatty()

    def say(self, text: str = "") -> None:
        """A line for a person, at once."""
        if not self.as_json:
            print(text, flush=True)

    def close(self) -> None:
        """The figures for a script, at the end."""
        if self.as_json:
            print(json.dumps(self.figures))
