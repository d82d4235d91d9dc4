"""Buffers that are reused instead of allocated for every sample or batch.

Callers request memory of some shape or size and get an array or a buffer; it returns to its pool
when the last reference to it is gone. The first package in import order: all others may use it.

- ``scratch``: a thread's temporary buffers, and memory straight from the system.
- ``output``: ``empty()``, from which a transform gets the array it writes its result to.
- ``batch_buffers``: batches whose rows are filled by the samples directly.
- ``shared_blocks``: memory that a worker lends to the trainer's process.
- ``freed_memory``: worker processes that keep freed memory.
"""
