"""Many samples into one batch, and back.

In come samples (from :mod:`penstock.stages`), out go batches (to :mod:`penstock.pipeline`
and :mod:`penstock.loaders`). ``collate`` says how values become arrays, ``padding`` and ``padded``
how those of any length do; ``fixed`` has the stages for batches of a fixed size, ``bucketed``
and ``packing`` those for samples of any length on a stream.
"""
