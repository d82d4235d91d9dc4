"""Exit statuses: what a script may conclude from the end of a command.

======  =============================================================================
0       fine
1       the data is bad, or different
2       wrong usage
3       could not be checked or written: network, permission, disk full
130     interrupted (Ctrl-C)
141     the reader of our output is gone (``penstock … | head``)
======  =============================================================================
"""

from __future__ import annotations

import errno

from penstock.errors import (
    MissingPackage,
    PenstockError,
    PipelineError,
    SampleError,
    SchemeError,
    UnsafeError,
    UrlError,
)

FINE, BAD_DATA, WRONG_USAGE, NOT_DONE, INTERRUPTED, READER_GONE = 0, 1, 2, 3, 130, 141


def status_of(error: BaseException) -> int:
    """Return the exit status for an error that ends a command.

    >>> from penstock.errors import ShardError, StorageError
    >>> status_of(ShardError("cut")), status_of(UrlError("none")), status_of(StorageError("down"))
    (1, 2, 3)
    """
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED
    if isinstance(error, OSError) and error.errno == errno.EPIPE and _is_stdout(error):
        return READER_GONE
    if isinstance(error, (UrlError, SchemeError, PipelineError, UnsafeError)):
        return WRONG_USAGE
    if isinstance(error, SampleError):  # ShapeError is an OSError too
        return BAD_DATA
    return NOT_DONE if isinstance(error, (OSError, MissingPackage)) else BAD_DATA


def _is_stdout(error: OSError) -> bool:
    if not isinstance(error, PenstockError):
        return isinstance(error, BrokenPipeError)
    return error.origin is not None and error.origin.url == "-"
