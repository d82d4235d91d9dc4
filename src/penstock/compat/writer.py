"""``webdataset.writer``: writing shards and encoding samples.

Lives in :mod:`penstock.shards.writing` and :mod:`penstock.codecs`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

from penstock.codecs.arrays import numpy_dumps, numpy_npz_dumps, tenbin_dumps
from penstock.codecs.encoder import (
    default_handlers,
    encode_based_on_extension,
    encode_based_on_extension1,
    imageencoder,
    make_encoder,
)
from penstock.codecs.records import cbor_dumps, mp_dumps
from penstock.codecs.safe_pickle.unpickler import torch_dumps
from penstock.shards.writing import ShardWriter, TarWriter

gopen: Any = importlib.import_module("penstock.gopen")  # the module, as in WebDataset


def add_handlers(
    d: MutableMapping[str, Any], keys: str | Iterable[str], value: Callable[[Any], bytes]
) -> None:
    """Register one encoder for several extensions.

    >>> table = {}
    >>> add_handlers(table, "jpg jpeg", bytes)
    >>> sorted(table)
    ['jpeg', 'jpg']
    """
    for key in keys.split() if isinstance(keys, str) else keys:
        d[key] = value


def make_handlers() -> dict[str, Any]:
    """Return a copy of the table of encoders by extension."""
    return dict(default_handlers)


def bytestr(data: Any) -> bytes:
    """Return bytes unchanged, anything else as ASCII text.

    >>> bytestr(12), bytestr(b"x")
    (b'12', b'x')
    """
    return data if isinstance(data, bytes) else str(data).encode("ascii")


__all__ = [
    "ShardWriter",
    "TarWriter",
    "add_handlers",
    "bytestr",
    "cbor_dumps",
    "default_handlers",
    "encode_based_on_extension",
    "encode_based_on_extension1",
    "gopen",
    "imageencoder",
    "make_encoder",
    "make_handlers",
    "mp_dumps",
    "numpy_dumps",
    "numpy_npz_dumps",
    "tenbin_dumps",
    "torch_dumps",
]
