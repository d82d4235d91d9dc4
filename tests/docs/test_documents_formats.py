"""The rest of the documents' code: decoding, other formats, addresses, writing, lengths."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from itertools import islice

import numpy as np
import pytest
from PIL import Image

import penstock as wds

torch = pytest.importorskip("torch")

SHARDS, SAMPLES = 4, 6
HEIGHT, WIDTH = 40, 48


def imread(stream):
    return np.asarray(Image.open(stream))


# ── decoding ────────────────────────────────────────────────────────────────────────────────────


def test_a_decoding_function_of_ones_own_goes_through_a_processor(pages):
    def my_sample_decoder(sample):
        result = {"__key__": sample["__key__"]}
        for key, value in sample.items():
            if key == "png" or key.endswith(".png"):
                result[key] = imread(io.BytesIO(value))
        return result

    dataset = wds.WebDataset(pages)
    dataset = wds.Processor(wds.map, my_sample_decoder)(dataset)
    samples = list(dataset)
    assert len(samples) == SHARDS * SAMPLES
    assert samples[0]["png"].shape == (HEIGHT, WIDTH, 3)


def test_a_decoder_is_made_of_functions_and_applied_to_a_data_set(pages):
    def my_png_decoder(key, value):
        if not key.endswith(".png"):
            return None
        assert isinstance(value, bytes)
        return imread(io.BytesIO(value))

    dataset = wds.WebDataset(pages)
    dataset = wds.Decoder(my_png_decoder, wds.torch_video, wds.torch_audio)(dataset)
    sample = next(iter(dataset))
    assert sample["png"].shape == (HEIGHT, WIDTH, 3)
    assert sample["json"]["ImageID"] == "0000"


def test_handle_extension_decodes_one_extension(pages):
    def my_decoder(value):
        return imread(io.BytesIO(value))

    dataset = wds.WebDataset(pages)
    dataset = wds.Decoder(wds.handle_extension(".png", my_decoder))(dataset)
    assert next(iter(dataset))["png"].shape == (HEIGHT, WIDTH, 3)


def test_the_pipeline_of_version_0_1_written_out_in_processors(photo_shard):
    dataset = wds.ShardList(photo_shard)
    dataset = wds.Processor(dataset, wds.url_opener)
    dataset = wds.Processor(dataset, wds.tar_file_expander)
    dataset = wds.Processor(dataset, wds.group_by_keys)
    dataset = wds.Processor(dataset, wds.shuffle, 100)
    dataset = wds.Processor(dataset, wds.decode, "torchrgb")
    dataset = wds.Processor(dataset, wds.to_tuple, "png;jpg;jpeg", "json")
    images = [image for image, _ in dataset]
    assert [tuple(image.shape) for image in images] == [(3, HEIGHT, WIDTH)] * SAMPLES


def test_the_class_dataset_reads_like_web_dataset(pages):
    keys = [sample["__key__"] for sample in wds.Dataset(pages).decode("rgb8")]
    assert keys == [sample["__key__"] for sample in wds.WebDataset(pages)]


# ── records ─────────────────────────────────────────────────────────────────────────────────────


def test_a_file_of_cbor_records_is_a_shard(tmp_path, monkeypatch):
    cbor = pytest.importorskip("cbor2")  # the document's "cbor" is its forerunner, the same to use
    monkeypatch.chdir(tmp_path)
    with open("test.cbors", "wb") as stream:
        for i in np.linspace(-5.0, 5.0, 1000):
            cbor.dump((i, str(i)[-5:]), stream)

    dataset = wds.DataPipeline(
        wds.SimpleShardList("test.cbors"),
        wds.cbors_to_samples(),
    )
    data = list(iter(dataset))
    assert (len(data), data[0]) == (1000, [-5.0, "-5.0"])


def test_a_whole_sample_is_stored_as_one_messagepack_field(tmp_path):
    pytest.importorskip("msgpack")
    name = str(tmp_path / "small.tar")
    with wds.TarWriter(name) as writer:
        for number in range(3):
            sample = {"text": f"line {number}", "label": number}
            sample = {"__key__": str(number), "mp": sample}
            writer.write(sample)

    dataset = wds.WebDataset(name).decode()
    dataset = dataset.map(lambda sample: sample["mp"])
    assert [sample["label"] for sample in dataset] == [0, 1, 2]


def test_a_compressed_shard_is_recognised(tmp_path):
    with wds.TarWriter(str(tmp_path / "text.tgz")) as writer:
        writer.write({"__key__": "a", "txt": "hello"})
    assert (tmp_path / "text.tgz").read_bytes().startswith(b"\x1f\x8b")
    (sample,) = wds.WebDataset(str(tmp_path / "text.tgz")).decode()
    assert sample["txt"] == "hello"


# ── addresses ───────────────────────────────────────────────────────────────────────────────────


def test_a_pattern_and_a_list_are_the_same_shard_list():
    for kind in (wds.ShardList, wds.SimpleShardList):
        pattern = kind("dataset-{000..001}.tar")
        assert list(pattern) == list(kind(["dataset-000.tar", "dataset-001.tar"]))
        assert list(pattern) == [{"url": "dataset-000.tar"}, {"url": "dataset-001.tar"}]


def test_rewriting_turns_a_bucket_into_a_folder(photo_shard, monkeypatch):
    folder, _, name = photo_shard.rpartition("/")
    monkeypatch.setenv("WDS_REWRITE", f"gs://={folder}/")
    assert len(list(wds.WebDataset(f"gs://{name}"))) == SAMPLES


def test_rewriting_turns_a_bucket_into_a_command(photo_shard, monkeypatch):
    folder, _, name = photo_shard.rpartition("/")
    monkeypatch.setenv("WDS_REWRITE", f"gs://=pipe:cat {folder}/")
    assert len(list(wds.WebDataset(f"gs://{name}"))) == SAMPLES


def test_a_dash_is_standard_input(photo_shard):
    program = (
        "import penstock as wds\n"
        "dataset = wds.DataPipeline(wds.SimpleShardList('-'), wds.tarfile_to_samples())\n"
        "print(*[sample['__key__'] for sample in dataset])\n"
    )
    with open(photo_shard, "rb") as stream:
        done = subprocess.run([sys.executable, "-c", program], stdin=stream, capture_output=True)
    assert done.stdout.decode().split() == [f"{n:04x}" for n in range(SAMPLES)], done.stderr


@pytest.mark.parametrize("url", ["{path}", "file:{path}", "pipe:cat {path}"])
def test_url_opener_opens_paths_and_commands(photo_shard, url):
    (shard,) = wds.url_opener([{"url": url.format(path=photo_shard)}])
    with shard["stream"] as stream, open(photo_shard, "rb") as file:
        assert stream.read() == file.read()


# ── writing ─────────────────────────────────────────────────────────────────────────────────────


def test_tar_makes_a_shard(tmp_path):
    folder = tmp_path / "dataset"
    folder.mkdir()
    for name in ("a.txt", "b.txt", "a.cls", "b.cls"):
        (folder / name).write_text("1")
    command = ["tar", "--sort=name", "-cf", "dataset.tar", "dataset/"]
    subprocess.run(command, cwd=tmp_path, check=True)
    samples = list(wds.WebDataset(str(tmp_path / "dataset.tar")).decode())
    assert [sample["__key__"] for sample in samples] == ["dataset/a", "dataset/b"]
    assert samples[0]["cls"] == 1


def test_any_values_are_stored_as_pickles(tmp_path):
    name = str(tmp_path / "dest.tar")
    dataset = [(n, (torch.full((2,), n), {"label": n})) for n in range(3)]
    sink = wds.TarWriter(name)
    for index, (input, output) in dataset:
        sink.write(
            {
                "__key__": f"sample{index:06d}",
                "input.pyd": input,
                "output.pyd": output,
            }
        )
    sink.close()
    for number, sample in enumerate(wds.WebDataset(name).decode()):
        assert torch.equal(sample["input.pyd"], torch.full((2,), number))
        assert sample["output.pyd"] == {"label": number}


def test_images_and_classes_are_encoded_by_extension(tmp_path):
    name = str(tmp_path / "dest.tar")
    sink = wds.TarWriter(name)
    for index in range(3):
        input, output = np.full((HEIGHT, WIDTH, 3), index / 4, np.float32), index
        sink.write(
            {
                "__key__": f"sample{index:06d}",
                "input.jpg": input,
                "output.cls": output,
            }
        )
    sink.close()
    for index, sample in enumerate(wds.WebDataset(name).decode("rgb")):
        assert sample["output.cls"] == index
        np.testing.assert_allclose(sample["input.jpg"], index / 4, atol=0.01)


def test_bytes_are_stored_as_they_are_without_an_encoder(tmp_path):
    (tmp_path / "one.png").write_bytes(b"an image")
    name = str(tmp_path / "dest.tar")
    sink = wds.TarWriter(name, encoder=False)
    for basename in ["one"]:
        with open(tmp_path / f"{basename}.png", "rb") as stream:
            image = stream.read()
        sink.write({"__key__": basename, "input.png": image, "target.cls": b"7"})
    sink.close()
    (sample,) = wds.WebDataset(name).decode()
    assert (sample["input.png"], sample["target.cls"]) == (b"an image", 7)


def extract_class(data):
    return 0


def to_tensor(image):
    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1).astype(np.float32))


def augment_wds(input, output, maxcount=999999999):
    src = wds.DataPipeline(
        wds.SimpleShardList(input),
        wds.tarfile_to_samples(),
        wds.decode("pil"),
        wds.to_tuple("__key__", "jpg;png", "json"),
        wds.map_tuple(None, to_tensor, None),
    )
    with wds.TarWriter(output) as dst:
        for key, image, data in islice(src, 1, maxcount):
            image = image.numpy().transpose(1, 2, 0)
            image -= np.amin(image)
            image /= np.amax(image)
            sample = {"__key__": key, "png": image, "cls": extract_class(data)}
            dst.write(sample)


def test_a_shard_is_augmented_into_another(photo_shard, tmp_path):
    output = str(tmp_path / "_temp.tar")
    augment_wds(f"pipe:cat {photo_shard} || true", output, maxcount=5)
    with tarfile.open(output) as tar:
        names = tar.getnames()
    assert names == [f"{n:04x}.{ext}" for n in range(1, 5) for ext in ("cls", "png")]


def test_many_shards_are_augmented_one_by_one(pages, tmp_path):
    inputs = [shard["url"] for shard in wds.SimpleShardList(pages)]
    outputs = [str(tmp_path / f"augmented-{number}.tar") for number in range(len(inputs))]
    for pair in zip(inputs, outputs):
        augment_wds(*pair)
    written = wds.WebDataset(str(tmp_path / "augmented-{0..3}.tar"))
    assert len(list(written)) == SHARDS * (SAMPLES - 1)


# ── lengths ─────────────────────────────────────────────────────────────────────────────────────


def test_a_data_set_has_no_length_of_its_own(pages):
    dataset = wds.WebDataset(pages)
    assert not hasattr(dataset, "__len__")
    with pytest.raises(TypeError):
        len(dataset)


def test_epoch_and_length_are_combined(pages):
    dataset = wds.WebDataset(pages).with_epoch(10).with_length(10)
    assert len(dataset) == 10
    assert len(list(dataset)) == 10
    assert isinstance(dataset, torch.utils.data.IterableDataset)


# ── speech ──────────────────────────────────────────────────────────────────────────────────────


def test_three_dots_in_braces_and_the_older_argument_names(pages):
    pattern = pages.replace("{000000..000003}", "0000{00...03}")
    dataset = wds.WebDataset(pattern).decode().shuffle(size=1000).batch(batchsize=10)
    assert [len(batch["__key__"]) for batch in dataset] == [10, 10, 4]


def test_utterances_are_written_as_tensors_and_read_in_batches_by_length(tmp_path):
    uttids = [f"utt{number}" for number in range(25)]
    with wds.ShardWriter(f"{tmp_path}/shard-%06d.tar", maxcount=10, verbose=0) as writer:
        for number, uttid in enumerate(uttids):
            example = {
                "__key__": uttid,
                "audio.pth": torch.arange(10.0 + number % 7),
                "text": f"words of {uttid}",
            }
            writer.write(example)

    def batched_by_length(source, len_key, sampler_kwargs):
        """Stands in for the dynamic batches: as many samples as fit a number of elements."""
        batch = []
        for sample in source:
            batch.append(sample)
            if sum(len(s[len_key]) for s in batch) >= sampler_kwargs["target_batch_numel"]:
                yield batch
                batch = []

    dataset = (
        wds.WebDataset(str(tmp_path) + "/shard-0000{00..02}.tar")
        .decode()
        .rename(id="__key__", signal="audio.pth", text="text")
        .repeat()
        .then(batched_by_length, len_key="signal", sampler_kwargs={"target_batch_numel": 45.0})
    )
    batches = list(islice(dataset, 20))
    samples = [sample for batch in batches for sample in batch]
    assert samples[26]["id"] == "utt1"
    assert samples[26]["text"] == "words of utt1"
    assert torch.equal(samples[26]["signal"], torch.arange(11.0))
