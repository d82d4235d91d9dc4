"""Bytes to values and back, by the extension of a field.

::

    table.py       extension → "module:function", both ways; everything below is loaded on use
    decoder.py     Decoder: a sample of bytes in, a sample of values out
    extensions.py  the handlers a Decoder is made of: by extension, .gz, the built-in table
    encode.py      make_encoder: a sample of values in, a sample of bytes out

    records.py     txt, cls, json, msgpack, cbor
    arrays.py      npy, npz, ten        tenbin.py  the format of .ten
    images.py      every image spec     imagespecs.py  "rgb8" and its kin
    audio.py       flac, mp3, wav …     video.py   mp4, webm …
    pickles.py     pyd, pickle, pkl and pth, without running code
    gz.py          the .gz at the end of a name

In come the fields of one sample as ``bytes`` (from :mod:`penstock.shards`), out go values for
:mod:`penstock.stages`. A field that cannot be read is a :class:`~penstock.errors.DecodingError`
with the origin; bytes are never trusted: a size that a header claims is held against the bytes
that are there before memory is taken, and no field can run code.

Importing this package loads neither numpy nor torch.
"""

from __future__ import annotations

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
