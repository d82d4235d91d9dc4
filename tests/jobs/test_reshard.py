"""All samples in another order, in new shards."""

from __future__ import annotations

import pytest
from job_inputs import make_inputs, read

import penstock as wds
from penstock.errors import PipelineError, SampleError, WriteError
from penstock.jobs import reshard
from penstock.jobs.sample_order import cut_by_size
from penstock.jobs.verify import verify_job
from penstock.shards.index import build_index


def keys(folder):
    shards = sorted(str(path) for path in folder.glob("*.tar"))
    return [
        [sample["__key__"] for sample in wds.WebDataset(shard, shardshuffle=False)]
        for shard in shards
    ]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_shuffle_has_every_sample_once_in_shards_of_the_asked_size(tmp_path, inputs, jobs):
    report = reshard(inputs, tmp_path / "out/r-%03d.tar", maxcount=50, jobs=jobs)
    found = keys(tmp_path / "out")
    assert [len(shard) for shard in found] == [50, 50, 20]
    every = [key for shard in found for key in shard]
    assert sorted(every) == [f"{n:06d}" for n in range(120)] != every
    assert (report.samples_in, report.samples_out, report.tasks) == (120, 120, 3)
    assert read(tmp_path / "out")["000007"]["txt"] == b"text 7"
    assert verify_job(str(tmp_path / "out")).problems == []


def test_a_shuffle_depends_on_the_seed_and_on_nothing_else(tmp_path, inputs):
    digests = [
        reshard(inputs, tmp_path / f"{n}/r-%03d.tar", maxcount=50, jobs=jobs, seed=seed).digest
        for n, (jobs, seed) in enumerate([(1, 0), (2, 0), (1, 1)])
    ]
    assert digests[0] == digests[1] != digests[2]


def test_the_order_of_a_shuffle_stays_the_same_in_later_versions(tmp_path):
    inputs = make_inputs(tmp_path / "in", 2, 5)
    reshard(inputs, tmp_path / "out/%d.tar", jobs=1)
    assert keys(tmp_path / "out") == [[f"{n:06d}" for n in ORDER]]


ORDER = [7, 1, 3, 9, 5, 4, 0, 2, 8, 6]


def test_samples_are_sorted_by_key(tmp_path, inputs):
    reshard(inputs, tmp_path / "mixed/%d.tar", maxcount=30, jobs=1)
    reshard(str(tmp_path / "mixed/*.tar"), tmp_path / "out/%d.tar", by="key", jobs=1)
    assert keys(tmp_path / "out") == [[f"{n:06d}" for n in range(120)]]


def test_samples_are_sorted_by_a_column_of_the_index(tmp_path, inputs):
    path = str(tmp_path / "in.parquet")
    build_index(inputs, path, columns={"length": "txt:bytes"})
    with pytest.raises(SampleError, match="no column 'weight'"):
        reshard(inputs, tmp_path / "out/%d.tar", by="weight", input_index=path)
    reshard(inputs, tmp_path / "out/%d.tar", by="length", input_index=path, jobs=1)
    (found,) = keys(tmp_path / "out")
    assert found == sorted(found, key=lambda key: (len(str(int(key))), key))


def test_a_shard_ends_when_it_has_reached_its_size(tmp_path):
    import numpy as np

    assert list(cut_by_size(np.array([4, 4, 4, 9, 1]), 100, 8)) == [(0, 2), (2, 4), (4, 5)]
    assert list(cut_by_size(np.array([20, 1]), 100, 8)) == [(0, 1), (1, 2)]


def test_a_second_run_does_nothing_and_a_changed_input_is_named(tmp_path, inputs):
    reshard(inputs, tmp_path / "out/r-%03d.tar", maxcount=50, jobs=1)
    assert reshard(inputs, tmp_path / "out/r-%03d.tar", maxcount=50, jobs=1).ran == 0
    with pytest.raises(PipelineError, match="seed changed from 0 to 1"):
        reshard(inputs, tmp_path / "out/r-%03d.tar", maxcount=50, jobs=1, seed=1)
    path = tmp_path / "in/in-0002.tar"
    path.write_bytes((tmp_path / "in/in-0003.tar").read_bytes())
    (tmp_path / "in/in.index.parquet").unlink()
    with pytest.raises(PipelineError, match=r"in-0002\.tar changed"):
        reshard(inputs, tmp_path / "out/r-%03d.tar", maxcount=50, jobs=1)


def test_a_pattern_without_a_number_is_refused(tmp_path, inputs):
    with pytest.raises(PipelineError, match="place for the shard's number"):
        reshard(inputs, tmp_path / "out/a.tar")


def test_shards_that_would_replace_inputs_are_refused(tmp_path, inputs):
    before = read(tmp_path / "in")
    with pytest.raises(PipelineError, match="replace an input"):
        reshard(inputs, tmp_path / "in/in-%04d.tar", maxcount=7)
    assert read(tmp_path / "in") == before


def test_a_key_that_two_inputs_have_says_what_to_do_in_reshard(tmp_path):
    for name in "ab":
        with wds.TarWriter(str(tmp_path / f"{name}.tar")) as sink:
            sink.write({"__key__": "same", "txt": name})
    with pytest.raises(WriteError, match="keys must differ; reshard writes the names") as caught:
        reshard(f"{tmp_path}/{{a,b}}.tar", f"{tmp_path}/out/%d.tar", jobs=1, retries=0)
    assert "check=" not in str(caught.value)
