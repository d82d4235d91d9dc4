"""Listings that lead in circles, never end, or are not listings: an error in every store."""

from __future__ import annotations

import itertools
import json
from urllib.parse import quote

import pytest
from servers_clouds import no_settings  # noqa: F401
from servers_s3 import serving

from penstock.errors import PenstockError, StorageError
from penstock.storage.auth.named_keys import use_keys
from penstock.storage.client import retrying as fetching
from penstock.storage.client import store
from penstock.storage.listing import list_urls

pytestmark = pytest.mark.usefixtures("no_settings")

STORES = {
    "s3": "s3://b/",
    "gs": "gs://b/",
    "az": "az://b/",
    "hf": "hf://datasets/me/digits/",
    "ais": "ais://b/",
}
HOSTILE = {
    "nothing": b"",
    "a page": b"<html>please log in</html>",
    "XML of something else": b"<Surprise/>",
    "half an answer": b'{"items": [{"name"',
    "a number": b"7",
    "null": b"null",
    "a text": b'"abc"',
    "deep JSON": b"[" * 100_000,
    "deep XML": b"<a>" * 100_000,
    "entries that are numbers": b'{"items": [1], "entries": [1]}',
    "a list of numbers": b"[1, 2]",
    "names that are numbers": b'{"items": [{"name": 7}], "entries": [{"name": 7}]}',
    "paths that are numbers": b'[{"type": "file", "path": 7}]',
    "sizes that are words": b'{"items": [{"name": "a.tar", "size": "big"}],'
    b' "entries": [{"name": "a.tar", "size": "big"}]}',
    "sizes of a list": b'[{"type": "file", "path": "a.tar", "size": [1]}]',
    "sizes of an Azure blob that are words": b"<EnumerationResults><Blobs><Blob><Name>a.tar</Name>"
    b"<Properties><Content-Length>big</Content-Length></Properties></Blob></Blobs>"
    b"</EnumerationResults>",
    "not UTF-8": b"\xff\xfe\x00",
}


@pytest.fixture
def listed_by(monkeypatch):
    """A function that lists a store's folder on a server that gives the answers of ``answer``."""

    def list_with(kind, answer):
        with serving(answer) as endpoint:
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)
            monkeypatch.setenv("HF_ENDPOINT", endpoint)
            monkeypatch.setenv("AIS_ENDPOINT", endpoint)
            keys = {"s3": {"buckets": ["b"], "anonymous": True, "endpoint": endpoint}}
            keys["az"] = {"buckets": ["az://b"], "access_key": "mine", "secret": "c2VjcmV0"}
            keys["az"]["endpoint"] = endpoint
            use_keys(keys)
            try:
                return list_urls(STORES[kind])
            finally:
                use_keys(None)

    return list_with


def page_of(kind, name, token):
    """One page of a listing: headers and body. An empty name lists nothing."""
    if kind == "s3":
        entry = f"<Contents><Key>{name}</Key><Size>5</Size></Contents>" if name else ""
        more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{token}"
        body = f"<ListBucketResult>{entry}{more}</NextContinuationToken></ListBucketResult>"
        return {}, body.encode()
    if kind == "az":
        size = "<Properties><Content-Length>5</Content-Length></Properties>"
        entry = f"<Blob><Name>{name}</Name>{size}</Blob>" if name else ""
        body = f"<Blobs>{entry}</Blobs><NextMarker>{token}</NextMarker>"
        return {}, f"<EnumerationResults>{body}</EnumerationResults>".encode()
    entries = [{"name": name, "path": name, "type": "file", "size": 5}] if name else []
    if kind == "hf":
        link = {"Link": f'<http://hub/api?cursor={quote(token)}>; rel="next"'}
        return link, json.dumps(entries).encode()
    answer = {"items": entries, "entries": entries, "uuid": "u"}
    return {}, json.dumps({**answer, "nextPageToken": token, "continuation_token": token}).encode()


@pytest.mark.parametrize("period", [1, 2, 3])
@pytest.mark.parametrize("kind", STORES)
def test_a_listing_whose_tokens_come_again_is_an_error(listed_by, kind, period):
    pages = itertools.count()

    def answer(_):
        number = next(pages)
        return 200, *page_of(kind, f"{number}.tar", f"token{number % period}")

    with pytest.raises(StorageError, match="leads back to an earlier page"):
        listed_by(kind, answer)
    assert next(pages) == period + 1


@pytest.mark.parametrize("kind", STORES)
def test_a_listing_of_empty_pages_without_end_is_an_error(listed_by, kind, monkeypatch):
    monkeypatch.setattr(store, "EMPTY_PAGES", 20)
    pages = itertools.count()
    with pytest.raises(StorageError, match="only empty pages"):
        listed_by(kind, lambda _: (200, *page_of(kind, "", f"token{next(pages)}")))


@pytest.mark.parametrize("page", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("kind", STORES)
def test_what_is_no_listing_is_a_storage_error_or_no_shards(listed_by, kind, page):
    with pytest.raises(PenstockError, match=r"listing|server|no shards"):
        listed_by(kind, lambda _: (200, {}, page))


@pytest.mark.parametrize("kind", STORES)
def test_an_answer_of_any_length_is_not_taken_into_memory(listed_by, kind, monkeypatch):
    monkeypatch.setattr(fetching, "BODY_BYTES", 1 << 20)
    with pytest.raises(StorageError, match="longer than"):
        listed_by(kind, lambda _: (200, {}, b" " * (3 << 20)))


def test_an_error_page_of_deep_json_is_a_storage_error(listed_by):
    with pytest.raises(StorageError, match="418"):
        listed_by("gs", lambda _: (418, {}, b'{"error": ' * 60_000))
