"""Runs WebDataset's own test suite against penstock, imported under the name ``webdataset``.

    python tools/run_webdataset_tests.py                          downloads the sdist with pip
    python tools/run_webdataset_tests.py --sdist webdataset-1.0.2.tar.gz -- -k shuffle
    python tools/run_webdataset_tests.py --library webdataset     the same suite on WebDataset

The tests come from the source distribution and stay in a temporary folder; nothing of them is
kept here. What the distribution lacks is generated: the shards of ``testdata/``, the helpers of
``tests/conftest.py``, a server on loopback in place of storage.googleapis.com, and, where
torchvision is not installed, the few transforms that the tests use. Needs pytest, torch, pillow,
msgpack, lmdb and imageio.

The exit status is 0 if exactly the tests in ``DIFFERENCES`` fail. ``docs/from-webdataset.md``
explains each of them.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import http.server
import importlib.util
import io
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections.abc import Iterable
from pathlib import Path

VERSION = "1.0.2"
STORE = re.compile(r"https?://storage\.googleapis\.com/")
PARTIAL = "a shard that is cut in its first sample has no complete sample"
DIRECTORY = "a shard whose reader stopped early is put back into the folder"
SECURITY = "test_security.py::TestEnforceSecurity"
LOCAL = "local files are read with enforce_security, too"
DIFFERENCES: dict[str, str] = {
    "test_compat.py::test_dataset_eof_handler": PARTIAL,
    "test_pipeline.py::test_dataset_missing_rename_raises": PARTIAL,
    "test_pipeline.py::test_dataset_missing_totuple_raises": PARTIAL,
    "test_loaders.py::test_check_empty_throws_ValueError": "more workers than shards are no error",
    "test_pipeline.py::test_resampled_initialization": "without a seed all runs are equal",
    f"{SECURITY}::test_local_file_access_blocked_when_security_enabled": LOCAL,
    f"{SECURITY}::test_torch_loads_blocked_when_security_enabled": "a field is refused by decode",
    f"{SECURITY}::test_file_url_access_blocked_when_security_enabled": LOCAL,
    "test_shardlists.py::TestDirectoryShardList::test_cleanup_files_without_processes": DIRECTORY,
    "test_shardlists.py::TestDirectoryShardList::test_oldest_selection": DIRECTORY,
    "test_shardlists.py::TestDirectoryShardList::test_recycle_resample": DIRECTORY,
    "test_shardlists.py::TestDirectoryShardList::test_removing_files": DIRECTORY,
}
"""Test → why penstock does something else on purpose."""

CONFTEST = """
if "{library}" != "webdataset":
    import {library}
    {library}.install_as_webdataset()

local_data = "testdata/imagenet-000000.tgz"
compressed = "testdata/compressed.tar"
remote_loc = "{server}webdataset/openimages/"
remote_shards = "openimages-train-0000{{00..99}}.tar"
remote_shard = "openimages-train-000321.tar"
remote_sample = "{server}webdataset/testdata/sample.tgz"


def pytest_configure(config):
    config.addinivalue_line("markers", "quick: as in WebDataset's own suite")


def count_samples_tuple(source, *checks, n=10000):
    count = 0
    for sample in source:
        if count == n:
            break
        assert isinstance(sample, (tuple, dict, list))
        assert all(check(sample) for check in checks)
        count += 1
    return count
"""

TRANSFORMS = """
import numpy, torch


class Compose:
    def __init__(self, steps):
        self.steps = steps

    def __call__(self, value):
        for step in self.steps:
            value = step(value)
        return value


class RandomResizedCrop:
    def __init__(self, size):
        self.size = size

    def __call__(self, image):
        return image.convert("RGB").resize((self.size, self.size))


class RandomHorizontalFlip:
    def __call__(self, image):
        return image


class ToTensor:
    def __call__(self, image):
        return torch.tensor(numpy.asarray(image).transpose(2, 0, 1) / 255, dtype=torch.float32)


class Normalize:
    def __init__(self, mean, std):
        self.mean, self.std = mean, std

    def __call__(self, image):
        return (image - torch.tensor(self.mean)[:, None, None]) / self.std[0]
"""


def image(form: str, width: int, height: int, seed: int) -> bytes:
    """A picture that does not compress to nothing: a gradient with some noise."""
    import numpy as np
    from PIL import Image

    noise = np.random.default_rng(seed).integers(0, 32, (height, width, 3))
    slope = np.linspace(0, 200, width)[None, :, None]
    stream = io.BytesIO()
    Image.fromarray((noise + slope).astype(np.uint8)).save(stream, form)
    return stream.getvalue()


def shard(members: Iterable[tuple[str, bytes]]) -> bytes:
    """A tar file of (name, bytes)."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def make_data() -> dict[str, bytes]:
    """The files that the tests read, by their path on the server."""
    import numpy as np

    from penstock.codecs.tenbin import encode_buffer

    pictures = [image("PNG", *((600, 793) if n == 0 else (40, 30)), n) for n in range(47)]
    imagenet = []
    for number, picture in enumerate(pictures):
        fields = {"cls": b"%d" % number, "png": picture, "wnid": b"n01", "xml": b"<a/>"}
        imagenet += [(f"{number + 10}.{field}", data) for field, data in fields.items()]
    pair = encode_buffer([np.zeros((28, 28)), np.ones((28, 28))])
    jpeg = image("JPEG", 64, 48, 0)
    openimages = [
        member for n in range(10) for member in ((f"{n}.jpg", jpeg), (f"{n}.json", b'[{"n": 1}]'))
    ]
    return {
        "testdata/imagenet-000000.tgz": gzip.compress(shard(imagenet)),
        "testdata/compressed.tar": shard([("a.txt.gz", gzip.compress(b"hello\n"))]),
        "testdata/tendata.tar": shard((f"{n:03d}.ten", pair) for n in range(100)),
        "testdata/sample.tgz": gzip.compress(shard([("10.cls", b"0"), ("10.png", pictures[1])])),
        "openimages/shard.tar": shard(openimages),
    }


class Store(http.server.BaseHTTPRequestHandler):
    """Serves the generated files under the paths of WebDataset's bucket."""

    protocol_version = "HTTP/1.1"

    def __init__(self, files: dict[str, bytes], *args: object) -> None:
        self.files = files
        super().__init__(*args)  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path = self.path.removeprefix("/webdataset/")
        data = self.files.get(re.sub(r"openimages-train-\d+\.tar$", "shard.tar", path))
        start = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        self.send_response(404 if data is None else 206 if start else 200)
        data = data or b""
        if start:
            first, last = int(start[1]), min(int(start[2] or len(data)), len(data) - 1)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            data = data[first : last + 1]
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)

    do_HEAD = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing for a request."""


def sdist(given: str | None, folder: Path) -> Path:
    """The source distribution, downloaded unless one is given."""
    if given is not None:
        return Path(given)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-binary", ":all:"]
    command += ["--no-deps", "--dest", str(folder), f"webdataset=={VERSION}"]
    subprocess.run(command, check=True)
    return next(folder.glob("webdataset-*.tar.gz"))


def prepare(folder: Path, archive: Path, library: str, server: str, data: dict[str, bytes]) -> None:
    """Lay out a folder in which pytest finds the tests and their data."""
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            parts = Path(member.name).parts
            if len(parts) == 3 and parts[1] == "tests" and member.isfile():
                file = tar.extractfile(member)
                text = file.read().decode() if file is not None else ""
                target = folder / "tests" / parts[2]
                target.parent.mkdir(exist_ok=True)
                target.write_text(STORE.sub(server, text))
    (folder / "tests" / "__init__.py").touch()
    (folder / "tests" / "conftest.py").write_text(CONFTEST.format(library=library, server=server))
    for name, content in data.items():
        if name.startswith("testdata/"):
            (folder / "testdata").mkdir(exist_ok=True)
            (folder / name).write_bytes(content)
    if importlib.util.find_spec("torchvision") is None:
        (folder / "torchvision").mkdir()
        (folder / "torchvision" / "__init__.py").touch()
        (folder / "torchvision" / "transforms.py").write_text(TRANSFORMS)


def run(folder: Path, pytest_arguments: list[str]) -> tuple[set[str], str]:
    """Run pytest there. Return the tests that failed, and its output."""
    command = [sys.executable, "-m", "pytest", "-q", "-rfE", "--tb=short", "-p", "no:cacheprovider"]
    path = os.pathsep.join([str(folder), *filter(None, sys.path)])
    done = subprocess.run(
        [*command, "tests", *pytest_arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode not in (0, 1):
        sys.exit(done.stdout + done.stderr)
    failed = set(re.findall(r"^(?:FAILED|ERROR) tests/(\S+)", done.stdout, re.MULTILINE))
    return failed, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sdist", help=f"webdataset-{VERSION}.tar.gz; default: download it")
    parser.add_argument("--library", default="penstock", choices=["penstock", "webdataset"])
    parser.add_argument("rest", nargs="*", metavar="-- ARGUMENT", help="what pytest gets")
    arguments = parser.parse_args()
    data = make_data()
    store = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Store, data))
    threading.Thread(target=store.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = f"http://127.0.0.1:{store.server_port}/"
        archive = sdist(arguments.sdist, folder)
        prepare(folder, archive, arguments.library, server, data)
        failed, output = run(folder, arguments.rest)
    store.shutdown()
    expected = set(DIFFERENCES) if arguments.library == "penstock" and not arguments.rest else set()
    print(output)
    for test in sorted(failed & set(DIFFERENCES)):
        print(f"differs on purpose: {test}: {DIFFERENCES[test]}")
    for test in sorted(failed - set(DIFFERENCES)):
        print(f"fails: {test}")
    for test in sorted(expected - failed):
        print(f"passes, though it is listed as a difference: {test}")
    return int(bool(failed - set(DIFFERENCES) or expected - failed))


if __name__ == "__main__":
    sys.exit(main())
