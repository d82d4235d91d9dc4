"""The code of WebDataset's README, of both generations, run on small local shards.

In the order of the documents, with their addresses replaced by local ones.
"""

from __future__ import annotations

import functools
from itertools import islice
from random import randrange

import numpy as np
import pytest

import penstock as wds

torch = pytest.importorskip("torch")

SHARDS, SAMPLES = 4, 6
HEIGHT, WIDTH = 40, 48
PATCH = 32


def preprocess(sample):
    image, json = sample
    try:
        label = json["annotations"][0]["category_id"]
    except Exception:
        label = 0
    return 1 - image, label


def get_patches(src):
    for sample in src:
        image, label = sample
        h, w = image.shape[:2]
        for _ in range(16):
            y, x = randrange(h - PATCH), randrange(w - PATCH)
            yield (image[y : y + PATCH, x : x + PATCH], label)


def get_dict_patches(src):
    for sample in src:
        image = sample["png"]
        for x in range(4):
            yield {
                "__key__": sample["__key__"],
                "big.jpg": image[:, :PATCH, x : x + PATCH],
                "json": x,
            }


def preproc(image):
    """What torchvision's transforms do in the documents: crop, flip, to tensor, normalise."""
    left, top = randrange(image.width - 24), randrange(image.height - 24)
    pixels = np.asarray(image.crop((left, top, left + 24, top + 24)), np.float32) / 255
    return torch.from_numpy((pixels.transpose(2, 0, 1) - 0.45) / 0.22)


def add_noise(source, noise=0.01):
    for inputs, targets in source:
        inputs = inputs + noise * torch.randn_like(inputs)
        yield inputs, targets


# ── the fluent interface ────────────────────────────────────────────────────────────────────────


@pytest.fixture
def dataset(pages):
    return wds.WebDataset(pages).shuffle(1000).decode("rgb").to_tuple("png", "json")


def test_a_web_dataset_is_an_iterable_dataset_of_torch(dataset):
    assert isinstance(dataset, torch.utils.data.IterableDataset)


def test_decoded_tuples_come_out_of_the_fluent_interface(dataset):
    image, json = next(iter(dataset))
    assert image.shape == (HEIGHT, WIDTH, 3)
    assert image.dtype == np.float32
    assert json["annotations"][0]["category_id"] >= 0


def test_a_function_is_mapped_over_the_samples(dataset):
    labels = [label for image, label in dataset.map(preprocess)]
    assert sorted(labels) == list(range(SHARDS * SAMPLES))


def test_compose_takes_a_function_that_expands_samples(dataset):
    dataset = dataset.map(preprocess).compose(get_patches).shuffle(10000)
    patches = list(dataset)
    assert len(patches) == SHARDS * SAMPLES * 16
    assert patches[0][0].shape == (PATCH, PATCH, 3)


# ── loaders ─────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def patches(dataset):
    return dataset.map(preprocess).compose(get_patches).shuffle(10000)


def test_torch_loads_the_data_set_with_workers(patches):
    loader = torch.utils.data.DataLoader(patches, num_workers=4, batch_size=8)
    batch = next(iter(loader))
    assert batch[0].shape == torch.Size([8, PATCH, PATCH, 3])
    assert batch[1].shape == torch.Size([8])


def test_a_web_loader_is_shuffled_and_batched_again(patches):
    loader = wds.WebLoader(patches, num_workers=4, batch_size=8)
    loader = loader.unbatched().shuffle(1000).batched(12)
    batch = next(iter(loader))
    assert batch[0].shape == torch.Size([12, PATCH, PATCH, 3])
    assert batch[1].shape == torch.Size([12])


def test_the_complete_pipeline_batches_in_the_data_set_and_again_behind_the_loader(pages):
    dataset = (
        wds.WebDataset(pages).shuffle(1000).decode("rgb").to_tuple("png", "json").map(preprocess)
    )
    dataset = dataset.compose(get_patches)
    dataset = dataset.batched(16)

    loader = wds.WebLoader(dataset, num_workers=4, batch_size=None)
    loader = loader.unbatched().shuffle(1000).batched(12)

    batches = list(loader)
    assert tuple(batches[0][0].shape) == (12, PATCH, PATCH, 3)
    assert tuple(batches[0][1].shape) == (12,)
    assert sum(len(labels) for _, labels in batches) == SHARDS * SAMPLES * 16


# ── the pipeline interface ──────────────────────────────────────────────────────────────────────


def test_an_explicit_pipeline_takes_functions_among_its_stages(pages):
    dataset = wds.DataPipeline(
        wds.SimpleShardList(pages),
        wds.shuffle(100),
        wds.split_by_worker,
        wds.tarfile_to_samples(),
        wds.shuffle(1000),
        wds.decode("torchrgb"),
        get_dict_patches,
        wds.shuffle(10000),
        wds.to_tuple("big.jpg", "json"),
        wds.batched(16),
    )
    batch = next(iter(dataset))
    assert batch[0].shape == torch.Size([16, 3, PATCH, PATCH])
    assert len(batch[1]) == 16


def test_a_resampled_data_set_gets_its_epoch_from_with_epoch(pages):
    dataset = (
        wds.WebDataset(pages, resampled=True)
        .shuffle(1000)
        .decode("rgb")
        .to_tuple("png", "json")
        .map(preprocess)
        .with_epoch(100)
    )
    assert len(list(dataset)) == 100


def test_a_pipeline_of_resampled_shards_gets_its_epoch_from_with_epoch(pages):
    dataset = wds.DataPipeline(
        wds.ResampledShards(pages),
        wds.tarfile_to_samples(),
        wds.shuffle(1000),
        wds.decode("torchrgb"),
        get_dict_patches,
        wds.shuffle(10000),
        wds.to_tuple("big.jpg", "json"),
        wds.batched(16),
    ).with_epoch(20)
    assert [len(batch[1]) for batch in dataset] == [16] * 20


# ── the notebook: shards behind commands ────────────────────────────────────────────────────────


def test_a_shard_list_gives_one_command_per_shard(photos):
    shards = list(islice(wds.SimpleShardList(photos), 3))
    before, after = photos.split("{000000..000003}")
    assert shards == [{"url": f"{before}{number:06d}{after}"} for number in range(3)]


def test_samples_are_dicts_of_key_and_bytes(photos):
    dataset = wds.DataPipeline(wds.SimpleShardList(photos), wds.tarfile_to_samples())
    for sample in islice(dataset, 0, 3):
        assert list(sample) == ["__key__", "__url__", "jpg", "json"]
        assert sample["jpg"].startswith(b"\xff\xd8")
        assert sample["json"].startswith(b'{"ImageID": ')


def test_the_first_pipeline_of_the_notebook_feeds_a_loader(photos):
    dataset = wds.DataPipeline(
        wds.SimpleShardList(photos),
        wds.tarfile_to_samples(),
        wds.shuffle(100),
        wds.decode("torchrgb"),
        wds.to_tuple("jpg;png", "json"),
        wds.map_tuple(None, lambda data: data["ImageID"]),
    )
    dataloader = torch.utils.data.DataLoader(dataset, num_workers=0, batch_size=16)
    for inputs, outputs in dataloader:
        assert inputs.shape[1:] == (3, HEIGHT, WIDTH)
        assert len(inputs) == len(outputs)


def test_decoding_to_rgb_gives_float_arrays(photos):
    dataset = wds.DataPipeline(
        wds.SimpleShardList(photos),
        wds.tarfile_to_samples(),
        wds.decode("rgb"),
        wds.to_tuple("jpg;png", "json"),
    )
    for image, _data in islice(dataset, 0, 3):
        assert (image.shape, image.dtype) == ((HEIGHT, WIDTH, 3), np.float32)


def test_augmentation_takes_pillow_images(photos):
    dataset = wds.DataPipeline(
        wds.SimpleShardList(photos),
        wds.tarfile_to_samples(),
        wds.decode("pil"),
        wds.to_tuple("jpg;png", "json"),
        wds.map_tuple(preproc, None),
    )
    for image, data in islice(dataset, 0, 3):
        assert (image.shape, image.dtype) == ((3, 24, 24), torch.float32)
        assert isinstance(data, dict)


@pytest.mark.parametrize("stage", [add_noise, functools.partial(add_noise, noise=0.1)])
def test_a_generator_function_is_a_stage_and_so_is_a_partial_of_one(photos, stage):
    dataset = wds.DataPipeline(
        wds.SimpleShardList(photos),
        wds.tarfile_to_samples(),
        wds.shuffle(100),
        wds.decode("torchrgb"),
        wds.to_tuple("jpg;png", "json"),
        stage,
    )
    image, _cls = next(iter(dataset))
    assert image.shape == (3, HEIGHT, WIDTH)


def batched_photos(photos, size):
    return wds.DataPipeline(
        wds.SimpleShardList(photos),
        wds.split_by_worker,
        wds.shuffle(50),
        wds.tarfile_to_samples(),
        wds.shuffle(100),
        wds.decode("pil"),
        wds.to_tuple("jpg;png", "json"),
        wds.map_tuple(preproc, None),
        wds.batched(size),
    )


def test_batches_are_made_in_the_data_set_of_each_worker(photos):
    dataset = batched_photos(photos, SAMPLES)
    dataloader = torch.utils.data.DataLoader(dataset, num_workers=4, batch_size=None)
    images, targets = next(iter(dataloader))
    assert images.shape == (SAMPLES, 3, 24, 24)
    assert len(targets) == SAMPLES


def test_a_pipeline_behind_a_loader_mixes_the_samples_of_the_workers(photos):
    dataset = batched_photos(photos, SAMPLES)
    dataloader = wds.DataPipeline(
        torch.utils.data.DataLoader(dataset, num_workers=2, batch_size=None),
        wds.unbatched(),
        wds.shuffle(500),
        wds.batched(SHARDS * SAMPLES),
    )
    images, targets = next(iter(dataloader))
    assert images.shape == (SHARDS * SAMPLES, 3, 24, 24)
    assert len({target["ImageID"] for target in targets}) == SHARDS * SAMPLES


def test_a_loader_over_resampled_shards_gets_its_epoch_from_with_epoch(photos):
    dataset = wds.DataPipeline(
        wds.ResampledShards(photos),
        wds.tarfile_to_samples(),
        wds.shuffle(100),
        wds.decode("pil"),
        wds.to_tuple("jpg;png", "json"),
        wds.map_tuple(preproc, None),
        wds.batched(8),
    )
    dataloader = wds.WebLoader(dataset, num_workers=3, batch_size=None).with_epoch(20)
    one_epoch = list(iter(dataloader))
    assert (len(one_epoch), one_epoch[0][0].shape) == (20, (8, 3, 24, 24))


def test_the_fluent_interface_shuffles_shards_behind_commands(photos):
    dataset = (
        wds.WebDataset(photos, shardshuffle=100)
        .shuffle(1000)
        .decode("pil")
        .to_tuple("jpg;png", "json")
        .map_tuple(preproc, None)
        .batched(8)
    )
    sample = next(iter(dataset))
    assert sample[0].shape == (8, 3, 24, 24)


def test_the_common_operations_that_the_notebook_lists(photos):
    dataset = (
        wds.WebDataset(photos)
        .rename(image="jpg;png")
        .map_dict(json=len)
        .map(lambda sample: {**sample, "bytes": len(sample["image"])})
        .pipe(lambda source: (sample for sample in source if sample["bytes"] > 0))
        .select(lambda sample: sample["json"] > 10)
    )
    assert len(list(dataset)) == SHARDS * SAMPLES


@pytest.mark.parametrize(
    ("handler", "count"),
    [
        (wds.ignore_and_continue, SHARDS * SAMPLES - 1),
        (wds.warn_and_continue, SHARDS * SAMPLES - 1),
        (wds.ignore_and_stop, 3),
        (wds.warn_and_stop, 3),
    ],
)
@pytest.mark.filterwarnings("ignore:ZeroDivisionError")
def test_the_handlers_that_the_notebook_lists(photos, handler, count):
    def fails(sample):
        return 1 // (sample["__key__"] != "0003")

    assert len(list(wds.WebDataset(photos).map(fails, handler=handler))) == count
    with pytest.raises(ZeroDivisionError):
        list(wds.WebDataset(photos).map(fails, handler=wds.reraise_exception))


def test_samples_are_kept_in_a_database_for_the_desktop(photos, tmp_path):
    kept = str(tmp_path / "samples.db")
    first = list(wds.WebDataset(photos).compose(wds.DBCache(kept, 10)))
    assert [sample["__key__"] for sample in first] == [f"{n:04x}" for n in range(10)]
    empty = wds.DataPipeline(list, wds.DBCache(kept, 10))
    assert [sample["jpg"] for sample in empty] == [sample["jpg"] for sample in first]


def test_a_copied_shard_is_read_as_it_is(photo_shard):
    dataset = wds.DataPipeline(wds.SimpleShardList(photo_shard), wds.tarfile_to_samples())
    text = repr(next(iter(dataset)))[:200]
    assert text.startswith(f"{{'__key__': '0000', '__url__': {photo_shard!r}"[:200])
