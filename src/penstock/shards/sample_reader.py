"""Group members into samples: adjacent files with the same key.

The key is the name up to the first dot of its last part, the field is what follows, in lower
case: ``a/b.seg.png`` is field ``seg.png`` of sample ``a/b``. Names like ``__meta__`` or
``__meta__/x`` hold no samples and are skipped; so are names without a dot.

With ``group="dashed"``, members named ``KEY-NAME.jpg`` that follow ``KEY.json`` are fields
``name.jpg`` of the sample ``KEY``: see :data:`GROUPS`.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any
from zlib import adler32

from penstock.errors import DuplicateError, Origin, PenstockError, PipelineError, ShardError
from penstock.handlers import Handler, ask, reraise_exception
from penstock.redact import canonical_url
from penstock.shards import header as tar
from penstock.shards.byte_windows import LARGE_BYTES, WIDE_BYTES, WINDOW_BYTES, FileWindow
from penstock.shards.lazy_bytes import LATER_BYTES, Later, ShardFile
from penstock.shards.tar_reader import TarReader, may_be_field

Sample = dict[str, Any]
GROUPS = ("key", "dashed")
"""How members become samples: adjacent members with the same key; or, for interleaved documents, a
JSON member and the members after it whose key is the JSON's key, a dash and a name. A JSON member
always begins a sample, also when its key extends the key before it."""
READERS_OWN = frozenset(("__key__", "__url__", "__local_path__"))
"""Readers add these fields to samples, so no member may have them."""
READ_ERRORS = (PenstockError, OSError, EOFError)
"""What a store, or a stream that the user passed, raises when its bytes cannot be read."""
FEW_MEMBERS = 32
"""Members are read one by one if fewer of the current size fit into the window."""


def base_plus_ext(path: str) -> tuple[str | None, str | None]:
    """Split a member's name into key and field; (None, None) if it has none.

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
    """Return True for names that hold no samples: ``__x__`` and everything below ``__x__/``.

    >>> is_meta("__meta__"), is_meta("__meta__/a.jpg"), is_meta("__index__.json"), is_meta("a.jpg")
    (True, True, False, False)
    """
    if not name.startswith("__"):
        return False
    first, slash, _ = name.partition("/")
    return first.endswith("__") and len(first) >= 4 - (not slash)


def check_group(group: str) -> str:
    """Return the name of a grouping; raise PipelineError for any other text.

    >>> check_group("dashed")
    'dashed'
    """
    if group not in GROUPS:
        raise PipelineError(f"group is one of {', '.join(map(repr, GROUPS))}, not {group!r}")
    return group


def text_of(name: bytes) -> str:
    """Decode a name; bytes that are not UTF-8 survive a round trip."""
    return name.decode("utf-8", "surrogateescape")


class Samples:
    """The samples of one shard. Iterate once.

    ``offset`` is where the last sample begins (-1 before the first), ``next_offset`` where the next
    one does (-1: there is none). A sample is yielded only after the header of the next one was read
    or the shard has ended properly, so a truncated shard never yields part of a sample. A key or
    field that occurs twice is reported to ``handler``; if that returns true, the later one is left
    out and ``on_skip`` is called. With ``later`` the data of large members is read from that file
    when it is needed: their values are :class:`~penstock.shards.lazy_bytes.Later`. ``group`` is one
    of :data:`GROUPS`.

    This is the library's innermost loop. Ordinary members, whose single header and data are in the
    window, are handled here; the others by the :class:`~penstock.shards.tar_reader.TarReader`.
    """

    def __init__(
        self,
        tape: TarReader,
        handler: Handler = reraise_exception,
        *,
        local_path: str | None = None,
        rename: Callable[[str], str] | None = None,
        on_skip: Callable[[], None] = lambda: None,
        later: ShardFile | None = None,
        group: str = "key",
    ) -> None:
        self.tape, self.handler = tape, handler
        self.dashed = check_group(group) == "dashed"
        tape.later = later
        self.local_path, self.rename, self.on_skip = local_path, rename, on_skip
        self.offset = self.next_offset = -1
        self.stopped = False  # a handler said to end the stream here
        self._known: dict[bytes, str] = {}  # a field's bytes → its name
        # The offset of the next bulk search: never, if the keys of a sample's members differ.
        self._try_at, self._patience = sys.maxsize if self.dashed else 0, 1
        self._tail: Any = None
        self._ready: list[Sample] = []  # found by the bulk search, with their offsets
        self._offsets: list[int] = []
        self._given = 0

    def __iter__(self) -> Iterator[Sample]:
        tape, known, url, local_path = (
            self.tape,
            self._known,
            canonical_url(self.tape.url),
            self.local_path,
        )
        window, later, compressed = tape.window, tape.later, tape.window.compressed
        # Also if the data is in the window: a copy would wait in a shuffle buffer.
        defer = LATER_BYTES if later is not None else sys.maxsize
        plain, dashed = self.rename is None and tape.want is None, self.dashed
        # A header's front runs from name to checksum. Its tail (type, magic, owner, prefix) is the
        # same for all members of a shard: if it is, only the front needs to be summed.
        tail = pax_tail = b""
        tail_sum = 0
        sums: dict[bytes, int] = {}  # a checksum field → adler32's low half of a valid front
        fronts: dict[bytes, tuple[int, int]] = {}  # size, time and checksum → sum and size
        unknown = (-1, -1)
        pax: dict[bytes, bytes] = {}  # the front of a PAX header → how its time record begins
        fixed = 2 if local_path is None else 3
        sample: Sample = {}
        key, begin = b"\0", tape.base
        # Keys seen so far. While they ascend, none can occur twice, and a list is enough.
        ascending: list[bytes] = []
        keep, last = ascending.append, b""
        seen: set[bytes] = set()
        buffer, base, position = tape.buffer, tape.base, tape.position
        limit, begins = len(buffer), buffer.startswith
        failed: Exception | None = None
        while True:
            # ── the next member ─────────────────────────────────────────────────────────
            offset = base + position
            pending = -1  # the offset of its PAX header, if that was skipped here
            middle = position + 156
            front = buffer[position:middle]
            if (
                pax
                and (record := pax.get(front)) is not None
                and position + 1024 <= limit
                and begins(pax_tail, middle)
                and begins(record, position + 512)
            ):
                # A PAX header whose only record is a time, as WebDataset always writes.
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
                        total = sums[checksum] = derive_checksum(checksum, tail_sum)
                    if adler32(front) & 0xFFFF == total:
                        size = parse_front(front, fronts)
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
                # Its data ends after the window: read it separately, straight into the result.
                end = front.find(b"\0")
                name = front[: end if 0 <= end < 100 else 100]
                tape.begun = (name, offset)
                try:
                    if later is not None and size >= LATER_BYTES:
                        data = later.leave(window, base + start, size)
                        tape.large = True
                    else:
                        data = window.payload(buffer, start, base + start, size)
                        tape.large = size >= LARGE_BYTES
                    tape.base, tape.position = base + start + size, 0
                    if compressed:
                        own = tape.base if may_be_field(name) else begin
                        window.member_end = max(window.member_end, own)
                    tape.buffer = window.more(b"", tape.base, tape.large)
                    tape.pass_over(-size & 511, "a member's padding")
                except READ_ERRORS as error:
                    failed = error
                    break
                buffer, base, position = tape.buffer, tape.base, tape.position
                limit, begins = len(buffer), buffer.startswith
            else:
                head = buffer[position:start]
                tape.buffer, tape.base, tape.position = buffer, base, position
                if compressed and begin > window.member_end:  # the fast path does not record it
                    window.member_end = begin
                try:
                    member = tape.next_member(pending)
                except READ_ERRORS as error:
                    failed = error
                    break
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
                    continue  # not selected
                if self.rename is not None:
                    text = text_of(name)
                    if is_meta(text):
                        continue
                    name = self.rename(text).encode("utf-8", "surrogateescape")
            # ── its sample ──────────────────────────────────────────────────────────────
            first, _, suffix = name.partition(b".")
            field = known.get(suffix)  # a known field has no slash, so this dot separates it
            if first != key or field is None:
                if field is None or not first or first[0] == 95:
                    split = self._split(name)
                    if split is None:
                        continue
                    first, field = split
                if dashed and first != key and (joined := joins(name, first, field, key, sample)):
                    field = joined
                elif first != key:
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
                            problem = f"the key {text_of(key)!r} occurs twice"
                            if not self._skip(problem, key, offset):
                                return
                            continue
                        seen.add(key)
                    sample = {"__key__": key.decode("utf-8", "surrogateescape"), "__url__": url}
                    if local_path is not None:
                        sample["__local_path__"] = local_path
            if not sample:
                continue  # a field of a sample that was left out
            if field in sample or field in READERS_OWN:
                problem = f"the field {field!r} occurs twice"
                if not self._skip(problem, key, offset):
                    break
                continue
            sample[field] = data
        follows = -1 if failed is None else self._next_sample(key, sample)
        if len(sample) > fixed and (failed is None or follows >= 0):
            self.offset, self.next_offset = begin, follows
            yield sample
        if failed is not None:
            add_key(failed, tape)
            raise failed

    def ready(self, most: int) -> tuple[list[Sample], list[int]]:
        """Return up to ``most`` of the samples that were found in bulk, and their offsets."""
        begin, end = self._given, self._given + most
        return self._ready[begin:end], self._offsets[begin : min(end, len(self._ready))]

    def passed(self, count: int) -> None:
        """Mark the first ``count`` of the ready samples as taken."""
        self._given += count
        self.offset, self.next_offset = self._offsets[self._given - 1 : self._given + 1]

    def _stretch(
        self, buffer: bytes, base: int, offset: int, position: int, tail: bytes
    ) -> list[bytes] | None:
        """Find the samples from an offset to near the end of the window in bulk; return their keys.

        None if they differ in layout or are too large; the next attempt is then delayed.
        ``position`` is after the first member.
        """
        start, limit = offset - base, len(buffer)
        self._try_at = base + limit
        if start < 0 or limit - start < FEW_MEMBERS * (position - start):
            self._try_at += WINDOW_BYTES
            return None
        from penstock.shards import (
            bulk_headers as stretch,  # needs numpy, which is not loaded for large members
        )

        if self._tail is None or self._tail.bytes != tail:
            self._tail = stretch.Tail(tail)
        common = {"__key__": "", "__url__": canonical_url(self.tape.url)}
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

    def _next_sample(self, key: bytes, sample: Sample) -> int:
        """Return the offset of the member whose data could not be read, if it begins a new sample;
        else -1.

        Its header shows that the sample of ``key`` is complete.
        """
        if self.tape.begun is None:
            return -1
        name, offset = self.tape.begun
        if self.tape.want is not None and not self.tape.want(name):
            return -1
        if self.rename is not None:
            name = self.rename(text_of(name)).encode("utf-8", "surrogateescape")
        split = self._split(name)
        if split is None or split[0] == key:
            return -1
        return -1 if self.dashed and joins(name, *split, key, sample) else offset

    def _split(self, name: bytes) -> tuple[bytes, str] | None:
        """Split a name into key and field; None if it belongs to no sample."""
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
            # Limit the cache; a name that ends with __ may belong to no sample.
            if len(self._known) < 4096 and not suffix.endswith(b"__"):
                self._known[suffix] = field
        return name[:dot], field

    def _skip(self, problem: str, key: bytes, offset: int) -> bool:
        """Report a duplicate to the handler; return True if reading continues."""
        error = DuplicateError(
            f"{problem} in this shard: the members of a sample must be adjacent, "
            "and keys must differ (tar --sort=name helps)",
            origin=Origin(self.tape.url, text_of(key), offset),
        )
        try:
            go_on = ask(self.handler, error)
        except Exception as raised:
            raised.__dict__["asked"] = True  # the caller must not ask the handler again
            raise
        if go_on:
            self.on_skip()
        self.stopped = not go_on
        return go_on


def add_key(error: Exception, tape: TarReader) -> None:
    """Add the key of the member that was being read to the origin of a ShardError."""
    if isinstance(error, ShardError) and error.origin is not None and tape.begun is not None:
        key = base_plus_ext(text_of(tape.begun[0]))[0]
        if error.origin.key is None and key is not None:
            error.locate(dataclasses.replace(error.origin, key=key))


def joins(name: bytes, first: bytes, field: str, key: bytes, sample: Sample) -> str:
    """Return the field that a member adds to the document before it; "" if it begins a sample.

    ``first`` and ``field`` are the member's own key and field. An empty ``sample`` is a document
    that was skipped: its images are skipped with it.

    >>> joins(b"d/a-X1.JPG", b"d/a-X1", "jpg", b"d/a", {"json": b"{}"})
    'x1.jpg'
    >>> joins(b"d/a-x.json", b"d/a-x", "json", b"d/a", {"json": b"{}"})
    ''
    """
    size = len(key)
    if field == "json" or first[size : size + 1] != b"-" or not first.startswith(key):
        return ""
    if b"/" in first[size:] or (sample and "json" not in sample):
        return ""
    return text_of(name[size + 1 :]).lower()


def derive_checksum(checksum: bytes, tail_sum: int) -> int:
    """Return adler32's low half of a front with a correct checksum; -1 if it cannot be derived.

    A header is summed with spaces instead of its checksum.
    """
    digits = checksum.rstrip(b"\0 ")
    if not digits.isdigit() or b"8" in digits or b"9" in digits:
        return -1
    return (int(digits, 8) - 8 * 32 - tail_sum + sum(checksum) + 1) % 65521


def parse_front(front: bytes, fronts: dict[bytes, tuple[int, int]]) -> int:
    """Parse the size in the front of a checked header and remember it; -1 if there is none."""
    try:
        size = tar.number(front[124:136])
    except ValueError:
        return -1
    if len(fronts) > 8192:
        fronts.clear()
    fronts[front[124:]] = (adler32(front) & 0xFFFF, size)
    return size


def only_a_time(head: bytes, buffer: bytes, start: int) -> bytes:
    """Return the first bytes of the body of a PAX header whose only record is a time, else b""."""
    size = tar.number(head[124:136])
    record = b"%d mtime=" % size
    return record if size <= tar.BLOCK and buffer.startswith(record, start) else b""
