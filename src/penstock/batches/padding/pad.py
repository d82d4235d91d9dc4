"""Pads tensors of different lengths on the right into one batch, with their lengths.

A length is kept twice: relative to the longest, as speech models take it, and as an integer,
which no cast rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import SampleError, ShapeError, optional

if TYPE_CHECKING:
    from torch import Tensor


class _Pair(NamedTuple):
    data: Any
    lengths: Any


class PaddedData(_Pair):
    """A padded batch and the relative lengths of its samples: ``data, lengths = padded``.

    ``absolute`` are the lengths as integers (int64); ``shapes`` are the samples' original shapes
    (batch, dimensions), or None.

    >>> import torch
    >>> padded = PaddedData(torch.zeros(2, 4), torch.tensor([0.5, 1.0]))
    >>> padded.absolute
    tensor([2, 4])
    """

    shapes: Any
    _absolute: Any

    def __new__(
        cls, data: Any, lengths: Any, absolute: Any = None, shapes: Any = None
    ) -> PaddedData:
        made = super().__new__(cls, data, lengths)
        made._absolute, made.shapes = absolute, shapes
        return made

    @property
    def absolute(self) -> Any:
        """The lengths as integers, computed from the relative ones if they were not given."""
        if self._absolute is None:
            self._absolute = absolute_lengths(self.lengths, self.data.shape[1])
        return self._absolute

    def to(self, *args: Any, **options: Any) -> PaddedData:
        """Move and cast as ``Tensor.to`` does; integers keep their type.

        Relative lengths are cast with the data, so that masks made from them fit the model. Half
        precision cannot tell where a long sample ends: ``absolute`` stays exact.
        """
        absolute = self.absolute if self.data.ndim > 1 else self._absolute  # before rounding
        data = move(self.data, args, options)
        lengths = move(self.lengths, args, options)
        rest = (None if one is None else one.to(data.device) for one in (absolute, self.shapes))
        return PaddedData(data, lengths, *rest)

    def pin_memory(self) -> PaddedData:
        """Return a copy in pinned memory."""
        parts = (self.data, self.lengths, self._absolute, self.shapes)
        return PaddedData(*(None if one is None else one.pin_memory() for one in parts))

    def __reduce__(self) -> Any:
        return PaddedData, (self.data, self.lengths, self._absolute, self.shapes)


def torch_module() -> Any:
    """Return the module torch; raise MissingPackage if it is not installed."""
    return optional("torch", "torch", "padding")


def move(tensor: Any, args: Sequence[Any], options: Any) -> Any:
    """Return ``tensor.to(*args, **options)``, except that integers never become floats.

    A memory format is applied only to tensors of four or more dimensions; others have none.
    """
    torch = torch_module()
    options = dict(options)
    copy = options.pop("copy", False)
    device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **options)
    if dtype is not None and dtype.is_floating_point and not tensor.is_floating_point():
        dtype = None
    more = {"memory_format": layout} if layout is not None and tensor.ndim >= 4 else {}
    return tensor.to(
        device=device if device is not None else tensor.device,
        dtype=dtype if dtype is not None else tensor.dtype,
        non_blocking=non_blocking,
        copy=copy,
        **more,
    )


def as_tensor(value: Any) -> Any:
    """Return a tensor unchanged, an array as a tensor that shares its memory if it is writable."""
    torch = torch_module()
    if isinstance(value, torch.Tensor):
        return value
    import numpy as np

    array = np.asarray(value)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def pad_right_to(
    tensor: Any, target_shape: Sequence[int], mode: str = "constant", value: float = 0
) -> tuple[Tensor, list[float]]:
    """Return the tensor padded to a shape, and the share of each dimension that is valid.

    ``mode`` and ``value`` are those of ``torch.nn.functional.pad``. A smaller target raises a
    :class:`~penstock.errors.ShapeError`. The result never shares memory with the tensor.

    >>> import torch
    >>> pad_right_to(torch.tensor([1, 2]), (4,))
    (tensor([1, 2, 0, 0]), [0.5])
    """
    tensor, target = as_tensor(tensor), tuple(int(n) for n in target_shape)
    if len(target) != tensor.ndim or any(n < m for n, m in zip(target, tensor.shape)):
        raise ShapeError(
            f"a tensor of shape {tuple(tensor.shape)} cannot be padded to {target}: "
            "the target must have as many dimensions, none of them smaller"
        )
    valid = [size / goal if goal else 1.0 for size, goal in zip(tensor.shape, target)]
    if mode == "constant":
        out = tensor.new_full(target, value)
        out[tuple(slice(0, size) for size in tensor.shape)] = tensor
        return out, valid
    return _pad_with_mode(tensor, target, mode, value), valid


def _pad_with_mode(tensor: Any, target: tuple[int, ...], mode: str, value: float) -> Any:
    """Return the tensor padded by torch, one dimension after another.

    torch's modes pad only the last dimensions, and need one or two others before them.
    """
    torch = torch_module()
    wide = [i for i in range(tensor.ndim) if target[i] != tensor.shape[i]]
    for dim in wide:
        rows = tensor.movedim(dim, -1)
        flat = rows.reshape(1, -1, rows.shape[-1])
        padded = torch.nn.functional.pad(
            flat, (0, target[dim] - rows.shape[-1]), mode=mode, value=None
        )
        tensor = padded.reshape(*rows.shape[:-1], -1).movedim(-1, dim)
    return tensor if wide else tensor.clone()


def batch_pad_right(
    tensors: Sequence[Any],
    mode: str = "constant",
    value: float = 0,
    *,
    dim: int | Sequence[int] = 0,
    multiple_of: int = 1,
) -> tuple[Tensor, Tensor]:
    """Return tensors of different lengths as one batch, and their lengths relative to its width.

    ``dim`` is the dimension of a sample that may differ, or several; the lengths are those of the
    first. ``multiple_of`` rounds the padded dimensions up. Each tensor is copied once, into
    the batch. Types are promoted to one that holds all. An empty list, and samples that
    differ in another dimension, raise a :class:`~penstock.errors.ShapeError`.

    >>> import torch
    >>> batch_pad_right([torch.tensor([1, 2]), torch.tensor([3])])
    (tensor([[1, 2],
            [3, 0]]), tensor([1.0000, 0.5000]))
    >>> batch_pad_right([torch.ones(2, 3), torch.ones(2, 1)], dim=-1)[0].shape
    torch.Size([2, 2, 3])
    """
    padded = pad_batch(tensors, mode, value, dim=dim, multiple_of=multiple_of)
    return padded.data, padded.lengths


def pad_batch(
    tensors: Sequence[Any],
    mode: str = "constant",
    value: float = 0,
    *,
    dim: int | Sequence[int] = 0,
    multiple_of: int = 1,
) -> PaddedData:
    """Do as :func:`batch_pad_right`; also return the absolute lengths and the shapes."""
    torch = torch_module()
    if not len(tensors):
        raise ShapeError("a batch has at least one sample: there is nothing to pad")
    tensors = [as_tensor(tensor) for tensor in tensors]
    ndim = tensors[0].ndim
    if any(tensor.ndim != ndim for tensor in tensors):
        counts = sorted({tensor.ndim for tensor in tensors})
        raise ShapeError(f"samples of one batch must have equally many dimensions, not {counts}")
    dims = _dims(dim, ndim)
    target = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors))]
    for axis, sizes in enumerate(zip(*(tensor.shape for tensor in tensors))):
        if axis in dims:
            target[axis] = -(-target[axis] // multiple_of) * multiple_of
        elif len(set(sizes)) > 1:
            raise ShapeError(
                f"samples may differ in dimension {', '.join(map(str, dims))}, but dimension "
                f"{axis} has sizes {sorted(set(sizes))}: name all that differ, such as "
                f"dim={(*dims, axis)}"
            )
    batch = _new_batch(torch, tensors, (len(tensors), *target), value)
    for index, tensor in enumerate(tensors):  # by index: rows from iter() refuse gradients
        if mode != "constant":
            tensor = _pad_with_mode(tensor, tuple(target), mode, value)
        batch[(index, *(slice(0, size) for size in tensor.shape))] = tensor
    device = batch.device
    shapes = torch.tensor([list(tensor.shape) for tensor in tensors], dtype=torch.int64)
    shapes = shapes.reshape(len(tensors), ndim).to(device)
    if not ndim:
        ones = torch.ones(len(tensors), device=device)
        return PaddedData(batch, ones, ones.to(torch.int64), shapes)
    absolute = shapes[:, dims[0]].clone()
    width = target[dims[0]]
    relative = [tensor.shape[dims[0]] / width if width else 1.0 for tensor in tensors]
    return PaddedData(batch, torch.tensor(relative, device=device), absolute, shapes)


def _dims(dim: int | Sequence[int], ndim: int) -> tuple[int, ...]:
    given = (dim,) if isinstance(dim, int) else tuple(dim)
    if ndim and not (given and all(-ndim <= axis < ndim for axis in given)):
        raise SampleError(f"a sample has dimensions 0 to {ndim - 1}, so it has no dim={dim}")
    return tuple(dict.fromkeys(axis % ndim for axis in given)) if ndim else ()


def _new_batch(torch: Any, tensors: Sequence[Any], shape: tuple[int, ...], value: float) -> Any:
    dtype = tensors[0].dtype
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    batch = _allocate(torch, shape, dtype, tensors[0].device)
    if any(tensor.shape != shape[1:] for tensor in tensors):
        batch.fill_(value)
    return batch


def _allocate(torch: Any, shape: tuple[int, ...], dtype: Any, device: Any) -> Any:
    if torch.utils.data.get_worker_info() is None or device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    # In a loader worker the batch is made in shared memory, as torch's collation does: otherwise
    # sending it to the trainer would copy it once more.
    empty = torch.empty(0, dtype=dtype)
    count = 1
    for size in shape:
        count *= size
    if not count:
        return torch.empty(shape, dtype=dtype)
    storage = empty.untyped_storage()._new_shared(count * empty.element_size(), device="cpu")
    return empty.set_(storage, 0, shape)


def absolute_lengths(lengths: Any, width: int) -> Any:
    """Return the lengths of a batch that is ``width`` wide as integers, in the same shape.

    Lengths are relative, as in SpeechBrain: 1 is the whole width. Integers are absolute if one of
    them is above 1.

    >>> import torch
    >>> absolute_lengths(torch.tensor([0.25, 1.0]), 8)
    tensor([2, 8])
    >>> absolute_lengths(torch.tensor([1, 1]), 8), absolute_lengths(torch.tensor([1, 3]), 8)
    (tensor([8, 8]), tensor([1, 3]))
    """
    torch = torch_module()
    lengths = torch.as_tensor(lengths)
    if not lengths.is_floating_point() and bool((lengths > 1).any()):
        return lengths.to(torch.int64)
    return torch.round(lengths.to(torch.float64) * width).to(torch.int64)


def undo_padding(batch: Any, lengths: Any = None) -> list[list[Any]]:
    """Return the samples of a padded batch as lists, without the padding.

    ``lengths`` are relative, of shape (batch) or (batch, 1). Integers are absolute if one of them
    is above 1. A :class:`PaddedData` brings its exact lengths. A length above the width of the
    batch raises a :class:`~penstock.errors.SampleError`.

    >>> import torch
    >>> undo_padding(torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([1.0, 1 / 3]))
    [[1, 2, 3], [4]]
    """
    padded = batch if isinstance(batch, PaddedData) else None
    if padded is not None:
        batch = padded.data
    if lengths is not None:
        counts = absolute_lengths(lengths, batch.shape[1])
    elif padded is not None:
        counts = padded.absolute
    else:
        raise SampleError("undo_padding needs the lengths of the samples")
    width, found = batch.shape[1], counts.flatten().tolist()
    if len(found) != len(batch):
        raise SampleError(f"{len(batch)} samples need {len(batch)} lengths, not {len(found)}")
    if max(found, default=0) > width:
        raise SampleError(
            f"a sample cannot be longer than its batch, which is {width} wide, but the lengths are "
            f"{found}: relative lengths are floats up to 1, absolute ones integers"
        )
    return [row[:count].tolist() for row, count in zip(batch, found)]


def length_to_mask(
    length: Any, max_len: int | None = None, dtype: Any = None, device: Any = None
) -> Tensor:
    """Return a mask (batch, time) that is 1 up to each absolute length, and 0 after it.

    Its type is ``dtype``, or that of the lengths.

    >>> import torch
    >>> length_to_mask(torch.tensor([1, 3]))
    tensor([[1, 0, 0],
            [1, 1, 1]])
    """
    torch = torch_module()
    length = torch.as_tensor(length)
    if length.ndim != 1:
        raise SampleError(f"lengths must have one dimension, not shape {tuple(length.shape)}")
    if max_len is None:
        max_len = int(length.max().long()) if len(length) else 0
    device = length.device if device is None else device
    positions = torch.arange(max_len, device=device)
    mask = positions[None, :] < length.to(device)[:, None]
    made: Tensor = mask.to(length.dtype if dtype is None else dtype)
    return made


def relative_time_to_absolute(batch: Any, relative_lens: Any, rate: float) -> Tensor:
    """Return the duration of each sample in seconds, in the shape of the lengths.

    >>> import torch
    >>> relative_time_to_absolute(torch.ones(2, 16000), torch.tensor([0.75, 1.0]), 16000)
    tensor([0.7500, 1.0000])
    """
    seconds: Tensor = absolute_lengths(relative_lens, batch.shape[1]) / rate
    return seconds


def clean_padding_(tensor: Any, length: Any, len_dim: int = 1, mask_value: float = 0.0) -> None:
    """Write ``mask_value`` into the padding, in place; lengths are as for :func:`undo_padding`.

    >>> import torch
    >>> x = torch.ones(2, 2)
    >>> clean_padding_(x, torch.tensor([0.5, 1.0]))
    >>> x
    tensor([[1., 0.],
            [1., 1.]])
    """
    torch = torch_module()
    width = tensor.shape[len_dim]
    counts = absolute_lengths(length, width).flatten().to(tensor.device)
    mask = length_to_mask(counts, width, torch.bool)
    shape = [1] * tensor.ndim
    shape[0], shape[len_dim] = tensor.shape[0], width
    tensor.masked_fill_(~mask.reshape(shape), mask_value)


def clean_padding(tensor: Any, length: Any, len_dim: int = 1, mask_value: float = 0.0) -> Tensor:
    """Return a copy whose padding is ``mask_value``; see :func:`clean_padding_`.

    >>> import torch
    >>> clean_padding(torch.ones(1, 3), torch.tensor([2]), mask_value=-1)
    tensor([[ 1.,  1., -1.]])
    """
    copy: Tensor = tensor.clone()
    clean_padding_(copy, length, len_dim, mask_value)
    return copy
