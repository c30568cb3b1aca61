"""Which images are in use by whom, and when one that nobody uses any more is due for removal. Pure."""

from __future__ import annotations

import math


class ImageHolds:
    """Counts the tasks that hold an image. An image that loses its last holder is due after a delay."""

    def __init__(self, delay_s: float, *, removes: bool = True) -> None:
        self._delay_s = delay_s
        self._removes = removes
        self._holders: dict[str, set[str]] = {}
        self._due: dict[str, float] = {}

    def hold(self, image_id: str, holder: str) -> None:
        """No effect if it holds it already."""
        self._holders.setdefault(image_id, set()).add(holder)
        self._due.pop(image_id, None)

    def release(self, image_id: str, holder: str, now: float) -> None:
        holders = self._holders.get(image_id)
        if holders is None or holder not in holders:
            return
        holders.discard(holder)
        if not holders:
            del self._holders[image_id]
            if self._removes:
                self._due[image_id] = now + self._delay_s

    def is_held(self, image_id: str) -> bool:
        return image_id in self._holders

    def wake_at(self) -> float:
        return min(self._due.values(), default=math.inf)

    def wake(self, now: float) -> list[str]:
        """Images to remove now."""
        due = sorted(image_id for image_id, at in self._due.items() if at <= now)
        for image_id in due:
            del self._due[image_id]
        return due
