"""A padded batch of samples of any length, for a loader's ``collate_fn``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self

from penstock.batches.padding.pad import (
    PaddedData,
    as_tensor,
    batch_pad_right,
    move,
    pad_batch,
    torch_module,
)
from penstock.errors import PipelineError, SampleError, ShapeError, UnknownKeyError


class PaddedBatch:
    """Samples (dicts) as one batch: ``DataLoader(dataset, collate_fn=PaddedBatch)``.

    Tensors and arrays are padded into a :class:`PaddedData`; numbers become a tensor, everything
    else a list. The keys are those of the first sample; a sample that lacks one raises an
    :class:`~penstock.errors.UnknownKeyError` (a KeyError). Values are ``batch.wav`` or
    ``batch["wav"]``; ``wav, text = batch`` unpacks them in the order of the keys.

    ``padded_keys`` restricts padding to some keys, ``device_prep_keys`` what :meth:`to` and
    :meth:`pin_memory` move (default: all tensors). ``padding_func`` is called with the tensors and
    ``padding_kwargs``, or those of its key in ``per_key_padding_kwargs``, and returns batch and
    relative lengths. ``apply_default_convert`` converts arrays to tensors, also nested ones;
    ``nonpadded_stack`` stacks values that are not padded, if possible.

    >>> import torch
    >>> batch = PaddedBatch([{"id": "a", "wav": torch.ones(2)}, {"id": "b", "wav": torch.ones(4)}])
    >>> batch.id, batch.wav.lengths, batch.wav.absolute
    (['a', 'b'], tensor([0.5000, 1.0000]), tensor([2, 4]))
    """

    _values: dict[str, Any]

    def __init__(
        self,
        examples: Sequence[Mapping[str, Any]],
        padded_keys: Sequence[str] | None = None,
        device_prep_keys: Sequence[str] | None = None,
        padding_func: Callable[..., Any] = batch_pad_right,
        padding_kwargs: Mapping[str, Any] | None = None,
        per_key_padding_kwargs: Mapping[str, Mapping[str, Any]] | None = None,
        apply_default_convert: bool = True,
        nonpadded_stack: bool = True,
    ) -> None:
        torch = torch_module()
        if not len(examples):
            raise ShapeError("a batch has at least one sample: there are none")
        values: dict[str, Any] = {}
        prepared: list[str] = []
        for key in examples[0]:
            column = _column(examples, key)
            if apply_default_convert:
                column = torch.utils.data.default_convert(column)
            if padded_keys is None:
                pad = isinstance(column[0], torch.Tensor) and column[0].ndim > 0
            else:
                pad = key in padded_keys
            if pad:
                options = (per_key_padding_kwargs or {}).get(key, padding_kwargs or {})
                values[key] = _pad_column(key, column, padding_func, options)
            else:
                values[key] = mod_default_collate(column) if nonpadded_stack else column
            if key in device_prep_keys if device_prep_keys is not None else _holds(values[key]):
                prepared.append(key)
        self.__dict__.update(_values=values, _length=len(examples), _prepared=prepared)

    @property
    def batchsize(self) -> int:
        """The number of samples."""
        return int(self.__dict__["_length"])

    def __len__(self) -> int:
        return self.batchsize

    def keys(self) -> list[str]:
        """Return the keys, in order."""
        return list(self._values)

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __getitem__(self, key: str) -> Any:
        try:
            return self._values[key]
        except KeyError:
            known = ", ".join(self._values)
            raise UnknownKeyError(f"the batch has no key {key!r} (keys: {known})") from None

    # Python looks up values only after methods: a key named "to" does not hide the method.
    def __getattr__(self, name: str) -> Any:
        values = self.__dict__.get("_values", {})
        if name in values:
            return values[name]
        raise AttributeError(f"the batch has neither a key nor an attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._values:
            self._values[name] = value
        else:
            self.__dict__[name] = value

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values.values())

    def at_position(self, pos: int) -> Any:
        """Return the value of the key at that position."""
        return list(self._values.values())[pos]

    def pin_memory(self) -> Self:
        """Move the tensors to pinned memory, in place."""
        for key in self.__dict__["_prepared"]:
            value = self._values[key]
            self._values[key] = _each(value, lambda one: one.pin_memory(), _is_tensor)
        return self

    def to(self, *args: Any, **options: Any) -> Self:
        """Move and cast the tensors as ``Tensor.to`` does, in place.

        A floating-point type is applied to floating-point data and to relative lengths. Labels,
        tokens and absolute lengths stay exact.
        """

        def change(one: Any) -> Any:
            padded = isinstance(one, PaddedData)
            return one.to(*args, **options) if padded else move(one, args, options)

        for key in self.__dict__["_prepared"]:
            self._values[key] = _each(self._values[key], change, _is_tensor)
        return self

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)

    def __repr__(self) -> str:
        return f"PaddedBatch({self._values})"


def _column(examples: Sequence[Mapping[str, Any]], key: str) -> list[Any]:
    try:
        return [example[key] for example in examples]
    except KeyError:
        index = next(i for i, example in enumerate(examples) if key not in example)
        about = examples[index].get("id", examples[index].get("__key__"))
        raise UnknownKeyError(
            f"samples of one batch must have the keys of its first, but sample {index}"
            f"{f' ({about!r})' if about is not None else ''} has no {key!r}"
        ) from None


def _pad_column(
    key: str, column: list[Any], padding_func: Callable[..., Any], options: Mapping[str, Any]
) -> PaddedData:
    try:
        if padding_func is batch_pad_right:
            return pad_batch(column, **options)
        data, lengths = padding_func(column, **options)
    except (SampleError, TypeError) as error:
        error.add_note(f"while padding {key!r}")
        raise
    return PaddedData(data, lengths)


def _holds(value: Any) -> bool:
    return _is_tensor(value) or (isinstance(value, list) and _is_tensor(value[0]))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (torch_module().Tensor, PaddedData))


def _moves(value: Any) -> bool:
    return callable(getattr(value, "to", None)) and not isinstance(value, type)


def _each(value: Any, change: Callable[[Any], Any], leaf: Callable[[Any], bool]) -> Any:
    """Return the nested value with ``change`` applied to all leaves; other values stay."""
    if leaf(value):
        return change(value)
    kind: Any = type(value)
    if isinstance(value, Mapping):
        inner = {key: _each(one, change, leaf) for key, one in value.items()}
        return inner if kind is dict else _rebuild(kind, inner)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray, range)):
        changed = [_each(one, change, leaf) for one in value]
        return kind(*changed) if hasattr(value, "_fields") else _rebuild(kind, changed)
    return value


def _rebuild(kind: Any, inner: Any) -> Any:
    try:
        return kind(inner)
    except TypeError:  # such as a defaultdict, whose first argument is a factory
        return inner


def recursive_to(data: Any, *args: Any, **kwargs: Any) -> Any:
    """Return a nested value with ``x.to(*args, **kwargs)`` for everything that can be moved.

    >>> import torch
    >>> recursive_to({"x": [torch.ones(1), "text"]}, torch.float64)
    {'x': [tensor([1.], dtype=torch.float64), 'text']}
    """
    return _each(data, lambda one: one.to(*args, **kwargs), _moves)


def mod_default_collate(batch: Sequence[Any]) -> Any:
    """Return the values of one key as a tensor if they can be stacked, else unchanged.

    Integers become int64, floats float64, booleans bool.

    >>> mod_default_collate([1, 2]), mod_default_collate(["a", "b"])
    (tensor([1, 2]), ['a', 'b'])
    """
    import numpy as np

    torch = torch_module()
    kinds = {type(value) for value in batch}
    plain = {bool, int, float}
    try:
        if kinds <= plain and (kinds == {bool} or bool not in kinds):
            return torch.tensor(batch, dtype=torch.float64 if float in kinds else None)
        if all(
            isinstance(value, (torch.Tensor, np.ndarray, np.number, np.bool_)) for value in batch
        ):
            tensors = [as_tensor(value) for value in batch]
            if len({tensor.shape for tensor in tensors}) == 1:
                return pad_batch(tensors).data
    except (TypeError, ValueError, RuntimeError, OverflowError):
        pass  # strings in arrays, numbers too large: these stay unchanged
    return batch


class BatchsizeGuesser:
    """Returns the number of samples in a batch, or 1 if nothing shows it.

    >>> import torch
    >>> guess = BatchsizeGuesser()
    >>> guess(torch.ones(4, 2)), guess((torch.ones(3, 2), [0, 0, 0])), guess(None)
    (4, 3, 1)
    """

    def __call__(self, batch: Any) -> int:
        for look in (
            lambda: batch.batchsize,
            lambda: batch.shape[0],
            lambda: len(batch[0]),
            lambda: len(next(iter(batch))),
        ):
            try:
                return int(look())
            except (AttributeError, TypeError, LookupError, ValueError, StopIteration):
                continue
        return 1


def batch_shuffle(items: Sequence[Any], batch_size: int, generator: Any = None) -> list[Any]:
    """Return the items with groups of ``batch_size`` in random order; a shorter rest stays last.

    The order comes from ``generator``, or from torch's.

    >>> import torch
    >>> batch_shuffle([1, 2, 3, 4, 5], 2, torch.Generator().manual_seed(1))
    [3, 4, 1, 2, 5]
    """
    order = shuffle_groups(len(items), batch_size, generator)
    whole = len(order) * batch_size
    shuffled = [
        items[index] for n in order for index in range(n * batch_size, (n + 1) * batch_size)
    ]
    return shuffled + [items[index] for index in range(whole, len(items))]


def shuffle_groups(count: int, batch_size: int, generator: Any = None) -> list[int]:
    """Return a random order of the full batches of ``count`` items, as batch numbers."""
    if batch_size < 1:
        raise PipelineError(f"a batch has at least one sample, not {batch_size}")
    order: list[int] = torch_module().randperm(count // batch_size, generator=generator).tolist()
    return order
