"""All samples of a data set in another order, in new shards: a global shuffle or sort.

The order comes from the index, before anything is read. Each output shard is a task that gathers
its samples from the input shards; of remote shards, neighbouring samples are read in one request.
"""

from __future__ import annotations

import os
from typing import Any

from penstock.errors import PipelineError
from penstock.jobs.engines.engine import Engine
from penstock.jobs.output_listing import OutputSet
from penstock.jobs.output_names import absolute, job_name
from penstock.jobs.plan import Plan, Task, stamp_inputs
from penstock.jobs.report import JobReport
from penstock.jobs.runner import run_tasks
from penstock.nearest_name import checks_arguments
from penstock.redact import canonical_url
from penstock.shards.writing.shard_writer import format_shard_name
from penstock.storage.listing import find_shards

MAXCOUNT = 100_000
MAXSIZE = 3e9


@checks_arguments
def reshard(
    inputs: Any,
    pattern: str | os.PathLike[str],
    *,
    by: str = "random",
    seed: int = 0,
    maxcount: float | None = None,
    maxsize: float | None = None,
    engine: str | Engine = "local",
    jobs: int | None = None,
    retries: int = 2,
    on_error: str = "abort",
    timeout: float | None = None,
    input_index: Any = True,
    index: bool = True,
    name: str | None = None,
    version: str = "",
    force: bool = False,
    progress: Any = None,
    worker: tuple[int, int] | None = None,
) -> JobReport:
    """Write all samples of the inputs into shards ``pattern % 0``, ``pattern % 1``, …

    ``by`` is "random" (a shuffle of all samples, by ``seed``), "key", or a column of the index;
    equal values stay in their order. A shard has ``maxcount`` samples (100,000), and a new one
    begins when ``maxsize`` bytes (3 GB) are reached. ``input_index`` is the index of the inputs:
    True or what :func:`~penstock.shards.index.open_index` takes. A compressed shard cannot be read
    at any offset, and keys must differ within an output shard. The other arguments are those of
    :func:`~penstock.jobs.map_shards`.

    >>> import os, tempfile, penstock
    >>> folder = tempfile.mkdtemp()
    >>> with penstock.ShardWriter(os.path.join(folder, "a-%d.tar"), maxcount=2, verbose=0) as sink:
    ...     for key in "dbca":
    ...         size = sink.write({"__key__": key, "txt": key})
    >>> report = reshard(f"{folder}/a-{{0..1}}.tar", f"{folder}/b/%d.tar", by="key", jobs=1)
    >>> [sample["__key__"] for sample in penstock.WebDataset(f"{folder}/b/0.tar")]
    ['a', 'b', 'c', 'd']
    """
    # numpy and pyarrow are loaded only where they are needed, not by every worker of map_shards.
    from penstock.jobs.sample_order import Gather, SampleOrder, cut_by_size
    from penstock.shards.index.resolve import open_index

    if maxcount is not None and maxcount < 1:
        raise PipelineError(f"maxcount= is at least 1, not {maxcount!r}")
    folder, names = _split_pattern(pattern)
    urls = [absolute(url) for url in find_shards(inputs)]
    known = open_index(urls, input_index)
    order = SampleOrder(by, seed)
    rows = order.rows(known)
    cuts = cut_by_size(known.size[rows], maxcount or MAXCOUNT, maxsize or MAXSIZE)
    tasks = [
        Task(f"{number:06d}", outputs=(format_shard_name(names, number),), argument=[begin, end])
        for number, (begin, end) in enumerate(cuts)
    ]
    options = {"by": by, "seed": seed, "samples": len(known), "inputs": _describe_inputs(urls)}
    plan = Plan(
        tasks, function="penstock.jobs.reshard/1", version=version, options=options, index=index
    )
    OutputSet.of(plan).refuse_inputs(folder, urls, force=force)
    return run_tasks(
        plan,
        Gather(known, order, rows),
        folder=folder,
        name=name or job_name(names),
        engine=engine,
        jobs=jobs,
        retries=retries,
        on_error=on_error,
        timeout=timeout,
        force=force,
        progress=progress,
        worker=worker,
    )


def _split_pattern(pattern: str | os.PathLike[str]) -> tuple[str, str]:
    """Return the folder of the shards, and the pattern of their names in it."""
    url = absolute(os.fspath(pattern))
    folder, slash, names = url.rpartition("/")
    if slash and (not folder or folder.endswith(":/")):
        raise PipelineError(f"the pattern names shards in a folder, not {url!r}")
    return folder, names


def _describe_inputs(urls: list[str]) -> list[dict[str, Any]]:
    stamps = stamp_inputs(urls)
    return [
        {"url": canonical_url(url), "size": stamps[url].size_bytes, "stamp": stamps[url].version}
        for url in urls
    ]
