"""The arguments of a WebLoader: choose the engine, and make the loader that runs it."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypedDict, get_args

from penstock.batches.batched import batched, unbatched, unlisted
from penstock.batches.bucketing.bucketed import dynamic_bucketed_batch
from penstock.batches.planning.planned_samples import planned
from penstock.engine.executor import engine_of_worker
from penstock.errors import MissingPackage, PipelineError
from penstock.loaders.measuring import measure
from penstock.loaders.thread_loader import ThreadLoader
from penstock.loaders.to_tensors import torch_data
from penstock.loaders.unsplit import find_unsplit
from penstock.loaders.worker_state import StatefulCollate, StatefulDataset
from penstock.pipeline.item_counts import batches_out
from penstock.stages.stage import Stage, nested_stages

Engine = Literal["processes", "threads", "auto"]
ENGINES = get_args(Engine)
BATCHES = (batched, planned, dynamic_bucketed_batch)
MAX_MEMORY = "2GB"
PREFETCH_BATCHES = 2
TAKEN_WORKERS = (
    "persistent workers serve one iterator at a time, and a later iter(loader) has taken them: end "
    "the first iteration before, or use persistent_workers=False or a second loader"
)
NOT_ON_THREADS = ("shuffle", "sampler", "batch_sampler", "worker_init_fn")


class LoaderOptions(TypedDict, total=False):
    """A WebLoader's arguments after the batch size: those of torch's DataLoader, then its own."""

    shuffle: bool | None
    sampler: Any
    batch_sampler: Any
    num_workers: int
    collate_fn: Callable[[list[Any]], Any] | None
    pin_memory: bool
    drop_last: bool
    timeout: float
    worker_init_fn: Callable[[int], None] | None
    multiprocessing_context: Any
    generator: Any
    prefetch_factor: int | None
    persistent_workers: bool
    pin_memory_device: str
    in_order: bool
    engine: Engine
    max_memory: int | str
    threads: int
    device: Any


UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def parse_size(size: int | str) -> int:
    """Return a size in bytes, given a number or a string such as "2GB" or "512MiB".

    >>> parse_size("2GB"), parse_size("1.5 KiB")
    (2000000000, 1536)
    """
    if isinstance(size, int) and size > 0:
        return size
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([KMGT]?)(i?)B?\s*", str(size), re.IGNORECASE)
    if match is None or not float(match[1]):
        raise PipelineError(f"max_memory is a number of bytes, or '2GB', not {size!r}")
    unit = 1024 if match[3] else 1000
    return int(float(match[1]) * unit ** UNITS[match[2].upper()])


def choose_engine(engine: str, dataset: Any, options: dict[str, Any]) -> tuple[str, str]:
    """Return the engine and the reason for it."""
    if engine not in ENGINES:
        raise PipelineError(f"engine is one of {ENGINES}, not {engine!r}")
    if engine == "auto":
        return _choose_automatically(dataset, options)
    if engine == "threads" and not isinstance(dataset, StatefulDataset):
        raise PipelineError(
            f"engine='threads' runs penstock's pipelines, not {type(dataset).__name__}: pass "
            "dataset.pipeline() or DataPipeline(MapSamples(dataset)), wrap an iterable in "
            "DataPipeline(...), or use engine='processes'"
        )
    return engine, f"{engine}: as requested"


def _choose_automatically(dataset: Any, options: dict[str, Any]) -> tuple[str, str]:
    if not isinstance(dataset, StatefulDataset):
        return "processes", f"processes: {type(dataset).__name__} is not a penstock pipeline"
    if given := [name for name in NOT_ON_THREADS if options.get(name)]:
        return "processes", f"processes: {given[0]} was given"
    if not options.get("num_workers"):
        return "threads", "threads: num_workers=0 uses neither"
    if found := dataset.whole_process():
        return "processes", f"processes: {found[0]} seeds the generators of a whole process"
    if torch_data() is None:
        return "threads", "threads: torch is not installed, and its worker processes with it"
    return measure(dataset.pipeline)


def count_streams(loader: Any) -> int:
    """Return the number of sample streams of a loader: one per process, one for all threads."""
    return int(getattr(loader, "streams", 0)) or max(loader.num_workers, 1)


def make_thread_loader(dataset: Any, options: dict[str, Any], max_memory: int) -> ThreadLoader:
    """Return a loader on threads."""
    for name in NOT_ON_THREADS:
        if options.get(name):
            raise PipelineError(
                f"engine='threads' does not support {name}: it runs the pipeline in this process, "
                "in the pipeline's order"
            )
    for name, least in (("num_workers", 0), ("batch_size", 1), ("prefetch_factor", 1)):
        if options.get(name) is not None and options[name] < least:
            raise PipelineError(f"{name} must be at least {least}, not {options[name]}")
    if isinstance(options.get("collate_fn"), StatefulCollate):
        options["collate_fn"].in_place = True
    return ThreadLoader(
        dataset,
        num_workers=options.get("num_workers", 0),
        batch_size=options.get("batch_size", 1),
        collate_fn=options.get("collate_fn"),
        prefetch_factor=options.get("prefetch_factor") or PREFETCH_BATCHES,
        pin_memory=bool(options.get("pin_memory")),
        drop_last=bool(options.get("drop_last")),
        timeout=options.get("timeout", 0),
        max_memory=max_memory,
    )


def set_worker_threads(
    dataset: Any, options: dict[str, Any], threads: int, max_memory: int
) -> None:
    """Let each of torch's worker processes run its stages on ``threads`` threads."""
    if threads < 0 or (threads and not isinstance(dataset, StatefulDataset)):
        raise PipelineError(
            f"threads={threads}: it is the number of threads in each worker process, at least 0, "
            "and needs a penstock pipeline"
        )
    if not options.get("num_workers"):
        raise PipelineError(
            "threads= applies to worker processes, and num_workers=0 has none: for threads in "
            "this process use engine='threads' and num_workers=…"
        )
    if found := dataset.whole_process():
        raise PipelineError(f"{found[0]} seeds the generators of a whole process: use threads=0")
    size, last = batches_out(dataset.pipeline.pipeline, options.get("batch_size", 1))
    dataset.make_engine = functools.partial(engine_of_worker, threads, size, last, max_memory)


def warn_of_copies(dataset: Any, options: dict[str, Any]) -> None:
    """Warn if every worker process would yield every sample."""
    if (options.get("num_workers") or 0) < 2 or options.get("worker_init_fn"):
        return
    if whole := find_unsplit(getattr(dataset, "pipeline", None)):
        warnings.warn(
            f"each of the {options['num_workers']} worker processes yields all of {whole}, so "
            "every sample is repeated: put split_by_worker after it, or use engine='threads'",
            stacklevel=3,
        )


def warn_of_batched_batches(dataset: Any, options: dict[str, Any]) -> None:
    """Warn if the loader makes batches of batches."""
    size = options.get("batch_size", 1)
    if size is None or options.get("collate_fn") or options.get("batch_sampler"):
        return
    if stage := find_batching_stage(nested_stages(dataset) or ()):
        warnings.warn(
            f"WebLoader makes batches of {size} batches, because the data set already yields "
            f"batches ({stage!r}): use batch_size=None to get them unchanged",
            stacklevel=3,
        )


def find_batching_stage(stages: Sequence[Any]) -> Stage[Any, Any] | None:
    """Return the stage whose batches are the output of these stages, or None.

    >>> from penstock import map
    >>> find_batching_stage([[], batched(4), map(len)])
    batched(4)
    >>> find_batching_stage([[], batched(4), unbatched()])
    """
    for stage in reversed(stages):
        if isinstance(stage, BATCHES):
            return stage
        if not isinstance(stage, Stage) or isinstance(stage, (unbatched, unlisted)):
            return find_batching_stage(nested_stages(stage) or ())
    return None


def make_torch_loader(dataset: Any, options: dict[str, Any]) -> Any:
    """Return torch's DataLoader."""
    try:
        from torch.utils.data import DataLoader, IterableDataset
    except ImportError:
        raise MissingPackage.of("WebLoader", "torch", "torch") from None
    IterableDataset.register(StatefulDataset)
    return DataLoader(dataset, **options)
