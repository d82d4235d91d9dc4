"""Sequences packed into rows."""

from __future__ import annotations

import pickle
import random
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock as wds
from penstock.errors import PipelineError


def sequences(lengths, first=1):
    """Sequences of different numbers, so that every token is known again."""
    found, at = [], first
    for length in lengths:
        found.append(list(range(at, at + length)))
        at += length
    return found


def unpacked(row, key="tokens"):
    """The sequences of a row, by its segment ids."""
    segments = np.asarray(row["segment_ids"])
    return [np.asarray(row[key])[segments == n].tolist() for n in range(1, segments.max() + 1)]


def tokens_of(rows, key="tokens"):
    return sorted(sequence for row in rows for sequence in unpacked(row, key))


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 20), max_size=80),
    row_length=st.integers(20, 50),
    buffer=st.integers(1, 40),
    fit=st.sampled_from(["best", "first"]),
)
def test_every_sequence_comes_once_whole_and_in_its_place(lengths, row_length, buffer, fit):
    data = sequences(lengths)
    rows = list(wds.packed(row_length, fit=fit, buffer=buffer)(data))
    assert tokens_of(rows) == sorted(data)
    for row in rows:
        assert len(row["tokens"]) == len(row["segment_ids"]) == len(row["positions"]) == row_length
        ends = row["cu_seqlens"].tolist()
        assert np.diff(ends).tolist() == row["lengths"].tolist()
        for number, (begin, end) in enumerate(pairwise(ends), start=1):
            assert (row["segment_ids"][begin:end] == number).all()
            assert row["positions"][begin:end].tolist() == list(range(end - begin))
        assert not row["segment_ids"][ends[-1] :].any()
        assert not row["tokens"][ends[-1] :].any()


@pytest.mark.parametrize("buffer", [1, 2, 7, 40])
def test_first_fit_takes_the_first_come_that_fits(buffer):
    lengths = [random.Random(3).randint(1, 20) for _ in range(60)]
    data = sequences(lengths)
    left, wanted = list(data), []
    fed = min(buffer, len(left))  # by hand: the buffer is filled up before every row
    buffered, rest = left[:fed], left[fed:]
    while buffered:
        room, row = 25, []
        for one in list(buffered):
            if len(one) <= room:
                row.append(one)
                room -= len(one)
        for one in row:
            buffered.remove(one)
        while rest and len(buffered) < buffer:
            buffered.append(rest.pop(0))
        wanted.append(row)
    assert [unpacked(row) for row in wds.packed(25, fit="first", buffer=buffer)(data)] == wanted


@pytest.mark.parametrize("capacity", [4096, 2048])
def test_rows_of_lognormal_lengths_are_99_percent_full(capacity):
    rng = random.Random(1)
    lengths = [min(max(round(rng.lognormvariate(6, 0.6)), 1), capacity) for _ in range(20_000)]
    used, rows, waited = 0, 0, 0
    came = [0]

    def source():
        for number, length in enumerate(lengths):
            came[0] += 1
            yield {"x": np.full(length, number, np.int32)}

    for row in wds.packed(capacity, "x")(source()):
        used += int(row["lengths"].sum())
        rows += 1
        waited = max(waited, came[0] - int(row["x"][row["segment_ids"] > 0].min()))
    assert used == sum(lengths)
    assert used / (rows * capacity) > 0.99
    assert waited < 2 * 2000


def test_several_fields_are_packed_alike_and_the_others_listed():
    data = [
        {"__key__": f"k{n}", "x": np.arange(n, dtype=np.int16), "y": [n] * n, "cls": n}
        for n in (3, 2, 4)
    ]
    row, other = wds.packed(6, ("x", "y"), buffer=3, pad_value=-1)(data)
    assert row["x"].dtype == np.int16
    assert row["x"].tolist() == [0, 1, 2, 0, 1, -1]
    assert row["y"].tolist() == [3, 3, 3, 2, 2, -1]
    assert row["__key__"] == ["k3", "k2"]
    assert row["cls"] == [3, 2]
    assert other["cls"] == [4]


def test_tensors_give_tensors_and_rows_of_features_keep_their_width():
    torch = pytest.importorskip("torch")
    data = [{"x": torch.full((n, 3), float(n))} for n in (2, 3)]
    (row,) = wds.packed(6, "x")(data)
    assert row["x"].shape == (6, 3)
    assert row["x"].sum() == (4 + 9) * 3
    assert row["segment_ids"].tolist() == [1, 1, 2, 2, 2, 0]
    assert row["segment_ids"].dtype == row["cu_seqlens"].dtype == torch.int32
    batch = wds.stack_rows([row, row])
    assert batch["x"].shape == (2, 6, 3)
    assert len(batch["cu_seqlens"]) == 2


def test_rows_are_stacked_behind_it():
    data = wds.DataPipeline(sequences([4, 3, 2, 5, 1, 6])).packed(8, buffer=4)
    (batch,) = data.batched(8, collation_fn=wds.stack_rows)
    assert batch["tokens"].shape == batch["positions"].shape == (3, 8)
    assert sum(int(lengths.sum()) for lengths in batch["lengths"]) == 21


# ── sequences longer than a row ─────────────────────────────────────────────────────────────────


def test_a_sequence_longer_than_a_row_is_an_error_unless_one_says_what_to_do():
    with pytest.raises(wds.SampleError, match="a sequence of 9 is longer than a row of 5"):
        list(wds.packed(5)(sequences([2, 9])))


def test_long_sequences_are_skipped_and_counted():
    data = wds.DataPipeline(sequences([2, 9, 3])).packed(5, over="skip")
    assert [row["lengths"].tolist() for row in data] == [[2, 3]]
    assert data.skipped == {"packed": 1}


def test_a_long_sequence_has_a_longer_row_of_its_own():
    rows = list(wds.packed(5, over="alone")(sequences([2, 9, 3])))
    assert sorted(len(row["tokens"]) for row in rows) == [5, 9]
    assert tokens_of(rows) == sequences([2, 9, 3])
    with pytest.raises(wds.SampleError, match=r"rows of different lengths \[5, 9\]"):
        wds.stack_rows(rows)


def test_long_sequences_are_cut_if_asked():
    rows = list(wds.packed(5, over="cut")(sequences([2, 9, 3])))
    assert tokens_of(rows) == [[1, 2], [3, 4, 5, 6, 7], [12, 13, 14]]


def test_long_sequences_are_split_if_asked_and_nothing_is_lost():
    data = [{"x": one, "n": n} for n, one in enumerate(sequences([2, 13, 3]))]
    rows = list(wds.packed(5, "x", over="split", buffer=2)(data))
    pieces = tokens_of(rows, "x")
    assert sorted(token for piece in pieces for token in piece) == list(range(1, 19))
    assert max(map(len, pieces)) == 5
    assert sorted(n for row in rows for n in row["n"]) == [0, 1, 1, 1, 2]


def test_the_begun_rows_at_the_end_can_be_left_out():
    assert list(wds.packed(8, buffer=10, drop_end=True)(sequences([2] * 9))) == []


# ── bad input ───────────────────────────────────────────────────────────────────────────────────


def test_an_empty_sequence_and_a_missing_field_are_errors_with_their_place(tmp_path):
    with wds.TarWriter(str(tmp_path / "a.tar")) as sink:
        sink.write({"__key__": "full", "json": [1, 2]})
        sink.write({"__key__": "empty", "json": []})
    data = wds.WebDataset(str(tmp_path / "a.tar"), shardshuffle=False).decode()
    with pytest.raises(wds.SampleError, match=r"'json' is 0 \(.*a\.tar, sample 'empty' at byte"):
        list(data.packed(4, "json"))
    with pytest.raises(wds.SampleError, match="no field 'txt'"):
        list(data.packed(4, "txt"))
    kept = data.packed(4, "json", handler=wds.ignore_and_continue)
    assert [row["__key__"] for row in kept] == [["full"]]
    assert kept.skipped == {"packed": 1}


def test_fields_of_different_lengths_cannot_be_packed_together():
    with pytest.raises(wds.SampleError, match="'x' has 2 and 'y' 1"):
        list(wds.packed(4, ("x", "y"))([{"x": [1, 2], "y": [1]}]))


@pytest.mark.parametrize(
    "options", [{"row_length": 0}, {"buffer": 0}, {"fit": "worst"}, {"over": "loose"}]
)
def test_arguments_that_cannot_work_are_told_at_once(options):
    with pytest.raises(wds.PipelineError, match="packed: "):
        wds.packed(**{"row_length": 4, **options})


def test_planned_samples_that_do_not_fit_a_row_are_an_error():
    with pytest.raises(wds.SampleError, match="total length 7 do not fit into a row of 5"):
        wds.packed(5).row([[1, 2, 3], [1, 2, 3, 4]])


# ── plans ───────────────────────────────────────────────────────────────────────────────────────


@settings(max_examples=80, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30) | st.floats(0.01, 30), max_size=80),
    seed=st.none() | st.integers(0, 5),
    fit=st.sampled_from(["best", "first"]),
)
def test_a_plan_has_every_sample_once_in_rows_that_hold_them(lengths, seed, fit):
    plan = wds.plan_packing(lengths, 30, fit, 16, seed=seed)
    assert sorted(number for row in plan for number in row) == list(range(len(lengths)))
    assert all(sum(lengths[n] for n in row) <= 30 + 1e-9 for row in plan)
    assert len(list(plan)) == len(plan)
    if lengths:
        assert plan.fill == pytest.approx(sum(lengths) / (30 * len(plan)))


def test_a_plan_is_full_and_another_one_every_epoch():
    rng = random.Random(2)
    lengths = [min(max(round(rng.lognormvariate(2, 0.6), 2), 1), 35) for _ in range(10_000)]
    plans = [wds.plan_packing(lengths, 60, seed=1, epoch=epoch) for epoch in (0, 0, 1)]
    assert plans[0].fill > 0.99
    assert list(plans[0]) == list(plans[1]) != list(plans[2])


def test_a_plan_and_its_stage_make_the_rows_of_a_torch_loader():
    data = pytest.importorskip("torch.utils.data")
    sequence = sequences([3, 5, 2, 4, 1])
    plan = wds.plan_packing([len(one) for one in sequence], 7)
    loader = data.DataLoader(
        sequence, batch_sampler=plan, collate_fn=pickle.loads(pickle.dumps(wds.packed(7).row))
    )
    assert tokens_of(loader) == sequence


def test_a_plan_says_which_samples_are_too_long():
    with pytest.raises(
        wds.SampleError, match=r"sample 1 has length 9, above the capacity 5 of a row \(1 are too"
    ):
        wds.plan_packing([2, 9, 3], 5)
    skipping = wds.plan_packing([2, 9, 3], 5, over="skip")
    assert list(skipping) == [[0, 2]]
    assert skipping.skipped.tolist() == [1]
    alone = wds.plan_packing([2, 9, 3], 5, over="alone")
    assert sorted(alone) == [[0, 2], [1]]
    assert alone.fill == 1.0


@pytest.mark.parametrize("bad", [[1, 0], [1, -1], [1, float("nan")], [[1]], ["a"]])
def test_a_plan_refuses_what_is_no_length(bad):
    with pytest.raises(
        wds.SampleError, match=r"length must be a finite number|one number per sample"
    ):
        wds.plan_packing(bad, 5)


def test_a_plan_of_nothing_has_no_rows():
    plan = wds.plan_packing([], 5, seed=1)
    assert list(plan) == []
    assert plan.fill == 0
    with pytest.raises(IndexError):
        plan[0]


def test_a_row_has_the_fields_of_all_its_samples():
    row = wds.packed(4, "x").row([{"x": [1]}, {"x": [2], "note": "n"}])
    assert row["note"] == [None, "n"]


def test_fields_that_rows_have_of_their_own_are_not_packed():
    with pytest.raises(PipelineError, match="positions"):
        wds.packed(4, ("tokens", "positions"))


def test_a_missing_length_is_told_with_its_sample():
    with pytest.raises(wds.SampleError, match="sample 1 has nan"):
        wds.plan_packing([1, None], 4)
