"""The table of URL schemes, and :func:`open_url`, which picks the opener of a URL.

The user's openers in ``gopen_schemes`` come first, then the table, then fsspec.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple, overload

from penstock import env
from penstock.errors import (
    MissingPackage,
    Origin,
    PenstockError,
    PipelineError,
    SchemeError,
    StorageError,
    ran_out,
)
from penstock.redact import redact
from penstock.storage.client.retry_policy import RetryPolicy
from penstock.storage.streams import ReadStream, WriteStream
from penstock.storage.urls import rewrite_url, scheme_of

logger = logging.getLogger("penstock.storage")

BUFFER_BYTES = 8192


class Opener(NamedTuple):
    """How URLs of a scheme are opened and listed.

    ``function`` is called as ``f(url, mode, buffer_bytes, **options)``. Both names are written
    ``"module:name"`` and imported on first use.
    """

    function: str
    package: str = ""
    """The package that the function needs, if any, and the extra that installs it."""
    extra: str = ""
    store: str = ""
    """The :class:`~penstock.storage.client.store.Store` that lists objects, if it can."""


_OBJECTS = "penstock.storage.objects"
_AZURE = Opener(f"{_OBJECTS}.azure:open_azure", store=f"{_OBJECTS}.azure:AzureStore")
_HTTP = Opener(f"{_OBJECTS}.http:open_http")
_LOCAL = Opener("penstock.storage.local.files:open_file")

SCHEMES: dict[str, Opener] = {
    "": _LOCAL,
    "file": _LOCAL,
    "pipe": Opener("penstock.storage.local.pipes:open_pipe"),
    "-": Opener("penstock.storage.local.stdio:open_standard"),
    "gs": Opener(f"{_OBJECTS}.gcs:open_gcs", store=f"{_OBJECTS}.gcs:GoogleStore"),
    "az": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "hf": Opener(f"{_OBJECTS}.huggingface:open_hub", store=f"{_OBJECTS}.huggingface:HubStore"),
    "ais": Opener(f"{_OBJECTS}.aistore:open_ais", store=f"{_OBJECTS}.aistore:AisStore"),
    "s3": Opener(f"{_OBJECTS}.s3:open_s3", store=f"{_OBJECTS}.s3:S3Store"),
    "http": _HTTP,
    "https": _HTTP,
}
"""The library's openers; "" is a local path. To add a scheme, add a row."""

SERVERS = frozenset(SCHEMES) - {"", "file", "pipe", "-"}
"""The schemes whose requests the library itself retries, within a ``RetryPolicy``."""

FSSPEC = Opener(f"{_OBJECTS}.fsspec:open_fsspec")
"""Opens every other scheme for which fsspec has a file system."""

AIS_PROVIDERS = {
    "ais": "ais",
    "s3": "aws",
    "aws": "aws",
    "gs": "gcp",
    "gcp": "gcp",
    "az": "azure",
    "azure": "azure",
    "oci": "oci",
}
"""Scheme → AIStore's name for that store."""

gopen_schemes: dict[str, Callable[..., Any]] = {}
"""The user's openers, ``f(url, mode, bufsize)`` by scheme; they take precedence."""


def goes_through_ais(scheme: str) -> bool:
    """Return whether ``USE_AIS_FOR`` (``s3:gs``, also ``aws:gcp``) names the scheme."""
    named = env.text("USE_AIS_FOR")
    provider = AIS_PROVIDERS.get(scheme)
    if named is None or provider is None:
        return False
    words = named.replace(",", ":").lower().split(":")
    return any(AIS_PROVIDERS.get(word.strip()) == provider for word in words)


def fsspec_knows(scheme: str) -> bool:
    """Return whether fsspec is installed and has a file system for the scheme."""
    try:
        from fsspec.registry import known_implementations, registry
    except ImportError:
        return False
    return scheme in known_implementations or scheme in registry


def find_opener(scheme: str) -> Opener | None:
    """Return the library's opener of a scheme, through AIStore where ``USE_AIS_FOR`` names it."""
    return SCHEMES.get("ais" if goes_through_ais(scheme) else scheme)


def import_name(name: str) -> Any:
    """Import and return what ``"module:name"`` refers to."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


@overload
def open_url(
    url: str | os.PathLike[str],
    mode: Literal["rb"] = "rb",
    *,
    buffer_bytes: int | None = None,
    patience: RetryPolicy | None = None,
    **options: Any,
) -> ReadStream: ...


@overload
def open_url(
    url: str | os.PathLike[str],
    mode: Literal["wb"],
    *,
    buffer_bytes: int | None = None,
    patience: RetryPolicy | None = None,
    **options: Any,
) -> WriteStream: ...


@overload
def open_url(
    url: str | os.PathLike[str],
    mode: str,
    *,
    buffer_bytes: int | None = None,
    patience: RetryPolicy | None = None,
    **options: Any,
) -> Any: ...


def open_url(
    url: str | os.PathLike[str],
    mode: str = "rb",
    *,
    buffer_bytes: int | None = None,
    patience: RetryPolicy | None = None,
    **options: Any,
) -> Any:
    """Open a URL for reading (``"rb"``) or writing (``"wb"``) and return the stream.

    ``buffer_bytes``: None reads unbuffered (``read(n)`` may return fewer than ``n`` bytes before
    the end), -1 selects the opener's default buffer. ``patience`` limits how long requests to a
    failing server are retried; local files, commands, fsspec and the user's openers do not use it.
    Options are those of the scheme's opener. The URL is first rewritten by ``WDS_REWRITE``. A
    missing or failing object, and a scheme without an opener, raise a
    :class:`~penstock.errors.StorageError`.

    >>> with open_url("pipe:echo hello") as stream:
    ...     stream.read()
    b'hello\\n'
    """
    if mode not in ("rb", "wb"):
        raise PipelineError(f"a URL is opened in the mode 'rb' or 'wb', not {mode!r}")
    if not isinstance(patience, RetryPolicy | None):
        raise PipelineError(f"patience is a RetryPolicy(retries=..., ...), not {patience!r}")
    url = _rewrite(url)
    if env.flag("GOPEN_VERBOSE"):
        logger.info("open %s (%s)", redact(url), mode)
    scheme = "-" if url == "-" else scheme_of(url)
    opener = find_opener(scheme)
    own = gopen_schemes.get(scheme)
    if own is None and opener is None:
        own = gopen_schemes.get("__default__")
    if own is not None:
        with calling_opener(url):
            return own(url, mode, _own_buffer_size(buffer_bytes), **options)
    if opener is None and fsspec_knows(scheme):
        opener = FSSPEC
    elif patience is not None and (scheme in SERVERS or goes_through_ais(scheme)):
        options["patience"] = patience
    if opener is not None:
        return _import_opener(opener, scheme, mode)(url, mode, buffer_bytes, **options)
    known = ", ".join(sorted(name for name in {*SCHEMES, *gopen_schemes} if name.isalnum()))
    raise SchemeError(
        f"there is no opener for {scheme!r} (known: local paths, {known}, and with fsspec all of "
        "its own): let a command bring the bytes ('pipe:COMMAND'), put a function into "
        "gopen_schemes, or write a local name with a colon as './NAME'",
        origin=Origin(url),
    )


def gopen(
    url: str | os.PathLike[str], mode: str = "rb", bufsize: int = BUFFER_BYTES, **kw: Any
) -> Any:
    """Open a URL: :func:`open_url` under WebDataset's name, always buffered.

    >>> with gopen("pipe:echo hello") as stream:
    ...     stream.read(2)
    b'he'
    """
    # GOPEN_BUFFER replaces the default, but not a size that the caller chose.
    return open_url(url, mode, buffer_bytes=-1 if bufsize == BUFFER_BYTES else bufsize, **kw)


@contextlib.contextmanager
def calling_opener(url: str) -> Iterator[None]:
    """Raise the errors of a user's opener, but OSErrors, as a StorageError that names the URL.

    So the handlers of shards, which get the library's errors, are asked about them.
    """
    try:
        yield
    except (PenstockError, OSError):
        raise
    except Exception as error:
        if ran_out(error):
            raise
        raise StorageError(
            f"the program's opener failed: {type(error).__name__}: {error}",
            origin=Origin(url),
        ) from error


def _rewrite(url: str | os.PathLike[str]) -> str:
    if isinstance(url, str):
        return url if url == "-" else rewrite_url(url)
    path = os.fspath(url)
    return rewrite_url(os.path.join(os.curdir, path) if scheme_of(path) or path == "-" else path)


def _own_buffer_size(buffer_bytes: int | None) -> int:
    return BUFFER_BYTES if buffer_bytes is None or buffer_bytes < 0 else buffer_bytes


def _import_opener(opener: Opener, scheme: str, mode: str) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = import_name(opener.function)
    except ImportError as exn:
        if not opener.package:
            raise
        what = f"{'reading' if mode == 'rb' else 'writing'} {scheme}://"
        raise MissingPackage.of(what, opener.package, opener.extra) from exn
    return function
