"""Specs: a data set described in a YAML or JSON file.

Four forms become the same :class:`Spec`: WebDataset's ``dataset:`` list, our own form on top of it,
WebDataset's ``*.shards.yml`` (``prefix``, ``buckets``, ``datasets``) and wids' JSON.

A spec is untrusted: it cannot run code, its size and nesting are bounded, commands (``pipe:``) need
the caller's permission, and errors name file, line and column.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from penstock import env
from penstock.errors import Origin, PenstockError, PipelineError, StorageError, UnsafeError
from penstock.nearest_name import checks_arguments
from penstock.pipeline.spec_file import (
    MAX_BYTES,
    MAX_DEPTH,
    Items,
    Position,
    SpecFile,
    Table,
    find_near,
    unwrap,
)
from penstock.redact import redact
from penstock.shards.index.join import Join
from penstock.shards.index.subset import Fold, Subset
from penstock.stages.sources.mix_plan import MODES, UNTIL, Schedule
from penstock.stages.stage import nested_stages
from penstock.storage import open_url
from penstock.storage.urls import UrlLimit, scheme_of, split_urls

ENDINGS = (".yaml", ".yml", ".json")
MAX_INCLUDES = 1000
MAX_SUBSTITUTED = 64 << 20
"""Characters of the values that replace variables, in all."""

LISTS = ("sources", "dataset", "datasets")
TOP = ("penstock", "vars", "mix", "mode", "until", "splits", "prefix", "buckets", *LISTS)
SUBSETS = ("where", "keys", "fraction", "fold")
SOURCE = ("name", "shards", "weight", "join", "include", *SUBSETS)
SHARD_COUNTS = ("resample", "choose", "perepoch")
BUCKETED = ("name", "shards", "buckets", *SHARD_COUNTS)
TOP_BUCKETED = ("penstock", "vars", "prefix", "buckets", "datasets")
FOLD = ("of", "use", "by", "salt")
JOIN = ("shards", "fields", "prefix", "missing", "fill")


@dataclasses.dataclass
class SpecSource:
    """One source of a spec."""

    name: str
    shards: list[str]
    weight: Any = None
    subset: dict[str, Any] = dataclasses.field(default_factory=dict)
    join: tuple[Join, ...] = ()
    tags: dict[str, Any] = dataclasses.field(default_factory=dict)
    positions: dict[str, str] = dataclasses.field(default_factory=dict)
    """File, line and column of ``where``, ``keys``, ``fold`` and ``join``, for messages."""
    inner: Spec | None = None
    """The content of an ``include``, in place of shards."""

    @property
    def needs_index(self) -> bool:
        inner = self.inner is not None and self.inner.needs_index
        return bool(self.subset or self.join or inner)


@dataclasses.dataclass
class Spec:
    """A data set as a spec describes it; ``WebDataset(spec)`` reads it.

    Without weights every sample occurs once per epoch.
    """

    path: str
    sources: list[SpecSource]
    mode: str = "quota"
    until: str | None = None
    splits: list[str] = dataclasses.field(default_factory=list)
    pipeline: Any = None
    """The result of a function, in place of sources."""

    @property
    def weights(self) -> list[Any] | None:
        weights = [source.weight for source in self.sources]
        return None if all(weight is None for weight in weights) else weights

    @property
    def needs_index(self) -> bool:
        """Whether the data set cannot be read as streams."""
        weights = self.weights or ()
        parts = self.mode == "epochs" and any(Schedule(w).at(0) % 1 for w in weights)
        return parts or any(source.needs_index for source in self.sources)

    def leaves(self, above: str = "") -> Iterator[tuple[str, SpecSource]]:
        """Yield all sources that have shards, with their full names."""
        for source in self.sources:
            name = f"{above}{source.name}"
            if source.inner is None:
                yield name, source
            else:
                yield from source.inner.leaves(f"{name}/")

    def __str__(self) -> str:
        if self.pipeline is not None:
            return f"{self.path}: {self.pipeline!r}"
        until = f", until: {self.until}" if self.until else ""
        mix = f", mix: {self.mode}{until}" if self.weights is not None else ", every sample once"
        count = len(self.sources)
        lines = [f"{redact(self.path)}: {count} source{'s' * (count != 1)}{mix}"]
        for source in self.sources:
            words = [f"  {source.name}:"]
            if source.inner is not None:
                words.append(f"include {redact(source.inner.path)}")
            else:
                first = redact(source.shards[0]) if source.shards else "no shards"
                more = f" and {len(source.shards) - 1} more" if len(source.shards) > 1 else ""
                words.append(first + more)
            given = {"weight": source.weight, **source.subset, "tags": source.tags}
            words += [f"{k}={unwrap(v)!r}" for k, v in given.items() if v not in (None, {})]
            lines.append(" ".join(words))
        if self.splits:
            lines.append(f"  splits: {', '.join(self.splits)}")
        return "\n".join(lines)


def is_spec(source: Any) -> bool:
    """Return whether the argument of ``WebDataset`` is a spec rather than shards.

    >>> is_spec("train.yaml"), is_spec({"dataset": []}), is_spec("train-{0..9}.tar")
    (True, True, False)
    """
    if isinstance(source, (Spec, Mapping)):
        return True
    if not isinstance(source, (str, os.PathLike)):
        return False
    return os.fspath(source).lower().endswith(ENDINGS)


@checks_arguments
def load_spec(
    source: Any,
    *,
    split: str | None = None,
    vars: Mapping[str, str] | None = None,
    allow_pipe: bool = False,
) -> Spec:
    """Read a spec: a YAML or JSON file, local or remote, or a dict.

    ``split`` chooses one of its ``splits``. ``vars`` are values for ``${NAME}``; they win over the
    spec's own ``vars``, and those over the environment. ``allow_pipe`` permits shards that are
    commands. ``"file.py:make"`` calls a function of a Python file, which returns a dict, a spec or
    a pipeline. What is wrong is a :class:`~penstock.errors.PipelineError` with file, line and
    column.

    >>> print(load_spec({"dataset": [{"shards": "train-{000..009}.tar", "scale": 2}]}))
    <dict>: 1 source, every sample once
      0: train-000.tar and 9 more tags={'scale': 2}
    """
    if isinstance(source, Spec):
        return _whole(source, split)
    reader = _Reader(dict(vars or {}), allow_pipe)
    if isinstance(source, Mapping):
        file = SpecFile("<dict>", "")
        return reader.read(file, file.wrap(source), split)
    if not isinstance(source, (str, os.PathLike)):
        raise PipelineError(f"a spec is a file or a dict, not {source!r}")
    path = os.fspath(source)
    code = re.fullmatch(r"(.+\.py):(\w+)", path)
    if code is not None:
        return _from_code(code[1], code[2], reader, split)
    return reader.open(path, split)


def _from_code(path: str, name: str, reader: _Reader, split: str | None) -> Spec:
    found = importlib.util.spec_from_file_location("penstock_spec", path)
    if found is None or found.loader is None or not os.path.exists(path):
        raise PipelineError(f"there is no Python file {path!r}")
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    if not hasattr(module, name):
        raise PipelineError(f"{path} has no function {name!r}")
    made = getattr(module, name)()
    if isinstance(made, Spec):
        return _whole(made, split)
    if isinstance(made, Mapping):
        file = SpecFile(f"{path}:{name}", os.path.dirname(path))
        return reader.read(file, file.wrap(made), split)
    if nested_stages(made) is not None:
        return _whole(Spec(f"{path}:{name}", [], pipeline=made), split)
    raise PipelineError(f"{path}:{name} returns a dict, a Spec or a pipeline, not {made!r}")


def _whole(spec: Spec, split: str | None) -> Spec:
    """Return a spec that is read already; a split was chosen then, or never."""
    if split is not None:
        raise PipelineError(
            f"split={split!r} is chosen when a spec is read: say load_spec(file, split={split!r})"
        )
    return spec


class _Reader:
    """Reads the files of one spec."""

    def __init__(self, variables: Mapping[str, str], allow_pipe: bool) -> None:
        self.given, self.allow_pipe = variables, allow_pipe
        self.own: dict[str, str] = {}
        self.including: list[str] = []
        self.included = self.substituted = 0
        self.limit = UrlLimit()

    def open(self, path: str, split: str | None) -> Spec:
        """Read a spec from a file."""
        name = path if scheme_of(path) else os.path.abspath(os.path.expanduser(path))
        if name in self.including:
            chain = " → ".join(redact(one) for one in [*self.including, name])
            raise PipelineError(f"a spec includes itself: {chain}")
        self.included += 1
        if self.included > MAX_INCLUDES:
            raise PipelineError(f"a spec includes more than {MAX_INCLUDES} others")
        with open_url(name, buffer_bytes=-1) as stream:
            data = stream.read(MAX_BYTES + 1)
        folder = name.rpartition("/")[0] if scheme_of(name) else os.path.dirname(name)
        file = SpecFile(path, folder)
        with contextlib.suppress(PenstockError, ValueError, RecursionError):
            # Lists of many thousand shards: a YAML parser would take seconds.
            if path.lower().endswith(".json") and _is_wids(values := json.loads(data)):
                return self._wids(file, file.wrap(values), split)
        self.including.append(name)
        try:
            return self.read(file, file.parse(data), split)
        finally:
            self.including.pop()

    # ── forms ───────────────────────────────────────────────────────────────────────────

    def read(self, file: SpecFile, top: Any, split: str | None) -> Spec:
        """Return the spec that the values of a file describe."""
        if not isinstance(top, Table):
            file.fail("a spec is a mapping with a list 'dataset' or 'sources'")
        if _is_wids(top):
            return self._wids(file, top, split)
        self._check_keys(file, top, TOP, extra=False)
        if top.get("penstock", 1) != 1:
            version = top["penstock"]
            file.fail(
                f"this version of penstock reads specs of version 1, not {version!r}",
                top.values_at["penstock"],
            )
        before = self.own
        self.own = {**before, **self._variables(file, top)}
        try:
            if "prefix" in top or "buckets" in top or file.name.endswith(".shards.yml"):
                return self._bucketed(file, top, split)
            return self._sources_of(file, top, split)
        finally:
            self.own = before

    def _sources_of(self, file: SpecFile, top: Table, split: str | None) -> Spec:
        splits = top.get("splits") or Table()
        if not isinstance(splits, Table):
            file.fail("splits is a mapping of names and sources", top.values_at["splits"])
        if split is not None:
            self._check_split(file, split, splits, top.keys_at.get("splits"))
            return self._split(file, splits, split)
        found = [name for name in LISTS if name in top]
        if len(found) != 1:
            names = f": say split=…, one of {', '.join(splits)}" if splits else ""
            what = f"both {' and '.join(found)}" if found else f"no list of sources{names}"
            file.fail(f"the spec has {what}", top.keys_at[found[1]] if found else top.position)
        spec = self._mixture(file, top, top[found[0]], top.values_at[found[0]])
        spec.splits = list(splits)
        return spec

    def _check_split(
        self, file: SpecFile, split: str | None, splits: Iterable[str], at: Position | None = None
    ) -> None:
        if split is not None and split not in splits:
            names = ", ".join(splits) or "none"
            file.fail(f"the spec has no split {split!r} (it has: {names})", at)

    def _split(self, file: SpecFile, splits: Table, split: str) -> Spec:
        part, at = splits[split], splits.values_at[split]
        if isinstance(part, str):
            return self._include(file, part, at)
        if isinstance(part, Items):
            return self._mixture(file, Table(), part, at)
        if not isinstance(part, Table):
            file.fail("a split is a list of sources, a mapping with one, or a file", at)
        self._check_keys(file, part, (*LISTS, "mix", "mode", "until"), extra=False)
        return self._sources_of(file, part, None)  # with a separate mix

    def _mixture(self, file: SpecFile, top: Table, items: Any, at: Position) -> Spec:
        if not isinstance(items, Items) or not items:
            file.fail("the sources are a list with at least one entry", at)
        mode, until = self._mode(file, top)
        sources = [
            self._source(file, item, number, position)
            for number, (item, position) in enumerate(zip(items, items.items_at))
        ]
        self._check_names(file, sources, items)
        weighted = [source.weight is not None for source in sources]
        if any(weighted) and not all(weighted):
            position = items.items_at[weighted.index(False)]
            file.fail("this source has no weight, but others have one", position)
        if until is not None and not any(weighted):
            message = "until needs weights: without them every sample comes once"
            file.fail(message, top.values_at["until"])
        if any(weighted) and all(Schedule(source.weight).zero for source in sources):
            file.fail("the weights of all sources are 0", at)
        return Spec(file.name, sources, mode, until)

    def _mode(self, file: SpecFile, top: Table) -> tuple[str, str | None]:
        """Return ``mix`` and ``until``."""
        if "mix" in top and "mode" in top:
            file.fail("'mix' and 'mode' mean the same: write one", top.keys_at["mode"])
        word = "mode" if "mode" in top else "mix"
        mode, until = top.get(word, "quota"), top.get("until")
        if mode not in MODES:
            file.fail(f"mix is one of {', '.join(MODES)}, not {mode!r}", top.values_at[word])
        if until is not None and until not in UNTIL:
            file.fail(f"until is one of {', '.join(UNTIL)}, not {until!r}", top.values_at["until"])
        if until is not None and mode == "epochs":
            file.fail("with 'mix: epochs' the weights decide the end: leave out until",
                      top.keys_at["until"])  # fmt: skip
        return mode, until

    def _check_names(self, file: SpecFile, sources: list[SpecSource], items: Items) -> None:
        seen: set[str] = set()
        for source, item, position in zip(sources, items, items.items_at):
            if source.name in seen:
                file.fail(
                    f"the name {source.name!r} is that of another source",
                    item.values_at.get("name", position),
                )
            seen.add(source.name)

    def _bucketed(self, file: SpecFile, top: Table, split: str | None) -> Spec:
        """Read WebDataset's ``*.shards.yml``: shards below a prefix and a bucket."""
        self._refuse_keys(file, top, [name for name in TOP if name not in TOP_BUCKETED])
        self._check_split(file, split, ())
        items = top.get("datasets")
        if not isinstance(items, Items) or not items:
            file.fail("the spec has no list 'datasets'", top.position)
        prefix = self._expand_all(file, top.texts.get("prefix", ""), top.values_at.get("prefix"))
        sources = []
        for number, (item, position) in enumerate(zip(items, items.items_at)):
            if not isinstance(item, Table):
                file.fail("a data set is a mapping with 'shards'", position)
            self._check_keys(file, item, BUCKETED, extra=True)
            self._refuse_keys(file, item, [name for name in SOURCE if name not in BUCKETED])
            if "shards" not in item:
                file.fail("a data set has 'shards'", position)
            folder = self._bucket(file, item, top, position)
            names, at = _as_list(item["shards"]), item.values_at["shards"]
            if not names or not all(isinstance(name, str) for name in names):
                file.fail("shards is a text or a list of texts", at)
            folder = prefix + folder
            texts = (folder + self._expand_all(file, name, at) for name in names)
            urls = [url for text in texts for url in self._urls(file, text, at)]
            source = SpecSource(self._name(file, item, number), urls)
            source.tags = {k: unwrap(v) for k, v in item.items() if k not in BUCKETED}
            source.weight = self._passes(file, item, len(urls))
            sources.append(source)
        self._check_names(file, sources, items)
        if all(source.weight == 1 for source in sources):
            for source in sources:
                source.weight = None
            return Spec(file.name, sources)
        return Spec(file.name, sources, "epochs")

    def _refuse_keys(self, file: SpecFile, table: Table, names: Sequence[str]) -> None:
        """Refuse keys of our own form in a spec with a prefix, where they would have no effect."""
        for name in names:
            if name in table:
                file.fail(
                    f"{name!r} cannot be used in a spec with 'prefix' or 'buckets', or in a "
                    "*.shards.yml: write 'sources' with whole paths",
                    table.keys_at[name],
                )

    def _bucket(self, file: SpecFile, item: Table, top: Table, position: Position) -> str:
        """Return the folder of a data set's shards below the prefix."""
        buckets = _as_list(item.get("buckets", top.get("buckets", ""))) or [""]
        if len(buckets) != 1:
            file.fail("a data set has one bucket", position)
        bucket = self._expand_all(file, str(buckets[0] or ""), position)
        return f"{bucket}/" if bucket else ""

    def _expand_all(self, file: SpecFile, text: str, at: Position | None) -> str:
        """Replace variables, also ``$NAME`` as WebDataset does."""
        text = self._expand(file, text, at)
        return re.sub(
            r"\$(\w+)", lambda match: self._variable(file, match[1], at) or match[0], text
        )

    def _passes(self, file: SpecFile, item: Table, shards: int) -> float:
        """Return the passes that read as many samples as the wanted number of shards has."""
        given = [name for name in SHARD_COUNTS if item.get(name) is not None]
        if not given:
            return 1
        count, at = item[given[0]], item.values_at[given[0]]
        if len(given) > 1:
            file.fail(f"{given[0]} and {given[1]} exclude each other", item.keys_at[given[1]])
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            file.fail(f"{given[0]} is a number of shards, not {count!r}", at)
        if count > shards and given[0] != "resample":
            file.fail(f"{given[0]} is at most the number of shards, {shards}, not {count}", at)
        return float(Fraction(count, shards))

    def _wids(self, file: SpecFile, top: Table, split: str | None) -> Spec:
        """Read wids' JSON: a list of shards, or of data sets with such lists."""
        self._check_split(file, split, ())
        sources = []
        for number, item in enumerate(top.get("datasets") or [top]):
            shards = item.get("shardlist") if isinstance(item, Table) else None
            if not isinstance(shards, Items) or not shards:
                file.fail("a wids index has a list 'shardlist'", top.position)
            base = item.get("base") or item.get("base_path")
            urls = []
            for shard, position in zip(shards, shards.items_at):
                if not isinstance(shard, Table) or not isinstance(shard.get("url"), str):
                    file.fail("a shard of a wids index has a 'url'", position)
                url = shard["url"]
                below = f"{base}/{url}" if base and not scheme_of(url) else url
                urls.append(self._resolve(file, below, position))
                self._guard(file, position, self.limit.add, urls[-1:])
            sources.append(SpecSource(str(item.get("name", number)), urls))
        return Spec(file.name, sources)

    # ── sources ─────────────────────────────────────────────────────────────────────────

    def _source(self, file: SpecFile, item: Any, number: int, position: Position) -> SpecSource:
        if not isinstance(item, Table):
            file.fail("a source is a mapping with 'shards' or 'include'", position)
        self._check_keys(file, item, SOURCE, extra=True)
        source = SpecSource(self._name(file, item, number), [])
        if ("shards" in item) == ("include" in item):
            both = "either 'shards' or 'include', not both" if "shards" in item else "'shards'"
            file.fail(f"a source has {both}", position)
        if "weight" in item:
            source.weight = unwrap(item["weight"])
            self._guard(file, item.values_at["weight"], Schedule, source.weight, source.name)
        source.subset = self._subset(file, item)
        if "join" in item:
            source.join = self._joins(file, item["join"], item.values_at["join"])
        source.positions = {
            name: file.describe(at)
            for name, at in item.values_at.items()
            if name in (*SUBSETS, "join")
        }
        source.tags = {k: unwrap(v) for k, v in item.items() if k not in SOURCE}
        if "include" in item:
            if source.subset or source.join:
                file.fail("an include takes its subsets and joins from the other spec", position)
            source.inner = self._include(file, item["include"], item.values_at["include"])
        else:
            source.shards = self._urls(file, item["shards"], item.values_at["shards"])
        return source

    def _name(self, file: SpecFile, item: Table, number: int) -> str:
        """Return the name of a source as it is written, or its number."""
        name = item.get("name", "")
        if isinstance(name, bool) or not isinstance(name, (str, int)):
            file.fail("the name of a source is a text", item.values_at["name"])
        return item.texts.get("name", str(number))

    def _include(self, file: SpecFile, path: Any, at: Position) -> Spec:
        if not isinstance(path, str):
            file.fail("include is the name of another spec", at)
        name = self._resolve(file, self._expand(file, path, at), at)
        if not name.lower().endswith(ENDINGS):
            file.fail(f"include is a YAML or JSON file, not {path!r}", at)
        try:
            return self.open(name, None)
        except StorageError as error:
            file.fail(f"the included spec cannot be read: {error}", at)
        except PipelineError as error:
            if "includes itself" in str(error):
                file.fail(str(error), at)
            raise

    def _subset(self, file: SpecFile, item: Table) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in SUBSETS:
            if item.get(name) is None:
                continue
            value, at = item[name], item.values_at[name]
            if name == "fold":
                value = self._fold(file, value, at)
            elif name == "keys":
                value = self._keys(file, value, at)
            elif isinstance(value, str):
                value = self._expand(file, value, at)
            self._guard(file, at, Subset, **{name: value})
            found[name] = value
        return found

    def _fold(self, file: SpecFile, value: Any, at: Position) -> Fold:
        if not isinstance(value, Table):
            file.fail("fold is a mapping: {of: 10, use: [0, 1]}", at)
        self._check_keys(file, value, FOLD, extra=False)
        if "of" not in value or "use" not in value:
            file.fail("fold needs 'of' and 'use'", at)
        texts = {name: value.texts[name] for name in ("by", "salt") if name in value.texts}
        fold: Fold = self._guard(file, at, Fold, **{**unwrap(value), **texts})
        return fold

    def _keys(self, file: SpecFile, value: Any, at: Position) -> Any:
        if not isinstance(value, (str, Items)):
            file.fail("keys is a list, a pattern, or a file", at)
        if isinstance(value, Items):
            return unwrap(value)
        text = self._expand(file, value, at)
        return text if re.search(r"[*?]", text) else self._resolve(file, text, at)

    def _joins(self, file: SpecFile, value: Any, at: Position) -> tuple[Join, ...]:
        joins = []
        for item in _as_list(value):
            if not isinstance(item, Table):
                file.fail("join is a list of mappings with 'shards'", at)
            self._check_keys(file, item, JOIN, extra=False)
            if "shards" not in item:
                file.fail("a join needs 'shards'", item.position)
            urls = self._urls(file, item["shards"], item.values_at["shards"])
            options = {name: unwrap(v) for name, v in item.items() if name != "shards"}
            joins.append(self._guard(file, item.position, Join, urls, **options))
        return tuple(joins)

    # ── values ──────────────────────────────────────────────────────────────────────────

    def _check_keys(
        self, file: SpecFile, table: Table, known: Sequence[str], *, extra: bool
    ) -> None:
        """Refuse unknown keys; with ``extra``, only those that look like known ones."""
        for word in table:
            if word in known:
                continue
            if near := find_near(word, known):
                file.fail(f"unknown key {word!r}: did you mean {near!r}?", table.keys_at[word])
            if not extra:
                names = ", ".join(known)
                file.fail(f"unknown key {word!r} (known: {names})", table.keys_at[word])

    def _guard(self, file: SpecFile, at: Position, make: Any, *args: Any, **named: Any) -> Any:
        """Call a function that checks its arguments; report its errors at this line and column."""
        try:
            return make(*args, **named)
        except PenstockError as error:
            file.fail(str(error), at)
        except TypeError as error:
            file.fail(str(error).partition("() ")[2] or str(error), at)

    def _variables(self, file: SpecFile, top: Table) -> dict[str, str]:
        table = top.get("vars") or Table()
        if not isinstance(table, Table):
            file.fail("vars is a mapping of names and texts", top.values_at["vars"])
        before, found = self.own, dict[str, str]()
        for name, value in table.items():
            if isinstance(value, (list, dict)):
                file.fail(f"the variable {name!r} is a text", table.values_at[name])
            self.own = {**before, **found}
            found[name] = self._expand(file, table.texts[name], table.values_at[name])
        self.own = before
        return found

    def _expand(self, file: SpecFile, text: str, at: Position | None, depth: int = 0) -> str:
        """Replace ``${NAME}`` and ``${NAME:-default}``; a default may have braces and variables."""
        if depth > MAX_DEPTH:
            file.fail(f"defaults of variables are nested more than {MAX_DEPTH} levels deep", at)
        parts = []
        while (begin := text.find("${")) >= 0:
            end = _closing_brace(text, begin + 1)
            if end is None:
                file.fail(f"'${{' has no '}}': {text[begin : begin + 40]!r}", at)
            name, given, default = text[begin + 2 : end].partition(":-")
            if not re.fullmatch(r"\w+", name):
                file.fail(f"{text[begin : end + 1]!r} is not a variable: write ${{NAME}} or "
                          "${NAME:-default}", at)  # fmt: skip
            value = self._variable(file, name, at)
            if value is None and not given:
                file.fail(
                    f"the variable {name!r} has no value: set it in vars, in the environment, or "
                    f"as ${{{name}:-default}}",
                    at,
                )
            parts.append(text[:begin])
            parts.append(self._expand(file, default, at, depth + 1) if value is None else value)
            text = text[end + 1 :]
        return "".join([*parts, text])

    def _variable(self, file: SpecFile, name: str, at: Position | None) -> str | None:
        found = [str(known[name]) for known in (self.given, self.own) if name in known]
        value = found[0] if found else env.text(name)
        self.substituted += len(value or "")
        if self.substituted > MAX_SUBSTITUTED:
            file.fail(f"the variables have more than {MAX_SUBSTITUTED:,} characters in all", at)
        return value

    def _resolve(self, file: SpecFile, url: str, at: Position | None) -> str:
        """Return a URL as seen from the spec's folder; refuse commands."""
        if scheme_of(url) == "pipe" or url == "-":
            if not self.allow_pipe:
                raise UnsafeError(
                    f"{file.describe(at)}: a spec may run commands (pipe:) only with "
                    "allow_pipe=True",
                    origin=Origin(url),
                )
            return url
        if scheme_of(url) or os.path.isabs(url) or url.startswith("~") or not file.folder:
            return url
        return f"{file.folder.rstrip('/')}/{url}"

    def _urls(self, file: SpecFile, value: Any, at: Position) -> list[str]:
        items = _as_list(value)
        if not items or not all(isinstance(item, str) and item for item in items):
            file.fail("shards is a text or a list of texts", at)
        urls: list[str] = []
        for item in items:
            text = self._expand(file, item, at)
            whole = scheme_of(text) == "pipe"
            for part in [text] if whole else split_urls(text):
                url = self._resolve(file, part, at)
                if url.lower().endswith(ENDINGS):
                    file.fail(f"shards are tar files, and {part!r} is a spec: use include", at)
                found = self._guard(file, at, self.limit.expand, url)
                # Braces may hide a command.
                urls += found if whole else [self._resolve(file, one, at) for one in found]
        return urls


def _is_wids(top: Any) -> bool:
    is_table = isinstance(top, dict)
    return is_table and ("shardlist" in top or str(top.get("__kind__", "")).startswith("wids"))


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _closing_brace(text: str, begin: int) -> int | None:
    """Return where the brace at a position is closed.

    >>> _closing_brace("{a{b}c}d", 0)
    6
    """
    depth = 0
    for match in re.compile(r"[{}]").finditer(text, begin):
        depth += 1 if match[0] == "{" else -1
        if not depth:
            return match.start()
    return None
