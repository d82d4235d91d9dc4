"""The result of ``loader.stats()``: where a loader's time goes.

Three clocks are kept. The *trainer* waits or works. The *pipeline's thread* reads, waits for the
pool, makes batches, or is blocked because the queue is full. The *pool's* threads run stages, or
are idle. The parts of each sum to its whole.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from typing import Any

from penstock.errors import PipelineError
from penstock.loaders.stats.bottleneck import describe_bottleneck
from penstock.stages.sources.mix_plan import SourceStats

VERSION = 1


@dataclasses.dataclass(frozen=True)
class StageStats:
    """One stage: how many items it had, and its time in all threads together."""

    name: str
    items: int
    seconds: float
    cpu_seconds: float
    share: float
    """Of the time of all threads that such stages run on."""


@dataclasses.dataclass(frozen=True, repr=False)
class Stats:
    """A loader's figures since its running epoch began, or of its last one. Prints as a table.

    Figures that an engine cannot measure are None: worker processes do not report their stages.

    >>> stats = Stats(engine="threads", workers=8)
    >>> Stats.from_json(stats.to_json()) == stats
    True
    """

    engine: str
    workers: int
    seconds: float = 0.0
    cores: int = 1
    cores_busy: float = 0.0
    """How many cores this process kept busy since the first batch, on average."""
    machine_busy: float | None = None
    """The share of the cores' time used by all processes of the machine."""
    interpreter_lock: bool = True
    """Whether threads shared one; free-threaded Python has none."""
    samples: int | None = None
    later_samples: float | None = None
    """Samples of the batches after the first, whose time is the start-up."""
    batches: int = 0
    bytes_read: int | None = None
    stages: tuple[StageStats, ...] = ()
    pool_busy: float | None = None
    """The share of the pool's time that its threads worked."""
    pipeline: dict[str, float] = dataclasses.field(default_factory=dict)
    """The pipeline's thread: seconds of reading, inline, pool, batching, blocked."""
    pipeline_cpu_s: float | None = None
    """The processor time of the pipeline's thread, in all of these."""
    queue_depth: float | None = None
    """Batches that were ready when the trainer took one, on average."""
    queue_limit: int | None = None
    first_batch_s: float = 0.0
    trainer_wait_s: float = 0.0
    trainer_step_s: float = 0.0
    last_waits: tuple[float, ...] = ()
    """Of each of the last steps, the share that was waiting for data."""
    device_wait_s: float | None = None
    """How long the device was idle for lack of a batch, by its own clock."""
    device_lead_s: float | None = None
    """How far ahead of the device the trainer was when it asked for a batch, on average. Near 0
    the device waits for the trainer's Python, inside the step."""
    jpeg_decoder: str | None = None
    """The decoder that image transforms use for JPEGs; None if there is no image transform."""
    cache_hits: int | None = None
    cache_fetches: int | None = None
    skipped: dict[str, int] = dataclasses.field(default_factory=dict)
    sources: dict[str, SourceStats] = dataclasses.field(default_factory=dict)
    """For a mixture: the samples of each source so far."""
    version: int = VERSION
    trace: Callable[[str | os.PathLike[str]], None] | None = dataclasses.field(
        default=None, compare=False, repr=False
    )

    @property
    def wait_share(self) -> float:
        """The share of the trainer's time that it waited for data, the first batch left out."""
        return self.trainer_wait_s / ((self.trainer_wait_s + self.trainer_step_s) or 1.0)

    @property
    def held_up(self) -> float:
        """The share of its time that the pipeline's thread was working but not running on a core.

        It then waits for a core, for the shards, or for the GIL.
        """
        if self.pipeline_cpu_s is None:
            return 0.0
        at_work = sum(self.pipeline.get(what, 0.0) for what in ("reading", "inline", "batching"))
        whole = sum(self.pipeline.values()) or 1.0
        return max(at_work - self.pipeline_cpu_s, 0.0) / whole

    @property
    def samples_per_s(self) -> float | None:
        """Samples a second since the first batch; None before there is a second one."""
        return self.later_samples / (self.later_s or 1.0) if self.later_samples else None

    @property
    def later_s(self) -> float:
        """The seconds since the first batch was there."""
        return self.seconds - self.first_batch_s

    @property
    def bottleneck(self) -> str:
        """One sentence: what holds the loader back, and what helps."""
        return describe_bottleneck(self)

    def line(self) -> str:
        """Return the most important figures, short enough for a progress bar."""
        words = []
        if self.samples_per_s is not None:
            words.append(f"{self.samples_per_s:,.0f} samples/s")
        words.append(f"waits {self.wait_share:.0%}")
        if self.pool_busy is not None and self.workers:
            words.append(f"{self.workers} threads {self.pool_busy:.0%} busy")
        if self.queue_depth is not None:
            words.append(f"queue {self.queue_depth:.1f} of {self.queue_limit}")
        if self.skipped:
            words.append(f"{sum(self.skipped.values()):,} skipped")
        return " · ".join(words)

    def __str__(self) -> str:
        from penstock.loaders.stats.exporters import format_table

        return format_table(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from penstock.loaders.stats.exporters import format_html

        return format_html(self)

    def to_json(self) -> str:
        """Return all figures as one JSON object, including the bottleneck sentence."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        values["stages"] = [dataclasses.asdict(stage) for stage in self.stages]
        values["sources"] = {n: dataclasses.asdict(source) for n, source in self.sources.items()}
        del values["trace"]
        computed = {"wait_share": self.wait_share, "samples_per_s": self.samples_per_s}
        return json.dumps({**values, **computed, "bottleneck": self.bottleneck})

    @classmethod
    def from_json(cls, text: str) -> Stats:
        """Parse the output of :meth:`to_json`. Another version is a PipelineError."""
        values: dict[str, Any] = json.loads(text)
        if values.get("version") != VERSION:
            raise PipelineError(
                f"these statistics are of version {values.get('version')}, not {VERSION}"
            )
        known = {field.name for field in dataclasses.fields(cls)}
        kept = {name: value for name, value in values.items() if name in known}
        stages = tuple(StageStats(**stage) for stage in kept.pop("stages"))
        sources = {n: SourceStats(**source) for n, source in kept.pop("sources", {}).items()}
        waits = tuple(kept.pop("last_waits"))
        return cls(stages=stages, last_waits=waits, sources=sources, **kept)

    def to_prometheus(self) -> str:
        """Return the figures in Prometheus' text format, for a page that it scrapes."""
        from penstock.loaders.stats.exporters import format_prometheus

        return format_prometheus(self)

    def to_trace(self, path: str | os.PathLike[str]) -> None:
        """Write the last pieces of work of all threads, for chrome://tracing or ui.perfetto.dev."""
        if self.trace is None:
            raise PipelineError("these statistics were read from a file: a trace needs a loader")
        self.trace(path)
