"""With ends="drop" and "pad", the default on several ranks, all ranks get as many batches.

Where that cannot be known, the pipeline is refused before it starts: a rank with one batch more
than the others hangs distributed training.
"""

from __future__ import annotations

import warnings

import pytest
from numbered import copies, first, indexed_numbers, not_fifth, number, pair, write_shards

import penstock as wds
from penstock.errors import PipelineError
from penstock.shards.index import open_index
from penstock.stages.stage import Each

RANKS = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two indexed data sets, of 90 and of 47 samples."""
    folder = tmp_path_factory.mktemp("ranks")
    one = write_shards(folder, 6, 15, name="one")
    two = write_shards(folder, 1, 47, first=1000, name="two")
    open_index(one, True), open_index(two, True)
    return one, two


class drops_some(Each):
    """A user's stage that drops items and says nothing about it."""

    def apply(self, item):
        return item if item % 5 else None


class declared(Each):
    """A user's stage that promises to drop nothing."""

    keeps_count = True

    def apply(self, item):
        return item


class drops_in_a_subclass(wds.map):
    """A user's kind of map that drops items."""

    def apply(self, item):
        return item if item % 5 else None


def doubled(source):
    for item in source:
        yield from (item, item)


def indexed(urls, ends):
    return indexed_numbers(urls, seed=1, ends=ends)


def alone(data, ends):
    return indexed(data[0], ends)


def nested(data, ends):
    return wds.DataPipeline(indexed(data[0], ends))


def nested_twice(data, ends):
    return wds.DataPipeline(wds.DataPipeline(indexed(data[0], ends)).map(int))


def round_robin(data, ends):
    return wds.DataPipeline(wds.RoundRobin([indexed(urls, ends) for urls in data]))


def round_robin_to_the_last(data, ends):
    return wds.DataPipeline(wds.RoundRobin([indexed(urls, ends) for urls in data], longest=True))


def random_mix_to_the_last(data, ends):
    return wds.DataPipeline(
        wds.RandomMix([indexed(urls, ends) for urls in data], [2, 1], longest=True)
    )


def mix_with_a_list(data, ends):
    return wds.DataPipeline(wds.RoundRobin([indexed(data[0], ends), [1, 2, 3]], longest=True))


def mix_with_a_cut_data_set(data, ends):
    cut = indexed(data[1], ends).select(not_fifth).with_epoch(11)
    return wds.DataPipeline(wds.RoundRobin([indexed(data[0], ends), cut]))


EQUAL = [
    *(alone, nested, nested_twice, round_robin, round_robin_to_the_last, random_mix_to_the_last),
    *(mix_with_a_list, mix_with_a_cut_data_set),
]


def random_mix(data, ends):
    return wds.DataPipeline(wds.RandomMix([indexed(urls, ends) for urls in data], [2, 1]))


def nested_filter(data, ends):
    return wds.DataPipeline(indexed(data[0], ends).select(not_fifth))


def nested_generator(data, ends):
    return wds.DataPipeline(indexed(data[0], ends).then(doubled))


def filter_in_a_round_robin(data, ends):
    filtered = indexed(data[0], ends).select(not_fifth)
    return wds.DataPipeline(wds.RoundRobin([filtered, indexed(data[1], ends)], longest=True))


def filter_in_a_random_mix(data, ends):
    filtered = indexed(data[0], ends).select(not_fifth)
    return wds.DataPipeline(wds.RandomMix([filtered, indexed(data[1], ends)], longest=True))


def filter_in_a_mix_in_a_nested_pipeline(data, ends):
    return wds.DataPipeline(filter_in_a_round_robin(data, ends).map(int))


def mix_with_an_exact_data_set(data, ends):
    exact = indexed(data[1], "exact")
    return wds.DataPipeline(wds.RoundRobin([indexed(data[0], ends), exact], longest=True))


def mix_with_shards_read_in_order(data, ends):
    shards = wds.WebDataset(data[1], nodesplitter=wds.split_by_node, empty_check=False).map(number)
    return wds.DataPipeline(wds.RoundRobin([indexed(data[0], ends), shards], longest=True))


def users_stage(data, ends):
    return indexed(data[0], ends).compose(drops_some())


def users_stage_in_a_nested_pipeline(data, ends):
    return wds.DataPipeline(indexed(data[0], ends).compose(drops_some()))


def users_kind_of_map(data, ends):
    return indexed(data[0], ends).compose(drops_in_a_subclass(int))


UNEQUAL = [
    *(random_mix, nested_filter, nested_generator, filter_in_a_round_robin),
    *(filter_in_a_random_mix, filter_in_a_mix_in_a_nested_pipeline, mix_with_an_exact_data_set),
    *(mix_with_shards_read_in_order, users_stage, users_stage_in_a_nested_pipeline),
    users_kind_of_map,
]

AFTER = {
    "batches": (wds.listed(4),),
    "full batches": (wds.listed(4, partial=False),),
    "a declared stage": (declared(), wds.listed(4)),
    "rebatched": (wds.listed(4), wds.unlisted(), wds.shuffle(20), wds.listed(6)),
    "batches of batches": (wds.listed(3), wds.listed(2)),
    "a repeat": (wds.repeat(2), wds.listed(4)),
    "a cache": (wds.Cached(), wds.listed(4)),
    "collated": (wds.map(pair), wds.batched(4), wds.unbatched(), wds.map(first), wds.listed(3)),
}


def counts(monkeypatch, make, workers=1, epochs=1):
    """How many items each rank gets of each epoch, from all its workers together."""
    monkeypatch.setenv("WORLD_SIZE", str(RANKS))
    found = []
    for rank in range(RANKS):
        monkeypatch.setenv("RANK", str(rank))
        total = [0] * epochs
        for worker in range(workers):
            monkeypatch.setenv("WORKER", str(worker))
            monkeypatch.setenv("NUM_WORKERS", str(workers))
            pipeline = make()
            for epoch in range(epochs):
                pipeline.set_epoch(epoch)
                total[epoch] += len(list(pipeline))
        found.append(total)
    return found


@pytest.mark.parametrize("after", AFTER)
@pytest.mark.parametrize("source", EQUAL)
@pytest.mark.parametrize(("ends", "lanes", "workers"), [("drop", None, 3), ("pad", 12, 2)])
def test_ranks_get_equally_many(data, source, after, ends, lanes, workers, monkeypatch):
    if lanes is not None and source is mix_with_a_list:
        return  # nothing deals a list out to lanes

    def make():
        pipeline = source(data, ends).compose(*AFTER[after])
        pipeline.lanes = lanes
        return pipeline

    found = counts(monkeypatch, make, workers, epochs=2)
    assert found == [found[0]] * RANKS
    assert min(found[0]) > 0


@pytest.mark.parametrize("source", EQUAL)
def test_the_default_gives_ranks_equally_many(data, source, monkeypatch):
    found = counts(monkeypatch, lambda: source(data, None).listed(4))
    assert found == [found[0]] * RANKS


@pytest.mark.parametrize("ends", [None, "drop", "pad"])
@pytest.mark.parametrize("source", UNEQUAL)
def test_what_may_be_unequal_is_refused(data, source, ends, monkeypatch):
    with pytest.raises(PipelineError, match="ends="):
        counts(monkeypatch, lambda: source(data, ends).listed(4))


@pytest.mark.parametrize("ends", ["drop", "pad"])
@pytest.mark.parametrize(
    "stages",
    [
        (wds.select(not_fifth),),
        (doubled,),
        (copies(3),),
        (wds.rsample(0.5),),
        (drops_some(),),
        (wds.listed(2), wds.unlisted(), wds.unlisted()),
        (wds.listed(2), wds.slice(3), wds.unlisted()),
    ],
)
@pytest.mark.parametrize("source", [alone, nested, round_robin])
def test_a_later_stage_that_changes_the_number_is_refused(data, source, stages, ends, monkeypatch):
    with pytest.raises(PipelineError, match=f"ends='{ends}'"):
        counts(monkeypatch, lambda: source(data, ends).compose(*stages).listed(4))


@pytest.mark.parametrize("source", [*EQUAL, *UNEQUAL])
def test_an_epoch_of_fixed_length_is_equal_whatever_the_source(data, source, monkeypatch):
    def make():
        return source(data, None).select(not_fifth).listed(4).with_epoch(40)

    assert counts(monkeypatch, make) == [[40]] * RANKS


@pytest.mark.filterwarnings("ignore:.*worker processes in total")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("source", [random_mix, filter_in_a_round_robin, users_stage])
def test_a_loader_with_epochs_of_fixed_length_is_not_refused(data, source, workers, monkeypatch):
    def make():
        loader = wds.WebLoader(source(data, None).listed(4), num_workers=workers, batch_size=None)
        return loader.with_epoch(15)

    assert counts(monkeypatch, make) == [[15]] * RANKS

    def make_data_set_of_fixed_length():
        dataset = source(data, None).listed(4).with_epoch(7)
        return wds.WebLoader(dataset, num_workers=workers, batch_size=None)

    assert counts(monkeypatch, make_data_set_of_fixed_length) == [[7 * max(workers, 1)]] * RANKS


@pytest.mark.filterwarnings("ignore:.*worker processes in total")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_is_refused_where_its_data_set_may_be_unequal(data, workers, monkeypatch):
    def make():
        dataset = filter_in_a_round_robin(data, None)
        return wds.WebLoader(dataset, num_workers=workers, batch_size=4)

    with pytest.raises(PipelineError, match="ends="):
        counts(monkeypatch, make)


def test_a_stage_after_a_loader_that_changes_the_number_is_refused(data, monkeypatch):
    def make(*stages):
        dataset = alone(data, "drop").listed(4)
        return wds.WebLoader(dataset, batch_size=None).compose(*stages)

    with pytest.raises(PipelineError, match="ends='drop'"):
        counts(monkeypatch, lambda: make(wds.unlisted(), wds.select(not_fifth), wds.listed(4)))
    found = counts(monkeypatch, lambda: make(wds.unlisted(), wds.shuffle(9), wds.listed(8)))
    assert found == [[3]] * RANKS


@pytest.mark.parametrize("source", UNEQUAL)
def test_exact_ends_may_be_unequal_and_lose_nothing(data, source, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", str(RANKS))
    found = []
    for rank in range(RANKS):
        monkeypatch.setenv("RANK", str(rank))
        found += list(source(data, "exact"))
    if source is not random_mix:
        monkeypatch.setenv("WORLD_SIZE", "1")
        monkeypatch.setenv("RANK", "0")
        assert sorted(found) == sorted(source(data, "exact"))


def test_the_default_says_when_it_cannot_keep_ranks_equal(data, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", str(RANKS))
    monkeypatch.setenv("RANK", "0")
    with pytest.warns(UserWarning, match=r"select.*ends='exact'"):
        list(alone(data, None).select(not_fifth))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(alone(data, "exact").select(not_fifth))
        list(alone(data, None).select(not_fifth).with_epoch(5))


def test_the_length_of_a_users_stage_is_known_only_where_it_says_so(data):
    assert len(alone(data, None).compose(declared()).listed(4)) == 23
    for source in (users_stage, users_kind_of_map):
        with pytest.raises(TypeError, match="is not known"):
            len(source(data, None))
        dataset = source(data, None)
        wanted = list(dataset)
        dataset.set_epoch(0)
        dataset.skip(7)
        assert list(dataset) == wanted[7:]


@pytest.mark.parametrize("ends", [None, "drop", "pad"])
def test_mixes_without_a_pipeline_are_refused_where_ranks_may_be_unequal(data, monkeypatch, ends):
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "1")
    dataset = wds.WebDataset(data[0], index=True, shardshuffle=2, ends=ends).listed(4)
    with pytest.raises(PipelineError, match="RandomMix"):
        iter(wds.RandomMix([dataset, dataset]))
    filtered = wds.WebDataset(data[1], index=True, ends=ends).select(bool).listed(4)
    with pytest.raises(PipelineError, match="select"):
        iter(wds.RoundRobin([filtered, dataset]))
    assert list(wds.RoundRobin([dataset, dataset]))
