"""Formatting of numbers, for people and for JSON."""

from __future__ import annotations

import numpy as np

NOTHING = "-"  # shown for an unknown value


def duration(seconds: float | None) -> str:
    """`0:31`, `1:02:03`, `2d 03:04`; `-` for None and NaN."""
    if seconds is None or not np.isfinite(seconds):
        return NOTHING
    whole = max(0, round(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days}d {hours:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def finite(value: float | None) -> float | None:
    """A number as JSON holds it: None where it is unknown or infinite."""
    return value if value is not None and np.isfinite(value) else None


def count(value: float | None) -> str:
    """A whole number with thousands separated; rates below 100 keep one decimal."""
    if value is None or not np.isfinite(value):
        return NOTHING
    return f"{value:,.1f}" if isinstance(value, float) and abs(value) < 100 else f"{value:,.0f}"


def counted(number: int, noun: str) -> str:
    """A count and what is counted: `1 actor`, `2,000 actors`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def number(value: float | None) -> str:
    """A figure of unknown magnitude in at most nine characters."""
    if value is None or not np.isfinite(value):
        return NOTHING
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-3:
        return f"{value:.2e}"
    for bound, decimals in ((1000, 0), (100, 1), (10, 2), (1, 3)):
        if size >= bound:
            return f"{value:,.{decimals}f}"
    return f"{value:.4f}"


def tenth(value: float | None) -> str:
    """A figure with one decimal, e.g. a return, a lag or milliseconds."""
    return NOTHING if value is None or not np.isfinite(value) else f"{value:,.1f}"


def short(value: float | None) -> str:
    """A large count in three digits: `1.74 M`, `485 k`, `950`."""
    if value is None or not np.isfinite(value):
        return NOTHING
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= 0.9995 * size:
            scaled = value / size
            decimals = 0 if abs(scaled) >= 99.95 else 1 if abs(scaled) >= 9.995 else 2
            return f"{scaled:,.{decimals}f}{unit}"
    return f"{value:,.0f}"
