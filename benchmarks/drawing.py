"""Draw points on two logarithmic axes, as an SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 600, 520  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 90, 30, 70, 60
# Different lightness too, for colour-blind readers and for print.
COLOURS = {"WebDataset": "#c2571a", "penstock, buffer": "#5b8db8", "penstock, index": "#0b3c5d"}


@dataclass
class Series:
    """Points of one configuration, as a parameter grows."""

    family: str
    label: str
    points: list[tuple[float, float]]


class Axis:
    """A logarithmic axis from the power of ten below all values to the one above."""

    def __init__(self, values: Sequence[float], begin: float, end: float) -> None:
        self.low = math.floor(math.log10(min(values)) + 1e-9)
        self.high = math.ceil(math.log10(max(values)) - 1e-9)
        self.begin, self.end = begin, end

    def at(self, value: float) -> float:
        part = (math.log10(value) - self.low) / (self.high - self.low)
        return round(self.begin + part * (self.end - self.begin), 1)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self.low, self.high + 1)]


def scatter(panels: dict[str, list[Series]]) -> str:
    """Draw a panel per title: memory on x, same-shard pairs on y; low and left is better."""
    several = [series for panel in panels.values() for series in panel]
    x = Axis([point[0] for series in several for point in series.points], LEFT, WIDTH - RIGHT)
    y = Axis([1.0, *(p[1] for series in several for p in series.points)], HEIGHT - BOTTOM, TOP)
    width = WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
        *_legend({series.family: None for series in several}),
    ]
    for number, (title, panel) in enumerate(panels.items()):
        parts.append(f'<g transform="translate({number * WIDTH} 0)">')
        parts += [*_grid(x, y, title), *(line for s in panel for line in _drawn(s, x, y)), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _drawn(series: Series, x: Axis, y: Axis) -> list[str]:
    colour = COLOURS[series.family]
    places = [(x.at(right), y.at(max(up, 1.0))) for right, up in series.points]
    line = "L".join(f"{across} {down}" for across, down in places)
    return [
        f'<path d="M{line}" fill="none" stroke="{colour}" stroke-dasharray="3 3"/>',
        *(f'<circle cx="{a}" cy="{d}" r="5" fill="{colour}"/>' for a, d in places),
        _label(series.label, *places[-1]),
    ]


def _label(text: str, x: float, y: float) -> str:
    """Label the last point of a series, on the side with more space."""
    right = x > WIDTH * 0.7
    place = f'x="{x - 10 if right else x + 10}" y="{y - 9}"'
    anchor = ' text-anchor="end"' if right else ""
    return f'<text {place} font-size="12"{anchor}>{escape(text)}</text>'


def _grid(x: Axis, y: Axis, title: str) -> list[str]:
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
    parts.append(f'<text x="{LEFT}" y="{TOP - 26}" font-weight="bold">{escape(title)}</text>')
    return parts


def _legend(families: dict[str, None]) -> list[str]:
    parts, at = [], 26
    for family in families:
        colour = COLOURS[family]
        parts.append(f'<circle cx="{at}" cy="18" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{at + 12}" y="22">{escape(family)}</text>')
        at += 40 + 8 * len(family)
    return parts
