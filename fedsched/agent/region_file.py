"""Region files: one TOML file per region says which servers it has. `fedsched dev` boots all it finds in `regions/`.

    name = "eu"
    datacenter = "dc1"

    [[servers]]
    name = "eu-1"
    ports = { http = 4646, rpc = 4647, serf = 4648 }

    [[clients]]
    name = "eu-node-1"
    node_class = "small"

Ports may be left out: the system then chooses free ones.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any, Final

from fedsched.agent.config import AgentConfig, Ports, ServerJoin, ServerSettings, TlsSettings
from fedsched.agent.config_client import NO_TEXTS, ClientSection
from fedsched.agent.settings import BadSetting, build, check_table, setting
from fedsched.env.ports import free_ports

FILE_BYTES_MAX: Final = 256 * 1024
SERVERS_MAX: Final = 9
"""More voters make every write slower and protect against nothing that nine do not."""
CLIENTS_MAX: Final = 16
"""All of them run on this one machine."""
DYNAMIC_PORTS: Final = 20_000
PORTS_EACH: Final = 750
"""Clients of one machine would otherwise give the same port to two tasks."""

_ANY: Final = Ports(http=0, rpc=0, serf=0)


@dataclass(frozen=True)
class RegionServer:
    """One server of a region."""

    name: str = setting("", "unique name of the server in its region")
    ports: Ports = setting(_ANY, "ports to listen on; left out or 0 means any free one")  # noqa: RUF009 (a frozen section)


@dataclass(frozen=True)
class RegionClient:
    """One client agent of a region, on the same machine as all the others."""

    name: str = setting("", "unique name of the client in its region")
    http: int = setting(0, "port of its HTTP API; left out or 0 means any free one", low=0, high=65535)
    node_class: str = setting("", "class of the node, for constraints")
    node_pool: str = setting("default", "pool the node belongs to")
    meta: Mapping[str, str] = setting(NO_TEXTS, "labels of the node")


@dataclass(frozen=True)
class _RegionHead:
    """What a region file says besides its servers."""

    name: str = setting("", "name of the region")
    datacenter: str = setting("dc1", "datacenter label of its servers")
    bind_addr: str = setting("127.0.0.1", "address its servers listen on")
    tls: TlsSettings = setting(TlsSettings(), "certificates of its servers")  # noqa: RUF009 (a frozen section)


@dataclass(frozen=True)
class RegionFile:
    """A region as its file describes it."""

    name: str
    datacenter: str
    bind_addr: str
    tls: TlsSettings
    servers: tuple[RegionServer, ...]
    clients: tuple[RegionClient, ...] = ()

    def agent_config(
        self, server: RegionServer, data_root: str | Path, join: tuple[str, ...] = (), wan: tuple[str, ...] = ()
    ) -> AgentConfig:
        """Give one server's settings. It joins `join`, or else those of the others whose ports are fixed; `wan` are
        gossip addresses of servers of all regions."""
        others = join or tuple(
            f"{self.bind_addr}:{other.ports.rpc}" for other in self.servers if other is not server and other.ports.rpc
        )
        return AgentConfig(
            name=server.name,
            region=self.name,
            datacenter=self.datacenter,
            data_dir=str(Path(data_root) / self.name / server.name),
            bind_addr=self.bind_addr,
            ports=server.ports,
            tls=self.tls,
            server=ServerSettings(
                enabled=True,
                bootstrap_expect=len(self.servers),
                server_join=ServerJoin(retry_join=others, retry_join_wan=wan, retry_interval_s=1.0),
                ballast_size_bytes=0,
            ),
        )

    def client_config(self, client: RegionClient, data_root: str | Path, number: int = 0) -> AgentConfig:
        """Give one client's settings; `number` tells it from the other clients of this machine.

        Its servers must have ports by now. It is a node of its own although it shares the host: neither its id nor the
        ports it gives to tasks are the host's alone.
        """
        first_port = DYNAMIC_PORTS + number * PORTS_EACH
        return AgentConfig(
            name=client.name,
            region=self.name,
            datacenter=self.datacenter,
            data_dir=str(Path(data_root) / self.name / client.name),
            bind_addr=self.bind_addr,
            ports=replace(_ANY, http=client.http),
            tls=self.tls,
            client=ClientSection(
                enabled=True,
                servers=tuple(f"{self.bind_addr}:{server.ports.rpc}" for server in self.servers),
                node_class=client.node_class,
                node_pool=client.node_pool,
                meta=client.meta,
                no_host_uuid=True,
                min_dynamic_port=first_port,
                max_dynamic_port=first_port + PORTS_EACH - 1,
            ),
        )

    def on_any_ports(self) -> RegionFile:
        """Give the same region with free ports everywhere, for tests and for a second copy beside a running one."""
        return replace(
            self,
            servers=tuple(replace(server, ports=_ANY) for server in self.servers),
            clients=tuple(replace(client, http=0) for client in self.clients),
        )


def read_region(path: str | Path) -> RegionFile:
    """Read one region file; raises `BadSetting` naming the file, the key and the value."""
    file = Path(path)
    table = _table_of(file)
    servers, clients = _tables_of(file, table, "servers"), _tables_of(file, table, "clients")
    head = build(_RegionHead, check_table(_RegionHead, table, str(file)))
    found = tuple(
        build(RegionServer, _server_values(one, f"{file}", f"servers[{number}].")) for number, one in enumerate(servers)
    )
    nodes = tuple(
        build(RegionClient, check_table(RegionClient, one, f"{file}", f"clients[{number}]."))
        for number, one in enumerate(clients)
    )
    _check(file, head, found, nodes)
    return RegionFile(head.name, head.datacenter, head.bind_addr, head.tls, found, nodes)


def read_regions(directory: str | Path) -> tuple[RegionFile, ...]:
    """Read every region file of a directory, by file name; two files must not claim the same region or port."""
    files = sorted(file for file in Path(directory).glob("*.toml") if file.is_file())
    if not files:
        raise BadSetting(f"{directory}: no region files", hint="a region file is a *.toml with a name and [[servers]]")
    regions = tuple(read_region(file) for file in files)
    names: dict[str, Path] = {}
    ports: dict[tuple[str, int], str] = {}
    for file, region in zip(files, regions, strict=True):
        first = names.setdefault(region.name, file)
        if first is not file:
            raise BadSetting(f"{file}: region {region.name} is already described by {first}", hint="rename one of them")
        for server in region.servers:
            for service in ("http", "rpc", "serf"):
                port = getattr(server.ports, service)
                _check_port(file, region.bind_addr, f"{server.name} {service}", port, ports)
        for client in region.clients:
            _check_port(file, region.bind_addr, f"{client.name} http", client.http, ports)
    return regions


def configs_of(regions: Sequence[RegionFile], data_root: str) -> tuple[list[AgentConfig], list[AgentConfig]]:
    """The settings of all servers and of all clients of these regions, as one federation on this machine. Ports that
    the files leave open are chosen here, so that agents can name each other."""
    chosen = [with_ports_chosen(region) for region in regions]
    wan = tuple(f"{region.bind_addr}:{region.servers[0].ports.serf}" for region in chosen)
    servers = [region.agent_config(server, Path(data_root), wan=wan) for region in chosen for server in region.servers]
    numbers = count()
    clients = [
        region.client_config(client, Path(data_root), next(numbers)) for region in chosen for client in region.clients
    ]
    return servers, clients


def with_ports_chosen(region: RegionFile) -> RegionFile:
    """The region with a free port wherever its file names none."""
    spare = iter(free_ports(3 * len(region.servers) + len(region.clients), region.bind_addr))

    def filled(ports: Ports) -> Ports:
        return Ports(http=ports.http or next(spare), rpc=ports.rpc or next(spare), serf=ports.serf or next(spare))

    return replace(
        region,
        servers=tuple(replace(one, ports=filled(one.ports)) for one in region.servers),
        clients=tuple(replace(one, http=one.http or next(spare)) for one in region.clients),
    )


def _tables_of(file: Path, table: dict[str, Any], name: str) -> list[Mapping[str, Any]]:
    found = table.pop(name, [])
    if not isinstance(found, list) or not all(isinstance(one, Mapping) for one in found):
        what = name.removesuffix("s")
        raise BadSetting(f"{file}: {name} is not a list of tables", hint=f"begin each {what} with [[{name}]]")
    return found


def _table_of(file: Path) -> dict[str, Any]:
    try:
        with file.open("rb") as stream:
            data = stream.read(FILE_BYTES_MAX + 1)
        if len(data) > FILE_BYTES_MAX:
            raise BadSetting(f"{file}: larger than {FILE_BYTES_MAX} bytes", hint="is this a region file?")
        return tomllib.loads(data.decode())
    except OSError as error:
        raise BadSetting(f"{file}: cannot be read: {error.strerror}", hint="name a region file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadSetting(f"{file}: not valid TOML: {error}", hint="region files are written in TOML") from error


def _server_values(table: Mapping[str, Any], source: str, path: str) -> dict[str, Any]:
    checked = check_table(RegionServer, table, source, path)
    if "ports" in checked:
        checked["ports"] = {"http": 0, "rpc": 0, "serf": 0} | checked["ports"]
    return checked


def _check(file: Path, head: _RegionHead, servers: tuple[RegionServer, ...], clients: tuple[RegionClient, ...]) -> None:
    if not head.name:
        raise BadSetting(f"{file}: the region has no name", hint=f'begin with name = "{file.stem}"')
    if not 1 <= len(servers) <= SERVERS_MAX:
        raise BadSetting(
            f"{file}: region {head.name} has {len(servers)} servers",
            hint=f"1 to {SERVERS_MAX}, best 3, each with [[servers]]",
        )
    if len(clients) > CLIENTS_MAX:
        raise BadSetting(f"{file}: region {head.name} has {len(clients)} clients", hint=f"at most {CLIENTS_MAX}")
    seen: set[str] = set()
    names = {"server": [one.name for one in servers], "client": [one.name for one in clients]}
    for kind, members in names.items():
        for number, name in enumerate(members):
            if not name or name in seen:
                what = f'"{name}" twice' if name else "no name"
                raise BadSetting(f"{file}: {kind}s[{number}] has {what}", hint=f"every {kind} needs a name of its own")
            seen.add(name)


def _check_port(file: Path, host: str, who: str, port: int, taken: dict[tuple[str, int], str]) -> None:
    first = taken.setdefault((host, port), who)
    if port and first != who:
        raise BadSetting(
            f"{file}: port {port} of {who} is taken by {first}", hint="leave ports out to have free ones chosen"
        )
