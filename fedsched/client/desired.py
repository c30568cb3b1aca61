"""Decides what a client has to do about its allocations: what servers want against what is here.

Servers send what they want as it changes, and everything at the start of each stream. What comes may be old or come
twice: an allocation is only ever taken in if servers changed it after what is known of it, and one that servers have
forgotten does not come back through a message that was under way at the time. So whatever is lost, doubled or delayed
on the way, a client ends up with what a single look at the servers' state would have told it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from fedsched.model.alloc import Allocation

FORGOTTEN_MAX: Final = 16_384
"""Allocations remembered as forgotten by servers."""


class What(Enum):
    START = "start"
    UPDATE = "update"
    STOP = "stop"
    REMOVE = "remove"
    """Servers have forgotten it: stop it if it runs, then remove all traces."""
    DISMISS = "dismiss"
    """Servers want it to stop, and it never was here: say that it is over."""


@dataclass(frozen=True, slots=True)
class Step:
    what: What
    alloc_id: str
    alloc: Allocation | None = None


@dataclass(slots=True)
class _Known:
    index: int
    """`alloc_modify_index` of what was taken in last."""
    is_stopping: bool = False


class DesiredCore:
    """What one client has been told."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._forgotten: OrderedDict[str, int] = OrderedDict()
        self._whole_index = 0
        self._rest: set[str] | None = None
        """While a whole picture arrives in parts: what was named so far."""
        self.has_whole = False
        """Servers have told everything at least once."""

    def restored(self, alloc: Allocation) -> None:
        """An earlier run of this agent had it."""
        self._known[alloc.id] = _Known(alloc.alloc_modify_index, alloc.is_server_terminal)

    def refused(self, alloc_id: str, index: int) -> None:
        """It could not be constructed here, and servers were told so (or will be): it is not tried again."""
        self._known[alloc_id] = _Known(index, is_stopping=True)

    def gone(self, alloc_id: str) -> None:
        """It is not here any more (collected). Servers may still speak of it."""
        known = self._known.get(alloc_id)
        if known is not None:
            known.is_stopping = True

    def take(
        self,
        index: int,
        allocations: Sequence[Allocation],
        removed: Iterable[str] = (),
        *,
        is_whole: bool = False,
        has_more: bool = False,
    ) -> list[Step]:
        """Heed what servers say; `has_more` is set while a whole picture goes on in the next message."""
        if is_whole:
            if index < self._whole_index:
                return []  # an old picture of everything: a newer one was seen
            self._whole_index = index
            self._rest = set()
        steps = [step for alloc in allocations for step in self._heed(alloc)]
        for alloc_id in removed:
            steps += self._remove(alloc_id, index)
        if self._rest is not None:
            self._rest.update(alloc.id for alloc in allocations)
            if not has_more:
                steps += self._drop_unnamed(self._rest, index)
                self._rest, self.has_whole = None, True
        return steps

    def _heed(self, alloc: Allocation) -> list[Step]:
        if self._forgotten.get(alloc.id, -1) >= alloc.alloc_modify_index:
            return []
        known = self._known.get(alloc.id)
        if known is None:
            return self._meet(alloc)
        if alloc.alloc_modify_index <= known.index:
            return []
        known.index = alloc.alloc_modify_index
        if not alloc.is_server_terminal:
            return [] if known.is_stopping else [Step(What.UPDATE, alloc.id, alloc)]
        known.is_stopping = True
        return [Step(What.STOP, alloc.id, alloc)]

    def _meet(self, alloc: Allocation) -> list[Step]:
        if alloc.is_client_terminal:
            return []  # it ran its course before this agent's memory begins
        self._known[alloc.id] = _Known(alloc.alloc_modify_index, alloc.is_server_terminal)
        return [Step(What.DISMISS if alloc.is_server_terminal else What.START, alloc.id, alloc)]

    def _remove(self, alloc_id: str, index: int) -> list[Step]:
        self._forgotten[alloc_id] = max(index, self._forgotten.pop(alloc_id, -1))
        while len(self._forgotten) > FORGOTTEN_MAX:
            self._forgotten.popitem(last=False)
        return [Step(What.REMOVE, alloc_id)] if self._known.pop(alloc_id, None) is not None else []

    def _drop_unnamed(self, named: set[str], index: int) -> list[Step]:
        gone = sorted(one for one in self._known.keys() - named if self._known[one].index <= index)
        return [step for alloc_id in gone for step in self._remove(alloc_id, index)]
