"""One CUDA kernel from decoded pictures to a batch: crop, antialiased resize, mirror, normalise.

Each thread computes one output pixel from all input pixels under the filter, so there is no
intermediate image and one launch per batch. The filter is that of Pillow and torch; its result is
rounded to one of 256 levels, as on the CPU, before it is normalised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import torch

THREADS = 32, 8
"""Columns and rows of the output per block of the kernel."""
JOB_NUMBERS = 12


def make_jobs(plans: Any, sources: Any, cubic: Any) -> Any:
    """Return the kernel's jobs: a row of int64 for each picture and its plan.

    A row of ``sources`` is a picture's address and its strides in bytes: from row to row, pixel to
    pixel and channel to channel.
    """
    import numpy as np

    plan = np.asarray(plans, np.int64)
    jobs = np.empty((len(plan), JOB_NUMBERS), np.int64)
    top, left = plan[:, 0], plan[:, 1]
    jobs[:, :4] = sources
    jobs[:, 0] += top * jobs[:, 1] + left * jobs[:, 2]
    jobs[:, 4:10] = plan[:, 2:8]  # sizes of the box and of the result, row and column of the window
    jobs[:, 10], jobs[:, 11] = plan[:, 10], cubic
    return jobs


class Finish(NamedTuple):
    """The format of the batch. ``mean`` and ``std`` are three numbers each, on a scale of 255."""

    dtype: torch.dtype
    mean: Sequence[float]
    std: Sequence[float]
    channels_last: bool


class Kernel:
    """The kernel of a device, with the tensors that all batches share."""

    def __init__(self, launch: Callable[..., Any], device: torch.device, finish: Finish) -> None:
        import torch

        self.launch, self.device, self.finish = launch, device, finish
        numbers = [*finish.mean, *(1 / one for one in finish.std)]
        self.colours = torch.tensor(numbers, dtype=torch.float32, device=device)
        self.layout = torch.channels_last if finish.channels_last else torch.contiguous_format

    def run(self, jobs: Any, size: tuple[int, int]) -> torch.Tensor:
        """Return the batch of all jobs' pictures at one size, on the current stream."""
        import torch

        table = torch.from_numpy(jobs)
        if self.device.type == "cuda":
            table = table.pin_memory().to(self.device, non_blocking=True)
        shape, dtype = (len(jobs), 3, *size), self.finish.dtype
        out = torch.empty(shape, dtype=dtype, device=self.device, memory_format=self.layout)
        rows, columns = size
        blocks = -(-columns // THREADS[0]), -(-rows // THREADS[1]), len(jobs)
        numbers = rows, columns, kinds()[dtype], int(self.finish.channels_last)
        self.launch(blocks, (*THREADS, 1), [table, self.colours, out, *numbers])
        return out


@functools.cache
def kinds() -> dict[torch.dtype, int]:
    """Return the dtypes that the kernel writes, with their numbers in its source."""
    import torch

    return {torch.uint8: 0, torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}


@functools.cache
def compile_kernel(index: int) -> Callable[..., Any] | None:
    """Compile the kernel for a device with torch's compiler. Return None if it has none."""
    import torch

    compile = getattr(torch.cuda, "_compile_kernel", None)
    if compile is None:
        return None
    try:
        with torch.cuda.device(index):
            kernel: Callable[..., Any] = compile(SOURCE, "penstock_batch")
    except (RuntimeError, OSError, ImportError, TypeError, AttributeError):
        return None  # no compiler, or a torch with a different version of this private function
    return kernel


SOURCE = r"""
__device__ __forceinline__ float weight(float x, int cubic) {
    x = fabsf(x);
    if (!cubic) return x < 1.0f ? 1.0f - x : 0.0f;
    if (x < 1.0f) return (1.5f * x - 2.5f) * x * x + 1.0f;
    if (x < 2.0f) return (((x - 5.0f) * x + 8.0f) * x - 4.0f) * -0.5f;
    return 0.0f;
}

__device__ __forceinline__ void put(void *out, long long at, float value, int kind) {
    if (kind == 0) {
        ((unsigned char *)out)[at] = (unsigned char)value;
    } else if (kind == 1) {
        ((float *)out)[at] = value;
    } else if (kind == 2) {  // bfloat16: the upper half, rounded to even
        unsigned int bits = __float_as_uint(value);
        ((unsigned short *)out)[at] = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    } else {
#ifdef __CUDA_ARCH__
        unsigned short half;
        asm("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(value));
        ((unsigned short *)out)[at] = half;
#endif
    }
}

extern "C" __global__ void penstock_batch(const long long *jobs, const float *colours, void *out,
                                          int rows, int columns, int kind, int last) {
    int x = blockIdx.x * blockDim.x + threadIdx.x;
    int y = blockIdx.y * blockDim.y + threadIdx.y;
    if (x >= columns || y >= rows) return;
    const long long *job = jobs + 12ll * blockIdx.z;
    const unsigned char *pixels = (const unsigned char *)job[0];
    const long long row_bytes = job[1];
    const int pixel_bytes = job[2], height = job[4], width = job[5];
    const long long colour_bytes = job[3];
    const int out_height = job[6], out_width = job[7], cubic = job[11];
    const int row = y + (int)job[8];
    const int column = (job[10] ? columns - 1 - x : x) + (int)job[9];
    float red = 0.0f, green = 0.0f, blue = 0.0f;
    const int inside = row >= 0 && row < out_height && column >= 0 && column < out_width;
    if (inside && height == out_height && width == out_width) {
        const unsigned char *at = pixels + row * row_bytes + (long long)column * pixel_bytes;
        red = at[0], green = at[colour_bytes], blue = at[2 * colour_bytes];
    } else if (inside) {
        const float scale_y = (float)height / out_height, scale_x = (float)width / out_width;
        const float wide_y = fmaxf(scale_y, 1.0f), wide_x = fmaxf(scale_x, 1.0f);
        const float near_y = 1.0f / wide_y, near_x = 1.0f / wide_x;
        const float reach = cubic ? 2.0f : 1.0f;
        const float centre_y = scale_y * (row + 0.5f), centre_x = scale_x * (column + 0.5f);
        const int top = max((int)(centre_y - reach * wide_y + 0.5f), 0);
        const int below = min((int)(centre_y + reach * wide_y + 0.5f), height);
        const int left = max((int)(centre_x - reach * wide_x + 0.5f), 0);
        const int right = min((int)(centre_x + reach * wide_x + 0.5f), width);
        float all_y = 0.0f, all_x = 0.0f;
        for (int i = left; i < right; i++) all_x += weight((i - centre_x + 0.5f) * near_x, cubic);
        for (int j = top; j < below; j++) {
            const float part = weight((j - centre_y + 0.5f) * near_y, cubic);
            const unsigned char *at = pixels + j * row_bytes + (long long)left * pixel_bytes;
            float r = 0.0f, g = 0.0f, b = 0.0f;
            for (int i = left; i < right; i++, at += pixel_bytes) {
                const float share = weight((i - centre_x + 0.5f) * near_x, cubic);
                r += share * at[0];
                g += share * at[colour_bytes];
                b += share * at[2 * colour_bytes];
            }
            red += part * r, green += part * g, blue += part * b;
            all_y += part;
        }
        const float whole = 1.0f / (all_x * all_y);
        red *= whole, green *= whole, blue *= whole;
    }
    const float levels[3] = {red, green, blue};
    const long long area = (long long)rows * columns, place = (long long)y * columns + x;
    for (int c = 0; c < 3; c++) {
        float value = rintf(fminf(fmaxf(levels[c], 0.0f), 255.0f));
        if (kind) value = (value - colours[c]) * colours[3 + c];
        const long long first = 3 * area * blockIdx.z;
        put(out, first + (last ? 3 * place + c : c * area + place), value, kind);
    }
}
"""
