"""The commands that read shards, in a real shell: output, JSON, statuses, hostile names."""

from __future__ import annotations

import copy
import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest
from tool_shards import picture, tar

import penstock as wds
from penstock import tools
from penstock.cli import COMMANDS
from penstock.jobs import map_shards

FIRST = "shards/train-000000.tar"
ROOT = Path(__file__).resolve().parents[2]


def lines(done):
    """The JSON lines of a command that ended well, all of one schema."""
    assert done.stderr == ""
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert len({one["schema"] for one in found}) == 1
    return found


# ── the same rules for every command ────────────────────────────────────────────────────


@pytest.mark.parametrize("name", COMMANDS)
def test_the_example_of_the_help_runs(name, shell, shards) -> None:
    shown = shell(f"penstock {name} --help").stdout
    example = shown.partition("example:\n")[2].strip()
    assert f"penstock {name}" in example
    done = shell(example)
    assert done.returncode == 0, done.stderr


def test_help_is_fast_because_nothing_is_loaded(shell) -> None:
    code = "import sys; from penstock.cli import main; main(['--help'])"
    done = shell(f'{sys.executable} -X importtime -c "{code}"')
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert not loaded & {"numpy", "torch", "pyarrow", "rich", "penstock.shards"}


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("verfy x.tar", "did you mean 'verify'"),
        ("ls --jsno x.tar", "did you mean '--json'"),
        ("convert x.tar --to parqet -o x", "did you mean 'parquet'"),
        (f"ls {FIRST} --slice", "unknown argument '--slice'"),
        ("ls", "no shards"),
        ("ls nothing-*.tar", "matches no file"),
        ("ls zpush://127.0.0.1:5000", "ZeroMQ addresses are not supported"),
        (f"cat {FIRST} -o zpush://127.0.0.1:5000", "ZeroMQ addresses are not supported"),
        (f"sort {FIRST} -o zpub://127.0.0.1:5000", "ZeroMQ addresses are not supported"),
        (f"select {FIRST} --list --where 'key < 3 and siez > 1'", "\n  key < 3 and siez > 1\n"),
        ("verify x.tar --repair", "belong together"),
    ],
)
def test_wrong_usage_is_status_2_and_suggests(line, hint, shell, shards) -> None:
    done = shell(f"penstock {line}")
    assert (done.returncode, done.stdout) == (2, "")
    assert hint in done.stderr


def test_an_unknown_field_suggests_the_nearest(shell, shards) -> None:
    assert shell(f"penstock extract {FIRST} -o files").returncode == 0
    for line in (
        f"head {FIRST} --fields jpgg",
        f"sort {FIRST} -o x.tar --by jpgg",
        "create files -o x.tar --require cls,jpgg",
    ):
        done = shell(f"penstock {line}")
        assert done.returncode == 1
        assert "did you mean 'jpg'" in done.stderr


@pytest.mark.parametrize(
    "command", ["ls", "head", "show", "stats", "diff x.tar", "index", "create -o x.tar"]
)
def test_a_missing_shard_is_status_3(command, shell) -> None:
    done = shell(f"penstock {command} missing.tar")
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["ls", "head", "show", "stats", "diff cut.tar", "extract -o x"])
def test_a_damaged_shard_is_status_1(command, shell, tmp_path) -> None:
    tar(tmp_path / "cut.tar", [("a.txt", b"x" * 9000), ("b.txt", b"y" * 9000)])
    os.truncate(tmp_path / "cut.tar", 5000)
    done = shell(f"penstock {command} cut.tar")
    assert done.returncode == 1
    assert "cut short" in done.stderr
    assert not (tmp_path / "x").exists()


def test_a_full_disk_is_status_3_and_leaves_nothing(shell, shards, tmp_path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("NO /dev/full")
    assert shell(f"penstock convert {FIRST} --to csv -o /dev/full").returncode == 3
    assert shell(f"penstock convert {FIRST} --to csv -o no/such/folder.csv").returncode == 3
    assert shell(f"penstock ls {FIRST} > /dev/full").returncode == 3


def test_a_reader_that_goes_away_is_status_141(shell, tmp_path) -> None:
    tar(tmp_path / "x.tar", [(f"{n:06d}.txt", b"x") for n in range(20_000)])
    for command in ("ls x.tar", "ls x.tar --json", "convert x.tar --to jsonl -o -"):
        done = shell(f"penstock {command} | head -1; echo ${{PIPESTATUS[0]}}")
        assert done.stdout.splitlines()[-1] == "141"
        assert done.stderr == ""


def waits(process) -> bool:
    """Whether the process sleeps: here, because it has read all that the pipe holds."""
    stat = Path(f"/proc/{process.pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "S"


@pytest.mark.parametrize("command", ["convert {} --to csv -o out.csv", "extract {} -o out"])
def test_ctrl_c_is_status_130_and_leaves_nothing(command, program, shards, tmp_path) -> None:
    os.mkfifo(tmp_path / "slow.tar")
    words = [f"{program}/penstock", *command.format("slow.tar").split()]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path.parent)}
    environment["PYTHONPATH"] = os.pathsep.join(sys.path)
    running = subprocess.Popen(
        words, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    )
    data = (tmp_path / FIRST).read_bytes()
    with open(tmp_path / "slow.tar", "wb") as fifo:  # opens when the command reads
        fifo.write(data[:12_000])
        fifo.flush()
        deadline = time.monotonic() + 30
        while not (any(tmp_path.glob("*out*")) and waits(running)):
            assert time.monotonic() < deadline
            assert running.poll() is None
        running.send_signal(signal.SIGINT)
        assert running.wait(30) == 130
    assert "interrupted; nothing was written" in running.stderr.read()
    running.stderr.close()
    assert not list(tmp_path.glob("*out*"))


@pytest.mark.parametrize("command", ["extract -o out --fields txt", "convert --to csv -o out.csv"])
def test_nothing_is_overwritten_without_force(command, shell, shards) -> None:
    assert shell(f"penstock {command} {FIRST} --quiet").stdout == ""
    again = shell(f"penstock {command} {FIRST}")
    assert again.returncode == 3
    assert "--force" in again.stderr
    assert shell(f"penstock {command} {FIRST} --force").returncode == 0


def test_an_index_replaces_no_other_file(shell, shards, tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert shell(f"penstock index {FIRST} -o notes.txt").returncode == 3
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_former_words_still_work(shell, shards) -> None:
    for words in ("--workers 0", "--jobs 0", "--skip", "--on-error stop", "--on-error abort"):
        assert shell(f"penstock index {shards} {words} --quiet").returncode == 0
    assert shell(f"penstock bench {FIRST} --threads 1 --seconds 0.1 --skip").returncode == 0
    assert "--workers" not in shell("penstock index --help").stdout


def test_shards_come_from_lists_folders_patterns_and_pipes(shell, shards, tmp_path) -> None:
    (tmp_path / "list.txt").write_text(f"# two shards\n\n{shards}\n")
    for line in ("-l list.txt", "-l - < list.txt", "shards/", "'shards/*.tar'", f"'{shards}'"):
        done = shell(f"penstock ls {line} --json")
        assert [one["key"] for one in lines(done)] == [f"k{n:03d}" for n in range(10)]
    for line in (f"- < {FIRST}", f"'pipe:cat {FIRST}'"):
        assert len(lines(shell(f"penstock ls {line} --json"))) == 5
    (tmp_path / "list.txt").write_text("pipe:touch gone")
    assert shell("penstock ls -l list.txt").returncode == 2
    assert not (tmp_path / "gone").exists()


@pytest.mark.parametrize(
    "command",
    [
        *("ls", "head", "extract -o out", "stats", "verify", "bench --seconds 0", "lengths"),
        *("cat -o o/o.tar", "sort -o o/o.tar", "split -o o/%d.tar -n 1", "index -o o"),
        *("select --where 1==1 -o o/o.tar", "proc -o o/ -c true", "convert --to csv -o o"),
        "convert --to members -o o/%d.tar",
    ],
)
def test_the_name_of_a_shard_that_was_found_is_not_expanded_again(shell, tmp_path, command) -> None:
    for name in ("a.tar", "a.tar::pipe:touch gone; cat a.tar #.tar"):
        tar(tmp_path / name, [("a.txt", b"x")])
    shell(f"penstock {command} '*.tar'")
    assert not (tmp_path / "gone").exists()
    (tmp_path / "list").write_text("*.tar")
    shell(f"penstock {command} -l list")
    assert not (tmp_path / "gone").exists()


# ── each command ────────────────────────────────────────────────────────────────────────


def test_ls_lists_samples_with_sizes(shell, shards) -> None:
    done = shell(f"penstock ls {FIRST} -n 2 --fields 'cls caption:txt'")
    assert done.stdout == "k000  cls 1 B, caption 21 B\nk001  cls 1 B, caption 21 B\n"
    first = lines(shell(f"penstock ls {FIRST} --json -n 1"))[0]
    assert first["schema"] == "penstock.ls/1"
    assert (first["key"], first["offset"], first["fields"]["txt"]) == ("k000", 0, 21)


def test_head_prints_values(shell, shards) -> None:
    first = lines(shell(f"penstock head {FIRST} --json"))[0]
    assert first["values"]["json"] == {"id": 0, "tags": ["a", "b"]}
    assert first["values"]["cls"] == 0
    text = shell(f"penstock head {FIRST} -n 1").stdout
    assert "jpg   picture, 24 x 16" in text
    assert "txt   a picture of 0 apples" in text


def test_show_prints_members_with_their_bytes(shell, shards, tmp_path) -> None:
    shown = json.loads(shell(f"penstock show {FIRST} k003 --json").stdout)
    member = next(one for one in shown["members"] if one["field"] == "txt")
    data = (tmp_path / FIRST).read_bytes()
    place = member["data_offset"]
    assert data[place : place + member["size"]] == b"a picture of 3 apples"
    assert (shown["schema"], shown["key"]) == ("penstock.show/1", "k003")
    missing = shell(f"penstock show {FIRST} k03")
    assert (missing.returncode, "did you mean 'k003'" in missing.stderr) == (1, True)


def test_stats_count_what_is_there(shell, shards) -> None:
    found = json.loads(shell(f"penstock stats {shards} --json").stdout)
    assert (found["schema"], found["samples"], found["shards"]) == ("penstock.stats/1", 10, 2)
    assert found["fields"]["cls"]["classes"] == {"0": 4, "1": 3, "2": 3}
    assert found["fields"]["jpg"]["width"]["max"] == 24
    assert found["fields"]["txt"]["characters"]["median"] == 21
    text = shell(f"penstock stats {shards}").stdout
    assert "█" in text
    assert "\x1b" not in text


def test_stats_of_lengths_and_unreadable_fields(tmp_path) -> None:
    soundfile = pytest.importorskip("soundfile")
    sound = io.BytesIO()
    soundfile.write(sound, [0.0] * 8000, 16000, format="WAV")
    tar(tmp_path / "x.tar", [("a.wav", sound.getvalue()), ("b.wav", b"no"), ("b.jpg", b"no")])
    fields = tools.stats(str(tmp_path / "x.tar")).as_dict()["fields"]
    assert fields["wav"]["seconds"]["max"] == 0.5
    assert (fields["wav"]["unreadable"], fields["jpg"]["unreadable"]) == (1, 1)


def test_diff_finds_added_removed_moved_and_changed(shell, tmp_path) -> None:
    names = [("a", b"1"), ("b", b"1"), ("c", b"1"), ("d", b"1")]
    tar(tmp_path / "x.tar", [(f"{key}.txt", data) for key, data in names])
    tar(tmp_path / "y.tar", [("d.txt", b"1"), ("b.txt", b"2"), ("c.txt", b"1"), ("e.txt", b"1")])
    done = shell("penstock diff x.tar y.tar --json")
    found = sorted((one["change"], one["key"], tuple(one["fields"])) for one in lines(done))
    assert found == [
        *[("added", "e", ()), ("changed", "b", ("txt",))],
        *[("moved", "d", ()), ("removed", "a", ())],
    ]
    assert done.returncode == 1
    same = shell("penstock diff x.tar x.tar")
    assert (same.returncode, same.stdout) == (0, "no differences\n")


def test_diff_names_samples_in_another_shard_and_fields_that_came_and_went(tmp_path) -> None:
    tar(tmp_path / "x-0.tar", [("a.txt", b"1"), ("b.txt", b"1")])
    tar(tmp_path / "x-1.tar", [("c.txt", b"1")])
    tar(tmp_path / "y-0.tar", [("a.cls", b"1")])
    tar(tmp_path / "y-1.tar", [("b.txt", b"1"), ("c.txt", b"1")])
    found = list(tools.diff(f"{tmp_path}/x-*.tar", f"{tmp_path}/y-*.tar"))
    assert [(one.change, one.key, one.fields) for one in found] == [
        ("changed", "a", ("+cls", "-txt")),
        ("moved", "b", ()),
    ]


def test_extract_with_force_that_fails_leaves_only_what_it_replaced(shell, shards, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/k001.txt").write_text("old")
    done = shell(f"penstock extract {FIRST} -o out --keys k001,missing --force")
    assert done.returncode == 1
    assert os.listdir(tmp_path / "out") == ["k001.txt"]


def test_extract_writes_files(shell, shards, tmp_path) -> None:
    (tmp_path / "keys.txt").write_text("k001\nk007\n")
    done = shell(f"penstock extract {shards} -o out --keys keys.txt --fields 'txt picture:jpg'")
    assert done.returncode == 0
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["k001.picture", "k001.txt", "k007.picture", "k007.txt"]
    assert (tmp_path / "out/k007.txt").read_text() == "a picture of 7 apples"
    missing = shell(f"penstock extract {shards} -o out2 --keys k001,nobody")
    assert (missing.returncode, "'nobody'" in missing.stderr) == (1, True)
    assert not (tmp_path / "out2").exists()


@pytest.mark.parametrize("form", ["jsonl", "tsv", "csv"])
def test_convert_escapes_half_of_a_surrogate_pair_in_json(form, tmp_path) -> None:
    tar(tmp_path / "x.tar", [("a.json", b'"\\ud800"')])
    tools.convert(tmp_path / "x.tar", str(tmp_path / f"x.{form}"), to=form)
    assert rb"\ud800" in (tmp_path / f"x.{form}").read_bytes()


@pytest.mark.parametrize("form", ["jsonl", "tsv", "csv", "parquet"])
def test_convert_writes_tables(form, shell, shards, tmp_path) -> None:
    done = shell(f"penstock convert {shards} --to {form} -o t.{form} --json")
    assert lines(done)[0]["rows"] == 10
    path = tmp_path / f"t.{form}"
    if form == "parquet":
        rows = pyarrow.parquet.read_table(path).to_pylist()
    elif form == "jsonl":
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        assert rows[7]["json"] == {"id": 7, "tags": ["a", "b"]}
    else:
        with open(path, newline="") as file:
            rows = list(csv.DictReader(file, delimiter="\t" if form == "tsv" else ","))
    assert list(rows[7]) == ["__key__", "cls", "json", "txt"]
    assert (rows[7]["__key__"], str(rows[7]["cls"])) == ("k007", "1")
    assert rows[7]["txt"] == "a picture of 7 apples"


def test_convert_takes_bytes_only_by_name(shell, shards, tmp_path) -> None:
    shell(f"penstock convert {FIRST} --to parquet -o t.parquet --fields 'image:jpg,png cls'")
    rows = pyarrow.parquet.read_table(tmp_path / "t.parquet").to_pylist()
    assert rows[1]["image"] == picture(1)
    text = shell(f"penstock convert {FIRST} --to jsonl -o - --fields jpg").stdout
    assert "base64" not in text
    assert json.loads(text.splitlines()[0])["jpg"].startswith("/9j/")


def test_convert_names_a_field_that_comes_later_and_can_skip_bad_values(shell, tmp_path) -> None:
    tar(tmp_path / "x.tar", [("a.txt", b"x"), ("b.cls", b"1"), ("c.txt", b"x"), ("d.txt", b"y")])
    done = shell("penstock convert x.tar --to csv -o x.csv")
    assert (done.returncode, "--fields 'txt cls'" in done.stderr) == (1, True)
    assert not (tmp_path / "x.csv").exists()
    tar(tmp_path / "x.tar", [("a.cls", b"1"), ("b.cls", b"one"), ("c.cls", b"3")])
    assert shell("penstock convert x.tar --to csv -o x.csv").returncode == 1
    done = shell("penstock convert x.tar --to csv -o x.csv --on-error skip")
    assert done.returncode == 1
    assert "skipped:" in done.stdout
    assert (tmp_path / "x.csv").read_text() == "__key__,cls\na,1\nc,3\n"


@pytest.mark.parametrize("form", ["jsonl", "tsv", "csv", "parquet"])
def test_a_table_of_samples_becomes_the_same_samples(form, shell, tmp_path) -> None:
    with wds.TarWriter(str(tmp_path / "x.tar")) as sink:
        for key, text in (("a", 'a "quoted" word'), ("b", '"'), ("c", "line\u2028separator\x85")):
            sink.write({"__key__": key, "txt": text, "json": {"text": text}})
    assert shell(f"penstock convert x.tar --to {form} -o t.{form}").returncode == 0
    assert shell(f"penstock create t.{form} --from table -o y.tar").returncode == 0
    done = shell("penstock diff x.tar y.tar --json")
    changed = [json.loads(line)["fields"] for line in done.stdout.splitlines()]
    assert {field for fields in changed for field in fields} <= {"json"}  # written by others
    both = (wds.WebDataset(str(tmp_path / name)).decode() for name in ("x.tar", "y.tar"))
    for one, other in zip(*both):
        assert (one["txt"], one["json"]) == (other["txt"], other["json"])


def test_a_field_of_no_known_kind_is_text_in_a_table_if_it_is_in_the_first_sample(shell, tmp_path):
    with wds.TarWriter(str(tmp_path / "x.tar"), encoder=False) as sink:
        for number, raw in enumerate((b"\xff\xd8", b"plain", b"\x00")):
            sink.write({"__key__": str(number), "wnid": b"n%d" % number, "raw": raw})
    done = shell("penstock convert x.tar --to tsv --fields 'wnid raw' -o -")
    assert done.stdout.splitlines()[1:] == ["0\tn0\t/9g=", "1\tn1\tcGxhaW4=", "2\tn2\tAA=="]
    assert shell("penstock cat x.tar --slice 1: -o y.tar").returncode == 0
    refused = shell("penstock convert y.tar --to jsonl --fields raw -o -")
    assert refused.returncode == 1
    assert "no text here" in refused.stderr
    assert "'n0'" in shell("penstock head x.tar -n 1").stdout


def test_a_tsv_holds_neither_tabs_nor_line_ends(shell, tmp_path) -> None:
    with wds.TarWriter(str(tmp_path / "x.tar")) as sink:
        for key, text in (("a", "one"), ("b", "two\n"), ("c", "three\tfour")):
            sink.write({"__key__": key, "txt": text})
    done = shell("penstock convert x.tar --to tsv -o t.tsv")
    assert done.returncode == 1
    assert "--to csv" in done.stderr
    done = shell("penstock convert x.tar --to tsv -o t.tsv --on-error skip")
    assert done.returncode == 1
    assert (tmp_path / "t.tsv").read_text() == "__key__\ttxt\na\tone\n"


def test_cache_add_fetches_once(shell, shards) -> None:
    urls = "'pipe:cat shards/train-000000.tar'"
    first = json.loads(shell(f"penstock cache add {urls} --cache-dir c --json").stdout)
    assert (first["schema"], first["fetched"]) == ("penstock.cache/1", 1)
    listed = json.loads(shell("penstock cache ls --cache-dir c --json").stdout)
    assert [one["complete"] for one in listed["shards"]] == [True]
    assert shell("penstock cache add missing.tar --cache-dir c").returncode == 3


def test_bash_completes_commands_options_choices_and_files(shell, shards) -> None:
    def completed(*words):
        line = " ".join(f"'{word}'" for word in words)
        script = (
            'eval "$(penstock completion bash)"; '
            f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _penstock; "
            'echo "${COMPREPLY[@]}"; complete -p penstock'
        )
        done = shell(script)
        assert done.stderr == ""
        assert "-o default" in done.stdout.splitlines()[1]  # file names
        return done.stdout.splitlines()[0].split()

    assert completed("penstock", "ver") == ["verify"]
    assert completed("penstock", "verify", "--re") == ["--require", "--repair"]
    assert completed("penstock", "verify", "--for", "") == ["webdataset", "open_clip", "hub"]
    assert completed("penstock", "cache", "a") == ["add"]


# ── hostile names ───────────────────────────────────────────────────────────────────────

HOSTILE = [
    "../outside",
    "/tmp/penstock-outside",
    "a/../../outside",
    "esc\x1b[31mred\x1b]0;title\x07",
    "new\nline",
    "k" * 300,
    "rtl\u202e",
    "bad\udcff",
]


@pytest.fixture
def hostile(tmp_path):
    names = [(f"{name}.txt", b"x") for name in HOSTILE]
    tar(tmp_path / "h.tar", [*names, ("good.txt", b"fine")], format=1)


def test_hostile_names_write_nothing_outside_the_folder(shell, hostile, tmp_path) -> None:
    assert shell("penstock extract h.tar -o deep/out").returncode == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["h.tar"]
    done = shell("penstock extract h.tar -o deep/out --on-error skip --json")
    assert (done.returncode, json.loads(done.stdout)["skipped"]) == (1, 6)
    written = {path.name for path in (tmp_path / "deep/out").rglob("*")}
    assert written == {"good.txt", "rtl\u202e.txt", "bad\udcff.txt"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "h.tar"]
    assert not os.path.exists("/tmp/penstock-outside.txt")


def test_a_link_in_the_folder_does_not_lead_outside(shell, tmp_path) -> None:
    tar(tmp_path / "x.tar", [("d/a.txt", b"x")])
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/d").symlink_to(tmp_path / "elsewhere")
    done = shell("penstock extract x.tar -o out")
    assert (done.returncode, "this is a link" in done.stderr) == (1, True)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_file_that_is_a_link_is_replaced_and_not_followed(shell, tmp_path) -> None:
    tar(tmp_path / "x.tar", [("a.txt", b"new")])
    (tmp_path / "victim").write_text("old")
    (tmp_path / "out").mkdir()
    (tmp_path / "out/a.txt").symlink_to(tmp_path / "victim")
    assert shell("penstock extract x.tar -o out").returncode == 3
    assert shell("penstock extract x.tar -o out --force").returncode == 0
    assert (tmp_path / "victim").read_text() == "old"
    assert (tmp_path / "out/a.txt").read_text() == "new"


@pytest.mark.parametrize("first", ["a.b", "a.b/c.txt"])
def test_a_file_where_another_needs_a_folder_is_skipped(first, shell, tmp_path) -> None:
    second = "a.b/c.txt" if first == "a.b" else "a.b"
    tar(tmp_path / "x.tar", [(first, b"1"), (second, b"2"), ("z.txt", b"3")])
    refused = shell("penstock extract x.tar -o out")
    assert (refused.returncode, "--on-error skip" in refused.stderr) == (1, True), refused.stderr
    assert not (tmp_path / "out").exists()
    done = shell("penstock extract x.tar -o out --on-error skip --json")
    assert (done.returncode, json.loads(done.stdout)["skipped"]) == (1, 1), done.stderr
    assert (tmp_path / "out" / first).read_bytes() == b"1"
    assert (tmp_path / "out/z.txt").read_bytes() == b"3"


def test_a_file_that_an_earlier_shard_had_is_skipped(shell, tmp_path) -> None:
    tar(tmp_path / "x.tar", [("a.txt", b"1"), ("b.txt", b"2")])
    tar(tmp_path / "y.tar", [("a.txt", b"3")])
    refused = shell("penstock extract x.tar y.tar -o out")
    assert (refused.returncode, "--on-error skip" in refused.stderr) == (1, True), refused.stderr
    done = shell("penstock extract x.tar y.tar -o out --on-error skip --json")
    assert (done.returncode, json.loads(done.stdout)["skipped"]) == (1, 1), done.stderr
    assert (tmp_path / "out/a.txt").read_bytes() == b"1"


@pytest.mark.parametrize("scheme", ["local:", "asynclocal:", "simplecache::file:"])
def test_fsspec_writes_to_no_local_folder_because_it_follows_links(scheme, shell, tmp_path) -> None:
    tar(tmp_path / "x.tar", [("d/a.txt", b"new")])
    (tmp_path / "victim").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out/d").symlink_to(tmp_path / "victim")
    done = shell(f"penstock extract x.tar -o {scheme}//{tmp_path}/out --force")
    assert (done.returncode, "give its path" in done.stderr) == (2, True), done.stderr
    assert list((tmp_path / "victim").iterdir()) == []


URL_LIKE = [
    "%2e%2e/%2e%2e/victim",
    "%2e%2e%2fvictim",
    "pipe:touch victim;",
    "file:victim",
    "s3:x/a",
    "a?b#c",
    "-",
]


@pytest.mark.parametrize("output", ["deep/out", "file:deep/out", "file:deep/out/", "./deep//out"])
def test_members_named_like_urls_become_files_of_that_name(output, shell, tmp_path) -> None:
    (tmp_path / "victim.txt").write_text("old")
    tar(tmp_path / "x.tar", [(f"{name}.txt", b"new") for name in URL_LIKE])
    done = shell(f"penstock extract x.tar -o '{output}' --force")
    assert done.returncode == 0, done.stderr
    root = tmp_path / "deep/out"
    written = {str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()}
    assert written == {f"{name}.txt" for name in URL_LIKE}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["deep", "victim.txt", "x.tar"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["out"]
    assert (tmp_path / "victim.txt").read_text() == "old"


@pytest.mark.parametrize("output", ["", "file:", "pipe:cat; ", "-", "s3:", "gs://", "http://"])
def test_extract_needs_a_folder_as_output(output, shell, tmp_path) -> None:
    tar(tmp_path / "x.tar", [("touch victim;.txt", b"x"), ("pipe:touch victim;.txt", b"x")])
    done = shell(f"penstock extract x.tar -o '{output}' --force")
    assert (done.returncode, "the output" in done.stderr) == (2, True)
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar"]


@pytest.mark.parametrize("command", ["proc -c true", "cat", "split -n 2", "create --from folder"])
def test_commands_that_write_shards_refuse_an_empty_output(command, shell, tmp_path) -> None:
    tar(tmp_path / "x.tar", [("a.txt", b"x")])
    assert shell(f"penstock {command} x.tar -o ''").returncode in (2, 3)
    assert [path.name for path in tmp_path.iterdir()] == ["x.tar"]


def test_shards_named_like_urls_become_outputs_of_that_name(shell, tmp_path) -> None:
    name = "%2e%2e%2fvictim.tar"
    tar(tmp_path / name, [("a.txt", b"x")])
    assert shell(f"penstock verify '{name}' --repair -o 'file:{tmp_path}/good/'").returncode == 0
    proc = f"penstock proc '{name}' --no-index -c true"
    assert shell(f"{proc} -o 'file:{tmp_path}/done/'").returncode == 0
    mapped = f"file://{tmp_path}/mapped/{{stem}}.tar"
    map_shards(copy.copy, str(tmp_path / name), mapped, index=False, jobs=1)
    for folder in ("good", "done", "mapped"):
        assert (tmp_path / folder / name).exists()
    assert not (tmp_path / "victim.tar").exists()


def test_hostile_names_cannot_paint_the_terminal(shell, hostile) -> None:
    for command in ("ls", "head -n 20", "verify", "stats", "show", "diff h.tar"):
        done = shell(f"penstock {command} h.tar")
        for text in (done.stdout, done.stderr):
            assert "\x1b" not in text
            assert "\u202e" not in text
    keys = {one["key"] for one in lines(shell("penstock ls h.tar --json"))}
    assert keys == {*HOSTILE, "good"}  # a script gets them as they are


def test_a_list_of_keys_selects_the_same_samples(shell, hostile) -> None:
    assert shell("penstock select h.tar --where 'bytes >= 0' --list > keys").returncode == 0
    left = shell("penstock select h.tar --exclude keys --list").stdout.splitlines()
    assert all("\\n" in key for key in left)


# ── terminals ───────────────────────────────────────────────────────────────────────────


def at_terminal(program, folder, line, columns, **variables):
    """What a command prints at a terminal of so many columns."""
    import fcntl
    import pty
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 30, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path)}
    environment = {k: v for k, v in environment.items() if k not in ("NO_COLOR", "COLUMNS")}
    running = subprocess.Popen(
        ["bash", "-c", line],
        cwd=folder,
        env={**environment, "PATH": f"{program}:{os.environ['PATH']}", **variables},
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
    )
    os.close(follower)
    printed = b""
    while True:
        try:
            piece = os.read(leader, 65536)
        except OSError:
            break
        if not piece:
            break
        printed += piece
    os.close(leader)
    assert running.wait() == 0, printed
    return printed.decode()


@pytest.mark.parametrize("columns", [40, 200])
def test_lines_fit_the_terminal(columns, program, shards, tmp_path) -> None:
    for command in (f"stats {shards}", f"head {FIRST}", f"show {FIRST}"):
        printed = at_terminal(program, tmp_path, f"penstock {command}", columns)
        bars = [line for line in printed.splitlines() if "█" in line or "▀" in line or "  " in line]
        plain = [re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", line) for line in bars]
        assert plain
        assert max(map(len, plain)) <= max(columns, 72 if "stats" in command else 0)


def test_show_draws_the_picture_only_at_a_terminal(program, shell, shards, tmp_path) -> None:
    printed = at_terminal(program, tmp_path, f"penstock show {FIRST}", 80)
    assert printed.count("▀") == 24 * 8
    plain = at_terminal(program, tmp_path, f"penstock show {FIRST}", 80, NO_COLOR="1")
    assert "▀" not in plain
    assert "\x1b[3" not in plain
    assert "▀" not in at_terminal(program, tmp_path, f"penstock show {FIRST} --no-picture", 80)
    assert "▀" not in shell(f"penstock show {FIRST}").stdout


def test_a_table_at_a_terminal_cannot_paint_it(program, hostile, tmp_path) -> None:
    for form in ("csv", "jsonl"):
        line = f"penstock convert h.tar --to {form} -o - --quiet"
        printed = at_terminal(program, tmp_path, line, 80)
        assert "__key__" in printed
        assert not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202e]", printed)


@pytest.mark.parametrize(
    "command",
    [
        "cat",
        "sort",
        "select --exclude x",
        "proc -c true",
        "convert --to parquet",
        "create",
        "verify --repair",
    ],
)
def test_binary_data_is_not_written_to_a_terminal(command, program, shards, tmp_path) -> None:
    printed = at_terminal(program, tmp_path, f"penstock {command} {FIRST} -o -; echo $?", 80)
    assert "not written to a terminal" in printed
    assert printed.endswith("2\r\n")
    assert "ustar" not in printed


def test_progress_is_shown_only_at_a_terminal(program, shell, shards, tmp_path) -> None:
    printed = at_terminal(program, tmp_path, f"penstock verify {shards}", 80)
    assert "Verifying" in printed
    quiet = at_terminal(program, tmp_path, f"penstock verify {shards} --quiet", 80)
    assert quiet == ""
    assert shell(f"penstock verify {shards}").stderr == ""
    printed = at_terminal(program, tmp_path, f"penstock cat {shards} -o x.tar", 80)
    assert "Writing" in printed
    assert at_terminal(program, tmp_path, f"penstock cat {shards} -o y.tar --quiet", 80) == ""


# ── Python ──────────────────────────────────────────────────────────────────────────────


def test_every_command_has_its_function(shards, tmp_path) -> None:
    url = str(tmp_path / shards)
    assert [one.key for one in tools.ls(url, count=2)] == ["k000", "k001"]
    assert next(tools.head(url, fields="cls")).values == {"cls": 0}
    assert tools.show(str(tmp_path / FIRST), "k002").key == "k002"
    assert tools.extract(url, tmp_path / "out", fields="txt").files == 10
    assert tools.convert(url, str(tmp_path / "x.csv"), to="csv").rows == 10
    assert list(tools.verify(url)) == []
    assert list(tools.diff(url, url)) == []
    states = [one.state for one in tools.cache_add(url, cache_dir=tmp_path / "c")]
    assert states == ["not cached"] * 2  # local files are not copied
    assert set(tools.__all__) <= set(dir(tools))
    assert len(list(wds.WebDataset(url, shardshuffle=False))) == 10


# ── the manual ──────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("page", ["commands.md", "from-tarp.md"])
def test_every_shell_block_of_the_manual_runs(shell, shards, page) -> None:
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for line in "".join(blocks).splitlines():
        done = shell(line)
        assert done.returncode == 0, (line, done.stdout, done.stderr)


def test_the_manual_names_every_command_and_code() -> None:
    page = (ROOT / "docs" / "commands.md").read_text()
    for name in COMMANDS:
        assert f"`{name}`" in page
    for code in tools.CODES:
        assert f"| {code} |" in page
