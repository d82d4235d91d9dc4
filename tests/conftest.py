"""What holds for all tests: no example of a property fails for being slow on a busy machine."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("penstock", deadline=None, print_blob=True)
settings.load_profile("penstock")
