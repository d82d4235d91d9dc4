"""``penstock create`` in a real shell: folders, plans, tables, images, kills."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket

import pyarrow
import pyarrow.parquet
import pytest
from rework import check_other_readers, keys, kill_and_repeat, shards_in
from tool_shards import picture

import penstock as wds
from penstock import tools
from penstock.errors import StorageError
from penstock.tools import create_sources


def read(shard):
    return list(wds.WebDataset(str(shard)))


@pytest.fixture
def folder(tmp_path):
    """``data/{a,b}/N.{jpg,cls}``: ten samples, and four files that cannot be part of any."""
    for name in "ab":
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(5):
            (tmp_path / "data" / name / f"{number}.jpg").write_bytes(picture(number))
            (tmp_path / "data" / name / f"{number}.cls").write_text(str(number))
    (tmp_path / "data" / "README").write_text("no extension")
    (tmp_path / "data" / ".hidden").write_text("no key")
    (tmp_path / "data" / "broken.jpg").symlink_to("nowhere")
    with socket.socket(socket.AF_UNIX) as sock:
        here = os.getcwd()
        os.chdir(tmp_path / "data")
        sock.bind("a.sock")
        os.chdir(here)
    return tmp_path / "data"


def test_a_folder_becomes_shards_that_all_readers_read(shell, folder, tmp_path) -> None:
    done = shell("penstock create data -o 'out/t-%03d.tar' -n 4")
    assert done.returncode == 0, done.stderr
    assert "10 samples" in done.stdout
    assert "4 files rejected" in done.stdout
    shards = sorted((tmp_path / "out").glob("*.tar"))
    assert [shard.name for shard in shards] == ["t-000.tar", "t-001.tar", "t-002.tar"]
    assert keys(*shards) == [f"{name}/{number}" for name in "ab" for number in range(5)]
    assert read(shards[0])[1]["jpg"] == picture(1)
    for shard in shards:
        check_other_readers(shard)
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        ".penstock",
        *(shard.name for shard in shards),
        "t.index.parquet",
    }


def test_the_same_folder_makes_the_same_bytes(shell, folder, tmp_path) -> None:
    assert shell("penstock create data -o 'x/t-%03d.tar' -n 3 --jobs 1").returncode == 0
    assert shell("penstock create data -o 'y/t-%03d.tar' -n 3 --jobs 2").returncode == 0
    assert shards_in(tmp_path / "x") == shards_in(tmp_path / "y")


def test_nothing_is_overwritten_without_force(shell, folder, tmp_path) -> None:
    assert shell("penstock create data -o 'out/t-%03d.tar' -n 2").returncode == 0
    before = shards_in(tmp_path / "out")
    refused = shell("penstock create data -o 'out/t-%03d.tar' -n 5")
    assert refused.returncode == 3
    assert "--force" in refused.stderr
    assert shards_in(tmp_path / "out") == before
    assert shell("penstock create data -o 'out/t-%03d.tar' -n 5 --force").returncode == 0
    assert sorted(shards_in(tmp_path / "out")) == ["t-000.tar", "t-001.tar"]
    assert len(keys(*sorted((tmp_path / "out").glob("*.tar")))) == 10


def test_a_dry_run_lists_rejected_files_and_writes_nothing(shell, folder, tmp_path) -> None:
    done = shell("penstock create data -o 'out/t-%03d.tar' -n 4 --dry-run")
    assert done.returncode == 0
    assert "first keys: a/0, a/1" in done.stdout
    assert "in 3 shards" in done.stdout
    for name in ("README", ".hidden", "broken.jpg", "a.sock"):
        assert f"rejected: {name}: " in done.stdout
    assert not (tmp_path / "out").exists()


def test_keys_without_folders_must_differ(shell, folder, tmp_path) -> None:
    done = shell("penstock create data -o out.tar --key base")
    assert done.returncode == 1
    assert "--key" in done.stderr
    assert not (tmp_path / "out.tar").exists()


def test_a_key_by_regular_expression(folder, tmp_path) -> None:
    done = tools.create(folder / "a", tmp_path / "o.tar", key=r"(\d)\.", index=False)
    assert keys(tmp_path / "o.tar") == list("01234")
    assert done.samples == 5


@pytest.mark.parametrize(
    ("missing", "status", "samples"), [("abort", 1, 0), ("warn", 0, 10), ("exclude", 0, 9)]
)
def test_samples_without_a_required_field(
    shell, folder, tmp_path, missing, status, samples
) -> None:
    (folder / "a" / "3.cls").unlink()
    done = shell(f"penstock create data -o out.tar --require jpg,cls --missing {missing}")
    assert done.returncode == status
    assert ("a/3" in done.stderr) == (missing != "exclude")
    assert len(keys(tmp_path / "out.tar") if samples else []) == samples


def test_a_random_order_depends_on_the_seed_only(folder, tmp_path) -> None:
    for name, seed in (("x", 1), ("y", 1), ("z", 2)):
        tools.create(folder, tmp_path / f"{name}.tar", order="random", seed=seed, index=False)
    x, y, z = (keys(tmp_path / f"{name}.tar") for name in "xyz")
    assert x == y != z
    assert sorted(x) == sorted(z)
    assert x != sorted(x)


def test_splits_are_made_by_hash_of_the_key(shell, folder, tmp_path) -> None:
    line = "penstock create data -o 'out/t-%03d.tar' --split train=0.6,val=0.4"
    assert shell(line).returncode == 0
    train, val = keys(tmp_path / "out/train-t-000.tar"), keys(tmp_path / "out/val-t-000.tar")
    assert sorted(train + val) == [f"{name}/{number}" for name in "ab" for number in range(5)]
    (folder / "c").mkdir()
    (folder / "c" / "9.jpg").write_bytes(b"new")
    other = "penstock create data -o 'o/{split}/%03d.tar' --split train=0.6,val=0.4"
    assert shell(other).returncode == 0
    assert set(train) <= set(keys(tmp_path / "o/train/000.tar"))
    assert set(val) <= set(keys(tmp_path / "o/val/000.tar"))


def test_a_plan_has_files_texts_and_commands(shell, tmp_path) -> None:
    (tmp_path / "a.png").write_bytes(picture(1, "PNG"))
    (tmp_path / "plan").write_text(
        "b.txt text:hello world\nb.nothing /dev/null\nb.out pipe:echo made\n"
        "a.png a.png\na.two file:a.png\n"
    )
    done = shell("penstock create plan --from plan --allow-pipe -o - | tar tf -")
    assert done.stdout.split() == ["b.nothing", "b.out", "b.txt", "a.png", "a.two"], done.stderr
    assert shell("penstock create plan --from plan --allow-pipe -o x.tar").returncode == 0
    first, second = read(tmp_path / "x.tar")
    assert (first["txt"], first["nothing"], first["out"]) == (b"hello world", b"", b"made\n")
    assert second["png"] == second["two"] == picture(1, "PNG")
    (tmp_path / "plan").write_text("b.txt text:1\nonly-one-word\n")
    bad = shell("penstock create plan --from plan -o y.tar")
    assert bad.returncode == 1
    assert "line 2" in bad.stderr


@pytest.mark.parametrize("source", ["pipe:touch ran", "PIPE:touch ran", "pipe: touch ran"])
def test_a_plan_runs_commands_only_if_that_is_allowed(source, shell, tmp_path) -> None:
    (tmp_path / "plan").write_text(f"a.txt text:1\na.out {source}\n")
    for options in ("-o x.tar", "-o - | cat; exit ${PIPESTATUS[0]}", "-o x.tar --dry-run"):
        done = shell(f"penstock create plan --from plan {options}")
        assert (done.returncode, "--allow-pipe" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["plan"]
    assert shell("penstock create plan --from plan -o x.tar --allow-pipe").returncode == 0
    assert (tmp_path / "ran").exists()


def test_a_device_without_end_in_a_plan_is_an_error(shell, tmp_path) -> None:
    (tmp_path / "plan").write_text("a.txt /dev/zero\n")
    line = "penstock create plan --from plan -o x.tar"
    done = shell(line, PENSTOCK_MAX_DECODED_BYTES="1000000")
    assert (done.returncode, "a device unpacks to more than" in done.stderr) == (1, True)
    assert not (tmp_path / "x.tar").exists()


SOURCES_WITH_NUL = {"plan": "a.txt a\0b\n", "table": "__key__\t@txt\na\ta\0b\n"}


@pytest.mark.parametrize("kind", SOURCES_WITH_NUL)
def test_a_nul_in_the_name_of_a_file_is_an_error_that_names_it(kind, shell, tmp_path) -> None:
    (tmp_path / "list.tsv").write_text(SOURCES_WITH_NUL[kind])
    done = shell(f"penstock create list.tsv --from {kind} -o x.tar")
    assert (done.returncode, "no file can have the name 'a\\x00b'" in done.stderr) == (3, True)
    assert "Traceback" not in done.stderr


ROWS = [{"__key__": "k1", "txt": "one", "@jpg": "p.jpg"}, {"__key__": "k2", "txt": "two"}]


@pytest.mark.parametrize("kind", ["tsv", "csv", "jsonl", "parquet"])
def test_a_table_becomes_samples(shell, tmp_path, kind) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "p.jpg").write_bytes(picture(3))
    table = tmp_path / "sub" / f"t.{kind}"
    if kind == "jsonl":
        table.write_text("\n".join(map(json.dumps, ROWS)))
    elif kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(ROWS), table)
    else:
        mark = "\t" if kind == "tsv" else ","
        lines = [["__key__", "txt", "@jpg"], ["k1", "one", "p.jpg"], ["k2", "two", ""]]
        table.write_text("\n".join(map(mark.join, lines)) + "\n")
    done = shell(f"penstock create sub/t.{kind} --from table -o x.tar")
    assert done.returncode == 0, done.stderr
    first, second = read(tmp_path / "x.tar")
    assert (first["__key__"], first["txt"], first["jpg"]) == ("k1", b"one", picture(3))
    assert (second["__key__"], second["txt"], "jpg" in second) == ("k2", b"two", False)


def test_rows_without_keys_are_numbered(tmp_path) -> None:
    rows = [{"cls": 3, "json": {"a": 1}, "npy": b"\x00\xff"}] * 3
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "t.parquet")
    tools.create(tmp_path / "t.parquet", tmp_path / "x.tar", kind="table")
    found = read(tmp_path / "x.tar")
    assert [sample["__key__"] for sample in found] == ["000000000", "000000001", "000000002"]
    assert (found[0]["cls"], found[0]["json"], found[0]["npy"]) == (b"3", b'{"a": 1}', b"\x00\xff")


def test_folders_of_images_become_classes(shell, tmp_path) -> None:
    for name in ("dog", "cat"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        (tmp_path / "pets" / name / "1.JPEG").write_bytes(picture(1))
        (tmp_path / "pets" / name / "notes.txt").write_text("not an image")
    assert shell("penstock create pets --from images -o 'out/%03d.tar'").returncode == 0
    found = read(tmp_path / "out/000.tar")
    assert [(sample["__key__"], sample["cls"]) for sample in found] == [
        ("cat/1", b"0"),
        ("dog/1", b"1"),
    ]
    assert found[0]["jpeg"] == picture(1)
    assert json.loads((tmp_path / "out/classes.json").read_text()) == ["cat", "dog"]
    (tmp_path / "pets" / "cow").mkdir()
    (tmp_path / "pets" / "cow" / "1.png").write_bytes(picture(1, "PNG"))
    refused = shell("penstock create pets --from images -o 'out/other-%03d.tar'")
    assert refused.returncode == 3
    assert "classes.json" in refused.stderr


def test_hostile_file_names_are_rejected_or_kept_as_they_are(shell, tmp_path) -> None:
    (tmp_path / "data").mkdir()
    names = ["sp ace.txt", "esc\x1b[31m.txt", "new\nline.txt", "n" * 250 + ".txt", "__m__.txt"]
    for name in names:
        (tmp_path / "data" / name).write_text(name)
    with open(os.fsencode(tmp_path / "data") + b"/\xff\xfe.txt", "w") as file:
        file.write("no utf-8")
    done = shell("penstock create data -o out.tar --dry-run")
    assert "\x1b" not in done.stdout
    assert shell("penstock create data -o out.tar").returncode == 0
    found = {sample["__key__"]: sample["txt"] for sample in wds.WebDataset(f"{tmp_path}/out.tar")}
    for name in names[:4]:
        assert found[name[:-4]] == name.encode()
    assert found["\udcff\udcfe"] == b"no utf-8"


def test_fields_that_begin_with_an_underscore_are_rejected(shell, tmp_path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a._x", "a.txt"):
        (tmp_path / "data" / name).write_text(name)
    done = shell("penstock create data -o out.tar --dry-run")
    assert "rejected: a._x: fields that begin with '_'" in done.stdout
    done = shell("penstock create data -o out.tar")
    assert "1 file rejected" in done.stdout
    rows = [{"__key__": "a", "txt": "1"}, {"__key__": "b", "txt": "2", "@_x": "data/a._x"}]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = shell("penstock create t.jsonl --from table -o x.tar")
    assert done.returncode == 1
    assert "the column '@_x' (row 1) cannot be a field" in done.stderr
    assert "t.jsonl" in done.stderr
    assert not (tmp_path / "x.tar").exists()


def test_a_changed_source_is_noticed_when_a_run_continues(folder, tmp_path) -> None:
    pattern = tmp_path / "out" / "%03d.tar"
    os.chmod(folder / "b" / "4.jpg", 0)
    if os.access(folder / "b" / "4.jpg", os.R_OK):
        (folder / "b" / "4.jpg").unlink()
        (folder / "b" / "4.jpg").symlink_to("/proc/self/mem")
    with pytest.raises(OSError, match=r"4\.jpg"):
        tools.create(folder, pattern, count=2, jobs=1)
    (folder / "b" / "4.jpg").unlink()
    with pytest.raises(wds.PipelineError, match=r"data/b/4\.jpg was removed"):
        tools.create(folder, pattern, count=2, jobs=1)
    tools.create(folder, pattern, count=2, jobs=1, force=True)
    assert len(keys(*sorted((tmp_path / "out").glob("*.tar")))) == 10


def test_create_killed_at_any_moment_continues(tmp_path, program, kills) -> None:
    (tmp_path / "data").mkdir()
    for number in range(300):
        (tmp_path / "data" / f"{number:04d}.bin").write_bytes(bytes([number % 256]) * 100_000)
    line = "penstock create data -o 'out/t-%03d.tar' -n 20 --jobs 2"
    kill_and_repeat(line, tmp_path, kills, program)


def begin_and_fail(folder, pattern, **options):
    """Begin a call that writes some shards and fails at the last."""
    (folder / "b" / "9.jpg").symlink_to("/proc/self/mem")
    (folder / "b" / "9.cls").write_text("9")
    with pytest.raises(OSError, match=r"9\.jpg"):
        tools.create(folder, pattern, jobs=1, **options)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda folder: (folder / "a" / "new.jpg").write_bytes(b"1"), "data/a/new.jpg was added"),
        (lambda folder: (folder / "a" / "1.cls").write_text("17"), "data/a/1.cls was changed"),
        (lambda folder: (folder / "a" / "1.cls").unlink(), "data/a/1.cls was removed"),
    ],
)
def test_the_file_that_changed_between_two_runs_is_named(folder, tmp_path, change, said) -> None:
    begin_and_fail(folder, tmp_path / "out" / "%03d.tar", count=2)
    change(folder)
    with pytest.raises(wds.PipelineError, match=f"{re.escape(said)}.*--force"):
        tools.create(folder, tmp_path / "out" / "%03d.tar", count=2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"count": 3}, "-n was 2 and is now 3"),
        ({"count": 2, "size": "1MB"}, "--size was None and is now 1000000"),
        ({"count": 2, "order": "random"}, "order changed from None to 'random'"),
    ],
)
def test_the_option_that_changed_between_two_runs_is_named(folder, tmp_path, options, said) -> None:
    begin_and_fail(folder, tmp_path / "out" / "%03d.tar", count=2)
    with pytest.raises(wds.PipelineError, match=f"{said}.*--force"):
        tools.create(folder, tmp_path / "out" / "%03d.tar", **options)


def test_a_run_does_not_continue_with_another_choice_of_samples(folder, tmp_path) -> None:
    pattern, excluded = tmp_path / "out" / "%03d.tar", {"missing": "exclude", "count": 2}
    (folder / "a" / "0.cls").unlink()
    (folder / "a" / "1.jpg").unlink()
    begin_and_fail(folder, pattern, require="jpg", **excluded)
    with pytest.raises(wds.PipelineError, match="planned differently"):
        tools.create(folder, pattern, require="cls", **excluded)


def test_equal_keys_of_a_table_are_refused_without_naming_an_option_of_others(shell, tmp_path):
    (tmp_path / "t.tsv").write_text("__key__\ttxt\na\t1\na\t2\n")
    for dry in ("", " --dry-run"):
        done = shell(f"penstock create t.tsv --from table -o x.tar{dry}")
        assert done.returncode == 1
        assert "'a' twice" in done.stderr
        assert "--duplicates" not in done.stderr
        assert not (tmp_path / "x.tar").exists()


@pytest.mark.parametrize("split", ["train=0.9,val=0.2", "train=0.5", "a=1,b=1e-6"])
def test_shares_of_a_split_that_do_not_add_up_to_one_are_refused(shell, folder, split) -> None:
    done = shell(f"penstock create data -o 'out/%d.tar' --split {split}")
    assert done.returncode == 2
    assert "add up to 1" in done.stderr


def test_shares_of_a_split_may_differ_from_one_by_rounding(folder, tmp_path) -> None:
    tools.create(folder, tmp_path / "{split}.tar", split="a=0.1,b=0.2,c=0.7", index=False)


def test_a_split_without_samples_is_no_shard(folder, tmp_path) -> None:
    done = tools.create(folder, tmp_path / "{split}.tar", split="a=0.999999,b=0.000001")
    assert done.splits == {"a": 10, "b": 0}
    assert done.shards == 1
    assert not (tmp_path / "b.tar").exists()


def test_nothing_to_create_is_bad_data(shell, tmp_path) -> None:
    (tmp_path / "data").mkdir()
    done = shell("penstock create data -o x.tar")
    assert done.returncode == 1
    assert "nothing to write" in done.stderr
    (tmp_path / "data" / "README").write_text("no extension")
    done = shell("penstock create data -o x.tar")
    assert done.returncode == 1
    assert "README" in done.stderr
    done = shell("penstock create data -o x.tar --dry-run")
    assert done.returncode == 1
    assert "rejected: README" in done.stdout
    assert not (tmp_path / "x.tar").exists()


@pytest.mark.parametrize("columns", ["txt\ttxt", "TXT\ttxt", "@txt\ttxt"])
def test_two_columns_for_one_field_are_refused(shell, tmp_path, columns) -> None:
    (tmp_path / "t.tsv").write_text(f"__key__\t{columns}\na\tt.tsv\t2\n")
    done = shell("penstock create t.tsv --from table -o x.tar")
    assert done.returncode == 1
    assert "txt" in done.stderr
    assert "t.tsv" in done.stderr
    assert not (tmp_path / "x.tar").exists()


def test_a_row_may_name_a_file_where_another_has_the_value(tmp_path) -> None:
    rows = [{"__key__": "a", "txt": "here"}, {"__key__": "b", "@txt": "there"}]
    (tmp_path / "there").write_text("there it is")
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tools.create(tmp_path / "t.jsonl", tmp_path / "x.tar", kind="table")
    assert [sample["txt"] for sample in read(tmp_path / "x.tar")] == [b"here", b"there it is"]


def test_outputs_below_the_source_are_no_sources(shell, folder, tmp_path) -> None:
    line = "cd data && penstock create . -o 't-%03d.tar' -n 4"
    assert shell("penstock create data -o 'out/t-%03d.tar' -n 4").returncode == 0
    expected = shards_in(tmp_path / "out")
    for again in ("", "--force"):
        assert shell(f"{line} {again}").returncode == 0
        assert shards_in(tmp_path / "data") == expected
    assert "rejected: t-000.tar: it is an output" in shell(f"{line} --dry-run").stdout


@contextlib.contextmanager
def failing_at(name, monkeypatch):
    """Reading the file of that name fails, so that the block ends with a StorageError."""
    read = create_sources.LocalField.read

    def fail(part):
        if part.source.endswith(f"/{name}"):
            raise StorageError("the network is down")
        return read(part)

    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(create_sources.LocalField, "read", fail)
        yield


def test_a_call_that_ends_in_its_second_split_continues(tmp_path, monkeypatch) -> None:
    (tmp_path / "data").mkdir()
    for number in range(30):
        (tmp_path / f"data/{number}.txt").write_text(f"{number}")

    def make(folder):
        output, shares = tmp_path / folder / "{split}-%d.tar", "train=0.8,val=0.2"
        return tools.create(tmp_path / "data", output, count=5, jobs=1, split=shares)

    make("whole")
    last = keys(tmp_path / "whole/val-0.tar")[-1]
    with failing_at(f"{last}.txt", monkeypatch):
        make("parts")
    assert (tmp_path / "parts/train-0.tar").exists()
    assert make("parts").samples == 30
    assert shards_in(tmp_path / "parts") == shards_in(tmp_path / "whole")
    assert make("parts").samples == 30
    assert not list((tmp_path / "parts/.penstock").rglob("plan.json"))


def test_an_interrupted_call_with_outputs_below_the_source_continues(tmp_path, monkeypatch) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text(f"{number}")
    pattern = tmp_path / "t-%d.tar"
    with failing_at("3.txt", monkeypatch):
        tools.create(tmp_path, pattern, count=2, jobs=1)
    assert sorted(shards_in(tmp_path)) == ["t-0.tar"]
    assert tools.create(tmp_path, pattern, count=2, jobs=1).samples == 4
    assert keys(*sorted(tmp_path.glob("*.tar"))) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("value", ["9" * 10_000, "[" * 100_000, '"\\ud800"'], ids=len)
def test_a_table_that_python_cannot_parse_is_named(value, tmp_path) -> None:
    (tmp_path / "t.jsonl").write_text(f'{{"__key__": "a", "txt": {value}}}')
    with pytest.raises(wds.SampleError, match=r"t\.jsonl"):
        tools.create(tmp_path / "t.jsonl", tmp_path / "x.tar", kind="table")
