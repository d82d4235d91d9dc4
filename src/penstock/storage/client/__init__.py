"""HTTP requests with deadlines, retries and checksums.

A :class:`~penstock.storage.client.store.Store` turns a URL into signed requests; this package sends
them and returns bytes that have been checked. :mod:`penstock.storage.objects` has the stores,
:mod:`penstock.storage.readers` the files that are read through it.

- ``store``: the interface of a store; ``retrying``: requests that are retried; ``retry_policy``:
  the limits of that.
- ``transport``: one request, sent once; ``response``: its response; ``deadlines``: connections
  that cannot block forever; ``fork_safety``: no fork while a thread is in the TLS library.
- ``checksums``: checksums of whole objects.
"""
