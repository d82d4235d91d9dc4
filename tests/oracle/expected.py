"""What a case must return, in plain Python: the model of sources, ranks, workers and lanes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from oracle.cases import ENDLESS, MIXES, Case, Spec
from oracle.functions import LIST, chosen, id_of, joins, shards_of
from oracle.model import Known, alternate, chunks, cut, single, worst
from oracle.stages import ROWS

RANDOM = (*ENDLESS, "drawn", "few_drawn")
"""Sources that draw shards: any sample may come any number of times."""


class Place(NamedTuple):
    """Which part of the data a stream reads."""

    rank: int
    ranks: int
    worker: int
    workers: int
    lane: int | None
    lanes: int | None

    def share(self, items: list[Any]) -> list[Any]:
        """The items of a list that is dealt out one by one."""
        if self.lane is not None:
            return items[self.lane :: self.lanes]
        return items[self.rank :: self.ranks][self.worker :: self.workers]

    def positions(self, count: int, run: int, pad: bool = False) -> list[int]:
        """The positions of an order that is dealt out in runs; padded, the last are shorter."""
        number, of = self.rank + self.ranks * self.worker, self.ranks * self.workers
        if self.lane is not None and self.lanes is not None:
            number, of = self.lane, self.lanes
        rest = count % (run * self.ranks) if pad else 0
        begin, each = count - rest, rest // self.ranks
        runs = [range(at, min(at + run, begin)) for at in range(0, begin, run)]
        runs += [range(at, at + each) for at in range(begin, count, each or 1)]
        return [position for mine in runs[number::of] for position in mine]


def expect(case: Case) -> list[Known]:
    """What one epoch returns: on each rank, or on all together where that is all one can know."""
    if case.ranks * case.streams * (case.lanes or 1) > 1 and not dealt_in_order(case):
        known = through(source(case, case.source, None), case.rows, case.last)
        known = known if case.length < 0 else cut(known, case.length)
        return [known._replace(grade=worst(known.grade, "flat"))]
    found = []
    for rank in range(case.ranks):
        streams = []
        for worker in range(case.streams):
            place = Place(rank, case.ranks, worker, case.streams, None, None)
            streams.append(of_worker(case, place))
        found.append(in_turn(streams))
    return found


def of_worker(case: Case, place: Place) -> Known:
    """What one worker returns: its lanes in turn."""
    places = [place]
    if case.lanes is not None:
        mine = list(range(place.rank, case.lanes, place.ranks))[place.worker :: place.workers]
        places = [place._replace(lane=lane, lanes=case.lanes) for lane in mine]
    lanes = [through(source(case, case.source, at), case.rows, case.last) for at in places]
    known = in_turn(lanes)
    known = known if case.length < 0 else cut(known, case.length)
    return known if case.batch is None else chunks(known, case.batch)


def in_turn(streams: list[Known]) -> Known:
    grade = worst("order", *(known.grade for known in streams))
    if grade == "order":
        return Known(list(alternate(known.items for known in streams)), grade)
    return Known([item for known in streams for item in known.items], grade)


def through(known: Known, rows: list[list[Any]], last: list[Any] | None = None) -> Known:
    """What rows of stages make of a stream."""
    for name, *arguments in rows:
        known = ROWS[name].model(known, *arguments)
        known = known if ROWS[name].apart is None else single(known)
    return known if last is None else ROWS[last[0]].model(known, *last[1:])


# ── sources ─────────────────────────────────────────────────────────────────────────────


def source(case: Case, spec: Spec, place: Place | None) -> Known:
    """What a source returns at a place; None: everywhere together, in an order nobody knows."""
    if spec["kind"] in MIXES:
        known = mixed(spec, [part_of(case, part, place) for part in spec["parts"]])
        exact = all(ends_of(case, leaf) == "exact" for leaf in leaves(spec))
        if spec["kind"] == "mix" and not (exact or case.ranks * (case.lanes or 1) == 1):
            return known._replace(grade="some")
        return known
    shuffled = place is None or bool(spec.get("shuffle"))
    grade = "some" if spec["kind"] in RANDOM else "bag" if shuffled else "order"
    if spec["kind"] in ("list", "mock"):
        ids = [id_of(item) for item in LIST]
        ids = [ids[0]] * len(ids) if spec["kind"] == "mock" else place.share(ids) if place else ids
        return Known([(id,) for id in ids], "bag" if place is None else "order")
    shards = shards_of(spec["data"])
    ids = [id for shard in shards for id in shard]
    if spec["kind"] == "indexed":
        ids = [id for id in ids if chosen(id) or not spec.get("subset")]
        ids = [id for id in ids if joins(id) or spec.get("join") != "drop"]
        return indexed(case, spec, place, [(id,) for id in ids], grade)
    if spec["kind"] == "planned":
        known = through(Known([(id,) for id in ids], "bag"), spec.get("rows", []))
        exact = spec.get("ends") not in ("drop", "pad") or case.ranks * (case.lanes or 1) == 1
        return known._replace(grade=worst(known.grade, "flat" if exact else "some"))
    if place is not None and grade == "order":
        ids = [id for shard in place.share(shards) for id in shard]
    return Known([(id,) for id in ids], grade)


def indexed(case: Case, spec: Spec, place: Place | None, items: Any, grade: str) -> Known:
    run, ends, count = run_of(case), ends_of(case, spec), len(items)
    unit = run * case.ranks
    if ends == "drop":
        count = count // unit * unit
    elif ends == "pad" and count:
        count = -(-count // case.ranks) * case.ranks
    if grade != "order" or place is None:
        return Known(items, grade if count == len(items) else "some")
    return Known(
        [items[at % len(items)] for at in place.positions(count, run, ends == "pad")], grade
    )


def mixed(spec: Spec, parts: list[Known]) -> Known:
    grade = worst(*(known.grade for known in parts))
    longest = spec.get("longest", True)
    if grade == "order" and spec["kind"] in ("nested", "round_robin"):
        return Known(list(alternate((known.items for known in parts), longest)), grade)
    items = [item for known in parts for item in known.items]
    if spec["kind"] == "mix":
        longest = "weights" not in spec or spec["until"] == "each"
    complete = longest or spec["kind"] == "nested"
    return Known(items, worst(grade, "bag" if complete else "some"))


def part_of(case: Case, part: Spec, place: Place | None) -> Known:
    known = through(source(case, part["source"], place), part.get("rows", []))
    return known if part.get("length", -1) < 0 else cut(known, part["length"])


# ── what is known of a case ─────────────────────────────────────────────────────────────


def leaves(spec: Spec, *, fixed: bool = True) -> Iterator[Spec]:
    """Yield the sources that read data; not those in parts of a fixed length if not ``fixed``."""
    if spec["kind"] not in MIXES:
        yield spec
    for part in spec.get("parts", []):
        if fixed or part.get("length", -1) < 0:
            yield from leaves(part["source"], fixed=fixed)


def sources(spec: Spec) -> Iterator[Spec]:
    """Yield a source, and those of pipelines inside of it."""
    yield spec
    for part in spec.get("parts", []):
        yield from sources(part["source"])


def counts(rows: list[list[Any]]) -> set[str]:
    """What rows do to the number of items."""
    apart = {"changed" for row in rows if ROWS[row[0]].apart is not None}
    return {ROWS[row[0]].count for row in rows} | apart


def run_of(case: Case) -> int:
    """How many samples in a row an indexed source deals to a stream: the size of a batch."""
    for name, *arguments in [*case.rows, *([case.last] if case.last else [])]:
        if name in ("listed", "batched"):
            return int(arguments[0])
        if ROWS[name].count == "changed":
            return 1
    return 1


def ends_of(case: Case, spec: Spec) -> str:
    """What happens to the last samples of an indexed source."""
    default = "exact" if case.ranks == 1 or "changed" in counts(case.rows) else "drop"
    return spec.get("ends") or default


def dealt_in_order(case: Case) -> bool:
    """Whether it is known which samples each stream reads."""
    if any(source["kind"] == "mix" for source in sources(case.source)):
        return False
    for leaf in leaves(case.source):
        if leaf.get("shuffle") or leaf["kind"] in (*RANDOM, "planned"):
            return False
    return True
