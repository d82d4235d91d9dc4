"""``hf://datasets/OWNER/NAME@REVISION/PATH``: files of repositories on the Hugging Face Hub.

Reading and listing are plain requests. The token is the one that the Hub's own tools use
(``HF_TOKEN``, or what ``hf auth login`` left); without one, public repositories can be read. Each
written file becomes a commit, made by the package huggingface_hub.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from penstock import env
from penstock.errors import MissingPackage, Origin, StorageError, UrlError

from penstock.storage.client.addressed import Addressed
from penstock.storage.readers.remote_file import exchange
from penstock.storage.objects.open_object import open_remote
from penstock.storage.objects.spooled_writer import SpooledWriter
from penstock.storage.client.store import Body, Fields, Listed, Request, Store
from penstock.storage.auth.bearer_tokens import Token, token_for

ENDPOINT = "https://huggingface.co"
_KINDS = {"datasets": "dataset", "models": "model", "spaces": "space"}
# Revisions with slashes: the Hub's own branches for conversions and pull requests.
_REVISION = re.compile(r"(refs/(?:convert|pr)/[^/]+|[^/]+)(?:/|$)")


def open_hub(url: str, mode: str, buffer_bytes: int | None = None, **options: Any) -> Any:
    """A file on the Hub, for reading or writing.

    >>> open_hub("hf://datasets/owner/name", "rb")
    Traceback (most recent call last):
    ...
    penstock.errors.UrlError: 'hf://datasets/owner/name' names no file: write \
hf://datasets/OWNER/NAME/PATH
    """
    if not place_of(url).path:
        raise UrlError(f"{url!r} names no file: write hf://datasets/OWNER/NAME/PATH")
    return open_remote(HubStore(url), url, mode, buffer_bytes, **options)


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The parts of a URL: ``kind`` is ``datasets``, ``models`` or ``spaces``."""

    root: str  # what stands before the paths in URLs of this repository
    kind: str
    repository: str
    revision: str
    path: str


def place_of(url: str) -> Place:
    """The parts of a URL; a repository without a kind is a model, as the Hub's own tools have it.

    >>> place_of("hf://datasets/me/digits@v1/train/0.tar")  # doctest: +NORMALIZE_WHITESPACE
    Place(root='hf://datasets/me/digits@v1/', kind='datasets', repository='me/digits',
          revision='v1', path='train/0.tar')
    >>> place_of("hf://datasets/me/digits@refs/pr/7/0.tar").revision
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
        raise UrlError(f"{url!r} names no repository: write hf://datasets/OWNER/NAME/PATH")
    inner, revision = inner[len(name) :], "main"
    root = f"{lead}{owner}/{name}"
    if inner.startswith("@"):
        match = _REVISION.match(inner, 1)
        if match is None:
            raise UrlError(f"{url!r} has an '@' without a revision: write hf://…@REVISION/PATH")
        revision, inner = unquote(match[1]), inner[match.end(1) :]
        root += f"@{match[1]}"
    return Place(f"{root}/", kind, f"{owner}/{name}", revision, inner.removeprefix("/"))


class HubStore(Store):
    """The Hub, or the one that ``HF_ENDPOINT`` names, with the token for a URL."""

    scheme = "hf"

    def __init__(self, url: str) -> None:
        self.endpoint = (env.text("HF_ENDPOINT") or ENDPOINT).rstrip("/")
        self.token: Token = token_for(url, Token(_hub_token))
        self._addresses: dict[str, str] = {}
        self._sent_on = False

    def request(
        self, method: str, url: str, headers: Fields = None, query: Fields = None, body: Body = None
    ) -> Request:
        if method == "GET" and (known := self._addresses.get(url)) is not None:
            return Request(method, known, headers or {}, body)  # signed, and not the Hub's own
        place = place_of(url)
        lead = "" if place.kind == "models" else f"{place.kind}/"
        address = (
            f"{self.endpoint}/{lead}{place.repository}/resolve/"
            f"{quote(place.revision, safe='')}/{quote(place.path)}"
        )
        sent = {"Accept-Encoding": "identity", **(headers or {}), **self.token.headers()}
        # The Hub sends readers on to another server, whose ETags it does not know.
        sent.pop("If-Match", None)
        return Request(method, address, sent, body)

    def moved(self, url: str, address: str) -> None:
        # Asking the Hub for every part would be twice the requests, and it limits them.
        if urlsplit(address).netloc != urlsplit(self.endpoint).netloc:
            self._addresses[url] = address
            self._sent_on = True

    def expired(self, status: int, page: bytes) -> bool:
        return super().expired(status, page) or (self._sent_on and status == 403)

    def refresh(self) -> bool:
        """Ask the Hub again where the objects are, and for a new token where there is one."""
        self._addresses = {}
        return self.token.renew() or self._sent_on

    def refusal(self, url: str, status: int, headers: Mapping[str, str], page: bytes) -> str:
        place = place_of(url)
        code = headers.get("X-Error-Code")
        if status == 404 and code == "EntryNotFound":
            return f"{place.repository} has no file of that name in the revision {place.revision!r}"
        if status == 404 and code == "RevisionNotFound":
            return f"{place.repository} has no revision {place.revision!r}"
        if status in (401, 403, 404):
            have = "the token in use may not read it" if self.token.text() else "no token was found"
            terms = " or its terms are not accepted yet" if code == "GatedRepo" else ""
            return (
                f"the Hub answered {status}: there is no {_KINDS[place.kind]} {place.repository}, "
                f"it is private{terms}, and {have}: check the name, or set HF_TOKEN or run "
                "'hf auth login'"
            )
        return f"the Hub answered {status}"

    def list(self, prefix: str, *, deep: bool = True) -> Iterator[Listed]:
        place = place_of(prefix)
        folder = place.path.rpartition("/")[0]
        address = (
            f"{self.endpoint}/api/{place.kind}/{place.repository}/tree/"
            f"{quote(place.revision, safe='')}" + (f"/{quote(folder)}" if folder else "")
        )
        query = {"recursive": "true" if deep else "false"}
        while True:
            tree = Addressed(self, address, self.token.headers())
            _, headers, page = exchange(tree, "GET", prefix, query=query)
            try:
                entries = [entry for entry in json.loads(page) if entry["type"] == "file"]
            except (ValueError, KeyError, TypeError) as exn:
                raise StorageError("the listing is not the Hub's", origin=Origin(prefix)) from exn
            for entry in entries:
                if entry["path"].startswith(place.path):
                    yield Listed(place.root + entry["path"], entry.get("size"))
            cursor = _cursor(headers.get("Link"))
            if cursor is None:
                return
            query["cursor"] = cursor

    def writer(self, url: str, **options: Any) -> HubWriter:
        return HubWriter(self, url)


class HubWriter(SpooledWriter):
    """A file that becomes a commit when it is closed."""

    def __init__(self, store: HubStore, url: str) -> None:
        try:
            import huggingface_hub
        except ImportError as exn:
            raise MissingPackage.of("writing hf://", "huggingface_hub", "hf") from exn
        self._hub, self._store = huggingface_hub, store
        super().__init__(url)

    def _upload(self) -> None:
        place = place_of(self.name)
        interface = self._hub.HfApi(
            endpoint=self._store.endpoint, token=self._store.token.text() or False
        )
        try:
            interface.upload_file(
                path_or_fileobj=self._file,
                path_in_repo=place.path,
                repo_id=place.repository,
                repo_type=_KINDS[place.kind],
                revision=place.revision,
                commit_message=f"Add {place.path}",
            )
        except (OSError, ValueError, RuntimeError) as exn:
            status = getattr(getattr(exn, "response", None), "status_code", None)
            raise StorageError(
                self._store.refusal(self.name, status, {}, b"")
                if status
                else f"the upload to the Hub failed ({type(exn).__name__})",
                origin=Origin(self.name),
            ) from exn


def _hub_token() -> tuple[str | None, float | None]:
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
            return None, None  # most people are not signed in, and public data needs no token
    return (text or "").strip() or None, None


def _cursor(link: str | None) -> str | None:
    """Where the next page of a listing begins, from a header ``<URL>; rel="next"``."""
    match = re.search(r'<([^>]+)>\s*;\s*rel="next"', link or "")
    if match is None:
        return None
    found = parse_qs(urlsplit(match[1]).query).get("cursor")
    return found[0] if found else None
