"""Tasks on a Dask cluster."""

from __future__ import annotations

import queue
import time
from typing import Any

from penstock.errors import PipelineError, optional
from penstock.jobs.attempt import Attempts, Result, portable
from penstock.jobs.engines.engine import WAIT_S, Engine, count_cores
from penstock.jobs.engines.remote_call import PackedJob, forget_claims, make_attempt
from penstock.jobs.plan import Task

SHARED = (
    "Workers of this cluster run several tasks at once, so another of them may be the cause: start "
    "workers with one thread each"
)


class DaskEngine(Engine):
    """The workers of ``client``; of the current client; or of a local cluster of processes.

    Workers may come and go while the job runs: there are as many tasks as the cluster has threads,
    and one more, for which an adaptive cluster starts another worker. A task whose workers die is
    reported as lost, as by the local engine.
    """

    def __init__(self, jobs: int | None = None, *, client: Any = None) -> None:
        self._distributed = optional("distributed", "dask", "the engine dask")
        self._jobs, self._client = jobs, client
        self._own: list[Any] = []
        self._futures: dict[Any, str] = {}
        self._ended: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._packed: PackedJob | None = None
        self._counted_at = float("-inf")
        self._shared = False  # whether there was a worker that runs several tasks at once

    def start(self, attempts: Attempts, tasks: int) -> None:
        if self._client is None:
            self._client = self._find_client(min(self._jobs or count_cores(), max(tasks, 1)))
        self._follow()
        forget_claims(attempts.control)
        self._packed = PackedJob(attempts, "dask")

    def _find_client(self, jobs: int) -> Any:
        try:
            return self._distributed.get_client()
        except ValueError:
            pass  # there is none
        cluster = self._distributed.LocalCluster(
            n_workers=jobs, threads_per_worker=1, processes=True, dashboard_address=None
        )
        # A nanny does not replace a worker that dies before it has started completely.
        cluster.adapt(minimum=jobs, maximum=jobs, interval="500ms")
        client = self._distributed.Client(cluster, set_as_default=False)
        self._own = [client, cluster]
        return client

    def _follow(self) -> None:
        """Count the threads of the cluster, at most once a second."""
        if time.monotonic() - self._counted_at >= WAIT_S:
            threads = self._client.nthreads().values()
            self.capacity = sum(threads) + 1
            self._shared = self._shared or max(threads, default=0) > 1
            self._counted_at = time.monotonic()

    @property
    def running(self) -> list[str]:
        return list(self._futures.values())

    def submit(self, task: Task, identity: str) -> None:
        if self._packed is None:
            raise PipelineError("the engine was not started")
        future = self._client.submit(
            *(make_attempt, self._packed.name, self._packed.data, task, identity),
            # Dask runs a task again whose worker died, and that of others on this worker.
            most_deaths=self.most_deaths,
            pure=False,
            retries=0,
        )
        self._futures[future] = task.name
        future.add_done_callback(self._ended.put)

    def finished(self) -> list[Result]:
        try:
            future = self._ended.get(timeout=WAIT_S)
        except queue.Empty:
            return []
        finally:
            self._follow()
        name = self._futures.pop(future, None)
        return [] if name is None else [self._result(future, name)]

    def cancel(self) -> list[str]:
        """Drop the tasks that wait for a thread of the cluster."""
        futures = list(self._futures)
        # Of all tasks: the scheduler may not have received the last of ours yet.
        stacks = self._client.call_stack() if futures else {}
        begun = {key for worker in stacks.values() for key in worker}
        waiting = [future for future in futures if future.key not in begun]
        names = [self._futures.pop(future) for future in waiting]
        self._client.cancel(waiting)
        return names

    def _result(self, future: Any, name: str) -> Result:
        try:
            result: Result = future.result()
        except Exception as error:  # noqa: BLE001 - result() raises what the task raised
            lost = isinstance(error, self._distributed.KilledWorker)
            return Result(name, None, portable(error), lost=lost)
        if result.lost and result.error is not None and self._shared:
            result.error.add_note(SHARED)
        return result

    def close(self) -> None:
        if self._futures:
            self._client.cancel(list(self._futures))
            self._futures.clear()
        for part in self._own:
            part.close()
        self._own = []
