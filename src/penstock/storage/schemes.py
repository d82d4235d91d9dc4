"""Which opener a URL goes to: the user's own, then the one in the table."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, overload

from penstock import env
from penstock.errors import MissingPackage, Origin, PipelineError, StorageError
from penstock.redact import shown
from penstock.storage.urls import rewrite_url, scheme_of

from penstock.storage.client.retry_policy import Patience
from penstock.storage.routes import fsspec_knows, goes_through_ais
from penstock.storage.streams import ReadStream, WriteStream

logger = logging.getLogger("penstock.storage")

BUFFER_BYTES = 8192


class Opener(NamedTuple):
    """Where the function for a scheme is, and which package and extra it needs, if any.

    The function is called as ``f(url, mode, buffer_bytes, **options)``.
    """

    function: str  # "module:function", imported on first use
    package: str = ""
    extra: str = ""


SCHEMES: dict[str, Opener] = {
    "": Opener("penstock.storage.local.files:open_file"),
    "file": Opener("penstock.storage.local.files:open_file"),
    "pipe": Opener("penstock.storage.local.pipes:open_pipe"),
    "-": Opener("penstock.storage.local.stdio:open_standard"),
    "gs": Opener("penstock.storage.objects.gcs:open_gcs"),
    "az": Opener("penstock.storage.objects.azure:open_azure"),
    "abfs": Opener("penstock.storage.objects.azure:open_azure"),
    "abfss": Opener("penstock.storage.objects.azure:open_azure"),
    "hf": Opener("penstock.storage.objects.huggingface:open_hub"),
    "ais": Opener("penstock.storage.objects.aistore:open_ais"),
    "s3": Opener("penstock.storage.objects.s3:open_s3"),
    "http": Opener("penstock.storage.objects.http:open_http"),
    "https": Opener("penstock.storage.objects.http:open_http"),
}
"""The library's openers; "" stands for local paths. A new scheme is one more line."""

SERVERS = frozenset(SCHEMES) - {"", "file", "pipe", "-"}
"""The schemes of stores that this library itself asks again, with patience."""

OTHERS = Opener("penstock.storage.objects.fsspec:open_fsspec")
"""Opens every other scheme that fsspec has a file system for."""

gopen_schemes: dict[str, Callable[..., Any]] = {}
"""The user's own openers, ``f(url, mode, bufsize)`` by scheme; they win over the library's."""


@overload
def open_url(
    url: str | os.PathLike[str],
    mode: Literal["rb"] = "rb",
    *,
    buffer_bytes: int | None = None,
    patience: Patience | None = None,
    **options: Any,
) -> ReadStream: ...


@overload
def open_url(
    url: str | os.PathLike[str],
    mode: Literal["wb"],
    *,
    buffer_bytes: int | None = None,
    patience: Patience | None = None,
    **options: Any,
) -> WriteStream: ...


@overload
def open_url(
    url: str | os.PathLike[str],
    mode: str,
    *,
    buffer_bytes: int | None = None,
    patience: Patience | None = None,
    **options: Any,
) -> Any: ...


def open_url(
    url: str | os.PathLike[str],
    mode: str = "rb",
    *,
    buffer_bytes: int | None = None,
    patience: Patience | None = None,
    **options: Any,
) -> Any:
    """A stream of bytes from (``"rb"``) or to (``"wb"``) the place that the URL names.

    ``buffer_bytes``: None reads unbuffered (``read(n)`` may give fewer than ``n`` bytes before the
    end), -1 takes the usual buffer of the place. ``patience`` says for how long to put up with a
    server that fails; local files, commands, fsspec and openers of the user's own have no such
    limits, and are opened without. Options are those of the scheme's opener. The URL is
    first rewritten by ``WDS_REWRITE``. A place that does not exist or fails, and a scheme that
    nobody opens, are a :class:`~penstock.errors.StorageError`.

    >>> with open_url("pipe:echo hello") as stream:
    ...     stream.read()
    b'hello\\n'
    """
    if mode not in ("rb", "wb"):
        raise PipelineError(f"a URL is opened in the mode 'rb' or 'wb', not {mode!r}")
    if not isinstance(patience, Patience | None):
        raise PipelineError(f"patience is a Patience(retries=..., ...), not {patience!r}")
    url = _rewritten(url)
    if env.flag("GOPEN_VERBOSE"):
        logger.info("open %s (%s)", shown(url), mode)
    scheme = "-" if url == "-" else scheme_of(url)
    own = gopen_schemes.get(scheme)
    if own is not None:
        return own(url, mode, _own_size(buffer_bytes), **options)
    if patience is not None and (scheme in SERVERS or goes_through_ais(scheme)):
        options["patience"] = patience
    if goes_through_ais(scheme):
        return _function(SCHEMES["ais"], scheme, mode)(url, mode, buffer_bytes, **options)
    if scheme in SCHEMES:
        return _function(SCHEMES[scheme], scheme, mode)(url, mode, buffer_bytes, **options)
    if "__default__" in gopen_schemes:
        return gopen_schemes["__default__"](url, mode, _own_size(buffer_bytes), **options)
    if fsspec_knows(scheme):
        return _function(OTHERS, scheme, mode)(url, mode, buffer_bytes, **options)
    known = ", ".join(sorted(name for name in {*SCHEMES, *gopen_schemes} if name.isalnum()))
    raise StorageError(
        f"there is no opener for {scheme!r} (known: local paths, {known}, and with fsspec all of "
        "its own): let a command bring the bytes ('pipe:COMMAND'), put a function into "
        "gopen_schemes, or write a local name with a colon as './NAME'",
        origin=Origin(url),
    )


def gopen(
    url: str | os.PathLike[str], mode: str = "rb", bufsize: int = BUFFER_BYTES, **kw: Any
) -> Any:
    """:func:`open_url` under WebDataset's name; always buffered.

    >>> with gopen("pipe:echo hello") as stream:
    ...     stream.read(2)
    b'he'
    """
    # The default gives way to GOPEN_BUFFER, a size that the caller chose does not.
    return open_url(url, mode, buffer_bytes=-1 if bufsize == BUFFER_BYTES else bufsize, **kw)


def _rewritten(url: str | os.PathLike[str]) -> str:
    if isinstance(url, str):
        return url if url == "-" else rewrite_url(url)
    path = os.fspath(url)
    return rewrite_url(os.path.join(os.curdir, path) if scheme_of(path) or path == "-" else path)


def _own_size(buffer_bytes: int | None) -> int:
    return BUFFER_BYTES if buffer_bytes is None or buffer_bytes < 0 else buffer_bytes


def _function(opener: Opener, scheme: str, mode: str) -> Callable[..., Any]:
    module, _, name = opener.function.partition(":")
    try:
        function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except ImportError as exn:
        if not opener.package:
            raise
        what = f"{'reading' if mode == 'rb' else 'writing'} {scheme}://"
        raise MissingPackage.of(what, opener.package, opener.extra) from exn
    return function
