"""Functions that take random numbers, in the stages: the same for a ticket, on any hardware."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from pictures_made import encoded, pixels

import penstock as wds
from penstock.context import Context
from penstock.stages.run import as_run
from penstock.testing import assert_resumes


def draw(value, draws):
    return (value, draws.below(1 << 30))


draw.takes_rng = True


def pipeline(*stages):
    return wds.DataPipeline(list(range(20)), *stages)


@pytest.mark.parametrize(
    "stages",
    [
        (wds.map(draw),),
        (wds.map(lambda x: (x, x)), wds.map_tuple(draw, None)),
        (wds.map(lambda x: {"__key__": str(x), "a": x}), wds.map_dict(a=draw)),
    ],
)
def test_random_numbers_differ_between_samples_and_epochs_and_come_again(stages):
    data = pipeline(*stages)
    first, second = list(data), list(data)
    assert len({str(item) for item in first}) == 20
    assert first != second
    assert list(pipeline(*stages)) == first
    assert_resumes(lambda: pipeline(*stages))


def test_two_stages_draw_different_numbers():
    (_, first), second = next(iter(pipeline(wds.map(draw), wds.map(draw))))
    assert first != second


def test_functions_of_one_stage_draw_one_after_another():
    (_, first), (_, second) = next(
        iter(pipeline(wds.map(lambda x: (x, x)), wds.map_tuple(draw, draw)))
    )
    assert first != second


def test_plain_functions_beside_them_are_called_plainly():
    stage = wds.map_dict(a=draw, b=str)
    assert next(iter(stage([{"a": 1, "b": 2}])))["b"] == "2"


def test_a_run_can_be_asked_for_any_item_from_any_thread():
    stage = wds.map(draw)
    expected = list(stage(range(50)))
    run = stage.start(as_run(range(50)), Context())
    found = {}

    def work(part):
        for ticket in part:
            found[ticket] = run.at(ticket, ticket)

    threads = [threading.Thread(target=work, args=(range(n, 50, 3),)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[ticket] for ticket in range(50)] == expected


def test_crops_stand_in_a_pipeline_like_any_function(tmp_path):
    path = str(tmp_path / "a.tar")
    with wds.TarWriter(path, encoder=False) as sink:
        for n in range(8):
            sink.write({"__key__": str(n), "jpg": encoded(pixels(40, 50, n)), "cls": b"%d" % n})
    crop = wds.RandomResizedCrop(16, flip=0.5)
    data = wds.WebDataset(path, shardshuffle=False)
    by_tuple = list(data.to_tuple("jpg", "cls").map_tuple(crop, int))
    assert [label for _, label in by_tuple] == list(range(8))
    again = list(
        wds.WebDataset(path, shardshuffle=False).to_tuple("jpg", "cls").map_tuple(crop, int)
    )
    assert all(np.array_equal(a, b) for (a, _), (b, _) in zip(by_tuple, again))
    named = list(wds.WebDataset(path, shardshuffle=False).map_dict(jpg=crop, cls=int))
    assert {sample["jpg"].shape for sample in named} == {(3, 16, 16)}
    decoded = wds.WebDataset(path, shardshuffle=False).decode("rgb8").map_dict(jpg=crop)
    assert {sample["jpg"].shape for sample in decoded} == {(3, 16, 16)}


def test_a_picture_that_cannot_be_read_names_its_sample_and_can_be_left_out(tmp_path):
    path = str(tmp_path / "a.tar")
    with wds.TarWriter(path, encoder=False) as sink:
        sink.write({"__key__": "good", "jpg": encoded(pixels(40, 50))})
        sink.write({"__key__": "bad", "jpg": encoded(pixels(40, 50))[:300]})
    crop = wds.RandomResizedCrop(16)
    with pytest.raises(wds.DecodingError, match="'bad'"):
        list(wds.WebDataset(path, shardshuffle=False).map_dict(jpg=crop))
    kept = wds.WebDataset(path, shardshuffle=False).map_dict(
        jpg=crop, handler=wds.ignore_and_continue
    )
    assert [sample["__key__"] for sample in kept] == ["good"]
