"""Pictures in a terminal: one character for two pixels, one above the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from penstock.errors import DecodingError, parsing

if TYPE_CHECKING:
    from rich.text import Text

SHADES = " .:-=+*#%@"


def append_half_blocks(text: Text, upper: Any, lower: Any) -> None:
    """Append one line of characters for two lines of pixels."""
    for above, below in zip(upper, lower):
        text.append("▀", style=f"{_rgb(above)} on {_rgb(below)}")


def _rgb(pixel: Any) -> str:
    return "#{:02x}{:02x}{:02x}".format(*(int(value) for value in pixel))


def draw_picture(data: bytes, columns: int, lines: int, *, colour: bool = True) -> Text:
    """Return the picture in up to ``columns`` by ``lines`` characters; in shades without colour."""
    import numpy as np
    from rich.text import Text

    from penstock.codecs.images import decode_image

    with parsing(DecodingError):
        picture = decode_image(data, "pilrgb")
    scale = min(columns / picture.width, 2 * lines / picture.height, 1)
    width = max(round(picture.width * scale), 1)
    height = max(2 * round(picture.height * scale / 2), 2)
    pixels = np.asarray(picture.resize((width, height)))
    text = Text(no_wrap=True)
    for line in range(0, height, 2):
        if colour:
            append_half_blocks(text, pixels[line].tolist(), pixels[line + 1].tolist())
        else:
            light = pixels[line : line + 2].mean((0, 2)) / 256 * len(SHADES)
            text.append("".join(SHADES[int(value)] for value in light))
        text.append("\n")
    return text


def print_picture(data: bytes) -> None:
    """Print the picture at the size of the terminal; shades where ``NO_COLOR`` is set."""
    from rich.console import Console

    console = Console()
    colour = not console.no_color and console.color_system is not None
    lines = max(min(console.height - 8, 40), 4)
    drawn = draw_picture(data, min(console.width, 120), lines, colour=colour)
    console.print(drawn, end="")
