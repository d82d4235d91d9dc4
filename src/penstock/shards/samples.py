"""Members grouped into samples: files with the same key that stand next to each other.

The key is the name up to the first dot of its last part, the field is what follows, in lower
case: ``a/b.seg.png`` is field ``seg.png`` of sample ``a/b``. Names like ``__meta__`` or
``__meta__/x`` hold no samples and are passed over; so are names without a dot.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any
from zlib import adler32

from penstock.errors import DuplicateError, Origin
from penstock.handlers import Handler, reraise_exception
from penstock.shards import header as tar
from penstock.shards.tape import Tape
from penstock.shards.window import LARGE_BYTES

Sample = dict[str, Any]


def base_plus_ext(path: str) -> tuple[str | None, str | None]:
    """Key and field of a member's name; (None, None) where it has none.

    >>> base_plus_ext("d.x/a.seg.png"), base_plus_ext("noext"), base_plus_ext(".hidden")
    (('d.x/a', 'seg.png'), (None, None), (None, None))
    """
    slash = path.rfind("/") + 1
    dot = path.find(".", slash)
    folder = path[path.rfind("/", 0, slash - 1) + 1 : slash] if slash else ""
    # A name that begins with a dot belongs to its folder, unless that has a dot itself.
    if dot < 0 or (dot == slash and (not folder or "." in folder)):
        return None, None
    return path[:dot], path[dot + 1 :]


def is_meta(name: str) -> bool:
    """True for the names that hold no samples: ``__x__`` and everything below ``__x__/``.

    >>> is_meta("__meta__"), is_meta("__meta__/a.jpg"), is_meta("__index__.json"), is_meta("a.jpg")
    (True, True, False, False)
    """
    if not name.startswith("__"):
        return False
    first, slash, _ = name.partition("/")
    return first.endswith("__") and len(first) >= 4 - (not slash)


def text_of(name: bytes) -> str:
    """The name as text; bytes that are not UTF-8 survive the way back."""
    return name.decode("utf-8", "surrogateescape")


class Samples:
    """The samples of one shard. Iterate once.

    ``offset`` is where the sample just given begins (-1 before the first), ``next_offset`` where
    the one behind it does (-1: there is none). A sample is given only when the next one
    has begun or the shard has ended as it should, so a cut shard never gives part of a sample.
    A key or field that stands twice goes to ``handler``; if that says go on, the later one is left
    out and ``on_skip`` is called.

    This is the library's innermost loop. Ordinary members, whose one header and data lie in the
    window, are taken right here; the others come from the :class:`~penstock.shards.tape.Tape`.
    """

    def __init__(
        self,
        tape: Tape,
        handler: Handler = reraise_exception,
        *,
        local_path: str | None = None,
        rename: Callable[[str], str] | None = None,
        on_skip: Callable[[], None] = lambda: None,
    ) -> None:
        self.tape, self.handler = tape, handler
        self.local_path, self.rename, self.on_skip = local_path, rename, on_skip
        self.offset = self.next_offset = -1
        self._known: dict[bytes, str] = {}  # a field's bytes → its name

    def __iter__(self) -> Iterator[Sample]:
        tape, known, url, local_path = self.tape, self._known, self.tape.url, self.local_path
        window = tape.window
        plain = self.rename is None and tape.want is None
        sums: dict[bytes, int] = {}  # a checksum field → adler32's low half of a right header
        sizes: dict[bytes, int] = {}
        fixed = 2 if local_path is None else 3
        sample: Sample = {}
        stem, stem_length, begin = b"\0", 1, tape.base
        seen: set[bytes] = set()
        buffer, base, position = tape.buffer, tape.base, tape.position
        limit = len(buffer)
        pending = -1  # where the first PAX header of the next member stands
        data: bytes | None
        while True:
            # ── the next member ─────────────────────────────────────────────────────────
            start = position + 512
            head = buffer[position:start]
            size = sizes.get(head[124:136], -1)
            if size < 0 and plain:
                size = octal(head)
            # adler32's low half is 1 + the sum of all bytes modulo 65521, at native speed.
            # A header of which only the end is missing has the same sum: zeros do not count.
            if size >= 0 and start <= limit and adler32(head) & 0xFFFF == sums.get(head[148:156]):
                kind = head[156]
            else:
                kind = 0
            stop = start + size
            if kind == 48 and not head[345]:
                end = head.find(b"\0", 0, 100)
                name = head[:end] if end >= 0 else head[:100]
                offset = base + position if pending < 0 else pending
                if stop <= limit:
                    data = buffer[start:stop]
                    position = stop + (-size & 511)
                else:
                    data = window.payload(buffer[start:], base + start, size)
                    base += stop
                    buffer = window.more(b"", base, size >= LARGE_BYTES)
                    position, limit = -size & 511, len(buffer)
                if position > limit:
                    tape.buffer, tape.base, tape.position = buffer, base, limit
                    tape.pass_over(position - limit, "a member's padding")
                    buffer, base, position = tape.buffer, tape.base, tape.position
                    limit = len(buffer)
            elif (
                kind == 120
                and 0 < size <= 512 <= limit - start
                and not says_more(buffer[start:stop])
            ):
                # A PAX header with nothing but times, as WebDataset writes before every member.
                if pending < 0:
                    pending = base + position
                position = start + 512
                continue
            else:
                tape.buffer, tape.base, tape.position = buffer, base, position
                member = tape.next_member(pending)
                if member is None:
                    break
                name, data, offset = member[:3]
                pending = -1
                buffer, base, position = tape.buffer, tape.base, tape.position
                limit = len(buffer)
                if plain:
                    learn(head, sums, sizes)
                elif data is None:
                    continue  # not wanted: as if it were not there
                elif self.rename is not None:
                    text = text_of(name)
                    if is_meta(text):
                        continue
                    name = self.rename(text).encode("utf-8", "surrogateescape")
            pending = -1
            # ── its sample ──────────────────────────────────────────────────────────────
            field = known.get(name[stem_length:]) if name.startswith(stem) else None
            if field is None:
                split = self._split(name)
                if split is None:
                    continue
                key, field = split
                if key != stem[:-1]:
                    if len(sample) > fixed:
                        self.offset, self.next_offset = begin, offset
                        yield sample
                    sample, stem, begin = {}, key + b".", offset
                    stem_length = len(stem)
                    if key in seen:
                        if not self._skip(f"the key {text_of(key)!r} stands twice", key, offset):
                            return
                        continue
                    seen.add(key)
                    sample = {"__key__": text_of(key), "__url__": url}
                    if local_path is not None:
                        sample["__local_path__"] = local_path
            if not sample:
                continue  # a field of a sample that was left out
            if field in sample:
                problem = f"the field {field!r} stands twice"
                if not self._skip(problem, stem[:-1], offset):
                    break
                continue
            sample[field] = data
        if len(sample) > fixed:
            self.offset, self.next_offset = begin, -1
            yield sample

    def _split(self, name: bytes) -> tuple[bytes, str] | None:
        """Key and field of a name, or None where it belongs to no sample."""
        slash = name.rfind(b"/") + 1
        dot = name.find(b".", slash)
        if dot <= slash or name.startswith(b"__"):
            text = text_of(name)
            key, ext = base_plus_ext(text)
            if key is None or ext is None or is_meta(text):
                return None
            dot = len(key.encode("utf-8", "surrogateescape"))
        suffix = name[dot + 1 :]
        field = self._known.get(suffix)
        if field is None:
            field = text_of(suffix).lower()
            # Names without end are not fields, and a name that ends with __ may be no sample's.
            if len(self._known) < 4096 and not suffix.endswith(b"__"):
                self._known[suffix] = field
        return name[:dot], field

    def _skip(self, problem: str, key: bytes, offset: int) -> bool:
        """Tell the handler of something that stands twice; True when it says go on."""
        error = DuplicateError(
            f"{problem} in this shard: members of one sample must stand together, "
            "and keys must differ (tar --sort=name helps)",
            origin=Origin(self.tape.url, text_of(key), offset),
        )
        if not self.handler(error):
            return False
        self.on_skip()
        return True


says_more = re.compile(rb" (?:path|size|GNU\.sparse[^=]*)=").search
"""Whether a PAX header says anything that changes what is read."""


is_usual = re.compile(rb"[0-7]{11}[\0 ]").match


def octal(head: bytes) -> int:
    """The size in its usual form, eleven octal digits and an end; else -1."""
    return int(head[124:135], 8) if is_usual(head, 124) else -1


def learn(head: bytes, sums: dict[bytes, int], sizes: dict[bytes, int]) -> None:
    """Remember a checked header's fields, so that the next one like it needs no parsing."""
    if len(head) == tar.BLOCK and head[156] in b"0x":
        if len(sums) + len(sizes) > 16384:
            sums.clear()
            sizes.clear()
        sums[head[148:156]] = adler32(head) & 0xFFFF
        sizes[head[124:136]] = tar.number(head[124:136])
