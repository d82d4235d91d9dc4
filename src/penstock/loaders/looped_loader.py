"""An endless loader, in epochs of a fixed number of batches."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from penstock.batches.padding.padded_batch import BatchsizeGuesser
from penstock.errors import PipelineError, StateError
from penstock.loaders.speechbrain import as_speechbrain_class, register_hooks
from penstock.pipeline.state import open_sealed, seal
from penstock.stages.run import as_count, reading_state


class LoopedLoader:
    """Yields ``epoch_length`` batches per epoch from a loader that restarts whenever it ends.

    Each epoch continues where the previous one stopped, so that every sample of the loader is
    used. ``step`` counts the batches of this epoch, ``total_steps`` and ``total_samples`` those of
    all epochs; ``batchsize_fn`` returns the number of samples in a batch.

    :meth:`state_dict` includes the loader's state, so resuming is exact. If the loader has no
    state, only the counts are saved, with a warning. A loader that yields nothing raises a
    :class:`~penstock.errors.PipelineError`.

    If SpeechBrain is loaded, its ``Brain.fit`` accepts this loader and its ``Checkpointer`` saves
    it.

    >>> looped = LoopedLoader([[1, 2], [3], [4]], epoch_length=2, batchsize_fn=len)
    >>> list(looped), list(looped), looped.total_samples
    ([[1, 2], [3]], [[4], [1, 2]], 6)
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        register_hooks(LoopedLoader, "save", "load")
        return super().__new__(as_speechbrain_class(cls, "LoopedLoader"))

    def __init__(
        self, loader: Any, epoch_length: int, batchsize_fn: Callable[[Any], int] | None = None
    ) -> None:
        if epoch_length < 1:
            raise PipelineError(f"epoch_length must be at least 1, not {epoch_length}")
        self.loader, self.epoch_length = loader, epoch_length
        self.batchsize_fn = batchsize_fn if batchsize_fn is not None else BatchsizeGuesser()
        self.step = self.total_steps = self.total_samples = 0
        self._stream: Iterator[Any] | None = None

    def __len__(self) -> int:
        return self.epoch_length

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.step >= self.epoch_length:
            self.step = 0
            raise StopIteration
        if self._stream is None:
            self._stream = self._iterate_forever()
        batch = next(self._stream)
        self.step += 1
        self.total_steps += 1
        self.total_samples += int(self.batchsize_fn(batch))
        return batch

    def _iterate_forever(self) -> Iterator[Any]:
        empty = 0  # one empty pass is allowed: a state saved at the end of an epoch
        while empty < 2:
            empty += 1
            for batch in self.loader:
                empty = 0
                yield batch
        raise PipelineError(f"the loader yields nothing, so it cannot be looped: {self.loader!r}")

    def state_dict(self) -> dict[str, Any]:
        """Return the counts and the loader's state; after the last step of an epoch, step is 0."""
        state = {name: getattr(self, name) for name in COUNTS}
        state["step"] %= self.epoch_length  # so that it fits any epoch_length on resume
        if hasattr(self.loader, "state_dict"):
            state["loader"] = self.loader.state_dict()
        return seal(state)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume where the state was saved; after the last step of an epoch, with the next one."""
        state = open_sealed(state, "a LoopedLoader")
        if not set(COUNTS) <= set(state):
            raise StateError(f"not a state of a LoopedLoader: it has no {', '.join(COUNTS)}")
        counts = {name: as_count(state[name]) for name in COUNTS}
        for name, count in counts.items():
            setattr(self, name, count)
        if self.step >= self.epoch_length:
            self.step = 0
        self._stream = None
        if "loader" in state and hasattr(self.loader, "load_state_dict"):
            self.loader.load_state_dict(state["loader"])
        else:
            warnings.warn(
                f"{type(self.loader).__name__} has no state, or the saved state lacks it: the "
                "counts continue, and the data starts from the beginning",
                stacklevel=2,
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file."""
        Path(path).write_text(json.dumps(self.state_dict()))

    def load(self, path: str | os.PathLike[str], end_of_epoch: bool = True) -> None:
        """Resume from a file that :meth:`save` or SpeechBrain's loader has written.

        A checkpoint at the end of an epoch begins the next one. In the middle of an epoch whose
        batches have all been given, such as during validation, the next iteration yields nothing:
        SpeechBrain's ``Brain`` then ends that epoch, as it would have without the interruption.
        """
        text = Path(path).read_text()
        lines = text.split()
        if len(lines) == len(COUNTS) and all(line.isdigit() for line in lines):
            state: dict[str, Any] = dict(zip(COUNTS, map(int, lines)))
        else:
            with reading_state():
                state = json.loads(text)
        self.load_state_dict(state)
        if end_of_epoch:
            self.step = 0
        elif self.step == 0 and self.total_steps:
            self.step = self.epoch_length


COUNTS = ("step", "total_steps", "total_samples")
