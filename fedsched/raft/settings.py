"""The core's numbers. Time is counted in ticks; only the runner knows how long one is (50 ms unless scaled)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """Limits and time-outs of one core; equal on all servers of a region, though nothing breaks if they differ."""

    heartbeat_ticks: int = 2
    """100 ms: ten heartbeats may be lost before anybody thinks of an election."""
    election_ticks: int = 20
    """One second. Time-outs are drawn from [this, twice this); also the lease of a live leader against campaigns, the
    period of the leader's quorum check, and how long a leadership transfer may take."""
    message_bytes: int = 256 * 1024
    """Records per append message; one larger record travels alone. Longer messages would delay heartbeats."""
    window_messages: int = 64
    window_bytes: int = 4 * 1024 * 1024
    """What may be on its way to one follower. A slow one then costs this much memory, not the whole backlog."""
    uncommitted_bytes: int = 64 * 1024 * 1024
    """Beyond this a leader answers "busy": a cut-off leader must not fill its memory with what it cannot commit."""
    waiting_reads: int = 65_536
    """Reads that wait for a leader's word; more are answered with "ask again"."""
    flap_losses: int = 3
    flap_window_ticks: int = 1_200
    """So many lost leaderships in so many ticks (a minute), and the server stands back for as long again."""

    def __post_init__(self) -> None:
        if not 1 <= self.heartbeat_ticks < self.election_ticks:
            raise ValueError(f"heartbeat of {self.heartbeat_ticks} ticks, election time-out of {self.election_ticks}")
