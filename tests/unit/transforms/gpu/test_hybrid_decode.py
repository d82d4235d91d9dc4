"""Batches made by engines, cores and one kernel, tried here with engines and a kernel of C."""

from __future__ import annotations

import contextlib
import ctypes
import io
import random
import shutil
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import penstock
from penstock.errors import DecodingError, PipelineError, SampleError
from penstock.loaders.device.device_copy import Mover
from penstock.transforms import native
from penstock.transforms.crop_plan import CropPlan, plan_resize
from penstock.transforms.gpu import (
    fallback_decode as gpudecode,
)
from penstock.transforms.gpu import (
    hybrid_decode as gpubatch,
)
from penstock.transforms.gpu import (
    nvjpeg,
)
from penstock.transforms.gpu import (
    resize_kernel as gpukernel,
)
from penstock.transforms.gpu.file_table import FileTable
from penstock.transforms.gpu.hybrid_decode import HybridDecoder
from penstock.transforms.gpu.resize_kernel import Finish, Kernel, make_jobs
from penstock.transforms.jpeg_markers import Header, read_header

CPU = torch.device("cpu")
COMPILER = shutil.which("g++") or shutil.which("c++")
with_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")

AS_ON_A_DEVICE = """
#include <algorithm>
#include <cmath>
#include <cstring>
#define __device__
#define __global__
#define __forceinline__ inline
using std::max;
using std::min;
struct dim { int x, y, z; };
static dim blockIdx, blockDim, threadIdx;
static unsigned int __float_as_uint(float f) { unsigned int n; memcpy(&n, &f, 4); return n; }
%s
extern "C" void launch(const dim *grid, const dim *block, const long long *jobs,
                       const float *colours, void *out, int rows, int columns, int kind, int last) {
    blockDim = *block;
    for (blockIdx.z = 0; blockIdx.z < grid->z; blockIdx.z++)
    for (blockIdx.y = 0; blockIdx.y < grid->y; blockIdx.y++)
    for (blockIdx.x = 0; blockIdx.x < grid->x; blockIdx.x++)
    for (threadIdx.y = 0; threadIdx.y < block->y; threadIdx.y++)
    for (threadIdx.x = 0; threadIdx.x < block->x; threadIdx.x++)
        penstock_batch(jobs, colours, out, rows, columns, kind, last);
}
"""

ENGINE = r"""
/* Decodes nothing: each picture is filled with the first byte of its file, rows of `pitch`. */
#include <stddef.h>
#include <string.h>
typedef struct { unsigned char *channel[4]; size_t pitch[4]; } image;
static int handles, begun, batches, failing = -1, refuse;
static image *places;
size_t place(int n) { return (size_t)places[n].channel[0]; }
int seen(int what) { return what == 0 ? handles : what == 1 ? begun : batches; }
void fail_at(int batch) { failing = batch; }
void refuse_handles(int status) { refuse = status; }
int nvjpegCreateEx(int backend, void *a, void *b, unsigned flags, void **handle) {
    if (refuse || backend != 3 || flags != 32) return refuse ? refuse : 2;
    *handle = (void *)(size_t)++handles;
    return 0;
}
int nvjpegJpegStateCreate(void *handle, void **state) { *state = handle; return 0; }
int nvjpegDecodeBatchedInitialize(void *h, void *s, int n, int threads, int format) {
    begun++;
    return format == 5 && h == s && n > 0 ? 0 : 2;
}
int nvjpegDecodeBatched(void *h, void *s, const unsigned char *const *data, const size_t *lengths,
                        image *to, void *stream) {
    places = to;
    if (batches++ == failing) return 6;
    for (int n = 0; n < (int)(size_t)stream; n++)
        memset(to[n].channel[0], data[n][lengths[n] - 1], to[n].pitch[0]);
    return 0;
}
"""


def compiled(source: str, folder: Path, name: str) -> ctypes.CDLL:
    file = folder / f"{name}.cpp"
    file.write_text(source)
    made = folder / f"{name}.so"
    command = [str(COMPILER), "-O1", "-shared", "-fPIC", "-fpermissive", "-w", str(file)]
    subprocess.run([*command, "-o", str(made)], check=True)
    return ctypes.CDLL(str(made))


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kernel as a device would run it, one thread after another."""
    folder = tmp_path_factory.mktemp("kernel")
    library = compiled(AS_ON_A_DEVICE % gpukernel.SOURCE, folder, "kernel")

    def call(grid: Any, block: Any, arguments: list[Any]) -> None:
        sizes = [(ctypes.c_int * 3)(*size) for size in (grid, block)]
        given = [
            ctypes.c_void_p(one.data_ptr()) if isinstance(one, torch.Tensor) else one
            for one in arguments
        ]
        library.launch(*sizes, *given)

    return call


def finish(dtype: torch.dtype = torch.uint8, last: bool = False) -> Finish:
    return Finish(dtype, (120.0, 110.0, 100.0), (60.0, 50.0, 40.0), last)


def jpeg(height: int, width: int, seed: int = 0, mode: str = "RGB", **options: Any) -> bytes:
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 255, (9, 12, 3), np.uint8))
    data = io.BytesIO()
    picture = coarse.resize((width, height), Image.Resampling.BICUBIC).convert(mode)
    picture.save(data, "JPEG", **options)
    return data.getvalue()


class ByPillow:
    """An engine that decodes into memory of this machine."""

    def __init__(self, refuses_from: int = 1 << 30) -> None:
        self.asked: list[tuple[Any, int]] = []
        self.refuses_from = refuses_from

    def decode(self, files: Any, sizes: Any, chroma: Any, to: Any, on: int, wait: Any) -> bool:
        self.asked.append((chroma, len(files)))
        if len(self.asked) > self.refuses_from:
            return False
        for file, size, (pointer, pitch) in zip(files.tolist(), sizes.tolist(), to.tolist()):
            opened = Image.open(io.BytesIO(ctypes.string_at(file, size))).convert("RGB")
            pixels = np.asarray(opened)
            assert pitch == pixels.strides[0]
            ctypes.memmove(pointer, pixels.tobytes(), pixels.nbytes)
        return True


def waiting(files: list[bytes], **options: Any) -> FileTable:
    crop = penstock.RandomResizedCrop(24, flip=0.5, decode_on="cuda", **options)
    return FileTable.of([crop(file, random.Random(n)) for n, file in enumerate(files)])


def near(made: torch.Tensor, expected: Any) -> bool:
    apart = np.abs(made.numpy().astype(int) - np.asarray(expected).astype(int))
    return bool(apart.max() <= 2 and apart.mean() < 0.3)


# ── the header ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("options", "chroma"),
    [
        ({"subsampling": 0}, (1, 1)),
        ({"subsampling": 1}, (2, 1)),
        ({"subsampling": 2}, (2, 2)),
        ({"mode": "L"}, (0, 0)),
        ({"exif": b"Exif\0\0" + bytes(3000), "subsampling": 0}, (1, 1)),
    ],
)
def test_usual_files_are_for_an_engine(options: Any, chroma: Any) -> None:
    data = jpeg(33, 47, **options)
    assert read_header(data) == Header(33, 47, chroma)
    assert read_header(memoryview(data)) == Header(33, 47, chroma)


def changed(data: bytes, at: bytes, offset: int, value: int) -> bytes:
    place = data.index(at) + offset
    return data[:place] + bytes([value]) + data[place + 1 :]


def test_files_that_an_engine_may_see_otherwise_are_not_for_it() -> None:
    usual = jpeg(33, 47)
    assert read_header(jpeg(33, 47, progressive=True)) is None
    assert read_header(jpeg(33, 47, mode="CMYK")) is None
    assert read_header(usual[:-40]) is None, "it ends too early"
    assert read_header(usual + bytes(70)) is None
    assert read_header(changed(usual, b"\xff\xc0", 11, 0x41)) is None, "4:1:1"
    assert read_header(changed(usual, b"\xff\xc0", 4, 12)) is None, "12 bits"
    assert read_header(changed(usual, b"\xff\xc0", 1, 0xC1)) is None
    assert read_header(changed(usual, b"\xff\xda", 4, 1)) is None, "a scan per colour"
    assert read_header(b"\xff\xd8" + usual[2:20]) is None
    assert read_header(b"") is None
    for mark in (0x01, 0xD0, 0xD7):  # no length: what stands there may be another frame
        hidden = changed(usual, b"\xff\xe0", 1, mark)
        assert read_header(hidden) is None
    adobe = b"\xff\xee\x00\x0eAdobe\x00\x64\x00\x00\x00\x00"
    assert read_header(usual[:2] + adobe + b"\x00" + usual[2:]) is None, "RGB"
    assert read_header(usual[:2] + adobe + b"\x01" + usual[2:]) is not None
    letters = usual
    for number, letter in enumerate(b"RGB"):
        letters = changed(letters, b"\xff\xc0", 10 + 3 * number, letter)
    assert read_header(letters) is None


# ── the library ─────────────────────────────────────────────────────────────────────────


@pytest.fixture
def library(tmp_path: Path) -> ctypes.CDLL:
    return compiled('extern "C" {' + ENGINE + "}", tmp_path, "libnvjpeg")


def decode(engine: nvjpeg.NvjpegDecoder, count: int, chroma: Any = (1, 1), pitch: int = 8) -> Any:
    files = [np.full(5, n + 1, np.uint8) for n in range(count)]
    out = np.zeros((count, pitch), np.uint8)
    to = np.array([(out[n].ctypes.data, pitch) for n in range(count)])
    waited: list[int] = []
    # The stream tells this engine how many there are.
    done = engine.decode(
        np.array([file.ctypes.data for file in files], np.uint64),
        np.full(count, 5, np.uint64),
        chroma,
        to,
        count,
        lambda: waited.append(engine._turn.locked()),
    )
    assert waited == [True], "the next one begins when this one is done"
    return out[:, -1].tolist() if done else None


@with_compiler
def test_files_places_and_stream_reach_the_library(library: ctypes.CDLL) -> None:
    engine = nvjpeg.NvjpegDecoder(library)
    assert decode(engine, 3) == [1, 2, 3]
    assert decode(engine, 3) == [1, 2, 3]
    assert library.seen(1) == 1, "a batch of the same size needs no new beginning"
    assert decode(engine, 2) == [1, 2]
    assert library.seen(1) == 2


@with_compiler
def test_what_the_library_was_told_stays_until_it_is_waited_for(library: ctypes.CDLL) -> None:
    library.place.restype = ctypes.c_size_t
    files, out = np.full(5, 7, np.uint8), np.zeros((2, 8), np.uint8)
    to = np.array([(row.ctypes.data, 8) for row in out])
    seen, others = list[int](), list[Any]()

    def wait() -> None:
        others.extend(np.zeros((2, 8), np.uint64) for _ in range(50))  # into memory that is free
        seen.extend(library.place(n) for n in range(2))

    addresses = np.full(2, files.ctypes.data, np.uint64)
    assert nvjpeg.NvjpegDecoder(library).decode(
        addresses, np.full(2, 5, np.uint64), (1, 1), to, 2, wait
    )
    assert seen == to[:, 0].tolist()


@with_compiler
def test_each_chroma_has_its_decoder(library: ctypes.CDLL) -> None:
    engine = nvjpeg.NvjpegDecoder(library)
    for chroma in ((1, 1), (2, 2), (1, 1), (2, 2)):
        assert decode(engine, 2, chroma) == [1, 2]
    assert library.seen(0) == 2
    assert library.seen(1) == 2


@with_compiler
def test_a_batch_that_failed_is_begun_anew(library: ctypes.CDLL) -> None:
    engine = nvjpeg.NvjpegDecoder(library)
    library.fail_at(1)
    assert decode(engine, 2) == [1, 2]
    assert decode(engine, 2) is None
    assert decode(engine, 2) == [1, 2]
    assert library.seen(1) == 2


@with_compiler
def test_a_device_without_engines_has_none(
    library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch
) -> None:
    library.refuse_handles(7)
    with pytest.raises(DecodingError, match="status 7"):
        nvjpeg.NvjpegDecoder(library)
    monkeypatch.setattr(nvjpeg, "load_library", lambda: library)
    assert nvjpeg._engine_for.__wrapped__(0) is None
    monkeypatch.setattr(nvjpeg, "load_library", lambda: None)
    assert nvjpeg._engine_for.__wrapped__(0) is None


@with_compiler
def test_a_decoder_that_cannot_be_made_later_leaves_files_to_the_cpu(library: ctypes.CDLL) -> None:
    engine = nvjpeg.NvjpegDecoder(library)
    library.refuse_handles(5)
    nothing = np.zeros(1, np.uint64)
    taken = engine.decode(nothing, nothing, (2, 2), np.zeros((1, 2), np.int64), 0, lambda: None)
    assert taken is False
    assert not engine._turn.locked()
    library.refuse_handles(0)
    assert decode(engine, 2, (2, 2)) == [1, 2]


def test_all_who_come_at_once_get_the_same_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    together, made = threading.Barrier(4), list[Any]()

    class Slow:
        def __init__(self, library: Any) -> None:
            made.append(self)
            threading.Event().wait(0.05)

    monkeypatch.setattr(nvjpeg, "load_library", object)
    monkeypatch.setattr(nvjpeg, "NvjpegDecoder", Slow)

    def come(_: int) -> Any:
        together.wait(10)
        return nvjpeg.engine_for(12345)

    with ThreadPoolExecutor(4) as pool:
        engines = list(pool.map(come, range(4)))
    assert len(made) == 1
    assert set(engines) == {made[0]}


@with_compiler
@pytest.mark.parametrize("wheel", ["torchcodec", "torchvision"])
def test_the_library_is_found_in_other_wheels(
    library: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wheel: str
) -> None:
    folder = tmp_path / "site" / f"{wheel}.libs"
    folder.mkdir(parents=True)
    (folder / "libnvjpeg.0.so.13").write_text("no library")
    shutil.copy(library._name, folder / "libnvjpeg.1.so.12")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    found = [name for name in nvjpeg.list_candidates() if "site" in name and str(tmp_path) in name]
    assert [Path(name).name for name in found] == ["libnvjpeg.1.so.12", "libnvjpeg.0.so.13"]
    loaded = nvjpeg.load_library.__wrapped__()
    assert loaded is not None
    assert loaded._name == found[0]


# ── the kernel ──────────────────────────────────────────────────────────────────────────


PLANS = [
    plan_resize((3, 5, 40, 30), (24, 24)),
    plan_resize((0, 0, 61, 83), (24, 24), flip=True),
    plan_resize((10, 10, 7, 9), (24, 24)),
    CropPlan(0, 0, 61, 83, 32, 44, 4, 10, 24, 24),
    CropPlan(0, 0, 61, 83, 16, 20, -4, -2, 24, 24, True),
]


def by_torch(pixels: np.ndarray[Any, Any], plan: CropPlan, filter: str) -> torch.Tensor:
    out = torch.empty(3, plan.rows, plan.columns)
    planes = torch.from_numpy(pixels.transpose(2, 0, 1).copy())
    gpudecode.resize_into(out, planes, plan, filter)
    return (out.flip(-1) if plan.flip else out).round().clamp(0, 255)


@with_compiler
@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
@pytest.mark.parametrize("planes", [False, True])
def test_the_kernel_resizes_as_torch_does(launch: Any, filter: str, planes: bool) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (61, 83, 3), np.uint8)
    lying = np.ascontiguousarray(pixels.transpose(2, 0, 1)) if planes else pixels
    strides = (83, 1, 61 * 83) if planes else (3 * 83, 3, 1)
    places = [(lying.ctypes.data, *strides)] * len(PLANS)
    jobs = make_jobs(PLANS, places, [filter == "bicubic"] * len(PLANS))
    made = Kernel(launch, CPU, finish()).run(jobs, (24, 24))
    for one, plan in zip(made, PLANS):
        apart = (one.float() - by_torch(pixels, plan, filter)).abs()
        assert apart.max() <= 1, plan
        assert apart.mean() < 0.01


@with_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True])
def test_the_kernel_normalises_in_the_layout_asked_for(
    launch: Any, dtype: torch.dtype, last: bool
) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (2, 20, 30, 3), np.uint8)
    plan = plan_resize((0, 0, 20, 30), (20, 30))
    jobs = make_jobs([plan] * 2, [(one.ctypes.data, 90, 3, 1) for one in pixels], [False] * 2)
    made = Kernel(launch, CPU, finish(dtype, last)).run(jobs, (20, 30))
    mean, std = torch.tensor(finish().mean), torch.tensor(finish().std)
    expected = ((torch.from_numpy(pixels) - mean) / std).permute(0, 3, 1, 2)
    assert made.dtype == dtype
    assert made.is_contiguous(memory_format=torch.channels_last) is last
    tolerance = 2**-8 if dtype == torch.bfloat16 else 1e-6
    torch.testing.assert_close(made.float(), expected, rtol=tolerance, atol=1e-6)


# ── batches ─────────────────────────────────────────────────────────────────────────────


def files() -> list[bytes]:
    many = [jpeg(40 + n, 60, n, subsampling=n % 3 * (n % 2)) for n in range(20)]
    odd = [jpeg(50, 70, 30, mode="CMYK"), jpeg(50, 70, 31, progressive=True), jpeg(9, 9, mode="L")]
    png = io.BytesIO()
    Image.fromarray(np.full((30, 30, 3), 77, np.uint8)).save(png, "PNG")
    return [*many[:5], *odd, png.getvalue(), *many[5:]]


@with_compiler
@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
def test_whoever_decodes_the_batch_is_that_of_the_cpu(
    launch: Any, threads: int, filter: str
) -> None:
    pictures = waiting(files(), interpolation=filter)
    engine = ByPillow()
    made = HybridDecoder(Kernel(launch, CPU, finish()), engine, threads)(pictures)
    assert made.shape == (24, 3, 24, 24)
    for one, picture in zip(made, pictures):
        assert near(one, picture.decode())
    if threads == 0:
        assert sum(count for _, count in engine.asked) == 21, "the engine took what it can"
        assert {chroma for chroma, _ in engine.asked} == {(0, 0), (1, 1), (2, 1), (2, 2)}


@with_compiler
def test_what_the_engine_refuses_the_cpu_makes(launch: Any) -> None:
    pictures = waiting(files())
    engine = ByPillow(refuses_from=1)
    made = HybridDecoder(Kernel(launch, CPU, finish()), engine, 0)(pictures)
    for one, picture in zip(made, pictures):
        assert near(one, picture.decode())
    assert len(engine.asked) == 2


@with_compiler
@pytest.mark.parametrize("box", [(0, 0, 400, 60), (0, 0, 40, 600), (-4, 0, 40, 60), (30, 0, 40, 9)])
def test_a_box_beside_its_picture_is_not_for_the_kernel(launch: Any, box: Any) -> None:
    pictures = waiting(files()[:4])
    pictures.table["plan"][1] = plan_resize(box, (24, 24))
    assert gpubatch.boxes_fit(pictures.table).tolist() == [True, False, True, True]
    engine = ByPillow()
    work = gpubatch.HybridBatch(pictures, CPU)
    shared = gpubatch.TwoEndedQueue(work.native_jobs, work.able, 0)
    work.decode_on_engine(engine, shared)
    shared.end(help=False)
    assert sum(count for _, count in engine.asked) == 3


def test_a_torch_that_compiles_otherwise_has_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    def another(source: str) -> None:
        pass

    monkeypatch.setattr(torch.cuda, "_compile_kernel", another, raising=False)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    assert gpukernel.compile_kernel.__wrapped__(0) is None


@with_compiler
@pytest.mark.parametrize("threads", [0, 2])
def test_a_picture_that_nobody_can_decode_is_told(launch: Any, threads: int) -> None:
    broken = jpeg(40, 60)[:300]
    crop = penstock.RandomResizedCrop(24, decode_on="cuda")
    before = set(threading.enumerate())
    pictures = [*waiting(files()[:4]), crop(jpeg(40, 60))]
    pictures[2].data, pictures[2].header = broken, read_header(broken)
    with pytest.raises(DecodingError):
        HybridDecoder(Kernel(launch, CPU, finish()), ByPillow(), threads)(FileTable.of(pictures))
    assert set(threading.enumerate()) == before


def test_sizes_that_differ_are_told() -> None:
    resize = penstock.Resize(16, decode_on="cuda")
    pictures = FileTable.of([resize(jpeg(60, 40)), resize(jpeg(80, 40))])
    with pytest.raises(SampleError, match=r"shapes.*\(24, 16\), \(32, 16\)"):
        _ = pictures.size


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return native.build(tmp_path_factory.mktemp("native") / "picture.so")
    except PipelineError as error:
        pytest.skip(f"no native module: {error}")


@pytest.fixture
def with_native(built: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("PENSTOCK_NATIVE", str(built))
    native.forget()
    yield
    monkeypatch.undo()
    native.forget()


@with_compiler
@pytest.mark.usefixtures("with_native")
@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("refuses_from", [0, 1, 99])
def test_the_native_module_makes_the_same_rows(
    launch: Any, threads: int, refuses_from: int
) -> None:
    pictures = waiting(files(), interpolation="bicubic")
    engine = ByPillow(refuses_from)
    made = HybridDecoder(Kernel(launch, CPU, finish()), engine, threads)(pictures)
    for one, picture in zip(made, pictures):
        assert near(one, picture.decode())


@pytest.mark.usefixtures("with_native")
@pytest.mark.parametrize("threads", [0, 1, 3])
def test_every_job_is_taken_or_made_and_none_is_both(threads: int) -> None:
    for _ in range(20):
        work = gpubatch.HybridBatch(waiting(files()), CPU)
        shared = gpubatch.TwoEndedQueue(work.native_jobs, work.able, threads)
        taken = list[int]()
        while (piece := work._take_piece(shared)).start < piece.stop:
            taken += range(len(work.native_jobs))[piece]
        first = shared.end(help=True)
        assert taken == list(range(first)) or taken == list(range(len(taken)))
        made = np.flatnonzero(work.native_jobs["state"] != 0).tolist()
        assert not set(taken) & set(made)
        assert first == len(taken), "what was not taken was made, or looked at"
        pixels = [place for place in range(first, 24) if work.table["bytes"][place] == 0]
        assert sorted([*taken, *made, *pixels]) == list(range(24))


@pytest.mark.usefixtures("with_native")
def test_an_engine_that_raises_leaves_no_thread_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    ended, end = list[bool](), gpubatch.TwoEndedQueue.end

    def noted(self: gpubatch.TwoEndedQueue, help: bool) -> int:
        ended.append(help)
        return end(self, help)

    class Raises:
        def decode(self, *_: Any) -> bool:
            raise RuntimeError("the device is gone")

    monkeypatch.setattr(gpubatch.TwoEndedQueue, "end", noted)
    with pytest.raises(RuntimeError, match="is gone"):
        HybridDecoder(Kernel(print, CPU, finish()), Raises(), 0)(waiting(files()))  # type: ignore[arg-type]
    assert ended == [False], "the batch is ended, and nothing more is begun"


def test_the_engine_takes_many_at_first_and_few_in_the_end() -> None:
    work = gpubatch.HybridBatch(waiting([jpeg(40, 60)] * 256), CPU)
    shared, counts = gpubatch.TwoEndedQueue(work.native_jobs[:0], work.able, 0), list[int]()
    shared.batch = None  # nobody else takes any
    while (piece := work._take_piece(shared)).start < piece.stop:
        counts.append(piece.stop - piece.start)
    assert counts == [64, 48, 36, 27, 20, 15, 11, 8, 8, 8, 8, 3]


def test_the_mover_says_what_the_kernel_is_to_do() -> None:
    mover = Mover("cpu", dtype="bfloat16", mean=0.5, std=(0.2, 0.4, 0.6), channels_last=True)
    asked = mover._finish()
    assert asked is not None
    assert asked.dtype == torch.bfloat16
    assert asked.channels_last
    assert asked.mean == pytest.approx([127.5] * 3)
    assert asked.std == pytest.approx([51, 102, 153])
    plain = Mover("cpu")._finish()
    assert plain is not None
    assert plain.dtype == torch.uint8
    assert Mover("cpu", dtype="float64")._finish() is None
    assert Mover("cpu", mean=(0.1, 0.2))._finish() is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_a_device_makes_what_the_cpu_makes() -> None:
    pictures = waiting(files())
    device = torch.device("cuda", torch.cuda.current_device())
    made = gpudecode.decoder_for(device, finish())(pictures).cpu()
    for one, picture in zip(made, pictures):
        assert near(one, picture.decode())
