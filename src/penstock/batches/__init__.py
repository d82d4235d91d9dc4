"""Turns samples into batches, and batches back into samples.

Samples come from :mod:`penstock.stages`; batches go to :mod:`penstock.pipeline` and
:mod:`penstock.loaders`.

    collate batched     stack values; batches of a fixed size, and taking batches apart
    lengths             measure samples, and check that a length is one
    padding             pad values of different lengths into one tensor
    bucketing packing   batches of similar length, and rows of several samples, on a stream
    planning            batches of similar length, planned from an index before reading
    analysis            reports on padding, memory and shuffling
    number_format       numbers in reports and messages
"""
