"""States, indexes and caches that earlier versions wrote still load, and mean the same."""

from __future__ import annotations

import json
import os
import shutil
import warnings
from pathlib import Path

import pytest
from pipelines import FOLLOWING, MIXTURES, PIPELINES, take

import penstock as wds
from penstock.cli import main

HERE = Path(__file__).parent
VERSIONS = sorted(path.name for path in HERE.iterdir() if (path / "states.json").exists())
CASES = [
    (version, file.name, name)
    for version in VERSIONS
    for file in sorted((HERE / version).glob("states*.json"))
    for name in json.loads(file.read_text())
]


@pytest.fixture
def golden(tmp_path, monkeypatch):
    """A copy of a version's files as the working folder; older indexes print a notice."""

    def copy(version):
        folder = shutil.copytree(HERE / version, tmp_path / version)
        # Git does not keep times, and the oldest indexes have nothing else to know a copy by.
        for name, mtime_ns in json.loads((folder / "mtimes.json").read_text()).items():
            os.utime(folder / name, ns=(mtime_ns, mtime_ns))
        monkeypatch.chdir(folder)
        return folder

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", wds.ShardWarning)
        yield copy


@pytest.mark.filterwarnings("ignore:.*both read")
@pytest.mark.parametrize(("version", "file", "name"), CASES)
def test_a_state_of_an_earlier_version_resumes_with_the_same_items(golden, version, file, name):
    folder = golden(version)
    saved = json.loads((folder / file).read_text())[name]
    pipeline = {**PIPELINES, **MIXTURES}[name]()
    pipeline.load_state_dict(saved["state"])
    assert take(iter(pipeline), FOLLOWING) == saved["following"]


@pytest.mark.parametrize("version", VERSIONS)
def test_an_index_of_an_earlier_version_finds_every_sample(golden, version):
    golden(version)
    samples = wds.IndexedDataset("numbers-{000..003}.tar", index=True)
    assert [int(samples[n]["cls"]) for n in range(len(samples))] == list(range(64))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_sample_cache_of_an_earlier_version_is_read(golden, version):
    golden(version)
    samples = wds.DBCache("samples.db", 100)([])
    assert [int(sample["cls"]) for sample in samples] == list(range(64))


@pytest.mark.parametrize("version", VERSIONS)
def test_a_shard_cache_of_an_earlier_version_is_listed_and_verified(golden, version, capsys):
    golden(version)
    assert main(["cache", "ls", "--cache-dir", "cache"]) == 0
    assert "numbers-000.tar" in capsys.readouterr().out
    assert main(["cache", "verify", "--offline", "--cache-dir", "cache"]) == 0
    assert "1 of 1 " in capsys.readouterr().out
