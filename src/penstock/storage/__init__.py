"""Read and write the bytes of a URL.

A URL comes in; a stream of bytes comes out, from which :mod:`penstock.shards` reads samples or to
which it writes them. A written object appears under its name only when it is complete, and data
that ends early is an error, never a short shard.

- ``schemes``: the table of schemes and ``open_url``; ``streams``: what every stream can do;
  ``listing``: remote patterns (``s3://bucket/*.tar``); ``small_files``: files that are read and
  written whole; ``replaced_inputs``: an output never replaces an input.
- ``urls``: from the user's string to a list of URLs.
- ``local``: files, pipes, standard input and output.
- ``objects``: one module for each kind of remote store, and how an object is opened.
- ``client``: HTTP requests with deadlines, retries and checksums.
- ``readers``: a remote object as a file.
- ``auth``: credentials, signatures and tokens.
- ``cache``: remote shards kept on the local disk.
"""

from __future__ import annotations

import os

from penstock.storage.local.files import AtomicFile, MissingFile
from penstock.storage.schemes import SCHEMES, Opener, gopen, gopen_schemes, open_url
from penstock.storage.streams import ReadStream, WriteStream

__all__ = [
    "SCHEMES",
    "AtomicFile",
    "MissingFile",
    "Opener",
    "ReadStream",
    "WriteStream",
    "gopen",
    "gopen_schemes",
    "open_url",
]

# Former paths of modules, such as ``penstock.storage.patience``, still resolve.
__path__.append(os.path.join(os.path.dirname(__file__), "..", "compat", "moved", "storage"))
