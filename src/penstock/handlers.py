"""What to do when a sample or a shard fails: the functions for ``handler=``.

A handler receives the exception. It may raise it, return true to skip the failed item and
continue, or return false to end this stage's stream there. Any such function can be a handler.
Skipped samples are counted: see :attr:`penstock.DataPipeline.skipped`.

Handlers are called through :func:`ask`, which raises out-of-memory errors at once.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

from penstock.errors import ran_out

Handler = Callable[[Exception], bool]


def describe(exn: BaseException) -> str:
    """Return the exception in one line, with the notes that say where it happened."""
    return " ".join([repr(exn), *getattr(exn, "__notes__", ())])


def ask(handler: Handler, error: Exception) -> bool:
    """Call a handler and return whether to skip the failed item. Raise out-of-memory errors.

    >>> ask(ignore_and_continue, ValueError("bad"))
    True
    >>> ask(ignore_and_continue, MemoryError("no more"))
    Traceback (most recent call last):
    MemoryError: no more
    """
    if ran_out(error):
        raise error
    return handler(error)


def reraise_exception(exn: Exception) -> bool:
    """Raise the error (the default).

    >>> reraise_exception(ValueError("bad"))
    Traceback (most recent call last):
    ValueError: bad
    """
    raise exn


def ignore_and_continue(exn: Exception) -> bool:
    """Skip the failed item silently and continue.

    >>> ignore_and_continue(ValueError("bad"))
    True
    """
    return True


def warn_and_continue(exn: Exception) -> bool:
    """Skip the failed item with a warning and continue.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warn_and_continue(ValueError("bad"))
    True
    """
    warnings.warn(describe(exn), stacklevel=2)
    return True


def ignore_and_stop(exn: Exception) -> bool:
    """End the stream silently at the failed item.

    >>> ignore_and_stop(ValueError("bad"))
    False
    """
    return False


def warn_and_stop(exn: Exception) -> bool:
    """End the stream at the failed item, with a warning.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warn_and_stop(ValueError("bad"))
    False
    """
    warnings.warn(describe(exn), stacklevel=2)
    return False


class Failed:
    """Replaces the result of an item that failed: the error, and whether reading raised it."""

    __slots__ = ("error", "reading")

    def __init__(self, error: BaseException, reading: bool = False) -> None:
        self.error: BaseException | None = error
        self.reading = reading

    def take(self) -> BaseException:
        """Return the error and drop it: its traceback may refer to the list that holds this."""
        error, self.error = self.error, None
        return error or RuntimeError("taken twice")
