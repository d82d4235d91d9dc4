"""Tasks on a Dask cluster."""

from __future__ import annotations

import queue
from typing import Any

from penstock.errors import PipelineError, optional
from penstock.jobs.attempt import Attempts, Result, portable
from penstock.jobs.engines.engine import Engine, count_cores
from penstock.jobs.engines.remote_call import PackedJob, make_attempt
from penstock.jobs.plan import Task


class DaskEngine(Engine):
    """The workers of ``client``; of the current client; or of a local cluster of processes.

    A task whose worker dies is reported as lost, as by the local engine.
    """

    def __init__(self, jobs: int | None = None, *, client: Any = None) -> None:
        self._distributed = optional("distributed", "dask", "the engine dask")
        self._jobs, self._client = jobs, client
        self._own: list[Any] = []
        self._futures: dict[Any, str] = {}
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._packed: PackedJob | None = None

    def start(self, attempts: Attempts, tasks: int) -> None:
        if self._client is None:
            self._client = self._find_client(min(self._jobs or count_cores(), max(tasks, 1)))
        # No more than can run at once: what is submitted cannot be kept from starting.
        self.capacity = sum(self._client.nthreads().values()) or self._jobs or 1
        self._packed = PackedJob(attempts, "dask")

    def _find_client(self, jobs: int) -> Any:
        try:
            return self._distributed.get_client()
        except ValueError:
            pass  # there is none
        cluster = self._distributed.LocalCluster(
            n_workers=jobs, threads_per_worker=1, processes=True, dashboard_address=None
        )
        client = self._distributed.Client(cluster, set_as_default=False)
        self._own = [client, cluster]
        return client

    def submit(self, task: Task, identity: str) -> None:
        if self._packed is None:
            raise PipelineError("the engine was not started")
        future = self._client.submit(
            *(make_attempt, self._packed.name, self._packed.data, task, identity),
            pure=False,
            retries=0,
        )
        self._futures[future] = task.name
        future.add_done_callback(self._ended.put)

    def finished(self) -> list[Result]:
        while True:
            future = self._ended.get()
            name = self._futures.pop(future, None)
            if name is not None:
                return [self._result(future, name)]

    def _result(self, future: Any, name: str) -> Result:
        try:
            result: Result = future.result()
            return result
        except Exception as error:  # noqa: BLE001 - result() raises what the task raised
            lost = isinstance(error, self._distributed.KilledWorker)
            return Result(name, None, portable(error), lost=lost)

    def close(self) -> None:
        if self._futures:
            self._client.cancel(list(self._futures))
            self._futures.clear()
        for part in self._own:
            part.close()
        self._own = []
