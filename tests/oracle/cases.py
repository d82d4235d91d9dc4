"""From an integer to a case: a pipeline, an engine, and the points where training stops."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from random import Random
from typing import Any

import penstock as wds
from oracle import functions as f
from oracle.functions import DATA, DOCUMENTS, ERRORS, LIST, RECORDS, index_of, urls_of
from oracle.stages import BATCHES, HEADS, ROWS, make_row

Spec = dict[str, Any]
ENDLESS = ("resampled", "repeated")
"""Sources without an end."""
UNSPLIT = ("mock",)
"""Sources that every rank and worker reads as a whole."""
MIXES = ("nested", "random_mix", "round_robin", "mix")
CUT = 40
"""How many items of an endless epoch are taken."""


@dataclasses.dataclass(frozen=True)
class Case:
    """One check. All values are plain: a case travels as JSON, and can be written by hand."""

    source: Spec
    rows: list[list[Any]] = dataclasses.field(default_factory=list)
    last: list[Any] | None = None
    """A row whose batches come out of the pipeline; None: numbers do."""
    seed: int = 1
    lanes: int | None = None
    length: int = -1
    """The argument of ``with_epoch``."""
    ranks: int = 1
    engine: str = "inline"
    """inline, threads, processes, or stateful (torchdata's StatefulDataLoader)."""
    workers: int = 0
    threads: int = 0
    start: str = "fork"
    persistent: bool = False
    batch: int | None = None
    """The loader's own ``batch_size``."""
    after: list[list[Any]] | None = None
    """Rows that follow the loader."""
    steps: int = -1
    """The argument of the loader's ``with_epoch``."""
    epochs: list[int] = dataclasses.field(default_factory=lambda: [0, 1, 2])
    """The epochs that are run. ``set_epoch`` is called for one that is not the next."""
    cut: int | None = None
    """Each epoch is left after this many items."""
    stops: list[list[float]] = dataclasses.field(default_factory=lambda: [[0, 0.5]])
    """Where a trainer saves its state and ends: [which epoch, how much of it].

    1 is after the last item, 2 after the iterator has ended.
    """
    move: int | None = None
    """The number of ranks that resume after the first stop; None: as many as before."""
    reload: bool = False
    """Whether a resumed trainer loads the state again after a few steps."""
    raising: list[Any] | None = None
    """Instead of the first stop the row "raising" fails, and the state after that is resumed from:
    [on which items, with which error]."""

    @classmethod
    def parse(cls, text: str) -> Case:
        return cls(**json.loads(text))

    def __str__(self) -> str:
        default = Case({})
        fields = dataclasses.asdict(self).items()
        return json.dumps({name: v for name, v in fields if v != getattr(default, name)})

    @property
    def streams(self) -> int:
        """How many parts of a rank's data are read side by side: one per worker process."""
        return max(self.workers, 1) if self.engine in ("processes", "stateful") else 1


# ── building ────────────────────────────────────────────────────────────────────────────


def make_dataset(case: Case, folder: Path) -> Any:
    """The pipeline of a case, without its loader."""
    data = make_source(case.source, folder, seed=case.seed, lanes=case.lanes)
    stages = [stage for row in case.rows for stage in make_row(row)]
    if case.last is not None:
        stages += make_row(case.last, last=True)
    return data.compose(*stages).with_epoch(case.length)


def make_part(part: Spec, folder: Path) -> Any:
    """A pipeline inside another one."""
    data = make_source(part["source"], folder, seed=part.get("seed"))
    stages = [stage for row in part.get("rows", []) for stage in make_row(row)]
    return data.compose(*stages).with_epoch(part.get("length", -1))


def make_source(spec: Spec, folder: Path, **options: Any) -> Any:
    """A pipeline that returns numbers."""
    kind = spec["kind"]
    if kind in MIXES:
        parts = [make_part(part, folder) for part in spec["parts"]]
        longest = spec.get("longest", True)
        if kind == "mix":
            weights = {name: spec[name] for name in ("weights", "mode", "until") if name in spec}
            return wds.DataPipeline(wds.mix(parts, **weights), **options)
        if kind == "nested":
            return wds.DataPipeline(parts[0], **options)
        mix = wds.RandomMix(parts, longest=longest) if kind == "random_mix" else None
        return wds.DataPipeline(mix or wds.RoundRobin(parts, longest=longest), **options)
    split = (wds.split_by_node, wds.split_by_worker)
    if kind == "list":
        return wds.DataPipeline(LIST, *split, **options)
    if kind == "mock":
        return wds.DataPipeline(wds.MockDataset(LIST[0], len(LIST)), **options)
    head = HEADS[spec.get("head", "map")]
    if kind in RECORDS:
        read = wds.cbors_to_samples() if kind == "cbor" else wds.msgpacks_to_samples()
        files = wds.SimpleShardList(urls_of(folder, spec["data"], kind))
        return wds.DataPipeline(files, *split, read, *head, **options)
    form = DOCUMENTS if spec.get("head") == "documents" else "tar"
    urls = urls_of(folder, spec["data"], form)
    shuffle = spec.get("shuffle", 0)
    if kind in ("seeded", "drawn", "repeated"):
        order = {"drawn": [wds.resampled(5)], "repeated": [*split, wds.repeat()]}.get(kind, split)
        shards = wds.SimpleShardList(urls, seed=shuffle or None)
        return wds.DataPipeline(shards, *order, wds.tarfile_to_samples(), *head, **options)
    if kind in ("indexed", "planned"):
        options |= {"index": index_of(folder, spec["data"], form), "ends": spec.get("ends")}
        options["shardshuffle"] = shuffle
    if form == DOCUMENTS:
        options["group"] = "dashed"
    if kind == "indexed":
        options |= choose_samples(spec, folder)
        return wds.WebDataset(urls, **options).compose(*head)
    if kind == "planned":
        plan = wds.Plan(spec["budget"], length="frames", pool=12)
        rows = [stage for row in spec.get("rows", []) for stage in make_row(row)]
        apart: list[Any] = [wds.unlisted()] if spec.get("apart") else []
        data = wds.WebDataset(urls, plan=plan, **options)
        return data.compose(*head, *rows, wds.planned(None), *apart)
    if kind == "few_drawn":
        drawn = wds.ResampledShards(urls, 4, seed=3)
        return wds.WebDataset(drawn, empty_check=False, **options).compose(*head)
    options |= {"empty_check": False}
    if kind == "resampled":
        return wds.WebDataset(urls, resampled=True, **options).compose(*head)
    options |= {"shardshuffle": shuffle, "detshuffle": spec.get("detshuffle", False)}
    if not spec.get("alone"):
        options["nodesplitter"] = wds.split_by_node
    return wds.WebDataset(urls, **options).compose(*head)


def choose_samples(spec: Spec, folder: Path) -> Spec:
    """The arguments that choose samples by the index, and add fields to them."""
    ids = [id for shard in f.shards_of(spec["data"]) for id in shard]
    options: Spec = {}
    if "join" in spec:
        options["join"] = wds.Join(f.other_of(folder, spec["data"]), missing=spec["join"])
    if spec.get("subset") == "exclude":  # a set prints in another order in each process
        options["exclude"] = {f"s{id:04d}" for id in ids if not f.chosen(id)}
    elif spec.get("subset") == "function":
        options["exclude"] = f.left_out
    elif spec.get("subset") == "keys":
        options["keys"] = [f"s{id:04d}" for id in ids if f.chosen(id)]
    return options


# ── drawing ─────────────────────────────────────────────────────────────────────────────

LEAVES = {
    "indexed": 6,
    "streaming": 5,
    "planned": 3,
    "resampled": 2,
    "repeated": 1,
    "seeded": 1,
    "drawn": 1,
    "few_drawn": 1,
    "cbor": 1,
    "msgpack": 1,
    "list": 1,
    "mock": 1,
}
"""Source → how often it is drawn."""
RARE = (
    "raising",
    "select_none",
    "cached",
    "lmdb_cached",
    "dbcache",
    "noisy_global",
    "to_device",
    "non_empty",
)
PER_SAMPLE = ("slow", "noisy", "select", "dropping", "failing", "copying")
"""Rows that may stand between a plan and its batches."""
STARTS = {"fork": 40, "forkserver": 5, "spawn": 1}
"""Start method → how often it is drawn: the last two import torch anew."""


def weighted(rng: Random, weights: dict[str, int]) -> str:
    return rng.choices(list(weights), list(weights.values()))[0]


def draw_row(rng: Random, names: Any = ROWS) -> list[Any]:
    weights = {name: 1 if name in RARE else 6 for name in names}
    name = weighted(rng, weights)
    return [name, *ROWS[name].draw(rng)]


def draw_rows(rng: Random, most: int, names: Any = ROWS) -> list[list[Any]]:
    return [draw_row(rng, names) for _ in range(rng.randint(0, most))]


def draw_source(rng: Random, depth: int = 3) -> Spec:
    """``depth`` is how many pipelines may be inside of one another."""
    if depth and rng.random() < 0.3:
        kind = rng.choice([*MIXES, "mix"])
        count = 1 if kind == "nested" else 2
        parts = [draw_part(rng, depth - 1) for _ in range(count)]
        if kind == "mix":
            return draw_mix(rng, {"kind": kind, "parts": parts})
        return {"kind": kind, "parts": parts, "longest": rng.random() < 0.6}
    kind = weighted(rng, LEAVES)
    heads = ["map", "decode"] if kind == "planned" or rng.random() < 0.5 else list(HEADS)[:-2]
    heads = ["map"] if kind in RECORDS else heads
    spec: Spec = {"kind": kind, "data": rng.choice(list(DATA)), "head": rng.choice(heads)}
    spec["shuffle"] = rng.choice([0, 0, 2, 3])
    if kind in ("indexed", "streaming") and rng.random() < 0.15:
        spec["head"] = "documents"
    if kind == "indexed":
        spec["subset"] = rng.choice([None, None, None, "exclude", "function", "keys"])
        if rng.random() < 0.2:
            spec |= {"head": "joined", "join": rng.choice(["drop", "fill"])}
        spec["ends"] = rng.choice([None, None, "exact", "drop", "pad"])
    if kind == "planned":
        spec["ends"] = rng.choice([None, None, "exact", "drop", "pad", "split"])
        spec |= {"budget": rng.randint(20, 60), "apart": rng.random() < 0.3}
        spec["rows"] = draw_rows(rng, 2, PER_SAMPLE)
    if kind == "streaming":
        spec["detshuffle"] = spec["shuffle"] > 0 and rng.random() < 0.2
    return spec


def draw_mix(rng: Random, spec: Spec) -> Spec:
    if rng.random() < 0.6:
        spec["weights"] = [rng.randint(1, 3) for _ in spec["parts"]]
        spec["mode"] = rng.choice(["quota", "random"])
        spec["until"] = rng.choice(["first", "all", "each"])
    return with_ends(spec, rng.choice([None, "exact", "drop", "pad"]))  # they must agree


def with_ends(spec: Spec, ends: str | None = "exact") -> Spec:
    """The source with these ends. Unless "exact", the samples depend on the number of ranks."""
    parts = [{**part, "source": with_ends(part["source"], ends)} for part in spec.get("parts", [])]
    changed = {"parts": parts} if parts else {"ends": ends} if "ends" in spec else {}
    return {**spec, **changed}


def draw_part(rng: Random, depth: int) -> Spec:
    source = draw_source(rng, depth)
    while source["kind"] in (*ENDLESS, *UNSPLIT, "planned"):
        source = draw_source(rng, depth)
    length = rng.randint(3, 30) if rng.random() < 0.15 else -1
    names = ("slow", "noisy", "select", "shuffle", "copying", "listed", "repeat")
    seed = rng.choice([None, None, 7])
    return {"source": source, "rows": draw_rows(rng, 1, names), "length": length, "seed": seed}


def make_case(seed: int) -> Case:
    """The case of an integer: always the same one."""
    rng = Random(seed)
    source = draw_source(rng)
    lists = source["kind"] == "planned" and not source["apart"]
    rows = [] if lists else draw_rows(rng, 4)
    last = None
    if not lists and rng.random() < 0.5:
        name = rng.choice(BATCHES)
        last = [name, *ROWS[name].draw(rng)]
    split = source["kind"] not in UNSPLIT
    lanes = rng.choice([None, None, None, 1, 2, 3, 4, 6]) if split else None
    if lanes is not None:
        rows = [row for row in rows if ROWS[row[0]].lanes]
    ranks = rng.choice([1, 1, 1, 1, 2, 3]) if split else 1
    if lanes is not None and lanes % ranks:
        ranks = 1
    length = rng.randint(3, 40) if rng.random() < 0.2 else -1
    endless = source["kind"] in ENDLESS
    cut = CUT if endless and length < 0 else rng.randint(1, 12) if rng.random() < 0.08 else None
    fields: Spec = {"lanes": lanes, "ranks": ranks, "length": length, "cut": cut}
    fields |= draw_engine(rng, split, lists, last, rows)
    if fields["engine"] != "inline" and not lists and rng.random() < 0.7:
        rows.insert(rng.choice([0, 0, len(rows)]), ["slow"])
    if fields["engine"] == "stateful" and not endless:
        fields["cut"] = None
    fields["epochs"] = rng.choice([[0, 1], [0, 1, 2], [0, 1, 2], [0, 3, 1], [2, 3]])
    if fields["engine"] == "stateful":
        fields["epochs"] = [0, 1, 2]
    if any(row[0] == "cached" for row in [*rows, *fields.get("after", [])]):
        fields["epochs"] = [0]  # what it keeps ends with the process
        fields["length"] = length if endless else -1  # no second pass over the source
    fields["stops"] = draw_stops(rng, fields["epochs"], fields["cut"] is not None)
    fixed = {"after", "steps"} & fields.keys()  # such states stay on their ranks
    movable = length < 0 and cut is None and not fixed
    if movable and lanes is not None and fields["engine"] != "stateful" and rng.random() < 0.5:
        fields["move"] = rng.choice([n for n in range(1, lanes + 1) if lanes % n == 0])
        source = with_ends(source)
    if source["kind"] == "streaming" and (ranks, fields.get("move", 1)) == (1, 1):
        source = {**source, "alone": rng.random() < 0.3}
    if not lists and fields["engine"] != "stateful" and rng.random() < 0.25:
        rows.insert(rng.randint(0, len(rows)), ["raising"])
        kinds = list(ERRORS) if fields["engine"] == "inline" else ["ValueError"]
        fields |= {"raising": [rng.randrange(11), rng.choice(kinds)], "move": None}
    fields["reload"] = fields["engine"] != "stateful" and rng.random() < 0.2
    return Case(source, rows, last, rng.randint(0, 5), **fields)


def draw_engine(rng: Random, split: bool, lists: bool, last: Any, rows: Any) -> Spec:
    """The loader's fields."""
    kinds = {"inline": 6, "threads": 5}
    if split:
        kinds |= {"processes": 6, "stateful": 3}
    engine = weighted(rng, kinds)
    fields: Spec = {"engine": engine}
    if engine == "inline":
        return fields
    if engine == "threads":
        fields["workers"] = rng.randint(1, 3)
    else:
        fields["workers"] = rng.randint(0, 3)
    if engine != "threads" and fields["workers"]:
        fields["start"] = weighted(rng, STARTS)
        # Only forked workers, and those that stay, know the epoch in a loader that is not ours.
        fork = engine == "processes" or fields["start"] == "fork"
        fields["persistent"] = not fork or rng.random() < 0.4
        seeds = any(row[0] == "noisy_global" for row in rows)
        if engine == "processes" and not seeds and rng.random() < 0.3:
            fields["threads"] = 2
    numbers = last is None and not lists
    if numbers and rng.random() < 0.2:
        fields["batch"] = rng.randint(1, 5)
    elif engine != "stateful" and not lists and rng.random() < 0.2:
        names = [name for name, row in ROWS.items() if row.loader and row.lanes]
        fields["after"] = [*draw_rows(rng, 2, names), draw_row(rng, BATCHES)]
    if engine != "stateful" and rng.random() < 0.1:
        fields["steps"] = rng.randint(2, 20)
    return fields


def draw_stops(rng: Random, epochs: list[int], cut: bool) -> list[list[float]]:
    """One or two points, in order, the last one before the last epoch's end.

    None at the end of an epoch that an earlier one follows: such a state refuses ``set_epoch``.
    """
    shares = [0, 1, round(rng.random(), 2), round(rng.random(), 2), round(rng.random(), 2)]
    shares += [] if cut else [2, 0.9]
    points = [[rng.randrange(len(epochs)), rng.choice(shares)] for _ in range(rng.randint(1, 2))]
    later = [place for place, (one, two) in enumerate(itertools.pairwise(epochs)) if two > one]
    return sorted(point for point in points if point[1] != 2 or point[0] in later) or [[0, 0.5]]
