"""Remote stores, one module for each kind.

Each has a :class:`~penstock.storage.client.store.Store`, which turns URLs into signed requests, a
writer, and an opener that :data:`penstock.storage.schemes.SCHEMES` names.

- ``http``, ``s3`` with ``s3_multipart``, ``gcs``, ``azure``, ``huggingface``, ``aistore``;
  ``fsspec`` for all other schemes.
- ``open_object``: from a store and a URL to a stream; ``spooled_writer``: for stores that take an
  object only as a whole.
"""
