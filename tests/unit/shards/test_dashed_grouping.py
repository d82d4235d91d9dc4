"""group="dashed": KEY.json and the members KEY-NAME.jpg after it are one sample."""

from __future__ import annotations

import pytest

import penstock as wds
from penstock.cli import main
from penstock.errors import DuplicateError, PipelineError, ShardError, StaleIndexError
from penstock.shards.index import Index, build_index
from penstock.testing import assert_resumes
from tar_files import write_tar


def write_members(path, *names, size=20):
    """A tar of these members, in this order; the data of each begins with its name."""
    return write_tar(path, [(name, name.encode().ljust(size, b".")) for name in names])


def read(url, **options):
    """Key and fields of every sample."""
    samples = wds.WebDataset(url, group="dashed", **options)
    return [(s["__key__"], [f for f in s if f[:2] != "__"]) for s in samples]


def test_members_with_a_dash_belong_to_the_json_before_them(tmp_path):
    url = write_members(tmp_path / "x.tar", "a.json", "a-x.jpg", "a-y.png", "b.json", "b-x.jpg")
    assert read(url) == [("a", ["json", "x.jpg", "y.png"]), ("b", ["json", "x.jpg"])]
    sample = next(iter(wds.WebDataset(url, group="dashed")))
    assert sample["y.png"].startswith(b"a-y.png")


def test_without_the_option_every_image_is_a_sample(tmp_path):
    url = write_members(tmp_path / "x.tar", "a.json", "a-x.jpg")
    assert [s["__key__"] for s in wds.WebDataset(url)] == ["a", "a-x"]


def test_names_are_lower_case_and_may_have_dots_and_folders(tmp_path):
    url = write_members(tmp_path / "x.tar", "d.1/a.json", "d.1/a-X.Y.JPG", "d.1/a.txt")
    assert read(url) == [("d.1/a", ["json", "x.y.jpg", "txt"])]


def test_a_key_that_extends_another_begins_its_own_document(tmp_path):
    names = ["a-1.json", "a-1-x.jpg", "a-1-x.json", "a-1-x-y.jpg", "a-10.json", "a-10-z.jpg"]
    url = write_members(tmp_path / "x.tar", *names)
    assert read(url) == [
        ("a-1", ["json", "x.jpg"]),
        ("a-1-x", ["json", "y.jpg"]),
        ("a-10", ["json", "z.jpg"]),
    ]


def test_images_before_their_json_are_samples_of_their_own(tmp_path):
    url = write_members(tmp_path / "x.tar", "a-x.jpg", "a.json", "b.json")
    assert read(url) == [("a-x", ["jpg"]), ("a", ["json"]), ("b", ["json"])]


def test_a_name_in_another_folder_does_not_join(tmp_path):
    url = write_members(tmp_path / "x.tar", "a.json", "a-x/y.jpg")
    assert read(url) == [("a", ["json"]), ("a-x/y", ["jpg"])]


def test_images_of_a_skipped_duplicate_document_are_skipped_with_it(tmp_path):
    url = write_members(tmp_path / "x.tar", "a.json", "b.json", "a.json", "a-x.jpg", "c.json")
    with pytest.raises(DuplicateError, match="'a'"):
        read(url)
    found = read(url, handler=wds.ignore_and_continue)
    assert [key for key, _ in found] == ["a", "b", "c"]


def test_an_image_name_that_occurs_twice_is_an_error(tmp_path):
    url = write_members(tmp_path / "x.tar", "a.json", "a-x.jpg", "a-X.jpg")
    with pytest.raises(DuplicateError, match=r"x\.jpg"):
        read(url)


def test_a_shard_cut_inside_an_image_does_not_return_part_of_its_document(tmp_path):
    url = write_members(tmp_path / "x.tar", "a.json", "b.json", "b-x.jpg", size=300_000)
    whole = (tmp_path / "x.tar").read_bytes()
    (tmp_path / "x.tar").write_bytes(whole[:800_000])
    found = []
    with pytest.raises(ShardError):
        found.extend(s["__key__"] for s in wds.WebDataset(url, group="dashed"))
    samples = iter(wds.WebDataset(url, group="dashed"))
    assert next(samples)["__key__"] == "a"
    with pytest.raises(ShardError):
        next(samples)


def test_renamed_and_selected_members_are_grouped_by_their_new_names(tmp_path):
    url = write_members(tmp_path / "x.tar", "a.json", "a_x.jpg", "a_y.gif")
    options = {
        "rename_files": lambda name: name.replace("_", "-"),
        "select_files": lambda name: not name.endswith("gif"),
    }
    assert read(url, **options) == [("a", ["json", "x.jpg"])]


def many(tmp_path, documents=30):
    names = []
    for n in range(documents):
        names += [f"d{n:03d}.json", *(f"d{n:03d}-{m}.jpg" for m in range(n % 4))]
    half = names.index(f"d{documents // 2:03d}.json")
    write_members(tmp_path / "x-0.tar", *names[:half])
    write_members(tmp_path / "x-1.tar", *names[half:])
    return str(tmp_path / "x-{0..1}.tar")


def plain(samples):
    return [{k: v for k, v in s.items() if k[:2] != "__" or k == "__key__"} for s in samples]


def test_the_index_finds_the_samples_that_reading_finds(tmp_path):
    urls = many(tmp_path)
    index = build_index(urls, tmp_path / "x.parquet", group="dashed")
    assert index.group == Index.load(tmp_path / "x.parquet").group == "dashed"
    streamed = plain(wds.WebDataset(urls, group="dashed"))
    assert len(streamed) == 30
    assert plain(wds.WebDataset(urls, group="dashed", index=index)) == streamed
    assert plain(wds.IndexedDataset(urls, index)) == streamed
    assert plain(wds.WebDataset(urls, group="dashed", index=True)) == streamed


def test_an_index_of_another_grouping_is_stale(tmp_path):
    urls = many(tmp_path)
    build_index(urls, tmp_path / "key.parquet")
    build_index(urls, tmp_path / "dashed.parquet", group="dashed")
    for group, path in (("dashed", "key.parquet"), ("key", "dashed.parquet")):
        with pytest.raises(StaleIndexError, match=f"--group {group}"):
            len(wds.WebDataset(urls, group=group, index=tmp_path / path))


def test_an_index_is_not_reused_for_another_grouping(tmp_path):
    urls = many(tmp_path)
    by_key = len(build_index(urls, tmp_path / "x.parquet"))
    dashed = build_index(urls, tmp_path / "x.parquet", group="dashed")
    assert (len(dashed), dashed.group) == (30, "dashed")
    assert len(build_index(urls, tmp_path / "x.parquet")) == by_key > 30


def test_shards_of_another_grouping_are_not_added_to_an_index(tmp_path):
    urls = many(tmp_path)
    assert len(wds.WebDataset(urls, group="dashed", index=True)) == 30
    with pytest.raises(PipelineError, match="dashed"):  # noqa: SIM117
        with wds.ShardWriter(str(tmp_path / "x-%d.tar"), start_shard=2, index=True) as sink:
            sink.write({"__key__": "z", "txt": "z"})


def test_the_index_command_takes_the_grouping(tmp_path, capsys):
    urls = many(tmp_path)
    assert main(["index", urls, "--group", "dashed", "--workers", "0"]) == 0
    assert "30 samples" in capsys.readouterr().out
    assert len(wds.WebDataset(urls, group="dashed", index=True)) == 30


def test_an_unknown_grouping_is_refused():
    with pytest.raises(PipelineError, match="'dashed'"):
        wds.tarfile_to_samples(group="dash")
    with pytest.raises(PipelineError, match="'dashed'"):
        wds.WebDataset("x.tar", group="dash", index=True)


@pytest.mark.parametrize("index", [None, True])
def test_reading_dashed_documents_resumes_after_any_of_them(tmp_path, index):
    urls = many(tmp_path)
    options = {"group": "dashed", "index": index, "shardshuffle": 2}
    assert_resumes(lambda: wds.WebDataset(urls, **options).shuffle(5), every=4)
