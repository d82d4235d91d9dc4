from __future__ import annotations

import io
import os

import pytest

import penstock as wds
from penstock.errors import DuplicateError, PenstockError, PipelineError, ShardError


def keys(samples):
    return [sample["__key__"] for sample in samples]


def read(urls, **options):
    return wds.DataPipeline(wds.SimpleShardList(urls), wds.tarfile_to_samples(**options))


def cut(path, size):
    os.truncate(path, size)


def test_samples_carry_their_key_and_url_and_bytes(shards):
    urls = shards(2, 2)
    assert list(read(urls))[2] == {
        "__key__": "s0002",
        "__url__": urls[1],
        "cls": b"2",
        "txt": b"text 2",
    }


def test_a_shard_list_may_give_urls_dicts_or_open_streams(shards):
    (url,) = shards(1, 2)
    stage = wds.tarfile_to_samples()
    wanted = ["s0000", "s0001"]
    assert keys(stage([url])) == keys(stage([{"url": url}])) == wanted
    with open(url, "rb") as file:
        stream = io.BytesIO(file.read())
    assert keys(stage([{"url": "made up", "stream": stream}])) == wanted
    with pytest.raises(ShardError, match="must yield dicts with 'url', not int"):
        list(stage([3]))


def test_a_missing_shard_is_told_with_its_name(tmp_path):
    with pytest.raises(PenstockError, match=r"missing\.tar"):
        list(read(str(tmp_path / "missing.tar")))


def test_an_empty_shard_is_told(tmp_path):
    (tmp_path / "x.tar").write_bytes(b"")
    with pytest.raises(ShardError, match=r"empty \(0 bytes\) \(.*x\.tar, byte 0\)"):
        list(read(str(tmp_path / "x.tar")))


def test_going_on_takes_the_next_shard_and_counts_the_damaged_one(shards, tmp_path):
    urls = [*shards(3, 4), str(tmp_path / "missing.tar")]
    cut(urls[1], 2048 + 100)
    pipeline = read(urls, handler=wds.ignore_and_continue)
    assert keys(pipeline) == [
        "s0000",
        "s0001",
        "s0002",
        "s0003",
        "s0008",
        "s0009",
        "s0010",
        "s0011",
    ]
    assert pipeline.skipped == {"tarfile_to_samples": 2}


def test_stopping_ends_the_stream_at_the_damaged_shard(shards):
    urls = shards(3, 2)
    cut(urls[1], 700)
    assert keys(read(urls, handler=wds.ignore_and_stop)) == ["s0000", "s0001"]
    with pytest.warns(UserWarning, match=r"d001\.tar"):
        assert keys(read(urls, handler=wds.warn_and_stop)) == ["s0000", "s0001"]


def test_a_warning_says_which_shard_was_left_out(shards):
    urls = shards(2, 2)
    cut(urls[0], 700)
    with pytest.warns(UserWarning, match=r"d000\.tar, sample 's0000' at byte 700"):
        assert keys(read(urls, handler=wds.warn_and_continue)) == ["s0002", "s0003"]


def test_ones_own_handler_gets_the_error(shards):
    urls, errors = shards(2, 2), []
    cut(urls[0], 700)
    read(urls, handler=lambda error: errors.append(error) or True)
    assert keys(read(urls, handler=lambda error: errors.append(error) or True)) == [
        "s0002",
        "s0003",
    ]
    assert [type(error) for error in errors] == [ShardError]
    assert errors[0].origin.url == urls[0]


def test_what_stands_twice_goes_to_the_handler(shard):
    url = shard([("a", {"x": b"1"}), ("b", {"x": b"2", "X": b"3", "y": b"4"}), ("a", {"x": b"5"})])
    with pytest.raises(DuplicateError, match="'x' occurs twice"):
        list(read(url))
    pipeline = read(url, handler=wds.ignore_and_continue)
    assert [(s["__key__"], s["x"], s.get("y")) for s in pipeline] == [
        ("a", b"1", None),
        ("b", b"2", b"4"),
    ]
    assert pipeline.skipped == {"tarfile_to_samples": 2}


def test_errors_of_the_users_own_functions_go_to_the_handler_too(shards):
    def broken(name):
        raise LookupError(name)

    with pytest.raises(LookupError) as caught:
        list(read(shards(1, 1), select_files=broken))
    assert "in tarfile_to_samples: " in caught.value.__notes__[0]
    pipeline = read(shards(2, 2), rename_files=broken, handler=wds.ignore_and_continue)
    assert list(pipeline) == []
    assert pipeline.skipped == {"tarfile_to_samples": 8}  # two fields of two samples of two shards


def test_a_failing_function_costs_its_member_only(shard):
    url = shard([("a", {"x": b"1"}), ("b", {"x": b"2"}), ("c", {"x": b"3"})])

    def broken(name):
        if name.startswith("b"):
            raise LookupError(name)
        return name

    assert keys(read(url, rename_files=broken, handler=wds.ignore_and_continue)) == ["a", "c"]
    assert keys(read(url, select_files=broken, handler=wds.ignore_and_continue)) == ["a", "c"]


def test_a_handler_that_stops_at_a_duplicate_ends_the_stream_and_is_asked_once(shard):
    asked = []

    def stop(error):
        asked.append(error)
        return False

    def fail(error):
        asked.append(error)
        raise error

    twice = shard([("a", {"x": b"1"}), ("b", {"x": b"2"}), ("a", {"y": b"3"})], "1.tar")
    fine = shard([("c", {"x": b"1"})], "2.tar")
    assert keys(read([twice, fine], handler=stop)) == ["a", "b"]
    assert len(asked) == 1
    with pytest.raises(wds.DuplicateError):
        list(read([twice, fine], handler=fail))
    assert len(asked) == 2


def test_the_same_key_in_two_shards_is_two_samples(shard):
    urls = [shard([("a", {"x": b"1"})], "1.tar"), shard([("a", {"y": b"2"})], "2.tar")]
    assert keys(read(urls)) == ["a", "a"]


def test_local_paths_are_told_when_asked(shards):
    (url,) = shards(1, 1)
    assert next(iter(wds.WebDataset(url)))["__local_path__"] == url
    assert "__local_path__" not in next(iter(read(url)))


def test_nothing_at_all_is_an_error_when_checked(shard, monkeypatch):
    url = shard([])
    with pytest.raises(PipelineError, match=r"No samples found in dataset: 1 shards .*empty_check"):
        list(wds.WebDataset(url))
    assert list(wds.WebDataset(url, empty_check=False)) == []
    only = shard([("a", {"x": b""})], "one.tar")
    monkeypatch.setenv("WORKER", "1")
    monkeypatch.setenv("NUM_WORKERS", "2")
    assert list(wds.WebDataset(only)) == []  # worker 0 has it
    monkeypatch.setenv("WORKER", "0")
    assert keys(wds.WebDataset(only)) == ["a"]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(PipelineError, match="fewer shards than ranks"):
        list(wds.WebDataset(only, nodesplitter=wds.split_by_node))


@pytest.mark.parametrize("bad", ["missing.tar", "damaged.tar", "selecting"])
def test_nothing_is_an_error_also_when_a_handler_ended_the_stream(shards, tmp_path, bad):
    (tmp_path / "damaged.tar").write_bytes(b"no tar" * 200)
    (good,) = shards(1, 1)
    options = {"handler": wds.ignore_and_stop}
    url = str(tmp_path / bad)
    if bad == "selecting":
        url, options["select_files"] = good, lambda name: 1 / 0
    with pytest.raises(ValueError, match=r"No samples found.*a handler ended the stream"):
        list(wds.WebDataset([url, good], **options))
    assert list(wds.WebDataset([url, good], empty_check=False, **options)) == []
    if bad != "selecting":
        assert len(list(wds.WebDataset([good, url], **options))) == 1


def test_a_stream_that_a_handler_ended_stays_ended_after_a_resume(shards, tmp_path):
    def make():
        urls = [*shards(1, 3), str(tmp_path / "missing.tar")]
        return wds.WebDataset(urls, handler=wds.ignore_and_stop).shuffle(9, initial=9)

    first = make()
    stream = iter(first)
    next(stream)
    second = make()
    second.load_state_dict(first.state_dict())
    assert list(second) == list(stream)


def test_a_pipe_is_read_like_a_file(shards):
    urls = [f"pipe:cat {url}" for url in shards(2, 3)]
    assert keys(read(urls)) == [f"s{n:04d}" for n in range(6)]
    with pytest.raises(PenstockError, match=r"cat .*nothing"):
        list(read("pipe:cat /nothing/here 2>/dev/null"))


def test_joined_shards_are_read_on_when_asked(shards, tmp_path):
    path = tmp_path / "joined.tar"
    path.write_bytes(b"".join(open(url, "rb").read() for url in shards(3, 2)))  # noqa: SIM115
    for url in (str(path), f"pipe:cat {path}"):
        assert len(list(wds.WebDataset(url, concatenated=True))) == 6
        with pytest.warns(wds.ShardWarning, match=r"joined\.tar, byte \d+; .*concatenated=True"):
            assert len(list(wds.WebDataset(url))) == 2


def test_files_are_closed_also_when_reading_stops_early(shards, monkeypatch):
    opened = []
    real = wds.open_url
    monkeypatch.setattr(
        "penstock.shards.open_shard.open_url",
        lambda *a, **k: opened.append(real(*a, **k)) or opened[-1],
    )
    stream = iter(read(shards(2, 3)))
    next(stream)
    stream.close()
    assert [file.closed for file in opened] == [True]
    cut(opened[0].name, 700)
    with pytest.raises(ShardError):
        list(read([opened[0].name]))
    assert all(file.closed for file in opened)


def overwrite(url, old, new):
    """Change the bytes of a shard in place, with the same size."""
    with open(url, "r+b") as file:
        data = file.read().replace(old, new)
        file.seek(0)
        file.write(data)
    os.utime(url)  # a clock that ticks slowly may not have moved since the shard was made


def test_a_shard_overwritten_while_it_is_read_is_an_error_at_its_end(shard):
    url = shard([(f"s{n:03d}", {"txt": b"old" * 4000}) for n in range(100)])
    found = []
    with pytest.raises(ShardError, match=r"written to while it was read.*x\.tar"):
        for sample in read(url):
            if not found:
                overwrite(url, b"old", b"new")
            found.append(sample["txt"])
    assert len(found) == 100


def test_a_shard_overwritten_while_it_is_read_goes_to_the_handler(shards):
    urls = shards(2, 4)
    pipeline = read(urls, handler=wds.ignore_and_continue)
    found = []
    for sample in pipeline:
        if not found:
            overwrite(urls[0], b"text", b"TEXT")
        found.append(sample["__key__"])
    assert found == [f"s{n:04d}" for n in range(8)]
    assert pipeline.skipped == {"tarfile_to_samples": 1}


def test_a_large_shard_is_checked_before_its_end(shard, monkeypatch):
    monkeypatch.setattr("penstock.shards.byte_windows.CHECK_BYTES", 300_000)
    url = shard([(f"s{n:03d}", {"bin": bytes(50_000)}) for n in range(100)])
    found = []
    with pytest.raises(ShardError, match=r"written to while it was read"):
        for sample in read(url):
            if not found:
                overwrite(url, b"\0", b"\0")
            found.append(sample["__key__"])
    assert 2 < len(found) < 20


def test_stage_says_where_and_how_shards_are_cached(tmp_path):
    plain = wds.WebDataset("x.tar").pipeline[-1]
    assert (plain.cache_dir, plain.url_to_name) == (None, None)
    cached = wds.WebDataset("x.tar", cache_dir=tmp_path, url_to_name=str.upper).pipeline[-1]
    assert (cached.cache_dir, cached.url_to_name) == (str(tmp_path), str.upper)
