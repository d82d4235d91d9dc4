"""What all samplers share: an epoch that goes up by itself, a place in it, and a state of both.

An order is a function of the seed and the epoch. The epoch goes up with each pass, also with one
that is left in the middle, and where nobody calls ``set_epoch``; where somebody does, with the
numbers 0, 1, 2…, that changes nothing.
``state_dict`` says how far the current pass has come, counted in items handed out: a
``DataLoader`` that works ahead has taken more than the trainer has seen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.errors import MissingPackage, StateError


class EpochOrder(ABC):
    """An order per epoch, as ``sampler=`` or ``batch_sampler=`` of a loader; the samplers' base."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self._position = 0
        self._resume = 0
        self._begun = False  # a pass, which is not through

    @abstractmethod
    def __len__(self) -> int:
        """How many items a pass has."""

    @abstractmethod
    def _pass(self, begin: int) -> Iterable[Any]:
        """The items of this epoch from that place on."""

    @abstractmethod
    def _identity(self) -> dict[str, Any]:
        """What must be the same for a state to fit: a few plain values."""

    def set_epoch(self, epoch: int) -> None:
        """The epoch of the next pass."""
        self._begun = False
        if epoch != self.epoch:
            self.epoch, self._position, self._resume = epoch, 0, 0

    @property
    def next_epoch(self) -> int:
        """The epoch of the next pass: where one was left in the middle, the one behind it."""
        return self.epoch + self._begun

    def __iter__(self) -> Iterator[Any]:
        begin, self._resume = self._resume, 0
        if self._begun:
            self._leave()
        self._begun, self._position, epoch = True, begin, self.epoch
        for item in self._pass(begin):
            self._position += 1
            yield item
        self._begun, self.epoch, self._position = False, epoch + 1, 0

    def _leave(self) -> None:
        """Go to the next epoch, from the middle of one."""
        self.epoch += 1

    def state_dict(self) -> dict[str, Any]:
        """How far the pass has come: a few plain values."""
        position = self._resume or self._position
        return {"version": 1, **self._told(), "epoch": self.epoch, "position": position}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next pass go on where the state was taken; one that does not fit is refused."""
        for name, value in {"version": 1, **self._told()}.items():
            if state.get(name) != value:
                raise StateError(
                    f"the sampler's state does not fit: {name} was {state.get(name)!r} when it was "
                    f"saved and is {value!r} now; make the sampler as it was then"
                )
        self._begun, self.epoch = False, int(state["epoch"])
        self._position = self._resume = int(state["position"])

    def _told(self) -> dict[str, Any]:
        return {"kind": type(self).__name__, **self._identity()}


class PlannedOrder(EpochOrder):
    """An order that has any item of any epoch at once: going on costs no more than beginning."""

    def __init__(self, epoch: int = 0) -> None:
        super().__init__(epoch)
        self._kept: tuple[int, Sequence[Any]] | None = None

    @abstractmethod
    def _plan(self, epoch: int) -> Sequence[Any]:
        """All items of an epoch."""

    def plan(self, epoch: int | None = None) -> Sequence[Any]:
        """All items of this epoch, or of another one, without beginning a pass."""
        epoch = self.epoch if epoch is None else epoch
        if self._kept is None or self._kept[0] != epoch:
            self._kept = None  # two plans at a time would take twice the memory
            self._kept = epoch, self._plan(epoch)
        return self._kept[1]

    def _pass(self, begin: int) -> Iterable[Any]:
        return self.plan()[begin:]

    def __getstate__(self) -> dict[str, Any]:
        # A plan is made again from what it is a function of; workers need not be sent it.
        return {**self.__dict__, "_kept": None}


def torch_generator(seed: int) -> Any:
    """torch's generator with that seed: it alone gives the orders that other libraries give."""
    try:
        import torch
    except ImportError:
        raise MissingPackage.of("an order as torch draws it", "torch", "torch") from None
    return torch.Generator().manual_seed(seed)


def torch_permutation(count: int, generator: Any) -> Any:
    """The numbers below ``count`` as ``torch.randperm`` orders them, as an array.

    >>> torch_permutation(4, torch_generator(1)).tolist()
    [1, 3, 2, 0]
    """
    import torch

    # Half the memory where the numbers allow it; the order is the same.
    dtype = torch.int32 if count < 2**31 else torch.int64
    return torch.randperm(count, generator=generator, dtype=dtype).numpy()
