"""Stages as values, runs, and what an error says of the sample it happened on."""

from __future__ import annotations

import functools
import gzip
import pickle

import pytest

import penstock as wds
from penstock.context import Context
from penstock.errors import PipelineError, SampleError
from penstock.stages.run import as_run, start
from penstock.stages.stage import Each, Many


def fail(item):
    raise KeyError("no such thing")


def fail_on_odd(sample):
    if int(sample["cls"]) % 2:
        raise ValueError("odd")
    return sample


def test_a_stage_prints_as_it_was_written_without_what_is_default():
    assert repr(wds.shuffle(1000, seed=1)) == "shuffle(1000, seed=1)"
    assert repr(wds.shuffle(bufsize=1000)) == "shuffle(1000)"
    assert repr(wds.shuffle()) == "shuffle(1000)"
    assert repr(wds.shuffle(seed=3)) == "shuffle(1000, seed=3)"
    assert repr(wds.shuffle(5, 100)) == "shuffle(5)"
    assert repr(wds.map(fail)) == "map(fail)"
    assert repr(wds.map(functools.partial(fail, 1))) == "map(partial(fail))"
    assert repr(wds.to_tuple("jpg;png", "cls")) == "to_tuple('jpg;png', 'cls')"
    assert repr(wds.tarfile_to_samples(empty_check=True)) == "tarfile_to_samples(empty_check=True)"


def test_stages_are_equal_when_they_do_the_same():
    assert wds.shuffle(10) == wds.shuffle(bufsize=10)
    assert wds.shuffle(10) == wds.shuffle(10, seed=None)
    assert wds.shuffle(10) != wds.shuffle(11)
    assert wds.shuffle(10) != wds.listed(10)
    assert len({wds.shuffle(10), wds.shuffle(10)}) == 1


def test_fields_may_have_any_name_also_cls():
    assert repr(wds.map_dict(cls=int)) == "map_dict(cls=int)"
    stage = pickle.loads(pickle.dumps(wds.rename(cls="label")))
    assert list(stage([{"label": 1}])) == [{"cls": 1}]


def test_a_stage_runs_on_any_iterable():
    assert list(wds.map(str)([1, 2])) == ["1", "2"]
    assert list(wds.map(str)(iter([1, 2]))) == ["1", "2"]
    assert list(wds.map(str)(n for n in (1, 2))) == ["1", "2"]


def test_functions_partials_and_iterables_stand_in_pipelines_as_they_are():
    def every(n, source):
        return (item for number, item in enumerate(source) if number % n == 0)

    def add_one(source):
        for item in source:
            yield item + 1

    pipeline = wds.DataPipeline(lambda: iter(range(6)), functools.partial(every, 2), add_one)
    assert list(pipeline) == [1, 3, 5]
    assert list(wds.DataPipeline(range(3), add_one)) == [1, 2, 3]
    assert "every" in pipeline.describe()


def test_what_is_no_stage_is_told():
    with pytest.raises(PipelineError, match="not a pipeline stage: 3 of type int"):
        list(wds.DataPipeline(range(3), 3))
    with pytest.raises(PipelineError, match=r"shuffle is not a stage yet: write shuffle\(\.\.\.\)"):
        list(wds.DataPipeline(range(3), wds.shuffle))


def test_the_users_own_each_and_many_are_stages_like_any_other():
    class double(Each):
        def apply(self, item):
            return item * 2 if item else None

    class upto(Many):
        def expand(self, item):
            return range(item)

    pipeline = wds.DataPipeline(range(3), double(), upto())
    assert list(pipeline) == [0, 1, 0, 1, 2, 3]
    run = pipeline.start(Context())
    assert [run.ticket for _ in run] == [(1, 0), (1, 1), (2, 0), (2, 1), (2, 2), (2, 3)]


def test_the_ticket_of_an_iterable_is_its_number():
    run = as_run("abc")
    assert [(item, run.ticket) for item in run] == [("a", 0), ("b", 1), ("c", 2)]


# ── origins ─────────────────────────────────────────────────────────────────────────────

BEHIND = {
    "nothing": [],
    "shuffle": [wds.shuffle(10, seed=1)],
    "decode and map": [wds.decode(), wds.map(dict)],
    "batched and unbatched": [wds.batched(4), wds.unbatched()],
    "listed and unlisted": [wds.listed(4), wds.unlisted()],
    "all of it": [wds.shuffle(9), wds.batched(3), wds.unbatched(), wds.shuffle(5)],
    "slice": [wds.slice(2, 9)],
    "repeat": [wds.repeat(3), wds.shuffle(100)],
    "a function": [lambda source: (item for item in source)],
    "a cache": [wds.Cached()],
}


@pytest.mark.parametrize("between", BEHIND.values(), ids=BEHIND.keys())
@pytest.mark.parametrize("last", [[], [wds.to_tuple("txt", "cls")]], ids=["sample", "tuple"])
def test_an_error_says_shard_key_and_byte_wherever_it_happens(shards, between, last):
    urls = shards(2, 5)
    seen = []

    def fail_late(item):
        seen.append(item)
        if len(seen) == 4:
            raise KeyError("no such thing")
        return item

    reading = [wds.SimpleShardList(urls), wds.tarfile_to_samples()]
    pipeline = wds.DataPipeline(*reading, *between, *last, wds.map(fail_late))
    with pytest.raises(KeyError) as caught:
        list(pipeline)
    text = seen[-1][0] if last else seen[-1]["txt"]
    number = int((text.decode() if isinstance(text, bytes) else text).split()[1])
    url, offset = urls[number // 5], number % 5 * 2048
    wanted = f"in map: {url}, sample 's{number:04d}' at byte {offset}"
    assert caught.value.__notes__ == [wanted]


def test_an_error_of_the_library_says_it_in_its_message(shards):
    urls = shards(1, 3)
    pipeline = wds.WebDataset(urls).shuffle(5).to_tuple("txt", "jpg")
    with pytest.raises(
        SampleError, match=r"didn't find \['jpg'\].*d000\.tar, sample 's000\d' at byte"
    ):
        list(pipeline)


def test_an_error_in_a_users_generator_says_the_sample_it_took_last(shards):
    def broken(source):
        for number, sample in enumerate(source):
            if number == 2:
                raise RuntimeError("stop here")
            yield sample

    with pytest.raises(RuntimeError) as caught:
        list(wds.WebDataset(shards(1, 3)).compose(broken))
    assert "sample 's0002' at byte 4096" in caught.value.__notes__[0]


def test_shards_from_a_users_own_function_are_told_apart(shards):
    urls = shards(3, 2)
    pipeline = wds.DataPipeline(
        lambda: iter([{"url": url} for url in urls]),
        wds.tarfile_to_samples(),
        wds.shuffle(100, initial=100),
        wds.to_tuple("cls"),
        wds.map(fail),
    )
    with pytest.raises(KeyError) as caught:
        list(pipeline)
    (note,) = caught.value.__notes__
    number = int(note.split("sample 's")[1][:4])
    assert urls[number // 2] in note


def test_the_key_of_a_compressed_shard_is_that_of_the_sample(shards, tmp_path):
    (url,) = shards(1, 3)
    path = tmp_path / "x.tar.gz"
    path.write_bytes(gzip.compress(open(url, "rb").read()))  # noqa: SIM115
    reading = [wds.SimpleShardList(str(path)), wds.tarfile_to_samples()]
    with pytest.raises(KeyError) as caught:
        list(wds.DataPipeline(*reading, wds.map(fail)))
    assert caught.value.__notes__ == [f"in map: {path}, sample 's0000' at byte 0"]
    with pytest.raises(KeyError) as caught:
        list(wds.DataPipeline(*reading, wds.to_tuple("cls"), wds.map(fail)))
    assert caught.value.__notes__ == [f"in map: {path}, byte 0"]


def test_an_error_without_a_shard_has_no_note():
    with pytest.raises(KeyError) as caught:
        list(wds.map(fail)([1]))
    assert not hasattr(caught.value, "__notes__")


# ── handlers ────────────────────────────────────────────────────────────────────────────


def numbers(pipeline):
    return [int(sample["cls"]) for sample in pipeline]


@pytest.mark.parametrize(
    ("handler", "wanted", "warned"),
    [
        (wds.ignore_and_continue, [0, 2, 4], 0),
        (wds.warn_and_continue, [0, 2, 4], 2),
        (wds.ignore_and_stop, [0], 0),
        (wds.warn_and_stop, [0], 1),
        (lambda error: "odd" in str(error), [0, 2, 4], 0),
    ],
)
def test_each_handler_does_what_its_name_says(shards, recwarn, handler, wanted, warned):
    pipeline = wds.WebDataset(shards(1, 5)).map(fail_on_odd, handler=handler)
    assert numbers(pipeline) == wanted
    told = [w for w in recwarn if "odd" in str(w.message)]
    assert len(told) == warned
    if warned:
        assert "sample 's0001' at byte 2048" in str(told[0].message)
    assert pipeline.skipped == ({"map": 2} if len(wanted) == 3 else {})


def test_the_default_handler_lets_the_error_through(shards):
    with pytest.raises(ValueError, match="odd"):
        numbers(wds.WebDataset(shards(1, 5)).map(fail_on_odd))
    with pytest.raises(ValueError, match="odd"):
        numbers(wds.WebDataset(shards(1, 5)).map(fail_on_odd, handler=wds.reraise_exception))


def test_a_stop_iteration_in_a_function_is_not_the_end_of_the_data():
    def stop(item):
        raise StopIteration

    with pytest.raises(RuntimeError):
        list(wds.map(stop)([1, 2]))


def test_skipped_samples_are_counted_by_stage(shards):
    pipeline = (
        wds.WebDataset(shards(2, 5))
        .map(fail_on_odd, handler=wds.ignore_and_continue)
        .to_tuple("jpg;txt", handler=wds.ignore_and_continue)
        .map(fail, handler=wds.ignore_and_continue)
    )
    assert list(pipeline) == []
    assert pipeline.skipped == {"map": 10}
    assert start(wds.map(str), as_run([1]), Context()).skipped == 0
