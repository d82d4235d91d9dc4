"""The base of all samplers: the epoch, the position in it, and a state of both.

An order is a function of the seed and the epoch. The epoch increases with each pass, also with an
abandoned one, so ``set_epoch`` is not needed; calling it with 0, 1, 2, … changes nothing.
``state_dict`` counts the items that the sampler has yielded: a ``DataLoader`` that prefetches has
taken more than the trainer has seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.errors import StateError, optional
from penstock.pipeline.state import open_sealed, seal
from penstock.stages.run import as_count, reading_state

MOST_EPOCHS = 1 << 40
"""More are a damaged state: with the seed, the number of an epoch is a seed of torch."""


class EpochOrder(ABC):
    """An order per epoch, for ``sampler=`` or ``batch_sampler=`` of a loader; the base class."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self._position = 0
        self._resume = 0
        self._begun = False  # a pass has started and not ended

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of items in a pass."""

    @abstractmethod
    def _pass(self, begin: int) -> Iterable[Any]:
        """Return the items of this epoch from position ``begin``."""

    @abstractmethod
    def order_identity(self) -> dict[str, Any]:
        """Return plain values that must be equal for a state to fit."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass."""
        self._begun = False
        if epoch != self.epoch:
            self.epoch, self._position, self._resume = epoch, 0, 0

    @property
    def next_epoch(self) -> int:
        """The epoch of the next pass: after an abandoned pass, the one after it."""
        return self.epoch + self._begun

    def __iter__(self) -> Iterator[Any]:
        return EpochPass(self._items())

    def _items(self) -> Iterator[Any]:
        begin, self._resume = self._resume, 0
        if self._begun:
            self._skip_to_next_epoch()
        self._begun, self._position, epoch = True, begin, self.epoch
        for item in self._pass(begin):
            self._position += 1
            yield item
        self._begun, self.epoch, self._position = False, epoch + 1, 0

    def _skip_to_next_epoch(self) -> None:
        """Abandon the current pass and go to the next epoch."""
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the position in the pass as plain values."""
        return seal({"version": 1, **self._describe(), **self._at()})

    def _at(self) -> dict[str, Any]:
        """Return the position in the pass."""
        return {"epoch": self.epoch, "position": self._resume or self._position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass resume where the state was saved; raise if it does not fit."""
        state = open_sealed(state, "a sampler")
        for name, value in {"version": 1, **self._describe()}.items():
            if state.get(name) != value:
                raise StateError(
                    f"the sampler's state does not fit: {name} was {state.get(name)!r} when it was "
                    f"saved and is {value!r} now; construct the sampler as it was then"
                )
        with reading_state():
            self._move_to(state)

    def _move_to(self, state: dict[str, Any]) -> None:
        """Go to the position of :meth:`_at`."""
        epoch, position = as_count(state["epoch"], MOST_EPOCHS), as_count(state["position"])
        self._begun, self.epoch = False, epoch
        self._position = self._resume = position

    def _describe(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, **self.order_identity()}


class EpochPass(Iterator[Any]):
    """The items of one pass, with a state that holds whether the pass has ended.

    torchdata saves the iterator together with its sampler. It exhausts the sampler while it makes
    the last, short batch. The sampler's state is then the next epoch, which must not start before
    the loader's epoch has ended.
    """

    def __init__(self, items: Iterator[Any]) -> None:
        self._items = items
        self._ended = False

    def __next__(self) -> Any:
        for item in self._items:
            return item
        self._ended = True
        raise StopIteration

    def state_dict(self) -> dict[str, Any]:
        """Return whether the pass has ended; the position is in the sampler's state."""
        return seal({"ended": self._ended})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """End this pass if the saved one had ended."""
        if open_sealed(state, "a sampler's pass").get("ended"):
            self._items, self._ended = iter(()), True


class PlannedOrder(EpochOrder):
    """An order with random access to every epoch, so resuming costs no more than starting."""

    def __init__(self, epoch: int = 0) -> None:
        super().__init__(epoch)
        self._cached_plan: tuple[int, Sequence[Any]] | None = None

    @abstractmethod
    def _plan(self, epoch: int) -> Sequence[Any]:
        """Return all items of an epoch."""

    def plan(self, epoch: int | None = None) -> Sequence[Any]:
        """Return all items of this epoch, or of another one, without starting a pass."""
        epoch = self.epoch if epoch is None else epoch
        if self._cached_plan is None or self._cached_plan[0] != epoch:
            self._cached_plan = None  # two plans at a time would take twice the memory
            self._cached_plan = epoch, self._plan(epoch)
        return self._cached_plan[1]

    def _pass(self, begin: int) -> Iterable[Any]:
        return self.plan()[begin:]

    def __getstate__(self) -> dict[str, Any]:
        # Workers compute the plan again instead of receiving it.
        return {**self.__dict__, "_cached_plan": None}


def torch_generator(seed: int) -> Any:
    """Return torch's generator with a seed; only it reproduces the orders of other libraries."""
    torch = optional("torch", "torch", "an order as torch draws it")
    return torch.Generator().manual_seed(seed)


def torch_permutation(count: int, generator: Any) -> Any:
    """Return ``torch.randperm(count)`` as an array.

    >>> torch_permutation(4, torch_generator(1)).tolist()
    [1, 3, 2, 0]
    """
    import torch

    # Half the memory if the numbers fit; the order is the same.
    dtype = torch.int32 if count < 2**31 else torch.int64
    return torch.randperm(count, generator=generator, dtype=dtype).numpy()
