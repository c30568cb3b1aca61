"""How a run ends badly: the broken invariant, where, and who was involved."""

from __future__ import annotations

import traceback


class Broken(Exception):
    """An invariant does not hold. Ends the run; `number` and `time_us` are filled in by whoever drives it."""

    def __init__(self, invariant: str, what: str, *servers: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what
        self.servers = frozenset(servers)


def broken_in(error: BaseException) -> Broken:
    """The violation in what a run raised; anything else is one too."""
    found: BaseException = error
    while isinstance(found, BaseExceptionGroup):
        inner = found.split(Broken)[0] or found
        found = inner.exceptions[0]
    if isinstance(found, KeyboardInterrupt):
        raise found
    if isinstance(found, Broken):
        return found
    return Broken("nothing crashes", f"{found!r}\n{''.join(traceback.format_exception(found))}")
