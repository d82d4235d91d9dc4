"""Decode fields from bytes to values and encode them, by their extension.

::

    registry.py        extension → "module:function", both ways; the codecs are imported on use
    decoder.py         Decoder: a sample of bytes in, a sample of values out
    field_handlers.py  the handlers of a Decoder: by extension, .gz, the built-in table
    encoder.py         make_encoder: a sample of values in, a sample of bytes out

    records.py         txt, cls, json, msgpack, cbor
                       cbor_scan.py, hash_collisions.py  refuse data that takes too long to decode
    arrays.py          npy, npz, ten     tenbin.py  the format of .ten
    images.py          all image specs   image_specs.py  the names "rgb8", "pil", "torchrgb" …
                       image_files.py  which files of a folder are images, and their keys
    audio.py           flac, mp3, wav …  audio_files.py  audio files of manifests
                       audio_truncation.py  detects truncated audio
    video.py           mp4, webm …
    safe_pickle/       pyd, pickle, pkl and pth, without running code
    gzip_fields.py     .gz at the end of a field's name

The input is the fields of one sample as ``bytes``, from :mod:`penstock.shards`; the output is
values for :mod:`penstock.stages`. A field that cannot be read raises
:class:`~penstock.errors.DecodingError` with the origin. Bytes are never trusted: a size in a header
is compared with the bytes that are present before memory is allocated, :mod:`penstock.limits`
bounds the decoded size, and no field can run code.

Importing this package imports neither numpy nor torch.
"""

from __future__ import annotations

import os

from penstock.codecs.decoder import (
    Decoder,
    default_decoder,
    default_post_handlers,
    default_pre_handlers,
)
from penstock.codecs.encoder import encode_based_on_extension, imageencoder, make_encoder
from penstock.codecs.field_handlers import (
    Continue,
    basichandlers,
    call_extension_handler,
    gzfilter,
    handle_extension,
)
from penstock.codecs.image_specs import IMAGE_EXTENSIONS, ImageHandler, imagehandler, imagespecs
from penstock.codecs.registry import DECODERS, ENCODERS, CodecTable

__all__ = [
    "Decoder",
    "Continue",
    "handle_extension",
    "call_extension_handler",
    "gzfilter",
    "basichandlers",
    "default_decoder",
    "default_pre_handlers",
    "default_post_handlers",
    "imagehandler",
    "ImageHandler",
    "imagespecs",
    "IMAGE_EXTENSIONS",
    "make_encoder",
    "encode_based_on_extension",
    "imageencoder",
    "CodecTable",
    "DECODERS",
    "ENCODERS",
]

# Former paths of modules, such as ``penstock.codecs.table``, still resolve.
__path__.append(os.path.join(os.path.dirname(__file__), "..", "compat", "moved", "codecs"))
