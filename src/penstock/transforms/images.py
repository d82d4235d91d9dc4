"""The recipes of image training as functions: bytes of a picture in, an array for the batch out.

They stand in ``map``, ``map_dict`` and ``map_tuple`` like any function. Given the bytes of a file
they decode only what they need of it; arrays (height first), tensors (colours first) and Pillow
images work too. The result is written where :func:`penstock.memory.output.empty` says, so a
loader can have it in the batch at once.
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from penstock.context import Draws
from penstock.errors import PipelineError
from penstock.handlers import Failed
from penstock.transforms.native import load_many
from penstock.shards.lazy_bytes import Later, whole
from penstock.transforms.jpeg_native import crop_bytes, form_bytes, pictures_together
from penstock.transforms.any_image import Planner, picture_row
from penstock.transforms.crop_plan import (
    Plan,
    Random,
    centred,
    pair,
    random_box,
    resized,
    short_side,
)
from penstock.transforms.resize import FILTERS
from penstock.transforms.deferred_image import Undecoded
from penstock.transforms.pixel_format import Form

Array = np.ndarray[Any, np.dtype[Any]]
Size = int | tuple[int, int]
Numbers = Sequence[float] | float | None
DECODERS = ("cpu", "cuda")


@dataclasses.dataclass(frozen=True, repr=False)
class ImageTransform:
    """What all recipes share. Write :meth:`plan` for one of your own.

    ``flip`` is the chance that the picture is mirrored. ``interpolation`` is ``"bilinear"`` or
    ``"bicubic"``, with Pillow's filters. The result is uint8 or, with ``dtype="float32"``, numbers
    from 0 to 1, of which ``mean`` is subtracted and which are divided by ``std`` where those are
    given (one number, or one per colour). ``layout`` is ``"CHW"`` or ``"HWC"``.

    With ``decode_on="cuda"`` the part is drawn, and the pixels are left to the stage
    ``to_device`` behind the loader: the result is an
    :class:`~penstock.transforms.deferred_image.Undecoded`.
    """

    flip: float = dataclasses.field(default=0.0, kw_only=True)
    interpolation: str = dataclasses.field(default="bilinear", kw_only=True)
    layout: str = dataclasses.field(default="CHW", kw_only=True)
    dtype: str = dataclasses.field(default="uint8", kw_only=True)
    mean: Numbers = dataclasses.field(default=None, kw_only=True)
    std: Numbers = dataclasses.field(default=None, kw_only=True)
    decode_on: str = dataclasses.field(default="cpu", kw_only=True)
    _form: Form = dataclasses.field(init=False, compare=False)
    _form_bytes: bytes = dataclasses.field(init=False, compare=False)

    def __post_init__(self) -> None:
        if self.interpolation not in FILTERS:
            raise PipelineError(
                f"interpolation is one of {', '.join(FILTERS)}, not {self.interpolation!r}"
            )
        if not 0 <= self.flip <= 1:
            raise PipelineError(f"flip is a chance from 0 to 1, not {self.flip!r}")
        if self.decode_on not in DECODERS:
            raise PipelineError(f"decode_on is {' or '.join(DECODERS)}, not {self.decode_on!r}")
        if self.decode_on != "cpu" and (self.layout, self.dtype) != ("CHW", "uint8"):
            raise PipelineError(
                f"decode_on={self.decode_on!r} gives uint8 of layout CHW: mean, std, dtype and "
                "channels_last are arguments of to_device there"
            )
        form = Form.of(self.layout, self.dtype, self.mean, self.std)
        object.__setattr__(self, "_form", form)
        object.__setattr__(self, "_form_bytes", form_bytes(form, self.interpolation))

    @property
    def crop_bytes(self) -> bytes | None:
        """The parameters by which the native module draws the plan; None where it cannot."""
        return None

    @property
    def takes_rng(self) -> bool:
        """Whether the stages are to give random numbers: ``f(value, rng)``."""
        return self.flip > 0

    def plan(self, height: int, width: int, rng: Random) -> Plan:
        """What happens to a picture of that size, but for the flip."""
        raise NotImplementedError

    def __call__(self, value: Any, rng: Random | None = None) -> Any:
        """The transformed picture. Without ``rng``, Python's ``random`` decides.

        Bytes that are no picture are a DecodingError, values of another kind a SampleError.
        """

        def plan_for(height: int, width: int) -> Plan:
            return self.planned(height, width, rng)

        if self.decode_on != "cpu":
            return Undecoded.of(value, plan_for, self)
        return self.rendered(value, plan_for)

    def planned(self, height: int, width: int, rng: Random | None) -> Plan:
        """What happens to a picture of that size, and whether it is mirrored."""
        draws: Random = rng if rng is not None else random
        plan = self.plan(height, width, draws)
        return plan._replace(flip=True) if self.flip and draws.random() < self.flip else plan

    @property
    def goes_together(self) -> bool:
        """Whether many pictures are best made by one call: where the native module is there.

        Not where someone's own recipe does more to a picture than to plan it.
        """
        kind = type(self)
        own = kind.__call__, kind.rendered
        return own == (ImageTransform.__call__, ImageTransform.rendered) and load_many() is not None

    def many(
        self, values: Sequence[Any], draws: Sequence[Draws | None], turn: Callable[[int], None]
    ) -> list[Any]:
        """What :meth:`__call__` gives for each value, or a :class:`~penstock.handlers.Failed`.

        Values may be left to be read from a shard. ``turn(place)`` is called before memory for
        a value is asked for.
        """
        native = load_many()
        kinds = (bytes, Later)
        files = [place for place, value in enumerate(values) if type(value) in kinds]
        results: list[Any] = [None] * len(values)
        if native is not None and files:
            made = pictures_together(
                self,
                native,
                [values[place] for place in files],
                [draws[place] for place in files],
                lambda number: turn(files[number]),
            )
            for place, result in zip(files, made):
                results[place] = result
        for place, result in enumerate(results):
            if result is None:
                turn(place)
                results[place] = self._alone(values[place], draws[place])
        return results

    def _alone(self, value: Any, draws: Draws | None) -> Any:
        reading = type(value) is Later
        try:
            value = whole(value)
            reading = False
            return self(value, draws) if self.takes_rng else self(value)
        except BaseException as error:  # noqa: BLE001 - told where the item's turn comes
            return Failed(error, reading)

    def rendered(self, value: Any, plan_for: Planner) -> Array:
        """The planned part of a picture, as an array of the transform's form."""
        return picture_row(value, plan_for, self.interpolation, self._form)

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
    """A random part of the picture, brought to ``size``: the recipe of ImageNet training.

    The part's share of the area is drawn from ``scale``, its shape (width to height) from
    ``ratio``, as torchvision does it. See :class:`ImageTransform` for the other arguments.

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
        if kind.plan is not RandomResizedCrop.plan or kind.planned is not ImageTransform.planned:
            return None  # a recipe of someone's own
        return crop_bytes(pair(self.size, "size"), self.scale, self.ratio, self.flip)

    def plan(self, height: int, width: int, rng: Random) -> Plan:
        box = random_box(height, width, self.scale, self.ratio, rng)
        return resized(box, pair(self.size, "size"))


@dataclasses.dataclass(frozen=True, repr=False)
class Resize(ImageTransform):
    """The whole picture, its shorter side brought to ``size``, or all of it to (height, width).

    >>> import numpy as np
    >>> Resize(8)(np.zeros((30, 40, 3), "uint8")).shape
    (3, 8, 10)
    """

    size: Size

    def __post_init__(self) -> None:
        super().__post_init__()
        pair(self.size, "size")

    def plan(self, height: int, width: int, rng: Random) -> Plan:
        size = self.size
        to = short_side(height, width, size) if isinstance(size, int) else pair(size, "size")
        return resized((0, 0, height, width), to)


@dataclasses.dataclass(frozen=True, repr=False)
class CenterCrop(ImageTransform):
    """The middle of the picture, not resized; black borders where the picture is smaller.

    >>> import numpy as np
    >>> CenterCrop((8, 9), layout="HWC")(np.zeros((30, 40, 3), "uint8")).shape
    (8, 9, 3)
    """

    size: Size

    def __post_init__(self) -> None:
        super().__post_init__()
        pair(self.size, "size")

    def plan(self, height: int, width: int, rng: Random) -> Plan:
        return centred((height, width), (height, width), pair(self.size, "size"))


@dataclasses.dataclass(frozen=True, repr=False)
class ResizeCenterCrop(ImageTransform):
    """The shorter side brought to ``size``, then the middle ``crop`` of it: to validate with.

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

    def plan(self, height: int, width: int, rng: Random) -> Plan:
        size = self.size
        to = short_side(height, width, size) if isinstance(size, int) else pair(size, "size")
        return centred((height, width), to, pair(self.crop, "crop"))


@dataclasses.dataclass(frozen=True, repr=False)
class RandomHorizontalFlip(ImageTransform):
    """The whole picture, mirrored with the chance ``flip``.

    >>> import numpy as np
    >>> RandomHorizontalFlip(flip=1.0)(np.arange(3, dtype="uint8")[None])[0]
    array([[2, 1, 0]], dtype=uint8)
    """

    flip: float = dataclasses.field(default=0.5, kw_only=True)

    def plan(self, height: int, width: int, rng: Random) -> Plan:
        return resized((0, 0, height, width), (height, width))


@dataclasses.dataclass(frozen=True, repr=False)
class Normalize(ImageTransform):
    """The whole picture as float32, ``mean`` subtracted and divided by ``std``.

    Behind functions of your own that give arrays (height first); the other recipes take
    ``mean`` and ``std`` themselves.

    >>> import numpy as np
    >>> Normalize(mean=0.5, std=0.25)(np.full((1, 1), 255, "uint8")).ravel()
    array([2., 2., 2.], dtype=float32)
    """

    dtype: str = dataclasses.field(default="float32", kw_only=True)

    def plan(self, height: int, width: int, rng: Random) -> Plan:
        return resized((0, 0, height, width), (height, width))
