"""How fast shards are read over HTTP, without delay and with latency.

Compares, on the same shards of 200 MB from one nginx and interleaved: penstock and WebDataset
(``pipe:curl``, ``pipe:aws s3 cp``) as streams of samples; penstock, boto3 and plain urllib3 as
streams of bytes; without delay and with a round trip of 20 ms, from the proxy in ``delay.py``. CPU
time is that of the reader and its children. Needs nginx and curl; boto3 and aws are included if
they are installed.

    python benchmarks/remote.py --rounds 3
"""

from __future__ import annotations

import importlib.util
import io
import multiprocessing
import os
import random
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import delay
from measure import Action, Prepare, Report, Rival, Target, arguments_of, progress

SHARDS, SHARD_BYTES, PHOTO_BYTES = 3, 200_000_000, 110_000
PIECE_BYTES = 1 << 20
RTT_S = 0.02
CONFIGURATION = """
daemon off; pid {root}/pid; error_log {root}/error.log; worker_processes 1;
events {{}}
http {{
  access_log off; sendfile on; keepalive_requests 100000; default_type application/octet-stream;
  client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3;
  uwsgi_temp_path {root}/t4; scgi_temp_path {root}/t5;
  server {{ listen 127.0.0.1:{port}; root {root}; }}
}}
"""


def measured(read: Callable[[], tuple[int, float]]) -> Action:
    """Run the action; return bytes, seconds to the first byte, CPU seconds with children."""

    def action() -> tuple[int, float, float]:
        before = _cpu()
        count, first = read()
        return count, first, _cpu() - before

    return action


def _cpu() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in used)


def samples(make: Callable[[list[str]], Iterable[Any]], urls: list[str]) -> tuple[int, float]:
    begin, first, count = time.perf_counter(), 0.0, 0
    for sample in make(urls):
        first = first or time.perf_counter() - begin
        count += len(sample["jpg"])
    return count, first


def pieces(make: Callable[[str], Any], urls: list[str]) -> tuple[int, float]:
    begin, first, count = time.perf_counter(), 0.0, 0
    buffer = bytearray(PIECE_BYTES)
    for url in urls:
        stream = make(url)
        while got := stream.readinto(buffer):
            first = first or time.perf_counter() - begin
            count += got
        stream.close()
    return count, first


def by_penstock(urls: list[str]) -> Action:
    import penstock
    from penstock.storage.client import transport

    def read() -> tuple[int, float]:
        transport._reset_pools()  # every round opens new connections, as curl does
        return samples(lambda urls: penstock.WebDataset(urls, shardshuffle=False), urls)

    return measured(read)


def by_webdataset(urls: list[str]) -> Action:
    import webdataset

    def make(urls: list[str]) -> Iterable[Any]:
        return webdataset.WebDataset([f"pipe:curl -sf {u}" for u in urls], shardshuffle=False)

    return measured(lambda: samples(make, urls))


def by_webdataset_aws(urls: list[str]) -> Action:
    import webdataset

    def make(urls: list[str]) -> Iterable[Any]:
        commands = []
        for url in urls:
            place, bucket, name = url.rsplit("/", 2)
            options = f"--quiet --no-sign-request --region us-east-1 --endpoint-url {place}"
            commands.append(f"pipe:aws s3 cp {options} s3://{bucket}/{name} -")
        return webdataset.WebDataset(commands, shardshuffle=False)

    return measured(lambda: samples(make, urls))


def by_penstock_bytes(urls: list[str]) -> Action:
    from penstock.storage import open_url

    return measured(lambda: pieces(open_url, urls))


def by_urllib3(urls: list[str]) -> Action:
    import urllib3

    pool = urllib3.PoolManager()

    def read() -> tuple[int, float]:
        # By read(): its readinto() is four times slower, which would flatter the others.
        begin, first, count = time.perf_counter(), 0.0, 0
        for url in urls:
            stream = pool.request("GET", url, preload_content=False, decode_content=False)
            while data := stream.read(PIECE_BYTES):
                first = first or time.perf_counter() - begin
                count += len(data)
            stream.release_conn()
        return count, first

    return measured(read)


def by_boto3(urls: list[str]) -> Action:
    import boto3
    import botocore
    from botocore.config import Config

    place, bucket, _ = urls[0].rsplit("/", 2)
    config = Config(signature_version=botocore.UNSIGNED, s3={"addressing_style": "path"})
    client = boto3.client("s3", endpoint_url=place, region_name="us-east-1", config=config)

    def make(url: str) -> Any:
        return client.get_object(Bucket=bucket, Key=url.rpartition("/")[2])["Body"]

    return measured(lambda: pieces(make, urls))


RIVALS: dict[str, Prepare] = {
    "penstock, samples": by_penstock,
    "webdataset pipe:curl, samples": by_webdataset,
    "webdataset pipe:aws, samples": by_webdataset_aws,
    "penstock, bytes": by_penstock_bytes,
    "urllib3, bytes": by_urllib3,
    "boto3, bytes": by_boto3,
}


def made_shards(folder: Path) -> list[Path]:
    """Write shards of random photographs, once."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"photos-{number:03}.tar" for number in range(SHARDS)]
    for number, path in enumerate(paths):
        if path.exists():
            continue
        progress(f"making {path.name}")
        part, draw = path.with_suffix(".part"), random.Random(number)
        with tarfile.open(part, "w", format=tarfile.USTAR_FORMAT) as archive:
            for k in range(SHARD_BYTES // PHOTO_BYTES):
                member = tarfile.TarInfo(f"{k:06}.jpg")
                member.size = PHOTO_BYTES - 1024
                archive.addfile(member, io.BytesIO(draw.randbytes(member.size)))
        part.rename(path)
    return paths


@contextmanager
def served(folder: Path) -> Iterator[int]:
    """Run nginx on a free port, with the folder as its root."""
    program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
    if program is None or shutil.which("curl") is None:
        raise SystemExit("this needs nginx and curl: apt-get install nginx-light curl")
    port = free_port()
    text = CONFIGURATION.format(root=folder, port=port)
    (folder / "nginx.conf").write_text(f"user root;{text}" if os.geteuid() == 0 else text)
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf")]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_for(port)
        yield port
    finally:
        process.terminate()
        process.wait()


@contextmanager
def far_away(port: int, rtt: float, window: int) -> Iterator[int]:
    """Start a proxy process that delays connections to ``port``; yield its port."""
    mine = free_port()
    context = multiprocessing.get_context("spawn")
    arguments = (mine, ("127.0.0.1", port), rtt, window)
    process = context.Process(target=delay.run, args=arguments, daemon=True)
    process.start()
    try:
        wait_for(mine)
        yield mine
    finally:
        process.terminate()
        process.join()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}")


def compared(rivals: list[Rival], urls: list[str], rounds: int, note: str) -> list[dict[str, Any]]:
    """Run every rival once per round; report the best rate and the least CPU time."""
    found: dict[str, list[tuple[float, int, float, float]]] = {r.name: [] for r in rivals}
    for number in range(rounds + 1):
        progress(f"{note}: round {number} of {rounds}" if number else f"{note}: warming up")
        turn = number % len(rivals)
        for rival in [*rivals[turn:], *rivals[:turn]]:
            seconds, (count, first, cpu) = rival.run(urls)
            if number:
                found[rival.name].append((seconds, count, first, cpu))
    progress("")
    return [_row(name, runs) for name, runs in found.items()]


def _row(name: str, runs: list[tuple[float, int, float, float]]) -> dict[str, Any]:
    count = runs[0][1]
    return {
        "reader": name,
        "MB/s": count / min(r[0] for r in runs) / 1e6,
        "median": count / statistics.median(r[0] for r in runs) / 1e6,
        "CPU-s/GB": min(r[3] for r in runs) / count * 1e9,
        "first, ms": min(r[2] for r in runs) * 1e3,
    }


def targets(near: dict[str, Any], far: dict[str, Any]) -> list[Target]:
    """Return the targets, from the rows by reader."""

    def ratio(rows: dict[str, Any], what: str, one: str, other: str) -> float:
        return float(rows[one][what] / rows[other][what])

    ours, theirs, plain = "penstock, samples", "webdataset pipe:curl, samples", "penstock, bytes"
    others = [name for name in near if not name.startswith("penstock") and "bytes" in name]
    best = max(others, key=lambda name: near[name]["MB/s"])
    cpu = ratio(near, "CPU-s/GB", ours, theirs)
    added = (far[ours]["first, ms"] - near[ours]["first, ms"]) / (RTT_S * 1e3)
    return [
        Target("20 ms: samples, times WebDataset", ratio(far, "MB/s", ours, theirs), 4),
        Target("0 ms: samples, times WebDataset", ratio(near, "MB/s", ours, theirs), 1),
        Target("0 ms: bytes, times urllib3", ratio(near, "MB/s", plain, "urllib3, bytes"), 0.8),
        Target(f"0 ms: bytes, times the best ({best})", ratio(near, "MB/s", plain, best), 1),
        Target("0 ms: CPU, times WebDataset", cpu, 0.5, at_most=True),
        Target("20 ms: first sample later by", added, 2.25, "round trips", True),
    ]


def main() -> int:
    parser = arguments_of(__doc__)
    parser.set_defaults(rounds=4)
    parser.add_argument(
        "--window",
        type=int,
        default=delay.WINDOW_BYTES,
        help="bytes that one connection has on the way; mind that one stream at 20 ms should come "
        "to some 150 MB/s, as over a real line: a slower one flatters whoever uses several",
    )
    chosen = parser.parse_args()
    root = (chosen.data / "remote").resolve()
    paths = made_shards(root / "shards")
    report = Report("Remote shards", chosen.json)
    there = {"boto3": importlib.util.find_spec("boto3"), "aws": shutil.which("aws")}
    wanted = [n for n in RIVALS if all(have for name, have in there.items() if name in n)]
    tables = []
    with ExitStack() as stack:
        port = stack.enter_context(served(root))
        rivals = [stack.enter_context(Rival(name, RIVALS[name])) for name in wanted]
        for rtt in (0.0, RTT_S):
            way = stack.enter_context(far_away(port, rtt, chosen.window)) if rtt else port
            urls = [f"http://127.0.0.1:{way}/shards/{path.name}" for path in paths]
            caption = f"{rtt * 1e3:g} ms"
            rows = compared(rivals, urls, chosen.rounds, caption)
            report.table(caption, rows)
            tables.append({row["reader"]: row for row in rows})
    report.targets += targets(*tables)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
