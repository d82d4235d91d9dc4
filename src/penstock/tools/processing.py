"""``proc``: a shell command for every sample.

The command runs in a new folder that has the fields of a sample as files ``sample.EXT`` and its key
as ``sample.__key__``. Afterwards the files there are the sample: new ones are added, deleted ones
are gone. With ``multi`` the files ``sample-000000.EXT``, ``sample-000001.EXT`` and so on are
several samples.
"""

from __future__ import annotations

import collections
import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from penstock.errors import Origin, PipelineError, SampleError, WriteError, ran_out
from penstock.jobs.engines.engine import count_cores
from penstock.jobs.output_files import TaskWriter
from penstock.jobs.output_listing import OutputSet
from penstock.jobs.plan import Plan, Task
from penstock.shards.sample_reader import READERS_OWN, Sample
from penstock.shards.writing import TarWriter
from penstock.tools.field_spec import FieldSpec
from penstock.tools.inputs import Shards, list_shards
from penstock.tools.member_groups import read_all
from penstock.tools.outputs import outputs_for
from penstock.tools.shard_output import OutputPlace, has_shards, run_job
from penstock.tools.slices import StreamSlice, parse_slice
from penstock.tools.written import Written

ON_ERROR = ("abort", "skip", "keep")
LOG_BYTES = 300
"""So much of a failed command's output is in the message."""
_SEVERAL = re.compile(r"sample-(\d+)\.(.+)", re.DOTALL)
KEY = "__key__"


def proc(
    shards: Shards,
    output: str | os.PathLike[str],
    *,
    list_file: str | None = None,
    command: str | None = None,
    multi: str | None = None,
    fields: FieldSpec | str | None = None,
    slice: StreamSlice | str | None = None,
    jobs: int | None = None,
    on_error: str = "abort",
    log: str | None = None,
    index: bool = True,
    force: bool = False,
    quiet: bool = True,
) -> Written:
    """Run a shell command for every sample of shards, and write what it makes of them.

    Exactly one of ``command`` (one sample from one) and ``multi`` (several from one) is given. Each
    shard has its own output: the pattern's number, or its name in a folder (``out/``). ``jobs``
    commands run at once; samples keep their order. If a command fails, ``on_error`` aborts, skips
    the sample, or keeps it as it was. ``log`` is a field for the command's output. ``slice`` takes
    a part of each shard. Finished shards are not done again after a kill.
    """
    if (command is None) == (multi is None):
        raise PipelineError("proc takes one of -c and --multi")
    if on_error not in ON_ERROR:
        raise PipelineError(f"on_error= is one of {', '.join(ON_ERROR)}, not {on_error!r}")
    text = os.fspath(output)
    spec = FieldSpec(fields) if isinstance(fields, str) else fields
    part = parse_slice(slice) if isinstance(slice, str) else slice
    urls = list_shards(shards, list_file)
    runner = CommandRunner(command or multi or "", multi is not None, on_error, log)
    work = ProcessShard(runner, spec, part or StreamSlice(), jobs or count_cores())
    done = Written(text)
    if text == "-":
        with TarWriter("-", encoder=False, keep_meta=True) as sink:
            sink.remedy = work.remedy
            work.send(urls, sink.write)
        done.shards = 1
    else:
        place = OutputPlace(text + "%06d.tar" if text.endswith("/") else text)
        tasks = [
            Task(f"{number:06d}", (url,), (os.path.basename(output),))
            for number, (url, output) in enumerate(zip(urls, outputs_for(urls, text)))
        ]
        options = {
            "command": runner.command,
            "multi": runner.several,
            "on_error": on_error,
            "log": log,
            "fields": None if spec is None else spec.sources,
            "slice": part,
        }
        indexed = index and has_shards(tasks)
        plan = Plan(tasks, function="penstock.tools.proc/1", options=options, index=indexed)
        OutputSet.of(plan).refuse_inputs(place.folder, urls, force=force)
        report = run_job(plan, work, place, jobs=1, force=force, quiet=quiet)
        work.samples, done.shards = report.samples_out, len(tasks)
    done.samples, done.bytes, done.failed = work.samples, work.bytes, runner.failed
    return done


class ProcessShard:
    """The work of a task: all samples of one shard, each by a command."""

    remedy = "; the command may write other files, and another key to sample.__key__"

    def __init__(
        self, runner: CommandRunner, spec: FieldSpec | None, part: StreamSlice, jobs: int
    ) -> None:
        self.runner, self.spec, self.part, self.jobs = runner, spec, part, jobs
        self.samples = self.bytes = 0

    def __call__(self, task: Task, write: TaskWriter) -> None:
        write.keep_meta = True

        def put(sample: Sample) -> int:
            return write(sample)

        write.count_all(self.send(task.inputs, put))

    def send(self, urls: Any, put: Callable[[Sample], int]) -> int:
        """Write the samples that come of those in the shards; return how many were read."""
        count = 0
        waiting: collections.deque[Future[list[Sample]]] = collections.deque()
        with ThreadPoolExecutor(self.jobs, "penstock-proc") as pool:
            try:
                for sample, offset in self.part(read_all(urls)):
                    origin = Origin(sample["__url__"], sample[KEY], offset)
                    if self.spec is not None:
                        chosen = {f: value for f, value in sample.items() if f not in READERS_OWN}
                        sample = {KEY: sample[KEY], **self.spec.require(chosen, origin)}
                    count += 1
                    waiting.append(pool.submit(self.runner.run, sample, origin))
                    if len(waiting) >= 2 * self.jobs:
                        self._write(waiting.popleft(), put)
                while waiting:
                    self._write(waiting.popleft(), put)
            except BaseException:
                for future in waiting:
                    future.cancel()
                self.runner.stop()  # the pool waits for its threads
                raise
        return count

    def _write(self, future: Future[list[Sample]], put: Callable[[Sample], int]) -> None:
        for sample in future.result():
            self.bytes += put(sample)
            self.samples += 1


class CommandRunner:
    """Runs the command for one sample at a time; threads may share it."""

    def __init__(self, command: str, several: bool, on_error: str, log: str | None) -> None:
        self.command, self.several, self.on_error, self.log = command, several, on_error, log
        self.failed = 0
        self._stopped = False
        self._running: set[subprocess.Popen[bytes]] = set()

    def stop(self) -> None:
        """End all commands that run, and those that threads are about to start."""
        self._stopped = True
        for process in list(self._running):
            _kill(process)

    def run(self, sample: Sample, origin: Origin) -> list[Sample]:
        """Return the samples that the command makes of this one."""
        with tempfile.TemporaryDirectory(prefix="penstock-proc-") as folder:
            _write_files(folder, sample, origin)
            process = subprocess.Popen(
                ["/bin/bash", "-c", self.command],
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=0,  # so that all that it starts can be ended
            )
            self._running.add(process)
            try:
                if self._stopped:
                    _kill(process)
                printed = process.communicate()[0]
            finally:
                self._running.discard(process)
            said = {} if self.log is None else {self.log: printed}
            if process.returncode:
                self.failed += 1
                if self.on_error == "skip":
                    return []
                if self.on_error == "keep":
                    return [{**_without_place(sample), **said}]
                raise _failure(process.returncode, printed, origin)
            if self.log is None and printed:
                sys.stderr.buffer.write(printed)
                sys.stderr.flush()
            found = list(self._collect(folder, str(sample[KEY])))
        return [{**one, **said} for one in found]

    def _collect(self, folder: str, key: str) -> Iterator[Sample]:
        groups: dict[int, dict[str, bytes]] = {}
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            if not entry.is_file():
                continue
            if self.several:
                match = _SEVERAL.fullmatch(entry.name)
                number, field = (int(match[1]), match[2]) if match else (-1, "")
            else:
                prefix, _, field = entry.name.partition(".")
                number = 0 if prefix == "sample" else -1
            if number < 0 or not field:
                continue
            with open(entry.path, "rb") as file:
                groups.setdefault(number, {})[field.lower()] = file.read()
        for number, fields in sorted(groups.items()):
            name = fields.pop(KEY, None)
            if not fields:
                continue
            usual = f"{key}/{number:06d}" if self.several else key
            text = usual if name is None else name.decode("utf-8", "surrogateescape").rstrip("\n")
            yield {KEY: text, **fields}


def _without_place(sample: Sample) -> Sample:
    own = READERS_OWN - {KEY}
    return {field: value for field, value in sample.items() if field not in own}


def _write_files(folder: str, sample: Sample, origin: Origin) -> None:
    for field, value in _without_place(sample).items():
        data = value.encode("utf-8", "surrogateescape") if field == KEY else value
        try:
            with open(os.path.join(folder, f"sample.{field}"), "xb") as file:
                file.write(data)
        except OSError as error:
            if ran_out(error):
                raise
            raise WriteError(
                f"the field {field[:100]!r} cannot become a file: {error.strerror}", origin=origin
            ) from error


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _failure(status: int, printed: bytes, origin: Origin) -> SampleError:
    said = printed[-LOG_BYTES:].decode("utf-8", "replace").strip()
    return SampleError(
        f"the command ended with status {status}"
        f"{': ' + said if said else ''} (--on-error skip or keep continues)",
        origin=origin,
    )
