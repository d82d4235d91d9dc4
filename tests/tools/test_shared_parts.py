"""What commands share: sizes, slices, fields, shard lists, outputs, suggestions."""

from __future__ import annotations

import itertools

import pytest
from tool_shards import tar

from penstock.cli.exit_status import status_of
from penstock.errors import (
    MissingPackage,
    PipelineError,
    SampleError,
    SchemeError,
    ShapeError,
    ShardError,
    StorageError,
    UnsafeError,
    UrlError,
)
from penstock.tools.field_spec import FieldSpec
from penstock.tools.inputs import handler_for, list_shards, read_samples
from penstock.tools.outputs import ExistsError, outputs_for, refuse_existing
from penstock.tools.slices import parse_slice
from penstock.tools.units import format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *[("1", 1), ("1000", 1000), ("1B", 1), ("1kB", 1000), ("1KB", 1000), ("1KiB", 1024)],
        *[("1GB", 10**9), ("512MiB", 512 << 20), ("1.5GiB", 3 << 29), ("2 TB", 2 * 10**12)],
        *[("1e9", 10**9), (7, 7), ("9007199254740993", 9007199254740993)],
    ],
)
def test_sizes_are_read(text, size) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "x", "1G", "1iB", "-1", "1GBs", "GB", "1,000", "nan"])
def test_what_is_no_size_is_refused(text) -> None:
    with pytest.raises(PipelineError, match="1GB or 512MiB"):
        parse_size(text)


def test_sizes_are_printed_with_three_digits() -> None:
    sizes = [999, 1000, 9994, 99_940, 999_400, 999_500, 10**15]
    assert [format_size(size) for size in sizes] == [
        *["999 B", "1.00 kB", "9.99 kB", "99.9 kB", "999 kB", "1.00 MB", "1.00 PB"]
    ]


def test_slices_count_their_step_from_the_start() -> None:
    """tarp counts it from 0: 1:10:3 was 3, 6, 9."""
    assert list(parse_slice("1:10:3")(itertools.count())) == [1, 4, 7]
    assert list(parse_slice("0:10:2")(range(100))) == [0, 2, 4, 6, 8]
    assert list(parse_slice(":2")(range(9))) == [0, 1]
    assert list(parse_slice("3")(range(9))) == [3]


@pytest.mark.parametrize("text", ["", "a", "1:2:0", "-1:", "1:2:3:4", "1.5", "²"])
def test_what_is_no_slice_is_refused(text) -> None:
    with pytest.raises(PipelineError, match="START:STOP:STEP"):
        parse_slice(text)


def test_fields_are_chosen_and_renamed() -> None:
    sample = {"__key__": "a", "png": b"p", "info.json": b"j", "cls": b"1"}
    assert FieldSpec("foo:info.json").require(sample) == {"foo": b"j"}
    assert FieldSpec("image:JPG,png cls").require(sample) == {"image": b"p", "cls": b"1"}
    assert FieldSpec(["cls", "png"]).names == ["cls", "png"]
    with pytest.raises(SampleError, match=r"lacks the field 'pgn'.*did you mean 'png'"):
        from penstock.errors import Origin

        FieldSpec("pgn").require(sample, Origin("x.tar", "a"))


@pytest.mark.parametrize("text", ["", "a a", "a:", ":a", "a:b,,c"])
def test_what_names_no_fields_is_refused(text) -> None:
    with pytest.raises(PipelineError, match="--fields"):
        FieldSpec(text)


def test_outputs_have_one_name_for_each_shard() -> None:
    assert outputs_for(["a.tar", "b.tar"], "x-%03d.tar") == ["x-000.tar", "x-001.tar"]
    for output in ("one.tar", "x-%s.tar", "%d-%d.tar"):
        with pytest.raises(PipelineError):
            outputs_for(["a.tar", "b.tar"], output)
    with pytest.raises(PipelineError, match="one name"):
        outputs_for(["a/x.tar", "b/x.tar"], "out/")


def test_what_exists_is_refused_unless_forced(tmp_path) -> None:
    (tmp_path / "x").symlink_to(tmp_path / "nowhere")  # a broken link would be replaced too
    with pytest.raises(ExistsError, match="--force"):
        refuse_existing(str(tmp_path / "x"))
    refuse_existing(str(tmp_path / "x"), force=True)
    for url in (str(tmp_path / "y"), "-", "pipe:cat > x", "/dev/null"):
        refuse_existing(url)


@pytest.mark.parametrize("line", ["PIPE:rm -rf x", "p{i,x}pe:rm -rf x", "b.tar::pipe:rm -rf x"])
def test_a_list_of_shards_may_not_run_commands(tmp_path, line) -> None:
    (tmp_path / "list").write_text(f"a.tar\n{line}\n")
    with pytest.raises(UnsafeError, match="may not run commands"):
        list_shards([], str(tmp_path / "list"))
    assert list_shards("pipe:cat a.tar") == ["pipe:cat a.tar"]


def test_a_line_of_a_list_names_several_shards(tmp_path) -> None:
    (tmp_path / "list").write_text("a.tar::b-{0..1}.tar\n")
    assert list_shards([], str(tmp_path / "list")) == ["a.tar", "b-0.tar", "b-1.tar"]


def test_skipped_errors_are_counted_and_the_next_shard_is_read(tmp_path) -> None:
    tar(tmp_path / "x-0.tar", [("a.txt", b"x")])
    (tmp_path / "x-1.tar").write_bytes(b"no tar")
    tar(tmp_path / "x-2.tar", [("c.txt", b"x")])
    handler, skipped = handler_for("skip")
    shards = list_shards(f"{tmp_path}/x-*.tar")
    assert [one.key for one in read_samples(shards, handler=handler)] == ["a", "c"]
    assert (skipped.count, len(skipped.messages)) == (1, 1)
    with pytest.raises(StorageError):  # says nothing about the data
        list(read_samples([str(tmp_path / "missing.tar")], handler=handler))


def test_every_kind_of_error_has_its_status() -> None:
    usage = (UrlError("x"), SchemeError("x"), PipelineError("x"), UnsafeError("x"))
    data = (ShardError("x"), SampleError("x"), ShapeError("x"))
    not_done = (StorageError("x"), OSError("x"), MissingPackage("x"), ExistsError("x"))
    assert {status_of(error) for error in usage} == {2}
    assert {status_of(error) for error in data} == {1}
    assert {status_of(error) for error in not_done} == {3}
    assert status_of(KeyboardInterrupt()) == 130
    assert status_of(BrokenPipeError(32, "gone")) == 141
