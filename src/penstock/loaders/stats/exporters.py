"""Exports statistics as a table, as HTML, in Prometheus' text format and as a trace."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from penstock.notebook import html_table

if TYPE_CHECKING:
    from penstock.loaders.stats.recorder import StatsRecorder
    from penstock.loaders.stats.stats import Stats

MICROSECONDS = 1e6
TRAINER = 1
"""The trainer's thread number in a trace."""


def format_table(stats: Stats) -> str:
    """Return the statistics as text: a line per stage, then the bottleneck."""
    lines = [f"{'stage':<28}{'items':>12}{'seconds':>10}{'CPU s':>10}{'share':>8}"]
    lines += (
        f"{stage.name:<28}{stage.items:>12,}{stage.seconds:>10.2f}"
        f"{stage.cpu_seconds:>10.2f}{stage.share:>8.0%}"
        for stage in stats.stages
    )
    return "\n".join([*lines, *_notes(stats)])


def format_html(stats: Stats) -> str:
    """Return the table as HTML for a notebook."""
    rows = (
        [
            stage.name,
            f"{stage.items:,}",
            f"{stage.seconds:.2f}",
            f"{stage.cpu_seconds:.2f}",
            f"{stage.share:.0%}",
        ]
        for stage in stats.stages
    )
    header = ["stage", "items", "seconds", "CPU s", "share"]
    caption = f"{stats.engine}, {stats.workers} workers"
    return html_table(caption, header, rows, _notes(stats))


def _notes(stats: Stats) -> list[str]:
    """Return the lines below the table; the last one is the bottleneck."""
    lines = []
    whole = sum(stats.pipeline.values()) or 1.0
    if stats.pipeline:
        parts = (f"{what} {seconds / whole:.0%}" for what, seconds in stats.pipeline.items())
        lines.append("the pipeline's thread: " + ", ".join(parts))
    if stats.bytes_read is not None:
        lines.append(f"read: {stats.bytes_read / 1e6:,.1f} MB of samples")
    if stats.jpeg_decoder is not None:
        lines.append(f"JPEG decoder: {stats.jpeg_decoder}")
    if stats.cache_hits is not None:
        lines.append(f"cache: {stats.cache_hits:,} shards there, {stats.cache_fetches:,} fetched")
    if stats.skipped:
        counts = ", ".join(f"{name} {count:,}" for name, count in stats.skipped.items())
        lines.append(f"skipped: {counts}")
    return [*lines, stats.line(), stats.bottleneck]


def format_prometheus(stats: Stats) -> str:
    """Return the statistics in Prometheus' text format."""
    rows: list[tuple[str, str, str, dict[str, str], float | None]] = [
        ("seconds", "counter", "time since the epoch began", {}, stats.seconds),
        ("samples_total", "counter", "samples read", {}, stats.samples),
        ("batches_total", "counter", "batches given", {}, stats.batches),
        ("read_bytes_total", "counter", "bytes of the samples read", {}, stats.bytes_read),
        ("pool_busy_ratio", "gauge", "share of the threads' time at work", {}, stats.pool_busy),
        ("cores_busy", "gauge", "cores that the process keeps busy", {}, stats.cores_busy),
        ("queue_batches", "gauge", "batches ready, on average", {}, stats.queue_depth),
        ("first_batch_seconds", "gauge", "time to the first batch", {}, stats.first_batch_s),
        ("wait_seconds_total", "counter", "the trainer waited", {}, stats.trainer_wait_s),
        ("step_seconds_total", "counter", "the trainer worked", {}, stats.trainer_step_s),
        ("wait_ratio", "gauge", "share of the trainer's time it waited", {}, stats.wait_share),
        ("device_wait_seconds_total", "counter", "the device waited", {}, stats.device_wait_s),
        ("device_lead_seconds", "gauge", "the trainer was ahead", {}, stats.device_lead_s),
        ("cache_hits_total", "counter", "shards found in the cache", {}, stats.cache_hits),
        ("cache_fetches_total", "counter", "shards fetched", {}, stats.cache_fetches),
    ]
    for stage in stats.stages:
        label = {"stage": stage.name}
        rows.append(
            ("stage_seconds_total", "counter", "time of a stage", label, stage.seconds),
        )
        rows.append(("stage_items_total", "counter", "items of a stage", label, stage.items))
    for what, seconds in stats.pipeline.items():
        what_for = "time of the pipeline's thread"
        rows.append(("pipeline_seconds_total", "counter", what_for, {"part": what}, seconds))
    for name, count in stats.skipped.items():
        rows.append(("skipped_total", "counter", "samples left out", {"stage": name}, count))
    rows.sort(key=lambda row: row[0])  # the lines of one metric must be adjacent
    lines: list[str] = []
    last = ""
    for name, kind, about, labels, value in rows:
        if value is None:
            continue
        if name != last:
            lines += [f"# HELP penstock_loader_{name} {about}"]
            lines += [f"# TYPE penstock_loader_{name} {kind}"]
            last = name
        inside = ",".join(f'{key}="{_escape_label(text)}"' for key, text in labels.items())
        lines.append(f"penstock_loader_{name}{'{' + inside + '}' if inside else ''} {value!r}")
    return "\n".join(lines) + "\n"


def _escape_label(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def write_trace(gauge: StatsRecorder, path: str | os.PathLike[str]) -> None:
    """Write the last events of every thread as a trace for Chrome and Perfetto."""
    process = os.getpid()
    # In this order, so that every thread of an event is in the second.
    work, seen = gauge.events.copy(), dict(gauge.threads_seen)
    events: list[dict[str, Any]] = [_name_thread(process, TRAINER, "trainer")]
    numbers = {thread: index + TRAINER + 1 for index, thread in enumerate(seen)}
    events += [_name_thread(process, numbers[t], name) for t, name in seen.items()]
    for name, begin, seconds, thread, items in work:
        at = {"ts": begin * MICROSECONDS, "dur": seconds * MICROSECONDS}
        track = {"pid": process, "tid": numbers[thread], "ph": "X", "cat": "penstock"}
        events.append({"name": name, **at, **track, "args": {"items": items}})
    events += _steps(gauge, process)
    with open(path, "w", encoding="utf-8") as file:
        json.dump({"traceEvents": events, "displayTimeUnit": "ms"}, file)


def _steps(gauge: StatsRecorder, process: int) -> list[dict[str, Any]]:
    """Return the trainer's last steps, up to the last batch: each a wait, then a step."""
    events: list[dict[str, Any]] = []
    steps = gauge.last_steps.copy()
    end = gauge.last_s
    for wait, step in reversed(steps):
        for name, seconds in (("waits for data", wait), ("step", step)):
            end -= seconds
            at = {"ts": max(end, 0.0) * MICROSECONDS, "dur": seconds * MICROSECONDS}
            track = {"pid": process, "tid": TRAINER, "ph": "X", "cat": "trainer"}
            events.append({"name": name, **at, **track})
    return events


def _name_thread(process: int, thread: int, name: str) -> dict[str, Any]:
    about = {"name": "thread_name", "ph": "M", "pid": process, "tid": thread}
    return {**about, "args": {"name": name}}
