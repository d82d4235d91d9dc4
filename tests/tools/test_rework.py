"""``cat``, ``split``, ``select`` and ``sort`` in a real shell, with the acceptance lists of the
programs that they replace."""

from __future__ import annotations

import gzip
import inspect
import json
import os
import pickle
import random
import shutil
import signal
import subprocess
import tarfile
import tracemalloc
from pathlib import Path

import pytest
from rework import check_other_readers, keys, kill_and_repeat, shards_in
from tool_shards import tar

import penstock as wds
from penstock import tools
from penstock.errors import UrlError
from penstock.jobs import reshard
from penstock.shards.index import open_index
from penstock.tools.disk_columns import DiskNumbers, DiskTexts, sort_numbers
from penstock.tools.sample_places import SamplePlaces, open_inputs
from waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
FIRST, SECOND = "shards/train-000000.tar", "shards/train-000001.tar"
NAMES = [f"k{number:03d}" for number in range(10)]


def read(shard):
    return list(wds.WebDataset(str(shard)))


def names_in(folder):
    """The files of a folder; what a finished job leaves in ``.penstock`` is hidden."""
    return sorted(path.name for path in Path(folder).iterdir() if path.name[0] != ".")


@pytest.fixture
def sample_tar(tmp_path):
    """``sample.tar`` with twenty samples of ``jpg`` and ``info.json``, as tarp's tests have it."""
    with wds.TarWriter(str(tmp_path / "sample.tar"), encoder=False) as sink:
        for number in range(20):
            sink.write({"__key__": f"{number:03d}", "jpg": b"x" * 500, "info.json": b"{}"})
    return tmp_path / "sample.tar"


# ── cat ─────────────────────────────────────────────────────────────────────────────────


def test_cat_concatenates_and_other_readers_read_it(shell, shards, tmp_path) -> None:
    done = shell(f"penstock cat '{shards}' -o all.tar")
    assert done.returncode == 0, done.stderr
    assert keys(tmp_path / "all.tar") == NAMES
    check_other_readers(tmp_path / "all.tar")
    assert read(tmp_path / "all.tar")[3]["jpg"] == read(tmp_path / FIRST)[3]["jpg"]


def test_cat_slices_the_whole_or_every_shard(shell, sample_tar, shards, tmp_path) -> None:
    assert shell("penstock cat sample.tar -o a.tar --slice 0:10:2").returncode == 0
    assert keys(tmp_path / "a.tar") == ["000", "002", "004", "006", "008"]
    assert shell(f"penstock cat '{shards}' -o b.tar --shard-slice 1:3").returncode == 0
    assert keys(tmp_path / "b.tar") == ["k001", "k002", "k006", "k007"]


@pytest.mark.parametrize(
    "line",
    [
        "cat in.tar -o out.tar",
        "cat in.tar -o - > out.tar",
        "cat in.tar -o out.tar --fields 'txt _x:_x __y__ _meta.json'",
        "cat in.tar -o out.tar --duplicates keep",
        "split in.tar -o o%d.tar && mv o0.tar out.tar",
        "sort in.tar -o out.tar",
        "sort in.tar -o - > out.tar",
        "sort in.tar -o out.tar --duplicates keep",
        "select in.tar --keys a -o out.tar",
        "proc in.tar -c true -o out.tar",
        "proc in.tar -c true -o - > out.tar",
        "proc in.tar -c false --on-error keep -o out.tar || true",
        "verify in.tar --repair -o fixed/ && mv fixed/in.tar out.tar",
    ],
)
def test_fields_that_begin_with_an_underscore_are_kept(line, shell, tmp_path) -> None:
    members = {"a._meta.json": b"{}", "a._x": b"\xff", "a.__y__": b"1", "a.txt": b"text"}
    tar(tmp_path / "in.tar", members.items())
    done = shell(f"penstock {line}")
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / "out.tar") as archive:
        found = {one.name: archive.extractfile(one).read() for one in archive}
    assert found == members


def test_cat_renames_fields_and_drops_the_others(shell, sample_tar, tmp_path) -> None:
    assert shell("penstock cat sample.tar -o a.tar --fields foo:info.json").returncode == 0
    assert set(shell("tar tf a.tar").stdout.split()) == {f"{n:03d}.foo" for n in range(20)}
    bad = shell("penstock cat sample.tar -o b.tar --fields foo:inf.json")
    assert bad.returncode == 1
    assert "did you mean 'info.json'" in bad.stderr
    assert not (tmp_path / "b.tar").exists()


def test_cat_mixes_shards_in_turn(shell, sample_tar, shards, tmp_path) -> None:
    line = "penstock cat sample.tar sample.tar sample.tar -o a.tar --mix 2 --duplicates number"
    assert shell(line).returncode == 0
    assert len(keys(tmp_path / "a.tar")) == 60
    assert shell(f"penstock cat '{shards}' -o b.tar --mix 2").returncode == 0
    assert keys(tmp_path / "b.tar")[:4] == ["k000", "k005", "k001", "k006"]


def test_cat_reads_lists_and_standard_input(shell, shards, tmp_path) -> None:
    (tmp_path / "list").write_text(f"{SECOND}\n# a comment\n{FIRST}\n")
    assert shell("penstock cat -l list -o - | penstock cat - -o a.tar").returncode == 0
    assert keys(tmp_path / "a.tar") == NAMES[5:] + NAMES[:5]


def test_a_list_of_shards_expands_to_a_bounded_number(tmp_path) -> None:
    (tmp_path / "list").write_text("a-{0..599999}.tar\nb-{0..599999}.tar\n")
    with pytest.raises(UrlError, match="more than 1,000,000 shards in all"):
        tools.cat([], tmp_path / "a.tar", list_file=str(tmp_path / "list"))


def test_cat_shuffles_by_seed_and_numbers_keys(shell, shards, tmp_path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        line = f"penstock cat '{shards}' -o {name}.tar --shuffle 8 --seed {seed} --rekey %09d"
        assert shell(line).returncode == 0
    a, b, c = ([sample["txt"] for sample in read(tmp_path / f"{name}.tar")] for name in "abc")
    assert a == b != c
    assert sorted(a) == sorted(c)
    assert keys(tmp_path / "a.tar") == [f"{number:09d}" for number in range(10)]


def test_cat_tolerates_as_many_damaged_shards_as_asked(shell, shards, tmp_path) -> None:
    data = (tmp_path / FIRST).read_bytes()
    (tmp_path / FIRST).write_bytes(data[: len(data) // 2 // 512 * 512 + 100])
    refused = shell(f"penstock cat '{shards}' -o a.tar")
    assert refused.returncode == 1
    assert not (tmp_path / "a.tar").exists()
    for output, said in (("a.tar", "stdout"), ("- > b.tar", "stderr")):
        done = shell(f"penstock cat '{shards}' -o {output} --max-errors 1")
        assert done.returncode == 1
        assert "1 shard cut at its damage" in done.stderr
        assert "train-000000.tar" in getattr(done, said)
    assert keys(tmp_path / "a.tar")[-5:] == NAMES[5:] == keys(tmp_path / "b.tar")[-5:]
    figures = shell(f"penstock cat '{shards}' -o c.tar --max-errors 1 --json").stdout
    assert json.loads(figures)["failed"] == 1


def test_cat_keeps_the_sample_before_the_damage_as_readers_do(shell, shards, tmp_path) -> None:
    data = (tmp_path / FIRST).read_bytes()
    place = data.index(b"k003.")
    for cut in (place + 512, place + 512 + 10, data.index(b"k003.jpg") + 600):
        (tmp_path / FIRST).write_bytes(data[:cut])
        done = shell(f"penstock cat {FIRST} -o - --max-errors 1 > a.tar")
        assert done.returncode == 1
        reader = wds.WebDataset(str(tmp_path / FIRST), handler=wds.ignore_and_continue)
        wanted = [sample["__key__"] for sample in reader]
        assert keys(tmp_path / "a.tar") == wanted == NAMES[:3]


def test_a_key_that_comes_twice_is_an_error_numbered_or_kept(shell, shards, tmp_path) -> None:
    refused = shell(f"penstock cat {FIRST} {FIRST} -o a.tar")
    assert refused.returncode == 1
    assert "--duplicates" in refused.stderr
    assert not (tmp_path / "a.tar").exists()
    line = f"penstock cat {FIRST} {FIRST} {FIRST} -o a.tar --duplicates number"
    assert shell(line).returncode == 0
    assert keys(tmp_path / "a.tar")[::5] == ["k000", "k000~2", "k000~3"]
    assert shell(f"penstock cat {FIRST} {FIRST} -o b.tar --duplicates keep").returncode == 0
    listed = shell("tar tf b.tar").stdout.split()
    assert len(listed) == 40
    assert len(set(listed)) == 20


def test_the_tutorial_of_tarp_can_be_written(shell, sample_tar, tmp_path) -> None:
    """``tarscat sample.tar sample.tar | tarsplit -n 32``."""
    keep, number = "--duplicates keep", "--duplicates number"
    line = (
        f"penstock cat sample.tar sample.tar -o - {keep} | penstock split - -o 's-%02d.tar' -n 32"
    )
    assert shell(line).returncode == 1
    assert shell(f"{line} {number}").returncode == 0
    found = keys(tmp_path / "s-00.tar"), keys(tmp_path / "s-01.tar")
    assert [len(part) for part in found] == [32, 8]
    assert found[0][20] == "000~2"


def test_the_end_of_the_reader_ends_cat_quietly(shell, sample_tar) -> None:
    line = "penstock cat sample.tar{,,,,,,,,,,,,,} --duplicates keep -o - | head -c 100 >/dev/null"
    done = shell(f"set -o pipefail; {line}")
    assert done.returncode in (0, 141)
    assert "Traceback" not in done.stderr


def test_zeromq_addresses_are_refused(shell) -> None:
    done = shell("penstock cat zpull://127.0.0.1:7777 -o x.tar")
    assert done.returncode == 2
    assert "ZeroMQ" in done.stderr


# ── split ───────────────────────────────────────────────────────────────────────────────


def test_split_by_count_with_a_command_after_each_shard(shell, sample_tar, tmp_path) -> None:
    line = "penstock split sample.tar -o 'out/s-%06d.tar' -n 10 --post 'echo %s >> posted'"
    done = shell(line)
    assert done.returncode == 0, done.stderr
    assert names_in(tmp_path / "out") == ["s-000000.tar", "s-000001.tar", "s.index.parquet"]
    posted = (tmp_path / "posted").read_text().split()
    assert sorted(posted) == ["out/s-000000.tar", "out/s-000001.tar"]
    for number in range(2):
        check_other_readers(tmp_path / f"out/s-{number:06d}.tar")


def test_split_by_size_and_by_default_by_one_gigabyte(shell, sample_tar, tmp_path) -> None:
    assert shell("penstock split sample.tar -o 'a/%03d.tar' --size 2kB --no-index").returncode == 0
    assert [len(keys(tmp_path / f"a/{n:03d}.tar")) for n in range(5)] == [4] * 5
    assert shell("penstock split sample.tar -o 'b/%03d.tar'").returncode == 0
    assert names_in(tmp_path / "b") == ["000.tar", "shards.index.parquet"]


@pytest.mark.parametrize("option", ["--size 0", "-n 0", "-n 0 --size 1MB"])
def test_shards_of_nothing_are_refused(shell, sample_tar, tmp_path, option) -> None:
    done = shell(f"penstock split sample.tar -o 'out/%d.tar' {option}")
    assert done.returncode == 2
    assert "at least one" in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("function", [tools.split, tools.sort, tools.select])
def test_the_signature_of_a_function_shows_the_shared_options(function) -> None:
    shared = {"count", "size", "duplicates", "jobs", "index", "force", "quiet"}
    assert shared < inspect.signature(function).parameters.keys()


def test_a_count_is_not_cut_short_by_a_size_that_nobody_asked_for(tmp_path) -> None:
    from penstock.tools.shard_output import OutputPlace, plan_cuts

    class Large:
        keys = ("a", "b", "c")
        size = (10**9,) * 3

    place = OutputPlace(str(tmp_path / "%d.tar"))
    assert plan_cuts(Large(), range(3), place, 3, None) == [(0, 3)]
    assert len(plan_cuts(Large(), range(3), place, None, None)) == 3


def test_a_failing_command_after_a_shard_is_run_again(shell, sample_tar, tmp_path) -> None:
    line = "penstock split sample.tar -o 'out/%d.tar' -n 10 --jobs 1 --post 'cp %s kept/'"
    refused = shell(line)
    assert refused.returncode == 3
    assert "--post" in refused.stderr
    (tmp_path / "kept").mkdir()
    assert shell(line).returncode == 0
    assert names_in(tmp_path / "kept") == ["0.tar", "1.tar"]
    assert names_in(tmp_path / "out") == ["0.tar", "1.tar", "shards.index.parquet"]


def test_shards_that_the_command_after_them_removes_are_not_in_the_index(
    shell, sample_tar, tmp_path
) -> None:
    post = "case %s in *[02].tar) rm %s; esac"
    line = f"penstock split sample.tar -o 'out/s-%d.tar' -n 5 --post '{post}'"
    assert shell(line).returncode == 0
    assert names_in(tmp_path / "out") == ["s-1.tar", "s-3.tar", "s.index.parquet"]
    assert len(wds.IndexedDataset(str(tmp_path / "out/s-{1,3}.tar"))) == 10
    assert shell("penstock split sample.tar -o 'all/%d.tar' -n 5 --post 'rm %s'").returncode == 0
    assert names_in(tmp_path / "all") == []


def test_a_command_that_fails_after_a_shard_leaves_no_half_shard(shell, tmp_path) -> None:
    with wds.TarWriter(str(tmp_path / "x.tar"), encoder=False) as sink:
        for number in range(6):
            sink.write({"__key__": str(number), "bin": bytes(1 if number < 3 else 50_000_000)})
    # The command of the first shard fails when the second one is being written.
    post = "for n in {1..1000}; do ls out/.1.tar.*.part 2>/dev/null && break; done; false"
    line = f"penstock split x.tar -o 'out/%d.tar' -n 3 --jobs 2 --post '{post}'"
    assert shell(line).returncode == 3
    assert not list((tmp_path / "out").rglob("*.part"))


@pytest.mark.parametrize("command", ["split", "sort"])
def test_the_shard_that_changed_between_two_runs_is_named(shell, shards, tmp_path, command):
    line = f"penstock {command} 'shards/*.tar' -o 'out/%d.tar' -n 5 --jobs 1"
    (tmp_path / "out" / "1.tar").mkdir(parents=True)
    assert shell(f"{line} --force").returncode == 3  # 0.tar is written, 1.tar is a folder
    assert (tmp_path / "out" / "0.tar").exists()
    assert shell(f"penstock cat {FIRST} -o shards/train-000002.tar --rekey %04d").returncode == 0
    refused = shell(line)
    assert refused.returncode == 2
    assert "shards/train-000002.tar was added" in refused.stderr
    assert "--force" in refused.stderr


def test_a_shard_that_its_command_moved_away_is_not_written_again(
    shell, sample_tar, tmp_path
) -> None:
    post = "test ! -e stop-$(basename %s) && mv %s moved/"
    line = f"penstock split sample.tar -o 'out/%d.tar' -n 10 --jobs 1 --post '{post}'"
    (tmp_path / "moved").mkdir()
    (tmp_path / "stop-1.tar").touch()
    assert shell(line).returncode == 3
    (tmp_path / "stop-1.tar").unlink()
    assert shell(line).returncode == 0
    assert names_in(tmp_path / "moved") == ["0.tar", "1.tar"]
    assert list((tmp_path / "out").glob("*.tar")) == []


def test_force_does_not_delete_a_shard_of_the_pattern_that_is_read(
    shell, sample_tar, tmp_path
) -> None:
    assert shell("penstock split sample.tar -o 'out/%d.tar' -n 5").returncode == 0
    before = names_in(tmp_path / "out")
    refused = shell("penstock split out/3.tar -o 'out/%d.tar' -n 100 --force")
    assert refused.returncode == 2
    assert "3.tar' would replace an input" in refused.stderr
    assert names_in(tmp_path / "out") == before


def test_compressed_shards_and_streams_are_split_like_files(shell, sample_tar, tmp_path) -> None:
    with gzip.open(tmp_path / "sample.tar.gz", "wb") as file:
        file.write(sample_tar.read_bytes())
    assert shell("penstock split sample.tar -o 'a/%d.tar' -n 7").returncode == 0
    assert shell("penstock split sample.tar.gz -o 'b/%d.tar' -n 7").returncode == 0
    assert shell("penstock split - -o 'c/%d.tar' -n 7 < sample.tar.gz").returncode == 0
    assert shell("penstock split 'pipe:cat sample.tar' -o 'd/%d.tar' -n 7").returncode == 0
    for name in "bcd":
        assert shards_in(tmp_path / name) == shards_in(tmp_path / "a")
        assert names_in(tmp_path / name) == names_in(tmp_path / "a")


def test_outputs_that_are_no_shards_by_name_get_no_index(shell, sample_tar, tmp_path) -> None:
    assert shell("penstock split sample.tar -o 'out/%d' -n 10").returncode == 0
    assert names_in(tmp_path / "out") == ["0", "1"]


def test_nothing_chosen_is_no_shard_or_an_empty_one(shell, sample_tar, tmp_path) -> None:
    line = "penstock select sample.tar --where 'bytes > 1000000'"
    assert shell(f"{line} -o 'out/%d.tar'").returncode == 0
    assert names_in(tmp_path / "out") == []
    assert shell(f"{line} -o one.tar --no-index").returncode == 0
    assert shell("tar tf one.tar").stdout == ""


def test_sort_writes_no_folder_and_no_command(shell, sample_tar) -> None:
    for output, hint in (("out/", "%06d"), ("'pipe:cat'", "-o -")):
        done = shell(f"penstock sort sample.tar -o {output}")
        assert done.returncode == 2
        assert hint in done.stderr


def test_split_needs_a_pattern(shell, sample_tar) -> None:
    done = shell("penstock split sample.tar -o out.tar")
    assert done.returncode == 2
    assert "%06d" in done.stderr


# ── select ──────────────────────────────────────────────────────────────────────────────


def test_select_by_an_expression_over_the_index(shell, shards, tmp_path) -> None:
    line = f"""penstock select '{shards}' --where 'key >= "k007" and has("jpg")'"""
    assert shell(f"{line} -o some.tar").returncode == 0
    assert keys(tmp_path / "some.tar") == NAMES[7:]
    assert shell(f"{line} --list").stdout.split() == NAMES[7:]
    assert names_in(tmp_path / "shards") == ["train-000000.tar", "train-000001.tar"]
    bad = shell(f"penstock select '{shards}' --where 'widht > 3' --list")
    assert bad.returncode == 2
    assert "widht" in bad.stderr


def test_select_by_a_column_that_the_index_has(shell, shards, tmp_path) -> None:
    assert shell(f"penstock index '{shards}' --column label=cls:value").returncode == 0
    done = shell(f"penstock select '{shards}' --where 'label == 2' --list --json")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["key"] for row in found] == ["k002", "k005", "k008"], done.stderr
    assert found[0]["schema"] == "penstock.select/1"


def test_select_by_lists_of_keys(shell, shards, tmp_path) -> None:
    (tmp_path / "list").write_text("k008\nk001\n")
    assert shell(f"penstock select '{shards}' --keys list -o 'a/%d.tar' -n 1").returncode == 0
    assert [keys(tmp_path / f"a/{n}.tar") for n in range(2)] == [["k001"], ["k008"]]
    assert shell(f"penstock select '{shards}' --exclude list -o b.tar").returncode == 0
    assert keys(tmp_path / "b.tar") == [name for name in NAMES if name not in ("k001", "k008")]
    missing = shell(f"penstock select '{shards}' --keys k001,nosuch -o c.tar")
    assert missing.returncode == 1
    assert "nosuch" in missing.stderr
    assert shell(f"penstock select '{shards}' --keys a --exclude b --list").returncode == 2


# ── sort ────────────────────────────────────────────────────────────────────────────────


def test_sort_by_key_keeps_equal_keys_in_their_order(tmp_path) -> None:
    for name in "xy":
        with wds.TarWriter(str(tmp_path / f"{name}.tar")) as sink:
            for key in ("b", "a", "c"):
                sink.write({"__key__": key, "txt": f"{name}{key}"})
    both = [tmp_path / "x.tar", tmp_path / "y.tar"]
    done = tools.sort(both, tmp_path / "o.tar", duplicates="number")
    assert done.samples == 6
    assert [sample["txt"] for sample in read(tmp_path / "o.tar")] == [
        *(b"xa", b"ya"),
        *(b"xb", b"yb"),
        *(b"xc", b"yc"),
    ]


def test_sort_by_a_field_as_text_or_number(tmp_path) -> None:
    values = ["10", "9", "-1", "10"]
    with wds.TarWriter(str(tmp_path / "x.tar")) as sink:
        for number, value in enumerate(values):
            sink.write({"__key__": str(number), "score": value.encode(), "txt": "x"})

    def order(by):
        tools.sort(tmp_path / "x.tar", tmp_path / "o.tar", by=by, force=True, index=False)
        return "".join(keys(tmp_path / "o.tar"))

    assert order("score:int") == order("score:float") == "2103"
    assert order("score") == order("score:text") == "2031"
    with pytest.raises(wds.SampleError, match="sorted by numbers"):
        order("txt:int")
    with pytest.raises(wds.SampleError, match="lacks the field 'scor'"):
        order("scor:int")
    with pytest.raises(wds.PipelineError, match="--by"):
        order("score:integer")


def test_sort_at_random_keeps_all_and_depends_on_the_seed(shell, shards, tmp_path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        line = f"penstock sort '{shards}' -o '{name}/%d.tar' --by random --seed {seed} -n 4"
        assert shell(line).returncode == 0
    a, b, c = (keys(*sorted((tmp_path / name).glob("*.tar"))) for name in "abc")
    assert a == b != c
    assert sorted(a) == sorted(c) == NAMES
    assert shards_in(tmp_path / "a") == shards_in(tmp_path / "b")


def test_sort_of_five_times_its_memory_under_a_limit(shell, tmp_path) -> None:
    count, each = 400, 1_000_000
    order = random.Random(3).sample(range(count), count)
    with wds.TarWriter(str(tmp_path / "x.tar"), encoder=False) as sink:
        for number in order:
            sink.write({"__key__": f"{number:05d}", "bin": number.to_bytes(4, "big") * (each // 4)})
    line = "penstock sort x.tar -o 'out/%03d.tar' --memory 80MB -n 100 --jobs 1 --no-index"
    used = shell(f"/usr/bin/env bash -c 'ulimit -v 1200000; OPENBLAS_NUM_THREADS=1 {line}'")
    assert used.returncode == 0, used.stderr
    found = [keys(tmp_path / f"out/{number:03d}.tar") for number in range(4)]
    assert [key for part in found for key in part] == [f"{number:05d}" for number in range(count)]


def test_sort_at_random_is_the_order_of_reshard(tmp_path) -> None:
    with wds.TarWriter(str(tmp_path / "x.tar")) as sink:
        for number in range(50):
            sink.write({"__key__": f"{number:03d}", "cls": number})
    source = str(tmp_path / "x.tar")
    tools.sort(source, tmp_path / "a" / "%d.tar", by="random", seed=5, memory="1kB", jobs=1)
    reshard(source, tmp_path / "b" / "%d.tar", by="random", seed=5, jobs=1)
    assert keys(tmp_path / "a" / "0.tar") == keys(tmp_path / "b" / "0.tar")


@pytest.mark.parametrize("kind", [bytes, int, float])
def test_a_column_larger_than_the_memory_is_sorted(kind) -> None:
    numbers = [random.Random(4).randrange(500) for _ in range(30_000)]
    values = [b"%040d" % number if kind is bytes else kind(number) for number in numbers]
    wanted = sorted(range(len(values)), key=values.__getitem__)
    tracemalloc.start()
    found = sort_numbers(iter(values), 300_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert list(found) == wanted
    assert peak < 1_500_000
    assert list(sort_numbers(values[:1000], 1000)) == [row for row in wanted if row < 1000]


def test_sort_holds_neither_keys_nor_places_in_memory(tmp_path) -> None:
    count, path = 10_000, str(tmp_path / "x.tar")
    with wds.TarWriter(path, encoder=False) as sink:
        for number in range(count):
            sink.write({"__key__": f"{number * 7919 % count:070d}", "cls": b"1"})
    tracemalloc.start()
    places = SamplePlaces([path], open_inputs([path], str))
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(places.keys) == len(places) == count
    assert held < 20 * count, "bytes, where a key alone has 70"
    assert peak < 150 * count


def test_columns_in_files_are_pickled_with_their_content() -> None:
    numbers, texts = DiskNumbers(range(20_000)), DiskTexts()
    for number in numbers:
        texts.append(f"{number}\udcff")
    numbers, texts = pickle.loads(pickle.dumps((numbers, texts)))
    assert list(numbers) == list(range(20_000))
    assert (len(texts), texts[19_999]) == (20_000, "19999\udcff")
    numbers.append(7)
    assert numbers[-1] == 7


# ── kills, full disks, remote stores, hostile names ─────────────────────────────────────


@pytest.fixture
def large(tmp_path):
    with wds.ShardWriter(str(tmp_path / "in-%d.tar"), maxcount=100, encoder=False) as sink:
        for number in range(300):
            key = f"{number * 7919 % 300:04d}"
            sink.write({"__key__": key, "bin": bytes([number % 256]) * 100_000})
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "penstock split 'in-{0..2}.tar' -o 'out/s-%03d.tar' -n 20 --jobs 2",
        "penstock sort 'in-{0..2}.tar' -o 'out/s-%03d.tar' -n 20 --jobs 2 --memory 3MB",
    ],
)
def test_a_command_killed_at_any_moment_continues(large, program, kills, line) -> None:
    kill_and_repeat(line, large, kills, program)


LINES = [
    "penstock split 'in-{0..2}.tar' -o 'out/s-%03d.tar' -n 20 --jobs 2",
    "penstock split 'in-{0..2}.tar' -o 'out/s-%03d.tar' -n 20 --jobs 2 --no-index",
    "penstock split 'in-{0..2}.tar' -o 'out/s-%03d.tar' -n 20 --jobs 2 --post 'echo %s >> posted'",
    "penstock sort 'in-{0..2}.tar' -o 'out/s-%03d.tar' -n 20 --jobs 2 --by random",
    "penstock select 'in-{0..2}.tar' -o 'out/s-%03d.tar' -n 20 --exclude 0001 --jobs 2",
    "penstock proc 'in-{0..2}.tar' -o out/ -c 'wc -c < sample.bin > sample.size' --jobs 2",
    "penstock create data -o 'out/{split}-%02d.tar' -n 5 --jobs 1 --split a=0.5,b=0.5",
]


@pytest.fixture
def sources(tmp_path):
    """Three small shards and a folder of files."""
    (tmp_path / "data").mkdir()
    for number in range(20):
        (tmp_path / f"data/{number}.txt").write_text(str(number))
    with wds.ShardWriter(str(tmp_path / "in-%d.tar"), maxcount=10, encoder=False) as sink:
        for number in range(30):
            sink.write({"__key__": f"{number:04d}", "bin": bytes(number)})
    return tmp_path


def stamps_in(folder):
    return {path.name: path.stat().st_mtime_ns for path in Path(folder).iterdir() if path.is_file()}


@pytest.mark.parametrize("line", LINES)
def test_a_finished_call_is_made_again_and_changes_nothing(shell, sources, line) -> None:
    first = shell(line)
    assert first.returncode == 0, first.stderr
    before = stamps_in(sources / "out")
    posted = (sources / "posted").read_text() if "posted" in line else ""
    again = shell(line)
    assert again.returncode == 0, again.stderr
    assert stamps_in(sources / "out") == before
    assert not posted or (sources / "posted").read_text() == posted
    assert shell(f"{line} --force").returncode == 0
    assert stamps_in(sources / "out") != before


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_call_killed_while_it_deletes_its_records_is_finished_by_the_same_call(
    shell, sources, line, place
) -> None:
    """The first or the last file that the command deletes in its control folder kills it."""
    stop = "plan.json" if place == "after" else "done/"
    (sources / "kill").mkdir()
    (sources / "kill/sitecustomize.py").write_text(
        "import os, signal\n"
        "unlink = os.unlink\n"
        "def kill(path, **more):\n"
        "    unlink(path, **more)\n"
        f"    if '.penstock' in path and {stop!r} in path and not path.endswith('.part'):\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "os.unlink = kill\n"
    )
    killed = shell(line, PYTHONPATH=f"{sources}/kill:{Path(wds.__file__).parents[1]}")
    assert killed.returncode in (-signal.SIGKILL, 128 + signal.SIGKILL), killed.stderr
    again = shell(line)
    assert again.returncode == 0, again.stderr
    assert shell(line.replace("out/", "whole/")).returncode == 0
    assert shards_in(sources / "out") == shards_in(sources / "whole")
    assert names_in(sources / "out") == names_in(sources / "whole")
    records = [path.name for path in (sources / "out/.penstock").rglob("*") if path.is_file()]
    assert set(records) == {"finished.json"}


@pytest.mark.parametrize("line", LINES)
def test_a_finished_call_writes_a_deleted_index_again(shell, sources, line) -> None:
    assert shell(line).returncode == 0
    before = stamps_in(sources / "out")
    for path in (sources / "out").glob("*.parquet"):
        path.unlink()
    assert shell(line).returncode == 0
    after = stamps_in(sources / "out")
    assert after.keys() == before.keys()
    assert [name for name in before if after[name] != before[name]] == [
        name for name in before if name.endswith(".parquet")
    ]


@pytest.mark.parametrize("change", ["lost", "replaced", "other input", "other option"])
def test_a_finished_call_is_not_taken_for_another(shell, sources, change) -> None:
    line = "penstock sort 'in-{0..2}.tar' -o 'out/s-%03d.tar' -n 10 --by random"
    assert shell(line).returncode == 0
    before = shards_in(sources / "out")
    if change == "lost":
        (sources / "out/s-001.tar").unlink()
    elif change == "replaced":
        path = sources / "out/s-001.tar"
        path.write_bytes(bytes(path.stat().st_size))
    elif change == "other input":
        with wds.TarWriter(str(sources / "in-1.tar"), encoder=False) as sink:
            sink.write({"__key__": "new", "bin": b"1"})
    else:
        line += " --seed 7"
    refused = shell(line)
    assert refused.returncode == 3
    assert "exists already" in refused.stderr
    assert shell(f"{line} --force").returncode == 0
    assert (shards_in(sources / "out") == before) == (change in ("lost", "replaced"))


def test_a_finished_call_is_found_when_its_outputs_were_copied(shell, sources) -> None:
    line = "penstock sort 'in-{0..2}.tar' -o 'out/s-%03d.tar' -n 10 --by random"
    assert shell(line).returncode == 0
    os.utime(sources / "out/s-001.tar")
    assert shell(line).returncode == 0


def test_an_earlier_call_is_not_found_finished_after_another_has_replaced_its_shards(
    shell, sources
) -> None:
    line = "penstock sort 'in-{0..2}.tar' -o 'out/s-%03d.tar' -n 10 --by random"
    assert shell(line).returncode == 0
    assert shell(f"{line} --seed 7 --force").returncode == 0
    assert shell(line).returncode == 3


@pytest.mark.parametrize("command", ["split", "proc"])
def test_of_two_equal_calls_at_once_both_end_well(program, sources, command) -> None:
    """The first call is stopped before it publishes its last shard; the second overtakes it."""
    (sources / "stop").mkdir()
    (sources / "stop/sitecustomize.py").write_text(
        "import os, signal\n"
        "replace = os.replace\n"
        "def stop(source, target, **more):\n"
        "    replace(source, target, **more)\n"
        "    if str(target).endswith('out/2.tar'):\n"
        "        os.kill(os.getpid(), signal.SIGSTOP)\n"
        "os.replace = stop\n"
    )
    line = {
        "split": "penstock split 'in-{0..2}.tar' -o 'out/%d.tar' -n 10 --jobs 1",
        "proc": "penstock proc 'in-{0..2}.tar' -o 'out/%d.tar' -c true",
    }[command]
    source = Path(wds.__file__).parents[1]
    environment = {**os.environ, "PATH": f"{program}:{os.environ['PATH']}"}

    def start(path):
        return subprocess.Popen(
            ["bash", "-c", f"exec {line}"],
            cwd=sources,
            env={**environment, "PYTHONPATH": path},
            stderr=subprocess.PIPE,
            text=True,
        )

    first = start(f"{sources}/stop:{source}")
    status = Path(f"/proc/{first.pid}/stat")
    wait_until(lambda: " T " in status.read_text(), "the first call publishes its last shard")
    second = start(str(source))
    assert second.wait(60) == 0, second.communicate()[1]
    first.send_signal(signal.SIGCONT)
    assert first.wait(60) == 0, first.communicate()[1]
    assert names_in(sources / "out") == ["0.tar", "1.tar", "2.tar", "shards.index.parquet"]
    index = open_index([str(sources / f"out/{n}.tar") for n in range(3)], True)
    assert len(index) == 30


@pytest.mark.parametrize(
    "command", ["split", "sort --by random", "select --exclude nothing", "create"]
)
def test_a_full_disk_is_reported_and_the_call_continues(shell, tmp_path, command) -> None:
    with wds.TarWriter(str(tmp_path / "x.tar"), encoder=False) as sink:
        for number in range(40):
            sink.write({"__key__": f"{number:03d}", "bin": os.urandom(50_000)})
    small = tmp_path / "small"
    small.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(small)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("NO RIGHT TO MOUNT A SMALL FILE SYSTEM")
    try:
        line = f"penstock {command.replace(' ', ' x.tar ', 1)}"
        line = line if "x.tar" in line else f"{line} x.tar"
        if command == "create":
            assert shell("penstock extract x.tar -o data").returncode == 0
            line = "penstock create data"
        full = shell(f"{line} -o 'small/s-%03d.tar' -n 8 --jobs 1 --no-index")
        assert full.returncode == 3, full.stderr
        assert "space" in full.stderr.lower()
        resized = ["mount", "-o", "remount,size=10m", str(small)]
        subprocess.run(resized, check=True, capture_output=True)
        again = shell(f"{line} -o 'small/s-%03d.tar' -n 8 --jobs 1 --no-index")
        assert again.returncode == 0, again.stderr
        assert shell(f"{line} -o 'whole/s-%03d.tar' -n 8 --jobs 1 --no-index").returncode == 0
        assert shards_in(small) == shards_in(tmp_path / "whole")
        assert names_in(small) == names_in(tmp_path / "whole")
    finally:
        subprocess.run(["umount", str(small)], check=False)


@pytest.mark.parametrize("command", ["split", "sort", "create --from plan --allow-pipe --jobs 1"])
def test_ctrl_c_leaves_no_half_output(tmp_path, program, command) -> None:
    """Each command reads a pipe that never ends, so it is interrupted in the middle of its work."""
    os.mkfifo(tmp_path / "fifo")
    if command.startswith("create"):
        (tmp_path / "plan").write_text("a.txt pipe:cat fifo\nb.txt text:x\n")
        source = "plan"
    else:
        source = "'pipe:cat fifo'"
    environment = {
        **os.environ,
        "PATH": f"{program}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "src"),
    }
    process = subprocess.Popen(
        ["bash", "-c", f"exec penstock {command} {source} -o 'out/%d.tar' -n 1"],
        cwd=tmp_path,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with open(tmp_path / "fifo", "wb"):  # opened when the command reads
        os.killpg(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    left = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert left == [] or [path.name for path in (tmp_path / "out").glob("*.tar")] == ["1.tar"]


def test_hostile_keys_stay_inside_and_cannot_paint(shell, tmp_path) -> None:
    names = ["esc\x1b[31m.txt", "new\nline.txt", "n" * 300 + ".txt", "ok.txt"]
    tar(tmp_path / "x.tar", [(name, b"1") for name in names], format=1)
    done = shell("penstock split x.tar -o 'out/%d.tar' -n 2")
    assert done.returncode == 0, done.stderr
    assert len(keys(*sorted((tmp_path / "out").glob("*.tar")))) == 4
    for name in ("../up.txt", "/abs.txt"):
        tar(tmp_path / "y.tar", [(name, b"1")])
        refused = shell("penstock split y.tar -o 'bad/%d.tar'")
        assert refused.returncode == 1
        assert not list((tmp_path / "bad").glob("*"))
    tar(tmp_path / "z.tar", [("a\x1b]0;x.txt", b"1")] * 2, format=1)
    painted = shell("penstock split z.tar -o 'z/%d.tar'")
    assert painted.returncode == 1
    assert "\x1b" not in painted.stderr


def test_a_failed_command_leaves_nothing(shell, sample_tar, tmp_path) -> None:
    data = sample_tar.read_bytes()
    (tmp_path / "cut.tar").write_bytes(data[:5000])
    for command in ("split", "sort"):
        done = shell(f"penstock {command} cut.tar -o 'out/%d.tar'")
        assert done.returncode == 1
        assert not (tmp_path / "out").exists()
    shutil.rmtree(tmp_path / "out", ignore_errors=True)


@pytest.mark.parametrize("command", ["split -n 2", "sort -n 2", "select --keys k001 -n 2"])
def test_shards_that_are_read_are_not_replaced_even_with_force(command, shell, shards, tmp_path):
    before = [(tmp_path / name).read_bytes() for name in (FIRST, SECOND)]
    line = f"penstock {command} 'shards/*.tar' -o 'shards/train-%06d.tar' --force"
    done = shell(line)
    assert done.returncode == 2
    assert "would replace an input" in done.stderr
    assert [(tmp_path / name).read_bytes() for name in (FIRST, SECOND)] == before


@pytest.mark.parametrize(
    "line",
    [
        f"cat 'shards/*.tar' -o {FIRST}",
        "cat 'shards/*.tar' -o other/train-000000.tar",
        f"convert 'shards/*.tar' --to csv -o {SECOND}",
        "proc 'shards/*.tar' -o shards/ -c true",
        "proc 'shards/*.tar' -o other/ -c true",
        f"verify {FIRST} --repair -o {FIRST}",
        "verify 'shards/*.tar' --repair -o other/",
        "split 'shards/*.tar' -o 'linked-%06d.tar' -n 2",
        f"sort {FIRST} -o linked-000000.tar",
    ],
)
def test_commands_never_replace_what_they_read(line, shell, shards, tmp_path):
    (tmp_path / "other").symlink_to("shards")
    (tmp_path / "linked-000000.tar").symlink_to(FIRST)
    before = [(tmp_path / name).read_bytes() for name in (FIRST, SECOND)]
    done = shell(f"penstock {line} --force")
    assert done.returncode == 2, done.stderr
    assert "would replace an input" in done.stderr
    assert [(tmp_path / name).read_bytes() for name in (FIRST, SECOND)] == before
