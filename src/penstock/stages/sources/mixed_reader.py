"""Read the samples of a mixture by row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.shards.sample_reader import Sample
from penstock.storage.urls import is_remote

if TYPE_CHECKING:
    from penstock.stages.sources.mixed_samples import MixedSamples


class MixedReader:
    """Reads the samples of a mixture.

    A row is that of the source times the number of sources, plus the number of the source.
    """

    def __init__(self, stage: MixedSamples) -> None:
        self.stage = stage
        self.remote = any(
            part.samples.reader.remote
            if hasattr(part.samples, "parts")
            else any(map(is_remote, part.samples.urls[:1]))
            for part in stage.parts
        )

    def prepare(self) -> None:
        """Do nothing: indexes are loaded when they are first used."""

    def read(self, row: int, later: bool = False) -> Sample:
        """Read the sample of a row."""
        inner, number = divmod(row, self.stage.radix)
        sample: Sample = self.stage.reader_of(number)(inner, later)
        return self._mark(sample, number)

    def read_many(self, rows: Sequence[int]) -> list[Sample]:
        """Read the samples of several rows, in that order; those of one source in one bulk read."""
        wanted: dict[int, list[int]] = {}
        for place, row in enumerate(rows):
            wanted.setdefault(row % self.stage.radix, []).append(place)
        samples: list[Sample] = [{}] * len(rows)
        for number, places in wanted.items():
            inner = [rows[place] // self.stage.radix for place in places]
            for place, sample in zip(places, self.read_source(number, inner)):
                samples[place] = sample
        return samples

    def read_source(self, number: int, rows: Sequence[int]) -> list[Sample]:
        """Read the samples of several rows of one source."""
        samples: list[Sample] = self.stage.open_part(number).reader.read_many(rows)
        part = self.stage.parts[number]
        if part.tags is None and not hasattr(part.samples, "parts"):
            for sample in samples:
                sample["__source__"] = part.name
            return samples
        return [self._mark(sample, number) for sample in samples]

    def _mark(self, sample: Sample, number: int) -> Sample:
        """Add the name and the tags of the source."""
        part = self.stage.parts[number]
        inside = sample.get("__source__")
        sample["__source__"] = part.name if inside is None else f"{part.name}/{inside}"
        if part.tags is not None:
            sample["__tags__"] = {**part.tags, **sample.get("__tags__", {})}
        return sample
