"""What is mixed, and how: enough to plan a mixture again from a state."""

from __future__ import annotations

import base64
import dataclasses
import json
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from penstock.errors import PipelineError, StateError
from penstock.rng import stable_hash
from penstock.stages.sources.indexed_samples import IndexedSamples
from penstock.stages.sources.mix_plan import MODES, UNTIL, Schedule
from penstock.stages.stage import Each


@dataclasses.dataclass
class MixtureSource:
    """One source of a mixture: its name, its samples, and what happens to them."""

    name: str
    samples: IndexedSamples
    seed: int | None = None
    stages: tuple[Each[Any, Any], ...] = ()
    tags: Mapping[str, Any] | None = None
    identity: str = ""
    """A digest of everything that decides the samples and how they are transformed."""
    former_identity: str = ""
    """The digest that earlier versions made."""

    def seed_for(self, seed: int) -> int:
        return stable_hash("source", seed, self.name) if self.seed is None else self.seed


@dataclasses.dataclass
class Mixture:
    """The definition of a mixture without its samples: enough to plan it again from a state."""

    names: list[str]
    weights: list[Schedule] | None
    mode: str
    until: str
    identities: list[str]
    limits: list[int] | None = None
    """In modes that end after a number of samples of each source."""
    former_identities: list[str] = dataclasses.field(default_factory=list)
    """Those that states of earlier versions may have."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise PipelineError(f"mix: mode is one of {MODES}, not {self.mode!r}")
        if self.until not in UNTIL:
            raise PipelineError(f"mix: until is one of {UNTIL}, not {self.until!r}")
        if self.mode == "epochs":
            if self.weights is not None and not all(w.constant for w in self.weights):
                raise PipelineError("mix: in mode 'epochs' weights are numbers of passes")
            if self.weights is not None and self.until != "first":
                raise PipelineError(
                    "mix: in mode 'epochs' the weights decide the end: leave out until"
                )
        if self.weights is not None and all(weight.zero for weight in self.weights):
            raise PipelineError("mix: the weights of all sources are 0")

    @property
    def limited(self) -> bool:
        return self.weights is None or self.mode == "epochs" or self.until == "each"

    @property
    def active(self) -> list[int]:
        """The sources that take part at some time."""
        if self.weights is None:
            return list(range(len(self.names)))
        return [number for number, weight in enumerate(self.weights) if not weight.zero]

    def plain(self) -> list[Any]:
        """Return it as plain values."""
        weights = None if self.weights is None else [w.plain() for w in self.weights]
        # One text: a list of a thousand would be half of a state.
        identities = " ".join(self.identities)
        return [self.mode, self.until, self.names, weights, identities, self.limits]

    @classmethod
    def of_plain(cls, values: Sequence[Any]) -> Mixture:
        mode, until, names, weights, identities, limits = values
        if weights is not None:
            weights = [Schedule(_points(w), n) for w, n in zip(weights, names)]
        return cls(names, weights, mode, until, identities.split(" "), limits)

    def differences(self, other: Mixture) -> list[str]:
        """List what another mixture has that this one lacks."""
        found = [
            f"{what} was {getattr(other, what)!r} and is {getattr(self, what)!r}"
            for what in ("mode", "until")
            if getattr(other, what) != getattr(self, what)
        ]
        then, now = other._table(), self._table()
        for name in then.keys() | now.keys():
            if name not in now:
                found.append(f"the source {name!r} is gone")
            elif name not in then:
                found.append(f"the source {name!r} is new")
            else:
                if then[name][0] != now[name][0]:
                    weights = f"was {then[name][0]} and is {now[name][0]}"
                    found.append(f"the weight of {name!r} {weights}")
                if then[name][1] not in now[name][1:]:
                    found.append(f"the shards or stages of {name!r} are others")
        kept = [name for name in other.names if name in now]
        if kept != [name for name in self.names if name in then]:
            found.append(f"the order of the sources was {kept}")
        return sorted(found)

    def check(self, saved: Mixture, change: str) -> bool:
        """Return whether the mixture of a state differs; raise an error if it may not."""
        found = self.differences(saved)
        if found and change != "continue":
            more = f", and {len(found) - 5} more" if len(found) > 5 else ""
            raise StateError(
                f"the state is of another mixture: {'; '.join(found[:5])}{more}. Say "
                "load_state_dict(state, mixture='continue') to continue with this one"
            )
        return bool(found)

    def check_positions(self, saved: Mixture) -> None:
        """Raise an error for a source whose saved position means other samples."""
        now = self._table()
        for name, identity in zip(saved.names, saved.identities):
            if name in now and identity not in now[name][1:]:
                raise StateError(
                    f"the shards, stages, seed or shuffling of the source {name!r} are others, so "
                    "its position means other samples: give the changed source another name, and "
                    "leave the old one out or set its weight to 0"
                )

    @property
    def former(self) -> Mixture:
        """The mixture as earlier versions wrote it."""
        return dataclasses.replace(self, identities=self.former_identities or self.identities)

    def _table(self) -> dict[str, tuple[Any, str, str]]:
        """Return weight, identity and former identity of each source."""
        weights = [None] * len(self.names) if self.weights is None else self.weights
        plain = [None if weight is None else weight.plain() for weight in weights]
        return dict(zip(self.names, zip(plain, self.identities, self.former.identities)))


def _points(weight: Any) -> Any:
    if not isinstance(weight, Mapping):
        return weight
    return {kind: dict(points) for kind, points in weight.items()}


MOST_PACKED_BYTES = 16 << 20
"""What a mixture of 100,000 sources takes; a damaged state must not fill the memory."""


def pack_values(values: Any) -> str:
    """Return plain values as a short text."""
    return base64.b64encode(zlib.compress(json.dumps(values).encode(), 9)).decode()


def unpack_values(text: str) -> Any:
    """Unpack the result of :func:`pack_values`."""
    try:
        unpacking = zlib.decompressobj()
        data = unpacking.decompress(base64.b64decode(text), MOST_PACKED_BYTES)
        if not unpacking.eof:
            raise ValueError(f"it is cut, or has more than {MOST_PACKED_BYTES:,} bytes")
        return json.loads(data)
    except (TypeError, ValueError, RecursionError, zlib.error) as error:
        raise StateError(f"the state of the mixture is damaged: {error}") from None
