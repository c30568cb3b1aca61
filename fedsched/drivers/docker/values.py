"""Reads settings that a schema has accepted: job files say `"true"`, `"512"` and lists of one table where they may."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedsched.drivers.driver import DriverError
from fedsched.model.errors import FedschedError
from fedsched.model.units import parse_duration


class Values:
    """One block of settings. Missing and null are the default."""

    def __init__(self, given: Mapping[str, Any], where: str) -> None:
        self._given = given
        self._where = where

    def has(self, name: str) -> bool:
        return self._given.get(name) is not None

    def text(self, name: str, default: str = "") -> str:
        value = self._given.get(name)
        return default if value is None else _text(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._given.get(name)
        if value is None:
            return default
        if isinstance(value, bool):
            return value
        if value in ("true", "1", 1):
            return True
        if value in ("false", "0", 0):
            return False
        raise self.wrong(name, "true or false")

    def number(self, name: str, default: int = 0, *, least: int | None = None, most: int | None = None) -> int:
        value = self._given.get(name)
        if value is None:
            return default
        try:
            found = int(value)
        except (TypeError, ValueError):
            raise self.wrong(name, "a whole number") from None
        if (least is not None and found < least) or (most is not None and found > most):
            wanted = f"at least {least}" if most is None else f"from {least} to {most}"
            raise self.wrong(name, wanted)
        return found

    def seconds(self, name: str, default: float) -> float:
        value = self._given.get(name)
        if value is None:
            return default
        try:
            found = float(value) if isinstance(value, (int, float)) else parse_duration(value)
        except FedschedError as error:
            raise DriverError(f"{self._where}.{name}: {error.message}", hint=error.hint) from error
        if found < 0:
            raise self.wrong(name, "not below zero")
        return found

    def texts(self, name: str, default: Sequence[str] = ()) -> tuple[str, ...]:
        value = self._given.get(name)
        return tuple(default) if value is None else tuple(_text(one) for one in value)

    def table(self, name: str) -> dict[str, str]:
        """A table of texts, also if it was written as several blocks."""
        value = self._given.get(name)
        tables = [] if value is None else [value] if isinstance(value, Mapping) else value
        return {str(key): _text(one) for table in tables for key, one in table.items()}

    def block(self, name: str) -> Values:
        found = self.blocks(name)
        return found[0] if found else Values({}, f"{self._where}.{name}")

    def blocks(self, name: str) -> list[Values]:
        value = self._given.get(name)
        many = [] if value is None else [value] if isinstance(value, Mapping) else value
        return [Values(one, f"{self._where}.{name}") for one in many]

    def wrong(self, name: str, wanted: str) -> DriverError:
        return DriverError(f"{self._where}.{name} = {self._given.get(name)!r:.80} is wrong: it must be {wanted}")


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
