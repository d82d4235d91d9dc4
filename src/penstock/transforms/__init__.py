"""Turn a field into the array that a model takes: crop, resize, normalise, resample.

::

    images.py           the image transforms: RandomResizedCrop, Resize, CenterCrop …
    audio.py            AudioClip: resample, mix, cut, pad
    crop_plan.py        CropPlan: the crop and resize of one image, chosen before decoding
    any_image.py        crops and resizes an image of any type by its plan
    jpeg_native.py      decodes, crops and resizes a batch of JPEGs by the native module
    fused.py            the same for one JPEG
    jpeg_fallback.py    decodes a part of a JPEG by simplejpeg, without the native module
    regions.py          decodes a region of a JPEG by TurboJPEG
    jpeg_markers.py     reads the headers of a JPEG
    resize.py           resizes with antialiasing, by torch or Pillow
    pixel_format.py     writes pixels in the layout and dtype of the batch
    deferred_image.py   an image that the device will decode
    native/             the native module in C
    gpu/                decoding on a GPU

The input is bytes or decoded values of a sample, from :mod:`penstock.codecs`; the output is arrays
in the memory of the batch (:mod:`penstock.memory`). The functions are passed to ``map``,
``map_dict`` or ``map_tuple`` of :mod:`penstock.stages`.
"""

from __future__ import annotations

import os

# Former paths of modules, such as ``penstock.transforms.rows``, still resolve.
__path__.append(os.path.join(os.path.dirname(__file__), "..", "compat", "moved", "transforms"))
