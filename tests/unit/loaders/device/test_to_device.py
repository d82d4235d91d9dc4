"""Batches on the device: the same ones, in order, with the state of what was given."""

from __future__ import annotations

import io
import json
import sys
import threading
import types
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import penstock
from penstock.errors import DecodingError, MissingPackage, PipelineError, SampleError
from penstock.loaders.device import to_device as device
from penstock.loaders.device.device_copy import FLOATS, DeviceIdle, Moved, Mover, as_dtype
from penstock.loaders.device.to_device import Prefetch, to_device
from penstock.testing import assert_resumes
from penstock.transforms.crop_plan import CropPlan
from penstock.transforms.gpu import fallback_decode as gpudecode
from penstock.transforms.gpu.file_table import FileTable
from penstock.transforms.jpeg_markers import iter_markers


def picture(width: int, height: int, seed: int, form: str = "JPEG", mode: str = "RGB") -> bytes:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 255, (12, 16, 3), np.uint8))
    data = io.BytesIO()
    coarse.resize((width, height), Image.Resampling.BICUBIC).convert(mode).save(data, form)
    return data.getvalue()


def pictures(count: int = 8) -> list[tuple[bytes, int]]:
    return [(picture(60 + 7 * n, 40 + 3 * n, n), n) for n in range(count)]


def cropped(decode_on: str, data: list[tuple[bytes, int]] | None = None) -> Any:
    crop = penstock.RandomResizedCrop(16, flip=0.5, decode_on=decode_on)
    stages = penstock.map_tuple(crop, int), penstock.batched(4)
    return penstock.DataPipeline(data or pictures(), *stages)


def device_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name == "penstock-device"]


def test_arrays_become_tensors_and_other_values_pass() -> None:
    Pair = namedtuple("Pair", "x y")
    batch = {"a": np.arange(3), "t": torch.ones(2), "k": ["x", "y"], "p": Pair(np.ones(1), None)}
    (moved,) = to_device("cpu")([batch])
    assert moved["a"].tolist() == [0, 1, 2]
    assert isinstance(moved["t"], torch.Tensor)
    assert moved["k"] == ["x", "y"]
    assert type(moved["p"]) is Pair
    assert moved["p"].y is None


def test_arrays_that_torch_cannot_take_are_copied() -> None:
    fixed = np.arange(4)
    fixed.flags.writeable = False
    (moved,) = to_device("cpu")([(fixed, np.arange(4)[::-1])])
    assert moved[0].tolist() == [0, 1, 2, 3]
    assert moved[1].tolist() == [3, 2, 1, 0]


def test_images_are_normalised_as_torchvision_does_it() -> None:
    images = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 5), np.uint8)
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    stage = to_device("cpu", mean=mean, std=std, channels_last=True)
    ((moved, labels),) = stage([(images, np.array([1, 2]))])
    expected = (images / 255 - np.reshape(mean, (1, 3, 1, 1))) / np.reshape(std, (1, 3, 1, 1))
    np.testing.assert_allclose(moved.numpy(), expected, atol=1e-5)
    assert moved.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert moved.is_contiguous(memory_format=torch.channels_last)


def test_a_dtype_alone_scales_to_one() -> None:
    ((moved,),) = to_device("cpu", dtype="bfloat16")([(np.full((1, 3, 2, 2), 255, "uint8"),)])
    assert moved.dtype == torch.bfloat16
    assert moved.max() == 1


def test_colours_that_do_not_fit_are_told() -> None:
    with pytest.raises(PipelineError, match="2 colours"):
        list(to_device("cpu", mean=(0.1, 0.2))([(np.zeros((1, 3, 2, 2), "uint8"),)]))
    with pytest.raises(PipelineError, match=r"3 colours.*\(batch, colour, height, width\)"):
        list(to_device("cpu", std=(0.1, 0.2, 0.3))([(np.zeros((1, 8, 8, 3), "uint8"),)]))


@pytest.mark.parametrize("std", [0, (0.2, 0.0, 0.2), -1.0])
def test_a_std_that_makes_no_numbers_is_refused(std: Any) -> None:
    with pytest.raises(PipelineError, match="std must be above 0"):
        list(to_device("cpu", std=std)([(np.zeros((1, 3, 2, 2), "uint8"),)]))


@pytest.mark.parametrize("dtype", ["bf61", 3, "nn", "uint8", torch.int32])
def test_a_dtype_that_is_none_is_refused_at_once(dtype: Any) -> None:
    with pytest.raises(PipelineError, match="dtype"):
        to_device("cpu", dtype=dtype)
    loader = penstock.WebLoader(penstock.DataPipeline([1]), batch_size=None)
    with pytest.raises(PipelineError, match="dtype"):
        loader.to_device("cpu", dtype=dtype)


@pytest.mark.parametrize("name", sorted(FLOATS))
def test_a_well_known_dtype_is_one_of_torchs_and_is_taken_without_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert as_dtype(name).is_floating_point
    monkeypatch.setitem(sys.modules, "torch", None)
    assert to_device("cpu", dtype=name).dtype == name
    with pytest.raises(MissingPackage, match="torch"):
        to_device("cpu", dtype="float8_e5m2")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
def test_a_device_that_is_not_there_is_told() -> None:
    with pytest.raises(PipelineError, match="no CUDA device"):
        list(to_device("cuda")([(np.zeros(3),)]))


def test_ahead_must_be_at_least_one() -> None:
    with pytest.raises(PipelineError, match="ahead"):
        to_device("cpu", ahead=0)


def test_the_stage_prints_and_compares() -> None:
    assert repr(to_device("cpu", dtype="bfloat16")) == "to_device('cpu', dtype='bfloat16')"
    assert to_device("cpu") == to_device("cpu") != to_device("cpu", ahead=3)


# ── state ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_a_resume_at_any_step_gives_the_rest(ahead: int) -> None:
    def make() -> Any:
        numbers = [(np.array(n),) for n in range(23)]
        stages = penstock.shuffle(7, seed=1), penstock.batched(3)
        return penstock.DataPipeline(numbers, *stages, to_device("cpu", ahead=ahead))

    assert_resumes(make)


@pytest.mark.parametrize("engine", ["threads", "processes"])
def test_a_loader_with_a_device_resumes_where_the_trainer_stood(engine: str) -> None:
    def make() -> Any:
        data = penstock.DataPipeline([(np.array(n),) for n in range(20)], penstock.batched(2))
        loader = penstock.WebLoader(data, batch_size=None, num_workers=0, engine=engine)
        return loader.to_device("cpu")

    whole = [batch[0].tolist() for batch in make()]
    for steps in (0, 1, 4, 9):
        loader = make()
        stream = iter(loader)
        for _ in range(steps):
            next(stream)
        state = json.loads(json.dumps(loader.state_dict()))
        other = make()
        other.load_state_dict(state)
        assert [batch[0].tolist() for batch in other] == whole[steps:]


def test_the_argument_device_is_the_stage() -> None:
    data = penstock.DataPipeline([(np.array(n),) for n in range(4)], penstock.batched(2))
    loader = penstock.WebLoader(data, batch_size=None, device="cpu")
    assert [batch[0].tolist() for batch in loader] == [[0, 1], [2, 3]]
    assert loader.pipeline[-1] == to_device("cpu")


# ── the thread that takes batches ahead ─────────────────────────────────────────────────


def test_no_more_batches_are_taken_than_allowed() -> None:
    taken: list[int] = []

    def source() -> Any:
        for n in range(20):
            taken.append(n)
            yield (np.array([n]),)

    stream = to_device("cpu", ahead=2)(source())
    next(stream)
    for _ in range(50):
        threading.Event().wait(0.002)
    assert len(taken) <= 4  # the one given, two ready, one being made
    stream.close()


@pytest.mark.parametrize("abandoned", [False, True])
def test_host_memory_is_held_until_its_copies_are_done(
    abandoned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[int] = []

    class Event:
        def synchronize(self) -> None:
            done.append(len(done))

    def send(self: Mover, batch: Any) -> Moved:
        self._held.append((Event(), [batch]))
        return Moved(batch, [], None)

    monkeypatch.setattr(Mover, "send", send)
    stream = iter(to_device("cpu", ahead=1)([1, 2, 3]))
    assert next(stream) == 1
    if abandoned:
        stream.close()
        assert done
    else:
        assert list(stream) == [2, 3]
        assert done == [0, 1, 2]


def test_an_abandoned_iterator_leaves_no_thread() -> None:
    stream = to_device("cpu")((np.array([n]),) for n in range(100))
    next(stream)
    assert device_threads()
    del stream
    assert not device_threads()


def test_an_error_comes_where_its_batch_would_have_come() -> None:
    def source() -> Any:
        yield (np.array([1]),)
        raise DecodingError("broken")

    stream = to_device("cpu")(source())
    assert next(stream)[0].tolist() == [1]
    with pytest.raises(DecodingError, match="broken"):
        next(stream)
    assert not device_threads()


def test_sys_exit_in_the_source_reaches_the_trainer() -> None:
    def source() -> Any:
        yield (np.array([1]),)
        raise SystemExit(3)

    stream = to_device("cpu")(source())
    next(stream)
    with pytest.raises(SystemExit):
        next(stream)


def test_the_source_is_closed_by_the_thread_that_ran_it() -> None:
    names: list[str] = []

    def source() -> Any:
        try:
            yield from range(100)
        finally:
            names.append(threading.current_thread().name)

    ahead = Prefetch(source(), 1)
    assert next(iter(ahead)) == 0
    ahead.close()
    assert names == ["penstock-device"]


def test_closing_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "JOIN_SECONDS", 0.05)
    free = threading.Event()

    def source() -> Any:
        yield 0
        free.wait(60)

    ahead = Prefetch(source(), 2)
    assert next(iter(ahead)) == 0
    ahead.close()
    free.set()


def test_two_epochs_are_both_complete() -> None:
    data = penstock.DataPipeline([(np.array(n),) for n in range(6)], penstock.batched(2))
    loader = penstock.WebLoader(data, batch_size=None).to_device("cpu")
    assert [len(list(loader)) for _ in range(2)] == [3, 3]


# ── pictures that are decoded on the device ─────────────────────────────────────────────


def test_the_crops_are_the_same_wherever_the_pictures_are_decoded() -> None:
    here = list(cropped("cpu").compose(to_device("cpu")))
    there = list(cropped("cuda").compose(to_device("cpu")))
    for (images, labels), (others, theirs) in zip(here, there, strict=True):
        assert torch.equal(images, others)
        assert torch.equal(labels, theirs)


def by_pillow(files: list[bytes]) -> list[Any]:
    """A decoder of whole pictures, as a device is one."""
    opened = [np.asarray(Image.open(io.BytesIO(file)).convert("RGB")) for file in files]
    return [torch.from_numpy(one.transpose(2, 0, 1).copy()) for one in opened]


def test_what_the_device_makes_is_near_to_what_the_cpu_makes() -> None:
    waiting = next(iter(cropped("cuda")))[0]
    made = gpudecode.decode_batch(FileTable.of(waiting), by_pillow, torch.device("cpu"))
    expected = np.stack([one.decode() for one in waiting])
    assert made.shape == (4, 3, 16, 16)
    assert made.dtype == torch.uint8
    apart = np.abs(made.numpy().astype(int) - expected.astype(int))
    assert apart.mean() < 1
    assert apart.max() <= 8


@pytest.mark.parametrize(
    "transform",
    [penstock.ResizeCenterCrop(24, 16), penstock.ResizeCenterCrop(16, 24)],
    ids=["smaller", "with a border"],
)
def test_a_window_of_the_resized_picture_is_cut_or_framed(transform: Any) -> None:
    import dataclasses

    there = dataclasses.replace(transform, decode_on="cuda")
    data = picture(80, 50, 1)
    made = gpudecode.decode_batch(FileTable.of([there(data)]), by_pillow, torch.device("cpu"))
    apart = np.abs(made[0].numpy().astype(int) - transform(data).astype(int))
    assert apart.mean() < 1


def test_what_the_device_cannot_decode_the_cpu_does() -> None:
    data = [
        (picture(60, 40, 1), 0),
        (picture(60, 40, 2, "PNG"), 1),
        (picture(60, 40, 3, mode="CMYK"), 2),
        (picture(60, 40, 4), 3),
    ]
    waiting = next(iter(cropped("cuda", data)))[0]
    asked: list[int] = []

    def one_fails(files: list[bytes]) -> list[Any]:
        asked.append(len(files))
        return [None, *by_pillow(files[1:])]

    made = gpudecode.decode_batch(FileTable.of(waiting), one_fails, torch.device("cpu"))
    assert asked == [2], "PNG and CMYK are not for the device"
    for number in (0, 1, 2):
        assert np.array_equal(made[number].numpy(), waiting[number].decode())


def test_a_file_that_was_cut_is_left_out_by_the_handler_of_its_stage() -> None:
    data = [(picture(60, 40, n), n) for n in range(5)]
    data[2] = data[2][0][:-300], 2
    crop = penstock.RandomResizedCrop(16, decode_on="cuda")
    stages = penstock.map_tuple(crop, int, handler=penstock.ignore_and_continue)
    batches = penstock.DataPipeline(data, stages, penstock.batched(4), to_device("cpu"))
    assert [labels.tolist() for _, labels in batches] == [[0, 1, 3, 4]]


@pytest.mark.parametrize("place", [(2, 0), (0, -3), (-4, 5)])
def test_a_window_as_large_as_the_picture_may_lie_beside_it(place: tuple[int, int]) -> None:
    plan = CropPlan(0, 0, 40, 50, 16, 24, *place, 16, 24)
    pixels = torch.randint(0, 255, (3, 40, 50), dtype=torch.uint8)
    whole, moved = torch.empty(3, 16, 24), torch.empty(3, 16, 24)
    gpudecode.resize_into(whole, pixels, plan._replace(row=0, column=0), "bilinear")
    gpudecode.resize_into(moved, pixels, plan, "bilinear")
    expected = torch.zeros(3, 16, 24)
    for row in range(16):
        for column in range(24):
            y, x = row + place[0], column + place[1]
            if 0 <= y < 16 and 0 <= x < 24:
                expected[:, row, column] = whole[:, y, x]
    assert torch.equal(moved, expected)


def test_pictures_of_several_sizes_are_refused() -> None:
    resize = penstock.Resize(16, decode_on="cuda")
    waiting = [resize(picture(60, 40, 1)), resize(picture(80, 40, 1))]
    with pytest.raises(SampleError, match="shapes"):
        gpudecode.decode_batch(FileTable.of(waiting), by_pillow, torch.device("cpu"))


def test_normalising_is_left_to_the_device() -> None:
    with pytest.raises(PipelineError, match="to_device"):
        penstock.RandomResizedCrop(16, decode_on="cuda", dtype="float32")
    with pytest.raises(PipelineError, match="decode_on"):
        penstock.RandomResizedCrop(16, decode_on="tpu")


def fake_torchcodec(folder: Path, monkeypatch: pytest.MonkeyPatch, init: str, **names: Any) -> None:
    """Put a package torchcodec on the path, whose ``decoders`` has these names."""
    (folder / "torchcodec").mkdir()
    (folder / "torchcodec" / "__init__.py").write_text(init)
    monkeypatch.syspath_prepend(str(folder))
    for name in ("torchcodec", "torchcodec.decoders"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    if names:
        decoders = types.ModuleType("torchcodec.decoders")
        vars(decoders).update(names)
        monkeypatch.setitem(sys.modules, "torchcodec.decoders", decoders)


@pytest.mark.parametrize(
    "init",
    [
        "raise ImportError('no such file')",
        "raise OSError('Could not load this library: libtorchcodec_image.so')",
        "raise RuntimeError('Failed to load the backend extension')",
        "from . import decoders",
    ],
)
def test_a_decoder_that_cannot_be_imported_is_missing(
    init: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_torchcodec(tmp_path, monkeypatch, init)
    (tmp_path / "torchcodec" / "decoders.py").write_text("")  # as before version 0.16
    with pytest.raises(MissingPackage, match=r"'torchcodec'.*\[gpu\]"):
        gpudecode.decoder_for(torch.device("cuda"))


def decode_jpeg(source: list[torch.Tensor], *, mode: str, device: torch.device) -> list[Any]:
    """Decode as torchcodec does: rotated by the Exif tags; one bad file fails them all."""
    assert mode == "RGB"
    pictures = []
    for file in source:
        try:
            image = Image.open(io.BytesIO(file.numpy().tobytes()))
            turned = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
        except OSError as error:
            raise RuntimeError("nvjpegDecode failed") from error
        pictures.append(torch.from_numpy(turned.transpose(2, 0, 1).copy()))
    return pictures


@pytest.mark.parametrize("shared", [False, True], ids=["bytes", "shared memory"])
def test_torchcodec_decodes_images_as_they_are_stored(
    shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_torchcodec(tmp_path, monkeypatch, "", decode_jpeg=decode_jpeg)
    decode = gpudecode._make_torchcodec_decoder(torch.device("cpu"))
    assert decode is not None
    files = []
    for orientation in range(1, 9):
        data, exif = io.BytesIO(), Image.Exif()
        exif[0x0112] = orientation
        Image.open(io.BytesIO(picture(60, 40, orientation))).save(data, "JPEG", exif=exif)
        files.append(data.getvalue())
    damaged = files[2][:200]
    given = [*files[:4], damaged, *files[4:]]
    found = decode([memoryview(bytearray(file)) for file in given] if shared else given)
    assert found.pop(4) is None
    for mine, stored in zip(found, by_pillow(files), strict=True):
        assert mine is not None
        assert torch.equal(mine, stored)


# ── waiting ─────────────────────────────────────────────────────────────────────────────


def test_marks_on_a_cpu_are_the_clock() -> None:
    mover = Mover("cpu")
    assert mover.mark() <= mover.mark()


class Mark:
    """An event of a device, at that time of its clock."""

    def __init__(self, at_ms: float, passed: bool = False) -> None:
        self.at_ms, self.passed = at_ms, passed

    def query(self) -> bool:
        return self.passed

    def elapsed_time(self, other: Mark) -> float:
        return other.at_ms - self.at_ms


def test_waits_are_summed_when_the_device_has_passed_their_marks() -> None:
    waits = DeviceIdle()
    first, second = (Mark(0), Mark(250)), (Mark(300), Mark(400))
    waits.between(*first)
    waits.between(*second)
    assert waits.seconds == 0
    first[1].passed = True
    assert waits.seconds == 0.25
    second[1].passed = True
    assert waits.seconds == pytest.approx(0.35)


def test_how_far_ahead_the_trainer_is_shows_whether_the_device_waits_for_its_python() -> None:
    waits = DeviceIdle()
    assert waits.lead is None
    waits.zero = Mark(5000), 100.0
    # Asked 1.0 s and 2.0 s behind zero; the device was through with its work 40 ms and 80 ms later.
    waits.between(Mark(6040), Mark(6050, passed=True), 101.0)
    waits.between(Mark(7080), Mark(7090), 102.0)
    assert waits.lead == pytest.approx(0.04)
    waits._open[0][1].passed = True
    assert waits.lead == pytest.approx(0.06)
    assert waits.seconds == pytest.approx(0.02)
    waits.between(Mark(7999), Mark(8000, passed=True), 103.0)  # clocks are not that exact
    assert waits.lead == pytest.approx(0.04)


def test_undecoded_pictures_travel_from_worker_processes(tmp_path: Path) -> None:
    shard = tmp_path / "photos.tar"
    with penstock.TarWriter(str(shard)) as writer:
        for n in range(12):
            pixels = np.random.default_rng(n).integers(0, 255, (90, 120, 3), "uint8")
            writer.write({"__key__": f"{n:03d}", "jpg": pixels, "cls": n})

    def made(**options: Any) -> list[Any]:
        crop = penstock.RandomResizedCrop(32, flip=0.5, decode_on="cuda")
        dataset = penstock.WebDataset(str(shard), shardshuffle=False).to_tuple("jpg", "cls")
        dataset = dataset.map_tuple(crop, int).batched(4)
        return list(penstock.WebLoader(dataset, batch_size=None, **options))

    plain = made(num_workers=0)
    for options in ({"num_workers": 1}, {"num_workers": 1, "threads": 2}):
        sent = made(**options)
        assert [labels.tolist() for _, labels in sent] == [labels.tolist() for _, labels in plain]
        for (theirs, _), (ours, _) in zip(sent, plain):
            assert [one.plan for one in theirs] == [one.plan for one in ours]
            assert [bytes(one.data) for one in theirs] == [bytes(one.data) for one in ours]
            np.testing.assert_array_equal(theirs[0].decode(), ours[0].decode())


def without_a_table(data: bytes) -> bytes:
    """A JPEG that looks sound and that nobody can decode."""
    marks = [(mark, place) for mark, place in iter_markers(data) if mark == 0xDB]
    for _, place in reversed(marks):
        length = int.from_bytes(data[place + 2 : place + 4], "big")
        data = data[:place] + data[place + 2 + length :]
    return data


@pytest.mark.parametrize(
    "options",
    [{"num_workers": 0}, {"num_workers": 1}, {"num_workers": 2, "engine": "threads"}],
    ids=str,
)
def test_a_picture_that_fails_on_its_way_is_named(tmp_path: Path, options: Any) -> None:
    shard = tmp_path / "photos.tar"
    with penstock.TarWriter(str(shard)) as writer:
        for n in range(8):
            data = picture(60, 40, n)
            writer.write({"__key__": f"{n:03d}", "jpg": without_a_table(data) if n == 6 else data})
    crop = penstock.RandomResizedCrop(16, decode_on="cuda")
    dataset = penstock.WebDataset(str(shard), shardshuffle=False).to_tuple("jpg").map_tuple(crop)
    loader = penstock.WebLoader(dataset.batched(4), batch_size=None, device="cpu", **options)
    stream = iter(loader)
    next(stream)
    with pytest.raises(DecodingError, match=r"photos.tar, sample '006' at byte \d+") as caught:
        next(stream)
    assert caught.value.place == 2


def test_memory_that_a_worker_uses_again_holds_each_batch_until_it_is_made(tmp_path: Path) -> None:
    shard = tmp_path / "photos.tar"
    with penstock.TarWriter(str(shard)) as writer:
        for n in range(64):
            writer.write({"__key__": f"{n:03d}", "jpg": picture(30 + n, 40, n), "cls": n})

    def loader(**options: Any) -> Any:
        crop = penstock.RandomResizedCrop(16, flip=0.5, decode_on="cuda")
        dataset = penstock.WebDataset(str(shard), shardshuffle=False).shuffle(20)
        dataset = dataset.to_tuple("jpg", "cls").map_tuple(crop, int).batched(4)
        return penstock.WebLoader(dataset, batch_size=None, device="cpu", **options)

    plain = list(loader(num_workers=0))
    stream = iter(sent := loader(num_workers=1, prefetch_factor=4))
    seen = list[Any]()
    states = list[Any]()
    for images, labels in stream:
        seen.append((images, labels))
        states.append(sent.state_dict())
    assert len(seen) == len(plain) == 16
    for (images, labels), (theirs, numbers) in zip(seen, plain):
        assert labels.tolist() == numbers.tolist()
        assert torch.equal(images, theirs)
    other = loader(num_workers=1)
    other.load_state_dict(states[4])
    for (images, labels), (theirs, numbers) in zip(other, plain[5:], strict=True):
        assert labels.tolist() == numbers.tolist()
        assert torch.equal(images, theirs)
