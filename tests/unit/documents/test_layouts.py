"""The same documents in every layout, and conversion between them."""

from __future__ import annotations

import itertools
import json
import tarfile

import made
import pytest

import penstock as wds
from penstock.cli import main
from penstock.documents import LAYOUTS, ImagePiece, TextPiece, convert, documents
from penstock.errors import PipelineError, SampleError, UnsafeError, WriteError


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source")
    lines, images, by_url = made.write_source(folder)
    shards = {
        to: convert(lines, str(folder / f"{to}-%03d.tar"), to=to, images=images, maxcount=80)
        for to in LAYOUTS
    }
    return lines, images, by_url, shards


def read(urls, stored, **options):
    group = "dashed" if stored == "dashed" else "key"
    return list(wds.WebDataset(urls, group=group).documents(**options))


def options_of(layout, by_url):
    return {"media": by_url} if layout == "obelics" else {}


def test_two_hundred_documents_have_equal_pieces_in_all_layouts(source):
    _, _, by_url, shards = source
    wanted = read(shards["dashed"], "dashed")
    assert len(wanted) == 200
    assert {len(document.images) for document in wanted} == {0, 1, 2, 3, 4}
    for layout in LAYOUTS:
        assert len(shards[layout]) == 3
        found = read(shards[layout], layout, **options_of(layout, by_url))
        named = read(shards[layout], layout, layout=layout, **options_of(layout, by_url))
        for one, other, third in zip(wanted, found, named, strict=True):
            assert (one.key, one.pieces) == (other.key, other.pieces)
            assert other.pieces == third.pieces


def test_pieces_are_those_of_the_source(source):
    lines, _, by_url, shards = source
    found = read(shards["dashed"], "dashed")
    with open(lines) as file:
        rows = file.readlines()
    for line, document in zip(rows, found, strict=True):
        data = json.loads(line)
        assert document.texts == data["text_list"]
        assert document.meta == data
        wanted = sorted(data["image_info"], key=lambda info: info["matched_text_index"])
        assert [image.name for image in document.images] == [i["image_name"] for i in wanted]
        for image, info in zip(document.images, wanted, strict=True):
            assert image.data == by_url[info["raw_url"]]
            at = document.pieces.index(image)
            text = next(p for p in document.pieces[at:] if isinstance(p, TextPiece))
            assert text.text == data["text_list"][info["matched_text_index"]]


@pytest.mark.parametrize("start", ["base64", "members", "markers", "obelics"])
def test_documents_survive_the_way_from_any_layout_to_any_other(source, tmp_path, start):
    _, _, by_url, shards = source
    wanted = [document.pieces for document in read(shards["dashed"], "dashed")]
    for to in LAYOUTS:
        made_urls = convert(shards[start], str(tmp_path / f"{to}-%d.tar"), to=to, images=by_url)
        found = read(made_urls, to, **options_of(to, by_url))
        assert [document.pieces for document in found] == wanted


def test_dashed_shards_have_each_json_before_its_images(source):
    with tarfile.open(source[3]["dashed"][0]) as tar:
        names = tar.getnames()
    assert names[0] == "000000000.json"
    documents = [name for name in names if name.endswith(".json")]
    assert documents == [f"{n:09d}.json" for n in range(80)]
    for before, name in itertools.pairwise(names):
        if not name.endswith(".json"):
            assert before[:9] == name[:9]
            assert name[9] == "-"


def test_images_named_by_url_are_not_fetched(source):
    document = next(d for d in read(source[3]["obelics"], "obelics") if d.images)
    image = document.images[0]
    assert image.data is None
    assert image.url.startswith("https://example.org/")
    with pytest.raises(SampleError, match="media="):
        image.decode()


def test_media_may_be_an_indexed_set(source, tmp_path):
    _, _, by_url, shards = source
    with wds.TarWriter(str(tmp_path / "media.tar"), check=False) as sink:
        for url, data in by_url.items():
            stem = url.rpartition("/")[2].partition("?")[0].rpartition(".")[0]
            sink.write({"__key__": stem.replace(".", "_"), "jpg": data})
    media = wds.IndexedDataset(str(tmp_path / "media.tar"))
    wanted = [d.pieces for d in read(shards["obelics"], "obelics", media=by_url)]
    found = read(shards["obelics"], "obelics", media=media, missing="drop_image")
    for one, document in zip(wanted, found):
        undotted = [p for p in one if isinstance(p, TextPiece) or p.name.count(".") == 1]
        assert document.pieces == undotted


def test_an_image_after_the_last_text_keeps_its_place(tmp_path):
    data = {"images": [None, "a.jpg"], "texts": ["T", None]}
    image = made.picture()
    members = [("k.json", json.dumps(data).encode()), ("k.a.jpg", image)]
    url = made.write_members(tmp_path / "x.tar", members)
    wanted = [TextPiece("T"), ImagePiece("a.jpg", image)]
    for to in LAYOUTS:
        urls = convert(url, str(tmp_path / f"{to}-%d.tar"), to=to)
        (document,) = read(urls, to, **options_of(to, {"a.jpg": image}))
        assert document.pieces == wanted


def test_convert_leaves_images_out_that_are_not_in_the_folder(tmp_path, caplog):
    lines, images, _ = made.write_source(tmp_path, 10)
    gone = sorted((tmp_path / "images").iterdir())[:3]
    for path in gone:
        path.unlink()
    urls = convert(lines, str(tmp_path / "x-%d.tar"), to="dashed", images=images)
    assert "3 images were not found" in caplog.text
    found = read(urls, "dashed", assign="optimal")
    names = {path.name for path in gone}
    assert sum(len(d.meta["image_info"]) for d in found) == len(list(tmp_path.glob("images/*")))
    assert not names & {info["image_name"] for d in found for info in d.meta["image_info"]}


@pytest.mark.parametrize("name", ["../secret.jpg", "/etc/hostname", "link.jpg", "a\0b.jpg"])
def test_convert_refuses_names_that_leave_the_folder(tmp_path, name):
    (tmp_path / "images").mkdir()
    (tmp_path / "secret.jpg").write_bytes(made.picture())
    (tmp_path / "images" / "link.jpg").symlink_to(tmp_path / "secret.jpg")
    data = {"text_list": ["A"], "image_info": [{"image_name": name, "matched_text_index": 0}]}
    (tmp_path / "x.jsonl").write_text(json.dumps(data) + "\n")
    with pytest.raises(UnsafeError):
        convert(
            str(tmp_path / "x.jsonl"),
            str(tmp_path / "x-%d.tar"),
            to="base64",
            images=tmp_path / "images",
        )
    assert not list(tmp_path.glob("*.tar"))


@pytest.mark.parametrize("name", ["../a.jpg", "a/b.jpg", "a\\b.jpg", "a\nb.jpg", ".jpg"])
def test_convert_writes_no_member_under_a_name_that_leaves_the_folder(tmp_path, name):
    info = {"image_name": name, "matched_text_index": 0, "image_base64": made.encoded(b"1")}
    data = {"text_list": ["A"], "image_info": [info]}
    url = made.write_members(tmp_path / "x.tar", [("k.json", json.dumps(data).encode())])
    for to in ("dashed", "members"):
        with pytest.raises(UnsafeError, match="stored under the name"):
            convert(url, str(tmp_path / f"{to}-%d.tar"), to=to)


def test_convert_refuses_two_images_of_one_name(tmp_path):
    infos = [
        {"image_name": name, "matched_text_index": 0, "image_base64": made.encoded(name.encode())}
        for name in ("a.jpg", "A.jpg")
    ]
    data = {"text_list": ["A"], "image_info": infos}
    url = made.write_members(tmp_path / "x.tar", [("k.json", json.dumps(data).encode())])
    with pytest.raises(WriteError, match=r"a\.jpg.*x\.tar, sample 'k'"):
        convert(url, str(tmp_path / "y-%d.tar"), to="dashed")


def test_a_document_is_never_split_between_shards(tmp_path):
    lines, images, _ = made.write_source(tmp_path, 30)
    urls = convert(lines, str(tmp_path / "x-%d.tar"), to="dashed", images=images, maxsize=2000)
    assert len(urls) > 5
    assert len(read(urls, "dashed")) == 30


def test_the_convert_command_writes_shards(tmp_path, capsys):
    lines, images, _ = made.write_source(tmp_path, 12)
    pattern = str(tmp_path / "x-%d.tar")
    arguments = ["convert", lines, "-o", pattern, "--images", images, "-n", "5"]
    assert main([*arguments, "--to", "members"]) == 0
    assert "3 shards" in capsys.readouterr().out
    assert main([*arguments, "--to", "base64"]) == 3  # without --force nothing is replaced
    assert len(read(str(tmp_path / "x-{0..2}.tar"), "members")) == 12


@pytest.mark.parametrize("to", LAYOUTS)
def test_convert_writes_an_index_that_reads_the_documents(source, tmp_path, to):
    lines, images, by_url, _ = source
    urls = convert(lines, tmp_path / "x-%d.tar", to=to, images=images, maxcount=80)
    assert (tmp_path / "x.index.parquet").exists()
    group = "dashed" if to == "dashed" else "key"
    dataset = wds.WebDataset(urls, group=group, index=tmp_path / "x.index.parquet")
    assert len(dataset) == 200
    found = list(dataset.documents(**options_of(to, by_url)))
    assert [d.pieces for d in found] == [d.pieces for d in read(source[3]["dashed"], "dashed")]


def test_convert_writes_no_index_on_request(tmp_path):
    lines, images, _ = made.write_source(tmp_path, 3)
    convert(lines, tmp_path / "x-%d.tar", to="dashed", images=images, index=False)
    assert not (tmp_path / "x.index.parquet").exists()
    arguments = ["convert", lines, "-o", str(tmp_path / "y-%d.tar"), "--to", "dashed", "--no-index"]
    assert main([*arguments, "--images", images]) == 0
    assert not (tmp_path / "y.index.parquet").exists()


def test_convert_asks_the_handler_about_documents_that_cannot_be_read(tmp_path, capsys):
    lines, images, _ = made.write_source(tmp_path, 3)
    with open(lines, "a") as file:
        file.write("no JSON\n")
    with pytest.raises(SampleError, match=r"docs\.jsonl, sample '000000003'"):
        convert(lines, tmp_path / "x-%d.tar", to="members", images=images)
    options = {"images": images, "handler": wds.ignore_and_continue}
    urls = convert(lines, tmp_path / "x-%d.tar", to="members", **options)
    assert len(read(urls, "members")) == 3
    arguments = ["convert", lines, "-o", str(tmp_path / "y-%d.tar"), "--to", "members"]
    assert main([*arguments, "--images", images, "--on-error", "skip"]) == 1
    assert "skipped: the field 'json' of a document is no JSON" in capsys.readouterr().out


def test_an_unknown_layout_is_refused():
    with pytest.raises(PipelineError, match="dashed"):
        documents("dash")
    with pytest.raises(PipelineError, match="dashed"):
        convert("x.tar", "y-%d.tar", to="dash")


def test_convert_replaces_shards_of_documents_only_with_force_and_never_inputs(tmp_path, capsys):
    lines, images, _ = made.write_source(tmp_path, 3)
    other = tmp_path / "y-1.tar"
    other.write_bytes(b"another file")
    pattern = str(tmp_path / "y-%d.tar")
    arguments = ["convert", "--to", "dashed", "--images", images, "-n", "1", "-o", pattern]
    assert main([*arguments, lines]) == 3
    assert "exists already" in capsys.readouterr().err
    assert other.read_bytes() == b"another file"
    assert main([*arguments, lines, "--force"]) == 0
    before = other.read_bytes()
    assert main([*arguments, str(other), "--force"]) == 2
    assert "replace an input" in capsys.readouterr().err
    assert other.read_bytes() == before
