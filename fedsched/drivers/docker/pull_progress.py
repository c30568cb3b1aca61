"""How far a pull is, in words for people. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from fedsched.drivers.driver import DriverError

LAYERS_MAX: Final = 512
_WAITING: Final = frozenset({"Pulling fs layer", "Waiting"})
_DONE: Final = frozenset({"Pull complete", "Already exists"})
_FINAL: Final = (
    *("not found", "manifest unknown", "access denied", "denied:", "unauthorized", "no such image"),
    *("invalid reference", "does not exist", "no basic auth credentials"),
)


class PullProgress:
    """Layers and their states, as the engine's lines tell."""

    def __init__(self, image: str) -> None:
        self._image = image
        self._states: dict[str, str] = {}
        self._bytes: dict[str, tuple[int, int]] = {}
        self.error = ""

    def feed(self, line: Mapping[str, Any]) -> None:
        problem = line.get("error") or line.get("errorDetail")
        if problem:
            self.error = str(problem.get("message", problem) if isinstance(problem, Mapping) else problem)[:1000]
            return
        layer, status = line.get("id"), line.get("status")
        if not isinstance(layer, str) or not isinstance(status, str):
            return
        if layer not in self._states and len(self._states) >= LAYERS_MAX:
            return
        self._states[layer] = status
        detail = line.get("progressDetail")
        if isinstance(detail, Mapping) and status == "Downloading":
            current, total = detail.get("current"), detail.get("total")
            if isinstance(current, int) and isinstance(total, int):
                self._bytes[layer] = (current, max(current, total))

    def words(self) -> str:
        states = list(self._states.values())
        done = sum(state in _DONE for state in states)
        waiting = sum(state in _WAITING for state in states)
        current = sum(one for one, _ in self._bytes.values())
        total = sum(one for _, one in self._bytes.values())
        moved = f", {current / 1e6:.1f} of {total / 1e6:.1f} MB" if total else ""
        return f"Pulling {self._image}: {done} of {len(states)} layers here, {waiting} waiting{moved}"

    def failure(self) -> DriverError | None:
        """What the engine complained about, if it did: wrong names stay wrong, networks recover."""
        if not self.error:
            return None
        is_final = any(words in self.error.lower() for words in _FINAL)
        return DriverError(
            f"pulling {self._image} failed: {self.error}",
            hint="is the name right, and may this node see the image?" if is_final else "",
            is_recoverable=not is_final,
        )
