"""Batches of similar length from a stream, by a buffer.

``bucketed`` has the stages, ``length_buffer`` the buffer sorted by length, and ``pivot_window``
chooses a batch from it.
"""
