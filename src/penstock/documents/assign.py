"""Which sentence an image belongs to: by the data's own index, or by similarity."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from penstock.errors import SampleError

ASSIGN = ("index", "best", "optimal")
Array = np.ndarray[Any, np.dtype[Any]]


def similarity_matrix(value: Any, images: int, texts: int) -> Array:
    """Return the matrix of similarities, an image per row and a text per column.

    One of another shape, or with values that are not finite numbers, is a SampleError.

    >>> similarity_matrix([[0.1, 0.3]], 1, 2).shape
    (1, 2)
    """
    if images == 0:
        return np.zeros((0, texts))
    if value is None:
        raise SampleError(
            "the document has no similarity_matrix to assign its images by; "
            'assign="index" takes matched_text_index'
        )
    try:
        matrix = np.array(value)
    except (TypeError, ValueError, OverflowError):
        matrix = np.zeros(0)
    if matrix.shape != (images, texts):
        raise SampleError(
            f"similarity_matrix has one row per image and one column per text, {images} x {texts} "
            f"here, but it is not of that shape"
        )
    if matrix.dtype.kind not in "fiu" or not np.isfinite(matrix).all():
        raise SampleError("similarity_matrix has values that are not finite numbers")
    return matrix.astype(np.float64, copy=False)


def assign_best(matrix: Array) -> list[tuple[int, float]]:
    """Return the most similar text of each image, and how similar it is.

    >>> assign_best(np.array([[0.1, 0.3], [0.2, 0.2]]))
    [(1, 0.3), (0, 0.2)]
    """
    if matrix.shape[1] == 0:
        return []
    columns = matrix.argmax(axis=1).tolist()
    return [(column, float(matrix[row, column])) for row, column in enumerate(columns)]


def assign_optimal(matrix: Array) -> list[tuple[int, float] | None]:
    """Assign at most one image to each text, so that the sum of similarities is largest.

    None for images that are left without a text because there are more images than texts.

    >>> assign_optimal(np.array([[0.5, 0.4], [0.5, 0.1]]))
    [(1, 0.4), (0, 0.5)]
    """
    rows, columns = matrix.shape
    best = assign_best(matrix)
    if len({column for column, _ in best}) == rows:  # the usual case: each has another best text
        return [*best]
    found: list[tuple[int, float] | None] = [None] * rows
    if rows <= columns:
        pairs = list(enumerate(_shortest_paths(-matrix)))
    else:
        pairs = [(row, column) for column, row in enumerate(_shortest_paths(-matrix.T))]
    for row, column in pairs:
        found[row] = (column, float(matrix[row, column]))
    return found


def _shortest_paths(cost: Array) -> list[int]:
    """Return the column of each row in the cheapest assignment; there are at least as many columns.

    The method of Jonker and Volgenant: rows are added one at a time, each along the cheapest path
    that alternates between free and taken columns.
    """
    rows, columns = cost.shape
    row_price, column_price = np.zeros(rows), np.zeros(columns)
    row_of = np.full(columns, -1)
    for row in range(rows):
        distance = np.full(columns, math.inf)
        before = np.full(columns, -1)  # the column that the path came from
        done = np.zeros(columns, bool)
        at, last, length = row, -1, 0.0
        while True:
            step = length + cost[at] - row_price[at] - column_price
            shorter = ~done & (step < distance)
            distance[shorter], before[shorter] = step[shorter], last
            last = int(np.where(done, math.inf, distance).argmin())
            length = float(distance[last])
            done[last] = True
            if row_of[last] < 0:
                break
            at = int(row_of[last])
        seen = done.copy()
        seen[last] = False
        row_price[row] += length
        row_price[row_of[seen]] += length - distance[seen]
        column_price[seen] -= length - distance[seen]
        while last >= 0:
            previous = int(before[last])
            row_of[last] = row if previous < 0 else row_of[previous]
            last = previous
    column_of = [0] * rows
    for column, taken in enumerate(row_of.tolist()):
        if taken >= 0:
            column_of[taken] = column
    return column_of
