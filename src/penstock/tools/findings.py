"""What ``verify`` can find: codes that never change their meaning."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.limits import HOW_TO_RAISE
from penstock.redact import printable, redact


class Code(NamedTuple):
    """The meaning of a code, and what to do about it."""

    title: str
    remedy: str
    severity: str = "error"


CODES: Mapping[str, Code] = {
    "PS101": Code(
        "truncated inside a header or member",
        "write or copy the shard again, or salvage complete samples with --repair",
    ),
    "PS102": Code("header checksum wrong", "copy the shard again, or use --repair"),
    "PS103": Code("not a tar file", "check the URL; an error page may have been saved as a shard"),
    "PS104": Code(
        "data after the end marker",
        "if tars were joined with cat, read with concatenated=True, or use --repair",
    ),
    "PS105": Code("compressed stream damaged", "compress or copy the shard again"),
    "PS106": Code("end marker missing", "close the writer; --repair writes the marker", "note"),
    "PS107": Code(
        "compressed data unpacks to more than the limit",
        f"reading stops here; {HOW_TO_RAISE}",
    ),
    "PS201": Code(
        "further fields of a key seen earlier in the shard",
        "store the members of a sample next to each other (tar --sort=name), or use --repair",
    ),
    "PS202": Code("field occurs twice in a sample", "remove one, or use --repair"),
    "PS203": Code(
        "the same fields of a key again, or the key in another shard",
        "give every sample its own key, or use --repair",
    ),
    "PS204": Code("name without key or extension", "name members KEY.EXTENSION"),
    "PS205": Code("unsafe name", "use relative names without '..' and control characters"),
    "PS206": Code("link, device or other special member", "store plain files (tar --dereference)"),
    "PS207": Code("shard without samples", "leave the shard out of the list"),
    "PS301": Code("required field missing", "add the field, or leave the sample out"),
    "PS302": Code("fields differ between samples", "read optional fields as such", "note"),
    "PS303": Code("field is empty", "write the field again, or leave it out"),
    "PS304": Code("field cannot be decoded", "write the field again, or leave the sample out"),
    "PS305": Code("content does not match the extension", "name the field after its content"),
    "PS401": Code("index stale", "run 'penstock index' over the shards again"),
    "PS402": Code("index disagrees with the shard", "delete the index and make it again"),
    "PS501": Code("webdataset would skip or fail", "see the message"),
    "PS502": Code(
        "open_clip finds no image or no text",
        "it takes jpg, png, jpeg or webp, and txt",
    ),
    "PS503": Code(
        "the Hub cannot infer the columns",
        "give the first five samples the same fields and types",
    ),
    "PS901": Code("could not be read", "check network, permission and spelling, and try again"),
}
"""Code → meaning. Codes are never reused."""


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One fault of a shard, with its offset.

    ``offset`` is the first header of the member concerned, in the plain tar if it is compressed.

    >>> print(Finding("PS303", "x.tar", "0 bytes", key="a", offset=512, field="jpg"))
    x.tar, byte 512: PS303 field is empty: 0 bytes (sample 'a', field 'jpg')
    """

    code: str
    shard: str
    message: str
    key: str | None = None
    offset: int | None = None
    field: str | None = None

    @property
    def severity(self) -> str:
        """``"error"``, or ``"note"``: notes do not change the exit status."""
        return CODES[self.code].severity

    @property
    def remedy(self) -> str:
        return CODES[self.code].remedy

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return {
            "code": self.code,
            "severity": self.severity,
            "shard": redact(self.shard),
            "key": self.key,
            "offset": self.offset,
            "field": self.field,
            "message": self.message,
            "remedy": self.remedy,
        }

    def __str__(self) -> str:
        place = redact(self.shard) + ("" if self.offset is None else f", byte {self.offset}")
        about = [f"sample {self.key!r}"] if self.key is not None else []
        about += [f"field {self.field!r}"] if self.field is not None else []
        text = f"{place}: {self.code} {CODES[self.code].title}: {self.message}"
        return printable(text + (f" ({', '.join(about)})" if about else ""))


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What ``--repair`` did to a sample or member, and which finding made it necessary."""

    code: str
    shard: str
    change: str
    key: str | None = None
    offset: int | None = None
    field: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the values for JSON."""
        return {**dataclasses.asdict(self), "shard": redact(self.shard)}

    def __str__(self) -> str:
        place = redact(self.shard) + ("" if self.offset is None else f", byte {self.offset}")
        return printable(f"{place}: repaired {self.code}: {self.change}")
