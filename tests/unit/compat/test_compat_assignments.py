"""Functions that programs assign to names of WebDataset's modules are used, as in WebDataset."""

from __future__ import annotations

import importlib
import io
import types
import warnings

import pytest

import penstock as wds
from penstock.errors import PipelineError, ShardError, StateError, StorageError
from penstock.shards.index import build_index
from penstock.storage import open_url
from tar_files import tar_bytes, write_tar

steps = importlib.import_module("penstock.tariterators")
gopen_module = importlib.import_module("penstock.gopen")


@pytest.fixture
def shards(tmp_path):
    return [
        write_tar(tmp_path / f"{n}.tar", [(f"{n}{m}.txt", b"%d%d" % (n, m)) for m in range(3)])
        for n in range(2)
    ]


def keys_of(dataset):
    return [sample["__key__"] for sample in dataset]


def read(urls, **options):
    """A pipeline that reads in one stage, as programs that assign functions do."""
    return wds.DataPipeline(wds.SimpleShardList(urls), wds.tarfile_to_samples(**options))


def open_from_memory(data, handler=wds.reraise_exception, **kw):
    for shard in data:
        stream = io.BytesIO(tar_bytes([(f"from-{shard['url']}.txt", b"")]))
        shard.update(stream=stream)
        yield shard


def group_under_one_key(data, keys=None, lcase=True, suffixes=None, handler=None):
    for file in data:
        if file["fname"]:
            yield {"__key__": "one", "__url__": file["__url__"], "name": file["fname"]}


def expand_to_one_file(data, handler=wds.reraise_exception):  # as before version 0.2.30
    for source in data:
        yield {"fname": "x.txt", "data": source["stream"].read(2), "__url__": source["url"]}


def iterate_over_one_file(fileobj, **options):
    yield {"fname": f"{sorted(options)}.txt", "data": b""}


def test_an_assigned_opener_opens_the_shards(monkeypatch):
    dataset = read(["a", "b"])  # made before the assignment
    monkeypatch.setattr(steps, "url_opener", open_from_memory)
    assert keys_of(dataset) == keys_of(read(["a", "b"])) == ["from-a", "from-b"]
    assert keys_of(wds.tarfile_samples([{"url": "c"}])) == ["from-c"]


def test_an_object_assigned_to_gopen_opens_the_shards(monkeypatch):
    from_memory = types.SimpleNamespace(
        gopen=lambda url, **options: io.BytesIO(tar_bytes([(f"from-{url}.txt", b"")]))
    )
    monkeypatch.setattr(steps, "gopen", from_memory)
    assert keys_of(read(["a", "b"])) == ["from-a", "from-b"]


def test_an_assigned_grouping_makes_the_samples(monkeypatch, shards):
    monkeypatch.setattr(steps, "group_by_keys", group_under_one_key)
    names = [sample["name"] for sample in read(shards)]
    assert names == ["00.txt", "01.txt", "02.txt", "10.txt", "11.txt", "12.txt"]


def test_an_assigned_expander_reads_the_members(monkeypatch, shards):
    monkeypatch.setattr(steps, "tar_file_expander", expand_to_one_file)
    assert [sample["txt"] for sample in read(shards[:1])] == [b"00"]


def test_an_assigned_iterator_reads_the_members_of_every_data_set(monkeypatch, shards):
    monkeypatch.setattr(steps, "tar_file_iterator", iterate_over_one_file)
    expected = ["['handler', 'rename_files', 'select_files']"] * 2
    assert keys_of(read(shards)) == expected
    assert keys_of(wds.WebDataset(shards, shardshuffle=False)) == expected


def web_dataset(urls):
    return wds.WebDataset(urls, shardshuffle=False)


@pytest.mark.parametrize("make", [read, web_dataset])
def test_an_assigned_valid_sample_chooses_samples(monkeypatch, shards, make):
    is_first = lambda sample: sample.get("__key__", "").endswith("0")  # noqa: E731
    monkeypatch.setattr(steps, "valid_sample", is_first)
    assert keys_of(make(shards)) == ["00", "10"]


@pytest.mark.parametrize("make", [read, web_dataset])
def test_assigned_meta_names_are_skipped(monkeypatch, shards, make):
    monkeypatch.setattr(steps, "meta_prefix", "0")
    monkeypatch.setattr(steps, "meta_suffix", "2.txt")
    assert keys_of(make(shards)) == ["00", "01", "10", "11", "12"]


def test_options_of_the_stage_reach_the_steps(monkeypatch, shards):
    monkeypatch.setattr(steps, "group_by_keys", group_under_one_key)
    dataset = read(shards, select_files=lambda name: "1" in name, rename_files=str.upper)
    assert [sample["name"] for sample in dataset] == ["01.TXT", "10.TXT", "11.TXT", "12.TXT"]
    missing = read(["/no/such.tar", shards[0]], handler=wds.ignore_and_continue)
    assert len(list(missing)) == 3


def test_everything_is_as_before_when_the_original_is_assigned_again(monkeypatch, shards):
    original = steps.url_opener
    monkeypatch.setattr(steps, "url_opener", open_from_memory)
    steps.url_opener = original
    dataset = read(shards)
    assert keys_of(dataset) == ["00", "01", "02", "10", "11", "12"]
    assert "a resume runs the epoch again" not in dataset.describe()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_set_with_an_assigned_step_resumes_by_a_replay(monkeypatch, shards, workers):
    monkeypatch.setattr(steps, "group_by_keys", group_under_one_key)

    def make():
        stages = (wds.split_by_worker, wds.tarfile_to_samples())
        dataset = wds.DataPipeline(wds.SimpleShardList(shards), *stages)
        return wds.WebLoader(dataset, batch_size=None, num_workers=workers)

    names = [sample["name"] for sample in make()]
    assert sorted(names) == ["00.txt", "01.txt", "02.txt", "10.txt", "11.txt", "12.txt"]
    first = make()
    items = iter(first)
    for _ in range(3):
        next(items)
    state = first.state_dict()
    second = make()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is replayed
        second.load_state_dict(state)
        assert [sample["name"] for sample in second] == names[3:]


def test_a_state_saved_without_the_assigned_step_is_refused(monkeypatch, shards):
    dataset = read(shards)
    items = iter(dataset)
    for _ in range(3):
        next(items)
    state = dataset.state_dict()
    monkeypatch.setattr(steps, "group_by_keys", lambda files, **kw: group_under_one_key(files))
    with pytest.raises(StateError, match=r"stage 1 .* is .*tariterators\.group_by_keys = "):
        read(shards).load_state_dict(state)


def test_a_state_saved_after_a_step_was_assigned_in_the_epoch_is_refused(monkeypatch, shards):
    dataset = read(shards)
    items = iter(dataset)
    for _ in range(3):
        next(items)
    monkeypatch.setattr(steps, "group_by_keys", lambda files, **kw: group_under_one_key(files))
    with pytest.raises(StateError, match="assign the same functions"):
        read_on = read(shards)
        read_on.load_state_dict(dataset.state_dict())
        list(read_on)


def shuffled(urls):
    return wds.DataPipeline(
        wds.SimpleShardList(urls), wds.tarfile_to_samples(), wds.shuffle(3), seed=3
    )


def test_a_state_saved_with_an_assigned_step_is_refused_without_it(monkeypatch, shards):
    original = steps.group_by_keys
    monkeypatch.setattr(steps, "group_by_keys", lambda data, **kw: original(data, **kw))
    dataset = shuffled(shards)
    items = iter(dataset)
    next(items)
    state = dataset.state_dict()
    monkeypatch.undo()
    with pytest.raises(StateError, match=r"stage 1 was .*tariterators\.group_by_keys = "):
        shuffled(shards).load_state_dict(state)


@pytest.mark.parametrize("passes", [1, 2])
def test_an_assigned_step_that_changes_nothing_keeps_the_order(monkeypatch, shards, passes):
    original = steps.group_by_keys
    dataset = shuffled(shards).repeat(passes)
    expected = keys_of(dataset)
    monkeypatch.setattr(steps, "group_by_keys", lambda data, **kw: original(data, **kw))
    dataset = shuffled(shards).repeat(passes)
    assert keys_of(dataset) == expected


@pytest.mark.parametrize("name", ["url_opener", "tar_file_expander", "group_by_keys"])
def test_web_dataset_does_not_use_such_a_step_and_says_so(monkeypatch, shards, name):
    replacement = {
        "url_opener": open_from_memory,
        "tar_file_expander": expand_to_one_file,
        "group_by_keys": group_under_one_key,
    }[name]
    dataset = wds.WebDataset(shards, shardshuffle=False)
    monkeypatch.setattr(steps, name, replacement)
    with pytest.warns(UserWarning, match=rf"tariterators\.{name}.*tarfile_to_samples"):
        assert keys_of(dataset) == ["00", "01", "02", "10", "11", "12"]


@pytest.mark.parametrize("name", ["tar_file_iterator", "group_by_keys"])
def test_a_data_set_with_an_index_does_not_use_a_step_and_says_so(monkeypatch, shards, name):
    replacement = {
        "tar_file_iterator": iterate_over_one_file,
        "group_by_keys": group_under_one_key,
    }[name]
    dataset = wds.WebDataset(shards, index=True, shardshuffle=False)
    monkeypatch.setattr(steps, name, replacement)
    with pytest.warns(UserWarning, match=rf"index= .*tariterators\.{name}") as caught:
        assert keys_of(dataset) == ["00", "01", "02", "10", "11", "12"]
    assert len(caught) == 1


def open_mine(url, mode, bufsize):
    return open_url(url.removeprefix("mine://"), mode)


def test_a_data_set_with_an_index_does_not_use_an_assigned_gopen_and_says_so(monkeypatch, shards):
    monkeypatch.setitem(wds.gopen_schemes, "mine", open_mine)
    urls = [f"mine://{shard}" for shard in shards]
    index = shards[0] + ".index.parquet"
    build_index(urls, index)
    monkeypatch.setattr(gopen_module, "gopen", open_named)
    local = wds.WebDataset(shards, index=True, shardshuffle=False)
    remote = wds.WebDataset(urls, index=index, shardshuffle=False)
    with pytest.warns(UserWarning, match=r"index= .*gopen\.gopen"):
        assert keys_of(remote) == keys_of(local)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert keys_of(local)  # WebDataset does not use it for local files


# ── gopen ───────────────────────────────────────────────────────────────────────────────────────


def open_named(url, mode="rb", bufsize=8192, **kw):
    return io.BytesIO(tar_bytes((f"{url[-1]}{n}.txt", b"%d" % n) for n in range(3)))


@pytest.fixture
def gopen_in_memory(monkeypatch):
    monkeypatch.setattr(gopen_module, "gopen", open_named)


@pytest.mark.usefixtures("gopen_in_memory")
def test_an_assigned_gopen_opens_the_shards(shards):
    urls = ["nowhere://a", "nowhere://b"]
    expected = ["a0", "a1", "a2", "b0", "b1", "b2"]
    assert keys_of(read(urls)) == expected
    assert keys_of(wds.WebDataset(urls, shardshuffle=False)) == expected
    assert keys_of(wds.tarfile_samples([{"url": urls[0]}])) == expected[:3]


@pytest.mark.usefixtures("gopen_in_memory")
def test_web_dataset_opens_local_files_itself(shards):
    assert keys_of(wds.WebDataset(shards[:1], shardshuffle=False)) == ["00", "01", "02"]
    assert keys_of(read(["a"])) == ["a0", "a1", "a2"]


@pytest.mark.usefixtures("gopen_in_memory")
def test_a_data_set_with_an_assigned_gopen_resumes_without_a_replay():
    def make():
        return read(["nowhere://a", "nowhere://b"])

    dataset = make()
    items = iter(dataset)
    for _ in range(4):
        next(items)
    resumed = make()
    resumed.load_state_dict(dataset.state_dict())
    assert keys_of(resumed) == ["b1", "b2"]
    assert "a resume runs the epoch again" not in resumed.describe()


@pytest.mark.usefixtures("gopen_in_memory")
def test_a_cache_does_not_ignore_an_assigned_gopen(tmp_path):
    dataset = wds.WebDataset("nowhere://a", cache_dir=tmp_path, shardshuffle=False)
    with pytest.raises(PipelineError, match=r"gopen_schemes\['nowhere'\]"):
        list(dataset)


def test_the_assigned_gopen_may_call_the_original(monkeypatch, shards):
    original, opened = gopen_module.gopen, []

    def gopen(url, mode="rb", bufsize=8192, **kw):
        opened.append(url)
        return original(url, mode, bufsize, **kw)

    monkeypatch.setattr(gopen_module, "gopen", gopen)
    assert len(keys_of(read(shards))) == 6
    assert opened == shards


@pytest.mark.parametrize("error", [RuntimeError("no such shard"), OSError("no such shard")])
@pytest.mark.parametrize("registered", [True, False])
@pytest.mark.parametrize("make", [read, wds.WebDataset])
def test_an_error_of_the_programs_opener_goes_to_the_handler(monkeypatch, make, registered, error):
    def open_all_but_b(url, mode="rb", bufsize=8192, **kw):
        if url.endswith("b"):
            raise error
        return open_named(url)

    if registered:
        monkeypatch.setitem(wds.gopen_schemes, "mine", open_all_but_b)
    else:
        monkeypatch.setattr(gopen_module, "gopen", open_all_but_b)
    urls = [f"mine://me:secret@host/{name}" for name in "abc"]
    options = {"shardshuffle": False} if make is wds.WebDataset else {}
    dataset = make(urls, handler=wds.ignore_and_continue, **options)
    assert keys_of(dataset) == ["a0", "a1", "a2", "c0", "c1", "c2"]
    with pytest.raises((StorageError, ShardError), match="no such shard") as caught:
        list(make(urls, **options))
    assert caught.value.__cause__ is error
    assert "host/b" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_gopen_is_a_function_and_the_module_that_defines_it(shards):
    for gopen in (wds.gopen, steps.gopen, importlib.import_module("penstock.writer").gopen):
        assert gopen is gopen_module
        with gopen(shards[0]) as stream, gopen.gopen(shards[0]) as other:
            assert stream.read() == other.read()
        assert gopen.Pipe is gopen_module.Pipe
        assert gopen.gopen_schemes is wds.gopen_schemes


@pytest.mark.parametrize("name", ["Pipe", "gopen_schemes", "rewrite_url"])
def test_assigning_a_name_of_gopen_that_is_not_looked_up_there_warns(monkeypatch, name):
    with pytest.warns(UserWarning, match=rf"webdataset\.gopen\.{name}.*gopen_schemes"):
        monkeypatch.setattr(gopen_module, name, dict)
        monkeypatch.undo()


@pytest.mark.parametrize(
    "name", ["filters.shuffle", "shardlists.expand_urls", "utils.pytorch_worker_info"]
)
def test_assigning_another_name_that_is_not_looked_up_warns(monkeypatch, name):
    module, _, function = name.partition(".")
    with pytest.warns(UserWarning, match=rf"does not use .*webdataset\.{module}\.{function}: pass"):
        monkeypatch.setattr(importlib.import_module(f"penstock.{module}"), function, dict)
        monkeypatch.undo()


def test_assigning_a_new_name_does_not_warn(monkeypatch):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        monkeypatch.setattr(wds.filters, "my_stage", dict, raising=False)
    assert wds.filters.my_stage is dict


def test_an_assigned_decoder_decodes(monkeypatch, shards):
    decoders = wds.autodecode.decoders
    monkeypatch.setattr(decoders, "_entries", dict(decoders._entries))
    decoders["txt"] = lambda data: data * 2
    samples = list(wds.WebDataset(shards[:1], shardshuffle=False).decode())
    assert [sample["txt"] for sample in samples] == [b"0000", b"0101", b"0202"]
