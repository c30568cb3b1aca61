"""Amounts for people: memory and disk in binary units."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("MiB", "GiB", "TiB", "PiB")


def size(mb: float) -> str:
    """Give megabytes as `256 MiB`, `15 GiB`, `1.5 TiB`."""
    value, unit = float(mb), 0
    while value >= 1024 and unit < len(_UNITS) - 1:
        value, unit = value / 1024, unit + 1
    text = f"{value:.1f}".removesuffix(".0") if unit else f"{value:.0f}"
    return f"{text} {_UNITS[unit]}"


def share(part: float, whole: float, unit: str) -> str:
    return f"{part:g}/{whole:g} {unit}"


def size_share(part_mb: float, whole_mb: float) -> str:
    return f"{size(part_mb)}/{size(whole_mb)}"
