"""Worker processes with threads of their own: the same batches, and the same states."""

from __future__ import annotations

import pytest
from numbered import noisy, not_fifth, number, write_shards

import penstock as wds

torch = pytest.importorskip("torch")


def picture(n, rng=None):
    from penstock.memory.output import empty

    made = empty((64, 64), "float32")
    made[:] = n
    return made


def pair(sample):
    n = number(sample)
    return picture(n), n


def loader(urls, threads, workers=2, lanes=4, **options):
    dataset = wds.WebDataset(urls, index=True, shardshuffle=2, seed=1, lanes=lanes)
    dataset = dataset.map(pair).shuffle(6).batched(4)
    return wds.WebLoader(dataset, batch_size=None, num_workers=workers, threads=threads, **options)


def told(batch):
    images, numbers = batch
    assert images.shape == (len(numbers), 64, 64)
    assert all((image == n).all() for image, n in zip(images, numbers))
    return numbers.tolist()


@pytest.fixture(scope="module")
def urls(tmp_path_factory):
    return write_shards(tmp_path_factory.mktemp("numbered"), 4, 12)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_workers_with_threads_give_what_workers_without_give(urls, start):
    kept = list(loader(urls, 3, multiprocessing_context=start))  # no batch is written over later
    assert [told(batch) for batch in kept] == [told(batch) for batch in loader(urls, 0)]


def test_a_state_goes_on_with_another_number_of_threads(urls):
    for step in (1, 4, 9):
        first = loader(urls, 2)
        stream = iter(first)
        for _ in range(step):
            next(stream)
        second = loader(urls, 5)
        second.load_state_dict(first.state_dict())
        assert list(map(told, second)) == list(map(told, stream))


def test_samples_that_are_dropped_or_fail_do_not_shift_the_others(urls):
    def make(threads):
        dataset = wds.WebDataset(urls, shardshuffle=2, seed=1).map(number)
        dataset = (
            dataset.select(not_fifth)
            .map(noisy, rng=True)
            .map(lambda n: 1 // (n % 3) + n, handler=wds.ignore_and_continue)
        )
        dataset = dataset.listed(4)
        return wds.WebLoader(dataset, batch_size=None, num_workers=2, threads=threads)

    assert list(make(3)) == list(make(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": 0, "threads": 2}, "num_workers=0 has none"),
        ({"num_workers": 2, "threads": -1}, "number of threads in each worker"),
        ({"num_workers": 2, "threads": 2, "engine": "threads"}, "num_workers is"),
    ],
)
def test_threads_without_worker_processes_are_refused(urls, options, message):
    with pytest.raises(wds.PipelineError, match=message):
        wds.WebLoader(wds.WebDataset(urls, shardshuffle=False), batch_size=None, **options)
