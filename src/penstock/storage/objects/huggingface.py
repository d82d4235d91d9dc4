"""``hf://datasets/OWNER/NAME@REVISION/PATH``: files of repositories on the Hugging Face Hub.

Reading and listing are plain requests. The token is that of the Hub's tools (``HF_TOKEN``, or the
one of ``hf auth login``); without one, public repositories can be read. Each written file becomes a
commit, made by the package huggingface_hub.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from penstock import env
from penstock.errors import Origin, StorageError, UrlError, optional
from penstock.redact import redact
from penstock.storage.auth.bearer_tokens import Token, find_token
from penstock.storage.client.store import (
    Body,
    Fields,
    FixedAddressStore,
    Listed,
    Page,
    Request,
    Store,
    parse_json,
)
from penstock.storage.objects.open_object import open_object
from penstock.storage.objects.spooled_writer import SpooledWriter
from penstock.storage.readers.remote_file import exchange

ENDPOINT = "https://huggingface.co"
_KINDS = {"datasets": "dataset", "models": "model", "spaces": "space"}
# Revisions with slashes: the Hub's branches for conversions and pull requests.
_REVISION = re.compile(r"(refs/(?:convert|pr)/[^/]+|[^/]+)(?:/|$)")


def open_hub(url: str, mode: str, buffer_bytes: int | None = None, **options: Any) -> Any:
    """Open a file on the Hub for reading or writing.

    >>> open_hub("hf://datasets/owner/name", "rb")
    Traceback (most recent call last):
    ...
    penstock.errors.UrlError: 'hf://datasets/owner/name' names no file: write \
hf://datasets/OWNER/NAME/PATH
    """
    if not parse_url(url).path:
        raise UrlError(f"{redact(url)!r} names no file: write hf://datasets/OWNER/NAME/PATH")
    return open_object(HubStore(url), url, mode, buffer_bytes, **options)


@dataclasses.dataclass(frozen=True, slots=True)
class HubAddress:
    """The parts of a URL: ``kind`` is ``datasets``, ``models`` or ``spaces``."""

    root: str  # the part of the repository's URLs before the paths
    kind: str
    repository: str
    revision: str
    path: str


def parse_url(url: str) -> HubAddress:
    """Parse a URL; a repository without a kind is a model, as for the Hub's tools.

    >>> parse_url("hf://datasets/me/digits@v1/train/0.tar")  # doctest: +NORMALIZE_WHITESPACE
    HubAddress(root='hf://datasets/me/digits@v1/', kind='datasets', repository='me/digits',
               revision='v1', path='train/0.tar')
    >>> parse_url("hf://datasets/me/digits@refs/pr/7/0.tar").revision
    'refs/pr/7'
    """
    rest = url.partition("://")[2]
    kind, _, inner = rest.partition("/")
    lead = f"hf://{kind}/"
    if kind not in _KINDS:
        kind, inner, lead = "models", rest, "hf://"
    owner, _, inner = inner.partition("/")
    name = re.match(r"[^/@]*", inner)[0]  # type: ignore[index]
    if not owner or not name:
        raise UrlError(f"{redact(url)!r} names no repository: write hf://datasets/OWNER/NAME/PATH")
    inner, revision = inner[len(name) :], "main"
    root = f"{lead}{owner}/{name}"
    if inner.startswith("@"):
        match = _REVISION.match(inner, 1)
        if match is None:
            raise UrlError(
                f"{redact(url)!r} has an '@' without a revision: write hf://…@REVISION/PATH"
            )
        revision, inner = unquote(match[1]), inner[match.end(1) :]
        root += f"@{match[1]}"
    return HubAddress(f"{root}/", kind, f"{owner}/{name}", revision, inner.removeprefix("/"))


class HubStore(Store):
    """The Hub, or the one that ``HF_ENDPOINT`` names, with the token for a URL."""

    scheme = "hf"

    def __init__(self, url: str) -> None:
        self.endpoint = (env.text("HF_ENDPOINT") or ENDPOINT).rstrip("/")
        self.address_from = "HF_ENDPOINT" if env.text("HF_ENDPOINT") else ""
        self.token: Token = find_token(url, Token(_fetch_token))
        self._addresses: dict[str, str] = {}
        self._sent_on = False

    def request(
        self, method: str, url: str, headers: Fields = None, query: Fields = None, body: Body = None
    ) -> Request:
        if method == "GET" and (known := self._addresses.get(url)) is not None:
            return Request(method, known, headers or {}, body)  # signed, on another server
        file = parse_url(url)
        lead = "" if file.kind == "models" else f"{file.kind}/"
        address = (
            f"{self.endpoint}/{lead}{file.repository}/resolve/"
            f"{quote(file.revision, safe='')}/{quote(file.path)}"
        )
        sent = {"Accept-Encoding": "identity", **(headers or {}), **self.token.headers()}
        # The Hub redirects readers to another server, whose ETags differ from its own.
        sent.pop("If-Match", None)
        return Request(method, address, sent, body)

    def moved(self, url: str, address: str) -> None:
        # A request to the Hub for every part would double the requests, which it limits.
        if urlsplit(address).netloc != urlsplit(self.endpoint).netloc:
            self._addresses[url] = address
            self._sent_on = True

    def expired(self, status: int, page: bytes) -> bool:
        return super().expired(status, page) or (self._sent_on and status == 403)

    def refresh(self) -> bool:
        """Drop the download addresses, which expire, and renew the token if possible."""
        self._addresses = {}
        return self.token.renew() or self._sent_on

    def refusal(self, url: str, status: int, headers: Mapping[str, str], page: bytes) -> str:
        file = parse_url(url)
        code = headers.get("X-Error-Code")
        if status == 404 and code == "EntryNotFound":
            return f"{file.repository} has no file of that name in the revision {file.revision!r}"
        if status == 404 and code == "RevisionNotFound":
            return f"{file.repository} has no revision {file.revision!r}"
        if status in (401, 403, 404):
            have = "the token in use may not read it" if self.token.text() else "no token was found"
            terms = " or its terms are not accepted yet" if code == "GatedRepo" else ""
            return (
                f"the Hub answered {status}: there is no {_KINDS[file.kind]} {file.repository}, "
                f"it is private{terms}, and {have}: check the name, or set HF_TOKEN or run "
                "'hf auth login'"
            )
        return f"the Hub answered {status}"

    def list_page(self, prefix: str, deep: bool, token: str) -> Page:
        start = parse_url(prefix)
        folder = start.path.rpartition("/")[0]
        address = (
            f"{self.endpoint}/api/{start.kind}/{start.repository}/tree/"
            f"{quote(start.revision, safe='')}" + (f"/{quote(folder)}" if folder else "")
        )
        query = {"recursive": "true" if deep else "false"}
        if token:
            query["cursor"] = token
        tree = FixedAddressStore(self, address, self.token.headers())
        _, headers, page = exchange(tree, "GET", prefix, query=query)
        found = [
            Listed.of(start.root, entry["path"], entry.get("size"))
            for entry in parse_json(page)
            if entry["type"] == "file" and entry["path"].startswith(start.path)
        ]
        return found, _read_cursor(headers.get("Link")) or ""

    def writer(self, url: str, **options: Any) -> HubWriter:
        return HubWriter(self, url)


class HubWriter(SpooledWriter):
    """Writes a file that becomes a commit when it is closed."""

    def __init__(self, store: HubStore, url: str) -> None:
        huggingface_hub = optional("huggingface_hub", "hf", "writing hf://")
        self._hub, self._store = huggingface_hub, store
        super().__init__(url)

    def _upload(self) -> None:
        file = parse_url(self.name)
        api = self._hub.HfApi(
            endpoint=self._store.endpoint, token=self._store.token.text() or False
        )
        try:
            api.upload_file(
                path_or_fileobj=self._file,
                path_in_repo=file.path,
                repo_id=file.repository,
                repo_type=_KINDS[file.kind],
                revision=file.revision,
                commit_message=f"Add {file.path}",
            )
        except (OSError, ValueError, RuntimeError) as exn:
            status = getattr(getattr(exn, "response", None), "status_code", None)
            raise StorageError(
                self._store.refusal(self.name, status, {}, b"")
                if status
                else f"the upload to the Hub failed ({type(exn).__name__})",
                origin=Origin(self.name),
            ) from exn


def _fetch_token() -> tuple[str | None, float | None]:
    text = env.text("HF_TOKEN") or env.text("HUGGING_FACE_HUB_TOKEN")
    if text is None and not env.flag("HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        home = env.text("HF_HOME") or os.path.join(
            env.text("XDG_CACHE_HOME") or os.path.join("~", ".cache"), "huggingface"
        )
        path = env.text("HF_TOKEN_PATH") or os.path.join(home, "token")
        try:
            with open(os.path.expanduser(path)) as file:
                text = file.read()
        except OSError:
            return None, None  # most users are not signed in, and public data needs no token
    return (text or "").strip() or None, None


def _read_cursor(link: str | None) -> str | None:
    """Return the cursor of the next page of a listing, from a header ``<URL>; rel="next"``."""
    match = re.search(r'<([^>]+)>\s*;\s*rel="next"', link or "")
    if match is None:
        return None
    found = parse_qs(urlsplit(match[1]).query).get("cursor")
    return found[0] if found else None
