"""Pictures, and tars with any members."""

from __future__ import annotations

import io
import tarfile
from pathlib import Path

from PIL import Image


def picture(number, kind="JPEG", size=(24, 16)):
    stream = io.BytesIO()
    Image.new("RGB", size, (number * 40 % 256, 80, 120)).save(stream, kind)
    return stream.getvalue()


def tar(path, members, end=True, **options):
    """Write a tar of (name, data) or TarInfo by tarfile; returns the offsets of the headers."""
    stream = io.BytesIO()
    offsets = []
    with tarfile.open(
        fileobj=stream, mode="w", **{"format": tarfile.USTAR_FORMAT, **options}
    ) as out:
        for member in members:
            offsets.append(stream.tell())
            if isinstance(member, tarfile.TarInfo):
                out.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size = len(member[1])
            out.addfile(info, io.BytesIO(member[1]))
        length = stream.tell()
    data = stream.getvalue()
    Path(path).write_bytes(data if end else data[:length])
    return offsets
