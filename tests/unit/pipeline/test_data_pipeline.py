"""Building, cutting, repeating, describing and pickling pipelines."""

from __future__ import annotations

import copy
import functools
import pickle
from itertools import islice

import pytest

import penstock as wds
from penstock.errors import PipelineError


def add(source, n):
    return (item + n for item in source)


def times(n, source):
    return (item * n for item in source)


def double(item):
    return item * 2


def clean(item):
    return 1 / item


class Sized(wds.DataPipeline):
    def __len__(self):
        return 99


# ── building ────────────────────────────────────────────────────────────────────────────


def test_stages_that_are_none_are_left_out_and_lists_are_unpacked():
    pipeline = wds.DataPipeline(range(3), None, [wds.map(double), None, wds.map(str)])
    assert list(pipeline) == ["0", "2", "4"]
    assert pipeline.stage(1) == wds.map(double)


def test_an_empty_pipeline_asks_for_a_source():
    with pytest.raises(PipelineError, match="empty: add a source"):
        iter(wds.DataPipeline())


def test_compose_and_the_methods_give_copies_and_append_does_not():
    pipeline = wds.DataPipeline(range(3))
    longer = pipeline.compose(functools.partial(times, 2), None).map(str)
    assert list(longer) == ["0", "2", "4"]
    assert list(pipeline) == [0, 1, 2]
    pipeline.append(wds.map(str))
    assert list(pipeline) == ["0", "1", "2"]


def test_then_and_pipe_bind_arguments():
    assert list(wds.DataPipeline(range(3)).then(add, 5)) == [5, 6, 7]
    assert list(wds.DataPipeline(range(3)).pipe(add, n=5)) == [5, 6, 7]
    assert list(wds.DataPipeline(range(3)).pipe(wds.map(str))) == ["0", "1", "2"]


def test_a_source_is_an_iterable_a_function_or_another_pipeline():
    inner = wds.DataPipeline(range(3)).map(double)
    for source in (range(3), lambda: iter(range(3)), lambda: [0, 1, 2], wds.DataPipeline(range(3))):
        assert list(wds.DataPipeline(source, wds.map(double))) == list(inner) == [0, 2, 4]


def test_a_pipeline_is_no_later_stage():
    with pytest.raises(PipelineError, match="the source of another, not a later stage"):
        list(wds.DataPipeline(range(3), wds.DataPipeline(range(3))))


def test_leaving_the_with_block_closes_the_stages():
    closed = []

    class Source:
        def __iter__(self):
            return iter([1])

        def close(self):
            closed.append(True)

    with wds.DataPipeline(Source()) as pipeline:
        assert list(pipeline) == [1]
    assert closed == [True]


def test_describe_lists_the_stages():
    dataset = wds.WebDataset("x-{0..3}.tar", shardshuffle=10, seed=1).to_tuple("jpg", "cls")
    assert dataset.describe().splitlines() == [
        "SimpleShardList('x-{0..3}.tar')",
        "  shuffle(10, seed=1)",
        "  single_node_only()",
        "  split_by_worker()",
        "  tarfile_to_samples(empty_check=True, local_paths=True)",
        "  to_tuple('jpg', 'cls')",
    ]
    assert repr(wds.DataPipeline(range(3), double)) == "DataPipeline(range(0, 3), double)"
    assert repr(wds.DataPipeline(range(3)).with_length(5)) == "DataPipeline(range(0, 3))"


# ── lengths ─────────────────────────────────────────────────────────────────────────────


def test_with_epoch_cuts_or_begins_again_and_gives_itself():
    pipeline = wds.DataPipeline(range(3))
    assert pipeline.with_epoch(2) is pipeline
    assert list(pipeline) == [0, 1]
    assert list(pipeline.with_epoch(7)) == [0, 1, 2, 0, 1, 2, 0]
    assert list(pipeline.with_epoch(nbatches=4)) == [0, 1, 2, 0]
    assert len(list(islice(pipeline.with_epoch(0), 100))) == 100
    assert list(pipeline.with_epoch(-1)) == [0, 1, 2]


def test_with_epoch_counts_items_of_the_whole_pipeline():
    pipeline = wds.DataPipeline(range(10)).with_epoch(3).listed(4)
    assert list(pipeline) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(pipeline.with_epoch(4))[-1] == [0, 1, 2, 3]


def test_every_epoch_begins_anew_with_another_order():
    pipeline = wds.DataPipeline(range(40), wds.shuffle(40)).with_epoch(60)
    first, second = list(pipeline), list(pipeline)
    assert sorted(first[:40]) == sorted(second[:40]) == list(range(40))
    assert len({tuple(first[:20]), tuple(first[40:]), tuple(second[:20]), tuple(second[40:])}) == 4
    again = wds.DataPipeline(range(40), wds.shuffle(40)).with_epoch(60)
    assert [list(again), list(again)] == [first, second]


def test_an_empty_source_ends_an_epoch_of_any_length():
    assert list(wds.DataPipeline(range(0)).with_epoch(5)) == []


def test_the_last_of_with_epoch_and_repeat_counts():
    assert len(list(wds.DataPipeline(range(40)).with_epoch(5).repeat(2))) == 80
    assert len(list(wds.DataPipeline(range(40)).repeat(2).with_epoch(5))) == 5


def test_repeat_works_at_its_place_in_the_chain():
    pipeline = wds.DataPipeline(range(3))
    assert pipeline.repeat(2) is pipeline
    assert list(pipeline.listed(4)) == [[0, 1, 2, 0], [1, 2]]
    batches = list(wds.DataPipeline(range(3)).listed(2).repeat(2))
    assert batches == [[0, 1], [2], [0, 1], [2]]


def test_only_with_length_gives_a_length():
    pipeline = wds.DataPipeline(range(3))
    with pytest.raises(TypeError):
        len(pipeline)
    assert pipeline.with_length(7) is pipeline
    assert len(pipeline) == len(pipeline.map(double)) == 7
    assert len(pipeline.with_length(8)) == 8
    assert list(pipeline) == [0, 1, 2]
    assert isinstance(pipeline, wds.DataPipeline)


def test_a_dataset_with_a_length_is_still_of_its_class():
    dataset = wds.WebDataset("x.tar").with_length(3)
    assert isinstance(dataset, wds.WebDataset)
    assert len(dataset.decode()) == 3


# ── copies and travel ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("protocol", [2, pickle.HIGHEST_PROTOCOL])
def test_pipelines_travel_whole(shards, protocol):
    dataset = (
        wds.WebDataset(shards(3, 4), shardshuffle=10, seed=3)
        .shuffle(5)
        .decode()
        .map_dict(cls=double)
        .to_tuple("cls", "txt")
        .batched(3, collation_fn=None)
        .with_epoch(5)
        .with_length(5)
    )
    dataset.set_epoch(2)
    other = pickle.loads(pickle.dumps(dataset, protocol))
    assert len(other) == 5
    assert other.epoch == 2
    assert repr(other) == repr(dataset)
    assert list(other) == list(dataset)
    assert list(other) == list(dataset)


def test_a_subclass_with_a_length_of_its_own_travels():
    other = pickle.loads(pickle.dumps(Sized(range(3))))
    assert type(other) is Sized
    assert len(other) == 99


def test_copies_count_their_own_epochs():
    pipeline = wds.DataPipeline(range(3))
    list(pipeline)
    other = pipeline.map(double)
    deep = copy.deepcopy(pipeline)
    list(other)
    assert (pipeline.epoch, other.epoch, deep.epoch) == (1, 2, 1)


def test_a_pipeline_in_the_middle_of_an_epoch_travels():
    pipeline = wds.DataPipeline(range(3), wds.map(double))
    next(iter(pipeline))
    assert list(pickle.loads(pickle.dumps(pipeline))) == [0, 2, 4]


# ── what was skipped ────────────────────────────────────────────────────────────────────


def test_what_was_skipped_is_counted_over_all_epochs():
    pipeline = wds.DataPipeline(range(3)).map(clean, handler=wds.ignore_and_continue)
    assert pipeline.skipped == {}
    list(pipeline)
    list(pipeline)
    assert pipeline.skipped == {"map": 2}


# ── WebDataset ──────────────────────────────────────────────────────────────────────────


def order(dataset):
    return [sample["__url__"].rsplit("/", 1)[-1] for sample in dataset]


def test_the_first_order_of_shards_is_that_of_webdataset(shard):
    urls = [shard([("a", {"x": b""})], str(n)) for n in range(20)]
    dataset = wds.WebDataset(urls, shardshuffle=100, seed=1)
    first = order(dataset)
    assert first[:8] == ["4", "18", "2", "8", "3", "7", "12", "14"]
    second = order(dataset)
    assert sorted(first) == sorted(second)
    assert first != second


def test_shards_are_shuffled_when_asked(shards):
    urls = shards(8, 1)
    plain = [url.rsplit("/", 1)[-1] for url in urls]
    for asked in (None, False, 0):
        assert order(wds.WebDataset(urls, shardshuffle=asked)) == plain
    for asked in (True, 100):
        found = order(wds.WebDataset(urls, shardshuffle=asked))
        assert found != plain
        assert sorted(found) == plain


def test_detshuffle_and_the_variable_for_the_seed_work(shards, monkeypatch):
    urls = shards(8, 1)
    one = order(wds.WebDataset(urls, shardshuffle=100, detshuffle=True, seed=4))
    assert one == order(wds.WebDataset(urls, shardshuffle=100, detshuffle=True, seed=4))
    monkeypatch.setenv("WDS_SEED", "5")
    five = order(wds.WebDataset(urls, shardshuffle=100))
    monkeypatch.setenv("WDS_SEED", "6")
    assert order(wds.WebDataset(urls, shardshuffle=100)) != five
    monkeypatch.setenv("WDS_SEED", "5")
    assert order(wds.WebDataset(urls, shardshuffle=100)) == five


def test_the_variable_for_the_epoch_says_where_to_begin(shards, monkeypatch):
    urls = shards(8, 1)
    dataset = wds.WebDataset(urls, shardshuffle=100)
    list(dataset)
    second = order(dataset)
    monkeypatch.setenv("WDS_EPOCH", "1")
    assert order(wds.WebDataset(urls, shardshuffle=100)) == second


def test_resampled_shards_never_end(shards):
    urls = shards(3, 2)
    for options in ({"resampled": True}, {"mode": "resampled"}):
        dataset = wds.WebDataset(urls, **options)
        assert len(list(islice(dataset, 100))) == 100
    one = wds.WebDataset(urls, resampled=True, seed=1).with_epoch(30)
    other = wds.WebDataset(urls, resampled=True, seed=2).with_epoch(30)
    assert order(one) != order(other)


@pytest.mark.parametrize("options", [{}, {"index": True}], ids=["streamed", "indexed"])
def test_repeat_in_the_constructor_is_one_pass_with_a_warning(shards, options):
    with pytest.warns(UserWarning, match=r"repeat=True has no effect.*\.repeat\(\)"):
        dataset = wds.WebDataset(shards(2, 2), repeat=True, **options)
    assert len(list(islice(dataset, 100))) == 4
    assert len(list(islice(dataset.repeat(), 100))) == 100


def test_arguments_that_cannot_work_are_refused():
    with pytest.raises(PipelineError, match="mode is None or 'resampled'"):
        wds.WebDataset("x.tar", mode="other")


def test_a_shard_list_can_be_given_in_place_of_urls(shards):
    dataset = wds.WebDataset(wds.SimpleShardList(shards(2, 2)))
    assert len(list(dataset)) == 4
    endless = wds.WebDataset(wds.ResampledShards(shards(2, 2)))
    assert len(list(islice(endless, 50))) == 50


def test_verbose_tells_which_shard_is_read(shards, capsys):
    urls = shards(2, 1)
    list(wds.WebDataset(urls, verbose=True))
    assert capsys.readouterr().err == "".join(f"# reading {url}\n" for url in urls)


def test_the_constructor_opens_nothing(tmp_path):
    wds.WebDataset(str(tmp_path / "missing-{0..9}.tar")).shuffle(10).decode().batched(3)


def test_anything_can_be_made_fluent():
    assert list(wds.FluidWrapper([1, 2, 3]).map(double)) == [2, 4, 6]
    assert list(wds.FluidWrapper(wds.MockDataset(1, 2)).map(double)) == [2, 2]
