"""Contract suites for pytest: what every stage, codec and opener must do.

For authors of new ones: subclass the suite, with a name that begins with ``Test``, and define how
to create the object under test.

    stages      StageContract     a stage is a value, and its runs follow the rules for stages
    codecs      CodecContract     values survive a round trip, damage raises, memory is bounded
    openers     OpenerContract    bytes survive a round trip, incomplete writes are not visible
    resume      assert_resumes    stops a pipeline after every item and compares the rest
    expect      expect            the assertion that the suites use
"""

from __future__ import annotations

from penstock.testing.resume import assert_resumes

__all__ = ["assert_resumes"]
