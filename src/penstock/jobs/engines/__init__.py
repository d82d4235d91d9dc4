"""Where the tasks of a job run: one file per engine.

Tasks are submitted to an :class:`~penstock.jobs.engines.engine.Engine`, which returns the results
of finished ones and can be stopped. It does not know plans, retries or records.

    engine        the interface, and the engine that runs tasks in this process
    local         worker processes on this machine
    array         independent processes, such as those of a SLURM job array
    dask ray      clusters; each needs the extra of that name
    remote_call   how a worker of a cluster runs a task
"""
