"""The contract of an opener of URLs, as a suite for pytest.

Make a subclass whose name begins with ``Test`` and define how to store bytes under the new
scheme::

    class TestMyStore(OpenerContract):
        schemes = ("mystore",)

        def make_url(self, tmp_path, data):
            ...             # store the data
            return url      # and return its URL

        def missing_url(self, tmp_path):
            return "mystore://nothing/here.tar"

        def target_url(self, tmp_path):
            return url      # a URL to write to, where nothing exists yet
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any, ClassVar

from penstock.errors import StorageError
from penstock.storage import open_url
from penstock.testing.expect import expect


class OpenerContract:
    """The suite; every ``test_`` method is one promise.

    Set ``seekable`` if streams must be seekable, ``writable = False`` if the storage is read-only,
    ``atomic = False`` if written data is visible before ``close()``.
    """

    schemes: ClassVar[tuple[str, ...]] = ()
    seekable: ClassVar[bool] = False
    writable: ClassVar[bool] = True
    atomic: ClassVar[bool] = True

    DATA: ClassVar[bytes] = bytes(range(256)) * 1200 + b"the end"

    def make_url(self, tmp_path: Path, data: bytes) -> str:
        """Store the data and return its URL."""
        raise NotImplementedError

    def missing_url(self, tmp_path: Path) -> str | None:
        """Return a URL where nothing exists; None if the scheme has no such URL."""
        raise NotImplementedError

    def target_url(self, tmp_path: Path) -> str:
        """Return a URL to write to, where nothing exists yet."""
        raise NotImplementedError

    def stored(self, tmp_path: Path, url: str) -> bytes | None:
        """Return the bytes that are stored at the target, or None."""
        try:
            with open_url(url) as stream:
                return read_all(stream)
        except StorageError:
            return None

    def test_all_bytes_come_back(self, tmp_path: Path) -> None:
        with open_url(self.make_url(tmp_path, self.DATA)) as stream:
            expect(stream.read() == self.DATA, "read() must return all bytes")
            expect(stream.read(1) == b"", "read() after the end must return nothing")

    def test_an_empty_object_is_empty(self, tmp_path: Path) -> None:
        with open_url(self.make_url(tmp_path, b"")) as stream:
            expect(stream.read(10) == b"", "an empty object has no bytes")

    def test_odd_pieces_make_the_whole(self, tmp_path: Path) -> None:
        with open_url(self.make_url(tmp_path, self.DATA)) as stream:
            pieces = []
            for size in (1, 511, 7, 65537, 3):
                pieces.append(piece := stream.read(size))
                expect(0 < len(piece) <= size, "read(n) must return 1 to n bytes before the end")
            pieces.append(read_all(stream, 997))
            expect(b"".join(pieces) == self.DATA, "the pieces must add up to all bytes")

    def test_reading_into_a_buffer_gives_the_same(self, tmp_path: Path) -> None:
        with open_url(self.make_url(tmp_path, self.DATA)) as stream:
            buffer, found = bytearray(4099), io.BytesIO()
            while count := stream.readinto(buffer):
                found.write(buffer[:count])
            expect(found.getvalue() == self.DATA, "readinto() must read the same bytes as read()")

    def test_a_buffered_reader_gives_as_much_as_was_asked(self, tmp_path: Path) -> None:
        with open_url(self.make_url(tmp_path, self.DATA), buffer_bytes=-1) as stream:
            half = len(self.DATA) // 2
            expect(stream.read(half) == self.DATA[:half], "a buffered read(n) must return n bytes")
            expect(stream.read() == self.DATA[half:], "read() must return the rest")

    def test_the_name_is_the_url_and_the_size_is_known_or_none(self, tmp_path: Path) -> None:
        url = self.make_url(tmp_path, self.DATA)
        with open_url(url) as stream:
            expect(stream.name == url, f"name must be the URL, not {stream.name!r}")
            expect(stream.size_bytes in (None, len(self.DATA)), "size_bytes must be right or None")

    def test_closing_twice_or_early_is_fine(self, tmp_path: Path) -> None:
        stream = open_url(self.make_url(tmp_path, self.DATA))
        stream.read(10)
        stream.close()
        stream.close()
        expect(stream.closed, "closed must be True after close()")
        expect_error(ValueError, lambda: stream.read(1))

    def test_a_missing_object_is_an_error_that_names_it(self, tmp_path: Path) -> None:
        url = self.missing_url(tmp_path)
        if url is None:
            return

        def read() -> None:
            with open_url(url) as stream:
                read_all(stream)

        expect(url in str(expect_error(StorageError, read)), "the error must name the URL")

    def test_seeking_and_ranges_agree_with_reading(self, tmp_path: Path) -> None:
        with open_url(self.make_url(tmp_path, self.DATA)) as stream:
            expect(stream.seekable() == self.seekable, "seekable() must be as declared")
            if not self.seekable:
                return
            file: Any = stream
            expect(file.seek(1000) == 1000, "seek() must return the position")
            expect(file.read_range(5, 10) == self.DATA[5:15], "read_range() must return the range")
            expect(file.tell() == 1000, "read_range() must not change the position")
            expect(file.read(3) == self.DATA[1000:1003], "read() must continue at the position")
            beyond = file.read_range(len(self.DATA) - 2, 10)
            expect(beyond == self.DATA[-2:], "a range beyond the end must return what exists")

    def test_what_was_written_reads_back(self, tmp_path: Path) -> None:
        if not self.writable:
            return
        url = self.target_url(tmp_path)
        with open_url(url, "wb") as stream:
            expect(stream.write(self.DATA[:1000]) == 1000, "write() must return the bytes written")
            stream.write(bytearray(self.DATA[1000:2000]))
            stream.write(memoryview(self.DATA)[2000:])
            expect(stream.tell() == len(self.DATA), "tell() must count the bytes")
        stream.close()
        expect(self.stored(tmp_path, url) == self.DATA, "written bytes must be read back")
        expect_error(ValueError, lambda: stream.write(b"more"))

    def test_nothing_is_visible_before_the_end(self, tmp_path: Path) -> None:
        if not (self.writable and self.atomic):
            return
        url = self.target_url(tmp_path)
        with open_url(url, "wb") as stream:
            stream.write(self.DATA)
            stream.flush()
            expect(self.stored(tmp_path, url) is None, "nothing may be visible before close()")
        expect(self.stored(tmp_path, url) == self.DATA, "all must be visible after close()")

    def test_an_aborted_write_leaves_nothing(self, tmp_path: Path) -> None:
        if not (self.writable and self.atomic):
            return
        url = self.target_url(tmp_path)
        stream = open_url(url, "wb")
        stream.write(self.DATA)
        stream.abort()
        stream.abort()
        stream.close()
        expect(self.stored(tmp_path, url) is None, "abort() must leave nothing")

        def fail() -> None:
            with open_url(url, "wb") as stream:
                stream.write(self.DATA)
                raise KeyError("stop")

        expect_error(KeyError, fail)
        expect(self.stored(tmp_path, url) is None, "an exception in the block must leave nothing")

    def test_other_modes_are_refused(self, tmp_path: Path) -> None:
        url = self.make_url(tmp_path, self.DATA)
        for mode in ("r", "w", "ab", "r+b", ""):
            expect_error(ValueError, lambda mode=mode: open_url(url, mode))


def read_all(stream: Any, size: int = 1 << 16) -> bytes:
    """Read to the end, ``size`` bytes at a time."""
    return b"".join(iter(lambda: stream.read(size), b""))


def expect_error(kind: type[BaseException], act: Any) -> BaseException:
    """Return the exception of this class that ``act()`` must raise."""
    try:
        act()
    except kind as exn:
        return exn
    raise AssertionError(f"this must raise {kind.__name__}")
