"""File objects over remote bytes.

- ``remote_file``: an object of a store as a seekable file. It picks one of three readers:
- ``read_ahead``: several ranges at a time, fetched by threads;
- ``single_stream``: one connection to a fast server nearby;
- ``rangeless``: the whole body, from servers without support for ranges.

The requests are those of :mod:`penstock.storage.client`.
"""
