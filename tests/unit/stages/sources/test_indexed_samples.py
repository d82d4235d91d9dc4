from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import IndexedSamples, PipelineError, ShardWriter, WebDataset
from penstock.context import Context
from penstock.handlers import ignore_and_continue, ignore_and_stop
from penstock.stages.run import ENDED
from penstock.stages.sources import indexed_samples as indexed


@pytest.fixture
def urls(tmp_path: Path) -> list[str]:
    with ShardWriter(str(tmp_path / "%d.tar"), maxcount=3, index=True, verbose=0) as sink:
        for number in range(9):
            sink.write({"__key__": f"k{number}", "cls": number})
    return sorted(map(str, tmp_path.glob("*.tar")))


def keys(samples: object) -> list[str]:
    return [sample["__key__"] for sample in samples]  # type: ignore[attr-defined]


def test_a_waiting_lane_does_not_hold_the_sample_it_gave(urls: list[str]) -> None:
    stream = iter(IndexedSamples(urls).start(None, Context()))
    sample = next(stream)
    # This name and the argument of getrefcount; 64 lanes would else hold 64 photographs.
    assert sys.getrefcount(sample) <= 2  # Python 3.14 borrows the argument


def test_lanes_share_the_samples_in_runs_of_a_batch(urls: list[str]) -> None:
    stage = IndexedSamples(urls, window=0)
    lanes = [
        keys(stage.start(None, Context(lane=lane, lanes=2, run=2, countable=False)))
        for lane in range(2)
    ]
    assert lanes == [["k0", "k1", "k4", "k5", "k8"], ["k2", "k3", "k6", "k7"]]


def test_every_sample_says_whether_it_is_repeated(urls: list[str]) -> None:
    stage = IndexedSamples(urls, window=0, ends="pad")
    ranks = [
        list(stage.start(None, Context(rank=rank, world_size=2, lane=rank, lanes=2, run=2)))
        for rank in range(2)
    ]
    assert [sample["__pad__"] for rank in ranks for sample in rank] == [False] * 9 + [True]
    assert keys(ranks[0]) == ["k0", "k1", "k4", "k5", "k8"]
    assert keys(ranks[1]) == ["k2", "k3", "k6", "k7", "k0"]


def test_a_shard_that_changed_is_passed_over_where_the_handler_says_so(urls: list[str]) -> None:
    stage = IndexedSamples(urls, window=0, handler=ignore_and_continue)
    stage.opened()
    Path(urls[1]).write_bytes(b"another")
    run = stage.start(None, Context())
    assert keys(run) == ["k0", "k1", "k2", "k6", "k7", "k8"]
    assert run.skipped == 3


def test_a_run_that_a_handler_ended_stays_ended_when_it_is_resumed(urls: list[str]) -> None:
    stage = IndexedSamples(urls, window=0, handler=ignore_and_stop)
    stage.opened()
    Path(urls[1]).write_bytes(b"another")
    run = stage.start(None, Context())
    assert keys(run) == ["k0", "k1", "k2"]
    assert run.saved() == ENDED
    resumed = stage.start(None, Context())
    resumed.take(run.saved())
    assert list(resumed) == []


def test_a_text_is_no_collection_of_keys_to_leave_out(urls: list[str]) -> None:
    with pytest.raises(PipelineError, match=r"exclude=\['k1'\]"):
        IndexedSamples(urls, exclude="k1")


def test_keys_to_leave_out_that_nobody_has_are_named_once(urls: list[str]) -> None:
    stage = IndexedSamples(urls, window=0, exclude=["k1", *(f"no{n}" for n in range(7))])
    named = r"7 of the keys in exclude: 'no0', 'no1', 'no2', 'no3', 'no4', \.\.\.;"
    with pytest.warns(UserWarning, match=named) as told:
        given = keys(stage.start(None, Context()))
    assert len(told) == 1
    assert given == [f"k{n}" for n in range(9) if n != 1]


def test_samples_of_two_passes_in_turn_do_not_make_their_orders_again(
    urls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []

    class Counted(indexed.Order):
        def __init__(self, *given: Any, **named: Any) -> None:
            made.append(named["epoch"])
            super().__init__(*given, **named)

    monkeypatch.setattr(indexed, "Order", Counted)
    stage = IndexedSamples(urls)
    passes = [stage.start(None, Context(epoch=epoch)) for epoch in range(2)]
    for ticket in range(9):
        for run in passes:
            run.fetch(ticket)
    assert made == [0, 1]
    for epoch in range(20):
        stage.order(0, epoch)
    assert len(stage._orders) == indexed.KEPT_ORDERS


def test_sets_that_share_an_index_file_can_be_opened_before_either_is_read(tmp_path: Path) -> None:
    with ShardWriter(str(tmp_path / "x-%03d.tar"), maxcount=5) as sink:
        for number in range(50):
            sink.write({"__key__": f"{number:03d}", "cls": number})
    train = WebDataset(str(tmp_path / "x-{000..007}.tar"), index=True, shardshuffle=4)
    val = WebDataset(str(tmp_path / "x-{008..009}.tar"), index=True)
    assert (len(train), len(val)) == (40, 10)  # the second adds its shards to the file
    assert len({sample["__key__"] for sample in train}) == 40
    assert len(list(val)) == 10
