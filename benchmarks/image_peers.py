"""The loaders that images.py compares: each is a small function that yields an epoch's batches.

Everything is imported inside the functions; missing packages are reported. Other formats (MDS,
litdata's chunks, a folder of files…) are written once by ``form_…``, untimed.
"""

from __future__ import annotations

import dataclasses
import random
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from image_recipe import RECIPES, stacked

Batches = Iterable[Any]


@dataclasses.dataclass
class Data:
    """The input of a loader."""

    urls: list[str]
    forms: Path
    """The folder in which each loader's own form of the data stands."""
    batch: int = 256
    workers: int = 2
    count: int = 0

    def form(self, name: str) -> str:
        return str(self.forms / name)

    def pairs(self) -> Iterator[tuple[bytes, int]]:
        """Yield photographs and labels, in the order of the shards."""
        for url in self.urls:
            with tarfile.open(url) as archive:
                members = iter(archive)
                for picture, label in zip(members, members):
                    first, second = archive.extractfile(picture), archive.extractfile(label)
                    if first is not None and second is not None:
                        yield first.read(), int(second.read())


# ── penstock ────────────────────────────────────────────────────────────────────────────


def penstock_threads(data: Data, native: bool) -> Batches:
    import penstock
    from penstock.transforms.native import load

    if native and load() is None:  # PENSTOCK_NATIVE=0 disables it in the other row
        raise ImportError("the native module is not built: penstock native build")
    crop = penstock.RandomResizedCrop(224, flip=0.5)
    dataset = penstock.WebDataset(data.urls, shardshuffle=100).shuffle(1000)
    dataset = dataset.to_tuple("jpg", "cls").map_tuple(crop, int).batched(data.batch)
    return penstock.WebLoader(dataset, num_workers=data.workers, batch_size=None, engine="threads")


# ── torch's DataLoader over WebDataset, files, MDS and others ───────────────────────────


def webdataset_loader(data: Data, recipe: str) -> Batches:
    import webdataset

    dataset = webdataset.WebDataset(data.urls, shardshuffle=100).shuffle(1000)
    dataset = dataset.to_tuple("jpg", "cls").map_tuple(RECIPES[recipe], int)
    return webdataset.WebLoader(
        dataset.batched(data.batch), num_workers=data.workers, batch_size=None
    )


def form_folder(data: Data) -> None:
    """Write a file per photograph, in a folder per class."""
    for number, (picture, label) in enumerate(data.pairs()):
        folder = Path(data.form("folder"), f"{label:04d}")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{number:08d}.jpg").write_bytes(picture)


class Files:
    """torchvision's ImageFolder, without torchvision: a map-style data set of files."""

    def __init__(self, folder: str, recipe: str) -> None:
        self.paths = sorted(Path(folder).rglob("*.jpg"))
        self.recipe = recipe

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        path = self.paths[number]
        return RECIPES[self.recipe](path.read_bytes()), int(path.parent.name)


def image_folder(data: Data, recipe: str) -> Batches:
    from torch.utils.data import DataLoader

    files: Any = Files(data.form("folder"), recipe)
    return DataLoader(files, data.batch, shuffle=True, num_workers=data.workers)


def form_mds(data: Data) -> None:
    from streaming import MDSWriter

    with MDSWriter(out=data.form("mds"), columns={"jpg": "bytes", "cls": "int"}) as writer:
        for picture, label in data.pairs():
            writer.write({"jpg": picture, "cls": label})


def mosaic_streaming(data: Data, recipe: str) -> Batches:
    from streaming import StreamingDataset
    from torch.utils.data import DataLoader

    class Pictures(StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return RECIPES[recipe](sample["jpg"]), sample["cls"]

    dataset: Any = Pictures(local=data.form("mds"), shuffle=True, batch_size=data.batch)
    return DataLoader(dataset, data.batch, num_workers=data.workers)


def _as_sample(pair: tuple[bytes, int]) -> dict[str, Any]:
    return {"jpg": pair[0], "cls": pair[1]}


def form_litdata(data: Data) -> None:
    import litdata

    litdata.optimize(
        fn=_as_sample,
        inputs=list(data.pairs()),
        output_dir=data.form("litdata"),
        chunk_bytes="64MB",
        num_workers=1,
    )


def litdata_loader(data: Data, recipe: str) -> Batches:
    import litdata

    class Pictures(litdata.StreamingDataset):  # type: ignore[misc]
        def __getitem__(self, at: Any) -> Any:
            sample = super().__getitem__(at)
            return RECIPES[recipe](sample["jpg"]), sample["cls"]

    dataset = Pictures(data.form("litdata"), shuffle=True)
    loader: Batches = litdata.StreamingDataLoader(
        dataset, batch_size=data.batch, num_workers=data.workers
    )
    return loader


def hf_datasets(data: Data, recipe: str) -> Batches:
    import datasets
    from torch.utils.data import DataLoader

    datasets.disable_progress_bars()
    stream = datasets.load_dataset(
        "webdataset", data_files={"train": data.urls}, split="train", streaming=True
    )
    stream = stream.cast_column("jpg", datasets.Image(decode=False)).shuffle(0, buffer_size=1000)
    made = stream.map(
        lambda sample: {"jpg": RECIPES[recipe](sample["jpg"]["bytes"]), "cls": sample["cls"]},
        remove_columns=["__key__", "__url__"],
    )
    collate = lambda rows: stacked([(row["jpg"], row["cls"]) for row in rows])  # noqa: E731
    return DataLoader(made, data.batch, num_workers=data.workers, collate_fn=collate)


# ── loaders with other engines ────────────────────────────────────────────────────────────────


def torchdata_threads(data: Data, recipe: str) -> Batches:
    from torchdata.nodes import Batcher, IterableWrapper, Loader, ParallelMapper

    make = RECIPES[recipe]
    node: Any = IterableWrapper(data.pairs())
    node = ParallelMapper(
        node, lambda pair: (make(pair[0]), pair[1]), num_workers=data.workers, method="thread"
    )
    node = Batcher(node, data.batch, drop_last=False)
    node = ParallelMapper(node, stacked, num_workers=1, method="thread")
    return Loader(node)


def spdl_threads(data: Data, recipe: str) -> Batches:
    from spdl.pipeline import PipelineBuilder

    make = RECIPES[recipe]
    pipeline = (
        PipelineBuilder()
        .add_source(data.pairs())
        .pipe(lambda pair: (make(pair[0]), pair[1]), concurrency=data.workers)
        .aggregate(data.batch)
        .pipe(stacked)
        .add_sink(2)
        .build(num_threads=data.workers)
    )
    with pipeline.auto_stop():
        yield from pipeline


def spdl_own_decoder(data: Data) -> Batches:
    """SPDL's FFmpeg-based decoder, which decodes, crops and resizes in one filter graph."""
    import numpy as np
    import spdl.io
    from image_recipe import SIZE, box_of
    from spdl.pipeline import PipelineBuilder

    def make(pair: tuple[bytes, int]) -> tuple[Any, int]:
        packets = spdl.io.demux_image(pair[0])
        left, top, w, h = box_of(packets.width, packets.height)
        flip = ",hflip" if random.random() < 0.5 else ""
        graph = f"crop={w}:{h}:{left}:{top},scale={SIZE}:{SIZE}{flip},format=pix_fmts=rgb24"
        frames = spdl.io.decode_packets(packets, filter_desc=graph)
        array = spdl.io.to_numpy(spdl.io.convert_frames(frames))
        return np.ascontiguousarray(np.moveaxis(np.squeeze(array), -1, 0)), pair[1]

    try:
        make(next(data.pairs()))  # errors inside its pipeline are only logged
    except RuntimeError as problem:  # no FFmpeg on this machine
        raise ImportError(str(problem)) from problem
    pipeline = (
        PipelineBuilder()
        .add_source(data.pairs())
        .pipe(make, concurrency=data.workers)
        .aggregate(data.batch)
        .pipe(stacked)
        .add_sink(2)
        .build(num_threads=data.workers)
    )
    with pipeline.auto_stop():
        yield from pipeline


def grain_threads(data: Data, recipe: str) -> Batches:
    import grain

    files = Files(data.form("folder"), recipe)
    dataset = grain.MapDataset.source(files).shuffle(seed=0)
    stream = dataset.to_iter_dataset(
        grain.ReadOptions(num_threads=data.workers, prefetch_buffer_size=64)
    )
    batches: Batches = stream.batch(data.batch, batch_fn=stacked)
    return batches


def tensorflow_data(data: Data, antialias: bool = False) -> Batches:
    import tensorflow as tf

    paths = [str(path) for path in sorted(Path(data.form("folder")).rglob("*.jpg"))]
    tf.config.threading.set_intra_op_parallelism_threads(data.workers)
    tf.config.threading.set_inter_op_parallelism_threads(data.workers)
    whole = tf.constant([[[0.0, 0.0, 1.0, 1.0]]])

    def make(path: Any) -> Any:
        picture = tf.io.read_file(path)
        shape = tf.io.extract_jpeg_shape(picture)
        begin, size, _ = tf.image.sample_distorted_bounding_box(
            shape, whole, area_range=(0.08, 1.0), aspect_ratio_range=(3 / 4, 4 / 3)
        )
        top, left, _ = tf.unstack(begin)
        h, w, _ = tf.unstack(size)
        image = tf.image.decode_and_crop_jpeg(picture, tf.stack([top, left, h, w]), channels=3)
        image = tf.image.resize(image, (224, 224), antialias=antialias)
        image = tf.image.random_flip_left_right(image)
        return tf.transpose(tf.cast(image, tf.uint8), (2, 0, 1))

    stream = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths))
    stream = stream.map(make, num_parallel_calls=data.workers).batch(data.batch).prefetch(2)
    for images in stream.as_numpy_iterator():
        yield images, None


def form_ffcv(data: Data) -> None:
    from ffcv.fields import BytesField, IntField
    from ffcv.writer import DatasetWriter

    class Pairs:
        def __init__(self) -> None:
            self.pairs = list(data.pairs())

        def __len__(self) -> int:
            return len(self.pairs)

        def __getitem__(self, at: int) -> Any:
            import numpy as np

            return np.frombuffer(self.pairs[at][0], np.uint8), self.pairs[at][1]

    fields = {"image": BytesField(), "label": IntField()}
    DatasetWriter(data.form("ffcv"), fields, num_workers=1).from_indexed_dataset(Pairs())


def ffcv_loader(data: Data) -> Batches:
    from ffcv.fields.rgb_image import RandomResizedCropRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor, ToTorchImage

    made = [RandomResizedCropRGBImageDecoder((224, 224)), RandomHorizontalFlip(), ToTensor()]
    batches: Batches = Loader(
        data.form("ffcv"),
        batch_size=data.batch,
        num_workers=data.workers,
        order=OrderOption.QUASI_RANDOM,
        pipelines={"image": [*made, ToTorchImage()]},
    )
    return batches


# ── tiny samples ────────────────────────────────────────────────────────────────────────


def tiny(data: Data, library: str, workers: int, engine: str | None = None) -> Batches:
    """Yield batches of 200 bytes of decoded JSON and a label."""
    module = __import__(library)
    dataset = module.WebDataset(data.urls, shardshuffle=False).decode()
    dataset = dataset.to_tuple("json", "cls").batched(data.batch)
    if workers == 0 and engine is None:
        return dataset  # type: ignore[no-any-return]
    named = {"engine": engine} if engine else {}
    loader: Batches = module.WebLoader(dataset, num_workers=workers, batch_size=None, **named)
    return loader


@dataclasses.dataclass(frozen=True)
class Loader:
    """A row of the table."""

    batches: Callable[..., Batches]
    arguments: tuple[Any, ...] = ()
    imports: tuple[str, ...] = ()
    form: Callable[[Data], None] | None = None
    kind: str = "peer"
    """ours, peer, or by hand: a peer with a decoder that its documents do not speak of."""
    environment: tuple[tuple[str, str], ...] = ()


def _peer(batches: Callable[..., Batches], *imports: str, **named: Any) -> Loader:
    return Loader(batches, ("pillow",), (*imports, "PIL"), **named)


def _hand(batches: Callable[..., Batches], *imports: str, **named: Any) -> Loader:
    names = (*imports, "simplejpeg", "cv2")
    return Loader(batches, ("by hand",), names, kind="by hand", **named)


WHEELS = (("PENSTOCK_NATIVE", "0"),)
LOADERS: dict[str, Loader] = {
    "penstock, wheels": Loader(
        penstock_threads,
        (False,),
        ("penstock", "simplejpeg", "torch"),
        kind="ours",
        environment=WHEELS,
    ),
    "penstock, native": Loader(penstock_threads, (True,), ("penstock", "torch"), kind="ours"),
    "webdataset, Pillow": _peer(webdataset_loader, "webdataset", "torch"),
    "webdataset, torchvision": Loader(
        webdataset_loader, ("torchvision",), ("webdataset", "torchvision.io")
    ),
    "webdataset, by hand": _hand(webdataset_loader, "webdataset", "torch"),
    "image folder, Pillow": _peer(image_folder, "torch", form=form_folder),
    "torchdata threads, Pillow": _peer(torchdata_threads, "torchdata.nodes"),
    "torchdata threads, by hand": _hand(torchdata_threads, "torchdata.nodes"),
    "spdl, own decoder": Loader(spdl_own_decoder, (), ("spdl.io", "spdl.pipeline")),
    "spdl, Pillow": _peer(spdl_threads, "spdl.pipeline"),
    "spdl, by hand": _hand(spdl_threads, "spdl.pipeline"),
    "mosaic streaming, Pillow": _peer(mosaic_streaming, "streaming", form=form_mds),
    "litdata, Pillow": _peer(litdata_loader, "litdata", form=form_litdata),
    "grain threads, Pillow": _peer(grain_threads, "grain", form=form_folder),
    "grain threads, by hand": _hand(grain_threads, "grain", form=form_folder),
    "hf datasets, Pillow": _peer(hf_datasets, "datasets", "torch"),
    "tf.data": Loader(tensorflow_data, (), ("tensorflow",), form=form_folder),
    "tf.data, antialiased": Loader(tensorflow_data, (True,), ("tensorflow",), form=form_folder),
    "ffcv": Loader(ffcv_loader, (), ("ffcv",), form=form_ffcv),
}
TINY: dict[str, Loader] = {
    "penstock, plain": Loader(tiny, ("penstock", 0), ("penstock", "torch"), kind="ours"),
    "penstock, threads": Loader(
        tiny, ("penstock", 2, "threads"), ("penstock", "torch"), kind="ours"
    ),
    "penstock, 2 workers": Loader(
        tiny, ("penstock", 2, "processes"), ("penstock", "torch"), kind="ours"
    ),
    "webdataset, plain": Loader(tiny, ("webdataset", 0), ("webdataset", "torch")),
    "webdataset, 2 workers": Loader(tiny, ("webdataset", 2), ("webdataset", "torch")),
}
