"""The contract of a codec, as a suite for pytest.

Make a subclass whose name begins with ``Test`` and set the values to write and read back::

    class TestVoxels(CodecContract):
        extensions = ("vox",)
        values = (some_voxels, other_voxels)
        handlers = (wds.handle_extension("vox", read_vox),)   # if it is not in DECODERS
        encoder = {"vox": write_vox}                          # if it is not in ENCODERS
        packages = ("voxlib",)                                # packages that it needs

A codec that only reads sets ``encoded`` (valid files as bytes) instead of ``values``.
"""

from __future__ import annotations

import random
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

from penstock.codecs import Decoder, make_encoder
from penstock.errors import DecodingError, MissingPackage
from penstock.testing.expect import expect

URL = "made-up.tar"


class CodecContract:
    """The suite; every ``test_`` method is one promise.

    Extensions in ``encode_only`` are written but stay bytes when read. Override ``same`` if
    values do not compare with ``==``. Reading damaged data may use at most ``spare_bytes`` of
    memory plus ``times`` the size of the data.
    """

    extensions: ClassVar[tuple[str, ...]] = ()
    encode_only: ClassVar[tuple[str, ...]] = ()
    values: ClassVar[tuple[Any, ...]] = ()
    encoded: ClassVar[tuple[bytes, ...]] = ()
    handlers: ClassVar[tuple[Any, ...]] = ()
    encoder: ClassVar[Any] = True
    packages: ClassVar[tuple[str, ...]] = ()
    trials: ClassVar[int] = 150
    spare_bytes: ClassVar[int] = 32 << 20
    times: ClassVar[int] = 64

    def same(self, found: Any, value: Any) -> bool:
        """Return whether a value that was read equals the one that was written."""
        return type(found) is type(value) and bool(found == value)

    def encode(self, extension: str, value: Any) -> bytes:
        """Encode a value with the encoder under test."""
        data: bytes = make_encoder(self.encoder)({"__key__": "k", extension: value})[extension]
        expect(type(data) is bytes, f"the encoder must return bytes, not {type(data).__name__}")
        return data

    def decode(self, extension: str, data: bytes) -> Any:
        """Decode bytes with the decoder under test."""
        sample = {"__key__": "k", "__url__": URL, extension: data}
        return Decoder(*self.handlers)(sample)[extension]

    def files(self) -> list[bytes]:
        """Return valid files to damage."""
        encoded = [self.encode(self.extensions[0], value) for value in self.values]
        return [*self.encoded, *encoded]

    def test_what_is_written_reads_back(self) -> None:
        for extension in self.extensions:
            for value in self.values:
                found = self.decode(extension, self.encode(extension, value))
                expect(self.same(found, value), f".{extension}: {value!r} was read as {found!r}")

    def test_the_same_value_gives_the_same_bytes(self) -> None:
        for extension in self.extensions + self.encode_only:
            for value in self.values:
                first, second = (self.encode(extension, value) for _ in range(2))
                expect(first == second, f".{extension}: two encodings of {value!r} differ")

    def test_what_is_only_written_stays_bytes(self) -> None:
        for extension in self.encode_only:
            for value in self.values:
                data = self.encode(extension, value)
                expect(self.decode(extension, data) == data, f".{extension} must stay bytes")

    def test_valid_files_are_read(self) -> None:
        for data in self.encoded:
            found = self.decode(self.extensions[0], data)
            expect(not isinstance(found, bytes), "the decoder must decode its own extension")

    def test_any_buffer_is_read_like_bytes(self) -> None:
        for data in self.files()[:1]:
            for kind in (bytearray, memoryview):
                self.decode(self.extensions[0], kind(data))  # type: ignore[arg-type]

    def test_damaged_data_gives_a_value_or_an_error_that_says_where(self) -> None:
        for data in self.files():
            for damaged in damage(data, self.trials):
                self.check(damaged)

    def test_nothing_and_noise_give_a_value_or_an_error_that_says_where(self) -> None:
        noise = random.Random(1)
        for size in (0, 1, 2, 7, 64, 1000):
            self.check(noise.randbytes(size))

    def check(self, data: bytes) -> None:
        """Decode the data; expect a value or a DecodingError, within the memory limit."""
        with measure_memory() as peak:
            try:
                self.decode(self.extensions[0], data)
            except DecodingError as error:
                expect(URL in str(error) and "'k'" in str(error), f"no origin in: {error}")
        limit = self.spare_bytes + self.times * len(data)
        expect(peak[0] <= limit, f"{peak[0]} bytes of memory for {len(data)} bytes: {data[:200]!r}")

    def test_a_missing_package_is_told_by_name(self) -> None:
        if not self.packages:
            return
        data = self.files()[0]
        with mock.patch.dict(sys.modules, dict.fromkeys(self.packages)):
            try:
                self.decode(self.extensions[0], data)
            except MissingPackage as error:
                expect("pip install" in str(error), f"no remedy in: {error}")
            else:
                raise AssertionError(f"it must need one of {self.packages}")


def damage(data: bytes, trials: int) -> Iterator[bytes]:
    """Yield copies of the data with cuts, bit flips, and pieces repeated or removed.

    The damage is the same every time.
    """
    dice = random.Random(len(data))
    cuts = range(len(data)) if len(data) <= trials else dice.sample(range(len(data)), trials)
    for cut in cuts:
        yield data[:cut]
    for turn in range(trials if data else 0):
        # Half of the damage is in the first bytes, which hold the headers of formats.
        at = dice.randrange(min(len(data), 128) if turn % 2 else len(data))
        changed = bytearray(data)
        changed[at] = dice.choice((changed[at] ^ 1 << dice.randrange(8), 0x00, 0x7F, 0xFF))
        if turn % 5 == 0:
            changed[at : at + 4] = b"\xff\xff\xff\x7f"
        if turn % 7 == 0:
            del changed[at : at + dice.randrange(9)]
        if turn % 11 == 0:
            changed[at:at] = changed[at : at + 64]
        yield bytes(changed)


@contextmanager
def measure_memory() -> Iterator[list[int]]:
    """Measure the peak memory of Python and numpy inside, as a list of one number."""
    peak = [0]
    tracemalloc.start()
    try:
        yield peak
        peak[0] = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
