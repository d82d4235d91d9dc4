"""Copies batches to the device ahead of the training step.

``to_device`` is the iterator around a loader; ``device_copy`` copies one batch and converts it.
"""
