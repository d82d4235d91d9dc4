"""A shard in three steps: opened, taken apart, grouped."""

from __future__ import annotations

import contextlib
import io
import os
import re

import pytest
from penstock.tariterators import (
    base_plus_ext,
    group_by_keys,
    tar_file_expander,
    tar_file_iterator,
    tarfile_samples,
    url_opener,
    valid_sample,
)

import penstock as wds
from penstock.errors import DuplicateError, PipelineError, ShardError, StorageError
from tar_files import tar_bytes


def tar_of(*names):
    """The bytes of a tar whose members contain their names."""
    return tar_bytes((name, name.encode()) for name in names)


@pytest.fixture
def shard(tmp_path):
    def write(*names, cut=None, file="x.tar"):
        path = tmp_path / file
        path.write_bytes(tar_of(*names)[:cut])
        return str(path)

    return write


def names_of(files):
    return [file["fname"] for file in files]


def opened(*paths):
    return url_opener([{"url": path} for path in paths])


# ── opening ─────────────────────────────────────────────────────────────────────────────────────


def test_url_opener_keeps_what_the_shard_list_says(shard):
    (opened_shard,) = url_opener([{"url": shard("a.txt"), "__rank__": "0"}])
    assert opened_shard["__rank__"] == "0"
    assert opened_shard["stream"].read(5) == b"a.txt"


def test_a_shard_that_cannot_be_opened_goes_to_the_handler(shard):
    urls = [{"url": "/no/such.tar"}, {"url": shard("a.txt")}]
    with pytest.raises(StorageError, match=re.escape("/no/such.tar")):
        list(url_opener(urls))
    assert len(list(url_opener(urls, handler=wds.ignore_and_continue))) == 1
    assert list(url_opener(urls, handler=wds.ignore_and_stop)) == []


def test_further_arguments_go_to_gopen():
    (opened_shard,) = url_opener([{"url": "pipe:echo x; exit 3"}], ignore_status=[3])
    assert opened_shard["stream"].read() == b"x\n"


# ── taking apart ────────────────────────────────────────────────────────────────────────────────


def test_the_files_of_a_tar_come_with_name_and_data():
    files = list(tar_file_iterator(io.BytesIO(tar_of("a.txt", "b/c.cls"))))
    assert files == [
        {"fname": "a.txt", "data": b"a.txt"},
        {"fname": "b/c.cls", "data": b"b/c.cls"},
    ]


@pytest.mark.parametrize(
    ("skip_meta", "expected"),
    [
        (r"__[^/]*__($|/)", ["__index__.json", "a/__m__/b.txt"]),
        (None, ["__meta__/a.txt", "__index__.json", "a/__m__/b.txt"]),
        ("a/", ["__meta__/a.txt", "__index__.json"]),
    ],
)
def test_names_of_metadata_are_passed_over(skip_meta, expected):
    data = tar_of("__meta__", "__meta__/a.txt", "__index__.json", "a/__m__/b.txt")
    assert names_of(tar_file_iterator(io.BytesIO(data), skip_meta)) == expected


def test_files_are_renamed_then_selected():
    files = tar_file_iterator(
        io.BytesIO(tar_of("a.txt", "b.txt", "c.cls")),
        rename_files=lambda name: name.replace("b.", "x."),
        select_files=lambda name: not name.startswith("b") and name.endswith("txt"),
    )
    assert list(files) == [
        {"fname": "a.txt", "data": b"a.txt"},
        {"fname": "x.txt", "data": b"b.txt"},
    ]


def test_an_error_in_a_users_function_is_the_handlers_business():
    def select(name):
        return 1 / (name != "b.txt")

    def run(handler):
        data = io.BytesIO(tar_of("a.txt", "b.txt", "c.txt"))
        return names_of(tar_file_iterator(data, select_files=select, handler=handler))

    assert run(wds.ignore_and_continue) == ["a.txt", "c.txt"]
    assert run(wds.ignore_and_stop) == ["a.txt"]
    with pytest.raises(ZeroDivisionError):
        run(wds.reraise_exception)


def test_the_end_of_each_shard_is_marked(shard):
    urls = [shard("a.txt", file="1.tar"), shard("b.txt", file="2.tar")]
    files = list(tar_file_expander(opened(*urls)))
    assert [file == {} for file in files] == [False, True, False, True]
    assert files[0] == {"fname": "a.txt", "data": b"a.txt", "__url__": urls[0]}
    assert len(list(tar_file_expander(opened(*urls), eof_value=None))) == 2
    assert list(tar_file_expander(opened(*urls), eof_value="end"))[1::2] == ["end", "end"]


def test_the_path_of_a_local_shard_is_handed_on(shard):
    path = shard("a.txt")
    streams = wds.cache.StreamingOpen()([{"url": f"file:{path}"}])
    (sample,) = group_by_keys(tar_file_expander(streams))
    assert sample["__local_path__"] == path
    assert list(sample) == ["__key__", "__url__", "txt", "__local_path__"]


def test_streams_are_closed_behind_their_shard(shard):
    (source,) = opened(shard("a.txt"))
    list(tar_file_expander([source]))
    assert source["stream"].closed


def test_a_cut_shard_gives_the_files_before_the_cut_and_then_an_error(shard):
    path = shard("a.txt", "b.txt", cut=1024 + 512 + 3)
    files = tar_file_expander(opened(path))
    assert next(files)["fname"] == "a.txt"
    with pytest.raises(ShardError, match=re.escape(path)):
        assert list(files) == [{}]


def test_behind_a_cut_shard_the_next_one_is_read_if_the_handler_says_so(shard):
    paths = shard("a.txt", "b.txt", cut=1536, file="1.tar"), shard("c.txt", file="2.tar")
    kept = list(tar_file_expander(opened(*paths), handler=wds.ignore_and_continue))
    assert [file["fname"] for file in kept if file] == ["a.txt", "c.txt"]
    stopped = list(tar_file_expander(opened(*paths), handler=wds.ignore_and_stop))
    assert [file["fname"] for file in stopped if file] == ["a.txt"]


@pytest.mark.parametrize("handler", [wds.ignore_and_continue, wds.ignore_and_stop])
def test_a_sample_that_a_cut_runs_through_is_never_given(shard, handler):
    path = shard("a.txt", "b.cls", "b.txt", cut=2048 + 512 + 3)
    samples = list(tarfile_samples([{"url": path}], handler=handler))
    assert [sample["__key__"] for sample in samples] == ["a"]


# ── grouping ────────────────────────────────────────────────────────────────────────────────────


def files_of(*names):
    return [{"fname": name, "data": name.encode(), "__url__": "x.tar"} for name in names]


def test_files_next_to_each_other_with_one_key_are_a_sample():
    samples = list(group_by_keys(files_of("a.jpg", "a.cls", "b.jpg", "a.jpg")))
    assert [(s["__key__"], sorted(s)[2:]) for s in samples] == [
        ("a", ["cls", "jpg"]),
        ("b", ["jpg"]),
        ("a", ["jpg"]),
    ]


def test_the_end_of_a_shard_ends_its_sample():
    samples = list(group_by_keys([*files_of("a.jpg"), {}, *files_of("a.cls")]))
    assert [sorted(sample)[2:] for sample in samples] == [["jpg"], ["cls"]]


def test_fields_are_in_small_letters_unless_told_otherwise():
    assert "seg.png" in next(group_by_keys(files_of("A.Seg.PNG")))
    assert "Seg.PNG" in next(group_by_keys(files_of("A.Seg.PNG"), lcase=False))


def test_only_the_chosen_fields_are_kept_and_samples_without_any_are_still_given():
    samples = list(group_by_keys(files_of("a.jpg", "a.cls", "b.jpg"), suffixes={"cls"}))
    assert samples == [
        {"__key__": "a", "__url__": "x.tar", "cls": b"a.cls"},
        {"__key__": "b", "__url__": "x.tar"},
    ]


def test_names_without_a_key_belong_to_no_sample():
    samples = list(group_by_keys(files_of("a.jpg", "noext", ".hidden", "a.cls")))
    assert [sorted(sample)[2:] for sample in samples] == [["cls", "jpg"]]


def test_names_are_split_by_a_function_of_ones_own():
    samples = list(group_by_keys(files_of("a.1.jpg", "a.2.jpg"), keys=lambda n: n.rsplit(".", 1)))
    assert [sample["__key__"] for sample in samples] == ["a.1", "a.2"]


def test_a_field_that_stands_twice_goes_to_the_handler():
    files = files_of("a.jpg", "a.JPG", "a.cls", "b.jpg")
    with pytest.raises(DuplicateError, match=r"duplicate file name in tar file.*'a\.JPG'"):
        list(group_by_keys(files))
    kept = list(group_by_keys(files, handler=wds.ignore_and_continue))
    assert [(s["__key__"], s.get("jpg"), s.get("cls")) for s in kept] == [
        ("a", b"a.jpg", b"a.cls"),
        ("b", b"b.jpg", None),
    ]
    stopped = list(group_by_keys(files, handler=wds.ignore_and_stop))
    assert stopped == [{"__key__": "a", "__url__": "x.tar", "jpg": b"a.jpg"}]


def test_valid_samples_are_dicts_with_something_in_them():
    assert valid_sample({"__key__": "a", "__bad__": False})
    assert not any(map(valid_sample, [None, {}, [], {"__key__": "a", "__bad__": True}]))


# ── together ────────────────────────────────────────────────────────────────────────────────────


def test_the_three_steps_give_what_tarfile_to_samples_gives(shard):
    path = shard("a.jpg", "a.cls", "d/b.seg.png", "__meta__/x.txt", "d/b.cls")
    steps = list(tarfile_samples([{"url": path}]))
    assert steps == list(wds.tarfile_to_samples()([{"url": path}]))


def test_the_steps_stand_in_a_pipeline_as_stages(shard):
    path = shard("a.txt", "b.txt")
    pipeline = wds.DataPipeline(
        wds.SimpleShardList(path), url_opener, tar_file_expander, group_by_keys
    )
    for _epoch in range(2):
        assert [sample["__key__"] for sample in pipeline] == ["a", "b"]


def test_a_grouping_function_written_before_the_mark_passes_it_over(shard):
    def group_without_errors(data, keys=base_plus_ext, lcase=True):
        """In the manner of training programs: a repeated field begins a new sample."""
        current = None
        for file in data:
            assert isinstance(file, dict)
            fname, value = file["fname"], file["data"]
            prefix, suffix = keys(fname)
            if prefix is None:
                continue
            suffix = suffix.lower() if lcase else suffix
            if current is None or prefix != current["__key__"] or suffix in current:
                if valid_sample(current):
                    yield current
                current = {"__key__": prefix, "__url__": file["__url__"]}
            current[suffix] = value
        if valid_sample(current):
            yield current

    def samples_without_errors(src, handler=wds.warn_and_continue):
        streams = url_opener(src, handler=handler)
        return group_without_errors(tar_file_expander(streams, handler=handler))

    urls = [shard("a.txt", "a.jpg", file="1.tar"), shard("a.txt", "b.jpg", file="2.tar")]
    pipeline = wds.DataPipeline(wds.SimpleShardList(urls), samples_without_errors)
    samples = [(s["__key__"], os.path.basename(s["__url__"])) for s in pipeline]
    assert samples == [("a", "1.tar"), ("a", "2.tar"), ("b", "2.tar")]


def test_a_cached_reader_without_a_folder_is_the_plain_one(shard):
    path = shard("a.txt")
    stage = wds.cached_tarfile_to_samples(handler=wds.warn_and_continue)
    assert [sample["__key__"] for sample in stage([{"url": path}])] == ["a"]


def test_a_cached_reader_keeps_shards_that_are_not_local(shard, tmp_path):
    command = f"pipe:cat {shard('a.txt')}"
    stage = wds.cached_tarfile_to_samples(cache_dir=str(tmp_path / "cache"))
    assert [sample["__key__"] for sample in stage([{"url": command}])] == ["a"]
    assert any(path.suffix == ".json" for path in (tmp_path / "cache").iterdir())


def test_file_cache_copies_shards_of_other_machines_once(shards, tmp_path):
    first, second = shards(2, 2)
    cache = wds.cache.FileCache(
        str(tmp_path / "cache"), url_to_name=lambda url: url.rpartition("/")[2]
    )
    dataset = wds.DataPipeline(
        wds.SimpleShardList([f"pipe:cat {first}", second]),
        cache,
        wds.tariterators.tar_file_expander,
        wds.tariterators.group_by_keys,
    )
    samples = list(dataset)
    assert len(samples) == 4
    assert samples[0]["__local_path__"] == str(tmp_path / "cache" / "d000.tar")
    assert samples[2]["__local_path__"] == second
    os.remove(first)
    assert [sample["__key__"] for sample in dataset] == [sample["__key__"] for sample in samples]


def test_file_cache_refuses_two_urls_with_one_name(shards, tmp_path):
    first, second = shards(2, 1)
    cache = wds.cache.FileCache(str(tmp_path / "cache"), url_to_name=lambda url: "same.tar")
    with pytest.raises(PipelineError, match=r"'same\.tar' in the cache"):
        list(cache([f"pipe:cat {first}", f"pipe:cat {second}"]))


def test_file_cache_deletes_a_copy_that_is_no_tar(tmp_path):
    cache = wds.cache.FileCache(str(tmp_path / "cache"))
    with pytest.raises(ValueError, match="not a tar file"):
        list(cache(["pipe:echo hello"]))
    assert os.listdir(tmp_path / "cache") == []
    quiet = wds.cache.FileCache(str(tmp_path / "cache"), handler=wds.ignore_and_continue)
    assert list(quiet(["pipe:echo hello"])) == []


def test_file_cache_keeps_to_its_limit(shards, tmp_path):
    folder = tmp_path / "cache"
    cache = wds.cache.FileCache(
        str(folder),
        url_to_name=lambda url: url.rpartition("/")[2],
        cache_size=1,
        cache_cleanup_interval=None,
    )
    for url in shards(3, 1):
        cache.get_file(f"pipe:cat {url}")
    assert len(os.listdir(folder)) == 1


@pytest.mark.parametrize(
    "handler", [wds.reraise_exception, wds.ignore_and_continue, wds.ignore_and_stop]
)
def test_the_sample_before_a_file_that_is_cut_is_complete(shard, handler):
    path = shard("a.txt", "b.cls", "b.txt", "c.txt", cut=3 * 1024 + 512 + 3)
    found = []
    with contextlib.suppress(ShardError):
        found.extend(s["__key__"] for s in tarfile_samples([{"url": path}], handler))
    assert found == ["a", "b"]
