"""A batch on its way to the device: copied on a stream of its own, converted there.

The copy of a batch runs beside the step that the device is busy with. Three things must be right
for that. The host memory is pinned, and stays until the copy is done. The trainer's stream waits
for the copy, by an event, and the host does not. And memory that one stream took and another
uses is marked as used there (``record_stream``), or it would be given away too early.

On a CPU the same conversions happen, and nothing is copied.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from penstock.errors import MissingPackage, PipelineError
from penstock.transforms.gpu.file_table import Files
from penstock.transforms.deferred_image import Undecoded

if TYPE_CHECKING:
    import torch

    from penstock.transforms.gpu.resize_kernel import Finish

COLOURS = 255.0
FLOATS = frozenset(("float16", "half", "bfloat16", "float32", "float", "float64", "double"))
IMAGE_DIMENSIONS = 4


def torch_module() -> Any:
    """torch, which is asked for no earlier than it is needed."""
    try:
        import torch
    except ImportError:
        raise MissingPackage.of("to_device", "torch", "torch") from None
    return torch


def check_dtype(dtype: Any) -> None:
    """Refuse what is no dtype of floats. torch is asked only about what is not well known."""
    if dtype is not None and not (isinstance(dtype, str) and dtype in FLOATS):
        as_dtype(dtype)


def as_dtype(dtype: Any) -> Any:
    """A torch dtype from itself or its name; None stays None."""
    torch = torch_module()
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if found is not None and not isinstance(found, torch.dtype):
        raise PipelineError(f"dtype is a torch dtype such as 'bfloat16', not {dtype!r}")
    if isinstance(dtype, str) and found is None:
        raise PipelineError(f"dtype is a torch dtype such as 'bfloat16', not {dtype!r}")
    if found is not None and not found.is_floating_point:
        raise PipelineError(
            f"dtype is one of floats, since images become 0 to 1, not {dtype!r}; without dtype "
            "they stay uint8"
        )
    return found


class Moved:
    """A batch that is on its way, and the event that says when it is there."""

    __slots__ = ("batch", "event", "tensors")

    def __init__(self, batch: Any, tensors: list[torch.Tensor], event: Any) -> None:
        self.batch, self.tensors, self.event = batch, tensors, event


class Mover:
    """Sends batches to one device. Made where iteration begins: it takes a stream of the device."""

    def __init__(
        self,
        device: Any,
        *,
        dtype: Any = None,
        mean: Sequence[float] | float | None = None,
        std: Sequence[float] | float | None = None,
        channels_last: bool = False,
    ) -> None:
        self.torch = torch_module()
        self.device = self.torch.device(device)
        self.cuda = self.device.type == "cuda"
        if self.cuda and not self.torch.cuda.is_available():
            raise PipelineError(
                f"device {device!r}: torch finds no CUDA device here; to_device('cpu') runs the "
                "same pipeline without one"
            )
        if self.cuda and self.device.index is None:  # a decoder wants to know which one
            self.device = self.torch.device("cuda", self.torch.cuda.current_device())
        self.dtype, self.channels_last = as_dtype(dtype), channels_last
        if self.dtype is None and (mean is not None or std is not None):
            self.dtype = self.torch.float32
        self.mean = self._colours(mean, 0.0)
        self.std = self._colours(std, 1.0)
        if not bool((self.std > 0).all()):
            raise PipelineError(f"to_device: std is above 0, not {std!r}")
        # A batch must not wait behind the kernels of a whole step: small and soon, so first.
        self.stream = self.torch.cuda.Stream(self.device, priority=-5) if self.cuda else None
        if self.stream is not None:  # mean and std were made on the stream that is current here
            self.stream.wait_stream(self.torch.cuda.current_stream(self.device))
        self._held: deque[tuple[Any, list[Any]]] = deque()
        self._decode: Callable[[Files], torch.Tensor] | None = None

    def _colours(self, numbers: Sequence[float] | float | None, default: float) -> torch.Tensor:
        """One number per colour, in the measure of uint8, for (batch, colour, height, width)."""
        given = default if numbers is None else numbers
        listed = [given] if isinstance(given, (int, float)) else list(given)
        return self.torch.tensor(listed, device=self.device).view(1, -1, 1, 1) * COLOURS  # type: ignore[no-any-return]

    # ── sending, ahead of the trainer ───────────────────────────────────────────────────

    def send(self, batch: Any) -> Moved:
        """Start the way of a batch; called ahead of the trainer, from any thread."""
        if not self.cuda:
            return Moved(self._mapped(batch, [], []), [], None)
        while self._held and self._held[0][0].query():
            self._held.popleft()  # its copy is done: the host memory may be used again
        tensors: list[torch.Tensor] = []
        sources: list[Any] = []
        with self.torch.cuda.stream(self.stream):
            moved = self._mapped(batch, tensors, sources)
            event = self.torch.cuda.Event()
            event.record(self.stream)
        self._held.append((event, sources))
        return Moved(moved, tensors, event)

    def close(self) -> None:
        """Wait for the copies that are under way: behind this their host memory is let go of."""
        while self._held:
            event, sources = self._held.popleft()
            event.synchronize()
            del sources

    def _mapped(self, value: Any, tensors: list[Any], sources: list[Any]) -> Any:
        """The same structure with its arrays and tensors on the device."""
        if isinstance(value, dict):
            return {name: self._mapped(one, tensors, sources) for name, one in value.items()}
        if isinstance(value, Files):
            sources.append(value)  # files must stay until they are decoded
            return self._kept(self._converted(self._decoded(value)), tensors)
        if isinstance(value, (list, tuple)):
            if any(isinstance(one, Undecoded) for one in value):
                return self._mapped(Files.of(value), tensors, sources)
            made = [self._mapped(one, tensors, sources) for one in value]
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
        return self._kept(self._converted(tensor), tensors)

    def _as_tensor(self, value: Any) -> torch.Tensor | None:
        """Arrays of numbers and tensors as tensors; None for everything else."""
        if isinstance(value, self.torch.Tensor):
            return value  # type: ignore[no-any-return]
        kind = getattr(getattr(value, "dtype", None), "kind", "")
        if kind in tuple("biufc") and value.ndim > 0:
            if not value.flags.writeable or any(stride < 0 for stride in value.strides):
                value = value.copy()  # torch has neither
            return self.torch.from_numpy(value)  # type: ignore[no-any-return]
        return None

    def _converted(self, tensor: torch.Tensor) -> torch.Tensor:
        """Images (uint8, four dimensions) in the dtype and layout asked for; others as they are."""
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
        # 0 to 255 becomes 0 to 1, then mean and std: one subtraction and one product.
        return numbers.sub_(self.mean).div_(self.std).to(self.dtype)

    def _kept(self, tensor: torch.Tensor, tensors: list[torch.Tensor]) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    def _decoded(self, pictures: Files) -> torch.Tensor:
        """Pictures that wait for a decoder, as one batch on the device."""
        if self._decode is None:
            from penstock.transforms.gpu.fallback_decode import decoder_for

            self._decode = decoder_for(self.device, self._finish())
        return self._decode(pictures)

    def _finish(self) -> Finish | None:
        """What a kernel is to do with the pixels; None where :meth:`_converted` has to do it."""
        from penstock.transforms.gpu.resize_kernel import Finish, kinds

        mean, std = self.mean.flatten().tolist(), self.std.flatten().tolist()
        dtype = self.dtype or self.torch.uint8
        if dtype not in kinds() or not {len(mean), len(std)} <= {1, 3}:
            return None
        mean, std = mean * (3 // len(mean)), std * (3 // len(std))
        return Finish(dtype, mean, std, self.channels_last)

    # ── receiving, in the trainer's thread ──────────────────────────────────────────────

    def receive(self, moved: Moved) -> Any:
        """The batch, safe to use on the stream that is current in this thread."""
        if self.cuda:
            current = self.torch.cuda.current_stream(self.device)
            current.wait_event(moved.event)
            for tensor in moved.tensors:
                tensor.record_stream(current)
        return moved.batch

    def mark(self) -> Any:
        """Now, as the trainer's stream on the device sees it; on a CPU, as the clock does."""
        if not self.cuda:
            return perf_counter()
        event = self.torch.cuda.Event(enable_timing=True)
        event.record(self.torch.cuda.current_stream(self.device))
        return event

    def zero(self) -> tuple[Any, float] | None:
        """A mark, and when the device passed it by the host's clock; waits for the device."""
        if not self.cuda:
            return None
        mark = self.mark()
        mark.synchronize()
        return mark, perf_counter()


class Waits:
    """How long the device stood still because its next batch was not there.

    The trainer asks for a batch when all work on the one before is in the stream's queue. A mark
    put there then is passed when that work is done; a mark put behind the wait for the copy is
    passed when the next work can begin. What lies between is the wait, on the device's own clock,
    and no call here makes the host wait for it.

    A device can also stand still inside a step, where the trainer's Python is late with the next
    kernel. That is no wait for a batch. It shows in how far ahead the trainer is when it asks: from
    a mark of which the host knows the time (``zero``), the others' times on its clock follow.

    >>> waits = Waits(); waits.between(1.0, 1.5); waits.between(2.0, 2.25); waits.seconds
    0.75
    """

    def __init__(self) -> None:
        self._known = self._leads_s = 0.0
        self._leads = 0
        self._open: deque[tuple[Any, Any, float | None]] = deque()
        self.zero: tuple[Any, float] | None = None
        self._settling = threading.Lock()  # the trainer tells, and anyone may ask

    def between(self, asked: Any, got: Any, host_asked: float | None = None) -> None:
        """The marks of one step, and when the first was put there, by the host's clock."""
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
        """The sum of what is known by now."""
        self._settle()
        return self._known

    @property
    def lead(self) -> float | None:
        """How many seconds ahead of the device the trainer asked for batches, on average."""
        self._settle()
        return self._leads_s / self._leads if self._leads else None
