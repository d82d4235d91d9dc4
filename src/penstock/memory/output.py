"""Where a transform writes its result: fresh memory, or straight into a row of the next batch.

A transform asks :func:`empty` for the array it will fill. Alone that is ``numpy.empty``; where a
loader makes batches in place it has said, for the thread at work, which memory is next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

Give = Callable[[tuple[int, ...], Any], "np.ndarray[Any, Any]"]
_thread = threading.local()


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """An array to be filled: a row of the batch that is being made, or one of its own.

    >>> empty((2, 3), "uint8").shape
    (2, 3)
    """
    give: Give | None = getattr(_thread, "give", None)
    if give is not None:
        return give(shape, dtype)
    import numpy as np

    return np.empty(shape, dtype)


def give_by(give: Give | None) -> Give | None:
    """From now on :func:`empty` asks ``give`` on this thread (None: nobody). Gives who it was."""
    before: Give | None = getattr(_thread, "give", None)
    _thread.give = give
    return before


@contextmanager
def rows_from(give: Give) -> Iterator[None]:
    """While this lasts, :func:`empty` asks ``give`` on this thread.

    >>> import numpy as np
    >>> block = np.zeros((4, 3), "uint8")
    >>> with rows_from(lambda shape, dtype: block[1]):
    ...     empty((3,), "uint8")[:] = 7
    >>> block[:, 0].tolist()
    [0, 7, 0, 0]
    """
    before = give_by(give)
    try:
        yield
    finally:
        give_by(before)
