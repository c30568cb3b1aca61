"""What a core tells about itself: for operators, metrics, compaction and autopilot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fedsched.raft.membership import Config


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """Another server, seen from the leader."""

    id: str
    match: int
    next: int
    mode: str
    inflight: int
    inflight_bytes: int
    last_contact_ticks: int
    is_active: bool
    """Heard from since the last quorum check but one."""


@dataclass(frozen=True, slots=True)
class CoreStatus:
    server_id: str
    role: str
    term: int
    leader: str | None
    epoch: int
    commit: int
    applied: int
    last: int
    last_term: int
    durable: int
    first_index: int
    log_bytes: int
    snapshot_index: int
    config: Config
    config_index: int
    leader_contact_ticks: int
    """Ticks since this server heard from its leader; 0 when it leads itself."""
    is_established: bool
    """Leads, and has applied an entry of its own term."""
    uncommitted_bytes: int
    transferring_to: str | None
    digest_disagreement_at: int
    peers: tuple[PeerStatus, ...]
    counters: Mapping[str, int]
