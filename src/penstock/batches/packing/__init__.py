"""Packs several short samples into one row, on a stream or by a plan.

``packed`` is the stage for streams, with ``bin_packing``, which chooses the samples of a row;
``packing_plan`` plans the rows from known lengths.
"""
