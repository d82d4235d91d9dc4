"""The index of a job's outputs: where it is, and how it is written when the job has ended."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable

from penstock.jobs.output_files import IS_SHARD
from penstock.jobs.output_listing import OutputSet
from penstock.jobs.plan import Plan, inside
from penstock.storage.urls import local_path, rewrite_url

logger = logging.getLogger("penstock.jobs")


def index_path(plan: Plan, folder: str) -> str:
    """Return the path of the index of the job's outputs."""
    from penstock.shards.index.default_path import beside

    names = [name for task in plan.tasks for name in task.outputs]
    if plan.in_parts:
        names = [name % number for name in names for number in (0, 1)]
    return beside([inside(folder, name) for name in names])


def write_index(
    plan: Plan,
    folder: str,
    names: Iterable[str],
    *,
    failed: Collection[str] = (),
    changed: bool = True,
) -> None:
    """Write the index of those outputs that are shards.

    The outputs of ``failed`` tasks are left out of it, also those that an earlier job has written.
    """
    from penstock.shards.index.build import extend_index, one_builder
    from penstock.shards.index.part_files import PartFiles

    path = index_path(plan, folder)
    urls = [inside(folder, name) for name in names if IS_SHARD(name)]
    parts = PartFiles(path)
    # A run that was killed after it wrote the index may have left its parts and its lock.
    left = os.path.exists(parts.folder) or os.path.exists(path + ".lock")
    if not urls or (not changed and os.path.exists(path) and not left):
        return
    remote = local_path(rewrite_url(urls[0])) is None
    if remote and any(parts.kept(url) is None for url in urls):
        logger.warning(
            "no index was written, since that would read remote shards again: run "
            "'penstock index' over them"
        )
        return
    earlier = (name for task in plan.tasks if task.name in failed for name in task.outputs)
    old = OutputSet(earlier, in_parts=plan.in_parts).find(folder) if failed else []
    with one_builder(path):
        extend_index(urls, path, leave_out=[inside(folder, name) for name in old])
