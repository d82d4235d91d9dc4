"""Downloads of recipes: once, whole, and inside their folder."""

from __future__ import annotations

import functools
import gzip
import http.server
import io
import os
import subprocess
import sys
import tarfile
import threading
import zipfile

import pytest

from penstock.datasets.manifests.download_file import download_file
from penstock.errors import PipelineError, StorageError, UnsafeError


@pytest.fixture
def served(tmp_path):
    """A folder on a web server: its path, its URL, and the requests that came."""
    folder, requests = tmp_path / "served", []
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, form, *values):
            requests.append(self.path)

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield folder, f"http://127.0.0.1:{server.server_port}", requests
        server.shutdown()
        thread.join()


def archive(path, names):
    with tarfile.open(path, "w:gz") as tar:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size, info.mode = 3, 0o444
            tar.addfile(info, io.BytesIO(b"abc"))


def test_a_url_is_fetched_once_unless_it_is_to_be_replaced(served, tmp_path):
    folder, url, requests = served
    (folder / "a.txt").write_text("one")
    dest = tmp_path / "data" / "a.txt"
    download_file(f"{url}/a.txt", dest)
    seen = len(requests)
    (folder / "a.txt").write_text("two")
    download_file(f"{url}/a.txt", dest)
    assert (dest.read_text(), len(requests)) == ("one", seen)
    download_file(f"{url}/a.txt", dest, replace_existing=True)
    assert dest.read_text() == "two"
    with pytest.raises(StorageError):
        download_file(f"{url}/none.txt", tmp_path / "data" / "b.txt")
    assert os.listdir(tmp_path / "data") == ["a.txt"]


def test_a_local_file_is_copied_again(tmp_path):
    (tmp_path / "a").write_text("one")
    download_file(tmp_path / "a", tmp_path / "b")
    (tmp_path / "a").write_text("two")
    download_file(str(tmp_path / "a"), str(tmp_path / "b"))
    assert (tmp_path / "b").read_text() == "two"


def test_archives_are_unpacked(tmp_path):
    archive(tmp_path / "a.tar.gz", ["x/1.wav"])
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as packed:
        packed.writestr("y/2.wav", b"abc")
    (tmp_path / "c.txt.gz").write_bytes(gzip.compress(b"abc"))
    for name in ("a.tar.gz", "b.zip", "c.txt.gz"):
        download_file(tmp_path / name, tmp_path / "data" / name, unpack=True)
    for name in ("x/1.wav", "y/2.wav", "c.txt"):
        assert (tmp_path / "data" / name).read_bytes() == b"abc"
    other = tmp_path / "other"
    download_file(tmp_path / "a.tar.gz", tmp_path / "data" / "a.tar.gz", True, other, False, True)
    assert (other / "x/1.wav").stat().st_mode & 0o200
    with pytest.raises(PipelineError, match=r"archives are .tar"):
        download_file(tmp_path / "data" / "c.txt", tmp_path / "d", unpack=True)


@pytest.mark.parametrize("name", ["../out.wav", "x/../../out.wav"])
def test_an_archive_that_leaves_its_folder_is_refused(tmp_path, name):
    archive(tmp_path / "a.tar.gz", [name])
    with zipfile.ZipFile(tmp_path / "b.zip", "w") as packed:
        packed.writestr(name, b"abc")
    for kind in ("a.tar.gz", "b.zip"):
        with pytest.raises(UnsafeError, match=f"outside its folder.*out.wav.*{kind}"):
            download_file(tmp_path / kind, tmp_path / "data" / "in" / kind, unpack=True)
    assert not list(tmp_path.rglob("out.wav"))


def test_one_rank_downloads_and_the_others_wait_for_it(served, tmp_path):
    pytest.importorskip("torch")
    folder, url, requests = served
    archive(folder / "a.tar.gz", ["x/1.wav"])
    program = f"""
import os, sys, torch.distributed as dist
from pathlib import Path
from penstock.utils.data_utils import download_file
dist.init_process_group("gloo", "file://{tmp_path}/meet", rank=int(sys.argv[1]), world_size=2)
download_file("{url}/a.tar.gz", "{tmp_path}/data/a.tar.gz", unpack=True)
assert Path("{tmp_path}/data/x/1.wav").read_bytes() == b"abc"
os._exit(0)  # while Python 3.11 shuts down, a thread of gloo can abort the process
"""
    ranks = [subprocess.Popen([sys.executable, "-c", program, str(rank)]) for rank in (0, 1)]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    one_rank = len(requests)
    download_file(f"{url}/a.tar.gz", tmp_path / "again.tar.gz")
    assert len(requests) == 2 * one_rank
