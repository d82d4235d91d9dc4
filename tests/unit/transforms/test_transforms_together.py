"""Many pictures in one call, read where they are made: the same as one by one, errors too."""

from __future__ import annotations

import gc
import os
import random
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures_made import differences, encoded, many_scans, pixels

import penstock as wds
from penstock.handlers import Failed
from penstock.rng import CounterRng
from penstock.shards.lazy_bytes import LATER_BYTES, Later, ShardFile
from penstock.transforms import jpeg_native as many
from penstock.transforms import native as module
from penstock.transforms.gpu.file_table import FileTable, sendable
from penstock.transforms.jpeg_fallback import read_frame
from penstock.transforms.jpeg_native import Jobs


@pytest.fixture(autouse=True)
def built(native_file, monkeypatch):
    monkeypatch.setenv("PENSTOCK_NATIVE", str(native_file))
    module.forget()
    yield module.load_many()
    module.forget()


def noisy(height, width, seed, **options):
    """A JPEG that is large enough to be left for later."""
    noise = np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)
    data = encoded(noise, quality=100, **options)
    assert len(data) > LATER_BYTES
    return data


def oddities():
    jpeg = noisy(200, 180, 1)
    return {
        "plain": jpeg,
        "grey": encoded(pixels(150, 140)[:, :, 0]),
        "png": encoded(pixels(90, 100), "PNG"),
        "cut": jpeg[: len(jpeg) // 2],
        "headless": jpeg[:100],
        "damaged": jpeg[:700] + bytes(900) + jpeg[1600:],
        "many scans": many_scans(30_000),
        "nothing": b"",
        "text": b"this is not a picture",
        "small": encoded(pixels(9, 7)),
    }


def plain(error):
    """What an error says, without the addresses of objects."""
    return re.sub("0x[0-9a-f]+", "", str(error))


def results(transform, values):
    """One by one: arrays, or what was raised."""
    found = []
    for number, value in enumerate(values):
        draws = CounterRng(number)
        try:
            found.append((transform(value, draws), draws.count))
        except wds.PenstockError as error:
            found.append((plain(error), draws.count))
    return found


@pytest.mark.parametrize(
    "transform",
    [
        wds.RandomResizedCrop(64, flip=0.5),
        wds.RandomResizedCrop(48, flip=0.5, dtype="float32", mean=0.5, std=0.2),
        wds.ResizeCenterCrop(72, 64, interpolation="bicubic", layout="HWC", flip=0.1),
        wds.CenterCrop(100, flip=0.5),
    ],
)
def test_many_pictures_are_as_each_alone(transform):
    values = [*oddities().values(), pixels(30, 40), noisy(300, 200, 3)]
    draws = [CounterRng(number) for number in range(len(values))]
    turns = []
    made = transform.many(values, draws, turns.append)
    for one, draw, (expected, count) in zip(made, draws, results(transform, values)):
        if isinstance(one, Failed):
            assert plain(one.error) == expected
        else:
            np.testing.assert_array_equal(one, expected)
        assert draw.count == count
    assert set(turns) == set(range(len(values)))


def test_what_the_module_refuses_and_no_header_explains_is_made_by_pillow(monkeypatch):
    transform, data = wds.ResizeCenterCrop(72, 64), encoded(pixels(150, 140))
    expected = transform(data)
    monkeypatch.setattr(many, "read_frame", lambda data: None)
    row = np.full(expected.shape, 77, np.uint8)
    assert many._render_by_fallback(data, transform, transform.planned(150, 140, None), row) is row
    assert differences(row, expected).mean() < 1
    failed = many._render_by_fallback(data[:300], transform, transform.planned(150, 140, None), row)
    assert isinstance(failed, Failed)


@given(data=st.data())
def test_the_module_reads_a_header_as_python_does(data):
    jpeg = bytearray(data.draw(st.sampled_from([HEADER, PROGRESSIVE])))
    for _ in range(data.draw(st.integers(0, 4))):
        jpeg[data.draw(st.integers(0, len(jpeg) - 1))] = data.draw(
            st.sampled_from([0, 1, 3, 8, 0xFF, 0xC0, 0xC2, 0xC4, 0xD8, 0xD9, 0xDA])
        )
    cut = bytes(jpeg[: data.draw(st.integers(0, len(jpeg)))])
    frame = read_frame(cut) if cut[:2] == b"\xff\xd8" else None
    jobs = Jobs(module.load_many(), [cut], False)
    jobs.look()
    state, _, colours, height, width = jobs.read_result(0)
    if frame is None:
        assert state == 0
    else:
        assert (height, width, colours) == frame[:3]
        assert bool(state & 2) == frame.complete


@given(
    size=st.tuples(st.integers(1, 1500), st.integers(1, 1500)),
    scale=st.tuples(st.floats(0.01, 1.2), st.floats(0.0, 0.5)),
    ratio=st.tuples(st.floats(0.1, 3), st.floats(0.0, 4)),
    flip=st.sampled_from([0.0, 0.3, 1.0]),
    key=st.integers(0, 2**64 - 1),
)
def test_the_module_draws_the_crop_that_python_draws(size, scale, ratio, flip, key):
    transform = wds.RandomResizedCrop(
        (20, 30),
        scale=(scale[0], sum(scale)),
        ratio=(ratio[0], sum(ratio)),
        flip=flip,
        decode_on="cuda",
    )
    place = HEADER.index(b"\xff\xc0") + 5
    sized = b"".join(number.to_bytes(2, "big") for number in size)
    data = HEADER[:place] + sized + HEADER[place + 4 :] + bytes(8000) + b"\xff\xd9"  # believed
    draws, alone = CounterRng(key, 3), CounterRng(key, 3)
    (made,) = transform.many([data], [draws], lambda place: None)
    assert made.plan == transform.planned(*size, alone)
    assert type(made.plan.flip) is bool
    assert draws.count == alone.count


HEADER = encoded(pixels(10, 12))
PROGRESSIVE = encoded(pixels(10, 12), progressive=True)


# ── in a loader ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
def shards(tmp_path):
    """Photographs, some of them odd, in several shards."""
    odd = oddities()
    number = 0
    for shard in range(3):
        with wds.TarWriter(str(tmp_path / f"{shard}.tar")) as sink:
            for _ in range(40):
                kind = random.Random(number).choice(["plain"] * 30 + list(odd))
                jpeg = noisy(60 + number % 50, 200, number) if kind == "plain" else odd[kind]
                sink.write({"__key__": f"{number:04}", "jpg": jpeg, "cls": str(number)})
                number += 1
    return sorted(str(path) for path in tmp_path.glob("*.tar"))


def pipeline(urls, handler=wds.ignore_and_continue):
    crop = wds.RandomResizedCrop(160, flip=0.5)
    data = wds.WebDataset(urls, shardshuffle=10, seed=3).shuffle(20, initial=10)
    return data.to_tuple("jpg", "cls").map_tuple(crop, int, handler=handler).batched(8)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_loader_gives_what_the_pipeline_gives(shards, threads):
    before = len(ShardFile.open_files)
    expected = list(pipeline(shards))
    loader = wds.WebLoader(pipeline(shards), num_workers=threads, batch_size=None, engine="threads")
    found = list(loader)
    assert len(found) == len(expected)
    for (images, labels), (images_before, labels_before) in zip(found, expected):
        assert labels.tolist() == labels_before.tolist()
        np.testing.assert_array_equal(images.numpy(), images_before)
    assert len(ShardFile.open_files) == before  # also those of samples that failed


def test_without_the_module_it_is_the_same(shards, monkeypatch):
    monkeypatch.setenv("PENSTOCK_NATIVE", "0")
    module.forget()
    expected = list(pipeline(shards))
    loader = wds.WebLoader(pipeline(shards), num_workers=2, batch_size=None, engine="threads")
    for (images, labels), (images_before, labels_before) in zip(loader, expected, strict=True):
        assert labels.tolist() == labels_before.tolist()
        np.testing.assert_array_equal(images.numpy(), images_before)


@pytest.mark.parametrize("step", [1, 4, 9])
def test_a_loader_goes_on_from_any_step(shards, step):
    def loader(threads):
        return wds.WebLoader(
            pipeline(shards), num_workers=threads, batch_size=None, engine="threads"
        )

    first = loader(3)
    stream = iter(first)
    for _ in range(step):
        next(stream)
    state = first.state_dict()
    rest = list(stream)
    second = loader(2)
    second.load_state_dict(state)
    for (images, labels), (images_before, labels_before) in zip(second, rest, strict=True):
        assert labels.tolist() == labels_before.tolist()
        np.testing.assert_array_equal(images.numpy(), images_before.numpy())


@pytest.mark.parametrize("lanes", [1, 4])
def test_indexed_shards_are_read_by_the_workers_too(shards, lanes):
    def data():
        crop = wds.RandomResizedCrop(160, flip=0.5)
        made = wds.WebDataset(shards, index=True, shardshuffle=2, seed=3, lanes=lanes)
        made = made.to_tuple("jpg", "cls")
        return made.map_tuple(crop, int, handler=wds.ignore_and_continue).batched(8)

    expected = list(data())
    loader = wds.WebLoader(data(), num_workers=2, batch_size=None, engine="threads")
    for (images, labels), (images_before, labels_before) in zip(loader, expected, strict=True):
        assert labels.tolist() == labels_before.tolist()
        np.testing.assert_array_equal(images.numpy(), images_before)


def test_functions_of_users_see_bytes_only(shards):
    seen = []

    def look(sample):
        seen.append({type(value) for value in sample.values()})
        return sample

    data = wds.WebDataset(shards).shuffle(30).map(look).to_tuple("jpg", "cls")
    loader = wds.WebLoader(data, num_workers=2, batch_size=None, engine="threads")
    assert {type(jpeg) for jpeg, _ in loader} == {bytes}
    assert set().union(*seen) == {str, bytes}


def test_values_that_no_function_takes_are_read_all_the_same(shards):
    crop = wds.RandomResizedCrop(160)
    data = wds.WebDataset(shards, handler=wds.ignore_and_continue)
    data = data.to_tuple("jpg", "jpg", "cls").map_tuple(crop, handler=wds.warn_and_continue)
    with pytest.warns(UserWarning, match="DecodingError"):
        found = list(wds.WebLoader(data, num_workers=2, batch_size=None, engine="threads"))
    assert found
    assert {type(jpeg) for _, jpeg, _ in found} == {bytes}


def test_an_error_names_the_sample_it_happened_on(shards):
    loader = wds.WebLoader(
        pipeline(shards, wds.reraise_exception), num_workers=2, batch_size=None, engine="threads"
    )
    with pytest.raises(wds.DecodingError, match=r"\.tar, sample '\d{4}' at byte"):
        list(loader)


@pytest.mark.parametrize("function", [wds.RandomResizedCrop(64), len])
def test_a_shard_that_is_cut_while_it_waits_is_told_with_its_place(tmp_path, monkeypatch, function):
    name = tmp_path / "cut.tar"
    with wds.TarWriter(str(name)) as sink:
        for number in range(40):
            sink.write({"__key__": f"{number:04}", "jpg": noisy(100, 200, number), "cls": "1"})
    beyond = name.stat().st_size  # as if the file ended before what was announced
    monkeypatch.setattr(
        ShardFile, "leave", lambda file, window, offset, size: Later(file, offset + beyond, size)
    )

    def loader(handler):
        data = wds.WebDataset([str(name)], handler=handler).shuffle(50, initial=50)
        data = data.to_tuple("jpg", "cls").map_tuple(function, int)
        return wds.WebLoader(data, num_workers=2, batch_size=None, engine="threads")

    with pytest.raises(wds.ShardError, match=r"cut short.*cut\.tar, sample '\d+' at byte"):
        list(loader(wds.reraise_exception))
    careful = loader(wds.ignore_and_continue)
    left = len(list(careful))
    assert 0 < left < 40  # those that came with the first window
    assert sum(careful.stats().skipped.values()) == 40 - left


def test_a_shard_is_held_open_as_long_as_a_sample_of_it_waits(tmp_path):
    name = tmp_path / "one.tar"
    with wds.TarWriter(str(name)) as sink:
        for key in "abc":
            sink.write({"__key__": key, "jpg": bytes(LATER_BYTES * 20)})
    data = wds.WebDataset([str(name)])
    run = data.start(data.context())
    gc.collect()
    before = len(ShardFile.open_files)  # errors that tests before this one looked at hold theirs
    assert run.defer() is run
    sample = list(run)[-1]
    name.unlink()
    assert isinstance(sample["jpg"], Later)
    assert len(ShardFile.open_files) == before + 1
    assert sample["jpg"].read() == bytes(LATER_BYTES * 20)
    del sample
    assert len(ShardFile.open_files) == before


go_on = wds.ignore_and_continue


class Inverted(wds.RandomResizedCrop):
    def __call__(self, value, rng=None):
        return 255 - super().__call__(value, rng)


class Dimmed(wds.RandomResizedCrop):
    def rendered(self, value, plan_for):
        return super().rendered(value, plan_for) // 2


@pytest.mark.parametrize("recipe", [Inverted(32), Dimmed(32)])
def test_what_a_recipe_of_ones_own_does_is_done_on_threads_too(shards, recipe):
    def made():
        return (
            wds.WebDataset(shards, shardshuffle=False)
            .to_tuple("jpg")
            .map_tuple(recipe, handler=go_on)
        )

    loader = wds.WebLoader(made(), batch_size=None, num_workers=2, engine="threads")
    for (one,), (other,) in zip(made(), loader, strict=True):
        np.testing.assert_array_equal(one, np.asarray(other))


class Measured(wds.to_tuple):
    def apply(self, item):
        return (*super().apply(item), len(item["jpg"]))


class Marked(wds.map_dict):
    def apply(self, item):
        return {**super().apply(item), "seen": True}

    def apply_drawing(self, item, key):
        return {**super().apply_drawing(item, key), "seen": True}


class MarkedTuple(wds.map_tuple):
    def apply_drawing(self, item, key):
        return (*super().apply_drawing(item, key), "seen")


@pytest.mark.parametrize(
    "stages",
    [
        [Measured("jpg"), wds.map_tuple(wds.RandomResizedCrop(32), None, handler=go_on)],
        [Marked(go_on, jpg=wds.RandomResizedCrop(32))],
        [Marked(go_on, jpg=wds.ResizeCenterCrop(32, 32))],
        [wds.to_tuple("jpg"), MarkedTuple(wds.RandomResizedCrop(32), handler=go_on)],
    ],
)
def test_stages_made_of_ours_do_their_own(shards, stages):
    def made():
        return wds.WebDataset(shards, shardshuffle=False).compose(*stages)

    def rest(sample):
        values = sample.values() if isinstance(sample, dict) else sample
        return [value for value in values if isinstance(value, (int, str))]

    loader = wds.WebLoader(made(), batch_size=None, num_workers=2, engine="threads")
    assert [rest(sample) for sample in loader] == [rest(sample) for sample in made()]


def test_samples_that_are_no_dicts_are_a_matter_of_the_handler(shards):
    class Lenient(dict):
        def __missing__(self, field):
            return b"none"

    def mixed(sample):
        number = int(sample["cls"]) % 3
        return [sample, Lenient(sample), (sample["__key__"],)][number]

    def made(told):
        transform = {"jpg": wds.RandomResizedCrop(32), "__key__": str}
        handler = lambda error: told.append((type(error), plain(error))) or True  # noqa: E731
        data = wds.WebDataset(shards, shardshuffle=False)
        return data.map(mixed).map_dict(handler, **transform, txt=len)

    alone, together = [], []
    expected = [sample["__key__"] for sample in made(alone)]
    loader = wds.WebLoader(made(together), batch_size=None, num_workers=2, engine="threads")
    assert [sample["__key__"] for sample in loader] == expected
    assert together == alone
    assert expected
    assert alone


def test_a_list_that_begins_with_a_picture_is_no_column_of_pictures():
    transform = wds.RandomResizedCrop(32, decode_on="cuda")
    picture = transform(noisy(200, 200, 1), CounterRng(1))
    assert type(sendable([picture, 3])) is list
    assert type(sendable([picture, picture])) is FileTable


@pytest.mark.parametrize("index", [None, True])
def test_a_shard_that_is_written_to_while_it_waits_gives_no_other_data(tmp_path, index):
    name = tmp_path / "over.tar"
    with wds.TarWriter(str(name)) as sink:
        for number in range(20):
            sink.write({"__key__": f"{number:04}", "jpg": noisy(100, 200, number)})
    data = wds.WebDataset([str(name)], shardshuffle=False, index=index)
    gc.collect()  # with many shards of earlier tests still open, no sample would wait
    run = data.start(data.context())
    run.defer()
    waiting = [value for value in (s["jpg"] for s in run) if isinstance(value, Later)]
    assert len(waiting) > 5
    for transform in wds.RandomResizedCrop(64), wds.ResizeCenterCrop(64, 64):
        draws = [CounterRng(number) for number in range(len(waiting))]
        made = transform.many(waiting, draws, lambda place: None)
        assert {type(one) for one in made} == {np.ndarray}
    os.utime(name, ns=(1, 1))  # as if it had been written to
    for transform in wds.RandomResizedCrop(64), wds.ResizeCenterCrop(64, 64):
        draws = [CounterRng(number) for number in range(len(waiting))]
        for failed in transform.many(waiting, draws, lambda place: None):
            assert failed.reading
    with pytest.raises(wds.ShardError, match=r"written to .*over\.tar"):
        waiting[0].read()


def test_a_payload_that_is_not_there_any_more_is_no_picture(tmp_path):
    name = tmp_path / "cut.tar"
    with wds.TarWriter(str(name)) as sink:
        for number in range(20):
            sink.write({"__key__": f"{number:04}", "jpg": noisy(100, 200, number)})
    data = wds.WebDataset([str(name)], shardshuffle=False)
    run = data.start(data.context())
    run.defer()
    waiting = [value for value in (s["jpg"] for s in run) if isinstance(value, Later)]
    os.truncate(name, waiting[0].offset + 10)
    for transform in wds.RandomResizedCrop(64), wds.RandomResizedCrop(64, decode_on="cuda"):
        draws = [CounterRng(number) for number in range(len(waiting))]
        for failed in transform.many(waiting, draws, lambda place: None):
            assert type(failed) is Failed
            assert failed.reading
