"""The servers of this region as this server knows them: the config's members, and what they told us of themselves."""

from __future__ import annotations

from dataclasses import dataclass, field

from fedsched.model.region import MemberStatus, ServerMember
from fedsched.raft.autopilot import LEFT
from fedsched.raft.runner import RaftRunner
from fedsched.wire.address import split_host_port


@dataclass(frozen=True, slots=True)
class Self:
    """What a server says of itself to others."""

    id: str
    name: str
    address: str
    region: str
    datacenter: str


@dataclass(slots=True)
class Members:
    """Kept by the server; read by endpoints and autopilot."""

    me: Self
    left: dict[str, str] = field(default_factory=dict)
    """Ids of servers that said goodbye, until they are out of the config."""

    def say_goodbye(self, server_id: str) -> None:
        self.left[server_id] = LEFT

    def listed(self, raft: RaftRunner) -> tuple[ServerMember, ...]:
        """Everybody in the config, in the form that `server members` shows."""
        up = raft.transport.links_up()
        leader = raft.role.leader
        members = []
        for server in sorted(raft.core.config.servers, key=lambda one: one.name):
            host, port = split_host_port(server.address, 0)
            is_alive = server.id == self.me.id or up.get(server.id, False)
            status = MemberStatus.LEFT if server.id in self.left else MemberStatus.ALIVE
            tags = {
                "id": server.id,
                "region": self.me.region,
                "dc": self.me.datacenter,
                "role": "fedsched",
                "rpc_addr": host,
                "port": str(port),
                "raft_vsn": "3",
                "build": raft.transport.builds.get(server.id, ""),
                "leader": "true" if server.id == leader else "false",
                "voter": "true" if raft.core.config.is_voter(server.id) else "false",
            }
            members.append(
                ServerMember(
                    name=f"{server.name}.{self.me.region}",
                    addr=host,
                    port=port,
                    tags=tags,
                    status=status if is_alive else MemberStatus.FAILED,
                )
            )
        return tuple(members)
