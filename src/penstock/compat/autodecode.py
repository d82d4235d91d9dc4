"""``webdataset.autodecode``: decoding by extension. Lives in :mod:`penstock.codecs`."""

from __future__ import annotations

from penstock.codecs import (
    DECODERS,
    IMAGE_EXTENSIONS,
    Continue,
    Decoder,
    ImageHandler,
    basichandlers,
    call_extension_handler,
    default_decoder,
    default_post_handlers,
    default_pre_handlers,
    gzfilter,
    handle_extension,
    imagehandler,
    imagespecs,
)
from penstock.codecs.arrays import npy_loads, npz_loads, tenbin_loads
from penstock.codecs.audio import torch_audio
from penstock.codecs.records import cbor_loads, msgpack_loads
from penstock.codecs.safe_pickle.unpickler import decode_pickle as unpickle_loads
from penstock.codecs.safe_pickle.unpickler import torch_loads
from penstock.codecs.video import torch_video
from penstock.errors import DecodingError

decoders = DECODERS
pytorch_weights_only = True
"""``.pth`` files are read with weights only; ``decode(allow_pickle=True)`` allows the rest."""

__all__ = [
    "Continue",
    "Decoder",
    "DecodingError",
    "IMAGE_EXTENSIONS",
    "ImageHandler",
    "basichandlers",
    "call_extension_handler",
    "cbor_loads",
    "decoders",
    "default_decoder",
    "default_post_handlers",
    "default_pre_handlers",
    "gzfilter",
    "handle_extension",
    "imagehandler",
    "imagespecs",
    "msgpack_loads",
    "npy_loads",
    "npz_loads",
    "pytorch_weights_only",
    "tenbin_loads",
    "torch_audio",
    "torch_loads",
    "torch_video",
    "unpickle_loads",
]
