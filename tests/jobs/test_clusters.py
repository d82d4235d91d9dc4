"""Jobs on real Dask and Ray clusters of this machine."""

from __future__ import annotations

import builtins
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import penstock as wds
from penstock.jobs import map_shards
from penstock.jobs.engines.dask import DaskEngine
from penstock.jobs.engines.ray import RayEngine, count_slots
from penstock.jobs.verify import verify_job
from waiting import wait_until

TOTAL = 120


def shout(sample):
    return {**sample, "txt": sample["txt"].upper()}


def fail(sample):
    if sample["__key__"] == "000030":
        raise ValueError("thirty")
    return sample


def make_killer(folder):
    """A function that kills its process once, at sample 30."""

    def kill_once(sample):
        if sample["__key__"] == "000030" and not os.path.exists(f"{folder}/killed"):
            Path(f"{folder}/killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return {**sample, "txt": sample["txt"].upper()}

    return kill_once


def make_model(folder):
    """A class that notes every construction."""

    class Model:
        def __init__(self):
            Path(f"{folder}/{os.getpid()}-{os.urandom(4).hex()}").touch()

        def __call__(self, sample):
            return sample

    return Model


@pytest.fixture(scope="module")
def dask():
    """A Dask cluster of two worker processes; the current client."""
    distributed = pytest.importorskip("distributed", reason="NO DASK: pip install 'penstock[dask]'")
    cluster = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    )
    with cluster, distributed.Client(cluster) as client:
        yield client


@pytest.fixture(scope="module")
def ray():
    """A local Ray cluster of two cores."""
    ray = pytest.importorskip("ray", reason="NO RAY: pip install 'penstock[ray]'")
    shown = builtins.print  # Ray replaces it for the whole process
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, configure_logging=False)
    yield ray
    ray.shutdown()
    builtins.print = shown


@pytest.fixture(params=["dask", "ray"])
def engine(request):
    request.getfixturevalue(request.param)
    return request.param


@pytest.fixture
def digest(tmp_path, inputs):
    return map_shards(shout, inputs, f"{tmp_path}/plain/{{stem}}.tar", jobs=1).digest


def test_a_cluster_writes_what_one_process_writes(tmp_path, inputs, engine, digest):
    report = map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar", engine=engine)
    assert (report.digest, report.ran, report.samples_out) == (digest, 6, TOTAL)
    assert map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar", engine=engine).ran == 0
    assert verify_job(f"{tmp_path}/out").problems == []


def test_a_killed_worker_of_a_cluster_costs_one_shard(tmp_path, inputs, engine, digest):
    report = map_shards(
        make_killer(str(tmp_path)), inputs, f"{tmp_path}/out/{{stem}}.tar", engine=engine, retries=0
    )
    assert (tmp_path / "killed").exists()
    assert report.digest == digest


def make_murderer(folder):
    """A function that kills its process at sample 30, always."""

    def kill(sample):
        if sample["__key__"] == "000030":
            Path(f"{folder}/{os.getpid()}-{os.urandom(4).hex()}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return sample

    return kill


@pytest.fixture(params=["dask", "ray"])
def lasting_cluster(request):
    """A cluster that replaces workers, also those that die before they have started completely."""
    if request.param == "ray":
        request.getfixturevalue("ray")
        yield "ray"
        return
    distributed = pytest.importorskip("distributed", reason="NO DASK: pip install 'penstock[dask]'")
    settings = {"threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(n_workers=2, **settings) as cluster:
        cluster.adapt(minimum=2, maximum=2, interval="200ms")
        with distributed.Client(cluster, set_as_default=False) as client:
            yield DaskEngine(client=client)


def test_a_sample_that_kills_every_worker_of_a_cluster_is_given_up(
    tmp_path, inputs, lasting_cluster
):
    (tmp_path / "log").mkdir()
    report = map_shards(
        make_murderer(str(tmp_path / "log")),
        inputs,
        f"{tmp_path}/out/{{stem}}.tar",
        engine=lasting_cluster,
        on_error="skip",
    )
    assert (report.done, report.failed) == (5, 1)
    (failure,) = report.failures
    assert failure.task == "in-0001"
    assert "in-0001.tar" in failure.message
    assert len(list((tmp_path / "log").iterdir())) <= 6, "two retries, and three for dead workers"
    assert not list((tmp_path / "out").glob(".in-0001.tar.*.part"))


def test_a_shard_given_up_on_workers_with_several_threads_may_not_be_the_cause(tmp_path, inputs):
    distributed = pytest.importorskip("distributed", reason="NO DASK: pip install 'penstock[dask]'")
    (tmp_path / "log").mkdir()
    settings = {"threads_per_worker": 2, "processes": True, "dashboard_address": None}
    with distributed.LocalCluster(n_workers=1, **settings) as cluster:
        cluster.adapt(minimum=1, maximum=1, interval="200ms")
        with distributed.Client(cluster, set_as_default=False) as client:
            report = map_shards(
                make_murderer(str(tmp_path / "log")),
                inputs,
                f"{tmp_path}/out/{{stem}}.tar",
                engine=DaskEngine(client=client),
                on_error="skip",
            )
    messages = {failure.task: failure.message for failure in report.failures}
    assert "in-0001.tar" in messages["in-0001"]
    assert all("one thread" in message for message in messages.values())


def test_a_local_dask_cluster_replaces_a_worker_that_its_nanny_does_not(
    tmp_path, inputs, monkeypatch
):
    """A nanny does not replace a worker that dies before it has started completely."""
    distributed = pytest.importorskip("distributed", reason="NO DASK: pip install 'penstock[dask]'")
    dask_module = pytest.importorskip("dask")

    async def only_unregister(nanny, exitcode):
        await nanny._unregister()

    def find_none():
        raise ValueError("no current client")

    monkeypatch.setattr(distributed.Nanny, "_on_worker_exit", only_unregister)
    monkeypatch.setattr(distributed, "get_client", find_none)
    reports = []

    def run():
        outputs = f"{tmp_path}/out/{{stem}}.tar"
        kill_once = make_killer(str(tmp_path))
        reports.append(map_shards(kill_once, inputs, outputs, engine="dask", jobs=1))

    with dask_module.config.set({"distributed.deploy.lost-worker-timeout": "100ms"}):
        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        thread.join(300)
    assert (tmp_path / "killed").exists()
    (report,) = reports
    assert report.complete


def make_meeting(folder):
    """A function that returns when three processes are at their first sample."""

    def meet(sample):
        Path(f"{folder}/{os.getpid()}").touch()
        end = time.monotonic() + 120
        while len(os.listdir(folder)) < 3:
            if time.monotonic() > end:
                raise TimeoutError("three tasks do not run at once")
            time.sleep(0.01)
        return sample

    return meet


def count_tasks(dask_scheduler):
    return len(dask_scheduler.tasks)


@pytest.mark.parametrize("adaptive", [False, True])
def test_a_dask_cluster_that_grows_from_nothing_is_used(tmp_path, inputs, adaptive):
    distributed = pytest.importorskip("distributed", reason="NO DASK: pip install 'penstock[dask]'")
    (tmp_path / "log").mkdir()
    settings = {"threads_per_worker": 1, "processes": True, "dashboard_address": None}
    with (
        distributed.LocalCluster(n_workers=0, **settings) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
        ThreadPoolExecutor(1) as pool,
    ):
        job = pool.submit(
            map_shards,
            make_meeting(str(tmp_path / "log")),
            inputs,
            f"{tmp_path}/out/{{stem}}.tar",
            engine=DaskEngine(client=client),
            retries=0,
            progress=False,
        )
        wait_until(lambda: client.run_on_scheduler(count_tasks) > 0, "a task is submitted")
        if adaptive:
            cluster.adapt(minimum=0, maximum=3, interval="100ms", target_duration="1ms")
        else:
            cluster.scale(3)
        assert job.result(120).complete


def test_a_ray_cluster_that_grows_is_used(tmp_path, inputs):
    pytest.importorskip("ray", reason="NO RAY: pip install 'penstock[ray]'")
    (tmp_path / "log").mkdir()
    code = f"""
import os, sys
from concurrent.futures import ThreadPoolExecutor
sys.path[:0] = {[str(Path(__file__).parents[n]) for n in (0, 1)]}
import ray
from ray.cluster_utils import Cluster
from penstock.jobs import map_shards
from test_clusters import make_meeting
from waiting import wait_until
head = {{"num_cpus": 1, "include_dashboard": False}}
cluster = Cluster(initialize_head=True, head_node_args=head)
ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
meet = make_meeting({str(tmp_path / "log")!r})

out = {f"{tmp_path}/out/{{stem}}.tar"!r}
job = ThreadPoolExecutor(1).submit(
    map_shards, meet, {inputs!r}, out, engine="ray", retries=0, progress=False
)
wait_until(lambda: job.done() or os.listdir({str(tmp_path / "log")!r}), "the first task begins")
cluster.add_node(num_cpus=2)
assert job.result(120).complete
ray.shutdown()
cluster.shutdown()
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("options", "slots"),
    [
        ({"num_cpus": 1}, 64),
        ({"num_cpus": 1, "num_gpus": 1}, 4),
        ({"num_cpus": 1, "num_gpus": 0.1}, 40),
        ({"num_cpus": 20, "num_gpus": 1}, 3),
        ({"num_cpus": 1, "memory": 500}, 2),
        ({"num_cpus": 0, "resources": {"scanner": 2}}, 3),
        ({"num_cpus": 1, "resources": {"none": 1}}, 0),
        ({"num_cpus": 0}, 64),
    ],
)
def test_the_slots_of_a_ray_cluster_are_those_of_the_scarcest_resource(options, slots):
    cluster = {"CPU": 64.0, "GPU": 4.0, "memory": 1000.0, "scanner": 7.0}
    assert count_slots(cluster, options) == slots


def test_a_ray_job_whose_tasks_need_several_cores_starts_no_further_task_after_an_error(
    tmp_path, inputs, ray
):
    def fail(sample):
        Path(f"{tmp_path}/began-{os.path.basename(sample['__url__'])}").touch()
        raise ValueError("first")

    engine = RayEngine(options={"num_cpus": 2})
    with pytest.raises(ValueError, match="first"):
        map_shards(fail, inputs, f"{tmp_path}/out/{{stem}}.tar", engine=engine, retries=0)
    assert len(list(tmp_path.glob("began-*"))) <= 2, "one runs and one waits"


def test_a_ray_job_has_a_task_that_waits_so_that_an_autoscaler_adds_a_node(tmp_path, inputs, ray):
    class Watched(RayEngine):
        most = 0

        def finished(self):
            self.most = max(self.most, len(self.running))
            return super().finished()

    engine = Watched()
    assert map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar", engine=engine).complete
    assert engine.most == ray.cluster_resources()["CPU"] + 1


def test_a_dask_job_that_is_aborted_starts_no_further_task(tmp_path, inputs, dask):
    def fail(sample):
        Path(f"{tmp_path}/began-{os.path.basename(sample['__url__'])}").touch()
        raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        map_shards(fail, inputs, f"{tmp_path}/out/{{stem}}.tar", engine="dask", retries=0)
    assert len(list(tmp_path.glob("began-*"))) < 6


def test_errors_of_a_cluster_name_shard_and_key(tmp_path, inputs, engine):
    with pytest.raises(ValueError, match="thirty") as caught:
        map_shards(fail, inputs, f"{tmp_path}/out/{{stem}}.tar", engine=engine, retries=0)
    assert "in-0001.tar, sample '000030' at byte" in " ".join(caught.value.__notes__)
    report = map_shards(
        fail, inputs, f"{tmp_path}/out/{{stem}}.tar", engine=engine, retries=0, on_error="skip"
    )
    assert (report.done, report.failed) == (5, 1)


def test_a_class_is_constructed_once_per_worker_of_a_cluster(tmp_path, inputs, engine):
    (tmp_path / "log").mkdir()
    map_shards(
        make_model(str(tmp_path / "log")), inputs, f"{tmp_path}/out/{{stem}}.tar", engine=engine
    )
    processes = [path.name.split("-")[0] for path in (tmp_path / "log").iterdir()]
    assert len(processes) == len(set(processes)) <= 2


def augment_wds(input, output):
    src = wds.DataPipeline(
        wds.SimpleShardList(input), wds.tarfile_to_samples(), wds.to_tuple("__key__", "txt")
    )
    with wds.TarWriter(output) as dst:
        for key, text in src:
            dst.write({"__key__": key, "txt": text.upper()})


def test_the_dask_example_of_the_document_works_as_plain_code(tmp_path, inputs, dask):
    dask_module = pytest.importorskip("dask")
    (tmp_path / "out").mkdir()
    sources = wds.shardlists.expand_urls(inputs)
    outputs = [f"{tmp_path}/out/augmented-{n:06d}.tar" for n in range(len(sources))]
    results = [dask_module.delayed(augment_wds)(*args) for args in zip(sources, outputs)]
    dask_module.compute(*results)
    found = [s["txt"] for path in outputs for s in wds.WebDataset(path, shardshuffle=False)]
    assert found == [b"TEXT %d" % n for n in range(TOTAL)]


def test_a_client_of_the_callers_own_is_used(tmp_path, inputs, dask, digest):
    engine = DaskEngine(client=dask)
    report = map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar", engine=engine)
    assert report.digest == digest
    assert dask.status == "running"


def test_records_of_a_cluster_are_those_of_the_local_engine(tmp_path, inputs, engine, digest):
    map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar", engine=engine)

    def records(folder):
        paths = sorted((tmp_path / folder).glob(".penstock/*/done/*"))
        return [{**json.loads(path.read_text()), "seconds": 0} for path in paths]

    assert records("out") == records("plain")
