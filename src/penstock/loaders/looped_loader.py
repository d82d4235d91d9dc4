"""A loader without end, cut into nominal epochs."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from penstock.batches.padding.padded_batch import BatchsizeGuesser
from penstock.errors import PipelineError, StateError


class LoopedLoader:
    """Gives ``epoch_length`` batches per epoch, from a loader that begins anew whenever it ends.

    Each epoch goes on where the one before stopped, so that every sample of the loader has its
    turn. ``step`` counts the batches of this epoch, ``total_steps`` and ``total_samples`` those of
    all; ``batchsize_fn`` tells how many samples a batch has.

    :meth:`state_dict` has the loader's state in it, and goes on exactly; of a loader that has
    none, only the counts are kept, with a warning. A loader that gives nothing is a
    :class:`~penstock.errors.PipelineError`.

    >>> looped = LoopedLoader([[1, 2], [3], [4]], epoch_length=2, batchsize_fn=len)
    >>> list(looped), list(looped), looped.total_samples
    ([[1, 2], [3]], [[4], [1, 2]], 6)
    """

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
            self._stream = self._without_end()
        batch = next(self._stream)
        self.step += 1
        self.total_steps += 1
        self.total_samples += int(self.batchsize_fn(batch))
        return batch

    def _without_end(self) -> Iterator[Any]:
        empty = 0  # one pass may be: the rest of an epoch that a state stood at the end of
        while empty < 2:
            empty += 1
            for batch in self.loader:
                empty = 0
                yield batch
        raise PipelineError(f"the loader gives nothing, so it cannot be looped: {self.loader!r}")

    def state_dict(self) -> dict[str, Any]:
        """The counts, and where the loader stands."""
        state = {name: getattr(self, name) for name in COUNTS}
        if hasattr(self.loader, "state_dict"):
            state["loader"] = self.loader.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken; after the last step of an epoch, with the next one."""
        if not set(COUNTS) <= set(state):
            raise StateError(f"not a state of a LoopedLoader: it has no {', '.join(COUNTS)}")
        for name in COUNTS:
            setattr(self, name, int(state[name]))
        if self.step >= self.epoch_length:
            self.step = 0
        self._stream = None
        if "loader" in state and hasattr(self.loader, "load_state_dict"):
            self.loader.load_state_dict(state["loader"])
        else:
            warnings.warn(
                f"{type(self.loader).__name__} has no state, or the saved one is without it: the "
                "counts go on, and the data begins anew",
                stacklevel=2,
            )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a file."""
        Path(path).write_text(json.dumps(self.state_dict()))

    def load(self, path: str | os.PathLike[str], end_of_epoch: bool = True) -> None:
        """Go on from a file; at the end of an epoch the next one begins.

        A file of SpeechBrain's, three lines of counts, is understood too.
        """
        text = Path(path).read_text()
        lines = text.split()
        if len(lines) == len(COUNTS) and all(line.isdigit() for line in lines):
            state: dict[str, Any] = dict(zip(COUNTS, map(int, lines)))
        else:
            state = json.loads(text)
        self.load_state_dict(state)
        if end_of_epoch:
            self.step = 0


COUNTS = ("step", "total_steps", "total_samples")
