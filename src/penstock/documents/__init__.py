"""Interleaved image-text documents, in the layouts that tar shards hold them in.

In come raw samples (:mod:`penstock.stages`); out go :class:`Document` objects: text and image
pieces in reading order, with the images still encoded::

    pieces.py        Document, TextPiece, ImagePiece
    layouts.py       the JSON of each layout → texts, images and where each image goes
    assign.py        which sentence an image belongs to
    stage.py         documents: the stage, with its filters
    batching.py      counts and collate
    interleaved.py   interleaved_to_dict: samples as dicts of the fields that match
    convert.py       from MMC4's JSONL and image folder, and between layouts
"""

from __future__ import annotations

from penstock.documents.batching import Counts, collate, counts
from penstock.documents.convert import convert
from penstock.documents.interleaved import interleaved_to_dict
from penstock.documents.layouts import LAYOUTS
from penstock.documents.pieces import Document, ImagePiece, TextPiece
from penstock.documents.stage import documents

__all__ = [
    "LAYOUTS",
    "Counts",
    "Document",
    "ImagePiece",
    "TextPiece",
    "collate",
    "convert",
    "counts",
    "documents",
    "interleaved_to_dict",
]
