"""Data sets beside the stream: made data to try things on; map-style data sets join them here.

Comes in: nothing, or files. Goes out: samples, as writers take and pipelines give them.
To its left stands everything that moves data; ``cli`` uses it.
"""

from __future__ import annotations

from penstock.datasets.synthetic import SHAPES, WORDS, drawn_images, spoken_tones

__all__ = ["SHAPES", "WORDS", "drawn_images", "spoken_tones"]
