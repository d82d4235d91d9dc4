"""WebLoader: the state is where the training loop stands, not where the workers are."""

from __future__ import annotations

import gc
import json
import os
import weakref
from itertools import islice

import pytest
import torch
from numbered import flat, indexed_numbers, noisy, not_fifth, number, write_shards

import penstock as wds
from penstock.shards.index import open_index
from penstock.testing import assert_resumes
from waiting import wait_until

pytestmark = pytest.mark.filterwarnings("ignore:.*worker processes in total")


def streaming(urls, **options):
    return wds.WebDataset(urls, shardshuffle=3, empty_check=False, **options).map(number)


def loader(data, workers, **options):
    if workers:
        options.setdefault("multiprocessing_context", "fork")
    return wds.WebLoader(data, num_workers=workers, **{"batch_size": None, **options})


@pytest.mark.parametrize("workers", [0, 2, 3])
@pytest.mark.parametrize("make", [streaming, indexed_numbers])
def test_a_loader_goes_on_after_every_item(urls, make, workers):
    every = 1 if workers == 0 else 5
    size_bytes = assert_resumes(lambda: loader(make(urls).shuffle(6), workers), every=every)
    assert size_bytes < 12_000


@pytest.mark.parametrize("workers", [0, 3])
def test_batches_of_the_data_set_go_on(urls, workers):
    def make():
        data = (
            indexed_numbers(urls, lanes=6)
            .map(noisy, rng=True)
            .select(not_fifth)
            .shuffle(8)
            .listed(4)
        )
        return loader(data, workers)

    assert_resumes(make, every=1 if workers == 0 else 2)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [streaming, indexed_numbers])
def test_batches_of_torchs_loader_go_on(urls, make, workers):
    assert_resumes(lambda: loader(make(urls), workers, batch_size=3), every=2)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("make", [streaming, indexed_numbers])
def test_stages_behind_the_loader_go_on(urls, make, workers):
    def chain():
        data = make(urls).map(lambda n: (n, f"n{n}")).batched(3)
        return loader(data, workers).unbatched().shuffle(7).batched(4)

    assert_resumes(chain, every=1 if workers == 0 else 2)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("length", [5, 30])
def test_a_loader_with_an_epoch_of_its_own_goes_on(urls, workers, length):
    every = 1 if workers == 0 else 7
    assert_resumes(lambda: loader(indexed_numbers(urls), workers).with_epoch(length), every=every)


def test_a_data_set_with_an_epoch_of_its_own_goes_on_in_workers(urls):
    data = lambda: wds.WebDataset(urls, resampled=True).shuffle(5).map(number).with_epoch(9)  # noqa: E731
    assert_resumes(lambda: loader(data(), 2), every=5)
    assert_resumes(lambda: loader(data(), 0))


def test_spawned_workers_go_on(urls):
    def make():
        return loader(indexed_numbers(urls).shuffle(5), 2, multiprocessing_context="spawn")

    first = make()
    stream = iter(first)
    begun = [next(stream) for _ in range(7)]
    state = json.loads(json.dumps(first.state_dict()))
    rest = list(stream)
    second = make()
    second.load_state_dict(state)
    assert list(second) == rest
    assert sorted(begun + rest) == list(range(24))


@pytest.mark.parametrize("make", [streaming, indexed_numbers])
def test_persistent_workers_go_on_and_into_the_next_epochs(urls, make):
    def persistent():
        return loader(make(urls).shuffle(5), 2, persistent_workers=True)

    first = persistent()
    epochs = [list(first) for _ in range(3)]
    assert len({tuple(epoch) for epoch in epochs}) == 3

    second = persistent()
    list(second)
    stream = iter(second)
    begun = [next(stream) for _ in range(9)]
    state = json.loads(json.dumps(second.state_dict()))
    del stream

    third = persistent()
    third.load_state_dict(state)
    assert [begun + list(third), list(third)] == epochs[1:]
    third.load_state_dict(state)  # and the same loader again, with its workers at work
    assert [begun + list(third), list(third)] == epochs[1:]


def test_the_state_does_not_run_ahead_with_the_workers(urls, tmp_path):
    def logged(item):
        (tmp_path / str(item)).touch()
        return item

    first = loader(indexed_numbers(urls, lanes=4).map(logged), 2, prefetch_factor=12)
    stream = iter(first)
    begun = [next(stream) for _ in range(3)]
    wait_until(lambda: len(os.listdir(tmp_path)) == 24, "the workers have prepared all items")
    state = first.state_dict()
    (lane,) = state["state"].values()
    given = sum(inner["given"] for inner in lane["run"]["lanes"].values())
    assert given == 3
    second = loader(indexed_numbers(urls, lanes=4).map(logged), 2, prefetch_factor=2)
    second.load_state_dict(state)
    rest = list(second)
    assert rest == list(stream)
    assert sorted(begun + rest) == list(range(24))


@pytest.mark.parametrize(("before", "after"), [(0, 2), (2, 0), (3, 2), (2, 3)])
def test_with_lanes_the_number_of_workers_may_change(urls, before, after):
    """What comes is what was not yet seen, and each lane in its own order."""
    first = loader(indexed_numbers(urls, lanes=6).shuffle(12), before)
    stream = iter(first)
    begun = [next(stream) for _ in range(8)]
    state = first.state_dict()
    rest = list(stream)
    second = loader(indexed_numbers(urls, lanes=6).shuffle(12), after)
    second.load_state_dict(state)
    assert sorted(begun + list(second)) == list(range(24))
    assert sorted(begun + rest) == list(range(24))


def test_without_lanes_another_number_of_workers_is_refused(urls):
    first = loader(streaming(urls), 2)
    next(iter(first))
    second = loader(streaming(urls), 3)
    second.load_state_dict(first.state_dict())
    with pytest.raises(wds.StateError, match="with 2 workers and this loader has 3"):
        list(second)


def test_a_loader_says_which_samples_a_step_held(urls):
    data = wds.WebDataset(urls, index=True, shardshuffle=2, seed=1).shuffle(4)
    keys = loader(data.map(lambda s: s["__key__"]).listed(4), 2)
    steps = list(keys)
    for step in (0, 3, 5):
        assert [origin.key for origin in keys.provenance(step)] == steps[step]
    with pytest.raises(wds.StateError, match="step 6 is not remembered: 0 to 5 are"):
        keys.provenance(6)


@pytest.mark.parametrize("workers", [0, 2])
def test_provenance_goes_on_behind_a_resume_and_through_collation(urls, workers):
    def make():
        data = streaming_keys(urls)
        return loader(data, workers, batch_size=3)

    first = make()
    stream = iter(first)
    next(stream), next(stream)
    second = make()
    second.load_state_dict(first.state_dict())
    for step, batch in enumerate(second, start=2):
        assert [origin.key for origin in second.provenance(step)] == batch


def streaming_keys(urls):
    return wds.WebDataset(urls, shardshuffle=3).shuffle(5).map(lambda s: s["__key__"])


def test_provenance_of_stages_behind_the_loader(urls):
    data = streaming_keys(urls).map(lambda key: (key, 1)).batched(4)
    chain = loader(data, 2).unbatched().shuffle(6).batched(5)
    for batch in chain:
        assert [origin.key for origin in chain.origins()] == list(batch[0])


class Trained(torch.utils.data.IterableDataset):
    """A user's own data set, not ours: its loader can only start over."""

    def __iter__(self):
        return iter(range(8))


def test_a_foreign_data_set_goes_on_by_replay_and_says_so():
    make = lambda: wds.WebLoader(Trained(), batch_size=None)  # noqa: E731
    first = make()
    stream = iter(first)
    next(stream), next(stream)
    second = make()
    second.load_state_dict(first.state_dict())
    with pytest.warns(UserWarning, match="DataLoader.* cannot save what it keeps"):
        assert list(second) == list(stream) == list(range(2, 8))


def test_each_sample_once_with_more_workers_than_lanes_or_shards(urls):
    for data in (indexed_numbers(urls, lanes=2), indexed_numbers(urls[:1]), streaming(urls[:1])):
        count = 24 if data.lanes == 2 else 6
        assert sorted(loader(data, 3)) == list(range(count))
    batches = loader(indexed_numbers(urls, lanes=2).listed(5), 3)
    assert sorted(flat(batches)) == list(range(24))


@pytest.mark.parametrize("length", [-1, 30])
def test_an_abandoned_loader_goes_at_once_with_its_workers(urls, length):
    """Left to the garbage collector, torch waits five seconds for each worker."""
    gc.collect()
    gc.disable()
    try:
        one = loader(indexed_numbers(urls), 2, persistent_workers=True).with_epoch(length)
        stream = iter(one)
        next(stream)
        gone = weakref.ref(one), weakref.ref(one.loader)
        del stream, one
        assert [one() for one in gone] == [None, None]
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Five shards of eighty samples: room for buffers whose states do not travel every time."""
    found = write_shards(tmp_path_factory.mktemp("many"), 5, 80)
    open_index(found, True)
    return found


@pytest.mark.parametrize("lanes", [None, 4])
@pytest.mark.parametrize("make", [streaming, indexed_numbers])
def test_loaders_with_large_buffers_go_on_from_stop_to_stop(many, make, lanes):
    """Stopped again and again, also before the next state has come from a worker."""

    def chain():
        options = {"lanes": lanes} if lanes else {}
        return loader(make(many, **options).shuffle(150, initial=80), 2)

    wanted = list(chain())
    assert sorted(wanted) == list(range(400))
    found, state = [], None
    for steps in (3, 1, 2, 90, 1, 1, 47, 5, 400):
        again = chain()
        if state is not None:
            again.load_state_dict(json.loads(json.dumps(state)))
        stream = iter(again)
        found += islice(stream, steps)
        state = again.state_dict()
        stream.close()
    assert found == wanted


def test_two_iterators_cannot_share_persistent_workers(urls):
    data = indexed_numbers(urls, lanes=2)
    loader = wds.WebLoader(data, batch_size=None, num_workers=2, persistent_workers=True)
    first = iter(loader)
    next(first)
    second = iter(loader)
    begun = [next(second), next(second)]
    with pytest.raises(wds.PipelineError, match=r"one iterator at a time.* a second loader"):
        next(first)
    assert sorted(begun + list(second)) == list(range(24))
    assert sorted(loader) == list(range(24))  # one after another, as in a training


def test_two_iterators_cannot_share_the_persistent_workers_of_a_saveable_loader():
    loader = wds.SaveableDataLoader(range(24), num_workers=2, persistent_workers=True)
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(wds.PipelineError, match=r"one iterator at a time.* a second loader"):
        next(first)
    assert [batch.item() for batch in second] == list(range(24))
    assert [batch.item() for batch in loader] == list(range(24))


def test_two_iterators_have_separate_workers_that_do_not_persist(urls):
    loader = wds.WebLoader(indexed_numbers(urls, lanes=2), batch_size=None, num_workers=2)
    first, second = iter(loader), iter(loader)
    pairs = [(next(first), next(second)) for _ in range(24)]
    assert [sorted(one) for one in zip(*pairs)] == [list(range(24))] * 2
