"""Create, inspect, check and rework shards: what the command does, as Python functions.

Every command has a function here with the same name and the same words for its options::

    from penstock import tools

    for finding in tools.verify("train-{000..009}.tar", require="jpg,json"):
        print(finding)

In come URLs of shards (:mod:`penstock.storage`, :mod:`penstock.shards`); out come plain values, or
files. Nothing here prints or parses arguments: :mod:`penstock.cli` does. Names are imported on
first use.

How a command is written
------------------------
1. The work is a function in a module of this package, with keyword arguments named like the
   options of the command. It yields or returns dataclasses that have ``as_dict()``, and raises the
   errors of :mod:`penstock.errors`. Add its name to ``_PUBLIC`` below, which says where each
   function is. A module must not have the name of its function, since importing it would replace
   the function here.
2. These modules do what several commands need:

   =================  ==========================================================================
   ``inputs``         shard arguments → list of URLs; samples of shards with their origin
   ``outputs``        refuse to overwrite; one output for each input shard
   ``member_groups``  members → samples, also of shards with a key twice
   ``sample_places``  the offsets of all samples, and their bytes in any order
   ``disk_columns``   long columns in temporary files, and their sorted order
   ``shard_output``   an order of samples → numbered shards, parallel and restartable
   ``call_record``    the options and inputs of a call, to name what changed in the next
   ``written``        what was written; ``--duplicates``
   ``units``          sizes such as ``1GB`` and ``512MiB``
   ``slices``         ``--slice A:B:C``
   ``field_spec``     ``--fields "new:old1,old2 …"``
   ``field_values``   fields as text, numbers and JSON, or described in a few words
   =================  ==========================================================================

   Only for ``create``: ``create_sources``. Only for ``verify``: ``tar_walk`` (a reader that
   continues after faults), ``content_types`` (first bytes of file formats) and ``reader_rules``
   (``--for``).
3. The command is a module in :mod:`penstock.cli` with ``EXAMPLE``, ``add_arguments`` and ``run``,
   and a row in ``COMMANDS``. Options come from :func:`penstock.cli.arguments.add_options`, output
   goes through :class:`penstock.cli.report.Report`: ``row`` for one item of a list, ``say`` for
   what only a person needs, ``figures`` for the one object that ``--json`` prints. ``run`` returns
   0, or 1 if the data is bad or different; all other statuses come from the error that is raised
   (:mod:`penstock.cli.exit_status`).
"""

from __future__ import annotations

import importlib
from typing import Any

_PUBLIC: dict[str, list[str]] = {
    "cache_filling": ["cache_add"],
    "concatenation": ["cat"],
    "conversion": ["convert"],
    "creation": ["create"],
    "differences": ["diff"],
    "extraction": ["extract"],
    "findings": ["CODES", "Change", "Finding"],
    "listing": ["head", "ls", "show"],
    "processing": ["proc"],
    "repairing": ["repair"],
    "reworking": ["select", "sort", "split"],
    "statistics": ["stats"],
    "verification": ["verify"],
}
"""Module → the public names it defines."""

_HOME = {name: module for module, names in _PUBLIC.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module 'penstock.tools' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"penstock.tools.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
