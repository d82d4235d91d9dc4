"""Loaders of map-style data sets that can go on in the middle of an epoch."""

from __future__ import annotations

import json
from itertools import islice

import pytest

import penstock as wds

torch = pytest.importorskip("torch")
data = pytest.importorskip("torch.utils.data")

from penstock.testing import assert_resumes  # noqa: E402

LENGTHS = [1 + n * 7 % 13 for n in range(40)]


def rows(loader):
    return [batch.tolist() for batch in loader]


def plain():
    return wds.SaveableDataLoader(range(20), batch_size=3)


def shuffled():
    torch.manual_seed(5)
    return wds.SaveableDataLoader(range(20), batch_size=3, shuffle=True)


def reproducible():
    return wds.make_dataloader(range(20), batch_size=3, shuffle=True)


def dynamic():
    sampler = wds.DynamicBatchSampler(range(40), 40, num_buckets=4, lengths_list=LENGTHS)
    return wds.SaveableDataLoader(range(40), batch_sampler=sampler)


def planned():
    return wds.SaveableDataLoader(
        range(40), batch_sampler=wds.PlannedBatchSampler(LENGTHS, 40, seed=3)
    )


def distributed():
    sampler = data.DistributedSampler(range(20), num_replicas=2, rank=1)
    return wds.SaveableDataLoader(range(20), batch_size=3, sampler=sampler)


def single():
    return wds.SaveableDataLoader(range(7), batch_size=None, sampler=[3, 1, 2, 5])


MAKERS = [plain, shuffled, reproducible, dynamic, planned, distributed, single]


@pytest.mark.parametrize("make", MAKERS)
def test_a_loader_goes_on_after_every_batch(make):
    assert assert_resumes(make) < 1000


@pytest.mark.parametrize("make", [shuffled, dynamic, planned])
def test_it_goes_on_in_the_second_epoch_and_into_the_third(make):
    first = make()
    epochs = [rows(first) for _ in range(3)]
    assert sorted(sum(epochs[0], [])) == sorted(sum(epochs[1], []))  # noqa: RUF017
    assert epochs[0] != epochs[1] != epochs[2]
    again = make()
    rows(again)
    stream = iter(again)
    assert [next(stream).tolist() for _ in range(2)] == epochs[1][:2]
    state = json.loads(json.dumps(again.state_dict()))
    other = make()
    other.load_state_dict(state)
    assert rows(other) == epochs[1][2:]
    assert rows(other) == epochs[2]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("make", ["dynamic", "planned", "plain"])
def test_what_workers_have_prepared_is_not_counted(make, persistent):
    def loader():
        options = {"num_workers": 2, "persistent_workers": persistent}
        options["multiprocessing_context"] = "fork"
        if make == "plain":
            return wds.SaveableDataLoader(range(40), batch_size=3, **options)
        found = {"dynamic": dynamic, "planned": planned}[make]().batch_sampler
        return wds.SaveableDataLoader(range(40), batch_sampler=found, **options)

    first = loader()
    wanted = [rows(first), rows(first)]
    stopped = loader()
    stream = iter(stopped)
    for _ in range(4):
        next(stream)
    state = stopped.state_dict()
    del stream
    other = loader()
    other.load_state_dict(state)
    assert rows(other) == wanted[0][4:]
    assert rows(other) == wanted[1]


@pytest.mark.parametrize("make", [shuffled, reproducible, dynamic, planned])
def test_a_pass_left_in_the_middle_does_not_disturb_the_state_of_the_next(make):
    loader = make()
    next(iter(loader))
    stream = iter(loader)
    for _ in range(3):
        next(stream)
    other = make()
    other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert rows(other) == [batch.tolist() for batch in stream]
    assert rows(other) == rows(loader)


class Counting(data.Dataset):
    def __init__(self):
        self.read = 0

    def __len__(self):
        return 20

    def __getitem__(self, n):
        self.read += 1
        return n


def test_going_on_reads_nothing_again():
    first = wds.SaveableDataLoader(Counting(), batch_size=2)
    stream = iter(first)
    for _ in range(8):
        next(stream)
    dataset = Counting()
    other = wds.SaveableDataLoader(dataset, batch_size=2)
    other.load_state_dict(first.state_dict())
    rows(other)
    assert dataset.read == 4


def test_a_plan_goes_on_with_another_number_of_ranks(monkeypatch):
    def at(rank, ranks):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))
        return planned()

    seen, state = [], None
    for rank in range(2):
        loader = at(rank, 2)
        seen += [n for batch in islice(iter(loader), 3) for n in batch.tolist()]
        state = loader.state_dict()
    loader = at(0, 1)
    loader.load_state_dict(state)
    seen += [n for batch in loader for n in batch.tolist()]
    assert sorted(seen) == list(range(40))


def test_a_state_of_another_loader_is_refused():
    with pytest.raises(wds.StateError, match="kind was 'SequentialSampler, batch_size=3'"):
        dynamic().load_state_dict(plain().state_dict())
    with pytest.raises(wds.StateError, match="version was None"):
        plain().load_state_dict({})


class Numbers(data.IterableDataset):
    def __iter__(self):
        return iter(range(10))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_foreign_iterable_is_read_again_with_a_warning(workers):
    options = {"num_workers": workers, "multiprocessing_context": "fork" if workers else None}
    first = wds.SaveableDataLoader(Numbers(), batch_size=2, **options)
    stream = iter(first)
    next(stream), next(stream)
    other = wds.SaveableDataLoader(Numbers(), batch_size=2, **options)
    with pytest.warns(UserWarning, match="2 batches are read again"):
        other.load_state_dict(first.state_dict())
    assert rows(other) == [[4, 5], [6, 7], [8, 9]]


def test_the_files_of_a_checkpoint_hold_the_state(tmp_path):
    wanted = rows(dynamic())
    loader = dynamic()
    stream = iter(loader)
    next(stream), next(stream)
    loader._speechbrain_save(tmp_path / "loader")
    other = dynamic()
    other._speechbrain_load(tmp_path / "loader", end_of_epoch=False)
    assert rows(other) == wanted[2:]
    other = dynamic()
    other._speechbrain_load(tmp_path / "loader", end_of_epoch=True)
    second = dynamic()
    rows(second)
    assert rows(other) == rows(second)
    begun = dynamic()
    stream = iter(begun)
    begun._speechbrain_load(tmp_path / "loader", end_of_epoch=False)  # too late: nothing happens
    assert [batch.tolist() for batch in stream] == wanted


@pytest.mark.parametrize(("text", "skipped"), [("3", 3), ("None", 0)])
def test_a_file_that_speechbrain_wrote_is_understood(tmp_path, text, skipped):
    (tmp_path / "loader").write_text(text)
    loader = plain()
    loader._speechbrain_load(tmp_path / "loader", end_of_epoch=False)
    assert rows(loader) == rows(plain())[skipped:]


# ── loops ───────────────────────────────────────────────────────────────────────────────────────


def looped(length=5):
    return wds.LoopedLoader(dynamic(), length)


def test_epochs_are_as_long_as_one_says_and_go_on_where_the_last_stopped():
    source = dynamic()
    endless = [batch for _ in range(4) for batch in rows(source)]
    loader = looped()
    assert len(loader) == 5
    found = [rows(loader) for _ in range(4)]
    assert [len(epoch) for epoch in found] == [5] * 4
    assert sum(found, []) == endless[:20]  # noqa: RUF017
    assert (loader.total_steps, loader.step) == (20, 0)
    assert loader.total_samples == sum(map(len, endless[:20]))


def test_a_looped_loader_goes_on_after_every_batch():
    wanted = [rows(epochs) for epochs in [looped()] for _ in range(4)]
    for stop in range(1, 16):
        loader = looped()
        flat = []
        while len(flat) < stop:
            flat += [batch.tolist() for batch in islice(loader, stop - len(flat))]
        state = json.loads(json.dumps(loader.state_dict()))
        other = looped()
        other.load_state_dict(state)
        assert other.total_steps == stop
        rest = [batch for _ in range(4) for batch in rows(other)]
        whole = sum(wanted, [])  # noqa: RUF017
        assert rest[: 20 - stop] == whole[stop:]


def test_a_state_behind_the_last_step_begins_the_next_epoch():
    loader = looped()
    stream = iter(loader)
    for _ in range(5):
        next(stream)
    assert loader.state_dict()["step"] == 0
    other = looped()
    other.load_state_dict(loader.state_dict())
    assert len(list(other)) == 5
    longer = looped(8)
    longer.load_state_dict(loader.state_dict())
    assert len(list(longer)) == 8


@pytest.mark.parametrize("ended", [False, True])
def test_a_checkpoint_between_the_last_step_and_the_end_of_the_epoch_has_nothing_left(
    tmp_path, ended
):
    loader = looped()
    given = list(islice(loader, 5))
    assert len(given) == 5
    if ended:  # as during validation
        assert list(loader) == []
    loader.save(tmp_path / "state")
    other = looped()
    other.load(tmp_path / "state", end_of_epoch=False)
    assert list(other) == []
    assert rows(other) == rows(loader) if ended else len(list(other)) == 5
    other = looped()
    other.load(tmp_path / "state", end_of_epoch=True)
    assert len(list(other)) == 5


def test_loops_are_saved_in_files_and_those_of_speechbrain_are_understood(tmp_path):
    loader = looped()
    list(islice(loader, 3))
    loader.save(tmp_path / "state")
    other = looped()
    other.load(tmp_path / "state", end_of_epoch=False)
    assert rows(other) == rows(loader)
    (tmp_path / "theirs").write_text("2\n7\n31\n")
    with pytest.warns(UserWarning, match="the data starts from the beginning"):
        other.load(tmp_path / "theirs", end_of_epoch=False)
    assert (other.step, other.total_steps, other.total_samples) == (2, 7, 31)


def test_a_looped_pipeline_goes_on_through_workers():
    def make():
        stage = wds.dynamic_bucketed_batch(
            buffersize=8, collate_fn=None, sampler_kwargs={"target_batch_numel": 20}
        )
        source = wds.DataPipeline(["x" * length for length in LENGTHS], stage, lanes=1)
        return wds.make_dataloader(
            source, looped_nominal_epoch=4, num_workers=1, multiprocessing_context="fork"
        )

    whole = make()
    wanted = [list(whole), list(whole), list(whole)]
    stopped = make()
    list(stopped)
    next(stopped)
    other = make()
    other.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    assert list(other) == wanted[1][1:]
    assert list(other) == wanted[2]


def test_a_batchsize_fn_counts_the_samples():
    loader = wds.LoopedLoader([[1, 2], [3]], 3, batchsize_fn=lambda batch: 10)
    list(loader)
    assert loader.total_samples == 30


def test_a_loader_that_gives_nothing_is_an_error_not_a_loop():
    with pytest.raises(wds.PipelineError, match="yields nothing"):
        next(wds.LoopedLoader([], 3))
    with pytest.raises(wds.PipelineError, match="at least 1, not 0"):
        wds.LoopedLoader([1], 0)
    with pytest.raises(wds.StateError, match="not a state of a LoopedLoader"):
        looped().load_state_dict({"step": 1})


# ── make_dataloader ─────────────────────────────────────────────────────────────────────────────


def test_a_manifest_gets_padded_batches():
    manifest = {f"u{n}": {"length": n} for n in range(1, 7)}
    dataset = wds.DynamicItemDataset(manifest)
    dataset.add_dynamic_item(torch.ones, takes="length", provides="wav")
    dataset.set_output_keys(["id", "wav"])
    batch = next(iter(wds.make_dataloader(dataset, batch_size=3)))
    assert isinstance(batch, wds.PaddedBatch)
    assert batch.wav.data.shape == (3, 3)
    listed = next(iter(wds.make_dataloader(dataset, batch_size=2, collate_fn=list)))
    assert [sample["id"] for sample in listed] == ["u1", "u2"]


def test_shuffle_is_an_order_by_the_seed_of_the_environment(monkeypatch):
    first = rows(wds.make_dataloader(range(20), batch_size=4, shuffle=True))
    assert first == rows(wds.make_dataloader(range(20), batch_size=4, shuffle=True))
    monkeypatch.setenv("SB_GLOBAL_SEED", "3")
    assert first != rows(wds.make_dataloader(range(20), batch_size=4, shuffle=True))


def test_shuffle_beside_a_sampler_is_an_error():
    with pytest.raises(ValueError, match="shuffle=True and sampler= both decide"):
        wds.make_dataloader(range(4), shuffle=True, sampler=range(4))


def test_a_pipeline_gets_a_web_loader_that_makes_no_batches():
    loader = wds.make_dataloader(wds.DataPipeline([1, 2, 3]))
    assert isinstance(loader, wds.WebLoader)
    assert list(loader) == [1, 2, 3]


def test_a_pipeline_of_the_package_webdataset_gets_no_second_batching():
    """With the real package: tests/state/test_speechbrain.py."""

    class Pipeline(data.IterableDataset):
        def __iter__(self):
            return iter([{"text": ["a", "b"]}, {"text": ["c"]}])

    Pipeline.__module__ = "webdataset.pipeline"
    batches = [{"text": ["a", "b"]}, {"text": ["c"]}]
    assert list(wds.make_dataloader(Pipeline())) == batches
    assert list(wds.make_dataloader(Pipeline(), looped_nominal_epoch=2)) == batches
