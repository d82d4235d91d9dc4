"""Members grouped into samples: files with the same key that stand next to each other.

The key is the name up to the first dot of its last part, the field is what follows, in lower
case: ``a/b.seg.png`` is field ``seg.png`` of sample ``a/b``. Names like ``__meta__`` or
``__meta__/x`` hold no samples and are passed over; so are names without a dot.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any
from zlib import adler32

from penstock.errors import DuplicateError, Origin
from penstock.handlers import Handler, reraise_exception
from penstock.shards import header as tar
from penstock.shards.lazy_bytes import LATER_BYTES, Later, ShardFile
from penstock.shards.tar_reader import Tape
from penstock.shards.byte_windows import LARGE_BYTES, WIDE_BYTES, WINDOW_BYTES, FileWindow
from penstock.redact import named

Sample = dict[str, Any]
FEW_MEMBERS = 32
"""A window that has room for fewer members like the one at hand is read one by one."""


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
    out and ``on_skip`` is called. With ``later`` the data of large members is left to be read
    from that file: their values are :class:`~penstock.shards.lazy_bytes.Later`.

    This is the library's innermost loop. Ordinary members, whose one header and data lie in the
    window, are taken right here; the others come from the :class:`~penstock.shards.tar_reader.Tape`.
    """

    def __init__(
        self,
        tape: Tape,
        handler: Handler = reraise_exception,
        *,
        local_path: str | None = None,
        rename: Callable[[str], str] | None = None,
        on_skip: Callable[[], None] = lambda: None,
        later: ShardFile | None = None,
    ) -> None:
        self.tape, self.handler = tape, handler
        tape.later = later
        self.local_path, self.rename, self.on_skip = local_path, rename, on_skip
        self.offset = self.next_offset = -1
        self.stopped = False  # a handler said to end the stream here
        self._known: dict[bytes, str] = {}  # a field's bytes → its name
        self._try_at, self._patience = 0, 1  # when samples are next looked at together
        self._tail: Any = None
        self._ready: list[Sample] = []  # those that were found by that, and their offsets
        self._offsets: list[int] = []
        self._given = 0

    def __iter__(self) -> Iterator[Sample]:
        tape, known, url, local_path = self.tape, self._known, named(self.tape.url), self.local_path
        window, later = tape.window, tape.later
        # Also of what lies in the window: a copy would wait in a shuffle's buffer.
        defer = LATER_BYTES if later is not None else sys.maxsize
        plain = self.rename is None and tape.want is None
        # A header's front runs from name to checksum. Its tail (type, magic, owner, prefix) is the
        # same for all members of a shard: where it is, only the front needs to be summed.
        tail = pax_tail = b""
        tail_sum = 0
        sums: dict[bytes, int] = {}  # a checksum field → adler32's low half of a right front
        fronts: dict[bytes, tuple[int, int]] = {}  # size, time and checksum → that, and the size
        unknown = (-1, -1)
        pax: dict[bytes, bytes] = {}  # the front of a PAX header → how a body with a time begins
        fixed = 2 if local_path is None else 3
        sample: Sample = {}
        key, begin = b"\0", tape.base
        # Keys that have come. While they ascend, none can come twice, and a list will do.
        ascending: list[bytes] = []
        keep, last = ascending.append, b""
        seen: set[bytes] = set()
        buffer, base, position = tape.buffer, tape.base, tape.position
        limit, begins = len(buffer), buffer.startswith
        while True:
            # ── the next member ─────────────────────────────────────────────────────────
            offset = base + position
            pending = -1  # where its PAX header stands, if that was passed over here
            middle = position + 156
            front = buffer[position:middle]
            if (
                pax
                and (record := pax.get(front)) is not None
                and position + 1024 <= limit
                and begins(pax_tail, middle)
                and begins(record, position + 512)
            ):
                # A PAX header of one record that gives a time, as WebDataset writes everywhere.
                pending = offset
                position += 1024
                middle = position + 156
                front = buffer[position:middle]
            # adler32's low half is 1 + the sum of all bytes modulo 65521, at native speed.
            total, size = fronts.get(front[124:], unknown)
            if adler32(front) & 0xFFFF != total or not begins(tail, middle):
                size = -1
                if tail and begins(tail, middle):
                    checksum = front[148:]
                    total = sums.get(checksum, -1)
                    if total < 0:
                        total = sums[checksum] = sum_for(checksum, tail_sum)
                    if adler32(front) & 0xFFFF == total:
                        size = learn_front(front, fronts)
            start = position + 512
            after = start + (size + 511 & -512)
            data: bytes | Later | None
            if size >= 0 and after <= limit:
                end = front.find(b"\0")
                name = front[: end if 0 <= end < 100 else 100]
                if size >= defer and later is not None:
                    data = later.leave(window, base + start, size)
                else:
                    data = buffer[start : start + size]
                position = after
            elif size >= 0 and start + size > limit:
                # Its data reaches beyond the window: read by itself, straight into what we give.
                end = front.find(b"\0")
                name = front[: end if 0 <= end < 100 else 100]
                if later is not None and size >= LATER_BYTES:
                    data = later.leave(window, base + start, size)
                    tape.large = True
                else:
                    data = window.payload(buffer, start, base + start, size)
                    tape.large = size >= LARGE_BYTES
                tape.base, tape.position = base + start + size, 0
                tape.buffer = window.more(b"", tape.base, tape.large)
                tape.pass_over(-size & 511, "a member's padding")
                buffer, base, position = tape.buffer, tape.base, tape.position
                limit, begins = len(buffer), buffer.startswith
            else:
                head = buffer[position:start]
                tape.buffer, tape.base, tape.position = buffer, base, position
                member = tape.next_member(pending)
                if member is None:
                    break
                name, data, offset = member[:3]
                if plain and len(head) == tar.BLOCK:
                    if head[156] == 48 and not head[345]:
                        if head[156:] != tail:
                            tail, tail_sum = head[156:], sum(head[156:])
                            sums.clear()
                            fronts.clear()
                        if len(sums) > 8192:
                            sums.clear()
                    elif head[156] == 120 and (record := only_a_time(head, buffer, start)):
                        if head[156:] != pax_tail or len(pax) > 8192:
                            pax_tail = head[156:]
                            pax.clear()
                        pax[front] = record
                buffer, base, position = tape.buffer, tape.base, tape.position
                limit, begins = len(buffer), buffer.startswith
                if data is None:
                    continue  # not wanted: as if it were not there
                if self.rename is not None:
                    text = text_of(name)
                    if is_meta(text):
                        continue
                    name = self.rename(text).encode("utf-8", "surrogateescape")
            # ── its sample ──────────────────────────────────────────────────────────────
            first, _, suffix = name.partition(b".")
            field = known.get(suffix)  # what is known has no slash: the dot was the right one
            if first != key or field is None:
                if field is None or not first or first[0] == 95:
                    split = self._split(name)
                    if split is None:
                        continue
                    first, field = split
                if first != key:
                    if len(sample) > fixed:
                        self.offset, self.next_offset = begin, offset
                        yield sample
                    if offset >= self._try_at and tail and plain and first > last and not seen:
                        keys = self._stretch(buffer, base, offset, position, tail)
                        if keys is not None:
                            ready, offsets = self._ready, self._offsets
                            while (given := self._given) < len(ready):
                                self._given = given + 1
                                self.offset, self.next_offset = offsets[given], offsets[given + 1]
                                yield ready[given]
                            self._ready, self._offsets, self._given = [], [], 0
                            ascending += keys
                            sample, position, key = {}, self.next_offset - base, keys[-1]
                            last = key
                            continue
                    sample, key, begin = {}, first, offset
                    if key > last and not seen:
                        last = key
                        keep(key)
                    else:
                        if not seen:
                            seen.update(ascending)
                        if key in seen:
                            problem = f"the key {text_of(key)!r} stands twice"
                            if not self._skip(problem, key, offset):
                                return
                            continue
                        seen.add(key)
                    sample = {"__key__": key.decode("utf-8", "surrogateescape"), "__url__": url}
                    if local_path is not None:
                        sample["__local_path__"] = local_path
            if not sample:
                continue  # a field of a sample that was left out
            if field in sample:
                problem = f"the field {field!r} stands twice"
                if not self._skip(problem, key, offset):
                    break
                continue
            sample[field] = data
        if len(sample) > fixed:
            self.offset, self.next_offset = begin, -1
            yield sample

    def ready(self, most: int) -> tuple[list[Sample], list[int]]:
        """Up to so many of the next samples that are at hand, and their offsets."""
        begin, end = self._given, self._given + most
        return self._ready[begin:end], self._offsets[begin : min(end, len(self._ready))]

    def passed(self, count: int) -> None:
        """The first so many of those were taken."""
        self._given += count
        self.offset, self.next_offset = self._offsets[self._given - 1 : self._given + 1]

    def _stretch(
        self, buffer: bytes, base: int, offset: int, position: int, tail: bytes
    ) -> list[bytes] | None:
        """Have the samples from an offset to nearly the end of the window at hand; their keys.

        None where they are not of one kind, or too large for it; then it is not tried so soon
        again. ``position`` is behind the first member.
        """
        start, limit = offset - base, len(buffer)
        self._try_at = base + limit
        if start < 0 or limit - start < FEW_MEMBERS * (position - start):
            self._try_at += WINDOW_BYTES
            return None
        from penstock.shards import bulk_headers as stretch  # which needs numpy: not to be loaded for large ones

        if self._tail is None or self._tail.bytes != tail:
            self._tail = stretch.Tail(tail)
        common = {"__key__": "", "__url__": named(self.tape.url)}
        if self.local_path is not None:
            common["__local_path__"] = self.local_path
        found = stretch.stretch(buffer, start, self._tail, self._known, common)
        if found is None:
            self._patience = min(2 * self._patience, 64)
            self._try_at += self._patience * limit
            return None
        self._patience, self._given = 1, 0
        self._ready = found.samples
        self._offsets = [offset, *[base + end for end in found.ends]]
        if isinstance(self.tape.window, FileWindow):
            self.tape.window.window_bytes = WIDE_BYTES
        return found.keys

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
        try:
            go_on = self.handler(error)
        except Exception as raised:
            raised.__dict__["asked"] = True  # who reads the shard need not ask the handler again
            raise
        if go_on:
            self.on_skip()
        self.stopped = not go_on
        return go_on


def sum_for(checksum: bytes, tail_sum: int) -> int:
    """adler32's low half of a front that the checksum is right for; -1 where nobody can say.

    A header is summed with spaces in the place of its checksum.
    """
    digits = checksum.rstrip(b"\0 ")
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        return -1
    return (int(digits, 8) - 8 * 32 - tail_sum + sum(checksum) + 1) % 65521


def learn_front(front: bytes, fronts: dict[bytes, tuple[int, int]]) -> int:
    """The size that the front of a checked header gives, remembered; -1 where it gives none."""
    try:
        size = tar.number(front[124:136])
    except ValueError:
        return -1
    if len(fronts) > 8192:
        fronts.clear()
    fronts[front[124:]] = (adler32(front) & 0xFFFF, size)
    return size


def only_a_time(head: bytes, buffer: bytes, start: int) -> bytes:
    """How the body of a PAX header begins whose only record is a time; b"" for any other."""
    size = tar.number(head[124:136])
    record = b"%d mtime=" % size
    return record if size <= tar.BLOCK and buffer.startswith(record, start) else b""
