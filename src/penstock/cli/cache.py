"""``penstock cache``: look into a folder of cached shards, empty it, check it."""

from __future__ import annotations

import argparse
import fnmatch
import time
from typing import Any

from penstock.cli.arguments import add_json_argument
from penstock.cli.progress import track
from penstock.cli.report import Report
from penstock.errors import PipelineError
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.cache.cache_dir import Entry


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("ls", "clear", "verify"), help="what to do")
    parser.add_argument(
        "pattern", nargs="?", metavar="PATTERN", help="only shards with such a URL ('s3://a/*')"
    )
    parser.add_argument(
        "--cache-dir", metavar="FOLDER", help="the cache (default: the variable WDS_CACHE)"
    )
    parser.add_argument(
        "--offline", action="store_true", help="verify: do not ask the sources for their version"
    )
    parser.add_argument(
        "--remove", action="store_true", help="verify: delete the shards that are not right"
    )
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    cache = ShardCache.of(arguments.cache_dir)
    if cache is None:
        raise PipelineError("which cache? say --cache-dir FOLDER, or set WDS_CACHE")
    report = Report(as_json=arguments.json)
    report.figures["cache"] = cache.folder.path
    command = {"ls": _list, "clear": _clear, "verify": _verify}[arguments.what]
    status = command(cache, arguments, report)
    report.close()
    return status


def _list(cache: ShardCache, arguments: argparse.Namespace, report: Report) -> int:
    entries = [entry for entry in cache.entries() if _chosen(entry, arguments.pattern)]
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used_s))
        report.say(f"{entry.stored_bytes:>15,}  {used}  {_state(entry):<9} {entry.note.url}")
    total = sum(entry.stored_bytes for entry in entries)
    report.say(f"{total:>15,}  bytes in {len(entries)} shards ({cache.folder.path})")
    report.figures.update(bytes=total, shards=[_figures(entry) for entry in entries])
    return 0


def _clear(cache: ShardCache, arguments: argparse.Namespace, report: Report) -> int:
    gone, kept = cache.clear(lambda entry: _chosen(entry, arguments.pattern))
    report.say(f"{gone} shards deleted" + (f", {kept} are in use and stay" if kept else ""))
    report.figures.update(deleted=gone, in_use=kept)
    return 0


def _verify(cache: ShardCache, arguments: argparse.Namespace, report: Report) -> int:
    """Hold every complete shard against its note and its source; tell all that do not fit."""
    wrong: dict[str, dict[str, Any]] = {}
    count = 0
    checks = cache.verify(
        ask_source=not arguments.offline, chosen=lambda entry: _chosen(entry, arguments.pattern)
    )
    for entry, problem in track(checks, "Checking", unit="shards"):
        count += 1
        if problem is not None:
            wrong[entry.name] = {**_figures(entry), "problem": problem}
            report.say(f"{entry.note.url}: {problem}")
    report.say(f"{count - len(wrong)} of {count} shards are right")
    if arguments.remove and wrong:
        gone, kept = cache.clear(lambda entry: entry.name in wrong)
        report.say(f"{gone} deleted" + (f", {kept} are in use and stay" if kept else ""))
    report.figures.update(checked=count, problems=list(wrong.values()))
    return 1 if wrong else 0


def _chosen(entry: Entry, pattern: str | None) -> bool:
    return pattern is None or fnmatch.fnmatchcase(entry.note.url, pattern)


def _state(entry: Entry) -> str:
    if entry.complete:
        return "complete"
    size = entry.note.size_bytes
    return f"{100 * entry.stored_bytes // size} %" if size else "partial"


def _figures(entry: Entry) -> dict[str, Any]:
    note = entry.note
    return {
        "url": note.url,
        "file": entry.name,
        "bytes": entry.stored_bytes,
        "size": note.size_bytes,
        "version": note.version,
        "complete": entry.complete,
    }
