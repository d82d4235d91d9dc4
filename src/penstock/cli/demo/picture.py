"""A batch as a picture: a contact sheet in a file, a few images in the terminal."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.half_blocks import append_half_blocks
from penstock.errors import MissingPackage

if TYPE_CHECKING:
    from rich.text import Text


def save_contact_sheet(path: Path, images: Sequence[Any], labels: Sequence[str]) -> None:
    """Write all images into one PNG, eight in a row, each with its label beneath."""
    try:
        from PIL import Image, ImageDraw
    except ImportError as error:
        raise MissingPackage.of("drawing a contact sheet", "pillow", "image") from error
    tile, gap, line, columns = 2 * len(images[0]), 8, 16, 8
    rows = -(-len(images) // columns)
    width = columns * (tile + gap) + gap
    sheet = Image.new("RGB", (width, rows * (tile + line + gap) + gap), "white")
    pen = ImageDraw.Draw(sheet)
    for number, (image, label) in enumerate(zip(images, labels)):
        x = gap + number % columns * (tile + gap)
        y = gap + number // columns * (tile + line + gap)
        sheet.paste(Image.fromarray(image).resize((tile, tile)), (x, y))
        pen.text((x + tile // 2, y + tile + 2), label, fill="black", anchor="ma")
    sheet.save(path)


def in_terminal(images: Sequence[Any], labels: Sequence[str], columns: int | None = None) -> Text:
    """Return the first images as coloured half blocks, in two rows as wide as the terminal."""
    from rich.text import Text

    side, gap = 16, 2
    if columns is None:
        columns = shutil.get_terminal_size().columns
    per_row = max(1, min(8, columns // (side + gap)))
    text = Text(no_wrap=True)
    for start in (0, per_row):
        row = [_small(image, side) for image in images[start : start + per_row]]
        for line in range(0, side if row else 0, 2):
            for image in row:
                append_half_blocks(text, image[line], image[line + 1])
                text.append(" " * gap)
            text.append("\n")
        for label in labels[start : start + len(row)]:
            text.append(label.center(side) + " " * gap, style="dim")
        text.append("\n")
    return text


def _small(image: Any, side: int) -> Any:
    """Return the image scaled to ``side`` x ``side`` pixels, each the mean of those it covers."""
    step = len(image) // side
    cut = image[: step * side, : step * side]
    return cut.reshape(side, step, side, step, 3).mean((1, 3)).astype(int)
