"""torch's DataLoader for map-style data sets, with a state that says which batch comes next."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.context import here, mixed
from penstock.errors import MissingPackage, StateError

try:
    from torch import Generator, empty, int64
    from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler
except ImportError:
    raise MissingPackage.of("SaveableDataLoader", "torch", "torch") from None

if TYPE_CHECKING:
    Loader = DataLoader[Any]
else:
    Loader = DataLoader

VERSION = 1


class SaveableDataLoader(Loader):
    """torch's ``DataLoader``, of the same arguments, that can go on in the middle of an epoch.

    The state counts the batches that the training loop was given, not those that workers have
    prepared, and knows the epoch and the seed of the order, also of ``shuffle=True``. What a
    sampler of one's own has as ``state_dict``, or as ``epoch`` and ``set_epoch``, is kept with it.
    Going on reads nothing again. A state of another sampler is refused with a
    :class:`~penstock.errors.StateError`. Of an ``IterableDataset`` the batches up to the state
    are read again, with a warning: a penstock pipeline goes into a :class:`penstock.WebLoader`.

    >>> loader = SaveableDataLoader(range(6), batch_size=2)
    >>> next(iter(loader)).tolist()
    [0, 1]
    >>> other = SaveableDataLoader(range(6), batch_size=2)
    >>> other.load_state_dict(loader.state_dict())
    >>> [batch.tolist() for batch in other]
    [[2, 3], [4, 5]]
    """

    _entries: Entries | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._seed: int | None = None
        if isinstance(self.sampler, RandomSampler) and self.sampler.generator is None:
            # Else the order would be drawn from torch's global generator, and be gone with it.
            self._seed = int(empty((), dtype=int64).random_().item())
            self.sampler.generator = Generator()
        self._epoch = 0  # passes of this loader
        self._skip = self._given = 0
        self._begun: dict[str, Any] | None = None  # where the running pass began
        self._loaded: dict[str, Any] | None = None
        if not isinstance(self.dataset, IterableDataset):
            self._entries = Entries(super()._index_sampler)

    # ── running ─────────────────────────────────────────────────────────────────────────

    @property
    def _index_sampler(self) -> Any:
        return self._entries if self._entries is not None else super()._index_sampler

    def __iter__(self) -> Any:
        self._begun, self._given = self._beginning(), self._skip
        skip, self._skip, self._loaded = self._skip, 0, None
        if self._seed is not None:
            order: Any = self.sampler
            order.generator.manual_seed(mixed("order", self._seed, self._epoch) >> 1)
        self._epoch += 1
        if self._entries is not None:
            epoch = getattr(self._order(), "next_epoch", None)
            self._entries.begin(skip)
            if "sampler" in self._begun:
                self._begun["sampler"] = self._before(self._entries.first, epoch)
            return Counted(self, super().__iter__())
        stream = super().__iter__()
        for _ in islice(stream, skip):
            pass
        return Counted(self, stream)

    def _before(self, first: Any, epoch: Any) -> dict[str, Any]:
        """The sampler's state before the first entry of this pass.

        Asked for before the pass, it would be that of another one which was left in the middle.
        """
        order = self._order()
        state: dict[str, Any] = order.state_dict()
        entry = 1 if self._whole() or self.batch_size is None else len(first or ())
        if "position" in state and state.get("epoch") != epoch and first is not None:
            # That entry was the last: the sampler stands at the next epoch already.
            return {**state, "epoch": epoch, "position": len(order) - entry}
        for name, step in (("given", entry * here().world_size), ("position", entry)):
            if name in state and first is not None:
                return {**state, name: max(state[name] - step, 0)}
        return state

    # ── state ───────────────────────────────────────────────────────────────────────────

    def _order(self) -> Any:
        """What decides the order: the batch sampler, or the sampler that it takes from."""
        plain = super()._index_sampler
        return plain.sampler if type(plain) is BatchSampler else plain

    def _beginning(self) -> dict[str, Any]:
        """The order of the pass that comes next, before anything is taken from it."""
        order = self._order()
        if hasattr(order, "state_dict"):
            return {"epoch": self._epoch, "sampler": order.state_dict()}
        if hasattr(order, "set_epoch") and hasattr(order, "epoch"):
            return {"epoch": self._epoch, "sampler_epoch": order.epoch}
        return {"epoch": self._epoch, "seed": self._seed}

    def state_dict(self) -> dict[str, Any]:
        """Where the training loop stands, in plain values: take it between two batches."""
        if self._loaded is not None:
            return self._loaded
        begun = self._begun if self._begun is not None else self._beginning()
        given = self._given if self._begun is not None else self._skip
        state = {"version": VERSION, "kind": self._kind(), **begun, "given": given}
        if "sampler" in state:
            state["sampler"], state["given"] = self._advanced(state["sampler"], given)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Let the next ``iter()`` go on where the state was taken."""
        for what, value in {"version": VERSION, "kind": self._kind()}.items():
            if state.get(what) != value:
                raise StateError(
                    f"the loader's state does not fit: {what} was {state.get(what)!r} when it was "
                    f"saved and is {value!r} now; make the loader as it was then"
                )
        self._iterator = None  # workers that persist have begun another pass
        self._begun = None
        self._epoch, self._skip = state["epoch"], state["given"]
        if "sampler" in state:
            self._order().load_state_dict(state["sampler"])
        elif "sampler_epoch" in state:
            self._order().set_epoch(state["sampler_epoch"])
        elif state.get("seed") is not None:
            self._seed = state["seed"]
        if isinstance(self.dataset, IterableDataset) and self._skip:
            warnings.warn(
                f"{type(self.dataset).__name__} can only be read from its beginning: {self._skip} "
                "batches are read again; WebLoader goes on at once with a penstock pipeline",
                stacklevel=2,
            )
        self._loaded = state

    def _advanced(self, sampler: dict[str, Any], given: int) -> tuple[dict[str, Any], int]:
        """A sampler's state moved on by so many batches, and how many are left to skip."""
        whole = self._whole()
        if "given" in sampler and whole:  # a plan, which all ranks go through together
            return {**sampler, "given": sampler["given"] + given * here().world_size}, 0
        if "position" in sampler:
            entries = given * (1 if whole else self.batch_size or 1)
            return {**sampler, "position": sampler["position"] + entries}, 0
        return sampler, given

    def _whole(self) -> bool:
        """Whether an entry of the order is a batch."""
        return self._order() is super()._index_sampler

    def _kind(self) -> str:
        order = self._order()
        return f"{type(order).__name__}, batch_size={self.batch_size}"

    # ── files, by the names that SpeechBrain's checkpointer knows ───────────────────────

    def _speechbrain_save(self, path: str | os.PathLike[str]) -> None:
        Path(path).write_text(json.dumps(self.state_dict()))

    def _speechbrain_load(self, path: str | os.PathLike[str], end_of_epoch: bool) -> None:
        if self._begun is not None:
            return  # an iteration has begun: too late
        text = Path(path).read_text()
        state = None if text.strip() == "None" else json.loads(text)
        if isinstance(state, dict):
            self.load_state_dict(state)
            if end_of_epoch and (state["given"] or _in_the_middle(state.get("sampler", {}))):
                self._next_epoch()
        elif state is not None and not end_of_epoch:  # SpeechBrain's own: a number of batches
            self._skip = int(state)

    def _next_epoch(self) -> None:
        """Leave out the rest of the epoch that a loaded state stands in."""
        order, self._loaded, self._skip = self._order(), None, 0
        self._epoch += 1
        if hasattr(order, "set_epoch"):
            order.set_epoch(order.epoch + 1)


def _in_the_middle(sampler: dict[str, Any]) -> bool:
    return bool(sampler.get("given") or sampler.get("position"))


class Counted:
    """The batches of one pass, counted as they are given."""

    def __init__(self, loader: SaveableDataLoader, stream: Any) -> None:
        self.loader, self.stream = loader, stream

    def __iter__(self) -> Counted:
        return self

    def __len__(self) -> int:
        return len(self.stream)

    def __next__(self) -> Any:
        try:
            batch = next(self.stream)
        except StopIteration:
            self.loader._begun = None
            raise
        self.loader._given += 1
        return batch


class Entries:
    """What a sampler gives, taken up once per pass of the loader, where that is to begin.

    torch calls ``iter()`` twice where there are workers, and uses the second; with workers that
    persist it keeps this object from pass to pass.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.first: Any = None  # entry of this pass; None where there is none
        self._rest: Iterator[Any] = iter(())

    def begin(self, skip: int) -> None:
        """Begin a pass behind the first ``skip`` entries."""
        entries = islice(iter(self.sampler), skip, None)
        self.first = next(entries, None)
        self._rest = chain([] if self.first is None else [self.first], entries)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        return self._rest
