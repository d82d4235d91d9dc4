from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import subprocess
import sys
import threading
import time
import zlib

import pytest

from penstock.errors import StorageError
from penstock.storage import AtomicFile, MissingFile, open_url
from penstock.storage.local import files


def test_a_missing_file_is_also_a_file_not_found_error(tmp_path):
    path = str(tmp_path / "a.tar")
    with pytest.raises(FileNotFoundError, match="no such file") as caught:
        open_url(path)
    assert isinstance(caught.value, StorageError)
    assert path in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_missing_folder_is_told_as_such(tmp_path, monkeypatch):
    with pytest.raises(MissingFile, match=f"no such folder '{tmp_path}/x'"):
        open_url(f"{tmp_path}/x/a.tar")
    with pytest.raises(MissingFile, match=f"no folder '{tmp_path}/x'; make it first"):
        open_url(f"{tmp_path}/x/a.tar", "wb")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MissingFile, match=f"as seen from '{tmp_path}'"):
        open_url("a.tar")


@pytest.mark.parametrize("mode", ["rb", "wb"])
def test_a_folder_is_no_file(tmp_path, mode):
    with pytest.raises(StorageError, match="this is a folder"):
        open_url(str(tmp_path), mode)


@pytest.mark.parametrize("mode", ["rb", "wb"])
def test_names_that_no_file_can_have_are_errors_at_once(tmp_path, mode):
    for name in ("x" * 300, "a\0b"):
        with pytest.raises(StorageError):
            open_url(f"{tmp_path}/{name}", mode)
    with pytest.raises(StorageError):
        open_url("", mode)
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may do everything")
def test_a_file_without_permission_is_an_error(tmp_path):
    (tmp_path / "a").touch(mode=0)
    with pytest.raises(StorageError, match="Permission denied"):
        open_url(str(tmp_path / "a"))


def test_a_reader_knows_its_descriptor_and_size(tmp_path):
    (tmp_path / "a").write_bytes(b"hello")
    with open_url(str(tmp_path / "a")) as file:
        assert os.fstat(file.fileno()).st_size == file.size_bytes == 5
        assert file.seek(-2, os.SEEK_END) == 3
        assert file.read(10) == b"lo"


def test_a_name_of_full_length_can_be_written(tmp_path):
    name = "ü" * 127
    with AtomicFile(str(tmp_path / name)) as file:
        file.write(b"x")
    assert os.listdir(tmp_path) == [name]


def test_a_file_stays_as_it_is_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "a.tar"
    path.write_bytes(b"old")
    path.chmod(0o640)
    with AtomicFile(str(path)) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640


def test_the_temporary_name_is_hidden_and_beside_the_final_one(tmp_path):
    file = AtomicFile(str(tmp_path / "a.tar"))
    (name,) = os.listdir(tmp_path)
    assert name.startswith(f".a.tar.{os.getpid()}-")
    assert name.endswith(".part")
    file.abort()
    assert os.listdir(tmp_path) == []


def test_new_files_have_the_permissions_of_others(tmp_path):
    (tmp_path / "plain").touch()
    AtomicFile(str(tmp_path / "a")).close()
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_link_is_followed(tmp_path):
    (tmp_path / "far").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "far" / "a.tar")
    with AtomicFile(str(tmp_path / "link")) as file:
        file.write(b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "far" / "a.tar").read_bytes() == b"x"


def test_a_writer_that_was_forgotten_leaves_nothing_and_says_so(tmp_path):
    file = AtomicFile(str(tmp_path / "a"))
    file.write(b"x")
    with pytest.warns(RuntimeWarning, match="never closed"):
        del file
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("end", [AtomicFile.close, AtomicFile.abort, AtomicFile.__del__])
def test_a_forked_process_neither_ends_nor_repeats_the_write(tmp_path, end):
    file = AtomicFile(str(tmp_path / "a"))
    file.write(b"hello")
    child = os.fork()
    if child == 0:
        end(file)
        os._exit(0)
    os.waitpid(child, 0)
    file.close()
    assert (tmp_path / "a").read_bytes() == b"hello"


def test_special_files_are_written_directly(tmp_path):
    with open_url("/dev/null", "wb") as file:
        file.write(b"x")
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    found = []
    reader = threading.Thread(target=lambda: found.append(fifo.read_bytes()))
    reader.start()
    with open_url(str(fifo), "wb") as file:
        file.write(b"hello")
    reader.join()
    assert found == [b"hello"]
    assert os.listdir(tmp_path) == ["fifo"]


def test_dev_stdout_is_written_even_when_it_is_a_file(tmp_path):
    code = (
        "from penstock.storage import open_url\n"
        "print('before', flush=True)\n"
        "with open_url('/dev/stdout', 'wb') as file: file.write(b'hello')\n"
    )
    with open(tmp_path / "out", "wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_bytes() == b"before\nhello"
    assert os.listdir(tmp_path) == ["out"]


def test_a_full_device_is_an_error_with_the_url():
    file = open_url("/dev/full", "wb")
    file.write(b"x")
    with pytest.raises(StorageError, match=r"No space left .*/dev/full, byte 0") as caught:
        file.close()
    assert caught.value.errno == errno.ENOSPC
    file.close()


@pytest.fixture
def limit_bytes():
    """Files may grow to 100 000 bytes: a write that really fails, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    yield 100_000
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    signal.signal(signal.SIGXFSZ, before)


def test_a_write_that_fails_tells_the_byte_and_leaves_nothing(tmp_path, limit_bytes):
    path = str(tmp_path / "a.tar")
    with pytest.raises(StorageError, match=f"{path}, byte {limit_bytes}") as caught:  # noqa: SIM117
        with open_url(path, "wb", buffer_bytes=1000) as file:
            for _ in range(1000):
                file.write(bytes(700))
    assert caught.value.errno == errno.EFBIG
    assert os.listdir(tmp_path) == []


def test_a_failed_write_cannot_be_closed_as_if_all_were_well(tmp_path, limit_bytes):
    file = AtomicFile(str(tmp_path / "a.tar"))
    with pytest.raises(StorageError, match="cannot write"):
        file.write(bytes(3_000_000))
    with pytest.raises(StorageError, match="earlier write failed"):
        file.close()
    file.close()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("count", [1, 3, 3000])
def test_pieces_are_written_after_one_another_with_their_checksum(tmp_path, count, monkeypatch):
    write = os.writev
    monkeypatch.setattr(os, "writev", lambda file, pieces: write(file, [b"".join(pieces)[:700]]))
    pieces = [bytes([number % 256]) * (number % 5 + 1) for number in range(count)]
    with AtomicFile(str(tmp_path / "a")) as file:
        file.crc32 = 0
        file.write(b"first")
        file.write_pieces(pieces)
        assert file.tell() == 5 + len(b"".join(pieces))
        file.write(b"last")
    data = (tmp_path / "a").read_bytes()
    assert data == b"first" + b"".join(pieces) + b"last"
    assert file.crc32 == zlib.crc32(data)


def test_pieces_that_cannot_be_written_are_an_error_and_leave_nothing(tmp_path, limit_bytes):
    path = str(tmp_path / "a.tar")
    with pytest.raises(StorageError, match=f"{path}, byte {limit_bytes}") as caught:  # noqa: SIM117
        with open_url(path, "wb", buffer_bytes=0) as file:
            for _ in range(1000):
                file.write_pieces([bytes(300), bytes(400)])
    assert caught.value.errno == errno.EFBIG
    assert os.listdir(tmp_path) == []


def test_a_failure_at_the_very_end_leaves_nothing(tmp_path, limit_bytes):
    file = AtomicFile(str(tmp_path / "a.tar"))
    file.write(bytes(limit_bytes + 1))
    with pytest.raises(StorageError, match="cannot write"):
        file.close()
    file.close()
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_an_error_and_leaves_nothing(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a small file system cannot be mounted here")
    try:
        with pytest.raises(StorageError, match="No space left"):  # noqa: SIM117
            with open_url(str(tmp_path / "a.tar"), "wb") as file:
                file.write(bytes(1_000_000))
        assert os.listdir(tmp_path) == []
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_killed_writer_leaves_no_half_file_and_a_new_run_works(tmp_path):
    path = tmp_path / "a.tar"
    code = (
        "import sys\n"
        "from penstock.storage import open_url\n"
        "file = open_url(sys.argv[1], 'wb')\n"
        "while True:\n"
        "    file.write(bytes(1 << 20)); file.flush()\n"
        "    print(file.tell(), flush=True)\n"
        "    if file.tell() > 3 << 20: sys.stdin.read()\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    writer.stdout.readline()
    writer.kill()
    writer.communicate()
    assert writer.returncode == -signal.SIGKILL
    assert not path.exists()
    assert len(os.listdir(tmp_path)) == 1
    with open_url(str(path), "wb") as file:
        file.write(b"complete")
    assert path.read_bytes() == b"complete"
    assert os.listdir(tmp_path) == ["a.tar"]  # what the killed writer left is deleted


WRITERS = """
import os, sys
from penstock.storage import AtomicFile
from penstock.storage.local import files
for number in range(int(sys.argv[2])):
    files._swept.clear()
    with AtomicFile(f"{sys.argv[1]}/{os.getpid()}-{number}") as file:
        file.write(b"hello")
        file.flush()
        assert os.path.exists(file._part)
"""


def test_writers_that_sweep_a_folder_leave_each_others_files(tmp_path):
    """Every writer begins with a sweep, at every moment of the others' work."""
    command = [sys.executable, "-c", WRITERS, str(tmp_path), "150"]
    writers = [subprocess.Popen(command) for _ in range(4)]
    assert [writer.wait(60) for writer in writers] == [0] * 4
    assert len(os.listdir(tmp_path)) == 600
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {b"hello"}


def test_a_file_that_a_forked_child_still_holds_is_left_alone(tmp_path):
    """Also when the process that opened it has ended: the child may be writing it."""
    code = "\n".join(
        [
            "import os, sys",
            "from penstock.storage import AtomicFile",
            "file = AtomicFile(sys.argv[1])",
            "if os.fork() == 0:",
            "    os.read(0, 1)",
            "os._exit(0)",
        ]
    )
    held, hold = os.pipe()
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], stdin=held, check=True)
    os.close(held)
    AtomicFile(str(tmp_path / "b")).close()
    assert len(os.listdir(tmp_path)) == 2
    os.close(hold)
    deadline = time.monotonic() + 20
    while len(os.listdir(tmp_path)) > 1 and time.monotonic() < deadline:
        files._swept.clear()
        AtomicFile(str(tmp_path / "b")).close()
    assert os.listdir(tmp_path) == ["b"]


@pytest.mark.parametrize(
    "name",
    [
        ".a.tar.77-01234567.part",  # of an earlier version, which did not lock
        ".a.tar.77-0123456789abcdef.part",  # of another machine
        ".a.tar.part",
        "a.tar.part",
        "notes.part",
    ],
)
def test_a_part_whose_writer_is_unknown_is_left_alone(tmp_path, name):
    (tmp_path / name).touch()
    AtomicFile(str(tmp_path / "b")).close()
    assert (tmp_path / name).exists()


def test_only_parts_of_the_named_output_are_removed(tmp_path, monkeypatch):
    """Those of dead writers on other machines, and of this machine's writers that are dead."""
    live = AtomicFile(str(tmp_path / "a-001.tar"))
    mine = set(os.listdir(tmp_path))
    theirs = ".77-0123456789abcdef.part"
    kept = {f".b-001.tar{theirs}", f".a-x.tar{theirs}", f".xa-001.tar{theirs}", "a-001.tar"}
    kept.add(f".a-.tar{theirs}")
    for name in [*kept, f".a-001.tar{theirs}", f".a-1234.tar{theirs}"]:
        (tmp_path / name).touch()
    files.remove_parts(str(tmp_path / "a-"), ".tar")
    assert set(os.listdir(tmp_path)) == mine | kept
    live.close()
    files.remove_parts(str(tmp_path / "no folder" / "a.tar"))


@pytest.mark.parametrize(
    ("path", "after"),
    [
        ("a%20d", None),
        ("50%-%03d", None),
        ("n" * 245, None),
        ("é" * 105, None),
        ("n" * 190, "m" * 30),
        ("n" * 20, "m" * 220),
    ],
)
def test_parts_of_a_name_with_percent_signs_or_many_bytes_are_removed(tmp_path, path, after):
    name = path if after is None else f"{path}0123{after}"
    code = "import os, sys; from penstock.storage import AtomicFile; file = AtomicFile(sys.argv[1])"
    subprocess.run([sys.executable, "-c", f"{code}; os._exit(0)", str(tmp_path / name)], check=True)
    (mine,) = tmp_path.glob(".*.part")
    theirs = tmp_path / f"{mine.name.rpartition('-')[0]}-0123456789abcdef.part"
    theirs.touch()
    files.remove_parts(str(tmp_path / path), after)
    assert not mine.exists()
    assert theirs.exists() == (name not in theirs.name), "it may be of another file"


def test_without_locks_nothing_is_swept(tmp_path, monkeypatch):
    """On such a file system nobody can say whose writer is alive."""

    def refused(*arguments, **options):
        raise OSError(errno.ENOLCK, "no locks")

    with monkeypatch.context() as patch:
        patch.setattr(files, "flock", refused)
        unlocked = AtomicFile(str(tmp_path / "a"))
    files._swept.clear()
    AtomicFile(str(tmp_path / "b")).close()
    unlocked.write(b"hello")
    unlocked.close()
    assert (tmp_path / "a").read_bytes() == b"hello"


@pytest.mark.parametrize("name", ["x-{000..", "x-000}.tar"])
def test_a_missing_file_with_an_unbalanced_brace_says_so(name):
    with pytest.raises(MissingFile, match="braces are not balanced"):
        open_url(name)
