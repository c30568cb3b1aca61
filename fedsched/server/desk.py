"""What endpoints and leader services work with: one record instead of eight constructor arguments each."""

from __future__ import annotations

from dataclasses import dataclass

from fedsched.env.env import Env
from fedsched.raft.membership import ServerInfo
from fedsched.raft.runner import RaftRunner
from fedsched.server.machine import StateMachine
from fedsched.server.peers import PeerLinks
from fedsched.server.proposals import Proposals
from fedsched.telemetry.log import Logger
from fedsched.telemetry.metrics import Registry


@dataclass(slots=True)
class Desk:
    """One server's means."""

    me: ServerInfo
    region: str
    datacenter: str
    machine: StateMachine
    raft: RaftRunner
    proposals: Proposals
    peers: PeerLinks
    env: Env
    metrics: Registry
    log: Logger
