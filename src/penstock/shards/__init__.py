"""Read samples from tar shards, write them, and index them.

::

    open_shard.py     URL → TarReader: opens, decompresses, chooses the window
    decompress.py     compressed shards, recognised by their first bytes
    byte_windows.py   reads the bytes of a shard a window at a time
    tar_reader.py     TarReader: the members of a tar, by the complete format
    header.py         the fields of one tar header
    sample_reader.py  members → samples, the innermost loop
    bulk_headers.py   many small samples of a window at once, by numpy
    lazy_bytes.py     payloads that are read later, on another thread
    index/            the index of a data set, for random access
    writing/          samples → tar shards

The input is bytes from :mod:`penstock.storage`; the output is samples for :mod:`penstock.stages`:
dicts of field name → bytes, with ``__key__`` and ``__url__``.
"""
