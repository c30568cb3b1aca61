"""One call on one link, as one end sees it: who may still send what, and how much of it.

Streams are rows of items, not of bytes: an item arrives whole. Credit counts bytes (and a little for each item), so
what lies unread at a receiver is never more than its window.
"""

from __future__ import annotations

import enum
from collections import deque
from typing import Any, Final

from fedsched.wire.errors import Failure
from fedsched.wire.limits import DATA_OVERHEAD

_NO_ITEMS: Final[deque[bytes]] = deque()


class Flow(enum.IntEnum):
    """Which way a call streams, seen from the caller."""

    NONE = 0
    DOWN = 1
    """From the callee to the caller."""
    UP = 2
    BOTH = 3


class CallState:
    """The state of one call. Only the link core changes it; a runner reads it, and may keep its own in `owner`."""

    __slots__ = (
        "credit",
        "deadline",
        "failure",
        "flow",
        "granted",
        "held_bytes",
        "id",
        "inbox",
        "inbox_bytes",
        "is_live",
        "is_ours",
        "method",
        "owner",
        "peer_may_send",
        "reply",
        "unreturned",
        "we_may_send",
    )

    def __init__(self, call_id: int, method: str, *, is_ours: bool, flow: int, deadline: float) -> None:
        down, up = bool(flow & Flow.DOWN), bool(flow & Flow.UP)
        self.id = call_id
        self.method = method
        self.is_ours = is_ours
        self.flow = Flow(flow)
        self.deadline = deadline
        """In the link's own time; infinity for none."""
        self.is_live = True
        """Frames may still come and go. False exactly once, for good."""
        self.reply: bytes | None = None
        self.failure: Failure | None = None
        self.we_may_send = up if is_ours else down
        self.peer_may_send = down if is_ours else up
        self.credit = 0
        """What we may still send. Never negative."""
        self.granted = 0
        """What the peer may still send. Never negative."""
        self.unreturned = 0
        """Read here, not yet granted again."""
        self.inbox = _NO_ITEMS
        self.inbox_bytes = 0
        self.held_bytes = 0
        """Request bytes charged to the link while this call is served."""
        self.owner: Any = None

    @property
    def has_items(self) -> bool:
        return bool(self.inbox)

    def take(self) -> bytes:
        """The oldest unread item; the caller has looked at `has_items`."""
        item = self.inbox.popleft()
        if not self.inbox:
            self.inbox = _NO_ITEMS  # thousands of streams are idle, and an empty deque takes 760 bytes
        self.inbox_bytes -= cost(item)
        return item

    def put(self, item: bytes) -> None:
        """Keep an item until it is read."""
        if self.inbox is _NO_ITEMS:
            self.inbox = deque()
        self.inbox.append(item)
        self.inbox_bytes += cost(item)


def cost(item: bytes) -> int:
    """What one item takes from the credit."""
    return len(item) + DATA_OVERHEAD
