"""What a server is told by the agent that owns it; plain values, so that this package knows no configuration file."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedsched.gossip.profiles import FED, Profile
from fedsched.raft.autopilot import AutopilotSettings
from fedsched.raft.compaction import CompactionSettings
from fedsched.raft.datadir import BALLAST_BYTES, SpaceLimits
from fedsched.server.leader.rejections import RejectionSettings
from fedsched.server.tls import TlsContexts


@dataclass(frozen=True, slots=True)
class GossipOptions:
    """How this server takes part."""

    host: str = "127.0.0.1"
    port: int = 0
    advertise: str = ""
    join: tuple[str, ...] = ()
    """Gossip addresses of servers of any region."""
    maybe: tuple[str, ...] = ()
    """Addresses of servers of this region, of which nobody said whether gossip is there: tried, and not missed."""
    retry_max: int = 0
    """Attempts to enter the pool before giving up; 0: never."""
    keys: tuple[bytes, ...] = ()
    profile: Profile = FED

    @property
    def is_safe(self) -> bool:
        """Sealed, or only to be heard on this machine."""
        return bool(self.keys) or is_loopback_host(self.host)


def is_loopback_host(host: str) -> bool:
    """Whether only this machine hears what is said there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"  # any other name may lead anywhere


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """One server of one region."""

    name: str
    region: str
    datacenter: str
    data_dir: Path
    rpc_host: str = "127.0.0.1"
    rpc_port: int = 0
    """0: any free port; where it is, is known once the server runs."""
    advertise: str = ""
    """host:port that others dial; empty: where we listen."""
    bootstrap_expect: int = 1
    join: tuple[str, ...] = ()
    join_interval_s: float = 1.0
    join_attempts_max: int = 0
    peer_address_overrides: Mapping[str, str] = field(default_factory=dict)
    raft_multiplier: float = 1.0
    compaction: CompactionSettings = field(default_factory=CompactionSettings)
    autopilot: AutopilotSettings = field(default_factory=AutopilotSettings)
    ballast_bytes: int = BALLAST_BYTES
    space_limits: SpaceLimits = field(default_factory=SpaceLimits)
    tls: TlsContexts | None = None
    num_schedulers: int = 8
    """Evaluations that this server works on at once. A worker mostly waits for commits: more than there are cores."""
    enabled_schedulers: tuple[str, ...] = ()
    """Job types that workers here take; empty: all that come with fedsched."""
    rejections: RejectionSettings = field(default_factory=RejectionSettings)
    gossip: GossipOptions | None = None
    """None: this server knows its own region only."""
    connections_max: int = 1024
    """On the server port, from everybody together."""
    connections_per_host_max: int = 100
    handshake_s: float = 5.0
