"""Mix several streams into one."""

from __future__ import annotations

import random
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any

from penstock.context import Context, current_context, epoch_seed
from penstock.errors import Origin, PipelineError
from penstock.rng import Generator, MersenneRng, rng_state, set_rng_state
from penstock.stages.drop_guard import fewest
from penstock.stages.run import Run, State, Ticket, as_count, start
from penstock.stages.stage import Source

RANK_CHECKS: list[Callable[..., None]] = []
"""Functions that raise an error for stages which may yield unequal numbers of items on the ranks.
The pipeline adds one."""


class Mix(Source[Any]):
    """Several data sets as one source."""

    datasets: list[Any]

    def __iter__(self) -> Iterator[Any]:
        """Iterate without a pipeline, with the same checks as a pipeline on several ranks."""
        place = current_context()
        for check in RANK_CHECKS if place.world_size > 1 else ():
            check([self], warn=place.rank == place.worker == 0)
        return super().__iter__()

    @property
    def fingerprint(self) -> str:
        """A text that differs when the data does."""
        return " ".join(str(getattr(dataset, "fingerprint", "")) for dataset in self.datasets)


class RoundRobin(Mix):
    """Takes one item from each data set in turn.

    Ends with the first data set that ends; with ``longest=True`` continues with the others.

    >>> list(RoundRobin([[1, 2, 3], "ab"], longest=True))
    [1, 'a', 2, 'b', 3]
    """

    keeps_ranks_equal = True  # if the data sets are equal: every rank takes the same turns

    def __init__(self, datasets: Sequence[Any], longest: bool = False) -> None:
        if not datasets:
            raise PipelineError("RoundRobin needs at least one data set")
        self.datasets, self.longest = list(datasets), longest

    def start(self, source: Run[None] | None, context: Context) -> Run[Any]:
        return RoundRobinRun(self, context)


class RandomMix(Mix):
    """Takes each item from a data set chosen at random, by weight.

    ``probs`` are the weights (equal ones by default). Ends with the first data set that ends; with
    ``longest=True`` continues with the others. The choice depends on the seed and the epoch.

    >>> sorted(RandomMix([[1, 2], "ab"], longest=True, seed=0), key=str)
    [1, 2, 'a', 'b']
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        probs: Sequence[float] | None = None,
        longest: bool = False,
        seed: int | None = None,
    ) -> None:
        weights = [1.0] * len(datasets) if probs is None else [float(p) for p in probs]
        if not datasets or len(weights) != len(datasets):
            raise PipelineError(f"RandomMix: {len(datasets)} data sets and {len(weights)} weights")
        if min(weights) < 0 or not 0 < sum(weights) < float("inf"):
            raise PipelineError(f"RandomMix: weights must be positive numbers, not {weights}")
        self.datasets, self.weights, self.longest = list(datasets), weights, longest
        self.seed = seed
        # Which data set ends first, and when, differs between ranks.
        self.keeps_ranks_equal = longest

    def start(self, source: Run[None] | None, context: Context) -> Run[Any]:
        return RandomMixRun(self, context)


class MixRun(Run[Any]):
    """Several runs as one. A ticket is (which data set, the item's ticket)."""

    resumable = True

    def __init__(self, stage: Any, context: Context) -> None:
        super().__init__(stage, None, context)
        self.runs: list[Run[Any]] = [start(data, None, context) for data in stage.datasets]
        self.dealt = all(run.dealt for run in self.runs)
        self.endless = any(run.endless for run in self.runs)
        self.alive = list(range(len(self.runs)))
        self.turn = -1
        self.chosen = 0

    def __iter__(self) -> Iterator[Any]:
        streams = [iter(run) for run in self.runs]
        alive = self.alive
        while alive and not self.ended:
            self.turn = self.choose()
            self.chosen = alive[self.turn]
            for item in streams[self.chosen]:
                yield item
                break
            else:
                if not self.stage.longest:
                    self.ended = True
                    return
                del alive[self.turn]
                self.turn -= 1

    def choose(self) -> int:
        """Return the position, in the list of data sets still alive, of the next one."""
        raise NotImplementedError

    def parents(self) -> list[Run[Any]]:
        return self.runs

    def full_passes(self) -> int | None:
        return fewest(self.runs[number].full_passes() for number in self.alive)

    def is_empty(self) -> bool:
        empty = [run.is_empty() for run in self.runs]
        return all(empty) if self.stage.longest else any(empty)

    @property
    def ticket(self) -> Ticket:
        return (self.chosen, self.runs[self.chosen].ticket)

    def origin(self, ticket: Ticket) -> Origin | None:
        return self.runs[ticket[0]].origin(ticket[1]) if ticket is not None else None

    def origins(self, ticket: Ticket) -> list[Origin]:
        return self.runs[ticket[0]].origins(ticket[1]) if ticket is not None else []

    def drawn(self) -> Any:
        """Return the generator's state, if there is one."""

    def set_drawn(self, state: Any) -> None:
        """Restore the generator's state."""

    def state(self) -> State:
        # The alive list and the turn are plain; an exhausted data set needs no state.
        runs = [run.saved() if n in self.alive else None for n, run in enumerate(self.runs)]
        return {"alive": list(self.alive), "turn": self.turn, "rng": self.drawn(), "runs": runs}

    def restore(self, state: State) -> None:
        self.alive = [as_count(number, len(self.runs) - 1) for number in state["alive"]]
        self.turn = as_count(state["turn"] + 1, len(self.runs)) - 1
        self.set_drawn(state["rng"])
        for number in self.alive:
            self.runs[number].take(state["runs"][number])

    def fetch(self, ticket: Ticket) -> Any:
        return self.runs[ticket[0]].fetch(ticket[1])

    def again(self, context: Context) -> Run[Any]:
        return type(self)(self.stage, context)


class RoundRobinRun(MixRun):
    """A run of :class:`RoundRobin`."""

    def choose(self) -> int:
        return (self.turn + 1) % len(self.alive)


class RandomMixRun(MixRun):
    """A run of :class:`RandomMix`."""

    def __init__(self, stage: RandomMix, context: Context) -> None:
        super().__init__(stage, context)
        self.rng: Generator
        if stage.seed is not None and context.lane is None:
            self.rng = MersenneRng(random.Random(epoch_seed(stage.seed, context.epoch)))
        else:
            self.rng = context.draws("mix", stage.seed, *context.stream_id)

    def choose(self) -> int:
        weights = list(accumulate(self.stage.weights[place] for place in self.alive))
        if weights[-1] == 0:  # only data sets of weight zero are left
            return 0
        return min(bisect_left(weights, self.rng.random() * weights[-1]), len(self.alive) - 1)

    def drawn(self) -> Any:
        return rng_state(self.rng)

    def set_drawn(self, state: Any) -> None:
        set_rng_state(self.rng, state)


class MockDataset(Source[Any]):
    """The same sample ``length`` times, for tests and for measuring.

    >>> list(MockDataset({"cls": 1}, 2))
    [{'cls': 1}, {'cls': 1}]
    """

    keeps_ranks_equal = True

    def __init__(self, sample: Any, length: int) -> None:
        self.sample, self.length = sample, length

    def start(self, source: Run[None] | None, context: Context) -> Run[Any]:
        return MockRun(self, None, context)


class MockRun(Run[Any]):
    """A run of :class:`MockDataset`."""

    resumable = True
    given = 0

    def __iter__(self) -> Iterator[Any]:
        while self.given < self.stage.length:
            self.given += 1
            yield self.stage.sample

    @property
    def ticket(self) -> Ticket:
        return self.given - 1

    def is_empty(self) -> bool:
        return self.given == 0

    def state(self) -> State:
        return self.given

    def restore(self, state: State) -> None:
        self.given = as_count(state)

    def fetch(self, ticket: Ticket) -> Any:
        return self.stage.sample
