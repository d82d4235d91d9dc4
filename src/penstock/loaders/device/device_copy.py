"""Copies batches to the device on a separate CUDA stream and converts them there.

The copy of a batch overlaps with the running training step. That needs three things: the host
memory is pinned, and kept until the copy is done; the trainer's stream waits for the copy by an
event, and the host does not wait; and memory that is allocated on one stream and used on another
is marked with ``record_stream``, or the allocator would reuse it too early.

On a CPU the same conversions happen, and nothing is copied.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from penstock.errors import PipelineError, optional
from penstock.transforms.deferred_image import DeferredImage
from penstock.transforms.gpu.file_table import FileTable

if TYPE_CHECKING:
    import torch

    from penstock.transforms.gpu.resize_kernel import Finish

COLOURS = 255.0
FLOATS = frozenset(("float16", "half", "bfloat16", "float32", "float", "float64", "double"))
IMAGE_DIMENSIONS = 4


def import_torch() -> Any:
    """Return torch, imported only when it is needed."""
    return optional("torch", "torch", "to_device")


def check_dtype(dtype: Any) -> None:
    """Raise unless ``dtype`` is a float dtype. Common names do not need torch to be imported."""
    if dtype is not None and not (isinstance(dtype, str) and dtype in FLOATS):
        as_dtype(dtype)


def as_dtype(dtype: Any) -> Any:
    """Return a torch dtype, given itself or its name; None stays None."""
    torch = import_torch()
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if found is not None and not isinstance(found, torch.dtype):
        raise PipelineError(f"dtype is a torch dtype such as 'bfloat16', not {dtype!r}")
    if isinstance(dtype, str) and found is None:
        raise PipelineError(f"dtype is a torch dtype such as 'bfloat16', not {dtype!r}")
    if found is not None and not found.is_floating_point:
        raise PipelineError(
            f"dtype must be a float dtype, since images are scaled to 0…1, not {dtype!r}; without "
            "dtype they stay uint8"
        )
    return found


class Moved:
    """A batch whose copy was started, and the event that marks its end."""

    __slots__ = ("batch", "event", "tensors")

    def __init__(self, batch: Any, tensors: list[torch.Tensor], event: Any) -> None:
        self.batch, self.tensors, self.event = batch, tensors, event


class Mover:
    """Copies batches to one device. Created when iteration starts, as it allocates a stream."""

    def __init__(
        self,
        device: Any,
        *,
        dtype: Any = None,
        mean: Sequence[float] | float | None = None,
        std: Sequence[float] | float | None = None,
        channels_last: bool = False,
    ) -> None:
        self.torch = import_torch()
        self.device = self.torch.device(device)
        self.cuda = self.device.type == "cuda"
        if self.cuda and not self.torch.cuda.is_available():
            raise PipelineError(
                f"device {device!r}: torch finds no CUDA device here; to_device('cpu') runs the "
                "same pipeline without one"
            )
        if self.cuda and self.device.index is None:  # decoders need the index
            self.device = self.torch.device("cuda", self.torch.cuda.current_device())
        self.dtype, self.channels_last = as_dtype(dtype), channels_last
        if self.dtype is None and (mean is not None or std is not None):
            self.dtype = self.torch.float32
        self.mean = self._per_colour(mean, 0.0)
        self.std = self._per_colour(std, 1.0)
        if not bool((self.std > 0).all()):
            raise PipelineError(f"to_device: std must be above 0, not {std!r}")
        # High priority: a batch's small kernels must not wait for those of a whole step.
        self.stream = self.torch.cuda.Stream(self.device, priority=-5) if self.cuda else None
        if self.stream is not None:  # mean and std were created on the current stream
            self.stream.wait_stream(self.torch.cuda.current_stream(self.device))
        self._held: deque[tuple[Any, list[Any]]] = deque()
        self._decode: Callable[[FileTable], torch.Tensor] | None = None

    def _per_colour(self, numbers: Sequence[float] | float | None, default: float) -> torch.Tensor:
        """Return one number per colour, scaled to uint8, as (batch, colour, height, width)."""
        given = default if numbers is None else numbers
        listed = [given] if isinstance(given, (int, float)) else list(given)
        tensor: torch.Tensor = self.torch.tensor(listed, device=self.device)
        return tensor.view(1, -1, 1, 1) * COLOURS

    # ── sending, ahead of the trainer ───────────────────────────────────────────────────

    def send(self, batch: Any) -> Moved:
        """Start copying a batch; may be called from any thread."""
        if not self.cuda:
            return Moved(self._move_value(batch, [], []), [], None)
        while self._held and self._held[0][0].query():
            self._held.popleft()  # its copy is done: the host memory may be reused
        tensors: list[torch.Tensor] = []
        sources: list[Any] = []
        with self.torch.cuda.stream(self.stream):
            moved = self._move_value(batch, tensors, sources)
            event = self.torch.cuda.Event()
            event.record(self.stream)
        self._held.append((event, sources))
        return Moved(moved, tensors, event)

    def close(self) -> None:
        """Wait for running copies and release their host memory."""
        while self._held:
            event, sources = self._held.popleft()
            event.synchronize()
            del sources

    def _move_value(self, value: Any, tensors: list[Any], sources: list[Any]) -> Any:
        """Return the same structure with its arrays and tensors on the device."""
        if isinstance(value, dict):
            return {name: self._move_value(one, tensors, sources) for name, one in value.items()}
        if isinstance(value, FileTable):
            sources.append(value)  # files must be kept until they are decoded
            return self._record(self._convert(self._decode_pictures(value)), tensors)
        if isinstance(value, (list, tuple)):
            if any(isinstance(one, DeferredImage) for one in value):
                return self._move_value(FileTable.of(value), tensors, sources)
            made = [self._move_value(one, tensors, sources) for one in value]
            if hasattr(value, "_fields"):
                return type(value)(*made)
            return made if isinstance(value, list) else tuple(made)
        tensor = self._as_tensor(value)
        if tensor is None:
            return value
        if self.cuda and tensor.device != self.device:
            if not tensor.is_pinned() and tensor.device.type == "cpu":
                tensor = tensor.pin_memory()
            sources.append(tensor)
            tensor = tensor.to(self.device, non_blocking=True)
        return self._record(self._convert(tensor), tensors)

    def _as_tensor(self, value: Any) -> torch.Tensor | None:
        """Return a tensor or an array of numbers as a tensor; None for everything else."""
        if isinstance(value, self.torch.Tensor):
            return value  # type: ignore[no-any-return]
        kind = getattr(getattr(value, "dtype", None), "kind", "")
        if kind in tuple("biufc") and value.ndim > 0:
            if not value.flags.writeable or any(stride < 0 for stride in value.strides):
                value = value.copy()  # torch supports neither
            tensor: torch.Tensor = self.torch.from_numpy(value)
            return tensor
        return None

    def _convert(self, tensor: torch.Tensor) -> torch.Tensor:
        """Convert images (uint8, four dimensions) to the dtype and layout; return others as is."""
        torch = self.torch
        if tensor.ndim != IMAGE_DIMENSIONS:
            return tensor
        layout = torch.channels_last if self.channels_last else torch.preserve_format
        if tensor.dtype != torch.uint8 or self.dtype is None:
            return tensor.contiguous(memory_format=layout) if self.channels_last else tensor
        given = max(self.mean.shape[1], self.std.shape[1])
        if not {self.mean.shape[1], self.std.shape[1]} <= {1, tensor.shape[1]}:
            raise PipelineError(
                f"mean and std are for {given} colours, and the batch has the shape "
                f"{tuple(tensor.shape)}: images are (batch, colour, height, width)"
            )
        numbers = tensor.to(torch.float32, memory_format=layout)
        # Scaling to 0…1, mean and std take one subtraction and one division.
        return numbers.sub_(self.mean).div_(self.std).to(self.dtype)

    def _record(self, tensor: torch.Tensor, tensors: list[torch.Tensor]) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    def _decode_pictures(self, pictures: FileTable) -> torch.Tensor:
        """Decode pictures on the device into one batch."""
        if self._decode is None:
            from penstock.transforms.gpu.fallback_decode import decoder_for

            self._decode = decoder_for(self.device, self._finish())
        return self._decode(pictures)

    def _finish(self) -> Finish | None:
        """Return the conversion for a kernel; None if :meth:`_convert` has to do it."""
        from penstock.transforms.gpu.resize_kernel import Finish, kinds

        mean, std = self.mean.flatten().tolist(), self.std.flatten().tolist()
        dtype = self.dtype or self.torch.uint8
        if dtype not in kinds() or not {len(mean), len(std)} <= {1, 3}:
            return None
        mean, std = mean * (3 // len(mean)), std * (3 // len(std))
        return Finish(dtype, mean, std, self.channels_last)

    # ── receiving, in the trainer's thread ──────────────────────────────────────────────

    def receive(self, moved: Moved) -> Any:
        """Return the batch, safe to use on the current stream of this thread."""
        if self.cuda:
            current = self.torch.cuda.current_stream(self.device)
            current.wait_event(moved.event)
            for tensor in moved.tensors:
                tensor.record_stream(current)
        return moved.batch

    def mark(self) -> Any:
        """Return a time mark: an event on the trainer's stream, or the clock on a CPU."""
        if not self.cuda:
            return perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record(self.torch.cuda.current_stream(self.device))
        return event

    def zero(self) -> tuple[Any, float] | None:
        """Return a mark and the host's time when the device reached it; waits for the device."""
        if not self.cuda:
            return None
        mark = self.mark()
        mark.synchronize()
        return mark, perf_counter()


class DeviceIdle:
    """Measures how long the device was idle because its next batch had not arrived.

    The trainer requests a batch when all work on the previous one is in the stream's queue. A mark
    recorded then is reached when that work is done; a mark recorded after the wait for the copy is
    reached when the next work can start. The time between them is the wait, on the device's clock,
    and no call here makes the host wait for it.

    A device can also be idle inside a step, if the trainer's Python is late with the next kernel.
    That is not a wait for a batch. The trainer's lead over the device when it requests a batch
    reveals it: the mark ``zero``, whose host time is known, converts device times to host times.

    >>> waits = DeviceIdle(); waits.between(1.0, 1.5); waits.between(2.0, 2.25); waits.seconds
    0.75
    """

    def __init__(self) -> None:
        self._known = self._leads_s = 0.0
        self._leads = 0
        self._open: deque[tuple[Any, Any, float | None]] = deque()
        self.zero: tuple[Any, float] | None = None
        self._settling = threading.Lock()  # the trainer records, and any thread may read

    def between(self, asked: Any, got: Any, host_asked: float | None = None) -> None:
        """Record the marks of one step, and the host's time of the first."""
        if isinstance(asked, float):
            self._known += got - asked
        else:
            self._open.append((asked, got, host_asked))
            self._settle()

    def _settle(self) -> None:
        with self._settling:
            while self._open and self._open[0][1].query():
                asked, got, host_asked = self._open.popleft()
                self._known += asked.elapsed_time(got) / 1e3
                if self.zero is not None and host_asked is not None:
                    mark, then = self.zero
                    lead = then + mark.elapsed_time(asked) / 1e3 - host_asked
                    self._leads_s += max(lead, 0.0)
                    self._leads += 1

    @property
    def seconds(self) -> float:
        """Total idle time that is known so far."""
        self._settle()
        return self._known

    @property
    def lead(self) -> float | None:
        """Mean lead of the trainer over the device when it requested a batch, in seconds."""
        self._settle()
        return self._leads_s / self._leads if self._leads else None
