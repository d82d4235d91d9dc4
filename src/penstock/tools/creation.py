"""``create``: shards from folders, plan files, tables and folders of images."""

from __future__ import annotations

import dataclasses
import json
import os
import warnings
from collections.abc import Mapping, Sequence

from penstock.errors import PipelineError, SampleError, ShardWarning
from penstock.jobs.output_files import is_there
from penstock.jobs.output_listing import OutputSet
from penstock.jobs.plan import inside
from penstock.nearest_name import suggest
from penstock.rng import stable_hash
from penstock.storage.small_files import make_folder, read_file, stamp_file, write_file
from penstock.storage.urls import local_path, rewrite_url
from penstock.tools.create_sources import (
    FileInput,
    from_folders,
    from_images,
    from_plan,
    from_tables,
)
from penstock.tools.outputs import refuse_existing
from penstock.tools.shard_output import OutputPlace, plan_cuts, refuse_duplicates, write_order
from penstock.tools.units import parse_size
from penstock.tools.written import Written

KINDS = ("folder", "plan", "table", "images")
MISSING = ("abort", "warn", "exclude")
FIRST_KEYS = 10
REMEDY = "the rows of tables and the samples of several plans need different keys"


@dataclasses.dataclass
class Created(Written):
    """What ``create`` has written, or with a dry run would write."""

    first_keys: list[str] = dataclasses.field(default_factory=list)
    rejected_files: list[tuple[str, str]] = dataclasses.field(default_factory=list)
    splits: dict[str, int] = dataclasses.field(default_factory=dict)
    """Split → number of samples."""
    dry_run: bool = False


def create(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    output: str | os.PathLike[str],
    *,
    kind: str | None = None,
    key: str = "path",
    field: str | None = None,
    count: int | None = None,
    size: int | str | None = None,
    require: str | Sequence[str] = (),
    missing: str = "abort",
    order: str | None = None,
    seed: int = 0,
    split: str | Mapping[str, float] | None = None,
    allow_pipe: bool = False,
    jobs: int | None = None,
    index: bool = True,
    dry_run: bool = False,
    force: bool = False,
    quiet: bool = True,
) -> Created:
    """Write samples from files, or rows of tables, to shards.

    ``kind`` is what the sources are: "folder" (all files below; the default for folders), "plan"
    (lines ``member-name source``), "table" (TSV, CSV, JSONL, Parquet) or "images" (one folder per
    class). ``key`` is "path" (the relative path up to the first dot of the file's name), "base"
    (without folders), or a regular expression with one group. ``field`` (``--as``) is one field for
    images of all formats: "image" is the field ``image.jpg``.

    A shard ends at ``count`` samples or ``size`` bytes, by default 1 GB. Samples that lack one of
    the fields ``require`` abort the call, are kept with a warning (``missing="warn"``) or left out
    ("exclude"). ``order`` is "name" or "random" by ``seed``; plans and tables keep their own order
    unless one is given. ``split`` such as ``"train=0.9,val=0.1"`` distributes samples by a hash of
    their key; the name replaces ``{split}`` in the output or becomes a prefix. A call that was
    killed continues when it is made again, and writes the same bytes. If there is no sample, that
    is a SampleError. A plan may name any file and URL; commands in it (``pipe:``) run only with
    ``allow_pipe``.
    """
    roots = [sources] if isinstance(sources, (str, os.PathLike)) else list(sources)
    text = os.fspath(output)
    names = _names_written(text, split)
    paths = [os.fspath(root) for root in roots]
    samples, classes = _read_sources(paths, kind, key, names, field, allow_pipe=allow_pipe)
    done = Created(text, dry_run=dry_run)
    numbers = _choose(samples, _names(require), missing)
    numbers = _ordered(samples, numbers, order or _own_order(samples, kind), seed)
    done.first_keys = [samples.keys[number] for number in numbers[:FIRST_KEYS]]
    done.rejected_files, done.rejected = samples.rejected, len(samples.rejected)
    if not numbers and not dry_run:
        raise _nothing_found(samples.rejected)
    limit = None if size is None else parse_size(size)
    parts, sizes = _split(samples, numbers, split), samples.size
    for name, part in parts.items():
        place = OutputPlace(_pattern_of(text, name))
        if name is not None:
            done.splits[name] = len(part)
        if not part:
            continue
        if dry_run:
            cuts = plan_cuts(samples, part, place, count, limit)
            refuse_duplicates(samples, part, cuts, place, REMEDY)
            done.shards += len(cuts)
            done.samples += len(part)
            done.bytes += sum(map(sizes.__getitem__, part))
        else:
            chosen = {"samples": stable_hash(*part)} if require or split else {}
            if classes is not None:
                _write_classes(place, classes, force)
            written = write_order(
                samples,
                part,
                place,
                function="penstock.tools.create/1",
                settings={"order": order, "seed": seed, "split": name, **chosen},
                remedy=REMEDY,
                count=count,
                size=limit,
                jobs=jobs,
                index=index,
                force=force,
                quiet=quiet,
            )
            done.shards += written.shards
            done.samples += written.samples
            done.bytes += written.bytes
    return done


def _nothing_found(rejected: Sequence[tuple[str, str]]) -> SampleError:
    if not rejected:
        return SampleError("there is nothing to write: the sources have no files or rows")
    name, reason = rejected[0]
    return SampleError(
        f"there is nothing to write: {len(rejected):,} files were rejected, such as {name!r}: "
        f"{reason} (--dry-run lists all)"
    )


def _names_written(output: str, split: str | Mapping[str, float] | None) -> dict[str, OutputSet]:
    """Return the names of the shards by the real path of their folder, if that is local."""
    names: dict[str, list[str]] = {}
    for part in (None,) if split is None else parse_split(split):
        place = OutputPlace(_pattern_of(output, part))
        folder = local_path(rewrite_url(place.folder))
        if folder is not None and not place.is_stdout:
            names.setdefault(os.path.realpath(folder), []).append(place.rest)
    return {folder: OutputSet(own, in_parts="%" in own[0]) for folder, own in names.items()}


def _read_sources(
    roots: list[str],
    kind: str | None,
    key: str,
    written: Mapping[str, OutputSet],
    field: str | None,
    *,
    allow_pipe: bool,
) -> tuple[FileInput, list[str] | None]:
    if not roots:
        raise PipelineError("name at least one folder, plan or table")
    kind = kind or _guess_kind(roots[0])
    if field is not None and kind != "images":
        raise PipelineError(f"--as is for images, not for a {kind}")
    if kind == "folder":
        return from_folders(roots, key, written), None
    if kind == "images":
        return from_images(roots, key, written, field)
    if key != "path":
        raise PipelineError(f"--key is for folders and images, not for a {kind}")
    if kind == "plan":
        return from_plan(roots, allow_pipe=allow_pipe), None
    if kind == "table":
        return from_tables(roots), None
    raise PipelineError(f"kind= is one of {', '.join(KINDS)}, not {kind!r}")


def _guess_kind(root: str) -> str:
    path = local_path(rewrite_url(root))
    if root.endswith("/") or (path is not None and os.path.isdir(path)):
        return "folder"
    if path is not None and root != "-":
        stamp_file(path)  # a missing file is an error
    raise PipelineError(
        f"{root!r} is no folder: say what it is with --from plan, --from table, or --from folder "
        "for a single file"
    )


def _names(require: str | Sequence[str]) -> list[str]:
    names = require.split(",") if isinstance(require, str) else require
    return [name.strip().lower() for name in names if name.strip()]


def _choose(samples: FileInput, require: list[str], missing: str) -> list[int]:
    """Return the numbers of the samples that have what is required."""
    if missing not in MISSING:
        raise PipelineError(f"missing= is one of {', '.join(MISSING)}, not {missing!r}")
    chosen = []
    for number, key in enumerate(samples.keys):
        fields = samples.fields_of(number)
        lacking = [field for field in require if field not in fields]
        if lacking:
            problem = f"the sample {key!r} lacks {', '.join(lacking)} (it has {', '.join(fields)})"
            if missing == "abort":
                hint = suggest(lacking[0], fields)
                raise SampleError(
                    f"{problem}: --missing warn keeps it, --missing exclude does not{hint}"
                )
            if missing == "warn":
                warnings.warn(problem, ShardWarning, stacklevel=3)
            else:
                samples.rejected += [
                    (part.source or key, f"the sample {key!r} lacks {', '.join(lacking)}")
                    for part in samples.parts[number]
                    if not part.source.startswith("text:")
                ]
                continue
        chosen.append(number)
    return chosen


def _own_order(samples: FileInput, kind: str | None) -> str:
    return "own" if kind in ("plan", "table") else "name"


def _ordered(samples: FileInput, numbers: list[int], order: str, seed: int) -> list[int]:
    if order == "own":
        return numbers
    names = [key.encode("utf-8", "surrogateescape") for key in samples.keys]
    if order == "name":
        return sorted(numbers, key=names.__getitem__)
    if order != "random":
        raise PipelineError(f"order= is 'name' or 'random', not {order!r}")
    hashes = {number: stable_hash("create", seed, repr(names[number])) for number in numbers}
    return sorted(numbers, key=lambda number: (hashes[number], names[number]))


def parse_split(split: str | Mapping[str, float]) -> dict[str, float]:
    """Return the share of each split; together they are 1.

    >>> parse_split("train=0.9,val=0.1")
    {'train': 0.9, 'val': 0.1}
    """
    if isinstance(split, str):
        pairs = [item.partition("=")[::2] for item in split.split(",")]
    else:
        pairs = [(name, str(share)) for name, share in split.items()]
    shares: dict[str, float] = {}
    for given, text in pairs:
        name = given.strip()
        try:
            share = float(text)
        except ValueError:
            share = -1.0
        if not name or "/" in name or name in shares or not 0 < share < float("inf"):
            raise PipelineError(f"--split is NAME=SHARE,… such as train=0.9,val=0.1, not {split!r}")
        shares[name] = share
    total = sum(shares.values())
    if abs(total - 1) > 1e-9:
        raise PipelineError(f"the shares of --split must add up to 1, not to {total:g}: {split!r}")
    return shares


def _split(
    samples: FileInput, numbers: list[int], split: str | Mapping[str, float] | None
) -> dict[str | None, list[int]]:
    if split is None:
        return {None: numbers}
    shares = parse_split(split)
    parts: dict[str | None, list[int]] = {name: [] for name in shares}
    for number in numbers:
        parts[_split_of(samples.keys[number], shares)].append(number)
    return parts


def _split_of(key: str, shares: Mapping[str, float]) -> str:
    name = repr(key.encode("utf-8", "surrogateescape"))
    place = stable_hash("split", name) / 2**64 * sum(shares.values())
    for split, share in shares.items():
        place -= share
        if place < 0:
            return split
    return list(shares)[-1]  # by rounding


def _pattern_of(output: str, split: str | None) -> str:
    """Return the output of a split.

    >>> _pattern_of("out/x-%06d.tar", "val"), _pattern_of("out/{split}/%06d.tar", "val")
    ('out/val-x-%06d.tar', 'out/val/%06d.tar')
    """
    if split is None:
        return output
    if output == "-":
        raise PipelineError("splits need a pattern as output, not standard output")
    if "{split}" in output:
        return output.replace("{split}", split)
    folder, slash, name = output.rpartition("/")
    return f"{folder}{slash}{split}-{name}"


def _write_classes(place: OutputPlace, classes: list[str], force: bool) -> None:
    if place.is_stdout:
        return
    url = inside(place.folder, "classes.json")
    data = (json.dumps(classes, indent=1, ensure_ascii=False) + "\n").encode()
    if is_there(url) and read_file(url) == data:
        return
    refuse_existing(url, force)
    make_folder(place.folder)
    write_file(url, data)
