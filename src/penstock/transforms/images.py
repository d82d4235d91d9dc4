"""The image transforms: they take the bytes of an image and return an array for the batch.

Pass them to ``map``, ``map_dict`` and ``map_tuple`` like any function. From the bytes of a file
they decode only the part that they need; arrays (height first), tensors (channels first) and Pillow
images work too. The result is written to memory from :func:`penstock.memory.output.empty`, which a
loader can set to the memory of the batch.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.errors import PipelineError
from penstock.handlers import Failed
from penstock.nearest_name import ChecksArguments
from penstock.rng import CounterRng
from penstock.shards.lazy_bytes import Later, whole
from penstock.transforms.any_image import Planner, render_image
from penstock.transforms.crop_plan import (
    CropPlan,
    Random,
    pair,
    plan_center_crop,
    plan_resize,
    random_box,
    resize_short_side,
)
from penstock.transforms.deferred_image import DeferredImage
from penstock.transforms.jpeg_native import pack_crop, pack_form, render_batch
from penstock.transforms.native import load_many
from penstock.transforms.pixel_format import PixelFormat
from penstock.transforms.resize import FILTERS

Array = np.ndarray[Any, np.dtype[Any]]
Size = int | tuple[int, int]
Numbers = Sequence[float] | float | None
DECODERS = ("cpu", "cuda")


@dataclasses.dataclass(frozen=True, repr=False)
class ImageTransform(ChecksArguments):
    """The base of all image transforms. Override :meth:`plan` to write another.

    ``flip`` is the probability that the image is mirrored. ``interpolation`` is ``"bilinear"`` or
    ``"bicubic"``, with Pillow's filters. The result is uint8 or, with ``dtype="float32"``, numbers
    from 0 to 1, from which ``mean`` is subtracted and which are divided by ``std`` if those are
    given (one number, or one per channel). ``layout`` is ``"CHW"`` or ``"HWC"``.

    With ``decode_on="cuda"`` only the crop is chosen, and the stage ``to_device`` after the loader
    decodes the pixels: the result is a
    :class:`~penstock.transforms.deferred_image.DeferredImage`.
    """

    flip: float = dataclasses.field(default=0.0, kw_only=True)
    interpolation: str = dataclasses.field(default="bilinear", kw_only=True)
    layout: str = dataclasses.field(default="CHW", kw_only=True)
    dtype: str = dataclasses.field(default="uint8", kw_only=True)
    mean: Numbers = dataclasses.field(default=None, kw_only=True)
    std: Numbers = dataclasses.field(default=None, kw_only=True)
    decode_on: str = dataclasses.field(default="cpu", kw_only=True)
    _form: PixelFormat = dataclasses.field(init=False, compare=False)
    _form_bytes: bytes = dataclasses.field(init=False, compare=False)

    def __post_init__(self) -> None:
        if self.interpolation not in FILTERS:
            raise PipelineError(
                f"interpolation is one of {', '.join(FILTERS)}, not {self.interpolation!r}"
            )
        if not 0 <= self.flip <= 1:
            raise PipelineError(f"flip is a probability from 0 to 1, not {self.flip!r}")
        if self.decode_on not in DECODERS:
            raise PipelineError(f"decode_on is {' or '.join(DECODERS)}, not {self.decode_on!r}")
        if self.decode_on != "cpu" and (self.layout, self.dtype) != ("CHW", "uint8"):
            raise PipelineError(
                f"decode_on={self.decode_on!r} returns uint8 of layout CHW: pass mean, std, dtype "
                "and channels_last to to_device instead"
            )
        form = PixelFormat.of(self.layout, self.dtype, self.mean, self.std)
        object.__setattr__(self, "_form", form)
        object.__setattr__(self, "_form_bytes", pack_form(form, self.interpolation))

    @property
    def crop_bytes(self) -> bytes | None:
        """Parameters with which the native module draws the plan, or None if it cannot."""
        return None

    @property
    def takes_rng(self) -> bool:
        """True if the stages must pass a random number generator: ``f(value, rng)``."""
        return self.flip > 0

    def plan(self, height: int, width: int, rng: Random) -> CropPlan:
        """Return the plan for an image of this size, without the flip."""
        raise NotImplementedError

    def __call__(self, value: Any, rng: Random | None = None) -> Any:
        """Return the transformed image. Without ``rng``, Python's ``random`` is used.

        Raise DecodingError for bytes that are no image, SampleError for values of another type.
        """

        def plan_for(height: int, width: int) -> CropPlan:
            return self.planned(height, width, rng)

        if self.decode_on != "cpu":
            return DeferredImage.of(value, plan_for, self)
        return self.rendered(value, plan_for)

    def planned(self, height: int, width: int, rng: Random | None) -> CropPlan:
        """Return the plan for an image of this size, with the flip."""
        draws: Random = rng if rng is not None else random
        plan = self.plan(height, width, draws)
        return plan._replace(flip=True) if self.flip and draws.random() < self.flip else plan

    @property
    def goes_together(self) -> bool:
        """True if :meth:`many` is faster than single calls: if the native module is available.

        False for a subclass that overrides more than the plan.
        """
        kind = type(self)
        own = kind.__call__, kind.rendered
        return own == (ImageTransform.__call__, ImageTransform.rendered) and load_many() is not None

    def many(
        self, values: Sequence[Any], draws: Sequence[CounterRng | None], turn: Callable[[int], None]
    ) -> list[Any]:
        """Return the result of :meth:`__call__`, or a ``Failed``, for each value.

        Values may be bytes that are still to be read from a shard. ``turn(index)`` is called before
        memory for a value is requested.
        """
        native = load_many()
        kinds = (bytes, Later)
        files = [index for index, value in enumerate(values) if type(value) in kinds]
        results: list[Any] = [None] * len(values)
        if native is not None and files:
            rows = render_batch(
                self,
                native,
                [values[index] for index in files],
                [draws[index] for index in files],
                lambda number: turn(files[number]),
            )
            for index, result in zip(files, rows):
                results[index] = result
        for index, result in enumerate(results):
            if result is None:
                turn(index)
                results[index] = self._render_alone(values[index], draws[index])
        return results

    def _render_alone(self, value: Any, draws: CounterRng | None) -> Any:
        reading = type(value) is Later
        try:
            value = whole(value)
            reading = False
            return self(value, draws) if self.takes_rng else self(value)
        except BaseException as error:  # noqa: BLE001 - raised when it is the item's turn
            return Failed(error, reading)

    def rendered(self, value: Any, plan_for: Planner) -> Array:
        """Return the planned part of an image, in the transform's pixel format."""
        return render_image(value, plan_for, self.interpolation, self._form)

    def __repr__(self) -> str:
        needed, words = list[str](), list[str]()
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if not field.init:
                continue
            if field.default is dataclasses.MISSING:
                needed.append(repr(value))
            elif value != field.default:
                words.append(f"{field.name}={value!r}")
        return f"{type(self).__name__}({', '.join(needed + words)})"


@dataclasses.dataclass(frozen=True, repr=False)
class RandomResizedCrop(ImageTransform):
    """Crop a random part of the image and resize it to ``size``, as in ImageNet training.

    The part's share of the area is drawn from ``scale``, its aspect ratio (width to height) from
    ``ratio``, as in torchvision. See :class:`ImageTransform` for the other arguments.

    >>> import numpy as np
    >>> RandomResizedCrop(8, flip=0.5)(np.zeros((30, 40, 3), "uint8")).shape
    (3, 8, 8)
    """

    size: Size
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    takes_rng = True

    def __post_init__(self) -> None:
        super().__post_init__()
        pair(self.size, "size")
        for name, bounds in (("scale", self.scale), ("ratio", self.ratio)):
            if len(bounds) != 2 or not 0 < bounds[0] <= bounds[1]:
                raise PipelineError(f"{name} is (least, most), both above 0, not {bounds!r}")

    @functools.cached_property
    def crop_bytes(self) -> bytes | None:
        kind = type(self)
        own = kind.plan, kind.planned
        if own != (RandomResizedCrop.plan, ImageTransform.planned):
            return None  # a subclass with another plan
        return pack_crop(pair(self.size, "size"), self.scale, self.ratio, self.flip)

    def plan(self, height: int, width: int, rng: Random) -> CropPlan:
        box = random_box(height, width, self.scale, self.ratio, rng)
        return plan_resize(box, pair(self.size, "size"))


@dataclasses.dataclass(frozen=True, repr=False)
class Resize(ImageTransform):
    """Resize the image: its shorter side to ``size``, or the whole to (height, width).

    >>> import numpy as np
    >>> Resize(8)(np.zeros((30, 40, 3), "uint8")).shape
    (3, 8, 10)
    """

    size: Size

    def __post_init__(self) -> None:
        super().__post_init__()
        pair(self.size, "size")

    def plan(self, height: int, width: int, rng: Random) -> CropPlan:
        size = self.size
        to = resize_short_side(height, width, size) if isinstance(size, int) else pair(size, "size")
        return plan_resize((0, 0, height, width), to)


@dataclasses.dataclass(frozen=True, repr=False)
class CenterCrop(ImageTransform):
    """Crop the centre of the image, without resizing; a smaller image gets black borders.

    >>> import numpy as np
    >>> CenterCrop((8, 9), layout="HWC")(np.zeros((30, 40, 3), "uint8")).shape
    (8, 9, 3)
    """

    size: Size

    def __post_init__(self) -> None:
        super().__post_init__()
        pair(self.size, "size")

    def plan(self, height: int, width: int, rng: Random) -> CropPlan:
        return plan_center_crop((height, width), (height, width), pair(self.size, "size"))


@dataclasses.dataclass(frozen=True, repr=False)
class ResizeCenterCrop(ImageTransform):
    """Resize the shorter side to ``size``, then crop the centre to ``crop``: for validation.

    >>> import numpy as np
    >>> ResizeCenterCrop(10, 8)(np.zeros((30, 40, 3), "uint8")).shape
    (3, 8, 8)
    """

    size: Size = 256
    crop: Size = 224

    def __post_init__(self) -> None:
        super().__post_init__()
        pair(self.size, "size")
        pair(self.crop, "crop")

    def plan(self, height: int, width: int, rng: Random) -> CropPlan:
        size = self.size
        to = resize_short_side(height, width, size) if isinstance(size, int) else pair(size, "size")
        return plan_center_crop((height, width), to, pair(self.crop, "crop"))


@dataclasses.dataclass(frozen=True, repr=False)
class RandomHorizontalFlip(ImageTransform):
    """Mirror the image with the probability ``flip``.

    >>> import numpy as np
    >>> RandomHorizontalFlip(flip=1.0)(np.arange(3, dtype="uint8")[None])[0]
    array([[2, 1, 0]], dtype=uint8)
    """

    flip: float = dataclasses.field(default=0.5, kw_only=True)

    def plan(self, height: int, width: int, rng: Random) -> CropPlan:
        return plan_resize((0, 0, height, width), (height, width))


@dataclasses.dataclass(frozen=True, repr=False)
class Normalize(ImageTransform):
    """Convert the image to float32, subtract ``mean`` and divide by ``std``.

    For use after your own functions that return arrays (height first); the other transforms take
    ``mean`` and ``std`` as arguments.

    >>> import numpy as np
    >>> Normalize(mean=0.5, std=0.25)(np.full((1, 1), 255, "uint8")).ravel()
    array([2., 2., 2.], dtype=float32)
    """

    dtype: str = dataclasses.field(default="float32", kw_only=True)

    def plan(self, height: int, width: int, rng: Random) -> CropPlan:
        return plan_resize((0, 0, height, width), (height, width))
