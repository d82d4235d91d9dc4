"""``s3://bucket/key``: Amazon S3 and compatible servers.

The account is the named key (:mod:`penstock.storage.auth.named_keys`) whose pattern fits, or the
one named in the URL (``s3://team-a@bucket/key``) or by ``key=``; without one, what AWS tools would
use (:mod:`penstock.storage.auth.aws_credentials`). Without credentials, requests are sent unsigned,
which is enough for public buckets. Other servers are addressed by path, Amazon by host.
"""

from __future__ import annotations

import datetime
import functools
import os
import re
import urllib.parse
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator, Mapping
from typing import Any

from penstock.errors import Origin, PipelineError, StorageError, UrlError, pip_install
from penstock.redact import redact
from penstock.storage.auth.aws_credentials import (
    AwsAccount,
    BucketServer,
    find_account,
    find_server,
)
from penstock.storage.auth.aws_sigv4 import query_string, quote, sign
from penstock.storage.auth.named_keys import find_key
from penstock.storage.client.store import Body, Fields, Listed, Page, Request, Store
from penstock.storage.objects.open_object import open_object
from penstock.storage.readers.remote_file import exchange

_EXPIRED = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired")
_RENEWED = ("InvalidAccessKeyId", "InvalidToken", "InvalidClientTokenId")
_ELSEWHERE = ("AuthorizationHeaderMalformed", "PermanentRedirect", "TemporaryRedirect")
_SKEWED = "RequestTimeTooSkewed"

_REMEDIES = {
    "NoSuchKey": "there is no such object: check the name and the bucket",
    "NoSuchBucket": "there is no such bucket: check its name and the endpoint",
    "NoSuchUpload": "the upload was ended by somebody else: write the shard again",
    "AccessDenied": "access denied: this account may not do that here; use another key or profile, "
    "or ask the bucket's owner",
    "InvalidAccessKeyId": "the server does not know the access key: check the key, its profile and "
    "the endpoint",
    "SignatureDoesNotMatch": "the secret does not belong to the access key (or the endpoint is "
    "behind something that changes requests): check the secret",
    "ExpiredToken": "the credentials have run out: sign in again",
    "RequestTimeTooSkewed": "this machine's clock is wrong: set it",
    "PermanentRedirect": "the bucket is in another region: set region=",
    "AuthorizationHeaderMalformed": "the bucket is in another region: set region=",
    "InvalidObjectState": "the object is archived: restore it first",
    "InvalidBucketName": "no bucket can have that name",
}
_STATUS_CODES = {403: "AccessDenied", 404: "NoSuchKey", 301: "PermanentRedirect"}


class S3Store(Store):
    """The bucket of a URL, with the account that is found for it by pattern or by name.

    Its pickle contains only the names of keys and profiles; each process looks up the secrets.
    """

    scheme = "s3"

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        profile: str | None = None,
        endpoint: str | None = None,
        region: str | None = None,
        path_style: bool | None = None,
        anonymous: bool = False,
        requester_pays: bool | None = None,
    ) -> None:
        self._arguments: dict[str, Any] = {
            "key": key,
            "profile": profile,
            "endpoint": endpoint,
            "region": region,
            "path_style": path_style,
            "anonymous": anonymous,
            "requester_pays": requester_pays,
        }
        self._url = url
        self._prepared: tuple[int, AwsAccount, BucketServer] | None = None
        self._region: str | None = region
        self._clock_behind = datetime.timedelta()
        self._corrected = False
        split_s3(url)

    def __reduce__(self) -> Any:
        return (functools.partial(S3Store, **self._arguments), (self._url,))

    def __repr__(self) -> str:
        named = ", ".join(
            f"{n}={v!r}" for n, v in self._arguments.items() if v not in (None, False)
        )
        return f"S3Store({redact(self._url)!r}{', ' + named if named else ''})"

    def _account(self) -> tuple[AwsAccount, BucketServer]:
        # Looked up at the first request: creating a store is cheap and works without the keys.
        # A forked process looks again: the lock of its parent's account may stay locked here.
        if self._prepared is None or self._prepared[0] != os.getpid():
            given = self._arguments
            in_url, bucket, path = split_s3(self._url)
            name = in_url or given["key"]
            key = find_key(f"s3://{bucket}/{path}", str(name) if name else None)
            profile = given["profile"]
            if name is not None and key is None and profile is None:
                profile = name  # a profile of the AWS files is a named key too
            profile = str(profile) if profile else None
            server = find_server(key, profile)
            account = find_account(key, profile, bool(given["anonymous"]))
            self._prepared = (os.getpid(), account, server)
        return self._prepared[1:]

    def request(
        self, method: str, url: str, headers: Fields = None, query: Fields = None, body: Body = None
    ) -> Request:
        who, where = self._account()
        region = self._region or where.region
        target = self._target(url, where, region)
        if query:
            target += "?" + query_string(query)
        out = dict(headers or {})
        pays = self._arguments["requester_pays"]
        if where.requester_pays if pays is None else pays:
            out["x-amz-request-payer"] = "requester"
        credentials = who.credentials()
        if credentials is not None:
            now = datetime.datetime.now(datetime.UTC) + self._clock_behind
            out = sign(method, target, out, body, credentials, region=region, now=now)
        return Request(method, target, out, body)

    def _target(self, url: str, where: BucketServer, region: str) -> str:
        _, bucket, key = split_s3(url)
        if {".", ".."} & set(key.split("/")):
            # HTTP clients and servers normalise such paths, and would address another object.
            raise UrlError(
                f"an object whose key has '.' or '..' as a part cannot be named ({redact(url)})"
            )
        endpoint = self._arguments["endpoint"] or where.endpoint
        path_style = self._arguments["path_style"]
        path_style = where.path_style if path_style is None else path_style
        if endpoint is None:
            end = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
            endpoint = f"https://s3.{region}.{end}"
            # Certificates cover only one level of subdomains.
            path_style = "." in bucket if path_style is None else path_style
        parts = urllib.parse.urlsplit(str(endpoint))
        if parts.scheme not in ("http", "https") or "@" in parts.netloc or not parts.netloc:
            raise PipelineError("an S3 endpoint is written http://HOST:PORT or https://HOST")
        base = parts.path.rstrip("/")
        if path_style is False:
            return f"{parts.scheme}://{bucket}.{parts.netloc}{base}/{quote(key, '/')}"
        return f"{parts.scheme}://{parts.netloc}{base}/{bucket}/{quote(key, '/')}"

    def expired(self, status: int, page: bytes) -> bool:
        code = error_code(page)
        if code == _SKEWED and (server := parse_time(_find_text(page, "ServerTime") or "")):
            self._clock_behind = server - datetime.datetime.now(datetime.UTC)
            self._corrected = True
            return True
        if code in _ELSEWHERE and (region := _find_region(page)):
            self._region, self._corrected = region, True
            return True
        self._corrected = False
        return status == 401 or code in _EXPIRED or code in _RENEWED

    def refresh(self) -> bool:
        """Get new keys, unless the refusal was about region or clock, which are corrected now."""
        return self._corrected or self._account()[0].refresh()

    def refusal(self, url: str, status: int, headers: Mapping[str, str], page: bytes) -> str:
        code = error_code(page) or _STATUS_CODES.get(status, "")
        words = _REMEDIES.get(code)
        if words is None:
            message = _find_text(page, "Message") or ""
            return f"the server answered {status} {code} {message[:200]}".strip()
        if code == "AccessDenied" and (reason := self._explain_unsigned()):
            words = f"access denied: {reason}"
        region = headers.get("x-amz-bucket-region") or _find_region(page)
        if code in _ELSEWHERE and region:
            words += repr(region)
        return f"{words} ({status} {code})"

    def _explain_unsigned(self) -> str:
        who = self._account()[0]
        if who.anonymous:
            return "the request was not signed, because of anonymous=True"
        if who.credentials() is None:
            return (
                "no credentials were found, so the request was not signed: set AWS_ACCESS_KEY_ID "
                "and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or a named key (PENSTOCK_KEYS); instance "
                "roles need " + pip_install("s3")
            )
        return ""

    def list_page(self, prefix: str, deep: bool, token: str) -> Page:
        key = split_s3(prefix)[2]
        root = prefix[: len(prefix) - len(key)] if key else prefix.rstrip("/") + "/"
        query = {"list-type": "2", "prefix": key, "encoding-type": "url"}
        if not deep:
            query["delimiter"] = "/"
        if token:
            query["continuation-token"] = token
        _, _, page = exchange(self, "GET", root, query=query)
        tree = parse_xml(page, "ListBucketResult", prefix)
        found = []
        for entry in children(tree, "Contents"):
            # One pass, since a page has a thousand entries.
            texts = {part.tag.rpartition("}")[2]: part.text or "" for part in entry}
            name = urllib.parse.unquote_plus(texts.get("Key", ""))
            size = texts.get("Size", "")
            known = size if re.fullmatch(r"[0-9]{1,18}", size) else None
            found.append(Listed.of(root, name, known, texts.get("ETag")))
        if child(tree, "IsTruncated") != "true":
            return found, ""
        following = child(tree, "NextContinuationToken")
        if not following:
            raise StorageError(
                "the server's listing has a next page but does not name it", origin=Origin(prefix)
            )
        return found, following

    def writer(self, url: str, **options: Any) -> Any:
        from penstock.storage.objects.s3_multipart import MultipartWriter

        return MultipartWriter(self, url, **options)

    def put(self, url: str, data: bytes, *, exclusive: bool = False) -> bool:
        from penstock.storage.readers.remote_file import exchange

        headers = {"If-None-Match": "*"} if exclusive else {}
        # 409: another request to create the same object was under way.
        status, _, _ = exchange(self, "PUT", url, headers=headers, body=data, ok=(200, 409, 412))
        return status == 200

    def delete(self, url: str) -> None:
        from penstock.storage.readers.remote_file import exchange

        exchange(self, "DELETE", url, ok=(200, 204, 404))


def open_s3(url: str, mode: str, buffer_bytes: int | None = None, **options: Any) -> Any:
    """Open an object. Options: those of :class:`S3Store`, the others as for HTTP."""
    own = {name: options.pop(name) for name in _STORE_OPTIONS if name in options}
    store = S3Store(url, **own)
    if not split_s3(url)[2]:
        raise StorageError("this names a bucket, not an object in it", origin=Origin(url))
    return open_object(store, url, mode, buffer_bytes, **options)


_STORE_OPTIONS = (
    "key",
    "profile",
    "endpoint",
    "region",
    "path_style",
    "anonymous",
    "requester_pays",
)


def split_s3(url: str) -> tuple[str | None, str, str]:
    """Return the name of the key (or None), the bucket, and the object's key, not decoded.

    >>> split_s3("s3://shards/train/a b%20.tar"), split_s3("s3://team-a@shards/x.tar")
    ((None, 'shards', 'train/a b%20.tar'), ('team-a', 'shards', 'x.tar'))
    """
    bucket, _, key = url.partition("://")[2].partition("/")
    if ":" in bucket:  # nothing is quoted: a secret may contain slashes and end anywhere
        raise UrlError(
            "an S3 URL has no ':' before its key, and a secret in one would be seen in every log: "
            "write s3://BUCKET/KEY, or with a named key s3://NAME@BUCKET/KEY"
        )
    name, at, bucket = bucket.rpartition("@")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", bucket):
        raise UrlError(f"an S3 URL is written s3://BUCKET/KEY, and {bucket!r} is no bucket name")
    return (name if at else None), bucket, key


def error_code(page: bytes) -> str:
    """Return the code in an error page, such as NoSuchKey; empty if there is none."""
    return _find_text(page, "Code") or ""


def parse_xml(page: bytes, expected: str, url: str) -> ElementTree.Element:
    """Return the response as a tree. Another document, even with status 200, raises an error."""
    try:
        tree = ElementTree.fromstring(page.strip())  # Amazon sends blanks to keep connections open
    except ElementTree.ParseError:
        tree = ElementTree.Element("nothing")
    if tree.tag.rpartition("}")[2] != expected:
        code = error_code(page) or "something that is not an answer of S3"
        raise StorageError(f"the server answered {code}", origin=Origin(url))
    return tree


def children(tree: ElementTree.Element, name: str) -> Iterator[ElementTree.Element]:
    return (entry for entry in tree if entry.tag.rpartition("}")[2] == name)


def child(tree: ElementTree.Element, name: str) -> str:
    """Return the text of the first child of that name, in any namespace; empty if missing."""
    return next((entry.text or "" for entry in children(tree, name)), "")


def parse_time(text: str) -> datetime.datetime | None:
    """Parse a time in a response; None if it is invalid.

    >>> parse_time("2026-01-01T00:00:00Z") == parse_time("2026-01-01T00:00:00"), parse_time("")
    (True, None)
    """
    try:
        found = datetime.datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo is not None else found.replace(tzinfo=datetime.UTC)


def _find_text(page: bytes, name: str) -> str | None:
    # Error pages are small and flat; those of some servers are not well-formed.
    match = re.search(rf"<{name}>([^<]*)</{name}>".encode(), page[:65536])
    return match[1].decode(errors="replace").strip() if match else None


def _find_region(page: bytes) -> str | None:
    region = _find_text(page, "Region")
    if region is None and (endpoint := _find_text(page, "Endpoint")):
        match = re.search(r"s3[.-]([a-z0-9-]+)\.amazonaws", endpoint)
        region = match[1] if match else None
    return region
