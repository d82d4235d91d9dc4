"""Points on two logarithmic axes, as an SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 90, 30, 70, 60
# Apart in lightness too, for those who do not see the colours and for paper.
COLOURS = {"WebDataset": "#c2571a", "penstock, buffer": "#5b8db8", "penstock, index": "#0b3c5d"}


@dataclass
class Point:
    family: str
    x: float
    y: float
    told: str
    """Shown where the mouse rests."""


class Axis:
    """A logarithmic scale from the power of ten below all values to the one above."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)) + 1e-9)
        self.high = math.ceil(math.log10(max(values)) - 1e-9)
        self.begin, self.end = begin, end

    def at(self, value: float) -> float:
        part = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self.begin + part * (self.end - self.begin), 1)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def scatter(points: Sequence[Point]) -> str:
    """Memory to the right, crowding upwards: what is low and left is good."""
    x = Axis([point.x for point in points], LEFT, WIDTH - RIGHT)
    y = Axis([1.0, *(point.y for point in points)], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        *_grid(x, y),
        *_legend({point.family: None for point in points}),
    ]
    for point in points:
        colour = COLOURS.get(point.family, "#777777")
        parts.append(
            f'<circle cx="{x.at(point.x)}" cy="{y.at(max(point.y, 1.0))}" r="6" fill="{colour}" '
            f'stroke="white"><title>{escape(point.told)}</title></circle>'
        )
        parts.append(_label(point, x.at(point.x), y.at(max(point.y, 1.0))))
    return "\n".join([*parts, "</svg>", ""])


def _label(point: Point, x: float, y: float) -> str:
    """What tells a point from the others of its family, beside it."""
    short = point.told.removeprefix(point.family.split(",")[0] + ", ").removeprefix("index, ")
    right = x > WIDTH * 0.75
    place = f'x="{x - 10 if right else x + 10}" y="{y + 4}"'
    anchor = ' text-anchor="end"' if right else ""
    return f'<text {place} font-size="11" fill="#333"{anchor}>{escape(short)}</text>'


def _grid(x: Axis, y: Axis) -> list[str]:
    parts = []
    for tick in x.ticks():
        at = x.at(tick)
        parts.append(f'<path d="M{at} {TOP}V{HEIGHT - BOTTOM}" stroke="#e5e5e5"/>')
        text = f"{tick / 1000:,.0f} GB" if tick >= 1000 else f"{tick:,.0f} MB"
        parts.append(
            f'<text x="{at}" y="{HEIGHT - BOTTOM + 20}" text-anchor="middle">{text}</text>'
        )
    for tick in y.ticks():
        at = y.at(tick)
        parts.append(f'<path d="M{LEFT} {at}H{WIDTH - RIGHT}" stroke="#e5e5e5"/>')
        parts.append(f'<text x="{LEFT - 10}" y="{at + 4}" text-anchor="end">{tick:,.0f} x</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 15}" text-anchor="middle">memory of each process</text>'
    )
    parts.append(
        '<text x="20" y="24" font-weight="bold">Pairs of a batch that are from one shard, '
        "relative to a full permutation (1 x)</text>"
    )
    return parts


def _legend(families: dict[str, None]) -> list[str]:
    parts, at = [], 26
    for family in families:
        colour = COLOURS.get(family, "#777777")
        parts.append(f'<circle cx="{at}" cy="46" r="6" fill="{colour}"/>')
        parts.append(f'<text x="{at + 12}" y="50">{escape(family)}</text>')
        at += 40 + 8 * len(family)
    return parts
