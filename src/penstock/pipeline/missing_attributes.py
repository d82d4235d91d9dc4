"""What a pipeline says about attributes that it does not have."""

from __future__ import annotations

from typing import Any

from penstock.errors import UnknownLengthError
from penstock.nearest_name import suggest


class NoLength:
    """The ``__len__`` of a pipeline without a length.

    ``len()`` raises an error that explains it, and ``hasattr(x, "__len__")`` is False.
    """

    def __get__(self, pipeline: Any, owner: Any) -> Any:
        raise UnknownLengthError(
            f"a {owner.__name__} that reads shards in order has no len(), since it does not know "
            "how many samples they hold: WebDataset(..., index=True) counts them, and "
            "with_length(n) sets the number"
        )


class UnknownAttribute(AttributeError):
    """An attribute that a pipeline does not have; the nearest name is found when it is shown."""

    def __init__(self, owner: Any, name: str) -> None:
        super().__init__(name=name)  # with obj=, a traceback would suggest a name once more
        self.cls = type(owner)

    def __str__(self) -> str:
        known = [name for name in dir(self.cls) if name[:1] != "_"]
        hint = suggest(str(self.name), known)
        return f"{self.cls.__name__!r} object has no attribute {self.name!r}{hint}"
