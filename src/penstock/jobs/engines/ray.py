"""Tasks on a Ray cluster."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from typing import Any

from penstock.errors import PipelineError, optional
from penstock.jobs.attempt import Attempts, Result, portable
from penstock.jobs.engines.engine import WAIT_S, Engine, count_cores
from penstock.jobs.engines.remote_call import PackedJob, make_attempt
from penstock.jobs.plan import Task


class RayEngine(Engine):
    """The Ray cluster that this process is connected to, or a local one.

    Nodes may come and go while the job runs: there are as many tasks as the cluster has room for,
    and one more, for which an autoscaler starts another node. ``options`` are those of
    ``ray.remote`` for every task, such as ``{"num_gpus": 1}``; a task takes one core unless they
    have ``num_cpus``. Ray's own retries are off: a task whose worker dies
    is reported as lost, as by the local engine.
    """

    def __init__(self, jobs: int | None = None, *, options: dict[str, Any] | None = None) -> None:
        self._ray = optional("ray", "ray", "the engine ray")
        self._jobs, self._options = jobs, {"num_cpus": 1, **(options or {})}
        self._started = False
        self._running: dict[Any, str] = {}
        self._packed: PackedJob | None = None
        self._slots, self._counted_at = 1, float("-inf")

    def start(self, attempts: Attempts, tasks: int) -> None:
        ray = self._ray
        if not ray.is_initialized():
            self._connect()
        self._follow()
        packed = PackedJob(attempts, "ray")
        self._packed, self._data = packed, ray.put(packed.data)
        self._call = ray.remote(**{"max_retries": 0, **self._options})(make_attempt)

    def _follow(self) -> None:
        """Count the tasks that can run at once, at most once a second."""
        if time.monotonic() - self._counted_at >= WAIT_S:
            self._slots = count_slots(self._ray.cluster_resources(), self._options)
            self.capacity = min(self._slots + 1, self._jobs or sys.maxsize)
            self._counted_at = time.monotonic()

    @property
    def running(self) -> list[str]:
        return list(self._running.values())

    def _connect(self) -> None:
        """Join the cluster that this machine belongs to, or start a local one."""
        settings = {"log_to_driver": False, "configure_logging": False}
        try:
            self._ray.init(address="auto", **settings)
        except ConnectionError:
            cores = self._jobs or count_cores()
            self._ray.init(address="local", num_cpus=cores, include_dashboard=False, **settings)
        self._started = True

    def submit(self, task: Task, identity: str) -> None:
        if self._packed is None:
            raise PipelineError("the engine was not started")
        reference = self._call.remote(self._packed.name, self._data, task, identity)
        self._running[reference] = task.name

    def finished(self) -> list[Result]:
        ready, _ = self._ray.wait(list(self._running), num_returns=1, timeout=WAIT_S)
        self._follow()
        return [self._result(reference, self._running.pop(reference)) for reference in ready]

    def cancel(self) -> list[str]:
        """Drop the tasks that wait for resources, which are the newest."""
        names = []
        while len(self._running) > self._slots:
            reference, name = self._running.popitem()
            self._ray.cancel(reference)
            names.append(name)
        return names

    def _result(self, reference: Any, name: str) -> Result:
        errors = self._ray.exceptions
        try:
            result: Result = self._ray.get(reference)
            return result
        except errors.RayError as error:  # also what the task raised
            dead = (errors.WorkerCrashedError, errors.NodeDiedError, errors.ObjectLostError)
            lost = isinstance(error, (*dead, errors.OutOfMemoryError))
            return Result(name, None, portable(error), lost=lost)

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        if self._started:
            self._ray.shutdown()
            self._started = False


def count_slots(cluster: Mapping[str, float], options: Mapping[str, Any]) -> int:
    """Return how many tasks with these options of ``ray.remote`` a cluster can run at once.

    >>> count_slots({"CPU": 64, "GPU": 4}, {"num_cpus": 1, "num_gpus": 0.5})
    8
    """
    needs = {
        "CPU": options.get("num_cpus"),
        "GPU": options.get("num_gpus"),
        "memory": options.get("memory"),
        **(options.get("resources") or {}),
    }
    # Tasks that need nothing are limited by the cores.
    needs = {name: need for name, need in needs.items() if need} or {"CPU": 1}
    # Ray counts in units of 1/10,000, but 1 // 0.1 is 9.
    return min(int(cluster.get(name, 0) / need + 1e-4) for name, need in needs.items())
