"""Shards to shards."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from job_inputs import make_inputs, read

import penstock as wds
from penstock.errors import PipelineError, ShardError, WriteError
from penstock.jobs import map_shards, reshard
from penstock.jobs.output_names import name_outputs
from penstock.jobs.verify import job_status, verify_job
from penstock.shards.index import Index
from penstock.storage.small_files import list_files
from tar_files import tar_bytes

TOTAL = 120


def shout(sample):
    return {**sample, "txt": sample["txt"].upper()}


def records(folder):
    return [json.loads(path.read_text()) for path in Path(folder).glob(".penstock/*/done/*")]


@pytest.mark.parametrize("jobs", [1, 2])
def test_every_sample_is_mapped_and_every_shard_keeps_its_name(tmp_path, inputs, jobs):
    report = map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=jobs)
    assert (report.tasks, report.done, report.samples_in) == (6, 6, TOTAL)
    assert (report.kept, report.dropped, report.samples_out) == (TOTAL, 0, TOTAL)
    found = read(tmp_path / "out")
    assert len(found) == TOTAL
    assert found["000007"]["txt"] == b"TEXT 7"
    assert sorted(path.name for path in (tmp_path / "out").glob("*.tar")) == [
        f"in-{n:04d}.tar" for n in range(6)
    ]


def test_the_digest_is_that_of_one_process(tmp_path, inputs):
    digests = {
        map_shards(shout, inputs, f"{tmp_path}/{jobs}/{{stem}}.tar", jobs=jobs).digest
        for jobs in (1, 2, 3)
    }
    assert len(digests) == 1


def test_samples_are_dropped_and_multiplied(tmp_path, inputs):
    def pick(sample):
        number = int(sample["cls"])
        if number % 3 == 0:
            return None
        if number % 3 == 1:
            return {"cls": number}
        return ({"__key__": f"{number:06d}-{n}", "cls": n} for n in range(2))

    report = map_shards(pick, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=1)
    assert (report.samples_in, report.kept, report.dropped) == (TOTAL, 80, 40)
    assert report.samples_out == 40 + 2 * 40
    assert set(read(tmp_path / "out")["000001"]) >= {"__key__", "cls"}
    for record in records(tmp_path / "out"):
        assert record["in"] == record["kept"] + record["dropped"]


def test_values_are_encoded_by_their_extension(tmp_path, inputs):
    def number(sample):
        return {"json": {"n": int(sample["cls"])}}

    map_shards(number, inputs, f"{tmp_path}/out/%03d.tar", jobs=1)
    assert json.loads(read(tmp_path / "out")["000005"]["json"]) == {"n": 5}
    assert (tmp_path / "out/005.tar").exists()


def test_a_class_is_constructed_once_in_every_worker(tmp_path, inputs):
    log = tmp_path / "log"
    log.mkdir()

    class Model:
        def __init__(self):
            (log / f"{os.getpid()}-{os.urandom(4).hex()}").touch()

        def __call__(self, sample):
            return {"txt": sample["txt"]}

    map_shards(Model, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=2)
    processes = [path.name.split("-")[0] for path in log.iterdir()]
    assert 1 <= len(processes) <= 2
    assert len(set(processes)) == len(processes)


def test_a_class_that_cannot_be_called_is_refused(tmp_path, inputs):
    with pytest.raises(PipelineError, match="dict has none"):
        map_shards(dict, inputs, f"{tmp_path}/out/{{stem}}.tar")


def test_a_pipeline_without_a_source_is_applied(tmp_path, inputs):
    pipeline = wds.DataPipeline(
        wds.decode(), wds.select(lambda sample: sample["cls"] % 2 == 0), wds.map(lambda s: s)
    )
    report = map_shards(pipeline, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=1)
    assert (report.samples_in, report.kept, report.dropped) == (TOTAL, 60, 60)
    assert read(tmp_path / "out")["000004"]["cls"] == b"4"


def augment_wds(input, output):
    src = wds.DataPipeline(
        wds.SimpleShardList(input), wds.tarfile_to_samples(), wds.to_tuple("__key__", "txt")
    )
    with wds.TarWriter(output) as dst:
        for key, text in src:
            dst.write({"__key__": key, "txt": text.upper()})


def add_scratch(sample):
    sample["_scratch"] = object()
    return sample


@pytest.mark.parametrize("apply", ["function", "pipeline", "reshard"])
def test_fields_of_the_shard_that_begin_with_an_underscore_are_written(tmp_path, apply):
    members = {"a._meta.json": b"{}", "a._x": b"\xff", "a.__y__": b"1", "a.txt": b"text"}
    (tmp_path / "in.tar").write_bytes(tar_bytes(members.items()))
    if apply == "reshard":
        reshard(f"{tmp_path}/in.tar", f"{tmp_path}/out/%d.tar", jobs=1)
    else:
        fn = add_scratch if apply == "function" else wds.DataPipeline(wds.map(add_scratch))
        map_shards(fn, f"{tmp_path}/in.tar", f"{tmp_path}/out/%d.tar", jobs=1)
    with tarfile.open(tmp_path / "out/0.tar") as archive:
        assert {one.name: archive.extractfile(one).read() for one in archive} == members


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_function_of_whole_shards_is_applied(tmp_path, inputs, jobs):
    outputs = [f"{tmp_path}/out/a-{n}.tar.gz" for n in range(6)]
    report = map_shards(augment_wds, inputs, outputs, unit="shard", jobs=jobs)
    assert (report.samples_in, report.samples_out, report.dropped) == (TOTAL, TOTAL, 0)
    assert (tmp_path / "out/a-0.tar.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert read(tmp_path / "out", "*.gz")["000007"]["txt"] == b"TEXT 7"


def test_a_function_that_writes_nothing_is_an_error(tmp_path, inputs):
    with pytest.raises(PipelineError, match="nothing was written"):
        map_shards(
            lambda a, b: None, inputs, f"{tmp_path}/{{stem}}.tar", unit="shard", jobs=1, retries=0
        )


def test_large_inputs_become_several_shards(tmp_path, inputs):
    report = map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}-%03d.tar", maxcount=8, jobs=2)
    assert report.samples_out == TOTAL
    names = sorted(path.name for path in (tmp_path / "out").glob("*.tar"))
    assert names == [f"in-{n:04d}-{part:03d}.tar" for n in range(6) for part in range(3)]
    assert len(read(tmp_path / "out")) == TOTAL


def test_the_index_of_the_outputs_is_written(tmp_path, inputs):
    map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=2)
    (path,) = (tmp_path / "out").glob("*.parquet")
    assert len(Index.load(path)) == TOTAL


def test_files_of_an_index_that_a_kill_left_are_removed_by_the_same_call(tmp_path, inputs):
    outputs = f"{tmp_path}/out/{{stem}}.tar"
    map_shards(shout, inputs, outputs, jobs=1)
    files = sorted(os.listdir(tmp_path / "out"))
    index = next(name for name in files if name.endswith(".index.parquet"))
    (tmp_path / "out" / f"{index}.parts").mkdir()
    (tmp_path / "out" / f"{index}.lock").touch()
    map_shards(shout, inputs, outputs, jobs=1)
    assert sorted(os.listdir(tmp_path / "out")) == files


def test_no_index_is_written_where_none_is_wanted(tmp_path, inputs):
    map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=1, index=False)
    assert list((tmp_path / "out").glob("*.parquet*")) == []


def fail_at_seven(sample):
    if sample["__key__"] == "000007":
        raise ZeroDivisionError("seven")
    return sample


def test_an_error_names_shard_key_and_byte(tmp_path, inputs):
    with pytest.raises(ZeroDivisionError) as caught:
        map_shards(fail_at_seven, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=2, retries=0)
    notes = " ".join(caught.value.__notes__)
    assert "in-0000.tar, sample '000007' at byte" in notes
    (path,) = (tmp_path / "out").glob(".penstock/*/failed/*.json")
    failure = json.loads(path.read_text())
    assert "in-0000.tar, sample '000007' at byte 14336" in failure["message"]
    assert "fail_at_seven" in failure["details"]


def drop_eight_and_fail_at_seven(sample):
    return None if sample["__key__"] == "000008" else fail_at_seven(sample)


def fail_at_the_second_result(sample):
    yield fail_at_seven({**sample, "__key__": sample["__key__"] + "-a"})
    fail_at_seven(sample)


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("handler", [wds.ignore_and_continue, wds.warn_and_continue])
@pytest.mark.filterwarnings("ignore:ZeroDivisionError")
def test_samples_that_a_handler_skips_are_counted_apart_from_dropped_ones(
    tmp_path, inputs, jobs, handler
):
    report = map_shards(
        drop_eight_and_fail_at_seven,
        inputs,
        f"{tmp_path}/out/{{stem}}.tar",
        jobs=jobs,
        handler=handler,
    )
    assert (report.kept, report.dropped, report.errors) == (TOTAL - 2, 1, 1)
    assert "000007" not in read(tmp_path / "out")
    (skipped,) = report.skipped
    assert (skipped.task, skipped.key) == ("in-0000", "000007")
    assert "ZeroDivisionError('seven')" in skipped.message
    assert "in-0000.tar, sample '000007' at byte" in skipped.message
    assert report.as_json()["skipped"][0]["key"] == "000007"
    (status, proof) = job_status(f"{tmp_path}/out"), verify_job(f"{tmp_path}/out")
    assert (status.errors, status.skipped) == (1, [skipped])
    assert (proof.errors, proof.problems) == (1, [])


def test_a_sample_that_fails_after_its_first_result_is_an_error(tmp_path, inputs):
    report = map_shards(
        fail_at_the_second_result,
        inputs,
        f"{tmp_path}/out/{{stem}}.tar",
        jobs=1,
        handler=wds.ignore_and_continue,
    )
    assert (report.samples_out, report.kept, report.dropped, report.errors) == (120, 119, 0, 1)


def test_what_a_handler_skips_in_a_damaged_shard_is_an_error(tmp_path, inputs):
    path = tmp_path / "in/in-0003.tar"
    path.write_bytes(path.read_bytes()[:5000])
    report = map_shards(
        shout, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=1, handler=wds.ignore_and_continue
    )
    assert (report.dropped, report.errors) == (0, 1)
    (skipped,) = report.skipped
    assert "in-0003.tar" in skipped.message
    assert verify_job(f"{tmp_path}/out").problems == []


@pytest.mark.parametrize("end", [wds.ignore_and_continue, wds.ignore_and_stop])
def test_duplicate_keys_that_a_handler_skips_are_errors(tmp_path, end):
    members = [("a.txt", b"1"), ("b.txt", b"2"), ("a.txt", b"3")]
    (tmp_path / "x.tar").write_bytes(tar_bytes(members))
    report = map_shards(
        shout, f"{tmp_path}/x.tar", f"{tmp_path}/out/{{stem}}.tar", jobs=1, handler=end
    )
    assert (report.kept, report.dropped, report.errors) == (2, 0, 1)
    assert report.skipped[0].key == "a"


def test_what_stages_of_a_pipeline_skip_are_errors(tmp_path, inputs):
    pipeline = wds.DataPipeline(
        wds.map(fail_at_seven, handler=wds.ignore_and_continue),
        wds.select(lambda sample: sample["__key__"] != "000008"),
    )
    report = map_shards(pipeline, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=1)
    assert (report.kept, report.dropped, report.errors) == (TOTAL - 2, 1, 1)
    (skipped,) = report.skipped
    assert (skipped.task, skipped.key) == ("in-0000", "000007")
    assert "ZeroDivisionError('seven')" in skipped.message
    assert "in map" in skipped.message


def look_up_in_another_pipeline(samples):
    for sample in samples:
        values = wds.DataPipeline([0, 1], wds.map(lambda n: 1 // n, handler=wds.warn_and_continue))
        with pytest.warns(UserWarning, match="ZeroDivisionError"):
            yield {**sample, "cls": sum(values)}


def test_errors_that_another_pipeline_inside_a_stage_handles_are_not_those_of_the_job(
    tmp_path, inputs
):
    pipeline = wds.DataPipeline(
        look_up_in_another_pipeline, wds.map(fail_at_seven, handler=wds.ignore_and_continue)
    )
    report = map_shards(pipeline, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=1)
    assert (report.kept, report.dropped, report.errors) == (TOTAL - 1, 0, 1)
    assert [skipped.key for skipped in report.skipped] == ["000007"]


def test_an_exception_that_stages_raise_again_and_again_is_counted_each_time(tmp_path, inputs):
    error = ValueError("always the same object")

    def fail(sample):
        raise error

    pipeline = wds.DataPipeline(wds.map(fail, handler=wds.ignore_and_continue))
    report = map_shards(pipeline, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=1)
    assert (report.kept, report.dropped, report.errors) == (0, 0, TOTAL)


def test_errors_of_a_damaged_shard_in_a_pipeline_are_counted_once(tmp_path, inputs):
    path = tmp_path / "in/in-0003.tar"
    path.write_bytes(path.read_bytes()[:5000])
    report = map_shards(
        wds.DataPipeline(wds.map(shout, handler=wds.ignore_and_continue)),
        inputs,
        f"{tmp_path}/out/{{stem}}.tar",
        jobs=1,
        handler=wds.ignore_and_continue,
    )
    assert (report.dropped, report.errors) == (0, 1)
    assert "in-0003.tar" in report.skipped[0].message


def test_many_errors_are_counted_and_the_first_are_named(tmp_path, inputs):
    def fail(sample):
        raise ValueError("x" * 10_000)

    report = map_shards(
        fail, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=1, handler=wds.ignore_and_continue
    )
    assert (report.kept, report.dropped, report.errors) == (0, 0, TOTAL)
    assert 0 < len(report.skipped) <= 100
    record = max(path.stat().st_size for path in (tmp_path / "out").glob(".penstock/*/done/*"))
    assert record < 10_000


def test_the_status_names_skipped_samples_in_the_order_of_the_tasks(tmp_path, inputs, monkeypatch):
    def fail(sample):
        raise ValueError("no")

    map_shards(
        fail, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=1, handler=wds.ignore_and_continue
    )

    def list_backwards(folder):
        return dict(sorted(list_files(folder).items(), reverse=True))

    monkeypatch.setattr("penstock.jobs.verify.list_files", list_backwards)
    tasks = [sample.task for sample in job_status(f"{tmp_path}/out").skipped]
    assert len(set(tasks)) > 1
    assert tasks == sorted(tasks)


def test_records_of_earlier_versions_have_no_errors(tmp_path, inputs):
    map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=1)
    for path in (tmp_path / "out").glob(".penstock/*/done/*"):
        record = json.loads(path.read_text())
        assert record.pop("errors") == 0
        path.write_text(json.dumps(record))
    report = map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=1)
    assert (report.ran, report.errors, report.skipped) == (0, 0, ())
    assert job_status(f"{tmp_path}/out").errors == 0
    assert verify_job(f"{tmp_path}/out").problems == []


def test_a_damaged_shard_is_an_error_with_its_name(tmp_path, inputs):
    path = tmp_path / "in/in-0003.tar"
    path.write_bytes(path.read_bytes()[:5000])
    with pytest.raises(ShardError, match=r"in-0003\.tar"):
        map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=1, retries=0)
    report = map_shards(
        shout, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=1, retries=0, on_error="skip"
    )
    assert (report.done, report.failed) == (5, 1)
    assert report.failures[0].task == "in-0003"


def test_a_function_whose_code_changed_is_refused(tmp_path, inputs):
    outputs = f"{tmp_path}/out/{{stem}}.tar"
    map_shards(lambda sample: {"cls": 1}, inputs, outputs, jobs=1)
    with pytest.raises(PipelineError, match="the function changed"):
        map_shards(lambda sample: {"cls": 2}, inputs, outputs, jobs=1)
    report = map_shards(lambda sample: {"cls": 2}, inputs, outputs, jobs=1, force=True)
    assert report.ran == 6
    assert read(tmp_path / "out")["000001"]["cls"] == b"2"


def test_a_new_input_is_the_only_one_that_is_done_when_forced(tmp_path):
    outputs = f"{tmp_path}/out/{{stem}}.tar"
    map_shards(shout, make_inputs(tmp_path / "in", 3), outputs, jobs=1)
    path = tmp_path / "in/in-0003.tar"
    path.write_bytes((tmp_path / "in/in-0002.tar").read_bytes())
    with pytest.raises(PipelineError, match=r"new task in-0003 \(.*in-0003\.tar"):
        map_shards(shout, f"{tmp_path}/in/*.tar", outputs, jobs=1)
    assert map_shards(shout, f"{tmp_path}/in/*.tar", outputs, jobs=1, force=True).ran == 1


def test_the_name_of_a_job_depends_on_its_outputs_alone(tmp_path):
    def name(outputs, folder="a"):
        return name_outputs(f"{tmp_path}/{folder}/{outputs}", ["x.tar"], in_parts=False).job_name

    assert name("{stem}.tar") == name("{stem}.tar", "b")
    assert name("{stem}.tar") != name("other-{stem}.tar")


@pytest.mark.parametrize(
    ("outputs", "more", "words"),
    [
        (["a.tar"], {}, "names 1 shards for 6 inputs"),
        ("out/a.tar", {}, "names 1 shards for 6 inputs"),
        ("out/{stem}.tar", {"maxcount": 5}, "needs|pattern with"),
        ("out/%03d.tar", {"maxsize": 5}, "pattern with"),
        ("out/%03d-%03d.tar", {}, "one place for a number"),
        ("out/{stem}.tar", {"unit": "batch"}, "unit="),
        ("out/{stem}.tar", {"unit": "shard", "maxcount": 2}, "unit='sample'"),
        ("out/{stem}.tar", {"unit": "shard", "handler": wds.ignore_and_continue}, "on_error="),
        ("out/{stem}.tar", {"engine": "spark"}, "engine="),
        ("out/{stem}.tar", {"on_error": "panic"}, "on_error="),
        ("out/{stem}.tar", {"jobs": 0}, "jobs="),
        ("out/{stem}.tar", {"maxcount": 0}, "at least one sample"),
    ],
)
def test_wrong_usage_is_refused_before_anything_runs(
    tmp_path, inputs, monkeypatch, outputs, more, words
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PipelineError, match=words):
        map_shards(shout, inputs, outputs, **more)
    assert not (tmp_path / "out").exists()


def test_outputs_that_would_replace_their_inputs_are_refused(tmp_path, inputs):
    with pytest.raises(PipelineError, match="replace an input"):
        map_shards(shout, inputs, f"{tmp_path}/in/{{stem}}.tar")


def test_inputs_are_not_replaced_through_a_link_even_with_force(tmp_path, inputs):
    before = read(tmp_path / "in")
    (tmp_path / "linked").symlink_to("in")
    with pytest.raises(PipelineError, match="replace an input"):
        map_shards(shout, inputs, f"{tmp_path}/linked/{{stem}}.tar", force=True)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/in-0001.tar").symlink_to("../in/in-0001.tar")
    with pytest.raises(PipelineError, match="replace an input"):
        map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar", force=True)
    assert read(tmp_path / "in") == before


def test_an_input_named_like_a_part_is_not_deleted_by_force(tmp_path):
    make_inputs(tmp_path / "in", 2)
    (tmp_path / "in/in-0000.tar").rename(tmp_path / "in/a.tar")
    (tmp_path / "in/in-0001.tar").rename(tmp_path / "in/a-002.tar")
    before = read(tmp_path / "in")
    with pytest.raises(PipelineError, match=r"a-002\.tar' would replace an input"):
        map_shards(
            *(shout, f"{tmp_path}/in/*.tar", f"{tmp_path}/in/{{stem}}-%03d.tar"),
            maxcount=10, force=True, jobs=1,
        )  # fmt: skip
    assert read(tmp_path / "in") == before


def test_inputs_with_the_same_stem_are_refused(tmp_path):
    urls = [make_inputs(tmp_path / name, 1) for name in ("a", "b")]
    with pytest.raises(PipelineError, match=r"two inputs would be written to 'in-0000\.tar'"):
        map_shards(shout, urls, f"{tmp_path}/out/{{stem}}.tar")


def test_a_dry_run_estimates_and_keeps_nothing(tmp_path, inputs):
    report = map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=2, dry_run=True)
    assert report.estimate is not None
    assert (report.estimate["tasks"], report.estimate["measured"]) == (6, 3)
    assert report.estimate["samples_out"] == TOTAL
    assert report.estimate["bytes_in"] == sum(
        path.stat().st_size for path in (tmp_path / "in").glob("*.tar")
    )
    assert not (tmp_path / "out").exists()


def test_outputs_that_are_not_named_as_shards_have_no_index(tmp_path, inputs):
    map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.dat", jobs=1)
    assert not list((tmp_path / "out").glob("*.index*"))


def test_outputs_are_plain_tars(tmp_path, inputs):
    map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=1)
    with tarfile.open(tmp_path / "out/in-0000.tar") as tar:
        assert tar.getnames()[:2] == ["000000.cls", "000000.txt"]


def test_output_that_is_the_input_of_another_task_is_refused(tmp_path):
    make_inputs(tmp_path / "in", 2)
    urls = [f"{tmp_path}/in/in-0001.tar", f"{tmp_path}/in/in-0000.tar"]
    before = read(tmp_path / "in")
    with pytest.raises(PipelineError, match="replace an input"):
        map_shards(shout, urls, f"{tmp_path}/in/in-%04d.tar")
    assert read(tmp_path / "in") == before


def test_new_job_does_not_replace_a_file_that_it_did_not_make(tmp_path, inputs):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "in-0000.tar").write_bytes(b"precious")
    with pytest.raises(PipelineError, match="exists already"):
        map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar")
    assert (tmp_path / "out" / "in-0000.tar").read_bytes() == b"precious"
    report = map_shards(shout, inputs, f"{tmp_path}/out/{{stem}}.tar", force=True)
    assert report.failed == 0


def test_a_refused_name_says_what_to_do_in_map_shards(tmp_path, inputs):
    def rename(sample):
        return {**sample, "__key__": "a.b"}

    with pytest.raises(WriteError, match=r"write 'a_b'; return another name from") as caught:
        map_shards(rename, inputs, f"{tmp_path}/out/{{stem}}.tar", jobs=1, retries=0)
    assert "check=" not in str(caught.value)


def test_a_worker_of_map_shards_loads_neither_numpy_nor_the_pipeline():
    code = (
        "import sys, penstock.jobs; "
        "print([m for m in ('numpy', 'pyarrow', 'torch', 'penstock.pipeline') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
