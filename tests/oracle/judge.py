"""Runs a case and says what is wrong with it."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from oracle.cases import ENDLESS, Case, Spec
from oracle.expected import counts, ends_of, expect, leaves, sources
from oracle.functions import frames, id_of
from oracle.model import Known, bag_difference, difference
from oracle.processes import Hung, Raised, in_new_process
from oracle.stages import ROWS
from oracle.trainer import RAISES, Part, Point, reference, train

Epochs = list[list[Any]]


class Wrong(Exception):
    """A promise that a case breaks."""


def judge(case: Case, data: Path) -> str:
    """Run a case: "passed", or "refused" where the library may refuse it; else raise Wrong."""
    with tempfile.TemporaryDirectory() as folder:
        return Judge(case, data, Path(folder)).verdict()


class Judge:
    """One case, with a folder of its own for the files that its trainers write."""

    def __init__(self, case: Case, data: Path, folder: Path) -> None:
        self.case, self.data, self.folder = case, data, folder

    def run(self, what: str, function: Any, ranks: int, *args: Any) -> Any:
        """Call a function of ``trainer.py`` in a new process; ``what`` names its folder."""
        folder = self.folder / what
        folder.mkdir(exist_ok=True)
        loads = len(args) > 1 and args[1] is not None
        given = self.case, ranks, self.data, folder, *args
        try:  # a state is loaded where sets print in another order than where it was saved
            return in_new_process(function, *given, hash_seed=2 if loads else 1)
        except Hung as error:
            raise Wrong(f"{what}: {error}") from None

    def train(
        self, what: str, ranks: int, states: Any = None, begins: Any = None, ends: Any = None
    ) -> list[Part]:
        """All ranks, from the points where states were saved to others."""
        parts = []
        for rank in range(ranks):
            # As many states as ranks: each rank loads its own. Else all of them.
            state = states[rank] if states and len(states) == ranks else states
            begin = begins[rank] if begins else Point(0)
            end = ends[rank] if ends else None
            parts.append(self.run(what, train, ranks, rank, state, begin, end))
        return parts

    def verdict(self) -> str:
        case = self.case
        wanted = self.or_refused(lambda: self.run("reference", reference, case.ranks))
        parts = self.or_refused(lambda: self.train("whole", case.ranks))
        if wanted is None or parts is None:
            # What follows a loader, and the length of its epochs, decide too.
            if (wanted is None) != (parts is None) and case.after is None and case.steps < 0:
                raise Wrong(f"refused either inline or on {case.engine}, not on both")
            return "refused"
        self.check_model(wanted)
        compare(f"{case.engine}, uninterrupted", wanted, parts)
        self.check_counts(parts)
        check = self.check_resumes if case.move is None else self.check_move
        try:
            (check if case.raising is None else self.check_raise)(wanted)
        except Raised as error:
            raise Wrong(f"{error}\n{error.details}") from None
        return "passed"

    def or_refused(self, call: Callable[[], Any]) -> Any:
        """What a call returns, or None if the library refuses the pipeline, as it may."""
        try:
            return call()
        except Raised as error:
            if may_refuse(self.case, error):
                return None
            raise Wrong(f"{error}\n{error.details}") from None

    # ── one epoch ───────────────────────────────────────────────────────────────────────

    def check_model(self, wanted: list[Epochs]) -> None:
        """The inline run is what plain Python says."""
        case = self.case
        if case.after is not None or case.steps >= 0:
            return
        known = [cut_short(one, case.cut) for one in expect(case)]
        for place in range(len(case.epochs)):
            ranks = [[ids_of(item) for item in epochs[place]] for epochs in wanted]
            if len(known) < len(ranks):
                ranks = [[item for items in ranks for item in items]]
            for rank, (one, found) in enumerate(zip(known, ranks)):
                if problem := one.problem(found):
                    raise Wrong(f"inline, epoch {case.epochs[place]}, rank {rank}: {problem}")
            for item in (item for found in ranks for item in found):
                if problem := over_budget(case, item):
                    raise Wrong(f"inline, epoch {case.epochs[place]}: {problem}")

    def check_counts(self, parts: list[Part]) -> None:
        """``len()`` is right, and ranks get equally many batches where that is promised."""
        case = self.case
        for rank, part in enumerate(parts):
            found = len(part.epochs[0])
            # An epoch of fixed length ends at once where a worker has no data.
            empty = case.length >= 0 and case.streams > 1
            empty = empty or (max(case.length, case.steps) >= 0 and not found)
            wrong = part.length not in (None, found) and not empty
            if wrong and case.cut is None and not hides(case):
                raise Wrong(f"rank {rank}: len() is {part.length}, {found} items came")
        if not promises_equal_ranks(case):
            return
        for place, number in enumerate(case.epochs):
            counts = [len(part.epochs[place]) for part in parts]
            if len(set(counts)) > 1:
                raise Wrong(f"epoch {number}: the ranks get {counts} items")

    # ── stops ───────────────────────────────────────────────────────────────────────────

    def check_resumes(self, wanted: list[Epochs]) -> None:
        """Stopped and resumed in new processes, the run is the uninterrupted one."""
        ranks, states = self.case.ranks, None
        begins: list[Any] = [Point(0)] * ranks
        for stop in [*self.case.stops, None]:
            ends = [None if stop is None else point(stop, epochs) for epochs in wanted]
            parts = self.train("resumed", ranks, states, begins, ends)
            rest = [part_of(*parts) for parts in zip(wanted, begins, ends)]
            compare(f"{self.case.engine}, resumed at {tuple(begins[0])}", rest, parts)
            states, begins = [part.state for part in parts], ends

    def check_raise(self, wanted: list[Epochs]) -> None:
        """After a stage has failed, the state is that after the last item that came."""
        case, place = self.case, int(self.case.stops[0][0])
        for rank, epochs in enumerate(wanted):
            part = self.run("raised", train, case.ranks, rank, None, Point(0), Point(place, RAISES))
            count = len(part.epochs[-1])
            end = Point(place, count if part.raised or count == case.cut else None)
            what = f"{case.engine}, rank {rank}, until a stage failed at {tuple(end)}"
            compare(what, [part_of(epochs, Point(0), end)], [part])
            later = case.epochs[place + 1 :]
            if end.taken is None and later and later[0] <= case.epochs[place]:
                continue  # no stage failed on this rank, and its state refuses an earlier epoch
            part = self.run("raised", train, case.ranks, rank, part.state, end, None)
            compare(what + ", resumed", [part_of(epochs, end, None)], [part])

    def check_move(self, wanted: list[Epochs]) -> None:
        """On another number of ranks, what was not seen comes, each item once."""
        case, ranks = self.case, self.case.move or self.case.ranks
        shortest = min(wanted, key=lambda epochs: len(epochs[int(case.stops[0][0])]))
        end = point(case.stops[0], shortest)
        before = self.train("moved", case.ranks, ends=[end] * case.ranks)
        states = [part.state for part in before]
        after = self.train("moved", ranks, states, [end] * ranks)
        where = f"{case.engine}, moved from {case.ranks} to {ranks} ranks at {tuple(end)}"
        first = end.epoch + 1
        if end.taken is not None:
            apart = case.batch is not None  # the loader's batches are not those of lanes
            whole = texts((epochs[end.epoch] for epochs in wanted), apart)
            seen = texts((part.epochs[end.epoch] for part in before), apart)
            seen += texts((part.epochs[0] for part in after), apart)
            if problem := bag_difference(whole, seen):
                raise Wrong(f"{where}, epoch {case.epochs[end.epoch]}: {problem}")
            after = [part._replace(epochs=part.epochs[1:]) for part in after]
        later = self.run("reference", reference, ranks)
        compare(where, [epochs[first:] for epochs in later], after)


# ── comparing ───────────────────────────────────────────────────────────────────────────


def compare(what: str, wanted: list[Epochs], parts: list[Part]) -> None:
    for rank, (epochs, part) in enumerate(zip(wanted, parts)):
        if len(epochs) != len(part.epochs):
            raise Wrong(f"{what}, rank {rank}: {len(part.epochs)} epochs of {len(epochs)}")
        for place, (one, other) in enumerate(zip(epochs, part.epochs)):
            if problem := difference(one, other):
                raise Wrong(f"{what}, rank {rank}, its epoch {place}: {problem}")


def point(stop: list[float], epochs: Epochs) -> Point:
    """Where a stop is, in a run with these epochs."""
    place, share = int(stop[0]), stop[1]
    return Point(place, None if share > 1 else round(share * len(epochs[place])))


def part_of(epochs: Epochs, begin: Point, end: Point | None) -> Epochs:
    """What a run must return between two points; without an ``end``, to the last epoch."""
    first = begin.epoch if begin.taken is not None else begin.epoch + 1
    last = end.epoch if end is not None else len(epochs) - 1
    found = [list(epochs[place]) for place in range(first, last + 1)]
    if end is not None and end.taken is not None:
        found[-1] = found[-1][: end.taken]
    if begin.taken:
        found[0] = found[0][begin.taken :]
    return found


def texts(epochs: Iterable[list[Any]], apart: bool) -> list[str]:
    """The items of all ranks in a form that can be counted; those of batches if ``apart``."""
    items = [item for part in epochs for item in part]
    return [json.dumps(one) for item in items for one in (item if apart else [item])]


def ids_of(item: Any) -> tuple[int, ...]:
    """The ids in an item: a number, a list of numbers, or columns of which the first has them."""
    if isinstance(item, int):
        return (id_of(item),)
    column = item[0] if item and isinstance(item[0], list) else item
    return tuple(id_of(value) for value in column)


def cut_short(known: Known, count: int | None) -> Known:
    if count is None or known.grade != "order":
        return known if count is None else known._replace(grade="some")
    return known._replace(items=known.items[:count])


def over_budget(case: Case, ids: tuple[int, ...]) -> str | None:
    """Why a batch is too large."""
    lengths = [frames(id) for id in ids]
    name, *arguments = case.last or [None]
    if name == "packed" and sum(lengths) > arguments[0]:
        return f"a row of {sum(lengths)} for row_length={arguments[0]}: {ids}"
    budget = arguments[0] if name == "bucketed" else None
    if case.source["kind"] == "planned" and not case.source.get("apart"):
        expands = any(row[0] == "copying" for row in case.source.get("rows", []))
        budget = None if expands else case.source["budget"]
    if budget is not None and len(ids) > 1 and max(lengths) * len(ids) > budget:
        return f"a batch of {max(lengths) * len(ids)} for a budget of {budget}: {ids}"
    return None


# ── promises ────────────────────────────────────────────────────────────────────────────


def all_parts(spec: Spec) -> Iterator[Spec]:
    """Yield the pipelines inside of a source, at any depth."""
    for part in spec.get("parts", []):
        yield part
        yield from all_parts(part["source"])


def all_rows(case: Case) -> list[list[Any]]:
    sources = [part["source"] for part in all_parts(case.source)]
    inside = [row for part in [*all_parts(case.source), *sources] for row in part.get("rows", [])]
    return case.rows + case.source.get("rows", []) + inside


def hides(case: Case) -> bool:
    """Whether a function leaves out items, which no stage can know beforehand."""
    return any(ROWS[row[0]].count == "hidden" for row in all_rows(case))


def promises_equal_ranks(case: Case) -> bool:
    """Whether all ranks must get the same number of items."""
    if case.ranks == 1 or case.length >= 0 or case.cut is not None or hides(case):
        return False
    kinds = {leaf["kind"] for leaf in leaves(case.source)}
    ends = {leaf.get("ends") for leaf in leaves(case.source)}
    if not kinds <= {"indexed", "planned"} or "exact" in ends:
        return False
    if any(source["kind"] == "mix" for source in sources(case.source)):
        return False  # as streams, they promise it only without weights
    rows = [*case.rows, *([case.last] if case.last else []), *(case.after or [])]
    # A part of a fixed length has as many items on every rank, whatever its ends.
    asked = {leaf.get("ends") for leaf in leaves(case.source, fixed=False)}
    return bool(asked & {"drop", "pad"}) or "changed" not in counts(rows)


def may_refuse(case: Case, error: Raised) -> bool:
    """Whether the documentation says that the library refuses such a pipeline."""
    if "PipelineError" not in error.kinds:
        return False
    if case.ranks > 1 and "ends=" in str(error):
        return any(ends_of(case, leaf) != "exact" for leaf in leaves(case.source))
    if "returned no item at all" in str(error):
        return any(row[0] == "non_empty" for row in all_rows(case))
    return "read again without end" in str(error) and may_be_empty(case)


def may_be_empty(case: Case) -> bool:
    """Whether a pass over the source may yield nothing, where another pass would follow."""
    lengths = [case.length, *(part.get("length", -1) for part in all_parts(case.source))]
    repeats = (
        case.source["kind"] in ENDLESS
        or mixes_again(case.source)
        or any(row[0] == "repeat" for row in all_rows(case))
    )
    if max(lengths) < 0 and not repeats:
        return False
    if case.ranks * case.streams * (case.lanes or 1) > 1:
        return True
    return any(not known.items or known.grade == "some" for known in expect(case))


def mixes_again(spec: Spec) -> bool:
    """Whether a mixture reads a source again."""
    return any(source.get("until") in ("first", "all") for source in sources(spec))


# ── making a failure smaller ────────────────────────────────────────────────────────────

LOADER = ("engine", "workers", "threads", "start", "persistent", "batch", "after", "steps")
"""Fields that mean something only with a loader."""


def smaller(case: Case) -> Iterator[Case]:
    """The case with one thing less."""
    default = Case({})
    change: Any = dataclasses.replace
    if case.engine != "inline":
        yield change(case, **{name: getattr(default, name) for name in LOADER})
    for name in ("rows", "after", "stops", "epochs"):
        value = getattr(case, name) or []
        for place in range(len(value) if name in ("rows", "after") or len(value) > 1 else 0):
            yield change(case, **{name: value[:place] + value[place + 1 :]})
    for field in dataclasses.fields(case):
        value = getattr(default, field.name)
        if field.name not in ("source", "rows", "engine") and getattr(case, field.name) != value:
            yield change(case, **{field.name: value})
    parts = case.source.get("parts", [])
    for place, part in enumerate(parts):
        bare = [*parts[:place], {"source": part["source"]}, *parts[place + 1 :]]
        if bare != parts:
            yield change(case, source={**case.source, "parts": bare})


def shrink(case: Case, data: Path) -> Case:
    """The smallest case found that still fails."""
    for candidate in smaller(case):
        try:
            judge(candidate, data)
        except Wrong:
            return shrink(candidate, data)
        except Exception:
            continue  # not a case that can be built
    return case
