"""An endless stream that returns nothing ends with an error; a rare item is waited for."""

from __future__ import annotations

import random
from itertools import islice

import pytest
from numbered import number

import penstock as wds
from penstock.engine import item_cost as pace
from penstock.errors import PipelineError
from penstock.loaders import webloader
from penstock.stages import drop_guard as dropping
from penstock.stages.stage import Each, Many
from tar_files import write_tar


def never(n):
    return False


def nothing(n):
    return None


def fails(n):
    raise ValueError(n)


class no_copies(Many):
    """Every item becomes none."""

    def __init__(self):
        pass

    def expand(self, item):
        return []


class drops(Each):
    """A user's stage that drops every item."""

    def apply(self, item):
        return None


def swallow(source):
    """A user's generator that yields nothing."""
    for _ in source:
        pass
    yield from ()


def two_lengths(n):
    return 1 + n % 2


BUCKETS = {"buffersize": 4, "collate_fn": None, "sampler_kwargs": {"target_batch_numel": 4}}

DROPPING = {
    "a filter": (wds.select(never),),
    "two filters": (wds.select(lambda n: n % 2), wds.select(lambda n: n % 2 == 0)),
    "a map": (wds.map(nothing),),
    "a random map": (wds.map(lambda n, rng: None, rng=True),),
    "a handler": (wds.map(fails, wds.ignore_and_continue),),
    "an expander": (no_copies(),),
    "empty lists": (wds.map(lambda n: []), wds.unlisted()),
    "a user's stage": (drops(),),
    "a random sample": (wds.rsample(0.0),),
    "buckets": (wds.dynamic_bucketed_batch(None, two_lengths, min_sample_len=5, **BUCKETS),),
    "rows": (wds.map(lambda n: [n] * 9), wds.packed(4, over="skip")),
    "a filter after batches": (wds.listed(5), wds.select(never)),
    "a filter before batches": (wds.select(never), wds.listed(5)),
    "a filter after a shuffle": (wds.shuffle(9), wds.select(never)),
}


def resampled(urls):
    return wds.WebDataset(urls, resampled=True).map(number)


def repeated(urls):
    return wds.WebDataset(urls, shardshuffle=2).repeat().map(number)


def indexed(urls):
    return wds.WebDataset(urls, index=True, shardshuffle=2).repeat().map(number)


def repeated_later(urls):
    return wds.DataPipeline(range(7)).repeat()


def drawn(urls):
    return wds.DataPipeline(range(7), wds.resampled())


def nested(urls):
    return wds.DataPipeline(wds.DataPipeline(range(7)).with_epoch(0))


def mixed(urls):
    return wds.DataPipeline(wds.RandomMix([resampled(urls), repeated_later(urls)]))


ENDLESS = [resampled, repeated, indexed, repeated_later, drawn, nested, mixed]


@pytest.mark.parametrize("stages", DROPPING)
@pytest.mark.parametrize("source", ENDLESS)
def test_an_endless_source_of_which_every_item_is_dropped_is_an_error(urls, source, stages):
    dataset = source(urls).compose(*DROPPING[stages])
    with pytest.raises(PipelineError, match="pass"):
        next(iter(dataset))
    with pytest.raises(PipelineError, match="pass"):
        list(dataset.with_epoch(5))


@pytest.mark.parametrize("source", [resampled, repeated_later])
def test_a_generator_that_yields_nothing_of_an_endless_source_is_an_error(
    urls, source, monkeypatch
):
    monkeypatch.setattr(dropping, "MANY_ITEMS", 2000)
    with pytest.raises(PipelineError, match="swallow"):
        list(source(urls).then(swallow).with_epoch(5))


@pytest.mark.parametrize("stages", DROPPING)
def test_an_epoch_of_fixed_length_of_which_every_item_is_dropped_is_an_error(urls, stages):
    """The source ends, and with_epoch or repeat starts it again."""
    dataset = wds.DataPipeline(range(7)).compose(*DROPPING[stages])
    with pytest.raises(PipelineError, match="pass"):
        list(dataset.with_epoch(5))
    with pytest.raises(PipelineError, match="pass"):
        list(wds.DataPipeline(range(7)).compose(*DROPPING[stages], wds.repeat()))
    assert list(wds.DataPipeline(range(7)).compose(*DROPPING[stages])) == []
    assert list(wds.DataPipeline(range(7)).compose(*DROPPING[stages], wds.repeat(3))) == []


def test_a_stage_that_keeps_too_few_for_its_first_item_is_an_error(urls):
    for stages in ((wds.listed(9, partial=False),), (wds.slice(8, 20),), (swallow,)):
        with pytest.raises(PipelineError, match="pass"):
            list(wds.DataPipeline(range(7)).compose(*stages).with_epoch(5))


@pytest.mark.parametrize("expensive", [False, True])
@pytest.mark.parametrize(
    "stages", ["a filter", "two filters", "a handler", "an expander", "a filter before batches"]
)
def test_threads_notice_it_too(urls, stages, expensive, monkeypatch):
    monkeypatch.setattr(pace, "CHEAP_SECONDS", -1.0 if expensive else 1.0)
    monkeypatch.setattr(pace, "MEASURED", 2)
    dataset = resampled(urls).compose(*DROPPING[stages]).with_epoch(5)
    with pytest.raises(PipelineError, match="pass"):
        list(wds.WebLoader(dataset, num_workers=2, batch_size=None, engine="threads"))


@pytest.mark.filterwarnings("ignore:.*worker processes in total")
def test_worker_processes_notice_it_too(urls):
    dataset = resampled(urls).select(never).with_epoch(5)
    with pytest.raises(PipelineError, match="pass"):
        list(wds.WebLoader(dataset, num_workers=2, batch_size=None))


@pytest.mark.parametrize("engine", ["processes", "threads"])
def test_a_stage_after_a_loader_notices_it_too(urls, engine, monkeypatch):
    monkeypatch.setattr(dropping, "MANY_ITEMS", 500)
    monkeypatch.setattr(webloader, "MANY_ITEMS", 500)
    loader = wds.WebLoader(repeated_later(urls), batch_size=None, num_workers=1, engine=engine)
    with pytest.raises(PipelineError, match="pass"):
        list(loader.select(never).with_epoch(5))


@pytest.mark.parametrize("lanes", [1, 3])
def test_every_lane_notices_it(urls, lanes):
    dataset = wds.WebDataset(urls, resampled=True, lanes=lanes).map(number).select(never)
    with pytest.raises(PipelineError, match="pass"):
        list(dataset.with_epoch(5))


def shard(path, count):
    return write_tar(path, [(f"s{n}.cls", b"%d" % n) for n in range(count)])


def test_endless_shards_without_samples_are_an_error(tmp_path):
    empty = [shard(tmp_path / f"{n}.tar", 0) for n in range(3)]
    for dataset in (
        wds.WebDataset(empty, empty_check=False, resampled=True),
        wds.WebDataset(empty, empty_check=False).repeat(),
    ):
        with pytest.raises(PipelineError, match="pass"):
            list(dataset.with_epoch(5))


def test_endless_shards_that_cannot_be_read_are_an_error(tmp_path):
    missing = [str(tmp_path / f"{n}.tar") for n in range(3)]
    handler = wds.ignore_and_continue
    for dataset in (
        wds.WebDataset(missing, handler=handler, resampled=True),
        wds.WebDataset(missing, handler=handler, empty_check=False).repeat(),
    ):
        with pytest.raises(PipelineError, match="pass"):
            list(dataset.with_epoch(5))


def test_one_shard_with_samples_among_empty_ones_is_enough(tmp_path):
    some = [shard(tmp_path / f"{n}.tar", int(n == 0)) for n in range(8)]
    dataset = wds.WebDataset(some, resampled=True, empty_check=False).with_epoch(20)
    assert len(list(dataset)) == 20


# ── what is rare, and not an error ──────────────────────────────────────────────────────


class Lucky:
    """A predicate that is true for one item in 40, by a generator of its own."""

    def __init__(self):
        self.rng = random.Random(3)

    def __call__(self, item):
        return self.rng.random() < 1 / 40


RARE = {
    "a random sample": lambda: wds.rsample(0.02),
    "a random filter": lambda: wds.select(Lucky()),
    "a random map": lambda: wds.map(lambda n, rng: n if rng.random() < 0.02 else None, rng=True),
}


@pytest.mark.parametrize("stage", RARE)
@pytest.mark.parametrize("source", [resampled, repeated, repeated_later, drawn, nested])
def test_a_stage_that_drops_at_random_gets_a_hundred_passes(urls, source, stage):
    if stage == "a random map" and source in (resampled, drawn):
        return  # a sample that is drawn again in an epoch has the same random numbers
    dataset = source(urls).compose(RARE[stage]()).with_epoch(20)
    assert len(list(dataset)) == 20


@pytest.mark.parametrize("stage", RARE)
def test_an_unlucky_pass_does_not_end_an_epoch_of_fixed_length(stage):
    dataset = wds.DataPipeline(range(7)).compose(RARE[stage]())
    assert len(list(dataset.with_epoch(20))) == 20


@pytest.mark.parametrize("stage", RARE)
def test_an_unlucky_pass_does_not_end_a_repeat(stage):
    endless = wds.DataPipeline(range(7)).compose(RARE[stage](), wds.repeat())
    assert len(list(islice(endless, 20))) == 20
    several = wds.DataPipeline(range(7)).compose(RARE[stage](), wds.repeat(500))
    assert len(list(several)) > 20


@pytest.mark.parametrize(
    "stage", [wds.listed(1000), wds.shuffle(900, initial=800), wds.listed(900, partial=False)]
)
def test_a_buffer_larger_than_a_pass_is_filled(stage):
    dataset = wds.DataPipeline(range(3)).repeat().compose(stage).with_epoch(2)
    assert len(list(dataset)) == 2


def test_a_generator_may_keep_more_than_a_hundred_passes():
    def in_thousands(source):
        while batch := list(islice(source, 1000)):
            yield batch

    dataset = wds.DataPipeline(range(3)).repeat().then(in_thousands).with_epoch(2)
    assert [len(batch) for batch in dataset] == [1000, 1000]


def test_a_rare_data_set_in_an_endless_mix_is_waited_for():
    endless = wds.DataPipeline(range(100, 103)).repeat()
    mix = wds.RandomMix([wds.DataPipeline(range(7)), endless], [0.001, 1], longest=True)
    dataset = wds.DataPipeline(mix, wds.select(lambda n: n < 100))
    stream = iter(dataset)
    assert list(islice(stream, 7)) == list(range(7))
    with pytest.raises(PipelineError, match="pass"):
        next(stream)


def test_workers_without_a_shard_end_their_epoch(urls, monkeypatch):
    monkeypatch.setenv("NUM_WORKERS", "6")
    monkeypatch.setenv("WORKER", "5")
    assert list(wds.WebDataset(urls).with_epoch(5)) == []
    assert list(wds.WebDataset(urls).repeat().select(never).with_epoch(5)) == []
    assert list(wds.DataPipeline([1, 2], wds.split_by_worker).with_epoch(5)) == []
    assert list(wds.DataPipeline([1, 2], wds.split_by_worker).map(number).repeat()) == []


def test_a_filter_of_many_items_is_an_error_after_two_passes():
    asked = []

    def count(n):
        asked.append(n)
        return False

    with pytest.raises(PipelineError, match="pass"):
        list(wds.DataPipeline(range(150_000)).select(count).with_epoch(5))
    assert len(asked) == 300_000
    asked.clear()
    with pytest.raises(PipelineError, match="pass"):
        list(wds.DataPipeline(range(150_000)).repeat().select(count))
    assert len(asked) < 500_000
