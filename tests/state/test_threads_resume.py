"""A loader on threads: what was taken ahead does not show in its state."""

from __future__ import annotations

import json
import random
import time
from itertools import islice

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numbered import copies, indexed_numbers, noisy, not_fifth, number, pair, write_shards

import penstock as wds
from penstock.engine import item_cost as pace
from penstock.engine import segment_run as row
from penstock.shards.index import open_index
from penstock.testing import assert_resumes

pytestmark = pytest.mark.usefixtures("pool_gets_every_item")


@pytest.fixture(scope="module")
def more(tmp_path_factory):
    """Six shards of twenty samples, with an index."""
    found = write_shards(tmp_path_factory.mktemp("more"), 6, 20)
    open_index(found, True)
    return found


def uneven(n):
    time.sleep(random.random() * 5e-4)
    return n


def loader(data, threads=3, **options):
    return wds.WebLoader(
        data, num_workers=threads, engine="threads", **{"batch_size": None, **options}
    )


def indexed(urls, **options):
    return indexed_numbers(urls, seed=5, **options)


def streaming(urls, **options):
    return wds.WebDataset(urls, shardshuffle=3, seed=5, **options).map(number)


@pytest.mark.parametrize("make", [streaming, indexed])
def test_it_goes_on_after_every_item(urls, make):
    assert_resumes(lambda: loader(make(urls).map(uneven)))


@pytest.mark.parametrize("make", [streaming, indexed])
def test_batches_go_on_through_shuffles_drops_and_random_maps(more, make):
    def chain():
        data = make(more).map(noisy, rng=True).shuffle(9).map(uneven).select(not_fifth)
        return loader(data.map(pair).batched(4))

    assert_resumes(chain, every=3)


@pytest.mark.parametrize("lanes", [2, 6])
def test_lanes_go_on(more, lanes):
    def chain():
        data = indexed(more, lanes=lanes).map(noisy, rng=True).shuffle(12).map(uneven)
        return loader(data.listed(4))

    assert_resumes(chain, every=4)


@pytest.mark.parametrize("make", [streaming, indexed])
def test_batches_made_by_the_loader_go_on(urls, make):
    assert_resumes(lambda: loader(make(urls).map(uneven), batch_size=3))


def test_expanded_samples_go_on(urls):
    assert_resumes(lambda: loader(indexed(urls).map(uneven).compose(copies(3)).map(uneven)))


def test_a_fixed_epoch_length_goes_on(urls):
    assert_resumes(lambda: loader(indexed(urls).map(uneven).with_epoch(30)), every=4)


def test_stages_behind_the_loader_go_on(urls):
    def chain():
        data = indexed(urls).map(uneven).map(pair).batched(3)
        return loader(data).unbatched().shuffle(7).batched(4)

    assert_resumes(chain, every=2)


def test_a_handler_that_ends_the_stream_has_ended_it_for_good(urls):
    def picky(n):
        if n == 17:
            raise ValueError(n)
        return n

    def chain():
        return loader(indexed(urls).map(picky, handler=wds.ignore_and_stop).map(uneven))

    assert_resumes(chain, every=3)


def state_after(made, steps):
    stream = iter(made)
    begun = list(islice(stream, steps))
    state = json.loads(json.dumps(made.state_dict()))
    stream.close()
    return begun, state


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    first=st.integers(0, 4),
    second=st.integers(0, 4),
    steps=st.integers(0, 30),
    lanes=st.sampled_from([None, 4]),
    buffer=st.sampled_from([1, 30]),
)
def test_a_state_goes_on_with_any_number_of_threads(more, first, second, steps, lanes, buffer):
    def make(threads):
        data = indexed(more, lanes=lanes).shuffle(buffer).map(noisy, rng=True).map(uneven)
        return loader(data.listed(4), threads)

    whole = list(make(0))
    begun, state = state_after(make(first), steps)
    going_on = make(second)
    going_on.load_state_dict(state)
    assert begun + list(going_on) == whole


@pytest.mark.parametrize("back", [False, True])
def test_a_state_goes_from_threads_to_processes_and_back(more, back):
    def make(engine):
        data = indexed(more, lanes=4).shuffle(20).map(noisy, rng=True).map(uneven).listed(4)
        options = {"multiprocessing_context": "fork"} if engine == "processes" else {}
        return wds.WebLoader(data, num_workers=2, batch_size=None, engine=engine, **options)

    one, other = ("processes", "threads") if back else ("threads", "processes")
    begun, state = state_after(make(one), 8)  # behind a whole round of the lanes
    going_on = make(other)
    going_on.load_state_dict(state)
    assert begun + list(going_on) == list(make("threads"))


def test_a_run_on_two_ranks_goes_on_with_four(more, monkeypatch):
    def make():
        return loader(indexed(more, lanes=4, ends="exact").map(uneven).listed(5))

    whole = list(make())
    begun, states = [], []
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        some, state = state_after(make(), 6)
        begun += some
        states.append(state)
    monkeypatch.setenv("WORLD_SIZE", "4")
    for rank in range(4):
        monkeypatch.setenv("RANK", str(rank))
        going_on = make()
        going_on.load_state_dict(states)
        begun += list(going_on)
    assert sorted(begun) == sorted(whole)


def test_going_on_works_on_no_sample_that_was_given_before(more):
    seen = []

    def make():
        return loader(indexed(more).map(seen_and_given).listed(4))

    def seen_and_given(n):
        seen.append(n)
        return n

    _, state = state_after(make(), 20)
    seen.clear()
    going_on = make()
    going_on.load_state_dict(state)
    rest = list(going_on)
    assert sorted(seen) == sorted(n for batch in rest for n in batch)


def test_the_origins_of_a_step_are_known(more):
    made = loader(indexed(more).map(uneven).listed(4))
    batches = list(islice(iter(made), 12))
    keys = [origin.key for origin in made.provenance(7)]
    assert keys == [f"s{n:04d}" for n in batches[7]]


def test_a_pipeline_that_only_a_replay_brings_back_goes_on_too(urls):
    def doubled(source):
        for n in source:
            yield from (n, n)

    def make():
        return loader(indexed(urls).map(uneven).then(doubled).map(uneven))

    whole = list(make())
    begun, state = state_after(make(), 11)
    going_on = make()
    going_on.load_state_dict(state)
    with pytest.warns(UserWarning, match="replayed"):
        rest = list(going_on)
    assert begun + rest == whole


@pytest.mark.parametrize("cheap", [False, True])
def test_a_tail_that_is_dropped_is_behind_the_last_batch(urls, cheap, monkeypatch):
    monkeypatch.setattr(pace, "CHEAP_SECONDS", 1.0 if cheap else -1.0)

    def chain():
        return loader(streaming(urls).select(not_fifth).map(pair).batched(4))

    assert_resumes(chain)
    with_two, states = chain(), []
    states += [with_two.state_dict() for _ in with_two]
    plain = loader(streaming(urls).select(not_fifth).map(pair).batched(4), 0)
    behind = [plain.state_dict()["epoch"] for _ in plain]
    assert len(states) == len(behind)


@pytest.mark.parametrize("make", [streaming, indexed])
def test_cheap_samples_go_on_from_anywhere_in_a_stretch(more, make, monkeypatch):
    monkeypatch.setattr(pace, "CHEAP_SECONDS", 1.0)
    monkeypatch.setattr(row, "CHEAP_RUN", 7)

    def chain(threads=3):
        data = make(more).shuffle(4).select(not_fifth).map(noisy, rng=True)
        return loader(data.map(pair), threads)

    assert str(list(chain())) == str(list(chain(threads=0)))
    assert_resumes(chain, every=3)
