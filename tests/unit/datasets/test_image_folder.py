"""ImageFolder behaves as torchvision's documentation says, and is a source of pipelines."""

from __future__ import annotations

import json
import os
import pickle

import numpy as np
import pytest
from PIL import Image

import penstock as wds
from penstock.errors import DecodingError, ManifestError, PipelineError, StorageError, UnsafeError


@pytest.fixture
def root(tmp_path):
    """A folder as in torchvision's documentation, with files that are no images among them."""
    made = tmp_path / "root"
    files = ["dog/xxx.png", "dog/xxy.JPEG", "dog/b/xxz.png", "cat/123.png", "cat/nsdf3.webp"]
    for number, name in enumerate([*files, "cat/asd932_.png", "Ant/1.ppm"]):
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        ending = path.suffix[1:].lower()
        Image.new("RGB", (5 + number, 4), (number, 100, 0)).save(path, ending)
    (made / "cat" / "notes.txt").write_text("no image")
    (made / "readme.png").write_text("not in a class")
    return made


def test_attributes_are_those_of_torchvision(root):
    dataset = wds.ImageFolder(root)
    assert dataset.classes == ["Ant", "cat", "dog"]
    assert dataset.class_to_idx == {"Ant": 0, "cat": 1, "dog": 2}
    names = ["Ant/1.ppm", "cat/123.png", "cat/asd932_.png", "cat/nsdf3.webp"]
    names += ["dog/xxx.png", "dog/xxy.JPEG", "dog/b/xxz.png"]
    targets = [0, 1, 1, 1, 2, 2, 2]
    assert dataset.samples == [(str(root / n), t) for n, t in zip(names, targets)]
    assert dataset.imgs == dataset.samples
    assert dataset.targets == targets
    assert len(dataset) == 7
    assert dataset.root == str(root)
    assert (dataset.transform, dataset.target_transform) == (None, None)
    assert ".webp" in dataset.extensions
    assert callable(dataset.loader)
    assert repr(dataset).splitlines()[:2] == [
        "Dataset ImageFolder",
        "    Number of datapoints: 7",
    ]


def test_items_are_images_in_rgb_and_class_indexes(root):
    image, target = wds.ImageFolder(root)[1]
    assert (image.mode, image.size, target) == ("RGB", (8, 4), 1)
    assert wds.ImageFolder(root)[-1][1] == 2
    with pytest.raises(IndexError):
        wds.ImageFolder(root)[7]


def test_transforms_are_applied(root):
    dataset = wds.ImageFolder(root, transform=np.asarray, target_transform=lambda t: t + 10)
    image, target = dataset[1]
    assert (image.shape, target) == ((4, 8, 3), 11)


def test_a_loader_gets_the_path(root):
    dataset = wds.ImageFolder(str(root), loader=os.path.basename)
    assert dataset[0] == ("1.ppm", 0)


def test_valid_files_may_be_chosen(root):
    dataset = wds.ImageFolder(root, is_valid_file=lambda path: not path.endswith(".webp"))
    assert str(root / "cat" / "notes.txt") in [path for path, _ in dataset.samples]
    assert len(dataset) == 7
    assert dataset.extensions is None


def test_a_class_without_images_is_an_error(root):
    (root / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty"):
        wds.ImageFolder(root)


def test_a_class_without_images_is_allowed_on_request(root):
    (root / "empty").mkdir()
    dataset = wds.ImageFolder(root, allow_empty=True)
    assert dataset.classes == ["Ant", "cat", "dog", "empty"]
    assert dataset.class_to_idx["empty"] == 3
    assert 3 not in dataset.targets
    assert len(dataset) == 7


def test_folders_and_files_are_found_through_links(root, tmp_path):
    (root / "elk").symlink_to(root / "dog", target_is_directory=True)
    (root / "cat" / "linked").symlink_to(root / "dog" / "b", target_is_directory=True)
    dataset = wds.ImageFolder(root)
    assert dataset.classes == ["Ant", "cat", "dog", "elk"]
    assert str(root / "cat" / "linked" / "xxz.png") in [path for path, _ in dataset.samples]
    assert dataset.targets.count(3) == dataset.targets.count(2)


def test_transforms_are_one_function_of_image_and_target(root):
    assert wds.ImageFolder(root).transforms is None
    dataset = wds.ImageFolder(root, transform=np.asarray, target_transform=str)
    image, target = dataset.transforms(Image.new("RGB", (2, 3)), 7)
    assert (image.shape, target) == ((3, 2, 3), "7")
    assert repr(dataset).splitlines()[:4] == [
        "Dataset ImageFolder",
        "    Number of datapoints: 7",
        f"    Root location: {root}",
        "    StandardTransform",
    ]
    assert repr(dataset).splitlines()[4].startswith("    Transform: <built-in function asarray")
    only = wds.ImageFolder(root, target_transform=str)
    assert only.transforms("image", 1) == ("image", "1")


def test_a_subclass_may_choose_the_files(root):
    class First(wds.ImageFolder):
        @staticmethod
        def make_dataset(directory, class_to_idx, *arguments, **options):
            made = wds.ImageFolder.make_dataset(directory, class_to_idx, *arguments, **options)
            return made[:2]

    assert len(First(root)) == len(First(root).targets) == 2
    make = wds.ImageFolder.make_dataset
    assert len(make(root, {"cat": 5}, extensions=".png")) == 2
    with pytest.raises(ValueError, match="one of the two"):
        make(root, {"cat": 5})


def test_a_folder_without_classes_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError, match="class folder"):
        wds.ImageFolder(tmp_path)
    with pytest.raises(FileNotFoundError):
        wds.ImageFolder(tmp_path / "none")


def test_a_subclass_may_choose_the_classes(root):
    class Pets(wds.ImageFolder):
        def find_classes(self, directory):
            return ["cat", "dog"], {"cat": 0, "dog": 1}

    dataset = Pets(root)
    assert (len(dataset), dataset.targets[0]) == (6, 0)


def test_damaged_images_name_the_file(root):
    (root / "cat" / "123.png").write_bytes(b"no image")
    with pytest.raises(DecodingError, match=r"cat/123\.png"):
        wds.ImageFolder(root)[1]
    (root / "cat" / "123.png").unlink()
    dataset = wds.ImageFolder(root)
    (root / "cat" / "asd932_.png").unlink()
    with pytest.raises(StorageError, match=r"asd932_\.png"):
        dataset[1]


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_labels_may_come_from_a_file(root, tmp_path, kind):
    rows = [("dog/xxx.png", "wolf"), ("cat/123.png", "bear"), ("dog/b/xxz.png", "wolf")]
    path = tmp_path / f"labels.{kind}"
    if kind == "csv":
        path.write_text("label,file\n" + "".join(f"{label},{file}\n" for file, label in rows))
    else:
        lines = [json.dumps({"file": file, "label": label}) for file, label in rows]
        path.write_text("\n".join(lines))
    dataset = wds.ImageFolder(root, labels=path)
    assert dataset.classes == ["bear", "wolf"]
    assert dataset.samples == [(str(root / f), int(label == "wolf")) for f, label in rows]
    assert dataset[1][1] == 0


def test_labels_without_a_row_or_a_label_are_errors(root, tmp_path):
    (tmp_path / "l.csv").write_text("file,label\n")
    with pytest.raises(ManifestError, match=r"l\.csv name no image"):
        wds.ImageFolder(root, labels=tmp_path / "l.csv")
    assert len(wds.ImageFolder(root, labels=tmp_path / "l.csv", allow_empty=True)) == 0
    (tmp_path / "l.csv").write_text("file,label\ncat/123.png,\n")
    with pytest.raises(ManifestError, match=r"l\.csv, line 2: each row needs a value"):
        wds.ImageFolder(root, labels=tmp_path / "l.csv")


def test_numbers_below_zero_and_other_digits_are_sorted(root, tmp_path):
    names = ["cat/123.png", "dog/xxx.png", "Ant/1.ppm"]
    for labels, classes in (
        (["10", "-1", "2"], ["-1", "2", "10"]),
        (["²", "10", "2"], ["10", "2", "²"]),
    ):
        rows = [f"{name},{label}" for name, label in zip(names, labels)]
        (tmp_path / "l.csv").write_text("\n".join(["file,label", *rows]), encoding="utf-8")
        assert wds.ImageFolder(root, labels=tmp_path / "l.csv").classes == classes


def test_numbers_as_labels_are_sorted_as_numbers(root, tmp_path):
    lines = ["cat/123.png,10", "dog/xxx.png,9", "Ant/1.ppm,2"]
    (tmp_path / "l.csv").write_text("\n".join(["file,label", *lines]))
    dataset = wds.ImageFolder(root, labels=tmp_path / "l.csv")
    assert (dataset.classes, dataset.targets) == (["2", "9", "10"], [2, 1, 0])


@pytest.mark.parametrize("name", ["../secret.png", "/etc/hostname", "cat/../../x.png"])
def test_labels_cannot_leave_the_folder(root, tmp_path, name):
    (tmp_path / "l.jsonl").write_text(json.dumps({"file": name, "label": "a"}))
    with pytest.raises(UnsafeError, match="line 1"):
        wds.ImageFolder(root, labels=tmp_path / "l.jsonl")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (["cat/123.png", "cat/gone.png"], r"line 3: there is no file 'cat/gone\.png'"),
        (["cat/123.png", "cat"], "line 3: there is no file 'cat'"),
        (["cat/123.png", "none/1.png"], "line 3: there is no file"),
        (["cat/123.png", "dog/xxx.png", "cat/123.png"], "line 4: .* is in line 2 already"),
        (["cat/123.png", "cat/./123.png"], "line 3: .* is in line 2 already"),
    ],
)
def test_labels_of_missing_and_repeated_files_are_errors(root, tmp_path, rows, message):
    path = tmp_path / "l.csv"
    path.write_text("file,label\n" + "".join(f"{row},a\n" for row in rows))
    with pytest.raises(ManifestError, match=rf"l\.csv, {message}"):
        wds.ImageFolder(root, labels=path)


@pytest.mark.parametrize("text", ["[1]\n", '{"file": "a"}\n', "{\n", '{"file": 7, "label": 1}'])
def test_rows_that_are_no_labels_are_errors(root, tmp_path, text):
    (tmp_path / "l.jsonl").write_text(text)
    with pytest.raises(ManifestError, match=r"l\.jsonl"):
        wds.ImageFolder(root, labels=tmp_path / "l.jsonl")


def test_a_raw_sample_is_what_a_shard_would_hold(root):
    dataset = wds.ImageFolder(root)
    data = (root / "dog" / "xxy.JPEG").read_bytes()
    assert dataset.sample(5) == {"__key__": "dog/xxy", "jpeg": data, "cls": b"2"}


def test_a_pipeline_has_the_items_or_raw_samples(root):
    dataset = wds.ImageFolder(root, transform=np.asarray)
    items = list(dataset.pipeline())
    assert [(image.shape, target) for image, target in items] == [
        (dataset[i][0].shape, dataset[i][1]) for i in range(7)
    ]
    raw = dataset.pipeline(raw=True).decode("rgb8").to_tuple("png;webp;jpeg;ppm", "cls")
    for (image, target), (wanted, cls) in zip(raw, items, strict=True):
        assert target == cls
        assert (image == wanted).all()
    assert len(dataset.pipeline().batched(2)) == 4


def test_every_epoch_has_its_own_order(root):
    pipeline = wds.ImageFolder(root).pipeline(raw=True, shuffle=True).map(lambda s: s["__key__"])
    first, second = list(pipeline), list(pipeline)
    assert first != second
    assert sorted(first) == sorted(second)
    assert len(set(first)) == 7


def test_a_loader_takes_the_dataset_itself(root):
    torch = pytest.importorskip("torch")
    dataset = wds.ImageFolder(root, transform=lambda image: np.array(image).mean())
    loader = wds.WebLoader(dataset, batch_size=4, num_workers=0)
    assert [len(targets) for _, targets in loader] == [4, 3]
    both = dataset + dataset
    assert isinstance(both, torch.utils.data.ConcatDataset)
    assert len(both) == 14
    with pytest.raises(PipelineError, match=r"dataset\.pipeline\(\)"):
        wds.WebLoader(dataset, engine="threads")
    with pytest.raises(PipelineError, match=r"MapSamples\(dataset\)"):
        list(wds.DataPipeline(dataset))


def test_threads_and_processes_give_the_same_items(root):
    pytest.importorskip("torch")
    pipeline = wds.ImageFolder(root).pipeline(raw=True)
    wanted = [sample["__key__"] for sample in pipeline]
    for engine in ("threads", "processes"):
        options = {"batch_size": None, "num_workers": 2, "engine": engine}
        found = list(wds.WebLoader(wds.ImageFolder(root).pipeline(raw=True), **options))
        assert sorted(sample["__key__"] for sample in found) == sorted(wanted)


def test_a_failing_image_is_skipped_by_a_handler(root):
    (root / "cat" / "123.png").write_bytes(b"no image")
    pipeline = wds.ImageFolder(root).pipeline(raw=True)
    decoded = pipeline.decode("rgb8", handler=wds.ignore_and_continue)
    assert len(list(decoded)) == 6
    with pytest.raises(DecodingError, match=r"cat/123"):
        list(wds.ImageFolder(root).pipeline())


def test_the_files_may_be_kept_in_memory(root):
    plain, kept = wds.ImageFolder(root), wds.ImageFolder(root, memory="ram")
    wanted = [plain.sample(i) for i in range(7)]
    assert [kept.sample(i) for i in range(7)] == wanted
    for path, _ in plain.samples:
        os.unlink(path)
    assert [kept.sample(i - 7) for i in range(7)] == wanted
    assert kept[1][0].size == (8, 4)
    with pytest.raises(PipelineError, match="loader"):
        wds.ImageFolder(root, loader=str, memory="ram")


def test_it_survives_a_pickle(root):
    dataset = pickle.loads(pickle.dumps(wds.ImageFolder(root, memory="ram")))
    assert dataset[0][0].size == wds.ImageFolder(root)[0][0].size


def test_map_samples_takes_any_sequence():
    assert list(wds.DataPipeline(wds.MapSamples(range(4)), wds.batched(2, None))) == [
        [0, 1],
        [2, 3],
    ]
    with pytest.raises(PipelineError, match="generator"):
        wds.MapSamples(n for n in range(3))


def test_map_samples_protects_the_dataset_from_changes():
    rows = [{"__key__": "a", "cls": 1}]
    (found,) = wds.DataPipeline(wds.MapSamples(rows)).map_dict(cls=str)
    assert found["cls"] == "1"
    assert rows == [{"__key__": "a", "cls": 1}]


def test_a_state_of_other_images_is_refused(root):
    pipeline = wds.ImageFolder(root).pipeline(raw=True)
    next(iter(pipeline))
    state = pipeline.state_dict()
    (root / "cat" / "123.png").unlink()
    with pytest.raises(wds.StateError):
        wds.ImageFolder(root).pipeline(raw=True).load_state_dict(state)


def test_hidden_files_and_folders_are_left_out(root):
    before = wds.ImageFolder(root)
    for name in (".ipynb_checkpoints/1.jpg", "cat/.ipynb_checkpoints/2.jpg", "dog/._xxx.png"):
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"hidden")
    dataset = wds.ImageFolder(root)
    assert (dataset.classes, dataset.samples) == (before.classes, before.samples)
    everything = wds.ImageFolder(root, is_valid_file=lambda path: True)
    assert not [path for path, _ in everything.samples if "/." in path]
