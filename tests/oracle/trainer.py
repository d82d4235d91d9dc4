"""What trainer processes do: run part of a case, and report what came and the state after it."""

from __future__ import annotations

import json
import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from numbered import RANK_VARIABLES

import penstock as wds
from oracle import functions
from oracle.cases import Case, make_dataset
from oracle.model import alternate
from oracle.stages import BATCHES, ROWS, make_row

PASS = 1 << 32
"""What separates the epoch numbers of the passes that ``with_epoch`` makes of one epoch."""


RAISES = -1


class Point(NamedTuple):
    """Between two items of a run."""

    epoch: int
    """Its place among the epochs of the case."""
    taken: int | None = 0
    """How many items of it were taken; None: all, and the iterator has ended; :data:`RAISES`: those
    that come before a stage fails."""


class Part(NamedTuple):
    """What one rank saw."""

    epochs: list[list[Any]]
    state: Any
    length: int | None
    """What ``len()`` said before the first epoch."""
    raised: bool = False
    """Whether a stage failed, as :class:`Point` asked for."""


@contextmanager
def placed(rank: int, ranks: int, worker: int = 0, workers: int = 1) -> Iterator[None]:
    """Be one rank of a job, and one worker of it."""
    place = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    if ranks > 1:
        place |= {"RANK": str(rank), "WORLD_SIZE": str(ranks)}
    if workers > 1:
        place |= {"WORKER": str(worker), "NUM_WORKERS": str(workers)}
    with mock.patch.dict(os.environ, place, clear=True), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def plain(item: Any) -> Any:
    """Arrays and tensors as lists, for comparing."""
    if isinstance(item, (tuple, list)):
        return [plain(value) for value in item]
    return item.tolist() if hasattr(item, "tolist") else item


def grouped(stream: Iterator[Any], size: int | None) -> Iterator[Any]:
    """What a loader with ``batch_size`` makes of a worker's items."""
    if size is None:
        return stream
    return iter(lambda: list(islice(stream, size)), [])


def rows_after(case: Case) -> list[Any]:
    """The stages that follow the loader."""
    if case.after is None:
        return []
    apart = ROWS[case.last[0]].apart if case.last is not None else None
    stages = [] if apart is None else apart()
    for place, row in enumerate(case.after):
        last = place == len(case.after) - 1 and row[0] in BATCHES
        stages += make_row(row, last=last)
    return stages


def reference(case: Case, ranks: int, data: Path, folder: Path) -> list[list[list[Any]]]:
    """The epochs of each rank, inline and uninterrupted: every worker's stream by itself."""
    functions.DELAYS = False
    os.chdir(folder)
    return [list(_reference_epochs(case, rank, ranks, data)) for rank in range(ranks)]


def _reference_epochs(case: Case, rank: int, ranks: int, data: Path) -> Iterator[list[Any]]:
    workers = [make_dataset(case, data) for _ in range(case.streams)]
    after = rows_after(case)

    def one_pass(number: int) -> Iterator[Any]:
        streams = []
        for worker, pipeline in enumerate(workers):
            with placed(rank, ranks, worker, case.streams):
                pipeline.set_epoch(number)
                streams.append(grouped(iter(pipeline), case.batch))
        with placed(rank, ranks):
            loader: wds.DataPipeline[Any] = wds.DataPipeline(alternate(streams), *after)
            loader.set_epoch(number)
            return iter(loader)

    for number in case.epochs:
        found: list[Any] = []
        most = case.cut if case.steps < 0 else min(case.steps, case.cut or case.steps)
        for passes in count():
            before = len(found)
            missing = None if most is None else most - before
            found += map(plain, islice(one_pass(passes * PASS + number), missing))
            if case.steps < 0 or len(found) in (before, most):
                break
        yield found


def make_loader(case: Case, data: Any) -> Any:
    """The object that a trainer iterates."""
    if case.engine == "inline":
        return data
    options: dict[str, Any] = {"batch_size": case.batch, "num_workers": case.workers}
    if case.workers and case.engine != "threads":
        options["multiprocessing_context"] = case.start
        options["persistent_workers"] = case.persistent
    if case.engine == "stateful":
        from torchdata.stateful_dataloader import StatefulDataLoader

        return StatefulDataLoader(data, **options)
    options |= {"engine": case.engine, "threads": case.threads}
    loader = wds.WebLoader(data, **options)
    return loader.compose(*rows_after(case)).with_epoch(case.steps)


def train(
    case: Case,
    ranks: int,
    data: Path,
    folder: Path,
    rank: int,
    state: Any,
    begin: Point,
    end: Point | None,
) -> Part:
    """One rank from one point to another; without an ``end``, to the last epoch."""
    os.chdir(folder)
    tempfile.tempdir = str(folder)  # for the sockets of fork servers, which are killed
    with placed(rank, ranks):
        return _train(case, data, state, begin, end)


def _train(case: Case, data: Path, state: Any, begin: Point, end: Point | None) -> Part:
    multiprocessing.set_forkserver_preload(["torch", "oracle.functions"])
    functions.RAISING.unlink(missing_ok=True)
    loader = make_loader(case, make_dataset(case, data))
    length = None
    if state is not None:
        loader.load_state_dict(state)
        if case.reload:
            list(islice(iter(loader), 2))
            loader.load_state_dict(state)
    found: list[list[Any]] = []
    raised = False
    first = begin.epoch if begin.taken is not None else begin.epoch + 1
    last = len(case.epochs) - 1 if end is None else end.epoch
    for place in range(first, last + 1):  # none between two stops at the end of one epoch
        resumes = state is not None and place == begin.epoch
        if not resumes and case.epochs[place] != (case.epochs[place - 1] + 1 if place else 0):
            loader.set_epoch(case.epochs[place])
        if place == 0 and state is None and case.engine != "stateful":
            length = _length(loader)  # of this epoch: the number of planned batches may differ
        stops = end is not None and end.epoch == place
        raises = stops and end is not None and end.taken == RAISES
        if raises:
            functions.RAISING.write_text(json.dumps(case.raising))
        most = end.taken if end is not None and stops and not raises else case.cut
        if most is not None and resumes:
            most -= begin.taken or 0
        stream = iter(loader)
        found.append([])
        try:
            for item in islice(stream, most):
                found[-1].append(plain(item))
        except BaseException as error:
            if not raises or "raised at" not in str(error):
                raise
            raised = True
        if stops:
            break
        del stream
    state = loader.state_dict()
    if case.engine != "stateful":
        state = json.loads(json.dumps(state))
    return Part(found, state, length, raised)


def _length(loader: Any) -> int | None:
    try:
        return len(loader)
    except TypeError:
        return None
