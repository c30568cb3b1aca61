"""How blocking calls leave the event loop: in production a worker thread, in simulation a pause in virtual time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import trio

T = TypeVar("T")


class InThread(Protocol):
    """The part of `trio.to_thread.run_sync` that we use; that function itself is the usual one."""

    async def __call__(
        self,
        sync_fn: Callable[..., T],
        /,
        *args: Any,
        abandon_on_cancel: bool = False,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        """Call `sync_fn` where it may block. Cancelling waits for it, unless it is to be abandoned."""


in_thread: InThread = trio.to_thread.run_sync
