"""What a first user of states found; each was wrong once."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from numbered import end_rank

import penstock as wds

torch = pytest.importorskip("torch")


@pytest.fixture
def urls(tmp_path):
    with wds.ShardWriter(str(tmp_path / "d-%02d.tar"), maxcount=25, index=True) as sink:
        for number in range(120):
            sink.write({"__key__": f"{number:03d}", "cls": number})
    return str(tmp_path / "d-{00..04}.tar")


def numbers(urls, **options):
    options = {"index": True, "shardshuffle": 2, "seed": 1, **options}
    return wds.WebDataset(urls, **options).decode().map(lambda sample: sample["cls"])


def loader(dataset, workers=0, **options):
    return wds.WebLoader(dataset, num_workers=workers, batch_size=None, **options)


def cls(sample):
    return sample["cls"]


def _rank(rank, folder, urls):
    import torch.distributed as dist

    dist.init_process_group("gloo", f"file://{folder}/group", rank=rank, world_size=2)
    dataset = wds.WebDataset(urls, index=True, seed=1, ends="exact").decode().map(cls)
    spawned = wds.WebLoader(
        dataset, num_workers=1, batch_size=None, multiprocessing_context="spawn"
    )
    found = [int(number) for number in spawned]
    with open(f"{folder}/{rank}.json", "w") as file:
        json.dump(found, file)
    dist.destroy_process_group()
    end_rank()


def test_spawned_workers_know_the_rank_of_their_loader(urls, tmp_path, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    torch.multiprocessing.spawn(_rank, (str(tmp_path), urls), nprocs=2)
    parts = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert sorted(parts[0] + parts[1]) == list(range(120))


def test_a_loader_refuses_the_state_of_another_seed(urls):
    first = loader(numbers(urls))
    next(iter(first))
    with pytest.raises(wds.StateError, match=r"seed=1.* and is .*seed=2"):
        second = loader(numbers(urls, seed=2))
        second.load_state_dict(first.state_dict())
        list(second)


def test_what_the_loader_must_know_is_said_to_the_loader(urls):
    dataset = numbers(urls)
    dataset.set_epoch(5)
    assert list(map(int, loader(dataset))) == list(_epoch(urls, 5))
    skipping = numbers(urls)
    skipping.skip(5)
    with pytest.raises(wds.StateError, match="on the WebLoader, not on its data set"):
        list(loader(skipping))


def _epoch(urls, number):
    dataset = numbers(urls)
    dataset.set_epoch(number)
    return dataset


@pytest.mark.parametrize("count", [1, 5, 38, 49, 119, 200])
def test_skipping_leaves_out_exactly_so_many(urls, count):
    for make in (
        lambda: numbers(urls),
        lambda: numbers(urls, lanes=7),
        lambda: wds.WebDataset(urls).decode().map(cls).with_epoch(100),
        lambda: numbers(urls).listed(10).unlisted().with_epoch(100),
    ):
        whole, skipped = list(make()), make()
        skipped.skip(count)
        assert list(skipped) == whole[count:]


def test_one_lane_in_a_process_counts_what_it_gave(urls):
    first = loader(numbers(urls, lanes=2), 2)
    stream = iter(first)
    begun = [int(next(stream)) for _ in range(3)]
    second = loader(numbers(urls, lanes=2), 0)
    second.load_state_dict(first.state_dict())
    assert begun + list(map(int, second)) == list(numbers(urls, lanes=2))


def test_states_that_fit_in_spite_of_their_words(urls, tmp_path):
    first = loader(numbers(urls, exclude={"001", "002", "003", "100"}))
    stream = iter(first)
    next(stream)
    again = loader(numbers(urls, exclude={"100", "003", "002", "001"}))
    again.load_state_dict(first.state_dict())
    assert list(map(int, again)) == list(map(int, stream))


def test_provenance_is_not_asked_of_steps_that_the_loader_did_not_make(urls):
    rebatched = loader(numbers(urls).listed(10)).unlisted().shuffle(20)
    next(iter(rebatched))
    with pytest.raises(wds.PipelineError, match=r"origins\(\)"):
        rebatched.provenance(0)


def test_a_mix_is_loaded_and_its_data_sets_keep_their_seeds(urls):
    def mix(seed):
        return wds.RandomMix([numbers(urls, seed=seed), numbers(urls, seed=8)], seed=3)

    assert list(loader(mix(1)))
    assert list(wds.DataPipeline(mix(1))) != list(wds.DataPipeline(mix(50)))


@pytest.mark.parametrize("state", [None, "abc", 5, {}, [], [{}], [None], {"penstock": 1}])
def test_what_is_no_state_is_refused_as_such(urls, state):
    for pipeline in (numbers(urls), loader(numbers(urls))):
        with pytest.raises(wds.StateError):
            pipeline.load_state_dict(state)


def test_ranks_of_different_runs_are_not_merged(urls, monkeypatch):
    states = []
    for rank, seed in enumerate((1, 2)):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        dataset = numbers(urls, lanes=4, seed=seed)
        list(islice(dataset, 3))
        states.append(dataset.state_dict())
    with pytest.raises(wds.StateError, match="not of one run: seed"):
        numbers(urls, lanes=4).load_state_dict(states)


def test_an_epoch_of_fixed_length_needs_no_equal_ends(urls, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    filtered = numbers(urls, ends="drop").select(lambda number: number % 2)
    with pytest.raises(wds.PipelineError, match="with_epoch"):
        list(filtered)
    assert len(list(filtered.with_epoch(20))) == 20


def test_a_loader_over_epochs_of_fixed_length_knows_its_own(urls):
    assert len(loader(numbers(urls).with_epoch(7), 2)) == 14
