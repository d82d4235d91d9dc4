"""Decode a batch of JPEG files on the device.

:func:`decoder_for` selects the GPU's JPEG engines (:mod:`penstock.transforms.gpu.hybrid_decode`) if
they are available. This module holds the fallback: torchcodec decodes with nvJPEG, torch crops and
resizes with antialiasing as on the CPU and rounds to uint8. A picture that the device cannot decode
(damaged, or CMYK) is decoded by the CPU. If ``device`` is a CPU, all pictures are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingPackage
from penstock.transforms.crop_plan import CropPlan
from penstock.transforms.gpu.file_table import FileTable
from penstock.transforms.gpu.hybrid_decode import make_hybrid_decoder
from penstock.transforms.gpu.resize_kernel import Finish
from penstock.transforms.jpeg_markers import find_exif

if TYPE_CHECKING:
    import torch

Pictures = list["torch.Tensor | None"]
File = bytes | memoryview
Decoder = Callable[[list[File]], Pictures]
"""Takes files; returns pictures (channel, height, width) on the device, None for a failure."""


def decoder_for(
    device: torch.device, finish: Finish | None = None
) -> Callable[[FileTable], torch.Tensor]:
    """Return the function that makes a batch on the device from undecoded pictures.

    The batch is uint8. The engines' decoder applies ``finish`` as well.
    """
    if device.type == "cpu":
        return _decode_on_cpu
    if finish is not None and (hybrid := make_hybrid_decoder(device, finish)) is not None:
        return hybrid
    decode = _make_torchcodec_decoder(device)
    if decode is None:
        raise MissingPackage.of("decoding JPEG on the GPU", "torchcodec", "gpu")
    return lambda pictures: decode_batch(pictures, decode, device)


def _decode_on_cpu(pictures: FileTable) -> torch.Tensor:
    import numpy as np
    import torch

    return torch.from_numpy(np.stack([pictures.decode(index) for index in range(len(pictures))]))


def decode_batch(pictures: FileTable, decode: Decoder, device: torch.device) -> torch.Tensor:
    """Return one uint8 tensor (batch, channel, height, width) of the pictures in their order."""
    import torch

    shape = (len(pictures), 3, *pictures.size)
    out = torch.empty(shape, dtype=torch.float32, device=device)
    files = [one.data for one in pictures if one.plan is not None]
    decoded = iter(decode(files) if files else [])
    mirrored = list[int]()
    for number, (row, one) in enumerate(zip(out.unbind(), pictures)):
        plan = one.plan
        pixels = next(decoded) if plan is not None else None
        if pixels is not None and plan is not None:
            resize_into(row, pixels, plan, one.transform.interpolation)
            if plan.flip:
                mirrored.append(number)
        else:
            row.copy_(torch.from_numpy(pictures.decode(number)))
    if mirrored:  # in one call: each call needs the GIL, which the training loop also needs
        which = torch.tensor(mirrored, device=device)
        out[which] = out[which].flip(-1)
    return out.round_().clamp_(0, 255).to(torch.uint8)


def resize_into(out: torch.Tensor, pixels: torch.Tensor, plan: CropPlan, filter: str) -> None:
    """Fill ``out`` by the plan, without mirroring: crop, resize with antialiasing, crop again."""
    import torch.nn.functional as functional

    box = pixels[:, plan.top : plan.top + plan.height, plan.left : plan.left + plan.width]
    size = (plan.out_height, plan.out_width)
    complete = (plan.row, plan.column, plan.rows, plan.columns) == (0, 0, *size)
    # bicubic overshoots: the caller clamps the whole batch at once
    if complete and (resize := _find_resize(filter)) is not None:
        resize(box[None].float(), size, False, None, None, out=out[None])
        return
    whole = functional.interpolate(
        box[None].float(), size=size, mode=filter, antialias=True, align_corners=False
    )[0]
    if not complete:
        top, left = plan.row, plan.column
        below, right = top + plan.rows - size[0], left + plan.columns - size[1]
        # Negative padding crops; pixels outside of the picture are black.
        whole = functional.pad(whole, (-left, right, -top, below))
    out.copy_(whole)


@functools.cache
def _find_resize(filter: str) -> Callable[..., Any] | None:
    """Return the internal function of ``interpolate``, which accepts an output tensor.

    It saves the checks, a copy and a kernel launch per picture. None if this torch lacks it.
    """
    import torch

    found: Callable[..., Any] | None = getattr(torch._C._nn, f"_upsample_{filter}2d_aa", None)
    return found


def _make_torchcodec_decoder(device: torch.device) -> Decoder | None:
    try:
        from torchcodec.decoders import decode_jpeg
    except (ImportError, OSError, RuntimeError):  # missing, below 0.16, or not for this torch
        return None

    def decode_all(files: list[torch.Tensor]) -> Pictures:
        pictures: Pictures = decode_jpeg(files, mode="RGB", device=device)
        return pictures

    def decode(files: list[File]) -> Pictures:
        raw = [_as_tensor(data) for data in files]
        try:
            return decode_all(raw)
        except RuntimeError:  # at least one cannot be decoded: find out which
            return list(_decode_one_by_one(decode_all, raw))

    return decode


def _as_tensor(data: File) -> torch.Tensor:
    """Return the bytes of a file as a tensor, without a copy if the memory is writable.

    Exif tags are made unreadable in a copy: torchcodec rotates images by them, and has no option.
    """
    import torch

    exif = find_exif(data)
    if isinstance(data, memoryview) and not data.readonly and not exif:
        return torch.frombuffer(data, dtype=torch.uint8)
    copy = bytearray(data)  # torch requires writable memory
    for offset in exif:
        copy[offset] = 0
    return torch.frombuffer(copy, dtype=torch.uint8)


def _decode_one_by_one(
    decode_all: Callable[[list[Any]], Pictures], files: Iterable[Any]
) -> Iterable[Any]:
    for file in files:
        try:
            yield decode_all([file])[0]
        except RuntimeError:
            yield None
