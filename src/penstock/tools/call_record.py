"""The options and inputs of a call, so that a later, different call can name what changed.

The plan in the control folder has only a digest of all inputs, since there may be millions.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from penstock.errors import PipelineError
from penstock.jobs.control_folder import ControlFolder
from penstock.jobs.control_schema import is_call
from penstock.redact import redact
from penstock.storage import MissingFile
from penstock.storage.client.store import parse_json
from penstock.storage.small_files import read_file, write_file

FILE = "call.json"
MOST_ENTRIES = 100_000
"""Of calls with more inputs, only their number is recorded."""
NAMED = 3

Entry = tuple[str, Sequence[Any]]
"""An input: its name, and what changes if the input does."""


class CallRecord:
    """The options and inputs of a call, in its control folder.

    ``digest`` is that of all inputs, ``options`` those that no plan has, ``entries`` iterates over
    the inputs.
    """

    def __init__(
        self,
        control: ControlFolder,
        digest: str,
        options: Mapping[str, Any],
        entries: Callable[[], Iterator[Entry]],
    ) -> None:
        self._control, self._digest = control, digest
        self._options, self._entries = dict(options), entries

    def write(self) -> None:
        """Record this call."""
        self._control.make()
        data = json.dumps(self._describe(), separators=(",", ":")).encode()
        write_file(self._control.url(FILE), data)

    def check(self) -> None:
        """Raise PipelineError if the call that is recorded had other options or inputs."""
        try:
            old = parse_json(read_file(self._control.url(FILE)))
        except (MissingFile, ValueError):
            old = None
        if not is_call(old):
            return  # begun by an earlier version, or damaged: the plan is compared
        changed = [
            f"{name} was {old['options'].get(name)} and is now {value}"
            for name, value in self._options.items()
            if old["options"].get(name) != value
        ]
        if old["digest"] != self._digest:
            changed.append(self._difference(old))
        if changed:
            raise PipelineError(
                f"an interrupted call wrote to this output, and {'; '.join(changed)}: --force "
                "begins again"
            )

    def _describe(self) -> dict[str, Any]:
        found = list(itertools.islice(self._entries(), MOST_ENTRIES + 1))
        entries = None if len(found) > MOST_ENTRIES else found
        return {"digest": self._digest, "options": self._options, "entries": entries}

    def _difference(self, old: Mapping[str, Any]) -> str:
        new = json.loads(json.dumps(self._describe()["entries"]))
        if old["entries"] is None or new is None:
            return f"its inputs changed (which ones is not recorded above {MOST_ENTRIES:,})"
        before, after = (
            {json.dumps(entry): entry[0] for entry in side} for side in (old["entries"], new)
        )
        gone = {name: None for entry, name in before.items() if entry not in after}
        come = {name: None for entry, name in after.items() if entry not in before}
        groups = {
            "added": [name for name in come if name not in gone],
            "removed": [name for name in gone if name not in come],
            "changed": [name for name in come if name in gone],
        }
        said = [f"{_names(names)} {word}" for word, names in groups.items() if names]
        return f"its inputs changed: {', '.join(said) or 'they are in another order'}"


def _names(names: list[str]) -> str:
    """Return the first names and how many there are.

    >>> _names(["a", "b"]), _names(list("abcde"))
    ('a and b were', 'a, b, c and 2 more were')
    """
    first = [redact(name) for name in names[:NAMED]]
    if len(names) > NAMED:
        return f"{', '.join(first)} and {len(names) - NAMED:,} more were"
    return f"{' and '.join([', '.join(first[:-1]), first[-1]] if len(first) > 1 else first)} " + (
        "were" if len(first) > 1 else "was"
    )
