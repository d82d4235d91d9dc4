"""set_epoch() reaches the workers of a loader, however they were started.

Other processes, such as the ranks of a job, have an epoch of their own.
"""

from __future__ import annotations

import json
import multiprocessing
from itertools import islice

import pytest
import torch
from numbered import number

import penstock as wds
from penstock.loaders.webloader import LoaderRun
from waiting import wait_until

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*worker processes in total"),
    pytest.mark.filterwarnings("ignore:.*set_vital"),
]
METHODS = ["fork", "spawn", "forkserver"]


def dataset_of(urls):
    return wds.WebDataset(urls, index=True, shardshuffle=2, lanes=4).shuffle(8).map(number)


def epochs_of(urls, numbers):
    """What one process gives in these epochs; two workers take the four lanes in that order."""
    dataset = dataset_of(urls)
    found = []
    for epoch in numbers:
        dataset.set_epoch(epoch)
        found.append(list(dataset))
    return found


def loader_of(kind, urls, method, workers=2, **options):
    options.update(batch_size=None, num_workers=workers, multiprocessing_context=method)
    if kind == "WebLoader":
        return wds.WebLoader(dataset_of(urls), **options)
    if kind == "DataLoader":
        return torch.utils.data.DataLoader(dataset_of(urls), **options)
    stateful = pytest.importorskip("torchdata.stateful_dataloader")
    return stateful.StatefulDataLoader(dataset_of(urls), **options)


def check_epochs(kind, urls, loader):
    target = loader if kind == "WebLoader" else loader.dataset
    found = [list(loader), list(loader)]  # 0 and 1
    for epoch in (5, 3):
        target.set_epoch(epoch)
        found.append(list(loader))
    assert target.epoch == 4
    assert found == epochs_of(urls, (0, 1, 5, 3))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["WebLoader", "DataLoader", "StatefulDataLoader"])
def test_workers_that_persist_begin_the_epoch_that_was_set(urls, kind, method):
    check_epochs(kind, urls, loader_of(kind, urls, method, persistent_workers=True))


@pytest.mark.parametrize(
    ("kind", "method", "workers"),
    [
        ("WebLoader", "fork", 2),
        ("DataLoader", "fork", 2),
        ("StatefulDataLoader", "fork", 2),
        ("DataLoader", "spawn", 1),
    ],
)
def test_workers_that_are_started_anew_begin_the_next_epoch(urls, kind, method, workers):
    check_epochs(kind, urls, loader_of(kind, urls, method, workers))


def test_a_loader_whose_workers_persist_resumes_in_the_epoch_that_was_set(urls):
    first = loader_of("WebLoader", urls, "spawn", persistent_workers=True)
    list(first)
    first.set_epoch(7)
    stream = iter(first)
    begun = list(islice(stream, 9))
    state = json.loads(json.dumps(first.state_dict()))
    assert state["epoch"] == 7
    stream.close()
    second = loader_of("WebLoader", urls, "fork")
    second.load_state_dict(state)
    assert [begun + list(second)] == epochs_of(urls, [7])


class WaitIn:
    """Lets one worker start only when a file exists."""

    def __init__(self, worker, file):
        self.worker, self.file = worker, file

    def __call__(self, worker):
        if worker == self.worker:
            wait_until(self.file.exists, "the second iteration begins")


@pytest.mark.parametrize("persistent", [True, False])
def test_a_worker_that_starts_late_begins_the_epoch_of_its_iteration(
    urls, tmp_path, monkeypatch, persistent
):
    """The first iteration ends after one sample, before the second worker has begun."""
    begun = tmp_path / "second-iteration"
    start = LoaderRun._start_workers

    def start_noting(run):
        if run.context.epoch == 1:
            begun.touch()
        return start(run)

    monkeypatch.setattr(LoaderRun, "_start_workers", start_noting)
    options = {"persistent_workers": persistent, "worker_init_fn": WaitIn(1, begun)}
    loader = loader_of("WebLoader", urls, "fork", **options)
    first = iter(loader)
    sample = next(first)
    second = list(loader)
    expected = epochs_of(urls, [0, 1])
    assert sample == expected[0][0]
    assert second == expected[1]
    if not persistent:  # both iterators have workers
        assert [sample, *first] == expected[0]
    assert list(loader) == epochs_of(urls, [2])[0]


def test_torchdatas_loader_with_spawned_workers_resumes_after_a_complete_epoch(urls):
    first = loader_of("StatefulDataLoader", urls, "fork", 1)
    list(first)
    second = loader_of("StatefulDataLoader", urls, "spawn", 1)
    second.load_state_dict(first.state_dict())
    assert [list(second)] == epochs_of(urls, [1])


@pytest.mark.parametrize("before", [0, 2, 3])
def test_all_workers_begin_one_epoch_after_a_loader_with_other_workers(urls, before):
    """A look at the first sample, or an epoch with fewer workers, counts for all of them."""
    dataset = dataset_of(urls)
    options = {"batch_size": None, "multiprocessing_context": "fork"}
    if before:
        list(torch.utils.data.DataLoader(dataset, num_workers=before, **options))
    else:
        next(iter(dataset))
    assert sorted(torch.utils.data.DataLoader(dataset, num_workers=4, **options)) == list(range(24))


def test_forked_workers_that_persist_hear_of_the_epoch_after_others_were_spawned(urls):
    dataset = dataset_of(urls)
    options = {"batch_size": None, "num_workers": 2, "persistent_workers": True}
    forked = torch.utils.data.DataLoader(dataset, multiprocessing_context="fork", **options)
    list(forked)
    spawned = torch.utils.data.DataLoader(dataset, multiprocessing_context="spawn", **options)
    dataset.set_epoch(5)
    found = [list(spawned)]
    dataset.set_epoch(8)
    found.append(list(forked))
    assert found == epochs_of(urls, [5, 8])


def failing(sample):
    raise ValueError("broken")


def test_samples_left_out_in_spawned_workers_are_counted(urls):
    dataset = wds.WebDataset(urls, index=True).map(failing, handler=wds.ignore_and_continue)
    loader = wds.WebLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context="spawn")
    assert list(loader) == []
    assert dataset.skipped == {"map": 24}


def take_epochs(dataset, barrier, results, rank):
    """One rank: by itself, then with a loader of torch's."""
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=2)
    for source in (dataset, dataset, loader, loader):
        barrier.wait()
        results.put((rank, list(source)))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes_that_are_not_workers_count_their_own_epochs(urls, method):
    context = multiprocessing.get_context(method)
    dataset, barrier, results = dataset_of(urls), context.Barrier(2), context.Queue()
    ranks = [
        context.Process(target=take_epochs, args=(dataset, barrier, results, rank))
        for rank in range(2)
    ]
    for rank in ranks:
        rank.start()
    told = [results.get(timeout=120) for _ in range(8)]
    for rank in ranks:
        rank.join()
    for rank in range(2):
        assert [items for who, items in told if who == rank] == epochs_of(urls, range(4))
    assert dataset.epoch == 0


def test_nested_pipelines_beyond_the_limit_of_descriptors_are_sent_as_copies(urls):
    """A fork server takes 256 descriptors; a mix of 300 data sets is sent all the same."""
    parts = [dataset_of(urls[:1]) for _ in range(300)]
    loader = torch.utils.data.DataLoader(
        wds.DataPipeline(wds.RoundRobin(parts, longest=True)),
        batch_size=None,
        num_workers=1,
        multiprocessing_context="forkserver",
    )
    assert len(list(loader)) == 300 * 6
