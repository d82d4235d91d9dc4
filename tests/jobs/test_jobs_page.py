"""What docs/jobs.md shows and the other tests of snippets do not run."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

import penstock as wds

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "jobs.md").read_text()


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_kubernetes_manifest_is_an_indexed_job():
    yaml = pytest.importorskip("yaml")
    (manifest,) = [found for block in blocks("yaml") if "kind" in (found := yaml.safe_load(block))]
    assert (manifest["apiVersion"], manifest["kind"]) == ("batch/v1", "Job")
    spec = manifest["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] >= spec["parallelism"] > 0
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    assert container["command"][:2] == ["penstock", "run"]
    _parse(container["command"][1:])


def test_the_job_file_has_keys_of_map_shards():
    yaml = pytest.importorskip("yaml")
    from penstock.cli.run import _keywords

    (job,) = [found for block in blocks("yaml") if "fn" in (found := yaml.safe_load(block))]
    assert set(job) <= {"fn", *_keywords()}


def test_the_slurm_script_is_a_script_that_the_command_understands(tmp_path):
    (script,) = [block for block in blocks("sh") if "#SBATCH" in block]
    path = tmp_path / "job.sh"
    path.write_text(script)
    subprocess.run(["bash", "-n", str(path)], check=True)
    # With a stand-in for the command that prints what it was given.
    (tmp_path / "penstock").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "penstock").chmod(0o755)
    given = subprocess.run(
        ["bash", str(path)],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split("\n")[:-1]
    _parse(given)


def _parse(words):
    from penstock.cli import make_parser

    arguments = make_parser("run")[0].parse_args(words)
    assert arguments.engine == "array"
    assert "{stem}" in arguments.outputs


def test_the_dask_example_runs(tmp_path, monkeypatch):
    distributed = pytest.importorskip("distributed", reason="NO DASK: pip install 'penstock[dask]'")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "augmented").mkdir()
    with wds.ShardWriter("photos-%04d.tar", maxcount=25, verbose=0) as sink:
        for number in range(100):
            sink.write({"__key__": f"{number:06d}", "txt": f"photo {number}"})
    names = {"wds": wds}
    (function,) = [block for block in blocks("python") if "def augment_wds" in block]
    exec(function, names)
    (example,) = [block for block in blocks("py") if "dask.delayed" in block]
    cluster = distributed.LocalCluster(n_workers=2, processes=True, dashboard_address=None)
    with cluster, distributed.Client(cluster):
        exec(example, names)
    found = list(wds.WebDataset("augmented/photos-{0000..0003}.tar", shardshuffle=False))
    assert [sample["txt"] for sample in found][:2] == [b"PHOTO 0", b"PHOTO 1"]
    assert len(found) == 100
