"""``penstock spec``: check or show the spec of a data set."""

from __future__ import annotations

import argparse
from typing import Any

from penstock.cli.arguments import add_json_argument, at_least
from penstock.cli.report import Report

EXAMPLE = (
    'echo \'{"sources": [{"shards": "shards/train-000000.tar"}]}\' > train.json && '
    "penstock spec show train.json"
)
COLUMNS = ("source", "shards", "samples", "bytes", "share", "passes", "requests/1,000")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "action",
        choices=["check", "show"],
        help="check: say whether the spec can be read; show: print what each source has",
    )
    parser.add_argument("spec", metavar="SPEC", help="a YAML or JSON file, local or remote")
    parser.add_argument("--split", metavar="NAME", help="one of the spec's splits")
    parser.add_argument(
        "--samples",
        type=at_least(1),
        metavar="N",
        help="compute passes over N samples (default: one epoch)",
    )
    parser.add_argument(
        "--allow-pipe", action="store_true", help="permit shards that are commands (pipe:)"
    )
    add_json_argument(parser)


def run(arguments: argparse.Namespace) -> int:
    from penstock.pipeline.spec import load_spec  # loads numpy

    report = Report(as_json=arguments.json)
    spec = load_spec(arguments.spec, split=arguments.split, allow_pipe=arguments.allow_pipe)
    leaves = list(spec.leaves())
    report.figures = {
        "schema": f"penstock.spec-{arguments.action}/1",
        "spec": arguments.spec,
        "mix": spec.mode if spec.weights is not None else None,
        "until": spec.until,
        "splits": spec.splits,
        "sources": [{"name": name, "shards": len(source.shards)} for name, source in leaves],
    }
    if arguments.action == "check":
        shards = sum(len(source.shards) for _, source in leaves)
        report.say(f"{arguments.spec}: {len(leaves)} sources, {shards} shards, no faults found")
    else:
        show(spec, arguments, report)
    report.close()
    return 0


def show(spec: Any, arguments: argparse.Namespace, report: Report) -> None:
    """Print for each source its shards, samples, bytes, share, passes and requests."""
    from penstock.pipeline.mixture_change import find_mix
    from penstock.pipeline.webdataset import WebDataset
    from penstock.stages.sources.mixed_samples import MixedSamples

    mixture = find_mix(WebDataset(spec, index=True).pipeline)
    if not isinstance(mixture, MixedSamples):
        report.say(str(spec))
        return
    total = arguments.samples
    if total is None:
        total = 1_000_000 if mixture.endless else len(mixture)
    counts = _counts(mixture, total)
    rows = [_row(mixture, name, one, counts.get(name, 0), total) for name, one in spec.leaves()]
    report.figures |= {"over_samples": total, "sources": rows}
    mix = f"mix {spec.mode}" if spec.weights is not None else "every sample once"
    report.say(f"{arguments.spec}: {mix}; passes over {total:,} samples")
    table = [COLUMNS]
    for row in rows:
        numbers = ("-" if row[n] is None else f"{row[n]:,}" for n in ("shards", "samples", "bytes"))
        passes = "-" if row["passes"] is None else f"{row['passes']:.2f}"
        requests = "-" if row["requests_per_1000"] is None else f"{row['requests_per_1000']:,}"
        table.append((row["name"], *numbers, f"{row['share']:.2%}", passes, requests))
    widths = [max(map(len, column)) for column in zip(*table)]
    for line in table:
        first = line[0].ljust(widths[0])
        rest = (word.rjust(width) for word, width in zip(line[1:], widths[1:]))
        report.say("  ".join([first, *rest]))


def _row(mixture: Any, name: str, source: Any, count: int, total: int) -> dict[str, Any]:
    """Return the figures of a source that yields ``count`` of ``total`` samples."""
    from penstock.storage.urls import is_remote

    samples, size_bytes = _size(mixture, name)
    share = count / (total or 1)
    sets = [source.shards, *(join.shards for join in source.join)]
    remote = sum(any(map(is_remote, shards)) for shards in sets)
    return {
        "name": name,
        "shards": len(source.shards),
        "samples": samples,
        "bytes": size_bytes,
        "share": round(share, 6),
        "passes": round(count / samples, 4) if samples else None,
        "requests_per_1000": round(1000 * share * remote) if remote else None,
    }


def _counts(mixture: Any, total: int, above: str = "") -> dict[str, int]:
    """Return how many of ``total`` samples come from each source, by full name."""
    counts: dict[str, int] = {}
    length = len(mixture.order(0, 0))
    passes, rest = divmod(total, length)
    for name, one in mixture.source_stats(rest, 0, 0).items():
        whole = mixture.source_stats(length, 0, 0)[name].samples if passes else 0
        count = passes * whole + one.samples
        inner = next(part.samples for part in mixture.parts if part.name == name)
        if hasattr(inner, "parts"):
            counts |= _counts(inner, count, f"{above}{name}/") if count else {}
        else:
            counts[f"{above}{name}"] = count
    return counts


def _size(mixture: Any, name: str) -> tuple[int | None, int | None]:
    """Return the samples of a source and the bytes that they take in their shards; None: it has
    weight 0, and its index is not opened."""
    for number in mixture.mixture.active:
        part = mixture.parts[number]
        if hasattr(part.samples, "parts") and name.startswith(f"{part.name}/"):
            return _size(part.samples, name[len(part.name) + 1 :])
        if part.name == name:
            index, _, kept = part.samples.opened()
            sizes = index.size if kept is None else index.size[kept]
            return len(sizes), int(sizes.sum())
    return None, None
