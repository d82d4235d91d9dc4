"""What runs a loader: torch's worker processes, or threads; from the arguments of either."""

from __future__ import annotations

import functools
import re
import warnings
from typing import Any

from penstock.errors import MissingPackage, PipelineError
from penstock.loaders.to_tensors import torch_data
from penstock.loaders.measuring import measure
from penstock.engine.executor import engine_of_worker
from penstock.loaders.worker_state import StampedCollate, StampedDataset
from penstock.loaders.thread_loader import ThreadLoader
from penstock.loaders.unsplit import unsplit
from penstock.pipeline.plan import batches_out

ENGINES = ("processes", "threads", "auto")
MAX_MEMORY = "2GB"
PREFETCH_BATCHES = 2
PLACES = (
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "num_workers",
    "collate_fn",
    "pin_memory",
    "drop_last",
    "timeout",
    "worker_init_fn",
)
"""DataLoader's arguments behind the data set, by place."""
NAMED = (
    "prefetch_factor",
    "persistent_workers",
    "multiprocessing_context",
    "generator",
    "pin_memory_device",
    "in_order",
)
"""More of them; on threads only the first means something, the others do no harm."""
NOT_ON_THREADS = ("shuffle", "sampler", "batch_sampler", "worker_init_fn")
UNITS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The data set and the options by name, of arguments as torch's DataLoader takes them."""
    options = dict(kwargs)
    dataset = args[0] if args else options.pop("dataset", None)
    if dataset is None:
        raise PipelineError("WebLoader needs a data set: WebLoader(dataset, ...)")
    if len(args) - 1 > len(PLACES):
        raise PipelineError(f"WebLoader takes {', '.join(PLACES)} by place; name the others")
    for name, value in zip(PLACES, args[1:]):
        if name in options:
            raise PipelineError(f"WebLoader got {name} twice")
        options[name] = value
    return dataset, options


def size_bytes(size: int | str) -> int:
    """A size as a number of bytes: a number, or a text such as "2GB" or "512MiB".

    >>> size_bytes("2GB"), size_bytes("1.5 KiB")
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
    """The engine, and why it is that one."""
    if engine not in ENGINES:
        raise PipelineError(f"engine is one of {ENGINES}, not {engine!r}")
    if engine == "auto":
        return _chosen(dataset, options)
    if engine == "threads" and not isinstance(dataset, StampedDataset):
        raise PipelineError(
            f"engine='threads' runs penstock's pipelines, not {type(dataset).__name__}: wrap an "
            "iterable in DataPipeline(...), or say engine='processes'"
        )
    return engine, f"{engine}: asked for"


def _chosen(dataset: Any, options: dict[str, Any]) -> tuple[str, str]:
    if not isinstance(dataset, StampedDataset):
        return "processes", f"processes: {type(dataset).__name__} is not a penstock pipeline"
    if given := [name for name in NOT_ON_THREADS if options.get(name)]:
        return "processes", f"processes: {given[0]} was given"
    if not options.get("num_workers"):
        return "threads", "threads: num_workers=0 uses neither"
    if found := dataset.whole_process():
        return "processes", f"processes: {found[0]} seeds the generators of a whole process"
    if torch_data() is None:
        return "threads", "threads: torch, whose worker processes these are, is not installed"
    return measure(dataset.pipeline)


def streams(loader: Any) -> int:
    """How many streams of samples a loader has: one per process, one for all threads."""
    return int(getattr(loader, "streams", 0)) or max(loader.num_workers, 1)


def thread_loader(dataset: Any, options: dict[str, Any], max_memory: int) -> ThreadLoader:
    """The loader on threads."""
    for name in NOT_ON_THREADS:
        if options.get(name):
            raise PipelineError(
                f"{name} means nothing to engine='threads': it runs the pipeline in this process, "
                "in the pipeline's own order"
            )
    if unknown := sorted(options.keys() - {*PLACES, *NAMED}):
        raise PipelineError(f"WebLoader does not know {', '.join(unknown)}")
    for name, least in (("num_workers", 0), ("batch_size", 1), ("prefetch_factor", 1)):
        if options.get(name) is not None and options[name] < least:
            raise PipelineError(f"{name} must be at least {least}, not {options[name]}")
    if isinstance(options.get("collate_fn"), StampedCollate):
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


def worker_threads(dataset: Any, options: dict[str, Any], threads: int, max_memory: int) -> None:
    """Give each of torch's worker processes so many threads."""
    if threads < 0 or (threads and not isinstance(dataset, StampedDataset)):
        raise PipelineError(
            f"threads={threads}: it is how many threads each worker process has for the stages of "
            "a penstock pipeline"
        )
    if not options.get("num_workers"):
        raise PipelineError(
            "threads= are those of worker processes, and num_workers=0 has none: in this "
            "process, say engine='threads' and num_workers=…"
        )
    if found := dataset.whole_process():
        raise PipelineError(f"{found[0]} seeds the generators of a whole process: say threads=0")
    size, last = batches_out(dataset.pipeline.pipeline, options.get("batch_size", 1))
    dataset.make_engine = functools.partial(engine_of_worker, threads, size, last, max_memory)


def warn_of_copies(dataset: Any, options: dict[str, Any]) -> None:
    """Tell where every sample would come once from each worker process."""
    if (options.get("num_workers") or 0) < 2 or options.get("worker_init_fn"):
        return
    if whole := unsplit(getattr(dataset, "pipeline", None)):
        warnings.warn(
            f"each of the {options['num_workers']} worker processes gives all of {whole}, so every "
            "sample comes once from each: put split_by_worker behind it, or say engine='threads'",
            stacklevel=3,
        )


def torch_loader(dataset: Any, options: dict[str, Any]) -> Any:
    """torch's DataLoader."""
    try:
        from torch.utils.data import DataLoader, IterableDataset
    except ImportError:
        raise MissingPackage.of("WebLoader", "torch", "torch") from None
    IterableDataset.register(StampedDataset)
    return DataLoader(dataset, **options)
