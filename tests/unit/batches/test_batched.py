from __future__ import annotations

import numpy as np
import pytest

import penstock as wds
from penstock.errors import PipelineError, SampleError


def test_batches_have_a_fixed_size_but_for_the_last():
    batches = list(wds.batched(2)([(1, "a"), (2, "b"), (3, "c")]))
    assert [(list(n), s) for n, s in batches] == [([1, 2], ["a", "b"]), ([3], ["c"])]
    assert len(list(wds.batched(2, partial=False)([(1,), (2,), (3,)]))) == 1
    assert list(wds.batched(2)([])) == []


def test_without_collation_a_batch_is_a_list():
    assert list(wds.batched(2, collation_fn=None)([1, 2, 3])) == [[1, 2], [3]]
    assert list(wds.listed(2)([1, 2, 3])) == [[1, 2], [3]]
    assert list(wds.listed(2, partial=False)([1, 2, 3])) == [[1, 2]]


def test_ones_own_collation_makes_the_batch():
    assert list(wds.batched(2, sum)([1, 2, 3])) == [3, 3]


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_holds_at_least_one(size):
    with pytest.raises(PipelineError, match="at least 1"):
        wds.batched(size)


def test_a_batch_that_cannot_be_made_says_from_where_to_where(shards):
    urls = shards(1, 3)
    dataset = wds.WebDataset(urls).map(lambda s: {**s, s["__key__"]: 1}).batched(2)
    with pytest.raises(SampleError, match=r"keys don't match.*d000\.tar, sample 's0000'") as caught:
        list(dataset)
    (note,) = caught.value.__notes__
    assert note.startswith("in the batch from ")
    assert note.endswith("sample 's0001' at byte 2048")


def test_unbatched_undoes_batched():
    tuples = [(1, "a"), (2, "b"), (3, "c")]
    assert list(wds.DataPipeline(lambda: iter(tuples), wds.batched(2), wds.unbatched())) == tuples
    dicts = [{"n": 1, "s": "a"}, {"n": 2, "s": "b"}]
    assert list(wds.unbatched()(wds.batched(2)(dicts))) == dicts


def test_unbatched_gives_what_has_no_length_to_every_sample():
    assert list(wds.unbatched()([{"x": [1, 2], "n": 7}])) == [{"x": 1, "n": 7}, {"x": 2, "n": 7}]
    assert list(wds.unbatched()([()])) == []


def test_unbatched_needs_columns_of_one_length():
    with pytest.raises(SampleError, match=r"columns have different lengths: \[2, 1\]"):
        list(wds.unbatched()([([1, 2], [3])]))
    with pytest.raises(SampleError, match="fields have different lengths"):
        list(wds.unbatched()([{"a": [1, 2], "b": [3]}]))
    with pytest.raises(SampleError, match="not int"):
        list(wds.unbatched()([3]))


def test_unlisted_takes_lists_apart():
    assert list(wds.unlisted()([[1, 2], [], [3]])) == [1, 2, 3]
    with pytest.raises(SampleError, match="needs lists, not tuple"):
        list(wds.unlisted()([(1, 2)]))


def test_rebatching_in_a_pipeline_keeps_every_sample():
    pipeline = wds.DataPipeline(lambda: iter([(n,) for n in range(20)]), wds.batched(7))
    again = pipeline.unbatched().shuffle(5).batched(4)
    found = [batch[0] for batch in again]
    assert [len(column) for column in found] == [4] * 5
    assert sorted(np.concatenate(found)) == list(range(20))


def test_batch_is_the_older_name():
    dataset = wds.DataPipeline(range(3)).map(lambda n: (n,))
    assert len(list(dataset.batch(batchsize=2))) == 2
