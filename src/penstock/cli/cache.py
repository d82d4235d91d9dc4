"""``penstock cache``: list, fill, clear or verify a folder of cached shards."""

from __future__ import annotations

import argparse
import collections
import fnmatch
import time
from typing import Any

from penstock.cli.arguments import add_json_argument, add_options
from penstock.cli.progress import track
from penstock.cli.report import Report
from penstock.errors import PipelineError
from penstock.redact import redact
from penstock.storage.cache.cache_dir import Entry
from penstock.storage.cache.shard_cache import ShardCache

EXAMPLE = "penstock cache add shards/train-{000000..000001}.tar --cache-dir cached"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=("ls", "add", "clear", "verify"), help="what to do")
    parser.add_argument(
        "shards",
        nargs="*",
        metavar="PATTERN",
        help="add: the shards to fetch; otherwise: only shards with such a URL ('s3://a/*')",
    )
    add_options(parser, "list", "jobs", jobs={"help": "add: fetch N at once (default 4)"})
    parser.add_argument(
        "--cache-dir", metavar="FOLDER", help="the cache (default: the folder that WDS_CACHE names)"
    )
    parser.add_argument(
        "--offline", action="store_true", help="verify: do not ask the sources for versions"
    )
    parser.add_argument(
        "--remove", action="store_true", help="verify: delete the shards that are wrong"
    )
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    cache = ShardCache.of(arguments.cache_dir)
    if cache is None:
        raise PipelineError("which cache? say --cache-dir FOLDER, or set WDS_CACHE")
    report = Report.of(arguments)
    report.figures["cache"] = cache.folder.path
    command = {"ls": _list, "add": _add, "clear": _clear, "verify": _verify}[arguments.what]
    status = command(cache, arguments, report)
    report.close()
    return status


def _list(cache: ShardCache, arguments: argparse.Namespace, report: Report) -> int:
    entries = [entry for entry in cache.entries() if _chosen(entry, arguments.shards)]
    for entry in entries:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used_s))
        report.say(
            f"{entry.stored_bytes:>15,}  {used}  {_state(entry):<9} {redact(entry.note.url)}"
        )
    total = sum(entry.stored_bytes for entry in entries)
    report.say(f"{total:>15,}  bytes in {len(entries)} shards ({cache.folder.path})")
    report.figures.update(bytes=total, shards=[_figures(entry) for entry in entries])
    return 0


def _add(cache: ShardCache, arguments: argparse.Namespace, report: Report) -> int:
    from penstock.tools.cache_filling import cache_add

    arguments.kept = "shards that were complete are in the cache ('penstock cache ls')"
    files = cache_add(
        arguments.shards, cache_dir=cache, list_file=arguments.list, jobs=arguments.jobs
    )
    added = list(track(files, "Fetching", unit="shards"))
    total = sum(file.bytes for file in added)
    states = collections.Counter(file.state for file in added)
    fetched, there, other = (states[word] for word in ("fetched", "there", "not cached"))
    report.say(f"{fetched} shards fetched, {there} were there ({total:,} bytes)")
    if other:
        report.say(f"{other} are local or do not fit the cache, and are not in it")
    report.figures.update(fetched=fetched, bytes=total, shards=[file.as_dict() for file in added])
    return 0


def _clear(cache: ShardCache, arguments: argparse.Namespace, report: Report) -> int:
    arguments.kept = "some shards may be deleted, those left are complete ('penstock cache ls')"
    gone, kept = cache.clear(lambda entry: _chosen(entry, arguments.shards))
    report.say(f"{gone} shards deleted" + (f", {kept} are in use and stay" if kept else ""))
    report.figures.update(deleted=gone, in_use=kept)
    return 0


def _verify(cache: ShardCache, arguments: argparse.Namespace, report: Report) -> int:
    """Compare every complete shard with its metadata and its source; print all that differ."""
    arguments.kept = "nothing was deleted"
    wrong: dict[str, dict[str, Any]] = {}
    count = 0
    checks = cache.verify(
        ask_source=not arguments.offline, chosen=lambda entry: _chosen(entry, arguments.shards)
    )
    for entry, problem in track(checks, "Checking", unit="shards"):
        count += 1
        if problem is not None:
            wrong[entry.name] = {**_figures(entry), "problem": problem}
            report.say(f"{redact(entry.note.url)}: {problem}")
    report.say(f"{count - len(wrong)} of {count} shards are right")
    if arguments.remove and wrong:
        gone, kept = cache.clear(lambda entry: entry.name in wrong)
        report.say(f"{gone} deleted" + (f", {kept} are in use and stay" if kept else ""))
    report.figures.update(checked=count, problems=list(wrong.values()))
    return 1 if wrong else 0


def _chosen(entry: Entry, patterns: list[str]) -> bool:
    url = entry.note.url
    return not patterns or any(fnmatch.fnmatchcase(url, pattern) for pattern in patterns)


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
