"""Batches of samples of similar length, made on a stream."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple

from penstock.batches.bucketing.length_buffer import LengthBufferRun, LengthItem
from penstock.batches.bucketing.pivot_window import (
    check_limits,
    grow_window,
    indices_around_random_pivot,
)
from penstock.batches.collate import Collation
from penstock.batches.lengths import check_length, measure_sample, plain_length
from penstock.batches.padding.padded_batch import PaddedBatch
from penstock.context import Context
from penstock.errors import PenstockError, PipelineError, SampleError, at
from penstock.handlers import Handler, ask, reraise_exception
from penstock.stages.drop_guard import Dropping
from penstock.stages.map import seed_globals
from penstock.stages.run import Run, State, Ticket, as_count, fetch_again
from penstock.stages.shuffle import ABSENT
from penstock.stages.stage import Stage

WAIT_IN_BUFFERS = 4
HURRY = 0.75
"""A sample that has waited for this share of ``max_wait`` is the next pivot."""
SMALL_BUFFER = 64
"""With fewer samples per lane, too few are similar enough in length to make a batch."""


class dynamic_bucketed_batch(Stage[Any, Any]):
    """Collects samples of similar length into batches of similar size, on a stream.

    A buffer of ``buffersize`` samples is kept sorted by length. Whenever it is full, a batch is
    taken from it around a random sample: as many neighbours as ``sampler_kwargs`` allow
    (``target_batch_numel``, ``max_batch_numel``, ``max_batch_size``, ``max_padding_ratio``: see
    :func:`penstock.indices_around_random_pivot`). A batch has its longest sample first. At the end
    of the data, the rest of the buffer comes in smaller batches, or is dropped with ``drop_end``.

    The length is ``len_fn(sample[len_key])``; without ``len_key`` it is ``len_fn(sample)``, without
    ``len_fn`` the field itself. ``len`` takes the length of the sound from a pair (sound, rate),
    and refuses undecoded bytes and dicts. Samples below ``min_sample_len`` or above
    ``max_sample_len`` are left out and counted. A length that is missing, not a number, NaN, 0 or
    negative is a ``SampleError``, passed to ``handler``. A sample above ``max_batch_numel`` gets a
    separate batch (``over="alone"``), is left out and counted (``"skip"``), or is a
    ``SampleError`` (``"error"``).

    A sample leaves the buffer before ``max_wait`` later ones have come (default: four buffers).
    ``prepare`` is applied to the samples of a batch when it is made, so that the buffer can hold
    undecoded sound, for example. If ``prepared_len(sample)`` then shows that a batch is above
    ``max_batch_numel``, it is split. Called with data before the other arguments, the stage runs
    at once.

    >>> stage = dynamic_bucketed_batch(
    ...     buffersize=4, collate_fn=None, sampler_kwargs={"target_batch_numel": 6})
    >>> list(stage(["aa", "bbbbbb", "ccc", "dd", "eee"]))
    [['bbbbbb'], ['eee', 'ccc'], ['dd', 'aa']]
    """

    def __new__(cls, /, *args: Any, **kwargs: Any) -> Any:
        if "data" in kwargs:
            args = (kwargs.pop("data"), *args)
        if args and isinstance(args[0], Iterable) and not isinstance(args[0], str):
            return cls(*args[1:], **kwargs)(args[0])
        return super().__new__(cls, *args, **kwargs)

    def __init__(
        self,
        len_key: str | None = None,
        len_fn: Callable[[Any], Any] | None = len,
        min_sample_len: float | None = None,
        max_sample_len: float | None = None,
        buffersize: int = 1024,
        collate_fn: Collation | None = PaddedBatch,
        sampler_fn: Callable[..., Iterable[int]] = indices_around_random_pivot,
        sampler_kwargs: dict[str, Any] | None = None,
        drop_end: bool = False,
        *,
        max_wait: int | None = None,
        over: str = "alone",
        prepare: Callable[[Any], Any] | None = None,
        prepared_len: Callable[[Any], float] | None = None,
        handler: Handler = reraise_exception,
    ) -> None:
        if len_key is None and len_fn is None:
            raise PipelineError(f"{self.name}: len_key and len_fn are None: pass at least one")
        if buffersize < 1:
            raise PipelineError(f"{self.name}: buffersize must be at least 1, not {buffersize}")
        if over not in ("alone", "skip", "error"):
            raise PipelineError(f"{self.name}: over is 'alone', 'skip' or 'error': {over!r}")
        self.own_sampler = sampler_fn is not indices_around_random_pivot
        if max_wait is not None and (max_wait < 1 or self.own_sampler):
            raise PipelineError(
                f"{self.name}: max_wait={max_wait} must be at least 1, and cannot be guaranteed "
                "with another sampler_fn"
            )
        self.sampler_fn, self.sampler_kwargs = sampler_fn, dict(sampler_kwargs or {})
        self.limits = {} if self.own_sampler else check_limits(self.name, self.sampler_kwargs)
        self.len_key, self.len_fn = len_key, plain_length if len_fn is len else len_fn
        self.min_len, self.max_len = min_sample_len, max_sample_len
        self.buffersize, self.collation_fn = int(buffersize), collate_fn
        self.drop_end, self.max_wait, self.over = drop_end, max_wait, over
        self.prepare, self.prepared_len, self.handler = prepare, prepared_len, handler

    def start(self, source: Run[Any], context: Context) -> Run[Any]:
        return BucketedRun(self, source, context)


class BucketedPart(NamedTuple):
    """Samples of a batch, or the rest of a batch that was too large after ``prepare``."""

    items: list[LengthItem]
    ready: bool
    """True if the samples are prepared already."""


class BucketedRun(LengthBufferRun):
    """Runs :class:`dynamic_bucketed_batch`.

    Its state: the tickets in the sorted buffer, how many random numbers were drawn, the rest of a
    batch that was split, and whether a handler ended the stream.
    """

    stage: dynamic_bucketed_batch
    _due = 0

    def __init__(self, stage: Any, source: Run[Any], context: Context) -> None:
        super().__init__(stage, source, context, stage.buffersize)
        if self.size < SMALL_BUFFER <= stage.buffersize:
            warnings.warn(
                f"{stage.name}: a buffer of {stage.buffersize} samples shared by {self.lanes} "
                f"lanes is {self.size} in each: batches will be small and mostly padding; use a "
                "larger buffersize= or fewer lanes=, or plan the batches from the index",
                stacklevel=2,
            )
        wait = stage.max_wait or WAIT_IN_BUFFERS * stage.buffersize
        self.max_wait = max(wait // self.lanes, 1)
        self.hurry = int(self.max_wait * HURRY)
        self.max_numel = stage.limits.get("max_numel")
        self.parts: list[BucketedPart] = []
        self.rng = context.draws("bucketed", self.depth, *self.stream_id)
        # Python's global generator is seeded here; the state of another one cannot be saved.
        randint = stage.sampler_kwargs.get("randint_generator", random.randint)
        self.foreign = randint is not random.randint and not stage.own_sampler
        self.resumable = not self.foreign
        self._warned = False
        self._unmade = Dropping(self)
        self._empty = 0  # batches in a row of which no sample could be prepared

    def __iter__(self) -> Iterator[Any]:
        waiting, source, size = self.waiting, self.source, self.size
        dropping, dropped = Dropping(self), 0
        yield from self._rest_of_batch()
        for item in () if self.ended_early else source:
            length = self._length(item)
            if length is None:
                if self.ended_early:
                    break
                dropped = dropping.more(dropped)
                continue
            dropped = 0
            waiting.add(length, item, source.ticket)
            if len(waiting.lengths) >= size or (waiting.now > self._due and self._overdue()):
                yield from self._cut()
                if self.ended_early:  # a sample could not be prepared
                    break
        while waiting.lengths and not self.stage.drop_end:
            yield from self._cut()

    # ── lengths ─────────────────────────────────────────────────────────────────────────

    def _length(self, item: Any) -> float | None:
        """Return the length of a sample, or None if the sample is left out."""
        stage = self.stage
        try:
            length: float = measure_sample(item, stage.len_key, stage.len_fn)
            if not (type(length) in (int, float) and 0 < length < float("inf")):
                length = check_length(length, stage.len_key)
            limit = self.max_numel
            if limit is not None and length > limit and not self._keeps_large(length):
                self.skip()
                return None
        except Exception as error:  # noqa: BLE001 - the handler decides
            self.ended_early = not self.failed(error, stage.handler, item)
            return None
        if (stage.min_len is not None and length < stage.min_len) or (
            stage.max_len is not None and length > stage.max_len
        ):
            self.skip()
            return None
        return length

    def _keeps_large(self, length: float) -> bool:
        """Return True if a sample above the budget is kept."""
        text = (
            f"{self.stage.name}: a sample of length {length} is above "
            f"max_batch_numel={self.max_numel}"
        )
        if self.stage.over == "error":
            raise SampleError(f"{text}: over='alone' batches it alone, over='skip' leaves it out")
        if self.stage.over == "alone" and not self._warned:
            self._warned = True
            origin = self.source.origin(self.source.ticket)
            warnings.warn(at(f"{text} and gets a separate batch", origin), stacklevel=2)
        return self.stage.over == "alone"

    # ── choosing ────────────────────────────────────────────────────────────────────────

    def _overdue(self) -> bool:
        """Return True if the oldest sample must leave now; ``_due`` is the earliest next time."""
        if self.stage.own_sampler or self.foreign:
            return False
        self._due = self.waiting.oldest().arrival + self.max_wait
        return self.waiting.now > self._due

    def _cut(self) -> Iterator[Any]:
        """Take the next batch from the buffer and yield it."""
        self.parts = [BucketedPart(self._choose(), False)]
        yield from self._rest_of_batch()

    def _choose(self) -> list[LengthItem]:
        stage, waiting = self.stage, self.waiting
        if stage.own_sampler or self.foreign:
            with seed_globals(self.rng.bits()) if stage.own_sampler else nullcontext():
                indices = stage.sampler_fn(waiting.items, **stage.sampler_kwargs)
            found = waiting.take_all([int(index) for index in indices])
            if not found:
                raise PipelineError(
                    f"{stage.name}: sampler_fn chose no sample: it must return at least one index"
                )
            return found
        begin, end = grow_window(waiting.lengths, self._pivot(), **stage.limits)
        found = waiting.take(begin, end)
        found.reverse()
        return found

    def _pivot(self) -> int:
        """Return the index of the older of two random samples, or of one that has waited long.

        A single random sample would leave rare lengths waiting for tens of buffers.
        """
        waiting = self.waiting
        oldest = waiting.oldest()
        if waiting.now - oldest.arrival > self.hurry:
            return waiting.first_of(oldest.length)
        one, other = self.rng.below(len(waiting)), self.rng.below(len(waiting))
        return one if waiting.items[one].arrival < waiting.items[other].arrival else other

    # ── batches ─────────────────────────────────────────────────────────────────────────

    def _rest_of_batch(self) -> Iterator[Any]:
        while self.parts:
            items, ready = self.parts.pop(0)
            samples = [self._fetch_item(item) for item in items]
            if self.stage.prepare is not None:
                pairs = list(zip(items, samples))
                pairs = self._fit_budget(pairs if ready else self._prepare(pairs))
                items, samples = [item for item, _ in pairs], [sample for _, sample in pairs]
            self._empty = 0 if samples else self._unmade.more(self._empty)
            if samples:
                self.samples, self.tickets = samples, [item.ticket for item in items]
                yield self._batch()

    def _fetch_item(self, item: LengthItem) -> Any:
        return fetch_again(self.source, item.ticket) if item.data is ABSENT else item.data

    def _prepare(self, pairs: list[tuple[LengthItem, Any]]) -> list[tuple[LengthItem, Any]]:
        """Prepare samples and update their lengths; return those that did not fail."""
        stage, kept = self.stage, []
        for item, sample in pairs:
            try:
                result = stage.prepare(sample) if stage.prepare is not None else sample
                if result is not None and stage.prepared_len is not None:
                    item.length = check_length(stage.prepared_len(result), None)
            except Exception as error:  # noqa: BLE001 - the handler decides
                self._locate(error, item.ticket)
                self.ended_early = not ask(stage.handler, error) or self.ended_early
                result = None
            if result is None:
                self.skip()
            else:
                kept.append((item, result))
        return kept

    def _fit_budget(self, pairs: list[tuple[LengthItem, Any]]) -> list[tuple[LengthItem, Any]]:
        """Return the prepared samples that fit the budget; the rest is the next batch."""
        if self.stage.prepared_len is None or self.max_numel is None or not pairs:
            return pairs
        pairs.sort(key=lambda pair: -pair[0].length)
        fitting = max(int(self.max_numel // pairs[0][0].length), 1)
        for item, sample in pairs[fitting:]:
            item.data = sample
        if fitting < len(pairs):
            self.parts.insert(0, BucketedPart([item for item, _ in pairs[fitting:]], True))
        return pairs[:fitting]

    def _locate(self, error: Exception, ticket: Ticket) -> None:
        origin = self.source.origin(ticket)
        if isinstance(error, PenstockError) and origin is not None:
            error.locate(origin)
        elif origin is not None:
            error.add_note(f"in {self.stage.name}: {origin}")

    # ── state ───────────────────────────────────────────────────────────────────────────

    def state(self) -> State:
        parts = [[[item.ticket, item.length] for item in part.items] for part in self.parts]
        return {
            "buffer": self.waiting.state(),
            "draws": self.rng.count,
            "parts": parts,
            "ended_early": self.ended_early,
            "source": self.source.saved(),
        }

    def restore(self, state: State) -> None:
        self.rng.count, self.ended_early = as_count(state["draws"]), bool(state["ended_early"])
        self.parts = [
            BucketedPart([LengthItem(length, ABSENT, ticket) for ticket, length in part], False)
            for part in state["parts"]
        ]
        self.waiting.restore(state["buffer"])
        if self.stage.own_sampler:  # it may read the samples
            for item in self.waiting.items:
                item.data = self.source.fetch(item.ticket)
        self.source.take(state["source"])

    def fetch(self, ticket: Ticket) -> Any:
        samples = [self.source.fetch(one) for one in ticket]
        if self.stage.prepare is not None:
            samples = [self.stage.prepare(sample) for sample in samples]
        return samples if self.stage.collation_fn is None else self.stage.collation_fn(samples)
