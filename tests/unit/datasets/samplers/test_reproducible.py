"""Random orders by seed and epoch, and samplers made of samplers."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import (
    BalancingDataSampler,
    ConcatDatasetBatchSampler,
    DistributedSamplerWrapper,
    DynamicBatchSampler,
    PipelineError,
    ReproducibleRandomSampler,
    ReproducibleWeightedRandomSampler,
    SaveableDataLoader,
    StateError,
)

torch = pytest.importorskip("torch")

LENGTHS = [(1 + (n * 7919) % 3400) / 100 for n in range(2000)] + [50.0, 700.0]
WEIGHTS = [(n % 7) / 3 for n in range(50)]
SPEAKERS = np.array([["a", "b", "b", "c", "c", "c"][n % 6] for n in range(60)])


class Speakers:
    """A data set with a column."""

    def __len__(self) -> int:
        return len(SPEAKERS)

    def column(self, name: str) -> Any:
        return SPEAKERS


class Spoken:
    """A data set that must be read for it."""

    keys: Any = ("audio",)

    def __len__(self) -> int:
        return len(SPEAKERS)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return dict.fromkeys(self.keys, SPEAKERS[number])

    @contextmanager
    def output_keys_as(self, keys: Any) -> Iterator[None]:
        before, self.keys = self.keys, keys
        yield
        self.keys = before


class Plain:
    """Samples without output keys."""

    def __len__(self) -> int:
        return len(SPEAKERS)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"speaker": str(SPEAKERS[number])}


def dynamic(**arguments: Any) -> DynamicBatchSampler:
    return DynamicBatchSampler(range(len(LENGTHS)), 600, 200, lengths_list=LENGTHS, **arguments)


def both() -> ConcatDatasetBatchSampler:
    first, second = ReproducibleRandomSampler(range(20)), ReproducibleRandomSampler(range(50), 9)
    return ConcatDatasetBatchSampler([first, second], [2, 3])


MAKERS: dict[str, Callable[[], Any]] = {
    "random": lambda: ReproducibleRandomSampler(range(100)),
    "with replacement": lambda: ReproducibleRandomSampler(
        range(100), seed=3, replacement=True, num_samples=250
    ),
    "more than there are": lambda: ReproducibleRandomSampler(range(100), seed=3, num_samples=250),
    "weighted": lambda: ReproducibleWeightedRandomSampler(WEIGHTS, 80, True),
    "weighted, each once": lambda: ReproducibleWeightedRandomSampler(WEIGHTS, 30, False, seed=5),
    "balanced": lambda: BalancingDataSampler(Speakers(), "speaker", num_samples=90),
    "several": both,
    "rank 1 of 3": lambda: DistributedSamplerWrapper(dynamic(), 3, 1),
    "rank 2 of 3": lambda: DistributedSamplerWrapper(
        dynamic(), num_replicas=3, rank=2, shuffle=False, drop_last=True
    ),
    "dynamic": dynamic,
}

# Digests of epoch 0, and of epoch 1 where it is another, as SpeechBrain 1.1.2 gives them.
AS_IN_SPEECHBRAIN = {
    "random": [2526345598, 402611528],
    "with replacement": [1460090141],
    "more than there are": [3411987416],
    "weighted": [3860436907, 3387670375],
    "weighted, each once": [3418901947, 4240523372],
    "balanced": [2908618626, 3197650782],
    "several": [850121805, 413927223],
    "rank 1 of 3": [2009977102, 720818673],
    "rank 2 of 3": [2488400404, 895278320],
}


def digest(items: Iterable[Any]) -> int:
    return zlib.crc32(json.dumps(list(items)).encode())


@pytest.mark.parametrize("name", AS_IN_SPEECHBRAIN)
def test_orders_are_those_of_speechbrain_epoch_by_epoch(name: str) -> None:
    sampler, expected = MAKERS[name](), AS_IN_SPEECHBRAIN[name]
    assert [digest(sampler) for _ in expected] == expected
    sampler.set_epoch(0)
    items = list(sampler)
    assert digest(items) == expected[0]
    assert len(sampler) == len(items)


@pytest.mark.parametrize("name", MAKERS)
@given(steps=st.integers(0, 120))
def test_a_state_goes_on_where_it_was_saved(name: str, steps: int) -> None:
    def forever(sampler: Any) -> Iterator[Any]:
        while True:
            yield from sampler

    sampler, other = MAKERS[name](), MAKERS[name]()
    running = forever(sampler)
    assert len(list(islice(running, steps))) == steps
    state = json.loads(json.dumps(sampler.state_dict()))
    other.load_state_dict(state)
    assert json.loads(json.dumps(other.state_dict())) == state
    assert list(islice(forever(other), 60)) == list(islice(running, 60))


def test_a_state_of_other_data_is_refused() -> None:
    state = ReproducibleRandomSampler(range(10)).state_dict()
    with pytest.raises(StateError, match="samples was 10 when it was saved and is 11 now"):
        ReproducibleRandomSampler(range(11)).load_state_dict(state)
    changed = [*LENGTHS[:-1], 701.0]
    other = DynamicBatchSampler(range(len(changed)), 600, 200, lengths_list=changed)
    with pytest.raises(StateError, match="lengths and buckets"):
        other.load_state_dict(dynamic().state_dict())


def test_drawing_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    for make in MAKERS.values():
        list(make())
    assert torch.equal(torch.get_rng_state(), before)


def test_a_generator_is_refused() -> None:
    generator: Any = torch.Generator()
    with pytest.raises(ValueError, match="give seed="):
        ReproducibleRandomSampler(range(3), generator=generator)
    with pytest.raises(ValueError, match="give seed="):
        ReproducibleWeightedRandomSampler([1], 1, True, generator=generator)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ReproducibleRandomSampler([]), "empty"),
        (lambda: ReproducibleRandomSampler([1], num_samples=0), "at least 1"),
        (lambda: ReproducibleWeightedRandomSampler([], 1, True), "one number per sample"),
        (lambda: ReproducibleWeightedRandomSampler([1, -1], 1, True), "sample 1 has -1"),
        (lambda: ReproducibleWeightedRandomSampler([1, float("nan")], 1, True), "sample 1 has nan"),
        (lambda: ReproducibleWeightedRandomSampler([0, 0], 1, True), "all weights are 0"),
        (lambda: ReproducibleWeightedRandomSampler([1, 0, 1], 3, False), "from 2 with a weight"),
        (lambda: ConcatDatasetBatchSampler([range(3)], [1, 2]), "1 samplers and 2 batch_sizes"),
        (lambda: ConcatDatasetBatchSampler([], []), "0 samplers"),
        (lambda: ConcatDatasetBatchSampler(range(3), [1]), "samplers must be a list"),
        (lambda: ConcatDatasetBatchSampler([range(3)], [0]), "numbers of samples"),
        (lambda: DistributedSamplerWrapper(range(3), 2, 2), "rank 2 of 2"),
        (lambda: DistributedSamplerWrapper([], 2, 0), "0 batches cannot be split between 2 ranks"),
        (lambda: DistributedSamplerWrapper([[1]], 2, 0, drop_last=True), "no rank would get any"),
    ],
)
def test_what_cannot_work_is_told(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        make()


def test_balancing_takes_a_column_or_reads_the_samples() -> None:
    expected = BalancingDataSampler(Speakers(), "speaker").weights.tolist()
    assert [round(1 / weight) for weight in expected[:6]] == [10, 20, 20, 30, 30, 30]
    assert expected[3] == float(np.float32(1 / 30))  # draws depend on the last bit
    for data in (Spoken(), Plain()):
        assert BalancingDataSampler(data, "speaker").weights.tolist() == expected
    weights = BalancingDataSampler(Speakers(), "speaker").weights
    assert isinstance(weights, torch.Tensor)
    assert weights.dtype == torch.float64
    drawn = Counter(SPEAKERS[list(BalancingDataSampler(Speakers(), "speaker", 3000))])
    assert all(900 < count < 1100 for count in drawn.values())


def test_batches_of_several_data_sets_count_on_from_the_data_not_from_the_sampler() -> None:
    few = ReproducibleRandomSampler(range(100), num_samples=10)
    weighted = ReproducibleWeightedRandomSampler([1.0] * 30, 40, True)
    batches = list(ConcatDatasetBatchSampler([few, weighted, range(7)], [1, 2, 1]))
    assert len(batches) == 7
    for first, second, third, fourth in batches:
        assert first < 100 <= min(second, third) <= max(second, third) < 130 <= fourth


def test_samplers_with_and_without_epochs_go_together() -> None:
    batches = ConcatDatasetBatchSampler(
        [range(20), ReproducibleRandomSampler(range(20)), torch.utils.data.SequentialSampler("ab")],
        [1, 1, 0],
    )
    first, second = list(batches), list(batches)
    assert [batch[0] for batch in first] == [batch[0] for batch in second]
    assert first != second
    batches.set_epoch(0)
    assert list(batches) == first


@pytest.mark.parametrize("world", [1, 2, 3, 8])
@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_ranks_get_equally_many_batches_and_all_of_them(world: int, count: int) -> None:
    given = [[2 * n, 2 * n + 1] for n in range(count)]
    shares = [DistributedSamplerWrapper(given, world, rank) for rank in range(world)]
    parts = [list(share) for share in shares]
    assert {len(part) for part in parts} == {-(-count // world)}
    seen = Counter(map(tuple, chain(*parts)))
    assert set(seen) == set(map(tuple, given))
    assert sum(seen.values()) - len(seen) == shares[0].repeated
    if count >= world:
        left = [
            DistributedSamplerWrapper(given, world, rank, drop_last=True) for rank in range(world)
        ]
        kept = [tuple(batch) for share in left for batch in share]
        assert len(kept) == len(set(kept)) == count - left[0].dropped


def test_one_batch_for_each_rank_is_a_batch() -> None:
    share = DistributedSamplerWrapper([[1, 2, 3], [4, 5]], 2, 0, shuffle=False)
    assert list(share) == [[1, 2, 3]]


def test_torchs_own_distributed_sampler_gives_the_same_share() -> None:
    given = list(range(23))
    for rank in range(4):
        theirs = torch.utils.data.DistributedSampler(given, num_replicas=4, rank=rank, seed=5)
        theirs.set_epoch(2)
        ours = DistributedSamplerWrapper(given, 4, rank, seed=5)
        ours.set_epoch(2)
        assert list(ours) == list(theirs)


def test_a_wrapped_sampler_plans_once_per_epoch() -> None:
    class Counted(DynamicBatchSampler):
        planned = 0

        def _plan(self, epoch: int) -> Any:
            self.planned += 1
            return super()._plan(epoch)

    inner = Counted(range(len(LENGTHS)), 600, 200, lengths_list=LENGTHS)
    share = DistributedSamplerWrapper(inner, 2, 0)
    for epoch in range(3):
        share.set_epoch(epoch)
        list(share)
    assert inner.planned == 3


@given(
    worlds=st.lists(st.integers(1, 6), min_size=2, max_size=4),
    steps=st.lists(st.integers(0, 4), min_size=3, max_size=3),
)
def test_other_numbers_of_ranks_go_on_with_what_is_left(
    worlds: list[int], steps: list[int]
) -> None:
    given = [[n] for n in range(100)]
    seen: list[Any] = []
    state = None
    for turn, world in enumerate(worlds):
        shares = [DistributedSamplerWrapper(given, world, rank) for rank in range(world)]
        for share in shares:
            if state is not None:
                share.load_state_dict(state)
        last = turn == len(worlds) - 1
        running = [iter(share) for share in shares]
        parts = [list(islice(run, None if last else steps[turn])) for run in running]
        seen += [tuple(batch) for part in parts for batch in part]
        state = json.loads(json.dumps(shares[0].state_dict()))
    assert set(seen) == set(map(tuple, given))
    # Only the last step of the last number of ranks may be filled up.
    assert len(seen) - len(set(seen)) < worlds[-1]
    assert set(map(tuple, chain(*shares))) == set(map(tuple, given))  # the next epoch is whole


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, SaveableDataLoader])
def test_a_pass_left_in_the_middle_counts_as_an_epoch(kind, workers):
    sampler = DynamicBatchSampler(range(40), 20, 3, lengths_list=list(range(1, 41)))
    loader = kind(list(range(40)), batch_sampler=sampler, num_workers=workers)
    first = [next(iter(loader)).tolist() for _ in range(3)]
    assert first == [sampler.plan(epoch)[0] for epoch in range(3)]


def test_a_state_from_a_pass_behind_one_that_was_left_goes_on_there():
    def made():
        sampler = DynamicBatchSampler(range(40), 20, 3, lengths_list=list(range(1, 41)))
        return SaveableDataLoader(list(range(40)), batch_sampler=sampler)

    loader = made()
    next(iter(loader))
    stream = iter(loader)
    next(stream)
    other = made()
    other.load_state_dict(loader.state_dict())
    assert [batch.tolist() for batch in other] == [batch.tolist() for batch in stream]


def test_the_same_epoch_can_be_asked_for_again():
    sampler = ReproducibleRandomSampler(range(9))
    first = next(iter(sampler))
    sampler.set_epoch(0)
    assert next(iter(sampler)) == first
