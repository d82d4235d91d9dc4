"""Shards whose checksum is known are verified when they are read whole."""

from __future__ import annotations

import base64
import hashlib
import zlib

import pytest
from faulty import FaultyServer, good

import penstock
from penstock.errors import PipelineError, StorageError
from penstock.shards.index import Index, build_index
from penstock.storage.cache.shard_cache import ShardCache
from penstock.storage.objects.azure import AzureStore
from penstock.storage.objects.gcs import GoogleStore
from penstock.storage.objects.http import HttpStore
from penstock.storage.readers.remote_file import RemoteFile
from tar_files import tar_bytes
from waiting import wait_until


def shard(count=30):
    return tar_bytes((f"{number:03}.bin", bytes([number]) * 5000) for number in range(count))


DATA = shard()
FLIPPED = DATA[:100_000] + bytes([DATA[100_000] ^ 1]) + DATA[100_001:]
MD5 = hashlib.md5(DATA).hexdigest()


@pytest.fixture
def server():
    with FaultyServer(a=DATA) as server:
        yield server


class Declaring(HttpStore):
    def checksum(self, headers):
        return f"md5:{MD5}"


def read(server, *, store=None, **options):
    with RemoteFile(store or HttpStore(), server.url(), **options) as file:
        return file.read()


def crc32(data):
    return f"crc32:{zlib.crc32(data):08x}"


@pytest.mark.parametrize("checksum", [crc32(DATA), f"md5:{MD5}", f"MD5:{MD5}".lower()])
def test_a_given_sum_is_verified(server, checksum):
    assert read(server, checksum=checksum) == DATA
    server.always = good(data=FLIPPED)
    with pytest.raises(StorageError, match="damaged"):
        read(server, checksum=checksum)


@pytest.mark.parametrize("kind", ["declared", "etag"])
def test_what_the_store_declares_is_verified(server, kind):
    assert read(server, store=Declaring(), checksum=kind) == DATA
    server.always = good(data=FLIPPED)
    with pytest.raises(StorageError, match="damaged"):
        read(server, store=Declaring(), checksum=kind)


def test_the_variable_asks_for_it_everywhere(server, monkeypatch):
    server.always = good(data=FLIPPED, tag=f'"{MD5}"')
    assert read(server) == FLIPPED
    monkeypatch.setenv("PENSTOCK_CHECKSUM", "etag")
    with pytest.raises(StorageError, match="damaged"):
        list(penstock.WebDataset(server.url(), shardshuffle=False))


@pytest.mark.parametrize("tag", ['"0123"', f'"{MD5}-3"', None, f'"{"f" * 64}"'])
def test_an_etag_that_is_no_sum_is_none(server, tag):
    server.always = good(tag=tag)
    assert read(server, checksum="etag") == DATA


@pytest.mark.parametrize(
    "header",
    [
        {"x_amz_server_side_encryption": "aws:kms"},
        {"x_amz_server_side_encryption_customer_algorithm": "AES256"},
    ],
)
def test_the_etag_of_an_encrypted_object_is_no_sum(server, header):
    server.always = good(tag=f'"{"0" * 32}"', **header)
    assert read(server, checksum="etag") == DATA


def test_a_read_with_jumps_has_no_sum(server):
    with RemoteFile(HttpStore(), server.url(), checksum="crc32:00000000") as file:
        file.seek(5)
        assert file.read() == DATA[5:]
        assert file.read_range(0, 7) == DATA[:7]


@pytest.mark.parametrize("checksum", ["what", "shake_128:00", "sha256:"])
def test_a_checksum_of_another_form_is_refused(checksum):
    with pytest.raises(PipelineError, match="a checksum is"):
        RemoteFile(HttpStore(), "http://host/a", checksum=checksum)


def test_an_object_that_was_emptied_is_damaged(server):
    server.always = good(data=b"")
    with pytest.raises(StorageError, match="damaged"):
        read(server, checksum=crc32(DATA))
    assert read(server, checksum=crc32(b"")) == b""


def test_who_looks_at_the_beginning_first_is_told_as_well(server):
    with RemoteFile(HttpStore(), server.url(), checksum="crc32:00000000") as file:
        file.read(10)
        file.seek(0)
        with pytest.raises(StorageError, match="damaged"):
            file.read()


@pytest.mark.parametrize("near", [True, False])
@pytest.mark.parametrize("size", [40_000, 1 << 20])
def test_who_reads_on_behind_damage_is_told_again(server, size, near):
    options = {} if near else {"ahead_bytes": 200_000}
    with RemoteFile(HttpStore(), server.url(), checksum="crc32:00000000", **options) as file:
        with pytest.raises(StorageError, match="damaged"):
            while file.read(size):
                pass
        for again in (10, size, -1):
            with pytest.raises(StorageError, match="damaged"):
                file.read(again)
        with pytest.raises(StorageError, match="damaged"):
            file.readinto(bytearray(size))
        file.seek(0)
        assert file.read(10) == DATA[:10]


def test_the_variable_does_not_take_the_place_of_a_known_sum(server, tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CHECKSUM", "declared")
    shard = ShardCache(tmp_path).open(server.url(), checksum="crc32:00000000")
    with shard, pytest.raises(StorageError, match="damaged"):
        shard.read()


def test_what_stores_declare():
    packed = base64.b64encode(bytes.fromhex(MD5)).decode()
    google = {"x-goog-hash": f"crc32c=abc=, md5={packed}"}
    assert GoogleStore.checksum(None, google) == f"md5:{MD5}"
    assert GoogleStore.checksum(None, {**google, "x-goog-stored-content-encoding": "gzip"}) is None
    assert GoogleStore.checksum(None, {"x-goog-hash": "crc32c=abc="}) is None
    assert AzureStore.checksum(None, {"x-ms-blob-content-md5": packed}) == f"md5:{MD5}"
    assert AzureStore.checksum(None, {"x-ms-blob-content-md5": "what"}) is None


def test_the_index_of_remote_shards_has_their_sums_and_the_cache_holds_to_them(server, tmp_path):
    out = tmp_path / "a.parquet"
    build_index(server.url(), out)
    assert Index.load(out).shards[0].checksum == crc32(DATA)
    data = penstock.IndexedDataset(server.url(), index=out, cache_dir=tmp_path / "one")
    assert data[29]["bin"] == bytes([29]) * 5000
    server.always = good(data=FLIPPED, tag=f'"{MD5}"')
    data = penstock.IndexedDataset(server.url(), index=out, cache_dir=tmp_path / "two")
    with pytest.raises(StorageError, match="damaged"):
        for number in range(10**6):  # until the last byte has come
            data[number % 30]
    assert not ShardCache(tmp_path / "two").entries()


@pytest.mark.parametrize("sequel", [DATA, FLIPPED])
def test_a_fetch_that_goes_on_later_is_verified_from_the_first_byte(server, tmp_path, sequel):
    def half(body):
        yield body[:50_000], 1.0
        yield body[50_000:], 0.0

    cache, checksum = ShardCache(tmp_path), crc32(DATA)
    server.always = good(pace=half, tag='"1"')
    with cache.open(server.url(), checksum=checksum) as shard:
        first = b""
        while len(first) < 50_000:
            first += shard.read(50_000 - len(first))
        assert first == DATA[:50_000]
        shard._fetch._stop = True
    server.always = good(data=sequel, tag='"1"')
    with cache.open(server.url(), checksum=checksum) as shard:
        if sequel is DATA:
            assert shard.read() == DATA
        else:
            with pytest.raises(StorageError, match="damaged"):
                shard.read()


def test_a_damaged_shard_is_an_error_and_not_kept(server, tmp_path):
    server.always = good(data=FLIPPED)
    cache = ShardCache(tmp_path)
    shard = cache.open(server.url(), checksum=crc32(DATA))
    with shard, pytest.raises(StorageError, match="damaged"):
        shard.read()
    assert not cache.entries()


@pytest.mark.parametrize("name", ["x-%03d.tar", "x-%03d.tar.gz"])
def test_a_writer_puts_the_sums_of_its_shards_into_the_index(tmp_path, name):
    with penstock.ShardWriter(str(tmp_path / name), maxcount=2, index=True) as sink:
        for number in range(5):
            sink.write({"__key__": str(number), "bin": bytes(300_000)})
    shards = Index.load(tmp_path / "x.index.parquet").shards
    assert len(shards) == 3
    for shard in shards:
        with open(shard.url, "rb") as file:
            assert shard.checksum == crc32(file.read())


def halves(body):
    yield body[:50_000], 1.0
    yield body[50_000:], 0.0


@pytest.fixture
def two_readers(server, tmp_path):
    """A damaged shard on its way into the cache, and two who read it."""
    server.always = good(data=FLIPPED, pace=halves)
    cache, checksum = ShardCache(tmp_path), crc32(DATA)
    first = cache.open(server.url(), checksum=checksum)
    second = cache.open(server.url(), checksum=checksum)
    with first, second:
        assert second.read(10) == DATA[:10]
        server.always = good(data=FLIPPED)
        yield first, second
    assert not cache.entries()


def test_who_reads_along_is_told_of_the_damage_as_well(two_readers):
    for shard in two_readers:
        with pytest.raises(StorageError, match="damaged"):
            shard.read()


def test_who_takes_a_fetch_over_verifies_as_well(two_readers):
    first, second = two_readers
    first._fetch._stop = True  # as if its process were killed
    with pytest.raises(StorageError, match="damaged"):
        second.read()


def test_a_part_that_is_complete_is_verified_before_its_last_byte_is_given(server, tmp_path):
    cache, checksum = ShardCache(tmp_path), crc32(DATA)
    with cache.open(server.url(), checksum=checksum) as shard:
        assert shard.read() == DATA
        wait_until(lambda: shard.arrived, "the shard is complete")
    name = cache.entries()[0].name
    (tmp_path / name).rename(tmp_path / f"{name}.part")  # killed before it got its name
    (tmp_path / f"{name}.part").write_bytes(FLIPPED)
    shard = cache.open(server.url(), checksum=checksum)
    with shard, pytest.raises(StorageError, match="damaged"):
        shard.read()
    with cache.open(server.url(), checksum=checksum) as shard:
        assert shard.read() == DATA
