"""Jobs: parallel work on shards that survives kills and runs only missing tasks.

The unit is a *task*: some inputs, and the names of some outputs. A :class:`Plan` has all tasks of a
job; :func:`run_tasks` runs those that are not done yet::

    tasks = [Task(f"{n:04d}", outputs=(f"part-{n:04d}.tar",), argument=[n, n + 10]) for n in …]
    plan = Plan(tasks, function="numbers/1")

    def work(task, write):
        for n in range(*task.argument):
            write({"__key__": f"{n:06d}", "cls": n})

    report = run_tasks(plan, work, folder="out", keep_control_folder=False)

``write(sample)`` adds a sample to the task's output shard, ``write.open(output)`` is a stream to an
output of any kind, ``write.path(output)`` a path for code that writes files itself. Outputs appear
under their final names when the work has returned, complete; then a record in
``<folder>/.penstock/<name>/done/`` says that the task is finished. A process that is killed at any
moment loses at most its current task. Two processes may run the same task without harm.

On top of that, :func:`map_shards` transforms shards into shards, and :func:`reshard` sorts or
shuffles all samples of a data set into new shards.

::

    write_shards.py       write_shards: any dataset into shards
    map_shards.py         map_shards: the work of its tasks
    reshard.py            reshard: a global shuffle or sort
    sample_order.py       the order of all samples, and gathering a part of it
    plan.py               Task, Plan: what is to be done
    function_identity.py  the hash of a function's code, by which a plan knows it
    output_names.py       the names of outputs: from a list or a pattern, and from the inputs
    output_files.py       TaskWriter: outputs under temporary names, then published
    output_index.py       the index of the outputs
    output_listing.py     which outputs exist, were lost, are of another job, or no longer planned
    attempt.py            one attempt at a task
    control_folder.py     plan.json, done/, failed/, claims/
    control_schema.py     checks these files when they are read
    finished_job.py       finished.json: what is left of them after a complete job
    runner.py             run_tasks: missing tasks, retries, errors
    engines/              where tasks run: processes, job arrays, Dask, Ray
    report.py             JobReport
    verify.py             the state of a job; verification that it is complete
    dry_run.py            estimates time, requests and bytes of a job from a few tasks
    progress.py           a progress bar, or JSON Lines
"""

from __future__ import annotations

from penstock.jobs.control_folder import ControlFolder
from penstock.jobs.engines.engine import Engine
from penstock.jobs.map_shards import map_shards
from penstock.jobs.output_files import TaskWriter
from penstock.jobs.plan import Plan, Task
from penstock.jobs.report import JobReport
from penstock.jobs.reshard import reshard
from penstock.jobs.runner import run_tasks

__all__ = [
    "ControlFolder",
    "Engine",
    "JobReport",
    "Plan",
    "Task",
    "TaskWriter",
    "map_shards",
    "reshard",
    "run_tasks",
]
