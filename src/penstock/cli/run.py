"""``penstock run``: a function applied to shards, from a job file or from the command line."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Mapping
from typing import Any

from penstock.cli.arguments import add_json_argument, add_options, at_least
from penstock.cli.job import print_skipped
from penstock.cli.report import Report
from penstock.errors import MissingPackage, PipelineError, UrlError, optional
from penstock.redact import printable

EXAMPLE = "penstock run copy:copy --inputs 'shards/*.tar' --outputs 'out/{stem}.tar'"
FAILED, USAGE, STORAGE = 1, 2, 3
JOB_FILES = (".yaml", ".yml", ".json")
ENGINES = ("local", "array", "dask", "ray")
TRUST = (
    "A job file, like MODULE:NAME, names code that is imported and run: use only job files that "
    "you would run as a script."
)
EXIT = (
    "Exit status: 0 all shards are done, 1 some failed, 2 wrong usage, 3 the storage is full or "
    "cannot be reached."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = f"{TRUST} {EXIT}"
    parser.add_argument(
        "what",
        metavar="JOB.yaml | MODULE:NAME",
        help="a file with the keywords of penstock.jobs.map_shards, or a function of a module or "
        "file (FILE.py:NAME)",
    )
    parser.add_argument("--inputs", nargs="+", metavar="URL", help="shards, braces or globs")
    parser.add_argument("--outputs", metavar="PATTERN", help="such as 'out/{stem}.tar'")
    parser.add_argument("--unit", choices=("sample", "shard"))
    parser.add_argument("--engine", choices=ENGINES)
    parser.add_argument("--jobs", type=at_least(1), help="number of workers (default: all cores)")
    parser.add_argument("--worker", metavar="K/N", help="this process of the engine array, from 0")
    parser.add_argument(
        "--handler",
        metavar="NAME",
        help="what to do with a sample that fails, such as warn_and_continue, or MODULE:NAME "
        "(default: reraise_exception)",
    )
    parser.add_argument("--retries", type=at_least(0))
    parser.add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help="seconds for a shard; then it is ended, and fails",
    )
    skip = "skip: report shards that fail and continue with the others (default: abort)"
    add_options(parser, "on_error", on_error={"help": skip, "default": None})
    parser.add_argument("--maxcount", type=float, help="samples per output shard")
    parser.add_argument("--maxsize", metavar="BYTES", help="of an output shard, such as 1GB")
    parser.add_argument("--no-index", dest="index", action="store_false", default=None)
    parser.add_argument("--name", help="of the job (default: made from the outputs)")
    parser.add_argument("--version", help="another one does all shards again")
    parser.add_argument("--force", action="store_true", default=None, help="accept a changed plan")
    parser.add_argument(
        "--dry-run", action="store_true", default=None, help="process a few shards, keep nothing"
    )
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    from penstock.jobs.runner import is_storage_failure

    arguments.kept = "finished shards are kept, and the same command continues"
    report = Report.of(arguments)
    try:
        outcome = _map(arguments)
    except Exception as error:
        failed = getattr(error, "failed_task", None) is not None
        if not failed and not isinstance(error, OSError | PipelineError | UrlError | ImportError):
            raise
        _print_error(error)
        if is_storage_failure(error):
            return STORAGE
        return FAILED if failed else USAGE
    if outcome.estimate is not None:
        _print_estimate(report, outcome.estimate)
    else:
        _print_outcome(report, outcome)
    report.figures.update(outcome.as_json())
    report.close()
    if any(is_storage_failure(failure.error) for failure in outcome.failures):
        return STORAGE
    return FAILED if outcome.failed else 0


def _map(arguments: argparse.Namespace) -> Any:
    from penstock.jobs import map_shards
    from penstock.memory.freed_memory import keep_freed_memory
    from penstock.tools.units import parse_size

    keep_freed_memory()
    keywords = _read_job_file(arguments.what) if arguments.what.endswith(JOB_FILES) else {}
    named = keywords.pop("fn", None) or arguments.what
    if not isinstance(named, str) or named.endswith(JOB_FILES):
        raise PipelineError("a job file needs 'fn: MODULE:NAME'")
    for name in _keywords():
        value = getattr(arguments, name, None)
        if value is not None:
            keywords[name] = value
    if arguments.worker is not None:
        keywords["worker"] = _parse_worker(arguments.worker)
        keywords.setdefault("engine", "array")
    for name in ("inputs", "outputs"):
        if keywords.get(name) is None:
            raise PipelineError(f"there are no {name}: say --{name}, or {name}: in a job file")
    if isinstance(keywords.get("handler"), str):
        keywords["handler"] = _load_handler(keywords["handler"])
    maxsize = keywords.get("maxsize")
    if isinstance(maxsize, str):
        keywords["maxsize"] = float(parse_size(maxsize))
    elif not isinstance(maxsize, int | float | None):
        raise PipelineError(f"maxsize is a size such as 1GB, not {maxsize!r}")
    if isinstance(keywords["inputs"], list) and len(keywords["inputs"]) == 1:
        (keywords["inputs"],) = keywords["inputs"]
    progress: Any = None if sys.stderr.isatty() else "json"
    if arguments.quiet:
        progress = False
    return map_shards(
        load_function(named), keywords.pop("inputs"), keywords.pop("outputs"),
        progress=progress, **keywords,
    )  # fmt: skip


def _keywords() -> list[str]:
    """The keywords of map_shards that a job file may have, besides ``fn``."""
    from penstock.jobs import map_shards

    names = [name for name in inspect.signature(map_shards).parameters if name != "fn"]
    return [name for name in names if name not in ("progress", "worker")]


def _read_job_file(path: str) -> dict[str, Any]:
    yaml = optional("yaml", "yaml", "reading a job file")
    try:
        with open(path, encoding="utf-8") as file:
            found = yaml.safe_load(file)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PipelineError(f"{path} is no YAML: {error}") from error
    if not isinstance(found, Mapping):
        raise PipelineError(f"{path} is no job file: it needs keys such as fn:, inputs:, outputs:")
    known = ["fn", *_keywords()]
    for name in found:
        if name not in known:
            raise PipelineError(f"{path}: {name!r} is no key of a job ({', '.join(known)})")
    for name in ("jobs", "retries", "maxcount", "timeout"):
        if not isinstance(found.get(name, 0), int | float | None):
            raise PipelineError(f"{path}: {name} is a number, not {found[name]!r}")
    return dict(found)


def load_function(named: str) -> Any:
    """Import MODULE:NAME or FILE.py:NAME; modules of the working folder are found."""
    module, _, name = named.rpartition(":")
    if not module:
        raise PipelineError(f"a function is named MODULE:NAME or FILE.py:NAME, not {named!r}")
    if module.endswith(".py"):
        loaded = _load_file(module)
    else:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())
        try:
            loaded = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if isinstance(error, MissingPackage):
                raise
            raise PipelineError(f"there is no module {module!r} ({error})") from error
    found = loaded
    for part in name.split("."):
        found = getattr(found, part, None)
        if found is None:
            raise PipelineError(f"{module} has no {name!r}")
    return found


def _load_file(path: str) -> Any:
    if not os.path.exists(path):
        raise PipelineError(f"there is no file {path!r}")
    name = os.path.splitext(os.path.basename(path))[0]
    folder = os.path.dirname(os.path.abspath(path))
    if folder not in sys.path:
        sys.path.insert(0, folder)  # worker processes import the module by its name
    loaded = importlib.import_module(name)
    found = getattr(loaded, "__file__", None)
    if found is None or not os.path.samefile(found, path):
        raise PipelineError(f"{path!r} has the name of another module, {name}: rename the file")
    return loaded


def _load_handler(name: str) -> Any:
    from penstock import handlers

    found = None if name.startswith("_") else getattr(handlers, name, None)
    if ":" in name:
        return load_function(name)
    if not callable(found):
        raise PipelineError(
            f"--handler (handler:) is reraise_exception, ignore_and_continue, warn_and_continue, "
            f"ignore_and_stop, warn_and_stop or MODULE:NAME, not {name!r}"
        )
    return found


def _parse_worker(text: str) -> tuple[int, int]:
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal()):
        raise PipelineError(f"--worker is K/N, such as 0/8, not {text!r}")
    return int(number), int(count)


def _print_error(error: Exception) -> None:
    words = [f"{type(error).__name__}: {error}" if not _is_ours(error) else str(error)]
    words += getattr(error, "__notes__", ())
    print("penstock: " + printable(" ".join(" ".join(words).split())), file=sys.stderr)


def _is_ours(error: Exception) -> bool:
    return type(error).__module__.startswith("penstock")


def _print_outcome(report: Report, outcome: Any) -> None:
    earlier = outcome.done - outcome.ran
    before = f", {earlier:,} of them before" if earlier else ""
    report.say(f"{outcome.done:,} of {outcome.tasks:,} shards are done{before}")
    report.say(
        f"{outcome.samples_in:,} samples in: {outcome.kept:,} kept, {outcome.dropped:,} dropped"
        f"{f', {outcome.errors:,} failed' if outcome.errors else ''}; {outcome.samples_out:,} out"
    )
    print_skipped(report, outcome)
    for failure in outcome.failures[:20]:
        report.say(f"failed: {failure.task}: {failure.message}")
    if outcome.failed > 20:
        report.say(f"and {outcome.failed - 20:,} more failed; see 'penstock job status'")
    if outcome.digest:
        report.say(f"digest {outcome.digest}")


def _print_estimate(report: Report, estimate: Mapping[str, Any]) -> None:
    report.say(
        f"estimated from {estimate['measured']} of {estimate['tasks']:,} shards, with "
        f"{estimate['jobs']} workers like this one:"
    )
    report.say(f"  time      {_duration(estimate['seconds'])}")
    report.say(f"  requests  {estimate['requests']:,}")
    report.say(f"  read      {estimate['bytes_in'] / 1e6:,.1f} MB")
    report.say(f"  written   {estimate['bytes_out'] / 1e6:,.1f} MB")


def _duration(seconds: float) -> str:
    """
    >>> _duration(59.4), _duration(4000)
    ('59.4 s', '1 h 07 min')
    """
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min" if minutes >= 60 else f"{minutes} min"
