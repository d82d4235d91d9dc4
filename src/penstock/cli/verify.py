"""``penstock verify``: check shards, and write good copies of bad ones."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from penstock.cli.arguments import add_options, add_shards, shards_of
from penstock.cli.exit_status import BAD_DATA, FINE, NOT_DONE
from penstock.cli.progress import track
from penstock.cli.report import Report
from penstock.cli.shard_output import start_report
from penstock.errors import PipelineError

if TYPE_CHECKING:
    from penstock.tools.findings import Finding
    from penstock.tools.repairing import Repairer

EXAMPLE = "penstock verify shards/train-{000000..000001}.tar --require jpg,cls --for webdataset"

MOST_LINES = 20
"""So many findings of one code in one shard are printed for a person; --json has them all."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_shards(parser)
    parser.add_argument("--decode", action="store_true", help="also decode every field")
    parser.add_argument(
        "--for",
        dest="reader",
        action="append",
        default=[],
        choices=("webdataset", "open_clip", "hub"),
        help="also check that this reader gets along with the shards (may be given several times)",
    )
    parser.add_argument(
        "--require", default="", metavar="EXT,…", help="fields that every sample must have"
    )
    parser.add_argument("--index", metavar="FILE", help="the index (default: beside the shards)")
    parser.add_argument(
        "--repair", action="store_true", help="write good copies to -o, report every change"
    )
    parser.add_argument("--codes", action="store_true", help="list all codes, and nothing else")
    out = {"help": "--repair: a folder/, a pattern such as good-%%06d.tar, or a file for one shard"}
    add_options(parser, "output", "force", "json", "quiet", output=out)


def run(arguments: argparse.Namespace) -> int:
    report = start_report(arguments) if arguments.repair else Report.of(arguments)
    if arguments.codes:
        return _list_codes(report)
    from penstock.tools.repairing import Repairer
    from penstock.tools.verification import Verifier

    if arguments.repair != (arguments.output is not None):
        raise PipelineError("--repair and -o OUT belong together: say both or neither")
    shards = shards_of(arguments)
    options: dict[str, Any] = {"decode": arguments.decode, "require": arguments.require}
    repairer = None
    if arguments.repair:
        force = arguments.force
        repairer = Repairer(shards, arguments.output, force=force, **options)
        arguments.kept = "copies that were complete are kept"
    verifier = Verifier(shards, reader=arguments.reader, index=arguments.index, **options)
    printer = FindingPrinter(report)
    printer.add(verifier.findings)
    for url in track(shards, "Verifying", unit="shards"):
        bad = printer.add(verifier.check(url))
        if repairer is not None and "PS901" not in bad:
            for change in repairer.repair(url):
                report.row(str(change), change.as_dict())
        printer.end_shard()
    printer.add(verifier.finish())
    _summarise(report, printer, verifier.checked, verifier.samples, repairer)
    return printer.status


class FindingPrinter:
    """Prints findings and keeps the exit status."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.counts: collections.Counter[str] = collections.Counter()
        self._in_shard: collections.Counter[str] = collections.Counter()
        self.errors = 0

    def add(self, findings: Iterable[Finding]) -> set[str]:
        """Print findings and return their codes."""
        codes = set()
        for found in findings:
            codes.add(found.code)
            self.counts[found.code] += 1
            self._in_shard[found.code] += 1
            self.errors += found.severity == "error" and found.code != "PS901"
            if self.report.as_json or self._in_shard[found.code] <= MOST_LINES:
                self.report.row(str(found), found.as_dict())
        return codes

    def end_shard(self) -> None:
        """Report how many findings of this shard were not printed."""
        for code, count in self._in_shard.items():
            if count > MOST_LINES:
                self.report.say(f"… and {count - MOST_LINES:,} more {code} (--json prints all)")
        self._in_shard.clear()

    @property
    def status(self) -> int:
        if self.errors:
            return BAD_DATA
        return NOT_DONE if self.counts["PS901"] else FINE


def _summarise(
    report: Report, printer: FindingPrinter, shards: int, samples: int, repairer: Repairer | None
) -> None:
    from penstock.tools.findings import CODES
    from penstock.tools.units import count

    for code, number in sorted(printer.counts.items()):
        report.say(f"{number:>8,}  {code}  {CODES[code].title}: {CODES[code].remedy}")
    found = sum(printer.counts.values())
    checked = f"{count(shards, 'shard')}, {count(samples, 'sample')}"
    report.say(f"{checked}, {count(found, 'finding')}")
    if repairer is not None:
        written = count(len(repairer.written), "shard")
        report.say(f"repaired: {written}, {count(repairer.samples, 'sample')}")


def _list_codes(report: Report) -> int:
    from penstock.tools.findings import CODES

    for name, code in CODES.items():
        figures = {"code": name, **code._asdict()}
        note = " (note)" if code.severity == "note" else ""
        report.row(f"{name}  {code.title}{note}: {code.remedy}", figures)
    return FINE
