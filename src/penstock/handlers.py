"""What to do when a sample or a shard fails: the functions for ``handler=``.

A handler gets the exception. It may raise; or return true to skip what failed and go on;
or return false to end this stage's stream there. Any function of that form will do.
Skipped samples are counted: see :attr:`penstock.DataPipeline.skipped`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

Handler = Callable[[Exception], bool]


def describe(exn: BaseException) -> str:
    """The exception in one line, with the notes that say where it happened."""
    return " ".join([repr(exn), *getattr(exn, "__notes__", ())])


def reraise_exception(exn: Exception) -> bool:
    """Let the error through (the default).

    >>> reraise_exception(ValueError("bad"))
    Traceback (most recent call last):
    ValueError: bad
    """
    raise exn


def ignore_and_continue(exn: Exception) -> bool:
    """Skip what failed, say nothing, go on.

    >>> ignore_and_continue(ValueError("bad"))
    True
    """
    return True


def warn_and_continue(exn: Exception) -> bool:
    """Skip what failed with a warning, go on.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warn_and_continue(ValueError("bad"))
    True
    """
    warnings.warn(describe(exn), stacklevel=2)
    return True


def ignore_and_stop(exn: Exception) -> bool:
    """End the stream quietly where it failed.

    >>> ignore_and_stop(ValueError("bad"))
    False
    """
    return False


def warn_and_stop(exn: Exception) -> bool:
    """End the stream where it failed, with a warning.

    >>> import warnings
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warn_and_stop(ValueError("bad"))
    False
    """
    warnings.warn(describe(exn), stacklevel=2)
    return False


class Failed:
    """In place of a result among many: what was raised, and whether reading the item raised it."""

    __slots__ = ("error", "reading")

    def __init__(self, error: BaseException, reading: bool = False) -> None:
        self.error: BaseException | None = error
        self.reading = reading

    def take(self) -> BaseException:
        """The error, which this lets go of: its traceback may hold the list that this is in."""
        error, self.error = self.error, None
        return error or RuntimeError("taken twice")
