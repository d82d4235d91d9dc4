"""Errors of common mistakes name what to write instead."""

from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
import textwrap
import traceback

import pytest

import penstock as wds
from penstock import jobs


@pytest.fixture
def shard(tmp_path):
    path = str(tmp_path / "x.tar")
    with wds.TarWriter(path) as writer:
        for number in range(3):
            writer.write({"__key__": f"{number}", "cls": number})
    return path


# ── len() ───────────────────────────────────────────────────────────────────────────────────────


def test_len_of_a_stream_names_the_index_and_with_length(shard):
    for stream in (
        wds.WebDataset(shard, shardshuffle=False),
        wds.DataPipeline(wds.SimpleShardList(shard), wds.tarfile_to_samples()),
        wds.WebLoader(wds.WebDataset(shard, shardshuffle=False), batch_size=None),
        wds.FluidWrapper(x for x in "ab"),
    ):
        with pytest.raises(TypeError, match=r"index=True.*with_length"):
            len(stream)
        assert not hasattr(stream, "__len__")
        assert not hasattr(type(stream), "__len__")
        assert getattr(stream, "__len__", None) is None
        assert stream  # its truth does not need the length
        assert len(list(stream)) in (2, 3)


def test_a_length_that_is_set_or_known_is_returned(shard):
    stream = wds.WebDataset(shard, shardshuffle=False)
    assert len(stream.with_length(7)) == 7
    assert stream.with_length(0)
    indexed = wds.WebDataset(shard, index=True)
    assert hasattr(indexed, "__len__")
    assert len(indexed) == len(wds.WebLoader(indexed, batch_size=None)) == 3


def test_torch_takes_such_a_stream_and_its_len_says_the_same(shard):
    torch_data = pytest.importorskip("torch.utils.data")
    loader = torch_data.DataLoader(wds.WebDataset(shard, shardshuffle=False), batch_size=None)
    assert len(list(loader)) == 3
    with pytest.raises(TypeError, match="with_length"):
        len(loader)


# ── misspelt names ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("mistake", "meant"),
    [
        (lambda dataset: dataset.shufle(10), "shuffle"),
        (lambda dataset: dataset.to_tupel("cls"), "to_tuple"),
        (lambda dataset: dataset.with_lenght(3), "with_length"),
        (lambda dataset: wds.WebLoader(dataset, batch_size=None).unbached(), "unbatched"),
        (lambda dataset: wds.WebDatset("x.tar"), "WebDataset"),
        (lambda dataset: wds.warn_and_contiune, "warn_and_continue"),
    ],
)
def test_a_misspelt_stage_names_the_nearest_one(shard, mistake, meant):
    dataset = wds.WebDataset(shard, shardshuffle=False)
    with pytest.raises(AttributeError) as caught:
        mistake(dataset)
    assert f"did you mean '{meant}'?" in str(caught.value)
    text = "".join(traceback.format_exception(caught.value))
    assert text.lower().count("did you mean") == 1
    with pytest.raises(AttributeError, match="no attribute 'qqqq'") as caught:
        _ = dataset.qqqq
    assert "did you mean" not in str(caught.value)


@pytest.mark.parametrize(
    ("mistake", "meant"),
    [
        (lambda url: wds.WebDataset(url, shardshufle=3), "shardshuffle"),
        (lambda url: wds.WebDataset(url).shuffle(10, inital=3), "initial"),
        (lambda url: wds.WebDataset(url).batched(batch_size=3), "batchsize"),
        (lambda url: wds.batched(3, colation_fn=list), "collation_fn"),
        (lambda url: wds.SimpleShardList(urlss=url), "urls"),
        (lambda url: wds.WebLoader(wds.WebDataset(url), num_worker=3), "num_workers"),
        (lambda url: wds.ShardWriter("x-%d.tar", maxcout=3), "maxcount"),
        (lambda url: wds.ShardWriter("x-%d.tar", encodr=True), "encoder"),
        (lambda url: wds.TarWriter("x.tar", encodr=True), "encoder"),
        (lambda url: wds.ImageFolder("x", transfrom=str), "transform"),
        (lambda url: wds.IndexedDataset(url, indx=True), "index"),
        (lambda url: wds.MapSamples([1], shufle=True), "shuffle"),
        (lambda url: wds.DynamicItemDataset({}, output_key=["id"]), "output_keys"),
        (lambda url: wds.RandomResizedCrop(8, interpolate="bicubic"), "interpolation"),
        (lambda url: wds.AudioClip(second=1), "seconds"),
        (lambda url: wds.mix([[1], [2]], weigths=[1, 2]), "weights"),
        (lambda url: wds.load_spec({"dataset": []}, splits="x"), "split"),
        (lambda url: jobs.map_shards(str, url, "x.tar", retriess=3), "retries"),
        (lambda url: jobs.reshard(url, "x-%d.tar", maxcout=3), "maxcount"),
        (lambda url: wds.write_shards([], str, "x-%d.tar", maxcout=3), "maxcount"),
        (lambda url: wds.build_index(url, "x.parquet", colums={}), "columns"),
        (lambda url: wds.open_index(url, indx="x.parquet"), "index"),
        (lambda url: wds.WebDataset(url).repeat(nepoch=3), "nepochs"),
    ],
)
def test_a_misspelt_argument_names_the_nearest_one(shard, mistake, meant):
    with pytest.raises(TypeError, match=rf"unexpected keyword argument.*did you mean '{meant}'\?"):
        mistake(shard)


def test_what_checks_its_arguments_keeps_its_signature():
    assert list(inspect.signature(wds.ImageFolder).parameters)[:2] == ["root", "transform"]
    assert next(iter(inspect.signature(wds.RandomResizedCrop).parameters)) == "size"
    known = ["source", "split", "vars", "allow_pipe"]
    assert list(inspect.signature(wds.load_spec).parameters) == known
    assert pickle.loads(pickle.dumps(wds.load_spec)) is wds.load_spec


# ── loaders ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("engine", ["processes", "threads"])
def test_a_shuffled_loader_of_a_stream_names_the_stages_that_shuffle(shard, engine):
    for stream in (wds.WebDataset(shard), wds.RandomMix([[1], [2]])):
        with pytest.raises(ValueError, match=r"shardshuffle=.*\.shuffle\("):
            wds.WebLoader(stream, shuffle=True, engine=engine)
    loader = wds.WebLoader(wds.IndexedDataset(shard), shuffle=True, batch_size=None)
    assert len(list(loader)) == 3


# ── writers ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("opened", "lost"),
    [
        ('wds.ShardWriter("x-%d.tar", maxcount=2)', "x-1.tar"),
        ('wds.TarWriter("x-1.tar")', "x-1.tar"),
        ('wds.TarWriter(open("x-1.tar", "wb"))', "x-1.tar"),
    ],
)
@pytest.mark.parametrize("kept", ["", "sys.kept = writer"])
def test_a_writer_that_is_open_at_the_end_of_a_program_names_its_shard(
    tmp_path, opened, lost, kept
):
    code = f"""
    import sys
    import penstock as wds
    writer = {opened}
    for number in range(3):
        writer.write({{"__key__": str(number), "cls": number}})
    {kept}
    """
    stderr = run_program(code, tmp_path)
    assert stderr.count("RuntimeWarning") == 1
    assert lost in stderr
    assert "call close() or use 'with'" in stderr
    if not kept:  # otherwise, the next writer in this folder deletes it
        assert not [name for name in os.listdir(tmp_path) if name.endswith(".part")]


CLOSES_IN_DEL = """
    class Exporter:
        def __init__(self):
            self.writer = wds.ShardWriter("x-%d.tar", verbose=0)

        def __del__(self):
            self.writer.close()

    exporter = Exporter()
    writer = exporter.writer
"""
CLOSES_AT_EXIT = """
    writer = wds.ShardWriter("x-%d.tar", verbose=0)
    opened.append(writer)
"""


@pytest.mark.parametrize("opening", [CLOSES_IN_DEL, CLOSES_AT_EXIT])
def test_a_program_may_close_its_writer_while_it_ends(tmp_path, opening):
    code = f"""
    import atexit
    opened = []
    atexit.register(lambda: [one.close() for one in opened])
    import penstock as wds
    {opening}
    writer.write({{"__key__": "a", "cls": 1}})
    """
    run_program(code, tmp_path)
    assert [one["cls"] for one in wds.WebDataset(str(tmp_path / "x-0.tar")).decode()] == [1]


def test_a_forked_process_does_not_report_the_writer_of_its_parent(tmp_path):
    code = """
    import os, sys
    import penstock as wds
    writer = wds.TarWriter(open("x.tar", "wb"))
    if os.fork() == 0:
        sys.exit()
    os.wait()
    writer.close()
    """
    assert run_program(code, tmp_path) == ""


def run_program(code, folder):
    """Run a program in a folder; return what it wrote to stderr."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert "Exception ignored" not in done.stderr
    assert done.returncode == 0, done.stderr
    return done.stderr
