"""Samples from tar shards, and tar shards from samples.

In come bytes (:mod:`penstock.storage`); out go samples, dicts of field name → bytes with
``__key__`` and ``__url__`` (to :mod:`penstock.stages`). Left to right:

    opening     URL → tape: opens, decompresses (``decompress``), chooses the ``window``
    tape        members of a tar, by the whole format (``header``)
    samples     members → samples, the innermost loop
    stretch     many small samples of a window at once, by numpy
    writer      samples → one tar
    sharding    samples → numbered tars
"""
