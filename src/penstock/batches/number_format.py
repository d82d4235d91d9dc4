"""Formats numbers for reports and messages, without exponents."""

from __future__ import annotations


def figure(value: float, digits: int = 6) -> str:
    """Format a number with ``digits`` significant digits, never rounding before the point.

    >>> figure(11590.4, 4), figure(60_911_123.0), figure(0.0123456, 3), figure(9999.6, 4)
    ('11,590', '60,911,123', '0.0123', '10,000')
    """
    text = f"{value:,.{digits}g}"
    return f"{value:,.0f}" if "e+" in text else text
