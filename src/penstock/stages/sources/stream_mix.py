"""Several data sets as one, mixed while they are read: for those that cannot be planned."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from penstock.context import Context
from penstock.errors import Origin, PipelineError, StateError
from penstock.stages.run import Run, State, Ticket, as_count, start
from penstock.stages.sources.mix import Mix
from penstock.stages.sources.mix_plan import Schedule, Shares, SourceStats
from penstock.stages.sources.mixture_definition import Mixture, pack_values, unpack_values


class Turns:
    """The rules of a mixture of streams: which sources take turns, how often, and until when."""

    def __init__(self, mixture: Mixture, why: str = "") -> None:
        self.mode, self.until = mixture.mode, mixture.until
        weights = mixture.weights
        passes = [w.at(0) for w in weights or ()] if self.mode == "epochs" else []
        if any(count != int(count) for count in passes):
            raise PipelineError(
                f"mix: {why}, so its length is not known before it is read: in mode 'epochs' the "
                "numbers of passes are then whole"
            )
        self.passes = dict(zip(mixture.names, map(int, passes)))
        self.once = weights is None or self.mode == "epochs"
        if weights is None or self.mode == "epochs":
            weights = [Schedule(1 if count else 0) for count in passes or [1] * len(mixture.names)]
        self._weights = dict(zip(mixture.names, weights))
        self.active = [name for name, weight in self._weights.items() if not weight.zero]
        self.endless = not self.once and self.until == "forever"

    def shares(self, names: Sequence[str]) -> Shares:
        """Return the shares of these sources; 0 for those that are no longer in the mixture."""
        return Shares([self._weights.get(name, Schedule(0)) for name in names])

    @property
    def ends_with_first(self) -> bool:
        return not self.once and self.until == "first"

    def begins_again(self, name: str, passes: int) -> bool:
        """Return whether a source begins again after this number of passes."""
        if self.mode == "epochs":
            return passes < self.passes[name]
        return not self.once and self.until in ("all", "forever")

    def over(self, passes: Sequence[int]) -> bool:
        """Return whether the mixture has ended; ``passes`` are those over each of its sources."""
        if self.ends_with_first:
            return any(passes)
        return not self.once and self.until == "all" and bool(passes) and all(passes)


class StreamMix(Mix):
    """Mixes data sets that cannot be planned: without an index, or with stages that change the
    number of samples. :func:`penstock.mix` makes it.

    ``weights`` are schedules; None means every sample once. ``why`` says why it is not planned.
    ``identify`` returns a digest of what decides the samples of a data set, now or as earlier
    versions made it.
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        weights: Sequence[Schedule] | None,
        mode: str,
        until: str,
        *,
        names: Sequence[str],
        tags: Sequence[Any] | None = None,
        why: str = "",
        identify: Callable[[Any, bool], str] | None = None,
    ) -> None:
        self.datasets, self.names, self.why = list(datasets), list(names), why
        self.weights = None if weights is None else list(weights)
        self.mode, self.until, self.identify = mode, until, identify
        self.tags = None if tags is None else dict(zip(names, tags))
        self.by_name = dict(zip(self.names, self.datasets))
        self.turns = Turns(Mixture(self.names, self.weights, mode, until, []), why)
        self.shares = self.turns.shares(self.turns.active)
        self.saved: Mixture | None = None
        """The mixture of the loaded state, if it was another."""
        self.keeps_ranks_equal = not self.turns.ends_with_first

    @functools.cached_property
    def mixture(self) -> Mixture:
        identities, former = (
            [str(d) if self.identify is None else self.identify(d, former) for d in self.datasets]
            for former in (False, True)
        )
        return Mixture(self.names, self.weights, self.mode, self.until, identities, None, former)

    @property
    def complete(self) -> bool:
        """True if no source has weight 0."""
        return len(self.turns.active) == len(self.names)

    @property
    def fingerprint(self) -> str:
        """A text that differs when the data does; sources of weight 0 are not opened."""
        data = (self.by_name[name] for name in self.turns.active)
        return " ".join(str(getattr(dataset, "fingerprint", "")) for dataset in data)

    def start(self, source: Run[None] | None, context: Context) -> Run[Any]:
        return StreamMixRun(self, context)

    # ── state ───────────────────────────────────────────────────────────────────────────

    def record(self, epoch: int, seed: int, running: bool = False) -> dict[str, Any]:
        """Return what a saved state says about the mixture."""
        return {
            "sources": pack_values(self.mixture.plain()),
            "streams": pack_values(self._data(self.turns.active)),
        }

    def _data(self, names: Sequence[str]) -> dict[str, str]:
        """Return a digest of the data of each source."""
        data = ((name, str(getattr(self.by_name[name], "fingerprint", ""))) for name in names)
        return {n: hashlib.blake2b(text.encode(), digest_size=3).hexdigest() for n, text in data}

    def check(self, record: Mapping[str, Any], change: str) -> bool:
        """Compare with the record of a state; return True if the mixture changes and is allowed
        to."""
        if "streams" not in record:
            raise StateError(
                "the state is of a mixture that was planned, and this one is mixed as streams, "
                f"since {self.why}: it cannot continue from there"
            )
        return self.mixture.check(Mixture.of_plain(unpack_values(record["sources"])), change)

    def take(self, record: Mapping[str, Any], epoch: int) -> None:
        """Expect the states of the same mixture."""
        self.saved = None

    def continue_from(self, record: Mapping[str, Any], epoch: int) -> None:
        """Expect the states of another mixture."""
        self.saved = Mixture.of_plain(unpack_values(record["sources"]))
        self.mixture.check_positions(self.saved)
        data = unpack_values(record["streams"])
        kept = [name for name in self.turns.active if name in data]
        for name, digest in self._data(kept).items():
            if digest != data[name]:
                raise StateError(
                    f"the state is of other shards: those of the source {name!r} have changed "
                    "since it was saved"
                )

    def added(self) -> list[str]:
        """Return the sources that the loaded state does not have."""
        saved = [] if self.saved is None else Turns(self.saved).active
        return [name for name in Turns(self.mixture).active if name not in saved]

    @contextlib.contextmanager
    def acts_as_saved(self) -> Iterator[None]:
        """Start runs with the weights of the loaded state."""
        now = self.turns, self.shares
        if self.saved is not None:
            self.turns = Turns(self.saved)
            self.shares = self.turns.shares(self.turns.active)
        try:
            yield
        finally:
            self.turns, self.shares = now

    # ── showing ─────────────────────────────────────────────────────────────────────────

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        shares = [share >> 40 for share in self.shares.share(0)]
        return (), {"names": self.names, "mode": self.mode, "until": self.until, "shares": shares}

    @property
    def name(self) -> str:
        return "mix"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StreamMix):
            return NotImplemented
        return self.arguments() == other.arguments() and self.datasets == other.datasets

    __hash__ = Mix.__hash__

    def __repr__(self) -> str:
        shown = ", ".join(self.names[:4]) + (", …" if len(self.names) > 4 else "")
        return f"mix({len(self.names)} sources: {shown}; mixed as streams, since {self.why})"


class StreamMixRun(Run[Any]):
    """A run of :class:`StreamMix`. A ticket is (which source, which pass over it, its ticket).

    Sources are numbered in the order of ``names``. After the mixture has changed, those of the
    loaded state keep their numbers, since tickets contain them.
    """

    stage: StreamMix
    resumable = True

    def __init__(self, stage: StreamMix, context: Context) -> None:
        super().__init__(stage, None, context)
        self.turns = stage.turns
        self.names = list(stage.turns.active)
        self.shares = stage.shares
        self.runs: list[Run[Any] | None] = [self._pass(name, 0) for name in self.names]
        self.dealt = all(run.dealt for run in self.parents())
        self.endless = stage.turns.endless or any(run.endless for run in self.parents())
        self.alive = list(range(len(self.names)))
        self.passes = [0] * len(self.names)
        self.counts = [0] * len(self.names)
        self.credit = [0.0] * len(self.names)
        self.gave = [False] * len(self.names)
        self.chosen = 0
        self._before: list[float] = []  # the credit before the last choice
        self._unused: dict[int, State] = {}  # states of sources that take no part any more
        self.rng = context.draws("mix", *context.stream_id)
        self._earlier: dict[int, tuple[int, Run[Any]]] = {}
        self.streams = context.lanes or context.world_size * context.num_workers

    def __iter__(self) -> Iterator[Any]:
        streams = [iter(() if run is None else run) for run in self.runs]
        while self.alive and not self.ended:
            number = self._choose()
            for item in streams[number]:
                self.chosen, self.gave[number] = number, True
                self.counts[number] += 1
                self.credit[number] -= 1
                yield self._marked(item, number)
                break
            else:
                if self._before:  # it yielded nothing: the turn does not count
                    self.credit = list(self._before)
                if self._ends(number):
                    self.ended = True
                    return
                if number in self.alive:
                    streams[number] = iter(self._begin_again(number))

    def _choose(self) -> int:
        """Return the source whose turn it is, by the shares of those that have not ended."""
        shares = self.shares.share(sum(self.counts) * self.streams)
        total = sum(shares[number] for number in self.alive)
        if not total:
            return self.alive[0]
        if self.turns.mode == "random":
            place = self.rng.below(total)
            for number in self.alive:
                place -= shares[number]
                if place < 0:
                    return number
        before = list(self.credit)
        for number in self.alive:
            self.credit[number] += shares[number] / total
        self._before = before
        return max(self.alive, key=self.credit.__getitem__)

    def _ends(self, number: int) -> bool:
        """Record that a source has ended; return True if the mixture ends with it."""
        self.passes[number] += 1
        if self.turns.over([self.passes[n] for n in self.alive]):
            return True
        if not self._continues(number):
            self.alive.remove(number)
        return False

    def _continues(self, number: int) -> bool:
        """Return whether a source that has ended begins again; one without samples does not."""
        again = self.turns.begins_again(self.names[number], self.passes[number])
        return again and self.gave[number]

    def _begin_again(self, number: int) -> Run[Any]:
        if self.turns.endless:
            self.gave[number] = False
        run = self.runs[number] = self._pass(self.names[number], self.passes[number])
        return run

    def _pass(self, name: str, turn: int) -> Run[Any]:
        epoch = (turn << 32) + self.context.epoch
        if name not in self.stage.by_name:
            raise StateError(
                f"the state has samples of the source {name!r}, which is gone: keep it, with "
                "weight 0, until the epoch ends"
            )
        context = dataclasses.replace(self.context, epoch=epoch)
        run: Run[Any] = start(self.stage.by_name[name], None, context)
        return run

    def _marked(self, item: Any, number: int) -> Any:
        if isinstance(item, dict):
            inside, name = item.get("__source__"), self.names[number]
            item["__source__"] = name if inside is None else f"{name}/{inside}"
            if self.stage.tags is not None:
                item["__tags__"] = {**self.stage.tags[name], **item.get("__tags__", {})}
        return item

    def parents(self) -> list[Run[Any]]:
        return [run for run in self.runs if run is not None]

    def full_passes(self) -> int | None:
        if not self.endless:
            return None
        return min((self.passes[number] for number in self.alive), default=0)

    @property
    def ticket(self) -> Ticket:
        number = self.chosen
        run = self.runs[number]
        return (number, self.passes[number], None if run is None else run.ticket)

    def _run_of(self, ticket: Ticket) -> Run[Any]:
        number, turn = int(ticket[0]), int(ticket[1])
        run = self.runs[number]
        if run is not None and turn == self.passes[number]:
            return run
        known = self._earlier.get(number)
        if known is None or known[0] != turn:
            known = (turn, self._pass(self.names[number], turn))
            self._earlier[number] = known
        return known[1]

    def origin(self, ticket: Ticket) -> Origin | None:
        return self._run_of(ticket).origin(ticket[2]) if ticket is not None else None

    def origins(self, ticket: Ticket) -> list[Origin]:
        return self._run_of(ticket).origins(ticket[2]) if ticket is not None else []

    def fetch(self, ticket: Ticket) -> Any:
        return self._marked(self._run_of(ticket).fetch(ticket[2]), ticket[0])

    # ── state ───────────────────────────────────────────────────────────────────────────

    def state(self) -> State:
        alive = set(self.alive)
        runs = [
            run.saved() if run is not None and number in alive else self._unused.get(number)
            for number, run in enumerate(self.runs)
        ]
        state = {
            "alive": list(self.alive),
            "passes": list(self.passes),
            "counts": list(self.counts),
            "credit": list(self.credit),
            "gave": list(self.gave),
            "rng": self.rng.count,
            "runs": runs,
        }
        changed = self.stage.saved is not None or self.names != self.turns.active
        return {**state, "names": self.names} if changed else state

    def restore(self, state: State) -> None:
        saved = self.stage.saved
        self._set_names(
            state.get("names") or (self.turns if saved is None else Turns(saved)).active
        )
        columns = [state[name] for name in ("passes", "counts", "credit", "gave", "runs")]
        if not all(isinstance(c, list) and len(c) == len(columns[0]) for c in columns):
            raise StateError("the state is damaged: that of a mixture of streams is incomplete")
        more = [0] * (len(self.names) - len(state["passes"]))
        self.passes = [*map(as_count, state["passes"]), *more]
        self.counts = [*map(as_count, state["counts"]), *more]
        self.credit = [*map(float, state["credit"]), *map(float, more)]
        self.rng.count = as_count(state["rng"])
        self.gave = [*state["gave"], *map(bool, more)]
        self.alive = []
        runs = [*state["runs"], *(None for _ in more)]
        for number, (run, kept) in enumerate(zip(self.runs, runs)):
            if run is None:
                self._unused[number] = kept
            elif number in state["alive"] or kept is not None:
                if self.passes[number]:
                    run = self.runs[number] = self._pass(self.names[number], self.passes[number])
                run.take(kept)
                self.alive.append(number)
            elif not self.passes[number] or self._continues(number):
                if self.passes[number]:
                    self._begin_again(number)
                self.alive.append(number)
        active = [n for n, run in enumerate(self.runs) if run is not None]
        self.ended = self.turns.over([self.passes[n] for n in active])

    def _set_names(self, names: Sequence[str]) -> None:
        """Number the sources as a state does, and new ones after them."""
        runs = dict(zip(self.names, self.runs))
        self.names = [*names, *(name for name in self.names if name not in names)]
        self.runs = [runs.get(name) for name in self.names]
        self.shares = self.turns.shares(self.names)

    def again(self, context: Context) -> Run[Any]:
        return type(self)(self.stage, context)


def stream_stats(runs: Sequence[StreamMixRun]) -> dict[str, SourceStats]:
    """Return the figures of each source of a mixture of streams in these lanes."""
    states = [{"names": r.names, "counts": r.counts, "passes": r.passes} for r in runs]
    return _stats(runs[0].stage, states)


def saved_stats(stage: StreamMix, lanes: Iterable[State]) -> dict[str, SourceStats]:
    """Return the figures of each source at the saved states of lanes."""
    states: list[State] = []
    waiting = list(lanes)
    while waiting:
        state = waiting.pop()
        if isinstance(state, dict) and "credit" in state:
            states.append({"names": stage.turns.active, **state})
        elif isinstance(state, (list, tuple, dict)):
            waiting += state.values() if isinstance(state, dict) else state
    return _stats(stage, states)


def _stats(stage: StreamMix, states: Sequence[State]) -> dict[str, SourceStats]:
    counts, passes = dict.fromkeys(stage.names, 0), dict[str, int]()
    for state in states:
        for name, count, turn in zip(state["names"], state["counts"], state["passes"]):
            counts[name] = counts.get(name, 0) + count
            passes[name] = min(passes.get(name, turn), turn)
    total = sum(counts.values())
    names = list(counts)
    targets = stage.turns.shares(names).share(total)
    return {
        name: SourceStats(counts[name], counts[name] / (total or 1), target / 2**64,
                          float(passes.get(name, 0)))
        for name, target in zip(names, targets)
    }  # fmt: skip
