"""Draws lengths and batches: SVG for a page, bars of characters for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from penstock.batches.number_format import figure

if TYPE_CHECKING:
    from penstock.batches.analysis.padding_report import PaddingReport

WIDTH, HEIGHT = 460, 300  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 60, 20, 44, 46
# They also differ in lightness, for colour-blind readers and for paper.
DARK, PALE = "#0b3c5d", "#c9d7e3"
BINS = 40
EIGHTHS = " ▏▎▍▌▋▊▉█"

Values = Sequence[float] | np.ndarray[Any, np.dtype[Any]]


def report_svg(report: PaddingReport) -> str:
    """Return an SVG with two panels: lengths of samples, and how full batches are.

    >>> from penstock.batches.analysis.padding_report import padding_report
    >>> padding_report([[0, 1], [2]], [1, 2, 3], 4).to_svg().startswith("<svg")
    True
    """
    batches: Values = report.costs
    what = "cost of a batch"
    if report.budget:
        batches, what = report.costs / report.budget * 100, "fill of the budget, %"
    title = f"{report.batches:,} batches, {report.padding:.1%} padding"
    panels = [_bins("Lengths", report.lengths, "length"), _bins(title, batches, what)]
    return _page(panels, report.name)


def schemes_svg(reports: Sequence[PaddingReport]) -> str:
    """Return an SVG with the lengths of samples, and padding and batches of each scheme.

    >>> from penstock.batches.analysis.padding_report import padding_report
    >>> reports = [padding_report([[0, 1]], [1, 2], 4, name="all at once")]
    >>> "all at once" in schemes_svg(reports)
    True
    """
    padding = {report.name: 100 * report.padding for report in reports}
    batches = {report.name: float(report.batches) for report in reports}
    panels = [
        _bins("Lengths", reports[0].lengths, "length"),
        _bars("Padding, % of the batches", padding, "{:.1f}"),
        _bars("Batches in an epoch", batches, "{:,.0f}"),
    ]
    return _page(panels, "")


def histogram(values: Values, *, rows: int = 16, width: int = 48) -> list[str]:
    """Return the lines of a bar chart of characters: the number of values between bounds.

    >>> for line in histogram([1, 2, 2, 3, 9], rows=2, width=8): print(line)
    1 to 5  ████████ 4
    5 to 9  ██       1
    """
    counts, edges = np.histogram(np.asarray(values, np.float64), bins=rows)
    bounds = [figure(edge, 4) for edge in edges]
    wide = max(map(len, bounds))
    most = max(int(counts.max()), 1)
    lines = []
    for low, high, count in zip(bounds, bounds[1:], counts.tolist()):
        eighths = round(8 * width * count / most)
        bar = EIGHTHS[8] * (eighths // 8) + EIGHTHS[eighths % 8].strip()
        lines.append(f"{low:>{wide}} to {high:>{wide}}  {bar:<{width}} {count:,}")
    return lines


def _page(panels: list[list[str]], title: str) -> str:
    width = WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        f"<title>{escape(title)}</title>" if title else "",
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate({number * WIDTH} 0)">', *panel, "</g>"]
    return "\n".join([*filter(None, parts), "</svg>", ""])


def _bins(title: str, values: Values, what: str) -> list[str]:
    counts, edges = np.histogram(np.asarray(values, np.float64), bins=BINS)
    most, floor = max(int(counts.max()), 1), HEIGHT - BOTTOM
    wide = (WIDTH - LEFT - RIGHT) / BINS
    parts = [_text(LEFT, 24, title, weight="bold")]
    for share in (0.0, 0.5, 1.0):
        up = round(floor - share * (floor - TOP), 1)
        parts.append(f'<path d="M{LEFT} {up}H{WIDTH - RIGHT}" stroke="#e5e5e5"/>')
        parts.append(_text(LEFT - 8, up + 4, figure(share * most, 4), anchor="end"))
        at = LEFT + share * (WIDTH - LEFT - RIGHT)
        edge = edges[0] + share * (edges[-1] - edges[0])
        parts.append(_text(at, floor + 18, figure(edge, 4), anchor="middle"))
    for number, count in enumerate(counts.tolist()):
        tall = round(count / most * (floor - TOP), 1)
        at, top = round(LEFT + number * wide, 1), round(floor - tall, 1)
        parts.append(
            f'<rect x="{at}" y="{top}" width="{wide - 1:.1f}" height="{tall}" fill="{DARK}"/>'
        )
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, what, anchor="middle"))
    return parts


def _bars(title: str, values: dict[str, float], form: str) -> list[str]:
    most = max(max(values.values()), 1e-9)
    tall = min(40.0, (HEIGHT - TOP - BOTTOM) / len(values))
    widest = WIDTH - LEFT - 130
    parts = [_text(20, 24, title, weight="bold")]
    for number, (name, value) in enumerate(values.items()):
        down = TOP + number * tall
        wide = round(widest * value / most, 1)
        box = f'x="120" y="{down + 4:.1f}" height="{tall - 8:.1f}"'
        parts += [
            f'<rect {box} width="{widest}" fill="{PALE}" opacity="0.4"/>',
            f'<rect {box} width="{wide}" fill="{DARK}"/>',
            _text(112, down + tall / 2 + 4, name, anchor="end"),
            _text(126 + widest, down + tall / 2 + 4, form.format(value)),
        ]
    return parts


def _text(x: float, y: float, text: str, *, anchor: str = "", weight: str = "") -> str:
    more = (f' text-anchor="{anchor}"' if anchor else "") + (
        f' font-weight="{weight}"' if weight else ""
    )
    return f'<text x="{round(x, 1)}" y="{round(y, 1)}"{more}>{escape(text)}</text>'
