"""Shards to shards: a function applied to every sample, or to every shard."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from penstock.errors import Origin, PenstockError, PipelineError, ShardError, StorageError
from penstock.handlers import Handler, ask, reraise_exception
from penstock.jobs.engines.engine import Engine
from penstock.jobs.function_identity import identify, name_of
from penstock.jobs.output_files import TaskWriter, count_samples
from penstock.jobs.output_listing import OutputSet
from penstock.jobs.output_names import absolute, name_outputs
from penstock.jobs.plan import Plan, Task, changed_input
from penstock.jobs.report import JobReport
from penstock.jobs.runner import describe_error, run_tasks
from penstock.nearest_name import checks_arguments
from penstock.shards.open_shard import open_shard, open_stream
from penstock.shards.sample_reader import Sample, Samples
from penstock.storage.listing import find_shards
from penstock.storage.small_files import FileStamp
from penstock.storage.urls import is_remote, local_path

if TYPE_CHECKING:
    from penstock.pipeline.data_pipeline import DataPipeline


@checks_arguments
def map_shards(
    fn: Any,
    inputs: Any,
    outputs: Any,
    *,
    unit: str = "sample",
    engine: str | Engine = "local",
    jobs: int | None = None,
    handler: Handler = reraise_exception,
    retries: int = 2,
    on_error: str = "abort",
    timeout: float | None = None,
    maxcount: float | None = None,
    maxsize: float | None = None,
    index: bool = True,
    name: str | None = None,
    version: str = "",
    force: bool = False,
    dry_run: bool = False,
    progress: Any = None,
    worker: tuple[int, int] | None = None,
) -> JobReport:
    """Apply ``fn`` to all samples, or all shards, of the inputs, and write the results as shards.

    With ``unit="sample"``, ``fn(sample)`` returns a sample, None (drop it) or an iterable of
    samples. Fields are bytes; other values in the result are encoded by their extension. ``fn``
    may also be a :class:`~penstock.DataPipeline` without a source. With ``unit="shard"``,
    ``fn(input_url, output_path)`` writes one shard to a local path. A class is constructed once
    per worker, without arguments, and the object is then called.

    ``inputs`` are URLs, braces or globs. ``outputs`` is a list as long as the inputs, or a pattern:
    ``{stem}`` is the input's name without folder and extension, ``%06d`` its number. With
    ``maxcount`` samples or ``maxsize`` bytes per shard, each input makes several shards, and the
    pattern needs both, such as ``{stem}-%03d.tar``; then ``%d`` is the number of the part.

    Errors of a sample are passed to ``handler``; those in a stage of a pipeline to the handler of
    that stage. A shard that fails is attempted ``retries`` times more, then ``on_error`` decides:
    "abort" or "skip". An attempt that takes longer than ``timeout`` seconds is ended and has failed
    (engines "local" and "array"). The same call again runs what is missing or lost; a changed
    function or input is an error unless ``version`` changes or ``force`` is set. See
    :func:`~penstock.jobs.run_tasks`. ``dry_run`` processes a few shards, keeps nothing, and
    estimates the whole job (``report.estimate``).

    >>> import os, tempfile, penstock
    >>> folder = tempfile.mkdtemp()
    >>> with penstock.TarWriter(os.path.join(folder, "a.tar")) as sink:
    ...     size = sink.write({"__key__": "x", "txt": "hello"})
    >>> def shout(sample):
    ...     return {**sample, "txt": sample["txt"].upper()}
    >>> report = map_shards(shout, f"{folder}/a.tar", f"{folder}/out/{{stem}}.tar", jobs=1)
    >>> report.samples_out, [sample["txt"] for sample in penstock.WebDataset(f"{folder}/out/a.tar")]
    (1, [b'HELLO'])
    """
    _check_limits(unit, maxcount, maxsize)
    urls = [absolute(url) for url in find_shards(inputs)]
    in_parts = maxcount is not None or maxsize is not None
    named = name_outputs(outputs, urls, in_parts=in_parts)
    if unit == "shard" and handler is not reraise_exception:
        raise PipelineError(
            "handler= (--handler) decides about samples, but with unit='shard' fn reads them: "
            "handle their errors in fn, or leave out whole shards with on_error='skip'"
        )
    work = SampleWork(fn, handler) if unit == "sample" else ShardWork(fn)
    plan = Plan(
        [
            Task(task, (url,), (output,))
            for task, url, output in zip(named.tasks, urls, named.names)
        ],
        function=identify(fn),
        version=version,
        options={"unit": unit, "handler": name_of(handler)},
        maxcount=maxcount,
        maxsize=maxsize,
        index=index,
    )
    OutputSet.of(plan).refuse_inputs(named.folder, urls, force=force)
    if dry_run:
        from penstock.jobs.dry_run import estimate

        return estimate(plan, work, folder=named.folder, jobs=jobs, engine=engine)
    return run_tasks(
        plan,
        work,
        folder=named.folder,
        name=name or named.job_name,
        engine=engine,
        jobs=jobs,
        retries=retries,
        on_error=on_error,
        timeout=timeout,
        force=force,
        progress=progress,
        worker=worker,
    )


def _check_limits(unit: str, maxcount: float | None, maxsize: float | None) -> None:
    if unit not in ("sample", "shard"):
        raise PipelineError(f"unit= is 'sample' or 'shard', not {unit!r}")
    if unit == "shard" and (maxcount is not None or maxsize is not None):
        raise PipelineError(
            "with unit='shard' the function writes one shard: maxcount= and maxsize= need "
            "unit='sample'"
        )
    if (maxcount is not None and maxcount < 1) or (maxsize is not None and maxsize <= 0):
        raise PipelineError(
            f"a shard holds at least one sample: maxcount={maxcount!r}, maxsize={maxsize!r}"
        )


class OncePerWorker:
    """A function, or a class whose object is made at the first call in each worker."""

    def __init__(self, function: Any) -> None:
        if inspect.isclass(function) and not any("__call__" in vars(c) for c in function.__mro__):
            raise PipelineError(
                f"a class for map_shards has a method __call__, but {function.__name__} has none"
            )
        self.function = function
        self._made = threading.local()

    def get(self) -> Callable[..., Any]:
        """Return the function to call."""
        if not inspect.isclass(self.function):
            function: Callable[..., Any] = self.function
            return function
        if getattr(self._made, "process", None) != os.getpid():  # a fork copies what was made
            self._made.object, self._made.process = self.function(), os.getpid()
        made: Callable[..., Any] = self._made.object
        return made

    def __getstate__(self) -> Any:
        return self.function

    def __setstate__(self, function: Any) -> None:
        self.__init__(function)  # type: ignore[misc]


class SampleWork:
    """The work of ``unit="sample"``: holds one sample at a time."""

    remedy = "; return another name from the function, or skip such samples with handler="

    def __init__(self, function: Any, handler: Handler = reraise_exception) -> None:
        if not callable(function) and not _is_pipeline(function):
            raise PipelineError(
                f"map_shards needs a function, a class or a DataPipeline, not {function!r}"
            )
        self.function, self.handler = OncePerWorker(function), handler

    def __call__(self, task: Task, write: TaskWriter) -> None:
        (url,) = task.inputs
        with open_shard(url, stream=_open_input(task)) as tape:
            found = Samples(tape, lambda error: self._skips(error, None, write))
            samples = _note_meta(found, write)
            try:
                if _is_pipeline(self.function.function):
                    self._through_pipeline(self.function.function, samples, write)
                else:
                    self._one_by_one(self.function.get(), samples, found, write)
            except PenstockError as error:
                if getattr(error, "asked", False) or not isinstance(error, ShardError):
                    raise
                self._skips(error, None, write)  # the shard is damaged: the rest of it is lost

    def _one_by_one(
        self,
        function: Callable[..., Any],
        samples: Iterable[Sample],
        found: Samples,
        write: TaskWriter,
    ) -> None:
        for sample in samples:
            key, written = sample["__key__"], 0
            try:
                for result in _results(function(sample), sample):
                    write(result)
                    written += 1
            except StorageError:
                raise
            except Exception as error:  # noqa: BLE001 - the handler decides
                locate(error, Origin(found.tape.url, key, found.offset))
                go_on = self._skips(error, key, write)
                write.count(kept=False, failed=True)
                if not go_on:
                    return
            else:
                write.count(kept=written > 0)

    def _through_pipeline(
        self, pipeline: DataPipeline[Any], samples: Iterable[Sample], write: TaskWriter
    ) -> None:
        from penstock.pipeline.data_pipeline import DataPipeline

        def source() -> Iterator[Sample]:
            for sample in samples:
                write.count(kept=False)
                yield sample

        written = 0
        whole: DataPipeline[Any] = DataPipeline(source, *pipeline.pipeline, seed=pipeline.seed)
        whole.on_error = functools.partial(_count_failed, write)
        try:
            for result in whole:
                try:
                    write(result)
                    written += 1
                except StorageError:
                    raise
                except Exception as error:  # noqa: BLE001 - the handler decides
                    write.failed += 1
                    if not self._skips(error, _key_of(result), write):
                        break
        finally:
            # Which samples a pipeline drops is not known, only how many are missing.
            samples_in = write.samples_in or 0
            write.kept = min(samples_in, written)
            write.failed = min(write.failed, samples_in - write.kept)

    def _skips(self, error: Exception, key: str | None, write: TaskWriter) -> bool:
        """Ask the handler whether to continue, and count the error if it does not raise it."""
        try:
            skips = ask(self.handler, error)
        except Exception as raised:
            raised.asked = True  # type: ignore[attr-defined]
            raise
        _count_error(write, error, key)
        return skips


def _note_meta(samples: Samples, write: TaskWriter) -> Iterator[Sample]:
    """Yield the samples, and let the writer keep their fields that begin with "_".

    Other such fields are not data: stages and functions add them.
    """
    names: set[str] = set()
    write.keep_meta = names
    for sample in samples:
        names.update(field for field in sample if field[:1] == "_")
        yield sample


def _count_failed(write: TaskWriter, error: Exception, item: Any) -> None:
    """Count a sample for which a stage's own handler was asked."""
    write.failed += 1
    _count_error(write, error, _key_of(item))


def _count_error(write: TaskWriter, error: Exception, key: str | None) -> None:
    if key is None and isinstance(error, PenstockError) and error.origin is not None:
        key = error.origin.key
    write.count_error(key, describe_error(error))


def _key_of(item: Any) -> str | None:
    return item.get("__key__") if isinstance(item, Mapping) else None


class ShardWork:
    """The work of ``unit="shard"``: the function reads and writes a whole shard."""

    def __init__(self, function: Any) -> None:
        if not callable(function):
            raise PipelineError(f"map_shards needs a function or a class, not {function!r}")
        self.function = OncePerWorker(function)

    def __call__(self, task: Task, write: TaskWriter) -> None:
        (url,) = task.inputs
        self.function.get()(url, write.path())
        # Another request for all of a remote shard, only to count its samples, is not worth it.
        write.count_all(None if is_remote(url) or local_path(url) is None else count_samples(url))


def _is_pipeline(function: Any) -> bool:
    """Return whether it is a DataPipeline, without loading that module in every worker."""
    module = sys.modules.get("penstock.pipeline.data_pipeline")
    return module is not None and isinstance(function, module.DataPipeline)


def _open_input(task: Task) -> Any:
    """Open the stream of the task's input, if it is still the version that was planned."""
    (url,) = task.inputs
    stream = open_stream(url)
    if is_remote(url) and task.stamps:
        (planned,) = task.stamps
        etag = getattr(stream, "etag", None)
        found = FileStamp.of_object(getattr(stream, "size_bytes", None), etag)
        if any(p is not None and f is not None and p != f for p, f in zip(planned, found)):
            stream.close()
            raise changed_input(url, planned, found)
    return stream


def _results(result: Any, sample: Sample) -> Iterable[Mapping[str, Any]]:
    if result is None:
        return ()
    if isinstance(result, Mapping):
        return (result if "__key__" in result else {"__key__": sample["__key__"], **result},)
    if isinstance(result, (str, bytes)) or not isinstance(result, Iterable):
        raise PipelineError(
            "the function of map_shards returns a sample (a dict), None or an iterable of samples, "
            f"not {type(result).__name__}"
        )
    return result


def locate(error: Exception, origin: Origin) -> None:
    """Add shard, key and byte offset to an error."""
    if isinstance(error, PenstockError) and error.origin is None:
        error.locate(origin)
    else:
        error.add_note(f"({origin})")
