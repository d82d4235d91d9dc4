"""torch's DataLoader for map-style data sets, with a state that resumes at the next batch."""

from __future__ import annotations

import functools
import json
import os
import warnings
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.context import current_context
from penstock.errors import MissingPackage, PipelineError, StateError
from penstock.loaders.batch_order import (
    describe_sampler,
    find_sampler,
    restore_order,
    save_order,
)
from penstock.loaders.options import TAKEN_WORKERS
from penstock.loaders.speechbrain import register_hooks
from penstock.pipeline.data_pipeline import DataPipeline
from penstock.pipeline.read_ahead_by_trainers import (
    ReadAhead,
    find_lightning_fetcher,
    is_prepared_by_accelerate,
)
from penstock.pipeline.state import edited, open_sealed, seal, sealed
from penstock.rng import stable_hash
from penstock.stages.run import as_count, inner_datasets, reading_state
from penstock.stages.sources.data_versions import DataVersion, versions_of

try:
    from torch import Generator, empty, int64
    from torch.utils.data import DataLoader, IterableDataset, RandomSampler
except ImportError:
    raise MissingPackage.of("SaveableDataLoader", "torch", "torch") from None

if TYPE_CHECKING:
    Loader = DataLoader[Any]
else:
    Loader = DataLoader

VERSION = 1
MOVED = "moved"
"""Instead of the state of a pipeline that does not begin its next epoch at its first item."""


class SaveableDataLoader(Loader):
    """torch's ``DataLoader``, with the same arguments, that can resume in the middle of an epoch.

    The state counts the batches that the training loop received, not those that workers have
    prepared, and holds the epoch and the seed of the order, also for ``shuffle=True``, or the state
    of the ``generator``. If a custom sampler has ``state_dict``, or ``epoch`` and ``set_epoch``,
    they are saved too. Resuming reads nothing again. The state of another sampler, and of data that
    has changed, raises a :class:`~penstock.errors.StateError`. An ``IterableDataset`` resumes in
    the saved epoch if it has ``epoch`` and ``set_epoch``; the batches before the saved position are
    read again, with a warning: use a :class:`penstock.WebLoader` for a penstock pipeline.

    >>> loader = SaveableDataLoader(range(6), batch_size=2)
    >>> next(iter(loader)).tolist()
    [0, 1]
    >>> other = SaveableDataLoader(range(6), batch_size=2)
    >>> other.load_state_dict(loader.state_dict())
    >>> [batch.tolist() for batch in other]
    [[2, 3], [4, 5]]
    """

    _entries: SamplerEntries | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        register_hooks(SaveableDataLoader, "_speechbrain_save", "_speechbrain_load")
        self._seed: int | None = None
        if isinstance(self.sampler, RandomSampler) and self.sampler.generator is None:
            # Otherwise the order would come from torch's global generator, which is not saved.
            self._seed = int(empty((), dtype=int64).random_().item())
            self.sampler.generator = Generator()
        self._epoch = 0  # passes of this loader
        self._skip = self._given = 0
        self._latest: object = None  # identifies the pass that began last
        self._ahead: ReadAhead | None = None  # if a trainer may take batches ahead
        self._begun: dict[str, Any] | None = None  # the state at the start of the running pass
        self._loaded: dict[str, Any] | None = None
        if not isinstance(self.dataset, IterableDataset):
            self._entries = SamplerEntries(super()._index_sampler)

    # ── running ─────────────────────────────────────────────────────────────────────────

    @property
    def _index_sampler(self) -> Any:
        return self._entries if self._entries is not None else super()._index_sampler

    def __iter__(self) -> Any:
        if self._loaded is not None and self._skip:
            self._restore_order(self._loaded, mid_epoch=not self._is_at_end())
        self._begun, self._given = self._describe_next_pass(), self._skip
        skip, self._skip, self._loaded, self._ahead = self._skip, 0, None, None
        if self._seed is not None:
            order: Any = self.sampler
            order.generator.manual_seed(stable_hash("order", self._seed, self._epoch) >> 1)
        self._epoch += 1
        if self._entries is not None:
            epoch = getattr(self._order(), "next_epoch", None)
            self._entries.begin(skip)
            if "sampler" in self._begun:
                self._begun["sampler"] = self._sampler_state_before(self._entries.first, epoch)
            skip = 0
        stream = super().__iter__()
        for _ in islice(stream, skip):
            pass
        self._latest = latest = object()
        batches = CountedBatches(self, stream, latest)
        if (fetcher := find_lightning_fetcher()) is None:
            return batches
        self._ahead = ReadAhead(fetcher, lambda: self._given)
        return self._ahead.stream(batches)

    def _sampler_state_before(self, first: Any, epoch: Any) -> dict[str, Any]:
        """Return the sampler's state before the first entry of this pass.

        Before ``iter(sampler)`` it could still be the state of a pass that was abandoned.
        """
        order = self._order()
        state: dict[str, Any] = order.state_dict()
        entry = 1 if self._yields_batches() or self.batch_size is None else len(first or ())
        if "position" in state and state.get("epoch") != epoch and first is not None:
            # That entry was the last: the sampler is at the next epoch already.
            return edited(state, epoch=epoch, position=len(order) - entry)
        for name, step in (("given", entry * current_context().world_size), ("position", entry)):
            if name in state and first is not None:
                return edited(state, **{name: max(state[name] - step, 0)})
        return state

    # ── state ───────────────────────────────────────────────────────────────────────────

    def _order(self) -> Any:
        return find_sampler(self)

    def _describe_next_pass(self) -> dict[str, Any]:
        """Return the state of the next pass before its first entry."""
        order = self._order()
        begun = {"epoch": self._epoch, **self._describe_data()}
        if hasattr(order, "state_dict"):
            return {**begun, "sampler": order.state_dict()}
        if self._seed is not None:
            return {**begun, "seed": self._seed}
        return {**begun, "order": save_order(self)}

    def _describe_data(self) -> dict[str, Any]:
        """Return what the data is compared by, and the next epoch of the data set or of those that
        it chains."""
        found: dict[str, Any] = {"versions": {n: v.plain() for n, v in self._versions.items()}}
        if isinstance(self.dataset, IterableDataset):
            found["workers"] = self.num_workers
        return {**found, "datasets": list(map(_describe_dataset, inner_datasets(self.dataset)))}

    @functools.cached_property
    def _versions(self) -> dict[str, DataVersion]:
        return {} if isinstance(self.dataset, DataPipeline) else versions_of(self.dataset)

    def _load_data(self, state: dict[str, Any], changed: str) -> None:
        """Compare the data with that of a state, and set the epochs of the data sets."""
        if state["given"] and state.get("workers", self.num_workers) != self.num_workers:
            raise StateError(
                f"the state was saved with num_workers={state['workers']} and this loader has "
                f"{self.num_workers}: the order of an IterableDataset depends on it"
            )
        for name, version in self._versions.items() if changed == "refuse" else ():
            if name in state.get("versions", {}):
                version.check(state["versions"][name])
        datasets = list(inner_datasets(self.dataset))
        saved = state.get("datasets")
        if saved is None:  # earlier versions saved only the epoch of the loader
            saved = [state["epoch"] if isinstance(d, DataPipeline) else None for d in datasets]
        if len(saved) != len(datasets):
            raise StateError(f"the state is of {len(saved)} data sets, these are {len(datasets)}")
        for dataset, one in zip(datasets, saved):
            if isinstance(one, dict) and isinstance(dataset, DataPipeline):
                dataset.load_state_dict(one, changed=changed)
            elif one is not None:
                dataset.set_epoch(as_count(one))

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the training loop as plain values; call it between batches."""
        self._refuse_accelerate()
        if self._loaded is not None:
            return self._loaded
        begun = self._begun if self._begun is not None else self._describe_next_pass()
        if MOVED in begun["datasets"]:
            raise StateError(
                "call load_state_dict and skip on the loader, not on its data set: the loader has "
                "to know what is skipped"
            )
        given = self._given if self._begun is not None else self._skip
        if self._begun is not None and self._ahead is not None:
            trained = self._ahead.state()
            given = given if trained is None else trained
        if "order" in begun and "sampler" not in begun["order"]:
            begun["order"]["sampler"] = describe_sampler(self)
        state = {"version": VERSION, "kind": self._kind(), **begun, "given": given}
        if "sampler" in state:
            state["sampler"], state["given"] = self._advance_sampler(state["sampler"], given)
        return seal(state)

    def load_state_dict(self, state: dict[str, Any], *, changed: str = "refuse") -> None:
        """Let the next ``iter()`` resume where the state was saved.

        ``changed="accept"`` continues at the same position of data that has changed.
        """
        if changed not in ("refuse", "accept"):
            raise PipelineError(f"changed is 'refuse' or 'accept', not {changed!r}")
        self._refuse_accelerate()
        loaded, state = state, open_sealed(state, "a SaveableDataLoader")
        for what, value in {"version": VERSION, "kind": self._kind()}.items():
            if state.get(what) != value:
                raise StateError(
                    f"the loader's state does not fit: {what} was {state.get(what)!r} when it was "
                    f"saved and is {value!r} now; construct the loader as it was then"
                )
        with reading_state():
            epoch, skip = as_count(state["epoch"]), as_count(state["given"])
            self._load_data(state, changed)
            if "sampler" in state:
                self._order().load_state_dict(state["sampler"])
            elif "order" in state:
                self._seed = None
                self._restore_order(state)
            elif "sampler_epoch" in state:  # of an earlier version
                self._order().set_epoch(as_count(state["sampler_epoch"]))
            elif state.get("seed") is not None:
                self._seed = int(state["seed"])
        self._iterator = None  # persistent workers have started another pass
        self._begun = self._ahead = None
        self._epoch, self._skip = epoch, skip
        if isinstance(self.dataset, IterableDataset) and self._skip:
            warnings.warn(
                f"{type(self.dataset).__name__} can only be read from its beginning: {self._skip} "
                "batches are read again; WebLoader resumes a penstock pipeline at once",
                stacklevel=2,
            )
        self._loaded = loaded

    def _restore_order(self, state: dict[str, Any], mid_epoch: bool = False) -> None:
        """Let the next pass have the order of a state; in the middle of an epoch, another one is an
        error."""
        saved = state.get("order")
        if saved is None:
            return
        with reading_state():
            if mid_epoch and saved["sampler"] != (now := describe_sampler(self)):
                raise StateError(
                    f"the state is of other batches: the sampler was {saved['sampler']} and is "
                    f"{now}; construct the loader as it was then"
                )
            restore_order(self, saved, mid_epoch)

    def _is_at_end(self) -> bool:
        """Return whether all batches of the loaded epoch had come, so that their order does not
        matter."""
        try:
            return self._skip >= len(self)
        except TypeError:
            return False

    def _refuse_accelerate(self) -> None:
        if is_prepared_by_accelerate(self.dataset):
            raise StateError(
                "Accelerator.prepare made another loader of this one's data set, so the position "
                "is not known here: iterate this loader itself, and pass it to "
                "accelerator.register_for_checkpointing instead of prepare"
            )

    def _advance_sampler(self, sampler: dict[str, Any], given: int) -> tuple[dict[str, Any], int]:
        """Return a sampler's state advanced by ``given`` batches, and how many are left to skip."""
        whole = self._yields_batches()
        if "given" in sampler and whole:  # a plan, which all ranks advance through together
            taken = given * current_context().world_size
            return edited(sampler, given=sampler["given"] + taken), 0
        if "position" in sampler:
            entries = given * (1 if whole else self.batch_size or 1)
            return edited(sampler, position=sampler["position"] + entries), 0
        return sampler, given

    def _yields_batches(self) -> bool:
        """Return whether an entry of the order is a batch."""
        return self._order() is super()._index_sampler

    def _kind(self) -> str:
        order = self._order()
        return f"{type(order).__name__}, batch_size={self.batch_size}"

    # ── files of SpeechBrain's Checkpointer ─────────────────────────────────────────────

    def _speechbrain_save(self, path: str | os.PathLike[str]) -> None:
        Path(path).write_text(json.dumps(self.state_dict()))

    def _speechbrain_load(self, path: str | os.PathLike[str], end_of_epoch: bool) -> None:
        if self._begun is not None:
            return  # too late: an iteration has started
        with reading_state():
            text = Path(path).read_text()
            state = None if text.strip() == "None" else json.loads(text)
        if isinstance(state, dict):
            self.load_state_dict(state)
            if end_of_epoch and (state["given"] or _is_mid_epoch(state.get("sampler", {}))):
                self._next_epoch()
        elif state is not None and not end_of_epoch:  # SpeechBrain's own: a number of batches
            self._skip = int(state)

    def _next_epoch(self) -> None:
        """Skip the rest of the epoch of a loaded state."""
        order, self._loaded, self._skip = self._order(), None, 0
        self._epoch += 1
        if hasattr(order, "set_epoch"):
            order.set_epoch(order.epoch + 1)


def _describe_dataset(dataset: Any) -> Any:
    """Return the state of a pipeline before its next epoch; of other data sets, the epoch."""
    if isinstance(dataset, DataPipeline):
        return sealed(dataset.next_epoch_state()) if dataset.is_at_start() else MOVED
    epoch = getattr(dataset, "epoch", None)
    return epoch if isinstance(epoch, int) and hasattr(dataset, "set_epoch") else None


def _is_mid_epoch(sampler: dict[str, Any]) -> bool:
    return bool(sampler.get("given") or sampler.get("position"))


class CountedBatches:
    """The batches of one pass, counted as they are yielded."""

    def __init__(self, loader: SaveableDataLoader, stream: Any, mark: object) -> None:
        self.loader, self.stream, self.mark = loader, stream, mark

    def __iter__(self) -> CountedBatches:
        return self

    def __len__(self) -> int:
        return len(self.stream)

    def __next__(self) -> Any:
        if self.loader.persistent_workers and self.loader._latest is not self.mark:
            raise PipelineError(TAKEN_WORKERS)
        try:
            batch = next(self.stream)
        except StopIteration:
            self.loader._begun = None
            raise
        self.loader._given += 1
        return batch


class SamplerEntries:
    """The entries of a sampler, iterated once per pass of the loader, from a given position.

    With workers torch calls ``iter()`` twice and uses the second; with persistent workers it keeps
    this object from pass to pass.
    """

    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler
        self.first: Any = None  # first entry of this pass; None if there is none
        self._rest: Iterator[Any] = iter(())

    def begin(self, skip: int) -> None:
        """Start a pass after the first ``skip`` entries."""
        entries = islice(iter(self.sampler), skip, None)
        self.first = next(entries, None)
        self._rest = chain([] if self.first is None else [self.first], entries)

    def __len__(self) -> int:
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        return self._rest
