"""``penstock create --from images`` and ``ImageFolder`` agree on files, keys and labels."""

from __future__ import annotations

import io
import json
import random

import numpy as np
import pytest
from PIL import Image
from tool_shards import picture

import penstock as wds
from penstock import tools
from penstock.codecs.image_files import IMG_EXTENSIONS
from penstock.errors import PipelineError, SampleError


def fill(root, names):
    for number, name in enumerate(names):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(picture(number))
    return root


def made(root, out, **options):
    done = tools.create(root, out, kind="images", **options)
    samples = wds.WebDataset(str(out), shardshuffle=False, empty_check=False)
    return done, [
        {k: v for k, v in s.items() if k[:3] != "__u" and k[:3] != "__l"} for s in samples
    ]


def test_a_name_with_dots_is_an_image_like_any_other(tmp_path):
    root = fill(tmp_path / "pets", ["cat/photo.v2.jpeg", "dog/a.b.c.JPG", "dog/n01.v1/x.png"])
    done, samples = made(root, tmp_path / "x.tar")
    assert done.rejected == 0
    assert [(s["__key__"], s["cls"]) for s in samples] == [
        ("cat/photo_v2", b"0"),
        ("dog/a_b_c", b"1"),
        ("dog/n01.v1/x", b"1"),
    ]
    assert [sorted(s)[-1] for s in samples] == ["jpeg", "jpg", "png"]


def test_hidden_folders_do_not_shift_labels(tmp_path):
    names = ["cat/1.jpg", ".ipynb_checkpoints/1.jpg", "dog/.ipynb_checkpoints/1.jpg", "dog/2.jpg"]
    root = fill(tmp_path / "pets", [*names, "dog/._2.jpg"])
    done, samples = made(root, tmp_path / "x.tar")
    assert [(s["__key__"], s["cls"]) for s in samples] == [("cat/1", b"0"), ("dog/2", b"1")]
    assert json.loads((tmp_path / "classes.json").read_text()) == ["cat", "dog"]
    assert len(done.rejected_files) == 3
    assert {reason.partition(":")[0] for _, reason in done.rejected_files} == {"it is hidden"}


def test_class_folders_without_images_are_refused_as_image_folder_does(tmp_path):
    root = fill(tmp_path / "pets", ["cat/1.jpg", "dog/2.jpg"])
    (root / "empty").mkdir()
    (root / "bird/deep").mkdir(parents=True)
    (root / "bird/deep/notes.txt").write_text("no image")
    with pytest.raises(FileNotFoundError, match="for the classes bird, empty"):
        wds.ImageFolder(root)
    with pytest.raises(SampleError, match=r"pets/bird, .*pets/empty, .*remove the folders"):
        made(root, tmp_path / "x.tar")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["pets"]
    (root / "empty").rename(root / ".empty")
    fill(root, ["bird/deep/3.png"])
    _, samples = made(root, tmp_path / "x.tar")
    assert [sample["cls"] for sample in samples] == [b"0", b"1", b"2"]


def test_images_below_linked_folders_are_found_once_for_each_link(tmp_path):
    root = fill(tmp_path / "pets", ["cat/1.jpg", "dog/old/2.jpg"])
    other = fill(tmp_path / "more", ["deep/3.jpg"])
    (root / "ant").symlink_to(other)
    (root / "cat/more").symlink_to(other)
    (root / "cat/more/deep/up").symlink_to(other)
    (root / "dog/old/all").symlink_to(root)
    (root / "dog/self").symlink_to(".")
    done, samples = made(root, tmp_path / "x.tar")
    folder = wds.ImageFolder(root)
    assert samples == [folder.sample(n) for n in range(len(folder))]
    keys = ["ant/deep/3", "cat/1", "cat/more/deep/3", "dog/old/2"]
    assert [sample["__key__"] for sample in samples] == keys
    loops = ["ant/deep/up", "cat/more/deep/up", "dog/old/all", "dog/self"]
    assert sorted(done.rejected_files) == [
        (name, "it is a link to a folder above it") for name in loops
    ]
    done = tools.create(root, tmp_path / "y.tar", kind="folder")
    assert (done.samples, sorted(name for name, _ in done.rejected_files)) == (4, loops)


@pytest.mark.parametrize("output", ["pets/shards/new/x-%d.tar", "pets/x-%d.tar"])
def test_the_folder_of_the_shards_is_no_class(tmp_path, output):
    root = fill(tmp_path / "pets", ["cat/1.jpg", "dog/2.jpg"])
    for _ in range(2):
        assert tools.create(root, tmp_path / output, kind="images").samples == 2


@pytest.mark.parametrize("seed", range(8))
def test_a_shard_has_the_raw_samples_of_the_folder(tmp_path, seed):
    draw = random.Random(seed)
    parts = ["a", "B", "x.y", ".hid", "__m", "c d", "é", "1"]
    ends = [*IMG_EXTENSIONS, ".JPG", ".Png", ".txt", ".gif", "", ".jpg.txt", ".jpg~"]
    names = {
        "/".join(draw.choices(parts, k=draw.randint(2, 3))) + f"{n}{draw.choice(ends)}"
        for n in range(30)
    }
    names |= {f"{name.partition('/')[0]}/image.png" for name in names}  # a class needs one
    root = fill(tmp_path / "root", sorted(names))
    _, samples = made(root, tmp_path / "x.tar")
    dataset = wds.ImageFolder(root)
    wanted = [dataset.sample(n) for n in range(len(dataset))]
    assert sorted(s["__key__"] for s in samples) == sorted(s["__key__"] for s in wanted)
    by_key = {s["__key__"]: s for s in samples}
    for sample in wanted:
        assert by_key[sample["__key__"]].keys() == sample.keys()
        assert by_key[sample["__key__"]]["cls"] == sample["cls"]
    raw = wds.write_shards(dataset, str(tmp_path / "raw-%d.tar"), key=None)
    keys = [s["__key__"] for s in wds.WebDataset(raw, shardshuffle=False, empty_check=False)]
    assert keys == [s["__key__"] for s in wanted]


@pytest.mark.parametrize("names", [["c/p.v2.jpg", "c/p_v2.jpg"], ["c/1.jpg", "c/1.png"]])
def test_two_images_with_one_key_are_an_error_that_names_both(tmp_path, names):
    root = fill(tmp_path / "pets", names)
    with pytest.raises(SampleError, match="two images would be the sample") as caught:
        made(root, tmp_path / "x.tar")
    assert all(name in str(caught.value) for name in names)


def mixed(root):
    """One image each as jpg, jpeg and png."""
    for number, ending in enumerate(("jpg", "jpeg", "png")):
        path = root / "cat" / f"{number}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 100, 0)).save(path)
    return root


@pytest.mark.parametrize(("name", "field"), [("image", "image.jpg"), ("jpg", "jpg")])
def test_images_of_several_formats_can_be_one_field(shell, tmp_path, name, field):
    root = mixed(tmp_path / "pets")
    done = shell(f"penstock create pets --from images --as {name} -o x.tar")
    assert done.returncode == 0, done.stderr
    files = sorted((root / "cat").iterdir())
    decoded = wds.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False).decode("rgb8")
    pictures = [picture for picture, _ in decoded.to_tuple(field, "cls")]
    assert all(
        np.array_equal(picture, np.asarray(Image.open(path)))
        for picture, path in zip(pictures, files, strict=True)
    )
    assert len(list(decoded.batched(3))) == 1
    assert name == "jpg" or not [*tools.verify(str(tmp_path / "x.tar"), decode=True)]


def test_one_field_decodes_in_webdataset(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    mixed(tmp_path / "pets")
    made(tmp_path / "pets", tmp_path / "x.tar", field="image")
    decoded = webdataset.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False).decode("pil")
    assert [sample["image.jpg"].size for sample in decoded] == [(8, 8)] * 3


def test_one_field_is_for_images_only(tmp_path):
    with pytest.raises(PipelineError, match="--as is for images"):
        tools.create(tmp_path, tmp_path / "x.tar", field="image")


@pytest.mark.parametrize("read", [lambda p: p.to_tuple("jpg", "cls"), lambda p: p.batched(3)])
def test_the_error_for_mixed_formats_names_the_remedy(tmp_path, read):
    made(mixed(tmp_path / "pets"), tmp_path / "x.tar")
    dataset = wds.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False).decode("rgb8")
    with pytest.raises(SampleError, match=r'rename\(image="jpg;jpeg;png"\)'):
        list(read(dataset))
    renamed = dataset.rename(image="jpg;jpeg;png")
    assert len(list(renamed.to_tuple("image", "cls"))) == 3


def test_other_missing_fields_are_not_about_images(tmp_path):
    data = io.BytesIO()
    with wds.TarWriter(data) as sink:
        sink.write({"__key__": "a", "mask.png": b"x", "txt": "t"})
    (tmp_path / "x.tar").write_bytes(data.getvalue())
    for field in ("json", "jpg"):
        with pytest.raises(SampleError) as caught:
            list(wds.WebDataset(str(tmp_path / "x.tar"), shardshuffle=False).to_tuple(field))
        assert "rename" not in str(caught.value)


@pytest.mark.parametrize("folder", ["__pycache__", "__x__"])
def test_the_reason_why_a_class_folder_has_no_image_is_told(tmp_path, folder):
    root = fill(tmp_path / "pets", ["cat/a.jpg", f"{folder}/b.jpg", f"{folder}/c.txt"])
    with pytest.raises(SampleError, match=rf"'{folder}/b.jpg' was rejected: .*__"):
        tools.create(root, tmp_path / "x.tar", kind="images")


def test_the_field_of_images_is_not_empty(tmp_path):
    root = fill(tmp_path / "pets", ["cat/a.jpg"])
    with pytest.raises(PipelineError, match="--as is the name of a field"):
        tools.create(root, tmp_path / "x.tar", kind="images", field="")
