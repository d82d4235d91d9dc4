"""HTML for notebooks: a small table of escaped text, without scripts and colours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ROWS = 20
"""Maximum number of rows shown; one more row counts the others."""
CHARACTERS = 200


def html_table(
    caption: str, header: Sequence[str], rows: Iterable[Sequence[str]], notes: Sequence[str] = ()
) -> str:
    """Return a table for ``_repr_html_``. All text is escaped, and shortened if it is long.

    >>> html_table("<b>", ["n"], [["1"]])
    '<table><caption>&lt;b&gt;</caption><tr><th>n</th></tr><tr><td>1</td></tr></table>'
    """
    all_rows = list(rows)
    shown = all_rows[:ROWS]
    if more := len(all_rows) - len(shown):
        shown = [*shown, [f"… and {more:,} more"]]
    lines = [_format_row("th", header), *(_format_row("td", row) for row in shown)]
    texts = "".join(f"<div>{_escape(note)}</div>" for note in notes)
    return f"<table><caption>{_escape(caption)}</caption>{''.join(lines)}</table>{texts}"


def _format_row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{_escape(cell)}</{tag}>' for cell in cells)}</tr>"


def _escape(text: str) -> str:
    import html

    text = text if len(text) <= CHARACTERS else text[: CHARACTERS - 1] + "…"
    return html.escape(text)
