"""The commands that inspect shards, on an S3 server: they read and write as with files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import penstock as wds

SOURCES = Path(__file__).resolve().parents[2] / "src"


@pytest.fixture
def bucket(seaweed, no_keys, tmp_path):
    """Runs a line in bash with the server's key; gives that and a prefix with two shards."""
    access, secret = seaweed.users["admin"]
    environment = {
        **os.environ,
        "PYTHONPATH": str(SOURCES),
        "AWS_ACCESS_KEY_ID": access,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_ENDPOINT_URL": seaweed.endpoint,
        "AWS_REGION": "us-east-1",
    }

    def run(line, **variables):
        line = line.replace("penstock ", f"{sys.executable} -m penstock ")
        return subprocess.run(
            ["bash", "-c", line],
            cwd=tmp_path,
            env={**environment, **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )

    prefix = seaweed.fresh()
    for number in range(2):
        with wds.TarWriter(str(tmp_path / f"x-{number}.tar"), encoder=False) as sink:
            for sample in range(3):
                sink.write({"__key__": f"{number}{sample}", "txt": b"hi", "cls": b"%d" % sample})
        code = (
            "import sys, penstock\n"
            "with penstock.open_url(sys.argv[2], 'wb') as out:\n"
            "    out.write(open(sys.argv[1], 'rb').read())"
        )
        words = [sys.executable, "-c", code, f"x-{number}.tar", f"{prefix}/x-{number}.tar"]
        subprocess.run(words, cwd=tmp_path, env=environment, check=True)
    return run, prefix


def test_shards_on_s3_are_inspected_like_files(bucket, tmp_path) -> None:
    run, prefix = bucket
    for command in ("ls {} --json", "head {} --json", "verify {} --require txt"):
        for shards in (f"{prefix}/x-{{0..1}}.tar", f"'{prefix}/*.tar'", f"{prefix}/"):
            remote = run(f"penstock {command.format(shards)}")
            assert remote.returncode == 0, remote.stderr
        local = run(f"penstock {command.format('x-{0..1}.tar')}")
        assert remote.stdout.replace(f"{prefix}/", "") == local.stdout
    shown = json.loads(run(f"penstock show {prefix}/x-1.tar 12 --json").stdout)
    assert (shown["key"], shown["members"][1]["data_offset"]) == ("12", 5632)
    assert json.loads(run(f"penstock stats '{prefix}/*.tar' --json").stdout)["samples"] == 6
    assert run(f"penstock diff 'x-*.tar' '{prefix}/*.tar'").returncode == 0


def test_outputs_may_be_on_s3(bucket) -> None:
    run, prefix = bucket
    table = f"penstock convert '{prefix}/*.tar' --to csv -o {prefix}/table.csv"
    assert run(table).returncode == 0
    again = run(table)
    assert (again.returncode, "--force" in again.stderr) == (3, True)
    extracted = run(f"penstock extract {prefix}/x-0.tar -o {prefix}/files --fields txt")
    assert extracted.returncode == 0, extracted.stderr
    repaired = run(f"penstock verify '{prefix}/*.tar' --repair -o {prefix}/good/")
    assert repaired.returncode == 0, repaired.stderr
    code = "import penstock, sys; print(penstock.open_url(sys.argv[1]).read().decode())"
    assert run(f"{sys.executable} -c '{code}' {prefix}/files/01.txt").stdout == "hi\n"
    assert run(f"{sys.executable} -c '{code}' {prefix}/table.csv").stdout.count("\n") == 8
    assert run(f"penstock diff '{prefix}/x-*.tar' {prefix}/good/").returncode == 0


def test_extract_to_s3_that_fails_leaves_nothing(bucket) -> None:
    run, prefix = bucket
    extract = f"penstock extract {prefix}/x-0.tar -o {prefix}/half --keys"
    assert run(f"{extract} 01,missing").returncode == 1
    assert run(f"{extract} 01").returncode == 0  # 3 if files were there


def test_the_cache_is_filled_ahead(bucket) -> None:
    run, prefix = bucket
    add = f"penstock cache add '{prefix}/*.tar' --cache-dir c --json"
    assert json.loads(run(add).stdout)["fetched"] == 2
    again = json.loads(run(add).stdout)
    assert [shard["state"] for shard in again["shards"]] == ["there", "there"]


@pytest.mark.parametrize("command", ["ls", "verify", "stats", "head", "cache add --cache-dir c"])
def test_a_refused_key_is_status_3(command, bucket) -> None:
    run, prefix = bucket
    done = run(f"penstock {command} {prefix}/x-0.tar", AWS_SECRET_ACCESS_KEY="wrong")
    assert done.returncode == 3
    assert "wrong" not in done.stdout + done.stderr
