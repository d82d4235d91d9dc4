"""Contract suites: what every stage, codec and opener must do, for those who write their own.

Each module holds one suite for pytest: make a subclass whose name begins with ``Test``, say how
to make the thing, and its tests are yours.

    stages      StageContract     a stage is a value, and its runs keep the stages' promises
    codecs      CodecContract     what was written reads back, damage is told, memory is bounded
    openers     OpenerContract    bytes come back, nothing half-written is seen

And one assertion: ``assert_resumes(make_pipeline)`` stops a pipeline after every item and
compares what follows.
"""

from __future__ import annotations

from penstock.testing.resume import assert_resumes

__all__ = ["assert_resumes"]
