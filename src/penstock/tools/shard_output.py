"""Samples into numbered shards: parallel, restartable, nothing overwritten by accident.

A command says which samples it writes and in which order; :func:`write_order` cuts the order into
shards, each a task of :mod:`penstock.jobs`. The same call after a kill does what is missing; the
finished job leaves its outputs, and a small file by which the same call is recognized.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import inspect
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypedDict, TypeVar

from penstock.errors import Origin, PipelineError, StorageError
from penstock.jobs.control_folder import ControlFolder
from penstock.jobs.engines.engine import count_cores
from penstock.jobs.finished_job import FILE as FINISHED
from penstock.jobs.finished_job import find_finished, finish
from penstock.jobs.output_files import IS_SHARD, TaskWriter, is_there
from penstock.jobs.output_index import index_path
from penstock.jobs.output_listing import OutputSet
from penstock.jobs.output_names import absolute, job_name
from penstock.jobs.plan import Plan, Task, inside
from penstock.jobs.progress import Progress, make_progress
from penstock.jobs.runner import run_tasks
from penstock.redact import redact
from penstock.shards.sample_reader import Sample
from penstock.shards.writing import TarWriter
from penstock.shards.writing.compression import compression_of
from penstock.storage.small_files import delete_file, list_files, write_file
from penstock.storage.urls import local_path, rewrite_url, scheme_of
from penstock.tools.call_record import CallRecord, Entry
from penstock.tools.outputs import refuse_existing, refuse_zeromq, shard_name
from penstock.tools.units import parse_size
from penstock.tools.written import REMEDY, KeyPolicy, Written, duplicate_error

KEEP_REMEDY = ", or use --duplicates keep to write it anyway"
DEFAULT_SIZE = 10**9
"""Bytes of a shard's fields where neither a count nor a size is asked for."""


F = TypeVar("F", bound=Callable[..., Any])


class ShardOptions(TypedDict, total=False):
    """Keyword arguments that all functions which write numbered shards have."""

    count: int | None
    """Samples per shard."""
    size: int | str | None
    """Bytes per shard, such as "512MiB"; by default 1 GB, unless ``count`` is given."""
    duplicates: str
    """A key that the shard has already: "error" (default), "number" (KEY~2) or "keep"."""
    jobs: int | None
    """How many shards are written at once; by default one per core."""
    index: bool
    """Write an index beside local shards (default)."""
    force: bool
    """Replace outputs that exist."""
    quiet: bool
    """Draw no progress (default)."""


class SampleSource(Protocol):
    """Samples that can be read by number; it may be pickled for worker processes."""

    @property
    def keys(self) -> Sequence[str]: ...

    @property
    def size(self) -> Sequence[int]:
        """The bytes of each sample's fields."""

    @property
    def identity(self) -> Any:
        """What decides the bytes of the samples, as JSON."""

    def entries(self) -> Iterator[Entry]:
        """Yield every input, for a message about those that changed."""

    def read(self, numbers: Sequence[int]) -> Iterator[Sample]:
        """Yield the samples of those numbers, in that order."""


class OutputPlace:
    """Where shards go: a pattern with a number, one file, or ``-`` for standard output."""

    def __init__(self, output: str | os.PathLike[str]) -> None:
        self.text = os.fspath(output)
        refuse_zeromq(self.text)
        if scheme_of(self.text) == "pipe":
            raise PipelineError(
                "shards cannot be written to a command: write them to standard output (-o -) and "
                "pipe that"
            )
        self.numbered = "%" in self.text
        folder, slash, self.rest = absolute(self.text).rpartition("/")
        if self.numbered:
            shard_name(self.rest, 0)
        nameless = not self.text or not self.rest or self.text.endswith("/")
        if nameless or (slash and folder.endswith(":/")):
            raise PipelineError(
                "the output is a file or a pattern such as out/train-%06d.tar, not "
                f"{redact(self.text)!r}"
            )
        self.folder = folder or ("/" if slash else "")
        self.control = ControlFolder(self.folder, job_name(self.rest))

    @property
    def is_stdout(self) -> bool:
        return self.text == "-"

    def name(self, number: int) -> str:
        """Return the name of a shard in the folder."""
        return shard_name(self.rest, number) if self.numbered else self.rest

    def url(self, number: int) -> str:
        return inside(self.folder, self.name(number))

    @contextlib.contextmanager
    def spool(self) -> Iterator[Callable[[int], str]]:
        """Provide paths for copies of inputs, which are removed at the end.

        They are in the control folder, where a later run finds and replaces those of a killed one.
        """
        root = local_path(rewrite_url(self.control.root))
        if root is None or self.is_stdout:
            with tempfile.TemporaryDirectory(prefix="penstock-") as folder:
                yield lambda number: os.path.join(folder, f"spool-{number}.tar")
            return
        made: list[str] = []

        def path(number: int) -> str:
            os.makedirs(root, exist_ok=True)
            made.append(os.path.join(root, f"spool-{number}.tar"))
            return made[-1]

        try:
            yield path
        finally:
            for one in made:
                with contextlib.suppress(OSError):
                    os.unlink(one)
            if made and not os.path.exists(os.path.join(root, "plan.json")):
                self.control.remove(keep=FINISHED)


def cut_order(
    sizes: Sequence[int], order: Sequence[int], count: int | None, size: int | None
) -> list[tuple[int, int]]:
    """Return from where to where in the order each shard goes.

    A shard that has ``count`` samples or ``size`` bytes takes no further one.

    >>> cut_order([5, 5, 5, 5, 5], range(5), None, 10), cut_order([5] * 3, range(3), 2, None)
    ([(0, 2), (2, 4), (4, 5)], [(0, 2), (2, 3)])
    """
    if count is not None and count < 1:
        raise PipelineError(f"a shard has at least one sample, not {count}")
    if size is not None and size < 1:
        raise PipelineError(f"a shard has at least one byte, not {size}")
    cuts, begin, filled = [], 0, 0
    for place, number in enumerate(order):
        full = (count is not None and place - begin >= count) or (
            size is not None and filled >= size
        )
        if full and place > begin:
            cuts.append((begin, place))
            begin, filled = place, 0
        filled += sizes[number]
    if begin < len(order):
        cuts.append((begin, len(order)))
    return cuts


def plan_cuts(
    source: SampleSource,
    order: Sequence[int],
    place: OutputPlace,
    count: int | None,
    size: int | None,
) -> list[tuple[int, int]]:
    """Return the cuts for an output; one file or standard output takes everything."""
    if place.numbered:
        if count is None and size is None:
            size = DEFAULT_SIZE
        return cut_order(source.size, order, count, size)
    if count is not None or size is not None:
        raise PipelineError(
            "-n and --size make several shards, which need a pattern such as out-%06d.tar, not "
            f"{redact(place.text)!r}"
        )
    return [(0, len(order))]


def write_order(
    source: SampleSource,
    order: Sequence[int],
    place: OutputPlace,
    *,
    function: str,
    settings: Mapping[str, Any],
    count: int | None = None,
    size: int | str | None = None,
    duplicates: str = "error",
    remedy: str = REMEDY,
    jobs: int | None = None,
    index: bool = True,
    force: bool = False,
    quiet: bool = True,
    post: str | None = None,
) -> Written:
    """Write the samples of ``order`` to numbered shards and return how many there are.

    ``function`` and ``settings`` identify the work: a job that was killed continues only if these
    and the source's identity are the same. ``post`` is a shell command that runs after each shard,
    with ``%s`` replaced by its name. ``remedy`` is what a message about a duplicate key advises.
    """
    KeyPolicy(duplicates)
    limit = None if size is None else parse_size(size)
    cuts = plan_cuts(source, order, place, count, limit)
    if duplicates == "error":
        refuse_duplicates(source, order, cuts, place, remedy)
    work = WriteSamples(source, order, duplicates)
    if place.is_stdout:
        return _write_stdout(work, place, len(order))
    tasks = [
        Task(f"{number:06d}", outputs=(place.name(number),), argument=[begin, end])
        for number, (begin, end) in enumerate(cuts)
    ]
    urls = getattr(source, "urls", ())
    OutputSet(task.outputs[0] for task in tasks).refuse_inputs(place.folder, urls, force=force)
    if force and place.numbered:  # other shards of the pattern are deleted
        OutputSet([place.rest], in_parts=True).refuse_inputs(place.folder, urls, force=force)
    digest = hashlib.sha256(json.dumps(source.identity, sort_keys=True).encode()).hexdigest()
    plan = Plan(
        tasks,
        function=function,
        options={**settings, "duplicates": duplicates, "inputs_sha256": digest},
        index=index and duplicates != "keep" and has_shards(tasks),
    )
    own = {"-n": count, "--size": limit}
    record = CallRecord(place.control, digest, own, source.entries)
    run_job(
        *(plan, work, place),
        jobs=jobs,
        force=force,
        quiet=quiet,
        post=post,
        record=record,
    )
    if force and place.numbered:
        _delete_following(place, len(tasks))
    sizes = source.size
    return Written(place.text, len(tasks), len(order), sum(sizes[number] for number in order))


def takes_shard_options(function: F) -> F:
    """Show the shared options in the signature of a function that passes them to write_order."""
    own, shared = inspect.signature(function), inspect.signature(write_order).parameters
    named = [one for one in own.parameters.values() if one.kind is not one.VAR_KEYWORD]
    options = [shared[name] for name in ShardOptions.__annotations__]
    function.__signature__ = own.replace(parameters=[*named, *options])  # type: ignore[attr-defined]
    return function


def has_shards(tasks: Sequence[Task]) -> bool:
    """Whether the outputs have names of shards: others get no index."""
    return bool(tasks) and all(IS_SHARD(name) for task in tasks for name in task.outputs)


def run_job(
    plan: Plan,
    work: Callable[[Task, TaskWriter], None],
    place: OutputPlace,
    *,
    jobs: int | None,
    force: bool,
    quiet: bool = False,
    post: str | None = None,
    record: CallRecord | None = None,
) -> Any:
    """Do the tasks that are missing, run ``post`` for each, and clear the control folder.

    If an error occurs before the first task is finished, the control folder is removed, too.
    """
    control, plan, call = place.control, plan.with_stamps(), post or ""
    begun = force or control.read_plan() is not None
    if not force and (report := find_finished(control, plan, call)) is not None:
        return report
    if not begun:
        try:
            for task in plan.tasks:
                for output in task.outputs:
                    refuse_existing(inside(place.folder, output), force)
        except StorageError:
            control.remove(keep=FINISHED)  # empty folders of a run that was killed at its start
            raise
    if record is not None:
        if begun and not force:
            record.check()
        else:
            record.write()
    shown = make_progress(False if quiet else None)
    try:
        report = run_tasks(
            plan if post is None else dataclasses.replace(plan, index=False),
            work,
            folder=place.folder,
            name=control.name,
            jobs=min(jobs or count_cores(), max(len(plan.tasks), 1)),
            retries=0,
            force=force,
            keep_control_folder=post is not None,
            redo_lost=post is None,  # the command may move or delete the shard
            checksums=False,
            progress=shown if post is None else _PostProgress(post, control, shown, plan),
        )
    except BaseException:
        if not list_files(control.url("done")) and (force or not _any_output(plan, place)):
            control.remove()
        raise
    if post is not None:
        for task in plan.tasks:
            run_post(post, control, task.name, task.outputs[0])
        if plan.index:
            _index_posted(plan, place.folder)
        finish(control, plan, report, control.finished_records(plan).values(), call)
    return report


def _any_output(plan: Plan, place: OutputPlace) -> bool:
    """Whether a local output is there: its task ended before its record was written."""
    paths = (local_path(inside(place.folder, name)) for task in plan.tasks for name in task.outputs)
    return any(path is not None and os.path.exists(path) for path in paths)


def _index_posted(plan: Plan, folder: str) -> None:
    """Write the index of the local shards that the command of ``--post`` has not removed."""
    from penstock.shards.index.build import extend_index, one_builder  # loads numpy and pyarrow

    paths = [local_path(inside(folder, name)) for task in plan.tasks for name in task.outputs]
    there = [path for path in paths if path is not None and os.path.exists(path)]
    if there:
        out = index_path(plan, folder)
        with one_builder(out):
            extend_index(there, out)


class _PostProgress(Progress):
    """Runs a command after each shard, and forwards the rest."""

    def __init__(self, post: str, control: ControlFolder, shown: Progress, plan: Plan) -> None:
        super().__init__()
        self._outputs = {task.name: task.outputs[0] for task in plan.tasks}
        self._post, self._control, self._shown = post, control, shown

    def finished(self, record: Mapping[str, Any]) -> None:
        self._shown.finished(record)
        run_post(self._post, self._control, record["task"], self._outputs[record["task"]])

    def waiting(self) -> None:
        self._shown.running = self.running
        self._shown.waiting()

    def begin(self) -> None:
        self._shown.total, self._shown.done = self.total, self.done
        self._shown.begin()

    def end(self) -> None:
        self._shown.end()


def run_post(post: str, control: ControlFolder, task: str, output: str) -> None:
    """Run the command for a shard unless it has run; one that fails is a StorageError."""
    mark = f"{task}.post"
    if mark in list_files(control.url("claims")):
        return
    url = inside(control.folder, output)
    path = local_path(rewrite_url(url))
    command = post.replace("%s", shlex.quote(url if path is None else os.path.relpath(path)))
    done = subprocess.run(["/bin/bash", "-c", command], check=False)
    if done.returncode:
        raise StorageError(
            f"the command of --post ended with status {done.returncode} ({command}): the same call "
            "runs it again",
            origin=Origin(url),
        )
    write_file(control.url("claims", mark), b"done")


class WriteSamples:
    """The work of a task: some samples of the order, into one shard."""

    def __init__(self, source: SampleSource, order: Sequence[int], duplicates: str) -> None:
        self.source, self.order, self.duplicates = source, order, duplicates
        self.remedy: str = getattr(source, "remedy", KEEP_REMEDY)

    def __call__(self, task: Task, write: TaskWriter) -> None:
        begin, end = task.argument
        (output,) = task.outputs
        write.keep_meta = True  # all fields of the samples are data
        if self.duplicates != "keep":
            self.send(begin, end, write, inside(write.folder, output))
        else:
            with TarWriter(
                write.open(output),
                encoder=False,
                compress=compression_of(output) or False,
                keep_meta=True,
                check=False,
            ) as sink:
                self.send(begin, end, sink.write, output)
        write.count_all(end - begin)

    def send(self, begin: int, end: int, put: Callable[[Any], Any], shard: str) -> None:
        policy = KeyPolicy(self.duplicates)
        for sample in self.source.read(self.order[begin:end]):
            put(policy.apply(sample, shard))


def _write_stdout(work: WriteSamples, place: OutputPlace, count: int) -> Written:
    check = work.duplicates != "keep"
    with TarWriter("-", encoder=False, keep_meta=True, check=check) as sink:
        sink.remedy = work.remedy
        written = Written(place.text, 1, count)

        def put(sample: Any) -> None:
            written.bytes += sink.write(sample)

        work.send(0, count, put, "-")
    return written


def refuse_duplicates(
    source: SampleSource,
    order: Sequence[int],
    cuts: list[tuple[int, int]],
    place: OutputPlace,
    remedy: str,
) -> None:
    """Raise DuplicateError if a shard would have a key twice."""
    for shard, (begin, end) in enumerate(cuts):
        seen: set[str] = set()
        for number in order[begin:end]:
            key = source.keys[number]
            if key in seen:
                raise duplicate_error(key, "-" if place.is_stdout else place.url(shard), remedy)
            seen.add(key)


def _delete_following(place: OutputPlace, number: int) -> None:
    """Delete shards with higher numbers, which an earlier run of more shards left."""
    while is_there(url := place.url(number)):
        delete_file(url)
        number += 1
