"""Several indexed data sets as one, mixed in the order before anything is read."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import hashlib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from penstock.context import Context
from penstock.errors import Origin, PenstockError, PipelineError, StateError
from penstock.rng import stable_hash
from penstock.shards.index.random_access import FilePool
from penstock.shards.sample_reader import Sample
from penstock.stages.repeat import ENDLESS_PASSES
from penstock.stages.run import Run, reading_state
from penstock.stages.sources.data_versions import DataVersion, combined
from penstock.stages.sources.epoch_order import Rows
from penstock.stages.sources.indexed_samples import KEPT_ORDERS, IndexedRun, IndexedSamples
from penstock.stages.sources.mix_plan import (
    BLOCK,
    RANDOM_BLOCK,
    MixPlan,
    Schedule,
    Shares,
    SourceStats,
)
from penstock.stages.sources.mixed_order import ENDLESS, MixedOrder, MixtureRange
from penstock.stages.sources.mixed_reader import MixedReader
from penstock.stages.sources.mixture_definition import (
    Mixture,
    MixtureSource,
    pack_values,
    unpack_values,
)
from penstock.stages.sources.read_ahead import ReadAhead
from penstock.stages.stage import Source

MAX_OPEN = 64
"""Shards that a mixture keeps open, however many sources it has."""
FOREVER_PASSES = 1 << 32


class MixedSamples(IndexedSamples):
    """The samples of several indexed data sets, mixed by weight before anything is read.

    :func:`penstock.mix` makes it. ``parts`` are the sources.
    """

    def __init__(
        self,
        parts: Sequence[MixtureSource],
        weights: Sequence[Schedule] | None = None,
        mode: str = "quota",
        until: str | None = None,
    ) -> None:
        self.parts = [dataclasses.replace(p, samples=copy.copy(p.samples)) for p in parts]
        self.radix = len(self.parts)
        default = "first" if weights is not None else "each"
        self.mixture = Mixture(
            [part.name for part in parts],
            None if weights is None else list(weights),
            mode,
            until or default,
            [part.identity for part in parts],
            former_identities=[part.former_identity for part in parts],
        )
        self.urls: list[str] = []
        self.given_index = self.window = None  # type: ignore[assignment]
        self.ends = _agreed("ends", [part.samples.ends for part in parts])
        self.handler = _agreed("handler", [part.samples.handler for part in parts])
        self.local_paths, self.cache, self.patience = True, None, None
        self.keeps_ranks_equal = self.ends != "exact"
        self.pool = FilePool(MAX_OPEN)
        self.earlier: dict[int, list[tuple[Mixture, int]]] = {}
        """By epoch: what was mixed before the mixture changed, each up to a position."""
        self._times: dict[int, int] = {}  # samples of the run before an epoch, as saved
        self.expected: dict[str, str] = {}
        """By source: the fingerprint of its data when a state was saved."""
        self.expected_versions: dict[str, Any] = {}
        """By source: the version of its data then."""
        self._seen: dict[int, str] = {}  # fingerprints of the sources opened so far
        self._versions: dict[int, DataVersion] = {}  # the versions of their data
        self._all_opened = False
        self._orders: dict[tuple[int, int], Any] = {}
        self._ends: dict[tuple[int, int], int | None] = {}
        self._counts: dict[tuple[int, int], int] = {}  # samples of earlier epochs
        self._reads: dict[int, Any] = {}
        self._reader: MixedReader | None = None
        for part in self.parts:
            _share_pool(part.samples, self.pool)

    @functools.cached_property
    def data_versions(self) -> dict[str, DataVersion]:
        """The version of the sources, for a mixture inside another source.

        The outermost mixture of a pipeline compares each source when it is opened instead.
        """
        parts = [
            (self.parts[number].name, self.open_part(number)) for number in self.mixture.active
        ]
        fingerprints = [_digest(samples.fingerprint) for _, samples in parts]
        versions = combined({f"source {name!r}": one.data_versions for name, one in parts})
        data = DataVersion(versions.names, {"fingerprint": fingerprints})
        return {"0": versions, "data": data}

    # ── sources ─────────────────────────────────────────────────────────────────────────

    def open_part(self, number: int) -> IndexedSamples:
        """Open a source's index, and check that it is the data of the loaded state."""
        part = self.parts[number]
        if number not in self._seen:
            fingerprint = part.samples.fingerprint  # the whole index is loaded for it
            found = _digest(fingerprint)
            expected = self.expected.get(part.name, found)
            if expected != found:
                raise StateError(
                    f"the state is of other shards: those of the source {part.name!r} have "
                    "changed since it was saved"
                )
            version = combined({f"the source {part.name!r}": part.samples.data_versions})
            if part.name in self.expected_versions:
                with reading_state():
                    version.check(self.expected_versions[part.name])
            self._seen = {**self._seen, number: found}
            self._versions = {**self._versions, number: version}
        return part.samples

    def reader_of(self, number: int) -> Any:
        read = self._reads.get(number)
        if read is None:
            samples = self.open_part(number)
            self._reads = {**self._reads, number: samples.reader.read}
            read = self._reads[number]
        return read

    def opened(self) -> Any:
        raise PipelineError("mix: a mixture has no index")

    @property
    def reader(self) -> Any:
        if self._reader is None:
            self._reader = MixedReader(self)
        return self._reader

    def size_of(self, row: int) -> int:
        inner, number = divmod(row, self.radix)
        return self.parts[number].samples.size_of(inner)

    def sizes_of(self, rows: Rows) -> Rows:
        sizes = np.empty(len(rows), np.int64)
        numbers = rows % self.radix
        for number in np.unique(numbers).tolist():
            chosen = numbers == number
            sizes[chosen] = self.open_part(number).sizes_of(rows[chosen] // self.radix)
        return sizes

    def origin_of(self, row: int) -> Origin:
        inner, number = divmod(row, self.radix)
        return self.parts[number].samples.origin_of(inner)

    @property
    def fingerprint(self) -> str:
        """The same for all mixtures: states compare the mixtures themselves."""
        return "mixture"

    # ── order ───────────────────────────────────────────────────────────────────────────

    def order(self, seed: int, epoch: int) -> MixedOrder:  # type: ignore[override]
        """Return the order of an epoch, shared by all lanes."""
        order: MixedOrder | None = self._orders.get((seed, epoch))
        if order is None:
            order = MixedOrder(self, seed, epoch)
            last = list(self._orders.items())[1 - KEPT_ORDERS :]
            self._orders = {**dict(last), (seed, epoch): order}
        return order

    def _lengths(self, numbers: Sequence[int], seed: int, epoch: int) -> list[int | None]:
        lengths: list[int | None] = []
        for number in numbers:
            samples = self.open_part(number)
            if isinstance(samples, MixedSamples):
                length = len(samples.order(self.parts[number].seed_for(seed), epoch))
                lengths.append(None if length >= ENDLESS else length)
            else:
                lengths.append(len(samples))
            if lengths[-1] == 0:
                raise PipelineError(f"mix: the source {self.parts[number].name!r} has no samples")
        return lengths

    def _limits(self, mixture: Mixture, seed: int, epoch: int) -> list[int]:
        """Return how many samples of each active source of a mixture the epoch has."""
        numbers = {part.name: number for number, part in enumerate(self.parts)}
        names = [mixture.names[number] for number in mixture.active]
        if gone := [name for name in names if name not in numbers]:
            raise StateError(
                f"the state does not say how many samples the source {gone[0]!r} has, and it is "
                "gone: keep it, with weight 0, until the epoch ends"
            )
        lengths = self._lengths([numbers[name] for name in names], seed, epoch)
        if any(length is None for length in lengths):
            raise PipelineError("mix: a source without end cannot be gone through once")
        passes = [Fraction(1)] * len(lengths)
        if mixture.weights is not None and mixture.mode == "epochs":
            passes = [Fraction(mixture.weights[n].at(0)) for n in mixture.active]
        return [int(p * (n or 0) + Fraction(1, 2)) for p, n in zip(passes, lengths)]

    def plan_stretches(self, seed: int, epoch: int) -> list[MixtureRange]:
        """Return the stretches of an epoch: one, and another after each change of the mixture."""
        changes = [*self.earlier.get(epoch, ()), (self.mixture, ENDLESS)]
        return self._stretches(changes, seed, epoch)

    def _stretches(
        self, changes: Sequence[tuple[Mixture, int]], seed: int, epoch: int
    ) -> list[MixtureRange]:
        """Plan mixtures that follow each other, each up to a position."""
        numbers = {part.name: number for number, part in enumerate(self.parts)}
        time = self._time_before(seed, epoch)
        stretches: list[MixtureRange] = []
        counts: dict[str, int] = {}
        begin = 0
        for mixture, end in changes:
            names = [mixture.names[number] for number in mixture.active]
            base = [counts.get(name, 0) for name in names]
            limits = mixture.limits
            if limits is None and mixture.limited:  # a loader's process does not count them
                limits = self._limits(mixture, seed, epoch)
            if limits is not None:
                limits = [max(limit - count, 0) for limit, count in zip(limits, base)]
            plan = self._plan(mixture, limits, seed, epoch, begin, time + begin)
            parts = [numbers.get(name) for name in names]
            stretches.append(MixtureRange(begin, plan, parts, base, names))
            if end < ENDLESS:
                counts |= stretches[-1].counts_at(end)
                begin = end
        return stretches

    def _plan(
        self,
        mixture: Mixture,
        limits: Sequence[int] | None,
        seed: int,
        epoch: int,
        begin: int,
        time: int,
    ) -> MixPlan:
        active = mixture.active
        if mixture.weights is None or mixture.mode == "epochs":
            weights = [Schedule(limit) for limit in limits or ()]
            if not any(limits or ()):
                weights = [Schedule(1) for _ in active]
            time = 0
        else:
            weights = [mixture.weights[number] for number in active]
        key = stable_hash("mix", seed, epoch, begin)
        block = RANDOM_BLOCK if mixture.mode == "random" else BLOCK
        names = [mixture.names[number] for number in active]
        return MixPlan(Shares(weights), names, key=key, block=block, limits=limits, time=time)

    def _time_before(self, seed: int, epoch: int) -> int:
        """Return the samples of the run before an epoch: the time of schedules.

        After the last point of all schedules, any time gives the same plan: it is not counted on.
        """
        last = self._last_point(epoch)
        turn, first = epoch >> 32, epoch & (FOREVER_PASSES - 1)
        time, before = 0, range(first, epoch, FOREVER_PASSES)
        if not turn:
            # How much of an endless repeat was used in an epoch is unknown here: it begins again.
            begin = epoch - epoch % ENDLESS_PASSES
            known = max((one for one in self._times if begin <= one <= epoch), default=begin)
            time, before = self._times.get(known, 0), range(known, epoch)
        for earlier in before:
            if time >= last:
                break
            count = self._counts.get((seed, earlier), -1)
            if count < 0:  # earlier ones are known: no epoch is planned twice
                count = self._counts[seed, earlier] = len(self.order(seed, earlier))
            if count >= ENDLESS:
                return 0  # with_epoch() cuts it, at a length that is unknown here
            if self._equal_epochs:
                return time + count * len(before)
            time += count
        return time

    def _last_point(self, epoch: int) -> int:
        """Return the last point of all schedules that an epoch is mixed by; 0 if there is none."""
        mixtures = [self.mixture, *(before for before, _ in self.earlier.get(epoch, ()))]
        weights = (weight for mixture in mixtures for weight in mixture.weights or ())
        return max((weight.times[-1] for weight in weights if not weight.constant), default=0)

    @property
    def _equal_epochs(self) -> bool:
        """True if all epochs have the same number of samples."""
        nested = any(isinstance(part.samples, MixedSamples) for part in self.parts)
        return self.mixture.limited and not nested and not self.earlier

    def end_of(self, stretches: Sequence[MixtureRange], seed: int, epoch: int) -> int | None:
        """Return the position at which the epoch ends; None: never."""
        key = (seed, epoch)
        if key not in self._ends or self._orders.get(key) is None:
            self._ends = {key: self._find_end(stretches[-1], seed, epoch), **self._ends}
        return self._ends[key]

    def _find_end(self, last: MixtureRange, seed: int, epoch: int) -> int | None:
        mixture = self.mixture
        if last.plan.limits is not None:
            return last.begin + sum(last.plan.limits)
        if mixture.until == "forever":
            return None
        lengths = self._lengths(mixture.active, seed, epoch)
        if mixture.until == "first":
            if not any(lengths):
                return None
            left = [None if n is None else n - b for n, b in zip(lengths, last.base)]
            if any(n is not None and n <= 0 for n in left):
                return last.begin
            return last.begin + last.plan.first_end(left)
        if None in lengths:
            return None
        left = [max((n or 0) - b, 1) for n, b in zip(lengths, last.base)]
        return last.begin + last.plan.last_end(left)

    @property
    def endless(self) -> bool:
        """True if an epoch has no end."""
        if self.mixture.limited:
            return False
        if self.mixture.until == "forever":
            return True
        inner = [self.parts[n].samples for n in self.mixture.active]
        ends = [not (isinstance(s, MixedSamples) and s.endless) for s in inner]
        return not (any(ends) if self.mixture.until == "first" else all(ends))

    def __len__(self) -> int:
        if self.endless:
            raise TypeError("mix: a mixture without end has no length")
        return len(self.order(0, 0))

    def count(self, context: Context) -> int:
        return len(self.order(context.seed, context.epoch))

    shortens = False  # samples are read ahead for full batches

    def positions(self, context: Context) -> int:
        return ENDLESS if self.endless else super().positions(context)

    def start(self, source: Run[None] | None, context: Context) -> Run[Sample]:
        return MixedRun(self, None, context)

    # ── state ───────────────────────────────────────────────────────────────────────────

    def record(self, epoch: int, seed: int, running: bool = False) -> dict[str, Any]:
        """Return what a saved state says about the mixture."""
        mixture, order = self.mixture, self._orders.get((seed, epoch))
        if order is None and running and self._last_point(epoch):
            order = self.order(seed, epoch)  # only the workers of a loader have planned it
        if mixture.limited and order is not None:
            first = order.stretches[0].plan.limits if not self.earlier.get(epoch) else None
            limits = first or self._limits(mixture, seed, epoch)
            mixture = dataclasses.replace(mixture, limits=limits)
        if running and not self._all_opened:
            self._open_all()
        names = [part.name for part in self.parts]
        seen = " ".join(
            self._seen.get(number, self.expected.get(name, "")) for number, name in enumerate(names)
        )
        made = {"sources": pack_values(mixture.plain()), "opened": pack_values(seen)}
        versions = [
            self._versions[number].plain()
            if number in self._versions
            else self.expected_versions.get(name)
            for number, name in enumerate(names)
        ]
        if any(versions):
            made["versions"] = pack_values(versions)
        if known := self.earlier.get(epoch):
            made["earlier"] = pack_values([[before.plain(), end] for before, end in known])
        if order is not None and (time := self._time_before(seed, epoch)):
            times = [time] if self.endless else [time, time + len(order)]
            made["times"] = pack_values(times)
        return made

    def _open_all(self) -> None:
        """Open the sources once, for their versions: those of a loader are opened by its workers.

        What cannot be opened raises its error where its samples are read.
        """
        for number in self.mixture.active:
            with contextlib.suppress(PenstockError):
                self.open_part(number)
        self._all_opened = True

    def check(self, record: Mapping[str, Any], change: str) -> bool:
        """Compare with the record of a state; return True if the mixture changes and is allowed
        to."""
        if "streams" in record:
            raise StateError(
                "the state is of a mixture of streams, and this one is planned: it cannot continue "
                "from there"
            )
        return self.mixture.check(Mixture.of_plain(unpack_values(record["sources"])), change)

    def take(self, record: Mapping[str, Any], epoch: int) -> None:
        """Restore the running epoch from a state of the same mixture."""
        self._forget_orders()
        self.earlier = {epoch: _changes(record)}
        self._expect(record, epoch)

    def _forget_orders(self) -> None:
        self._orders, self._ends, self._counts = {}, {}, {}

    def _expect(self, record: Mapping[str, Any], epoch: int) -> None:
        times = unpack_values(record["times"]) if "times" in record else []
        self._times = {epoch + number: time for number, time in enumerate(times)}
        names = unpack_values(record["sources"])[2]
        seen = zip(names, unpack_values(record["opened"]).split(" "))
        self.expected = {name: text for name, text in seen if text}
        packed = record.get("versions")
        versions = [] if packed is None else unpack_values(packed)
        self.expected_versions = {name: one for name, one in zip(names, versions) if one}
        self._seen, self._versions, self._reads, self._all_opened = {}, {}, {}, False

    def continue_from(self, record: Mapping[str, Any], epoch: int) -> None:
        """Use the mixture of a state for all positions of an epoch, until :meth:`change_at`."""
        saved = Mixture.of_plain(unpack_values(record["sources"]))
        self._forget_orders()
        self.earlier = {epoch: [*_changes(record), (saved, ENDLESS)]}
        self._expect(record, epoch)
        for before, _ in self.earlier[epoch]:
            self.mixture.check_positions(before)

    def change_at(self, position: int, seed: int, epoch: int) -> None:
        """Begin with this mixture at the first block edge of the saved one from a position on."""
        *known, (before, _) = self.earlier[epoch]
        last = self._stretches([*known, (before, ENDLESS)], seed, epoch)[-1]
        if position > last.begin:  # else the saved mixture has not begun
            block, begin = last.plan.find(position - last.begin)
            begin = begin if begin >= position - last.begin else last.plan.begin(block + 1)
            known.append((before, last.begin + begin))
        self.earlier = {epoch: known}
        self._forget_orders()

    def source_stats(self, position: int, seed: int, epoch: int) -> dict[str, SourceStats]:
        """Return the number of samples of each source before a position of an epoch."""
        order = self.order(seed, epoch)
        counts: dict[str, int] = {}
        ends = [*(one.begin for one in order.stretches[1:]), ENDLESS]
        for one, end in zip(order.stretches, ends):
            if one.begin <= position:
                counts |= one.counts_at(min(position, end))
        stretch = order.stretches[-1]
        total = sum(counts.values()) or 1
        shares = stretch.plan.shares.share(stretch.plan.time + position - stretch.begin)
        targets = dict(zip(stretch.names, (share / 2**64 for share in shares)))
        stats: dict[str, SourceStats] = {}
        for number, part in enumerate(self.parts):
            count = counts.get(part.name, 0)
            known = number in self._seen and not isinstance(part.samples, MixedSamples)
            passes = count / (len(part.samples) or 1) if known else None
            target = targets.get(part.name, 0.0)
            stats[part.name] = SourceStats(count, count / total, target, passes)
        return stats

    # ── showing ─────────────────────────────────────────────────────────────────────────

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        mixture = self.mixture
        named: dict[str, Any] = {"mode": mixture.mode} if mixture.mode != "quota" else {}
        return (), named

    def __repr__(self) -> str:
        names = self.mixture.names
        shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
        words = [f"{len(names)} sources: {shown}"]
        if self.mixture.weights is not None:
            words += [f"mode={self.mixture.mode!r}", f"until={self.mixture.until!r}"]
        return f"mix({', '.join(words)})"

    @property
    def name(self) -> str:
        return "mix"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MixedSamples):
            return NotImplemented
        urls = ([p.samples.urls for p in one.parts] for one in (self, other))
        return self.mixture.plain() == other.mixture.plain() and next(urls) == next(urls)

    __hash__ = Source.__hash__

    def __getstate__(self) -> dict[str, Any]:
        empty: dict[str, Any] = {"_seen": {}, "_reads": {}, "_reader": None, "_ends": {}}
        return {**super().__getstate__(), **empty, "_versions": {}, "_all_opened": False}


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=3).hexdigest()


def _changes(record: Mapping[str, Any]) -> list[tuple[Mixture, int]]:
    """Return what was mixed in the running epoch of a state before its mixture changed."""
    if record.get("earlier") is None:
        return []
    saved = unpack_values(record["earlier"])
    if isinstance(saved[-1], int):  # earlier versions: one change, with counts that were 0
        saved = [[saved[0], saved[-1]]]
    return [(Mixture.of_plain(before), end) for before, end in saved]


def _share_pool(samples: IndexedSamples, pool: FilePool) -> None:
    samples.pool = pool
    for part in getattr(samples, "parts", ()):
        _share_pool(part.samples, pool)


def _agreed(what: str, values: Sequence[Any]) -> Any:
    if any(value != values[0] for value in values):
        raise PipelineError(f"mix: all sources have the same {what}=, not {values[0]!r} and others")
    return values[0]


class MixedRun(IndexedRun):
    """A run of a planned mixture. Its state is a number, like that of a single data set."""

    stage: MixedSamples

    def __init__(self, stage: MixedSamples, source: None, context: Context) -> None:
        super().__init__(stage, source, context)
        self.endless = stage.endless
        self._ahead: ReadAhead | None = None

    def _samples_ahead(self) -> dict[int, Sample] | None:
        if self.stage.reader.remote:
            return self._soon
        order = self.stage.order(self.context.seed, self.context.epoch)
        self._ahead = order.read_ahead(self.context, self.lane, self.lanes)
        return self._ahead.samples

    def _drop_ahead(self) -> None:
        super()._drop_ahead()
        if self._ahead is not None:
            self._ahead.clear()

    def _read_ahead(self, position: int, count: int) -> Sample:
        if self._ahead is None:
            return super()._read_ahead(position, count)
        self._ahead.fill(position, count)
        found = self._ahead.samples.pop(position, None)
        if found is None:
            order = self.stage.order(self.context.seed, self.context.epoch)
            found = self.stage.reader.read(order.row(position), self._deferred)
        return found

    def next_position(self) -> int:
        """Return the position that this lane reads next."""
        block, within = divmod(self.given, self.context.run)
        return (block * self.lanes + self.lane) * self.context.run + within

    def full_passes(self) -> int | None:
        if not self.endless:
            return None
        stats = self.stage.source_stats(
            max(self.position, 0), self.context.seed, self.context.epoch
        )
        known = [int(one.passes) for one in stats.values() if one.passes is not None]
        return min(known, default=0)


def mixed_seed(stages: Sequence[Any], seed: int) -> int:
    """Return the seed that the source of a pipeline works with: that of the innermost one."""
    source = stages[0] if stages else None
    while isinstance(inner := getattr(source, "pipeline", None), list) and inner:
        own = getattr(source, "seed", None)
        seed = seed if own is None else own
        source = inner[0]
    return seed
