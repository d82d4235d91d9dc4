"""JPEG files decoded on the device, many at once.

By its JPEG engines where it has some (:mod:`penstock.transforms.gpu.hybrid_decode`), else by torchvision's
nvJPEG, or by nvImageCodec. The crop of each picture is then resized with antialiasing, as on the
CPU, and rounded to uint8. A picture that the device cannot decode (a damaged one, or of colours
for print) is made by the CPU, and so are all where ``device`` is a CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingPackage
from penstock.transforms.gpu.hybrid_decode import together
from penstock.transforms.gpu.resize_kernel import Finish
from penstock.transforms.gpu.file_table import Files
from penstock.transforms.crop_plan import Plan

if TYPE_CHECKING:
    import torch

Pictures = list["torch.Tensor | None"]
File = bytes | memoryview
Decoder = Callable[[list[File]], Pictures]
"""Files in; pictures (colour, height, width) on the device out, None where one could not."""


def decoder_for(
    device: torch.device, finish: Finish | None = None
) -> Callable[[Files], torch.Tensor]:
    """What makes a batch on the device, of pictures that were left undecoded.

    It is of uint8, or as ``finish`` says where that can be done on the way.
    """
    if device.type == "cpu":
        return _on_cpu
    if finish is not None and (made := together(device, finish)) is not None:
        return made
    decode = _by_torchvision(device) or _by_nvimagecodec(device)
    if decode is None:
        raise MissingPackage.of("decoding JPEG on the GPU", "torchvision", "gpu")
    return lambda pictures: batch_of(pictures, decode, device)


def _on_cpu(pictures: Files) -> torch.Tensor:
    import numpy as np
    import torch

    return torch.from_numpy(np.stack([pictures.decoded(place) for place in range(len(pictures))]))


def batch_of(pictures: Files, decode: Decoder, device: torch.device) -> torch.Tensor:
    """One tensor (batch, colour, height, width) of uint8, of the pictures in their order."""
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
            row.copy_(torch.from_numpy(pictures.decoded(number)))
    if mirrored:  # all of them at once: each call here takes the interpreter's lock from a trainer
        which = torch.tensor(mirrored, device=device)
        out[which] = out[which].flip(-1)
    return out.round_().clamp_(0, 255).to(torch.uint8)


def resize_into(out: torch.Tensor, pixels: torch.Tensor, plan: Plan, filter: str) -> None:
    """Fill ``out`` with the plan's window, not mirrored: crop, resize with antialiasing, cut."""
    import torch.nn.functional as functional

    box = pixels[:, plan.top : plan.top + plan.height, plan.left : plan.left + plan.width]
    size = (plan.out_height, plan.out_width)
    complete = (plan.row, plan.column, plan.rows, plan.columns) == (0, 0, *size)
    # bicubic overshoots: cut to what uint8 holds happens once, for the whole batch
    if complete and (resize := _resize(filter)) is not None:
        resize(box[None].float(), size, False, None, None, out=out[None])
        return
    whole = functional.interpolate(
        box[None].float(), size=size, mode=filter, antialias=True, align_corners=False
    )[0]
    if not complete:
        top, left = plan.row, plan.column
        below, right = top + plan.rows - size[0], left + plan.columns - size[1]
        # Negative padding cuts; what lies outside is black.
        whole = functional.pad(whole, (-left, right, -top, below))
    out.copy_(whole)


@functools.cache
def _resize(filter: str) -> Callable[..., Any] | None:
    """What ``interpolate`` calls in the end, which can also write where it is told to.

    It saves the checks, a copy and a launch for each picture. None where this torch has it not.
    """
    import torch

    found: Callable[..., Any] | None = getattr(torch._C._nn, f"_upsample_{filter}2d_aa", None)
    return found


def _by_torchvision(device: torch.device) -> Decoder | None:
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except (ImportError, OSError, RuntimeError):
        return None

    def some(files: list[torch.Tensor]) -> Pictures:
        made: Pictures = list(decode_jpeg(files, mode=ImageReadMode.RGB, device=device))
        return made

    def decode(files: list[File]) -> Pictures:
        raw = [_tensor_of(data) for data in files]
        try:
            return some(raw)
        except RuntimeError:  # one of them cannot be decoded: find out which
            return list(_one_by_one(some, raw))

    return decode


def _tensor_of(data: File) -> torch.Tensor:
    """The bytes of a file as a tensor: on the memory they were read into, where that may be."""
    import torch

    if isinstance(data, memoryview) and not data.readonly:
        return torch.frombuffer(data, dtype=torch.uint8)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)  # torch wants what can be written


def _one_by_one(some: Callable[[list[Any]], Pictures], files: Iterable[Any]) -> Iterable[Any]:
    for file in files:
        try:
            yield some([file])[0]
        except RuntimeError:
            yield None


def _by_nvimagecodec(device: torch.device) -> Decoder | None:
    try:
        import torch
        from nvidia import nvimgcodec
    except ImportError:
        return None
    decoder = nvimgcodec.Decoder(device_id=device.index or 0)
    as_it_lies = nvimgcodec.DecodeParams(apply_exif_orientation=False)  # else it turns pictures

    def decode(files: list[File]) -> Pictures:
        stream = torch.cuda.current_stream(device).cuda_stream
        given = [bytes(file) for file in files]
        images = decoder.decode(given, params=as_it_lies, cuda_stream=stream)
        return [
            None if image is None else torch.as_tensor(image, device=device).permute(2, 0, 1)
            for image in images
        ]

    return decode
