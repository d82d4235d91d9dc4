"""Details of WebDataset and SpeechBrain that public programs rely on."""

from __future__ import annotations

import io
import tarfile
import warnings

import pytest
from penstock.gopen import Pipe

import penstock as wds
from penstock.errors import PipelineError, StorageError
from tar_files import write_tar


@pytest.fixture
def shard(tmp_path):
    def write(name, *keys):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        return write_tar(path, [(f"{key}.txt", key.encode()) for key in keys])

    return write


def keys_of(dataset):
    return [sample["__key__"] for sample in dataset]


# ── brackets in names ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["run[a,b]/0.tar", "run[1].tar", "[x]/[y].tar", "a]b[.tar"])
def test_brackets_that_match_no_file_are_part_of_the_name(tmp_path, name):
    url = str(tmp_path / name)
    assert list(wds.SimpleShardList(url)) == [{"url": url}]
    assert list(wds.SimpleShardList([url])) == [{"url": url}]
    with pytest.raises(FileNotFoundError):
        list(wds.WebDataset(url, shardshuffle=False))


def test_an_existing_folder_with_brackets_is_no_pattern(tmp_path, shard):
    shard("run1/0.tar", "other")
    url = shard("run[1]/0.tar", "this")
    for pattern in (
        url,
        str(tmp_path / "run[1]" / "*.tar"),
        str(tmp_path / "run[1]" / "[0-3]*.tar"),
    ):
        assert keys_of(wds.WebDataset(pattern, shardshuffle=False)) == ["this"]


def test_brackets_alone_are_never_a_pattern(tmp_path, shard):
    """A missing shard is an error, although another name matches the brackets."""
    for name in ("run[1]-0.tar", "run[1]-2.tar", "run1-1.tar"):
        shard(name, name)
    with pytest.raises(FileNotFoundError, match=r"'\[…\]' is part of a name.*run\[1\]-1\.tar"):
        list(wds.WebDataset(str(tmp_path / "run[1]-{0..2}.tar"), shardshuffle=False))


def test_brackets_beside_a_wildcard_are_a_pattern(tmp_path, shard):
    for name in ("a0.tar", "a1.tar", "a9.tar"):
        shard(name, name)
    dataset = wds.WebDataset(str(tmp_path / "*[0-3].tar"), shardshuffle=False)
    assert keys_of(dataset) == ["a0", "a1"]


# ── writers ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_tarstream_adds_members_between_samples(tmp_path, name):
    path = str(tmp_path / name)
    with wds.TarWriter(path) as writer:
        writer.write({"__key__": "a", "txt": "one"})
        member = tarfile.TarInfo("b.txt")
        member.size = 3
        writer.tarstream.addfile(member, io.BytesIO(b"two"))
        folder = tarfile.TarInfo("folder")
        folder.type = tarfile.DIRTYPE
        writer.tarstream.addfile(folder)
        writer.tarstream.close()
        writer.write({"__key__": "c", "txt": "three"})
    samples = list(wds.WebDataset(path, shardshuffle=False).decode())
    assert [(s["__key__"], s["txt"]) for s in samples] == [
        ("a", "one"),
        ("b", "two"),
        ("c", "three"),
    ]
    with tarfile.open(path) as tar:
        assert tar.getnames() == ["a.txt", "b.txt", "folder", "c.txt"]
    with pytest.raises(PipelineError, match="closed"):
        writer.tarstream.addfile(member, io.BytesIO(b"two"))


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz"])
def test_the_offset_of_tarstream_counts_samples_and_members(tmp_path, name):
    path, offsets = str(tmp_path / name), []
    member = tarfile.TarInfo("b.txt")
    member.size = 3
    with wds.TarWriter(path) as writer:
        offsets.append(writer.tarstream.offset)
        writer.write({"__key__": "a", "txt": "x" * 600})
        offsets.append(writer.tarstream.offset)
        writer.tarstream.addfile(member, io.BytesIO(b"two"))
        offsets.append(writer.tarstream.offset)
        writer.write({"__key__": "c", "txt": "x" * (5 << 20)})
        writer.write({"__key__": "d", "txt": "four"})
        offsets.append(writer.tarstream.offset)
    with tarfile.open(path) as tar:
        starts = [found.offset for found in tar.getmembers()]
    assert offsets == [*starts[:3], starts[3] + 1024]


def test_a_member_that_cannot_be_read_completely_makes_the_shard_fail(tmp_path):
    class Broken(io.BytesIO):
        def read(self, size=-1):
            raise OSError("disk error")

    member = tarfile.TarInfo("b.txt")
    member.size = 5000
    writer = wds.TarWriter(tmp_path / "x.tar")
    writer.write({"__key__": "a", "txt": "one"})
    with pytest.raises(OSError, match="disk error"):
        writer.tarstream.addfile(member, Broken())
    with pytest.raises(StorageError, match="earlier write failed"):
        writer.write({"__key__": "c", "txt": "three"})
    with pytest.raises(StorageError, match="earlier write failed"):
        writer.close()
    assert not list(tmp_path.iterdir())


def test_a_member_that_is_refused_before_it_is_written_leaves_the_shard_usable(tmp_path):
    member = tarfile.TarInfo("x" * 300)
    with wds.TarWriter(tmp_path / "x.tar") as writer:
        writer.tarstream.format = tarfile.USTAR_FORMAT
        with pytest.raises(ValueError, match="name is too long"):
            writer.tarstream.addfile(member)
        writer.write({"__key__": "c", "txt": "three"})
    assert len(list(wds.WebDataset(tmp_path / "x.tar", shardshuffle=False))) == 1


def test_tarstream_is_refused_while_an_index_is_recorded(tmp_path):
    with wds.ShardWriter(tmp_path / "x-%d.tar", index=True) as writer:
        writer.write({"__key__": "a", "txt": "one"})
        with pytest.raises(PipelineError, match="index="):
            _ = writer.tarstream.tarstream


@pytest.mark.parametrize("name", ["x.tar", "x.tar.gz", "x.tgz", "x.tar.bz2", "x.tar.xz"])
@pytest.mark.parametrize("compress", [None, True, False, "gz", "bz2", "xz"])
def test_tarmode_is_the_mode_in_which_tarfile_writes_such_a_shard(tmp_path, name, compress):
    path = tmp_path / name
    with wds.TarWriter(path, compress=compress) as writer:
        writer.write({"__key__": "a", "txt": "one"})
    with tarfile.open(path, wds.TarWriter.tarmode(str(path), compress).replace("w", "r")) as tar:
        assert tar.getnames() == ["a.txt"]
    assert wds.TarWriter.tarmode(io.BytesIO()) == "w|"


# ── pipes ───────────────────────────────────────────────────────────────────────────────────────


class Counted(Pipe):
    def __init__(self, *args, **kw):
        super().__init__(*args, **kw)
        self.count = 0

    def read(self, *args):
        data = super().read(*args)
        self.count += len(data)
        return data


def test_a_subclass_of_pipe_reads_a_shard(monkeypatch, shard):
    opened = []

    def gopen_counted(url, mode="rb", bufsize=8192):
        opened.append(Counted(["cat", url.removeprefix("cat:")], mode=mode, bufsize=bufsize))
        return opened[-1]

    monkeypatch.setitem(wds.gopen_schemes, "cat", gopen_counted)
    path = shard("x.tar", "a", "b")
    assert keys_of(wds.WebDataset(f"cat:{path}", shardshuffle=False)) == ["a", "b"]
    assert opened[0].count >= 2048
    assert opened[0].closed


def test_a_pipe_that_fails_raises_and_one_that_is_left_by_an_exception_discards(tmp_path):
    with pytest.raises(OSError, match="status 3"), Counted("exit 3", mode="rb", shell=True) as pipe:
        pipe.read()
    assert Counted("exit 3", mode="rb", shell=True, ignore_status=[3]).read() == b""
    with Counted(f"cat > {tmp_path}/x", mode="wb", shell=True) as pipe:
        assert pipe.write(b"text") == 4
    assert (tmp_path / "x").read_bytes() == b"text"
    with pytest.raises(KeyError), Counted("cat", mode="wb", shell=True) as pipe:
        raise KeyError
    assert pipe.args[0] == ("cat",)


@pytest.mark.parametrize("bufsize", [-1, 0])
def test_the_command_of_a_pipe_runs_in_the_given_environment_and_folder(tmp_path, bufsize):
    options = {"shell": True, "env": {"NAME": "text"}, "cwd": tmp_path}
    with Pipe("printf $NAME; pwd", mode="rb", bufsize=bufsize, **options) as pipe:
        assert pipe.read() == f"text{tmp_path}\n".encode()
    with Pipe('cat > "$NAME"', mode="wb", **options) as pipe:
        pipe.write(b"written")
    assert (tmp_path / "text").read_bytes() == b"written"


# ── data sets ───────────────────────────────────────────────────────────────────────────────────


def test_data_sets_can_be_added(shard):
    torch_data = pytest.importorskip("torch.utils.data")
    first = wds.WebDataset(shard("x.tar", "a", "b"), shardshuffle=False)
    second = wds.WebDataset(shard("y.tar", "c"), shardshuffle=False)
    added = first + second
    assert isinstance(added, torch_data.ChainDataset)
    assert keys_of(added) == keys_of(added) == ["a", "b", "c"]
    loader = torch_data.DataLoader(added, batch_size=None, num_workers=2)
    assert sorted(keys_of(loader)) == ["a", "b", "c"]


@pytest.mark.parametrize("shardshuffle", [False, 0, None])
def test_detshuffle_without_shardshuffle_reads_the_shards_in_order(shard, shardshuffle):
    urls = [shard(f"{n}.tar", f"k{n}") for n in range(5)]
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        dataset = wds.WebDataset(urls, detshuffle=True, shardshuffle=shardshuffle)
    assert keys_of(dataset) == ["k0", "k1", "k2", "k3", "k4"]
    assert [str(one.message) for one in warned if "detshuffle" in str(one.message)] == (
        [str(one.message) for one in warned] if shardshuffle is None else []
    )
    assert bool(warned) == (shardshuffle is None)


# ── dynamic items ───────────────────────────────────────────────────────────────────────────────


def test_an_item_says_what_its_next_call_takes_and_provides():
    @wds.takes("a")
    @wds.provides("b")
    def add_one(a):
        return a + 1

    assert add_one.next_takes() == ("a",)
    assert add_one.next_provides() == ("b",)
    assert add_one.provided_in_order() == [["b"]]

    @wds.takes("path")
    @wds.provides("wav", ["left", "right"])
    def stereo(path):
        yield path
        yield 1, 2

    assert (stereo.next_takes(), stereo.next_provides()) == (("path",), ("wav",))
    stereo("x")
    assert (stereo.next_takes(), stereo.next_provides()) == ((), ("left", "right"))
    assert stereo.provided_in_order() == [["wav"], ["left", "right"]]
    stereo.reset()
    assert stereo.next_takes() == ("path",)
