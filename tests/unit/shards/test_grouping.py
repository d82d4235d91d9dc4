"""From members to samples: the key rule, the grouping, and the inner loop against a plain one."""

from __future__ import annotations

import io
import re
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import DuplicateError, ShardError, ShardWarning, StorageError
from penstock.handlers import ignore_and_continue, ignore_and_stop
from penstock.shards.lazy_bytes import ShardFile
from penstock.shards.open_shard import open_shard, tape_of
from penstock.shards.sample_reader import Samples, base_plus_ext, is_meta
from penstock.stages.reading.tar_samples import tarfile_to_samples
from tar_files import SlowStream, tar_bytes


class Shard:
    """A tar in memory, made member by member."""

    def __init__(self, format=tarfile.USTAR_FORMAT, **fields) -> None:
        self._target, self.fields = io.BytesIO(), fields
        self._tar = tarfile.open(fileobj=self._target, mode="w", format=format)  # noqa: SIM115

    def add(self, name: str, data: bytes | None, **fields) -> Shard:
        info = tarfile.TarInfo(name)
        for field, value in {**self.fields, **fields}.items():
            setattr(info, field, value)
        if data is None:
            info.type = tarfile.DIRTYPE
            self._tar.addfile(info)
        else:
            info.size = len(data)
            self._tar.addfile(info, io.BytesIO(data))
        return self

    def bytes(self) -> bytes:
        self._tar.close()
        return self._target.getvalue()


def tar_of(names, **attributes) -> bytes:
    """A tar whose members contain their names."""
    return tar_bytes(((name, name.encode()) for name in names), **attributes)


def samples_of(data: bytes, sizes=(1 << 20,), handler=None, want=None, **options):
    tape = tape_of(SlowStream(data, sizes), "x.tar", want=want)
    return list(Samples(tape, *([handler] if handler else []), **options))


def fields_of(data: bytes, **options):
    return [(s["__key__"], [f for f in s if not f.startswith("__")]) for s in samples_of(data, **options)]  # fmt: skip  # noqa: E501


# ── names ───────────────────────────────────────────────────────────────────────────────

NAMES = {
    "a.b.jpg": ("a", "b.jpg"),
    "d.x/a.seg.png": ("d.x/a", "seg.png"),
    "./a.jpg": ("./a", "jpg"),
    "a..jpg": ("a", ".jpg"),
    ".hidden": (None, None),
    "d/.hidden.txt": ("d/", "hidden.txt"),
    "noext": (None, None),
    "d.x/noext": (None, None),
    "a.": ("a", ""),
    "a.x/b/.hidden": ("a.x/b/", "hidden"),
    "a.x/.hidden": (None, None),
}


@pytest.mark.parametrize("name", NAMES)
def test_the_key_ends_at_the_first_dot_of_the_last_part(name):
    assert base_plus_ext(name) == NAMES[name]
    key, field = NAMES[name]
    assert fields_of(tar_of([name])) == ([(key, [field])] if key is not None else [])


@given(st.text("a./_", max_size=9))
def test_the_key_rule_is_the_documented_pattern(name):
    match = re.match(r"^((?:.*/|)[^.]+)[.]([^/]*)$", name)
    assert base_plus_ext(name) == (match.groups() if match else (None, None))


@given(st.text("_a./", max_size=9))
def test_meta_names_are_the_documented_ones(name):
    plain = "/" not in name and name.startswith("__") and name.endswith("__")
    under = re.match(r"__[^/]*__($|/)", name) is not None
    if name != "__":
        assert is_meta(name) == (plain or under)


def test_meta_members_hold_no_samples():
    names = ["__meta__", "__meta__/a.jpg", "__index__.json", "a/__m__/b.jpg", "__a.b__", "c.jpg"]
    assert [key for key, _ in fields_of(tar_of(names))] == ["__index__", "a/__m__/b", "c"]


def test_a_meta_name_is_none_of_a_sample_that_it_looks_like():
    assert fields_of(tar_of(["x.b__", "__a.jpg", "__a.b__"])) == [("x", ["b__"]), ("__a", ["jpg"])]


def test_fields_are_lower_cased_and_keys_are_not():
    assert fields_of(tar_of(["Ab.JPG", "Ab.Seg.PNG"])) == [("Ab", ["jpg", "seg.png"])]


def test_names_that_are_not_utf_8_survive():
    data = bytearray(tar_of(["a__.txt"]))
    data[1:3] = b"\xff\xfe"
    data[148:156] = b" " * 8
    data[148:156] = b"%06o\0 " % sum(data[:512])
    (sample,) = samples_of(bytes(data))
    assert sample["__key__"].encode("utf-8", "surrogateescape") == b"a\xff\xfe"


def test_a_sample_begins_with_key_and_url_and_local_path():
    (sample,) = samples_of(tar_of(["a.txt", "a.cls"]), local_path="/x.tar")
    assert list(sample.items()) == [
        ("__key__", "a"),
        ("__url__", "x.tar"),
        ("__local_path__", "/x.tar"),
        ("txt", b"a.txt"),
        ("cls", b"a.cls"),
    ]


# ── what occurs twice ───────────────────────────────────────────────────────────────────


def test_a_field_that_stands_twice_is_an_error_that_says_where():
    data = tar_of(["a.txt", "b.jpg", "b.JPG"])
    with pytest.raises(
        DuplicateError, match=r"'jpg' occurs twice .*\(x\.tar, sample 'b' at byte 2048\)"
    ):
        samples_of(data)


@pytest.mark.parametrize("field", ["__key__", "__url__", "__local_path__", "__LOCAL_PATH__"])
def test_a_field_that_readers_add_is_an_error_also_without_a_local_path(field):
    with pytest.raises(DuplicateError, match=rf"'{field.lower()}' occurs twice"):
        samples_of(tar_of(["a.txt", f"a.{field}", "b.txt"]))


def test_a_key_that_stands_twice_is_an_error_that_says_where():
    data = tar_of(["a.txt", "b.txt", "a.cls"])
    with pytest.raises(
        DuplicateError, match=r"'a' occurs twice .*\(x\.tar, sample 'a' at byte 2048\)"
    ):
        samples_of(data)


def test_going_on_leaves_out_the_later_one_and_counts_it():
    count = []
    data = tar_of(["a.txt", "a.TXT", "a.cls", "b.txt", "a.txt", "a.jpg", "c.txt"])
    found = samples_of(data, handler=ignore_and_continue, on_skip=lambda: count.append(1))
    assert [(s["__key__"], sorted(s)[2:]) for s in found] == [
        ("a", ["cls", "txt"]),
        ("b", ["txt"]),
        ("c", ["txt"]),
    ]
    assert len(count) == 2


def test_stopping_gives_the_sample_so_far_and_ends():
    count = []
    data = tar_of(["a.txt", "b.jpg", "b.jpg", "c.txt"])
    found = samples_of(data, handler=ignore_and_stop, on_skip=lambda: count.append(1))
    assert [s["__key__"] for s in found] == ["a", "b"]
    assert count == []


# ── choosing and renaming ───────────────────────────────────────────────────────────────


def test_names_are_renamed_first_and_selected_by_the_new_name(tmp_path):
    (tmp_path / "x.tar").write_bytes(
        tar_of(["__meta__/a.txt", "d/a.jpg", "d/a.cls", "noext", "e/b.jpg"])
    )
    renamed, selected = [], []

    def rename(name):
        renamed.append(name)
        return name.replace("d/", "D/")

    def select(name):
        selected.append(name)
        return name.endswith(".jpg")

    stage = tarfile_to_samples(rename_files=rename, select_files=select)
    found = list(stage([{"url": str(tmp_path / "x.tar")}]))
    assert [(s["__key__"], sorted(s)[2:]) for s in found] == [("D/a", ["jpg"]), ("e/b", ["jpg"])]
    assert set(renamed) == {"d/a.jpg", "d/a.cls", "noext", "e/b.jpg"}
    assert selected == ["D/a.jpg", "D/a.cls", "e/b.jpg"]


def test_renaming_alone_skips_meta_members_by_their_own_name(tmp_path):
    (tmp_path / "x.tar").write_bytes(tar_of(["__meta__/a.txt", "b.txt"]))
    stage = tarfile_to_samples(rename_files=lambda name: name.replace("__meta__/", ""))
    assert [s["__key__"] for s in stage([{"url": str(tmp_path / "x.tar")}])] == ["b"]


def test_what_is_not_selected_does_not_part_a_sample():
    data = tar_of(["a.jpg", "b.txt", "a.cls"])
    found = samples_of(data, want=lambda name: not name.startswith(b"b"))
    assert [(s["__key__"], sorted(s)[2:]) for s in found] == [("a", ["cls", "jpg"])]


def test_data_that_is_not_selected_is_not_read(tmp_path, monkeypatch):
    shard = Shard()
    for number in range(50):
        shard.add(f"{number}.bin", bytes(200_000)).add(f"{number}.cls", b"1")
    path = tmp_path / "x.tar"
    path.write_bytes(shard.bytes())
    read = []
    pread = __import__("os").pread
    monkeypatch.setattr(
        "penstock.shards.byte_windows.os.pread", lambda *args: read.append(pread(*args)) or read[-1]
    )
    stage = tarfile_to_samples(select_files=lambda name: name.endswith(".cls"))
    assert len(list(stage([{"url": str(path)}]))) == 50
    assert sum(map(len, read)) < path.stat().st_size / 10


# ── the inner loop against a plain one ──────────────────────────────────────────────────


def plain_samples(data: bytes):
    """What the samples must be, from the complete reader and the rule, without haste."""
    found, stem = [], None
    for member in tape_of(SlowStream(data), "x.tar"):
        name = member.name.decode("utf-8", "surrogateescape")
        key, ext = base_plus_ext(name)
        if key is None or is_meta(name):
            continue
        if key != stem:
            stem = key
            found.append((member.offset, {"__key__": key, "__url__": "x.tar"}))
        found[-1][1][ext.lower()] = member.data
    return found


def fast_samples(data: bytes, sizes):
    samples = Samples(tape_of(SlowStream(data, sizes), "x.tar"))
    return [(samples.offset, sample) for sample in samples]


MEMBERS = st.lists(
    st.tuples(
        st.sampled_from(["k{n}", "d.x/k{n}", "grün{n}", "x" * 110 + "{n}", "__k{n}"]),
        st.lists(st.sampled_from(["jpg", "CLS", "seg.png", "b__", ""]), min_size=1, unique=True),
        st.one_of(st.integers(0, 1500), st.sampled_from([0, 511, 512, 513, 5000])),
        st.booleans(),
    ),
    max_size=12,
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(
    MEMBERS,
    st.sampled_from([tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]),
    st.sampled_from([0, 1.5]),
    st.lists(st.integers(1, 4000), min_size=1, max_size=5),
)
def test_the_inner_loop_gives_what_the_plain_one_gives(
    tmp_path_factory, made, format, mtime, sizes
):
    if format == tarfile.USTAR_FORMAT:
        made = [member for member in made if not member[0].startswith("x")]
    shard = Shard(format, mtime=mtime)
    for number, (stem, fields, size, folder) in enumerate(made):
        for field in fields:
            shard.add(f"{stem.format(n=number)}.{field}", b"%d" % number * size)
            if folder:
                shard.add("folder" * (1 + 20 * (format != tarfile.USTAR_FORMAT)), None)
    data = shard.bytes()
    wanted = plain_samples(data)
    assert fast_samples(data, sizes) == wanted
    path = tmp_path_factory.mktemp("shards") / "x.tar"
    path.write_bytes(data)
    with open_shard(str(path)) as tape:
        samples = Samples(tape)
        found = [(samples.offset, {**sample, "__url__": "x.tar"}) for sample in samples]
    assert found == wanted


def test_many_small_and_large_members_cross_the_window_everywhere(tmp_path):
    shard = Shard()
    for number in range(3000):
        shard.add(f"{number}.txt", b"%d" % number * (number % 97))
        if number % 100 == 0:
            shard.add(f"{number}.bin", bytes([number % 256]) * (1000 * number))
    data = shard.bytes()
    wanted = plain_samples(data)
    assert fast_samples(data, (1 << 20,)) == wanted
    assert fast_samples(data, (65536,)) == wanted
    assert fast_samples(data, (12345, 77, 4096)) == wanted
    (tmp_path / "x.tar").write_bytes(data)
    with open_shard(str(tmp_path / "x.tar")) as tape:
        assert [{**s, "__url__": "x.tar"} for s in Samples(tape)] == [s for _, s in wanted]


# ── cut shards ──────────────────────────────────────────────────────────────────────────


def small_shard(kind: str) -> bytes:
    long = "folder/" * 16 if kind == "gnu" else ""
    format = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
    shard = Shard(format[kind], mtime=1.5 if kind == "pax" else 1)
    for key in "abc":
        shard.add(f"{long}{key}.txt", key.encode() * 20).add(f"{long}{key}.cls", b"1")
    return shard.bytes()


@pytest.mark.parametrize("kind", ["ustar", "pax", "gnu"])
@pytest.mark.parametrize("way", ["file", "stream", "dripping"])
def test_a_shard_cut_at_any_byte_gives_its_samples_and_an_error_or_a_notice(tmp_path, kind, way):
    data = small_shard(kind)
    everything = samples_of(data)
    follows = headers_of_following_samples(data)
    members = [(m.offset, m.name) for m in tape_of(SlowStream(data), "x.tar")]
    end = len(data.rstrip(b"\0"))
    end += -end % 512 + 512  # behind the first zero block all is there
    (tmp_path / "x.tar").write_bytes(data)
    between = {offset for offset, _ in members[1:]} | {end - 512}
    with open(tmp_path / "x.tar", "r+b") as file:
        for cut in reversed(range(end + 3)):
            file.truncate(cut)
            sizes = (100, 413, 999) if way == "dripping" else (1 << 20,)
            stream = file if way == "file" else SlowStream(data[:cut], sizes)
            known = sum(header_end <= cut for header_end in follows)
            if cut in between:
                with pytest.warns(ShardWarning, match=rf"end-of-archive.*x\.tar, byte {cut};"):
                    found = list(Samples(tape_of(stream, "x.tar")))
                assert sum(len(s) - 2 for s in found) == sum(o < cut for o, _ in members)
                assert found[:-1] == everything[: len(found) - 1]
                continue
            check_cut(stream, cut, everything, complete=cut >= end, known=known)


def headers_of_following_samples(data: bytes) -> list[int]:
    """For each sample but the last, where the header that shows that it is complete ends."""
    members = list(tape_of(SlowStream(data), "x.tar"))
    keys = [base_plus_ext(member.name.decode())[0] for member in members]
    return [m.data_offset for m, key, before in zip(members[1:], keys[1:], keys) if key != before]


def check_cut(stream, cut, everything, complete, known=0):
    found, error = [], None
    try:
        found.extend(Samples(tape_of(stream, "x.tar")))
    except ShardError as caught:
        error = caught
    assert found == everything[: len(found)], cut
    assert len(found) >= known, cut
    if complete:
        assert error is None, cut
        assert found == everything, cut
    else:
        assert error is not None, cut
        assert error.origin.url == "x.tar", cut
        assert 0 <= error.origin.offset <= cut, (cut, error)


def test_a_changed_byte_of_any_header_is_found_in_the_inner_loop():
    good = tar_of(["a.txt", "b.txt", "c.txt", "d.txt"])
    for place in range(2048, 2048 + 512):
        if 154 <= place - 2048 < 156:
            continue  # what ends the checksum's digits: other ends are no damage
        bad = bytearray(good)
        bad[place] ^= 0x09
        samples = Samples(tape_of(SlowStream(bytes(bad)), "x.tar"))
        found = []
        with pytest.raises(ShardError, match=r"checksum.*\(x\.tar, byte 2048\)"):
            found.extend(sample["__key__"] for sample in samples)
        assert samples.offset == 0


def test_a_pax_header_before_the_end_is_an_error_in_the_inner_loop_too():
    data = small_shard("pax")
    end = len(data.rstrip(b"\0"))
    end += -end % 512
    bad = data[:end] + data[:1024] + bytes(1024)
    with pytest.raises(ShardError, match="does not follow"):
        samples_of(bad)


def cut_inside_data(name: str) -> bytes:
    """A shard of large members that ends inside the data of the member of that name."""
    shard = Shard()
    for key in "abc":
        shard.add(f"{key}.bin", key.encode() * (300 << 10)).add(f"{key}.cls", b"1")
    data = shard.bytes()
    members = {member.name: member for member in tape_of(SlowStream(data), "x.tar")}
    return data[: members[name.encode()].data_offset + 7]


@pytest.mark.parametrize("threads", [False, True], ids=["inline", "left for threads"])
def test_the_sample_before_a_large_member_that_is_cut_is_complete(tmp_path, threads):
    (tmp_path / "x.tar").write_bytes(cut_inside_data("c.bin"))
    with open_shard(str(tmp_path / "x.tar")) as tape:
        later = ShardFile.of(tape.window) if threads else None
        samples, keys = Samples(tape, later=later), []
        with pytest.raises(ShardError, match="ends inside a member's data"):
            keys.extend(sample["__key__"] for sample in samples)
    assert keys == ["a", "b"]
    with (
        open_shard(str(tmp_path / "x.tar"), start=samples.next_offset) as tape,
        pytest.raises(ShardError, match="ends inside a member's data"),
    ):
        list(Samples(tape))  # a run that resumes here gets the same error


def test_a_sample_whose_own_member_is_cut_is_not_given():
    for name in ("a.bin", "b.cls", "c.cls"):
        keys = []
        with pytest.raises(ShardError, match="ends inside"):
            keys.extend(
                sample["__key__"]
                for sample in Samples(tape_of(SlowStream(cut_inside_data(name)), "x.tar"))
            )
        assert keys == sorted("abc"[: "abc".index(name[0])])


def test_a_member_that_is_not_selected_does_not_show_that_a_sample_is_complete(tmp_path):
    """The next selected member may belong to the same sample."""
    (tmp_path / "x.tar").write_bytes(cut_inside_data("c.bin"))
    for select, expected in ((lambda name: True, ["a", "b"]), (lambda name: "cls" in name, ["a"])):
        stage = tarfile_to_samples(select_files=select, rename_files=lambda name: f"new-{name}")
        keys = []
        with pytest.raises(ShardError, match="ends inside"):
            keys.extend(sample["__key__"] for sample in stage([{"url": str(tmp_path / "x.tar")}]))
        assert keys == [f"new-{key}" for key in expected]


def test_a_place_that_fails_inside_a_member_costs_no_complete_sample():
    class Failing(SlowStream):
        def read(self, count):
            data = super().read(count)
            if not data:
                raise StorageError("the server is gone")
            return data

    keys = []
    with pytest.raises(StorageError, match="the server is gone"):
        keys.extend(
            sample["__key__"]
            for sample in Samples(tape_of(Failing(cut_inside_data("c.bin")), "x.tar"))
        )
    assert keys == ["a", "b"]
