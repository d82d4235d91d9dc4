"""The small functions of WebDataset's submodules."""

from __future__ import annotations

import io
import os
import random
import re

import pytest

import penstock as wds
from penstock.errors import PipelineError, UrlError

# ── filters ─────────────────────────────────────────────────────────────────────────────────────


@wds.pipelinefilter
def plus(source, n=1):
    """Adds."""
    return (item + n for item in source)


def test_a_filter_is_called_without_its_source_and_then_is_a_stage():
    assert list(wds.DataPipeline([1, 2].__iter__, plus(n=3))) == [4, 5]
    assert str(plus(3)) == "<plus (3,) {}>"
    assert plus.__doc__ == "Adds."
    assert list(wds.filters.FilterFunction(plus.__wrapped__, 5)([1])) == [6]


def test_every_stage_is_also_a_plain_function_of_its_source():
    assert list(wds.filters._shuffle(iter(range(6)), bufsize=2, seed=0)) == [1, 2, 0, 4, 5, 3]
    own = random.Random(0)
    assert sorted(wds.filters._shuffle(iter(range(6)), 1000, 100, own)) == list(range(6))
    assert list(wds.filters._map([1, 2], str)) == ["1", "2"]


def test_a_pick_takes_one_item_and_the_last_fills_its_place():
    items = list("abcd")
    rng = random.Random(1)
    taken = [wds.filters.pick(items, rng) for _ in range(4)]
    assert (sorted(taken), items) == (list("abcd"), [])


def test_a_transformer_needs_no_function_for_the_last_values():
    assert wds.transform_with([1, 2], None) == [1, 2]
    assert wds.transformer([None, str])([1, 2, 3]) == [1, "2", 3]
    with pytest.raises(PipelineError, match="3 functions for a sample of 1"):
        wds.transform_with([1], [str, str, str])


def test_the_last_pattern_that_matches_is_the_decoder():
    decoders = [("*.txt", 1), ("*.a.txt", 2)]
    assert wds.filters.find_decoder(decoders, "d/x.txt") == 1
    assert wds.filters.find_decoder(decoders, "d/x.a.TXT") == 2
    assert wds.filters.find_decoder(decoders, "txt") == 1
    assert wds.filters.find_decoder(decoders, "jpg") is None
    assert wds.filters.find_decoder(decoders, "__key__")("k") == "k"


def test_a_pipeline_of_functions_without_any_is_its_source():
    assert wds.filters.pipeline([1, 2]) == [1, 2]
    assert list(wds.filters.pipeline([1, 2], wds.map(str), wds.shuffle(1))) == ["1", "2"]


# ── shard lists ─────────────────────────────────────────────────────────────────────────────────


def test_variables_in_urls_are_those_that_begin_with_wds(monkeypatch):
    monkeypatch.setenv("WDS_DATA", "/data")
    assert wds.shardlists.envsubst("${DATA}/a.tar") == "/data/a.tar"
    with pytest.raises(UrlError, match="WDS_MISSING"):
        wds.shardlists.envsubst("${MISSING}")


def test_a_spec_string_is_a_shard_list():
    assert [shard["url"] for shard in wds.shardspec("a-{0..1}.tar")] == ["a-0.tar", "a-1.tar"]
    with pytest.raises(UrlError, match="is a spec"):
        wds.shardspec("data.yaml")


def test_the_owner_of_a_claimed_shard_is_read_from_its_name():
    name = f"a.tar._{os.getpid()}_"
    pid = wds.shardlists.get_pid_from_filename(name)
    assert wds.shardlists.check_pid_is_running(pid)
    assert not wds.shardlists.check_pid_is_running(1 << 22)
    assert wds.shardlists.get_pid_from_filename("a.tar") is None


def test_a_list_of_shards_is_shuffled_on_demand():
    shards = [shard["url"] for shard in wds.tariterators.shardlist("{0..9}.tar", shuffle=True)]
    assert sorted(shards) == [f"{n}.tar" for n in range(10)]


# ── opening ─────────────────────────────────────────────────────────────────────────────────────


def test_a_pipe_reads_a_command_of_text_or_of_words():
    from penstock.gopen import Pipe

    with Pipe("echo hello", mode="r", shell=True, bufsize=8192) as stream:
        assert stream.read() == b"hello\n"
    with Pipe(["echo", "a  b"], mode="rb") as stream:
        assert stream.read() == b"a  b\n"
    with Pipe("exit 3", mode="rb", ignore_errors=True) as stream:
        assert stream.read() == b""
    with pytest.raises(wds.StorageError), Pipe("exit 3", mode="rb", ignore_status=[4]) as stream:
        stream.read()
    with pytest.raises(PipelineError, match="mode="):
        Pipe("echo")


def test_a_pipe_writes_to_a_command(tmp_path):
    from penstock.gopen import Pipe

    with Pipe(f"cat > {tmp_path}/out", mode="wb") as stream:
        stream.write(b"hello")
    assert (tmp_path / "out").read_bytes() == b"hello"


def test_openers_by_kind_of_place(tmp_path):
    from penstock.gopen import gopen_error, gopen_file, gopen_pipe, reader

    (tmp_path / "x").write_bytes(b"hello")
    for opener, url in ((gopen_file, f"{tmp_path}/x"), (gopen_pipe, f"pipe:cat {tmp_path}/x")):
        with opener(url) as stream, reader(url) as same:
            assert stream.read() == same.read() == b"hello"
    with pytest.raises(wds.StorageError, match="no gopen handler"):
        gopen_error("x://y")


def test_streams_are_opened_with_their_local_path(tmp_path):
    (tmp_path / "x.tar").write_bytes(b"hello")
    path = str(tmp_path / "x.tar")
    shards = list(wds.cache.StreamingOpen()([path, {"url": f"pipe:cat {path}"}]))
    assert [shard.get("local_path") for shard in shards] == [path, None]
    assert [shard["stream"].read() for shard in shards] == [b"hello"] * 2
    quiet = wds.cache.StreamingOpen(handler=wds.ignore_and_continue)
    assert len(list(quiet(["/no/such.tar", path]))) == 1


# ── the folder of fetched shards ────────────────────────────────────────────────────────────────


def test_a_folder_is_kept_below_its_size_by_deleting_the_oldest_files(tmp_path):
    for age, name in enumerate(["new", "middle", "old"]):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1000 - age, 1000 - age))
    cleanup = wds.LRUCleanup(str(tmp_path), 250, keyfn=os.path.getmtime)
    cleanup.cleanup()
    assert sorted(os.listdir(tmp_path)) == ["middle", "new"]
    cleanup.cache_size = 0
    cleanup.cleanup()  # not yet: it looks every 30 s
    assert len(os.listdir(tmp_path)) == 2
    wds.lru_cleanup(str(tmp_path), 100, keyfn=os.path.getmtime)
    assert os.listdir(tmp_path) == ["new"]


def test_a_cleanup_without_a_folder_says_so(tmp_path):
    cleanup = wds.LRUCleanup()
    with pytest.raises(PipelineError, match="no folder"):
        cleanup.cleanup()
    cleanup.set_cache_dir(str(tmp_path))
    cleanup.cleanup()


def test_the_kind_of_a_file_is_seen_in_its_first_bytes(tmp_path):
    for name in ("a.tar", "a.tar.gz", "a.tar.bz2"):
        with wds.TarWriter(str(tmp_path / name)) as sink:
            sink.write({"__key__": "a", "txt": "x"})
        assert wds.cache.check_tar_format(str(tmp_path / name)), name
    (tmp_path / "text").write_text("hello")
    assert not wds.cache.check_tar_format(str(tmp_path / "text"))
    assert wds.cache.magic_filetype(str(tmp_path / "text")).endswith("text: data")


def test_names_in_the_folder_are_made_of_urls():
    name = wds.cache.url_to_cache_name
    assert name("s3://bucket/a/b.tar") == "b.tar"
    assert name("/a/b/c.tar", ndir=1) == "b/c.tar"
    assert re.fullmatch(r"[^/:]+", name("pipe:cat /a/b.tar"))
    assert wds.pipe_cleaner("pipe:gsutil cat gs://b/x.tar") == "gs://b/x.tar"
    assert wds.pipe_cleaner("x.tar") == "x.tar"


def test_a_download_appears_when_it_is_complete(tmp_path):
    wds.cache.download("pipe:echo hello", str(tmp_path / "x"), chunk_size=2)
    assert (tmp_path / "x").read_bytes() == b"hello\n"
    with pytest.raises(wds.StorageError):
        wds.cache.download("pipe:echo hello; exit 1", str(tmp_path / "y"))
    assert os.listdir(tmp_path) == ["x"]


# ── others ──────────────────────────────────────────────────────────────────────────────────────


def test_an_empty_stream_is_told():
    assert list(wds.compat.check_empty([1])) == [1]
    with pytest.raises(ValueError, match="No samples found"):
        list(wds.compat.check_empty([]))


def test_streams_are_mixed_by_functions():
    mixed = list(wds.mix.random_samples([iter("aa"), iter("bb")], [1, 2], longest=True))
    assert sorted(mixed) == list("aabb")


def test_the_place_of_a_process_is_four_numbers(monkeypatch):
    for name, value in {"RANK": 2, "WORLD_SIZE": 4, "WORKER": 1, "NUM_WORKERS": 3}.items():
        monkeypatch.setenv(name, str(value))
    assert wds.utils.pytorch_worker_info() == (2, 4, 1, 3)
    assert wds.utils.pytorch_worker_seed() == 2001
    assert wds.utils.make_seed(1, 2, 3) == (1 * 31 + 2) * 31 + 3


def test_encoders_are_put_under_several_extensions():
    table = wds.writer.make_handlers()
    wds.writer.add_handlers(table, ["up"], lambda value: value.upper().encode())
    assert "up" not in wds.writer.default_handlers
    encode = wds.writer.make_encoder(table)
    assert encode({"__key__": "a", "cls": 3}) == {"__key__": "a", "cls": b"3"}


def test_a_tenbin_file_is_read_back():
    np = pytest.importorskip("numpy")
    stream = io.BytesIO()
    wds.tenbin.write(stream, [np.arange(3)])
    stream.seek(0)
    (array,) = wds.tenbin.read(stream)
    assert array.tolist() == [0, 1, 2]


def test_names_are_looked_up_in_modules():
    assert wds.utils.lookup_sym("shuffle", [".utils", ".filters"]) is wds.shuffle
    assert wds.utils.lookup_sym("nothing", [".utils"]) is None


def test_patterns_with_braces_match_names(tmp_path):
    for name in ("a.tar", "b.tgz", "c.txt"):
        (tmp_path / name).touch()
    found = wds.utils.glob_with_braces(f"{tmp_path}/*.{{tar,tgz}}")
    assert [os.path.basename(path) for path in found] == ["a.tar", "b.tgz"]
    assert not wds.utils.fnmatch_with_braces("c.txt", "*.{tar,tgz}")
