"""``stats``: how many samples, which fields, how large, how long, which classes."""

from __future__ import annotations

import array
import collections
import dataclasses
from collections.abc import Iterable
from typing import Any

from penstock.errors import PenstockError
from penstock.handlers import Handler, reraise_exception
from penstock.tools.field_values import image_size, kind_of, read_value, sound_length
from penstock.tools.inputs import LocatedSample, Shards, list_shards, read_samples

CLASSES_REPORTED = 100
CLASSES_COUNTED = 1_000_000
"""Numbers beyond this many different ones are not counted one by one."""


class Values:
    """Numbers of one kind, compact."""

    def __init__(self) -> None:
        self.numbers = array.array("d")

    def add(self, number: float) -> None:
        self.numbers.append(number)

    def __len__(self) -> int:
        return len(self.numbers)

    def as_dict(self) -> dict[str, float]:
        """Return count, total, and the usual quantiles."""
        import numpy as np

        values = np.frombuffer(self.numbers, np.float64)
        low, median, p95, high = np.percentile(values, [0, 50, 95, 100]).tolist()
        total = float(values.sum())
        mean = total / len(values)
        return {"total": total, "min": low, "median": median, "mean": mean, "p95": p95, "max": high}


class FieldStats:
    """What is known about one field."""

    def __init__(self, field: str) -> None:
        self.field, self.kind = field, kind_of(field)
        self.sizes = Values()
        self.unreadable = 0
        self.widths, self.heights = Values(), Values()
        self.seconds = Values()
        self.letters = Values()
        self.classes: collections.Counter[Any] = collections.Counter()
        self.classes_complete = True

    def add(self, data: bytes, located: LocatedSample) -> None:
        """Take the field of one more sample into account."""
        self.sizes.add(len(data))
        if self.kind == "image":
            self._add_pair(image_size(data))
        elif self.kind == "sound":
            seconds = sound_length(data)
            if seconds is None:
                self.unreadable += 1
            else:
                self.seconds.add(seconds)
        elif self.kind in ("number", "text"):
            try:
                value = read_value(self.field, data, located.key)
            except PenstockError:
                self.unreadable += 1
                return
            if self.kind == "text":
                self.letters.add(len(value))
            elif value in self.classes or len(self.classes) < CLASSES_COUNTED:
                self.classes[value] += 1
            else:
                self.classes_complete = False

    def _add_pair(self, size: tuple[int, int] | None) -> None:
        if size is None:
            self.unreadable += 1
        else:
            self.widths.add(size[0])
            self.heights.add(size[1])

    def measured(self) -> dict[str, Values]:
        """Return the measures that have values: name → values."""
        measures = {
            "width": self.widths,
            "height": self.heights,
            "seconds": self.seconds,
            "characters": self.letters,
        }
        return {name: values for name, values in measures.items() if len(values)}

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        figures: dict[str, Any] = {
            "kind": self.kind,
            "samples": len(self.sizes),
            "bytes": self.sizes.as_dict(),
            "unreadable": self.unreadable,
        }
        figures.update((name, values.as_dict()) for name, values in self.measured().items())
        if self.classes:
            most = self.classes.most_common(CLASSES_REPORTED)
            figures["classes"] = {str(value): count for value, count in most}
            figures["different_classes"] = len(self.classes)
            figures["classes_complete"] = self.classes_complete
        return figures


class ShardStats:
    """The figures of a data set; :meth:`as_dict` for a script."""

    def __init__(self, shards: int = 0) -> None:
        self.shards, self.samples = shards, 0
        self.sizes = Values()
        self.fields: dict[str, FieldStats] = {}

    def add(self, located: LocatedSample) -> None:
        """Take one more sample into account."""
        self.samples += 1
        total = 0
        for field, data in located.fields.items():
            known = self.fields.get(field)
            if known is None:
                known = self.fields[field] = FieldStats(field)
            known.add(data, located)
            total += len(data)
        self.sizes.add(total)

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return {
            "shards": self.shards,
            "samples": self.samples,
            "bytes": self.sizes.as_dict() if len(self.sizes) else None,
            "fields": {name: field.as_dict() for name, field in sorted(self.fields.items())},
        }


def stats(
    shards: Shards, *, list_file: str | None = None, handler: Handler = reraise_exception
) -> ShardStats:
    """Read all samples and return their statistics.

    Sizes in bytes, pixels of pictures, seconds of sound, characters of text, and how often each
    class occurs. Picture and sound sizes come from headers (pillow and soundfile, where they are
    installed); a field that cannot be read is counted as such.

    >>> import os, tempfile, penstock
    >>> name = os.path.join(tempfile.mkdtemp(), "x.tar")
    >>> with penstock.TarWriter(name) as sink:
    ...     _ = sink.write({"__key__": "a", "txt": "hello", "cls": 7})
    >>> stats(name).as_dict()["fields"]["cls"]["classes"]
    {'7': 1}
    """
    urls = list_shards(shards, list_file)
    return gather(read_samples(urls, handler=handler), len(urls))


def gather(samples: Iterable[LocatedSample], shards: int) -> ShardStats:
    """Return the statistics of samples."""
    found = ShardStats(shards)
    for located in samples:
        found.add(located)
    return found


@dataclasses.dataclass(frozen=True)
class Bar:
    """A line of a bar chart."""

    label: str
    count: int


def class_bars(field: FieldStats, most: int = 10) -> list[Bar]:
    """Return the most frequent classes, and how many samples the others have."""
    bars = [Bar(str(value), count) for value, count in field.classes.most_common(most)]
    rest = sum(field.classes.values()) - sum(bar.count for bar in bars)
    if rest:
        bars.append(Bar(f"{len(field.classes) - len(bars):,} others", rest))
    return bars
