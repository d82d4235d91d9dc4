"""The commands that write shards, on an S3 server."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "storage"))

from rework import keys
from servers_s3 import no_keys, seaweed  # noqa: F401

from penstock.storage import open_url

NAMES = [f"k{number:03d}" for number in range(10)]


@pytest.fixture
def bucket(monkeypatch, seaweed, no_keys):  # noqa: F811
    """A folder of a bucket, for this process and those it starts."""
    access, secret = seaweed.users["admin"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", access)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_ENDPOINT_URL", seaweed.endpoint)
    return f"s3://shards/{os.urandom(4).hex()}"


def test_every_command_reads_and_writes_a_bucket(shell, shards, bucket, tmp_path) -> None:
    def run(line):
        done = shell(f"{line} --no-index" if " cat " not in line else line)
        assert done.returncode == 0, (line, done.stderr)

    assert shell(f"penstock extract '{shards}' -o files").returncode == 0
    run(f"penstock create files -o '{bucket}/made-%03d.tar' -n 4")
    for path in (tmp_path / "files").glob("k00[12].*"):
        with open_url(f"{bucket}/files/{path.name}", "wb") as stream:
            stream.write(path.read_bytes())
    run(f"penstock create {bucket}/files/ -o {bucket}/remote.tar")
    assert keys(f"{bucket}/remote.tar") == NAMES[1:3]
    made = f"{bucket}/made-{{000..002}}.tar"
    assert keys(made) == NAMES
    run(f"penstock cat '{made}' -o {bucket}/all.tar")
    run(f"penstock split {bucket}/all.tar -o '{bucket}/split-%03d.tar' -n 5")
    assert keys(f"{bucket}/split-001.tar") == NAMES[5:]
    run(f"penstock sort '{made}' -o '{bucket}/sorted-%03d.tar' --by random -n 6")
    assert sorted(keys(f"{bucket}/sorted-{{000..001}}.tar")) == NAMES
    run(f"penstock select '{made}' --keys k003,k009 -o {bucket}/some.tar")
    assert keys(f"{bucket}/some.tar") == ["k003", "k009"]
    run(f"penstock proc {bucket}/some.tar -o {bucket}/proc.tar -c 'rm sample.jpg'")
    assert keys(f"{bucket}/proc.tar") == ["k003", "k009"]
    refused = shell(f"penstock cat '{made}' -o {bucket}/all.tar")
    assert refused.returncode == 3
    assert "--force" in refused.stderr
    listed = shell(f"penstock ls {bucket}/some.tar")
    assert "k009" in listed.stdout


def test_a_shard_that_is_not_there_is_no_bad_data(shell, bucket, tmp_path) -> None:
    for url in (f"{bucket}/nosuch.tar", "nosuch.tar"):
        done = shell(f"penstock split {url} -o 'out/%d.tar'")
        assert done.returncode == 3
        assert "nosuch.tar" in done.stderr
    assert not (tmp_path / "out").exists()
