"""Tensors of different lengths in one: padded on the right, with their lengths.

A length is kept twice: relative to the longest, as models of speech take it, and as the whole
number that it is, which no rounding touches.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.errors import MissingPackage, SampleError

if TYPE_CHECKING:
    from torch import Tensor


class _Pair(NamedTuple):
    data: Any
    lengths: Any


class PaddedData(_Pair):
    """A padded batch and the relative lengths of its samples: ``data, lengths = padded``.

    ``absolute`` are the lengths as whole numbers (int64); ``shapes`` the shape that each sample
    had (batch, dimensions), where it is known.

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
        """The lengths as whole numbers; worked out from the relative ones where only they came."""
        if self._absolute is None:
            self._absolute = absolute_lengths(self.lengths, self.data.shape[1])
        return self._absolute

    def to(self, *args: Any, **options: Any) -> PaddedData:
        """Moved and cast as ``Tensor.to`` does; of a type, only data of floats takes it.

        Lengths follow to the device and keep their type: a half cannot say where a sample ends.
        """
        data = moved(self.data, args, options)
        return self._with(data, lambda tensor: tensor.to(data.device))

    def pin_memory(self) -> PaddedData:
        """The same in pinned memory."""
        return self._with(self.data.pin_memory(), lambda tensor: tensor.pin_memory())

    def _with(self, data: Any, change: Any) -> PaddedData:
        rest = (self.lengths, self._absolute, self.shapes)
        return PaddedData(data, *(None if one is None else change(one) for one in rest))

    def __reduce__(self) -> Any:
        return PaddedData, (self.data, self.lengths, self._absolute, self.shapes)


def torch_module() -> Any:
    """The package torch; a MissingPackage where there is none."""
    try:
        import torch
    except ImportError:
        raise MissingPackage.of("padding", "torch", "torch") from None
    return torch


def moved(tensor: Any, args: Sequence[Any], options: Any) -> Any:
    """``tensor.to(*args, **options)``, except that whole numbers never become floats."""
    torch = torch_module()
    options = dict(options)
    copy = options.pop("copy", False)
    device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **options)
    if dtype is not None and dtype.is_floating_point and not tensor.is_floating_point():
        dtype = None
    more = {} if layout is None else {"memory_format": layout}
    return tensor.to(
        device=device if device is not None else tensor.device,
        dtype=dtype if dtype is not None else tensor.dtype,
        non_blocking=non_blocking,
        copy=copy,
        **more,
    )


def as_tensor(value: Any) -> Any:
    """A tensor as it is, an array as a tensor of the same memory where that may be written."""
    torch = torch_module()
    if isinstance(value, torch.Tensor):
        return value
    import numpy as np

    array = np.asarray(value)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def pad_right_to(
    tensor: Any, target_shape: Sequence[int], mode: str = "constant", value: float = 0
) -> tuple[Tensor, list[float]]:
    """The tensor padded to a shape, and which part of each dimension is valid.

    ``mode`` and ``value`` are those of ``torch.nn.functional.pad``. A smaller target is a
    :class:`~penstock.errors.SampleError`. What comes back never shares memory with the tensor.

    >>> import torch
    >>> pad_right_to(torch.tensor([1, 2]), (4,))
    (tensor([1, 2, 0, 0]), [0.5])
    """
    tensor, target = as_tensor(tensor), tuple(int(n) for n in target_shape)
    if len(target) != tensor.ndim or any(n < m for n, m in zip(target, tensor.shape)):
        raise SampleError(
            f"a tensor of shape {tuple(tensor.shape)} cannot be padded to {target}: "
            "the target has as many dimensions, none of them smaller"
        )
    valid = [size / goal if goal else 1.0 for size, goal in zip(tensor.shape, target)]
    if mode == "constant":
        out = tensor.new_full(target, value)
        out[tuple(slice(0, size) for size in tensor.shape)] = tensor
        return out, valid
    return _filled(tensor, target, mode, value), valid


def _filled(tensor: Any, target: tuple[int, ...], mode: str, value: float) -> Any:
    """Padded by torch, which takes the widths from the last dimension to the first.

    Its modes pad the last dimensions only, and want one or two others before them.
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
    """Tensors of different lengths as one batch, and their lengths relative to its width.

    ``dim`` is the dimension of a sample that may differ, or several; the lengths are those of the
    first. ``multiple_of`` rounds the padded dimensions up. Each tensor is copied once, into
    the batch. Types are promoted to one that holds all. An empty list, and samples that
    differ elsewhere, are a :class:`~penstock.errors.SampleError`.

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
    """:func:`batch_pad_right` with the absolute lengths and shapes as well."""
    torch = torch_module()
    if not len(tensors):
        raise SampleError("a batch has a sample or more: there is nothing to pad")
    tensors = [as_tensor(tensor) for tensor in tensors]
    ndim = tensors[0].ndim
    if any(tensor.ndim != ndim for tensor in tensors):
        counts = sorted({tensor.ndim for tensor in tensors})
        raise SampleError(f"samples of one batch have as many dimensions, not {counts}")
    dims = _dims(dim, ndim)
    target = [max(sizes) for sizes in zip(*(tensor.shape for tensor in tensors))]
    for place, sizes in enumerate(zip(*(tensor.shape for tensor in tensors))):
        if place in dims:
            target[place] = -(-target[place] // multiple_of) * multiple_of
        elif len(set(sizes)) > 1:
            raise SampleError(
                f"samples may differ in dimension {', '.join(map(str, dims))}, but dimension "
                f"{place} has sizes {sorted(set(sizes))}: name all that differ, such as "
                f"dim={(*dims, place)}"
            )
    batch = _new_batch(torch, tensors, (len(tensors), *target), value)
    for number, tensor in enumerate(tensors):  # by number: rows given by iter() refuse gradients
        if mode != "constant":
            tensor = _filled(tensor, tuple(target), mode, value)
        batch[(number, *(slice(0, size) for size in tensor.shape))] = tensor
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
    if ndim and not (given and all(-ndim <= place < ndim for place in given)):
        raise SampleError(f"a sample has dimensions 0 to {ndim - 1}, so it has no dim={dim}")
    return tuple(dict.fromkeys(place % ndim for place in given)) if ndim else ()


def _new_batch(torch: Any, tensors: Sequence[Any], shape: tuple[int, ...], value: float) -> Any:
    dtype = tensors[0].dtype
    for tensor in tensors:
        dtype = torch.promote_types(dtype, tensor.dtype)
    batch = _uninitialised(torch, shape, dtype, tensors[0].device)
    if any(tensor.shape != shape[1:] for tensor in tensors):
        batch.fill_(value)
    return batch


def _uninitialised(torch: Any, shape: tuple[int, ...], dtype: Any, device: Any) -> Any:
    if torch.utils.data.get_worker_info() is None or device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=device)
    # In a loader worker the batch is made where the trainer will read it, as torch's own
    # collation does: otherwise sending it would copy it once more.
    empty = torch.empty(0, dtype=dtype)
    count = 1
    for size in shape:
        count *= size
    if not count:
        return torch.empty(shape, dtype=dtype)
    storage = empty.untyped_storage()._new_shared(count * empty.element_size(), device="cpu")
    return empty.set_(storage, 0, shape)


def absolute_lengths(lengths: Any, width: int) -> Any:
    """Lengths as whole numbers: relative ones times the width, whole ones as they are.

    >>> import torch
    >>> absolute_lengths(torch.tensor([0.25, 1.0]), 8)
    tensor([2, 8])
    """
    torch = torch_module()
    lengths = torch.as_tensor(lengths)
    if not lengths.is_floating_point():
        return lengths.to(torch.int64)
    return torch.round(lengths.to(torch.float64) * width).to(torch.int64)


def undo_padding(batch: Any, lengths: Any = None) -> list[list[Any]]:
    """The samples of a padded batch as lists, without the padding.

    ``lengths`` are relative (floats) or absolute (whole numbers); a :class:`PaddedData` has its
    own.

    >>> import torch
    >>> undo_padding(torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([1.0, 1 / 3]))
    [[1, 2, 3], [4]]
    """
    if isinstance(batch, PaddedData):
        lengths = batch.absolute if lengths is None else lengths
        batch = batch.data
    if lengths is None:
        raise SampleError("undo_padding needs the lengths of the samples")
    counts = absolute_lengths(lengths, batch.shape[1]).tolist()
    return [row[:count].tolist() for row, count in zip(batch, counts)]


def length_to_mask(
    length: Any, max_len: int | None = None, dtype: Any = None, device: Any = None
) -> Tensor:
    """A mask (batch, time) that is 1 up to each absolute length, and 0 behind it.

    Its type is that of the lengths unless ``dtype`` says otherwise.

    >>> import torch
    >>> length_to_mask(torch.tensor([1, 3]))
    tensor([[1, 0, 0],
            [1, 1, 1]])
    """
    torch = torch_module()
    length = torch.as_tensor(length)
    if length.ndim != 1:
        raise SampleError(f"lengths are a row of numbers, not of shape {tuple(length.shape)}")
    if max_len is None:
        max_len = int(length.max().long()) if len(length) else 0
    device = length.device if device is None else device
    places = torch.arange(max_len, device=device)
    mask = places[None, :] < length.to(device)[:, None]
    made: Tensor = mask.to(length.dtype if dtype is None else dtype)
    return made


def relative_time_to_absolute(batch: Any, relative_lens: Any, rate: float) -> Tensor:
    """The duration of each sample in seconds.

    >>> import torch
    >>> relative_time_to_absolute(torch.ones(2, 16000), torch.tensor([0.75, 1.0]), 16000)
    tensor([0.7500, 1.0000])
    """
    seconds: Tensor = absolute_lengths(relative_lens, batch.shape[1]) / rate
    return seconds


def clean_padding_(tensor: Any, length: Any, len_dim: int = 1, mask_value: float = 0.0) -> None:
    """Write ``mask_value`` into the padding, in place; ``length`` is relative, or absolute.

    >>> import torch
    >>> x = torch.ones(2, 2)
    >>> clean_padding_(x, torch.tensor([0.5, 1.0]))
    >>> x
    tensor([[1., 0.],
            [1., 1.]])
    """
    torch = torch_module()
    width = tensor.shape[len_dim]
    counts = absolute_lengths(length, width).to(tensor.device)
    mask = length_to_mask(counts, width, torch.bool)
    shape = [1] * tensor.ndim
    shape[0], shape[len_dim] = tensor.shape[0], width
    tensor.masked_fill_(~mask.reshape(shape), mask_value)


def clean_padding(tensor: Any, length: Any, len_dim: int = 1, mask_value: float = 0.0) -> Tensor:
    """A copy whose padding is ``mask_value``; see :func:`clean_padding_`.

    >>> import torch
    >>> clean_padding(torch.ones(1, 3), torch.tensor([2]), mask_value=-1)
    tensor([[ 1.,  1., -1.]])
    """
    copy: Tensor = tensor.clone()
    clean_padding_(copy, length, len_dim, mask_value)
    return copy
