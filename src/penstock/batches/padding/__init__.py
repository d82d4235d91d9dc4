"""Pads samples of different lengths into one tensor.

``pad`` pads tensors; ``padded_batch`` has ``PaddedBatch``, a collate function that pads all fields.
"""
