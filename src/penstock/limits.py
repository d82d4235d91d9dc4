"""Limits on the memory that untrusted data may take.

``MAX_DECODED_BYTES`` is the largest size to which one compressed field, or one member of a
compressed shard, may decompress. Nor may more bytes of a compressed shard follow each other that
belong to no sample. A few kilobytes can claim terabytes, so the limit is enforced during
decompression. Set it in code, like ``PIL.Image.MAX_IMAGE_PIXELS``, or with the variable
``PENSTOCK_MAX_DECODED_BYTES``, which is read when this module is imported and which worker
processes inherit::

    penstock.limits.MAX_DECODED_BYTES = 8 << 30
"""

from __future__ import annotations

from penstock import env
from penstock.errors import DecodingError

MAX_DECODED_BYTES: int = env.integer("PENSTOCK_MAX_DECODED_BYTES") or 1 << 30

HOW_TO_RAISE = (
    "if the data can be trusted, raise penstock.limits.MAX_DECODED_BYTES"
    " or the variable PENSTOCK_MAX_DECODED_BYTES"
)


def too_large(what: str, most: int | None = None) -> DecodingError:
    """Return the error for data that unpacks to more than ``MAX_DECODED_BYTES``, or ``most``."""
    most = MAX_DECODED_BYTES if most is None else most
    return DecodingError(f"{what} unpacks to more than {most:,} bytes: {HOW_TO_RAISE}")
