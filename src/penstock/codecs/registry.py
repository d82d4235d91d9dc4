"""The tables of decoders and encoders by extension.

Each entry names its function as ``"module:function"`` (a module of this package, or a full path)
and is imported on first use, so that a data set without arrays never imports numpy.
To add a codec, add a line here, or assign a function to an extension at run time::

    DECODERS["vox"] = read_vox      # bytes → value
    ENCODERS["vox"] = write_vox     # value → bytes
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any

Codec = Callable[[Any], Any]


@functools.cache
def load(path: str) -> Codec:
    """Import and return the function at ``"module:function"``."""
    module, _, name = path.partition(":")
    if not module.startswith("penstock."):
        module = f"penstock.codecs.{module}"
    function: Codec = getattr(importlib.import_module(module), name)
    return function


class CodecTable(MutableMapping[str, Codec]):
    """Maps extensions to functions. An entry ``"module:function"`` is imported on first use.

    >>> table = CodecTable({"json": "records:json_loads"})
    >>> table["json"](b'{"a": 1}')
    {'a': 1}
    >>> table["raw"] = bytes
    >>> sorted(table)
    ['json', 'raw']
    """

    def __init__(self, entries: Mapping[str, str | Codec]) -> None:
        self._entries: dict[str, str | Codec] = dict(entries)
        self._first = dict(self._entries)

    @property
    def changed(self) -> bool:
        """True if an entry was added, replaced or removed since the table was created."""
        return self._entries != self._first

    def __getitem__(self, extension: str) -> Codec:
        entry = self._entries[extension]
        return load(entry) if isinstance(entry, str) else entry

    def __setitem__(self, extension: str, codec: Codec) -> None:
        self._entries[extension] = codec

    def __delitem__(self, extension: str) -> None:
        del self._entries[extension]

    def __contains__(self, extension: object) -> bool:  # does not import the entry
        return extension in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"CodecTable({' '.join(self._entries)})"


def _expand(table: Mapping[str, str]) -> dict[str, str]:
    """Return one entry per extension from one line per codec."""
    return {extension: path for names, path in table.items() for extension in names.split()}


DECODERS = CodecTable(
    _expand(
        {
            "txt text transcript": "records:text_loads",
            "cls cls2 index inx id": "records:int_loads",
            "json jsn": "records:json_loads",
            "pyd pickle pkl": "safe_pickle.unpickler:decode_pickle",
            "pth": "safe_pickle.unpickler:decode_torch_file",
            "ten tb": "arrays:tenbin_loads",
            "mp msg": "records:msgpack_loads",
            "npy": "arrays:npy_loads",
            "npz": "arrays:npz_loads",
            "cbor": "records:cbor_loads",
        }
    )
)
"""Decoders of every :class:`~penstock.codecs.decoder.Decoder`, by a field's last extension."""

ANY_PICKLE = CodecTable(
    _expand(
        {
            "pyd pickle pkl": "safe_pickle.unpickler:unpickle_any",
            "pth": "safe_pickle.unpickler:torch_any",
        }
    )
)
"""Replacements for entries of ``DECODERS`` under ``allow_pickle=True``."""

ENCODERS = CodecTable(
    _expand(
        {
            "cls cls2 index inx id": "records:int_dumps",
            "class count": "records:number_dumps",
            "txt text transcript html htm": "records:text_dumps",
            "json jsn": "records:json_dumps",
            "pyd pickle pkl": "safe_pickle.unpickler:pickle_dumps",
            "pth": "safe_pickle.unpickler:torch_dumps",
            "npy": "arrays:numpy_dumps",
            "npz": "arrays:numpy_npz_dumps",
            "ten tenbin tb": "arrays:tenbin_dumps",
            "mp msgpack msg": "records:mp_dumps",
            "cbor": "records:cbor_dumps",
            "jpg jpeg img image": "images:jpg_dumps",
            "png": "images:png_dumps",
            "webp": "images:webp_dumps",
            "ppm": "images:ppm_dumps",
            "pgm": "images:pgm_dumps",
            "pbm": "images:pbm_dumps",
            "tiff tif": "images:tiff_dumps",
            "wav": "audio:wav_dumps",
            "flac": "audio:flac_dumps",
        }
    )
)
"""Encoders of the shard writers, by a field's last extension."""
