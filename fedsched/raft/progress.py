"""What a leader knows about one other server's log, and how much it may send there.

Three modes. PROBE: the match is not known; one message per heartbeat until a reply says where the logs part.
REPLICATE: messages follow each other without waiting, up to a window of messages and bytes. SNAPSHOT: the log no longer
reaches back to the follower; only heartbeats until it reports how fetching went.
"""

from __future__ import annotations

from collections import deque
from enum import Enum

from fedsched.raft.messages import SnapshotMeta


class Mode(Enum):
    PROBE = "probe"
    REPLICATE = "replicate"
    SNAPSHOT = "snapshot"


class Progress:
    """One follower or learner, seen from the leader."""

    __slots__ = (
        "_inflight",
        "commit_told",
        "departs_at",
        "inflight_bytes",
        "is_active",
        "is_paused",
        "last_contact",
        "match",
        "mode",
        "next",
        "offered",
        "offered_at",
        "poked",
        "round",
        "server_id",
    )

    def __init__(self, server_id: str, next_index: int, now: int) -> None:
        self.server_id = server_id
        self.match = 0
        """The highest index it is known to hold durably; never more than what it verified."""
        self.next = next_index
        self.mode = Mode.PROBE
        self.is_paused = False
        """In PROBE: a probe is out; wait for a reply or the next heartbeat."""
        self.poked = False
        """Send one message even if there is nothing new: it finds out whether something on the way got lost."""
        self.is_active = True
        """Heard from since the last quorum check. A new one gets the benefit of the doubt once."""
        self.last_contact = now
        self.commit_told = 0
        self.round = 0
        """The newest heartbeat round it has answered."""
        self.offered: SnapshotMeta | None = None
        self.offered_at = 0
        self.departs_at = 0
        """Not 0: it left the config and is only told about that, until this tick at the latest."""
        self._inflight: deque[tuple[int, int]] = deque()
        self.inflight_bytes = 0

    @property
    def inflight(self) -> int:
        return len(self._inflight)

    def heard(self, now: int) -> None:
        self.is_active = True
        self.last_contact = now

    def sent(self, last_index: int, size: int) -> None:
        """A message with records up to `last_index` left in REPLICATE mode."""
        self._inflight.append((last_index, size))
        self.inflight_bytes += size
        self.next = last_index + 1

    def has_room(self, messages: int, size: int) -> bool:
        return len(self._inflight) < messages and self.inflight_bytes < size

    def acknowledged(self, index: int) -> bool:
        """It verified everything up to `index`; True if that was news."""
        inflight = self._inflight
        while inflight and inflight[0][0] <= index:
            self.inflight_bytes -= inflight.popleft()[1]
        if index > self.match:
            self.match = index
            if index >= self.next:
                self.next = index + 1
            self.is_paused = False
            return True
        return False

    def replicate(self) -> None:
        self._restart(Mode.REPLICATE, self.match + 1)

    def probe(self) -> None:
        """Something may have been lost; find out from the last certain place on."""
        self._restart(Mode.PROBE, self.match + 1)

    def probe_from(self, next_index: int) -> None:
        self._restart(Mode.PROBE, next_index)

    def offer(self, meta: SnapshotMeta, now: int) -> None:
        self._restart(Mode.SNAPSHOT, self.next)
        self.offered = meta
        self.offered_at = now

    def _restart(self, mode: Mode, next_index: int) -> None:
        self.mode = mode
        self.next = next_index
        self.is_paused = False
        self.offered = None
        self._inflight.clear()
        self.inflight_bytes = 0
