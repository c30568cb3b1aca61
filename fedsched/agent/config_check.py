"""What must hold between settings: refusals for what cannot work or is not safe, warnings for what is merely unwise."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Iterator, Mapping
from typing import Final

from fedsched.agent.config import LOG_LEVELS, PORT_MAX, AgentConfig
from fedsched.agent.config_check_client import check_client
from fedsched.agent.settings import BadSetting
from fedsched.model.nearest import nearest

SERVICES: Final = ("http", "rpc", "serf")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")


def check_config(config: AgentConfig, sources: Mapping[str, str], *, is_dev: bool) -> tuple[str, ...]:
    """Refuse with `BadSetting`, or give the warnings. `sources` says where a setting, by its path, came from."""
    _check_names(config, sources)
    _check_halves(config, sources)
    if not config.data_dir and not is_dev:
        raise BadSetting(
            "data_dir is not set", hint='say where to keep data with data_dir = "/var/lib/fedsched", or try -dev'
        )
    _check_log_levels(config, sources)
    _check_ports(config, sources)
    _check_advertise(config, sources)
    _check_tls(config, sources)
    _check_plaintext(config, sources)
    return tuple(_warnings(config))


def is_loopback(host: str) -> bool:
    """Tell whether only this machine can reach the address. A name other than localhost counts as reachable."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def split_host_port(address: str, default_port: int) -> tuple[str, int]:
    """Split "host", "host:port", "[v6]:port" or a bare IPv6 address. Raises ValueError on anything else."""
    if address.startswith("["):
        host, bracket, rest = address[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(f"{address!r} is no address")
        port_text = rest[1:]
    elif address.count(":") > 1:
        host, port_text = address, ""
    else:
        host, _, port_text = address.partition(":")
    port = int(port_text) if port_text else default_port
    if not host or not 0 <= port <= PORT_MAX or (":" in host and not _is_ip(host)):
        raise ValueError(f"{address!r} is no address")
    return host, port


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def _from(sources: Mapping[str, str], path: str) -> str:
    return f"{sources[path]}: " if path in sources else ""


def _check_names(config: AgentConfig, sources: Mapping[str, str]) -> None:
    for path, value in (("name", config.name), ("region", config.region), ("datacenter", config.datacenter)):
        if not _NAME.fullmatch(value):
            raise BadSetting(
                f'{_from(sources, path)}{path} = "{value}" is not a name',
                hint="letters, digits, - and _, at most 63, the first a letter or digit",
            )


def _check_halves(config: AgentConfig, sources: Mapping[str, str]) -> None:
    if config.client.enabled:
        check_client(config, sources)
        for address in config.client.all_servers:
            _checked_address(address, "client.servers", sources)
    if not config.server.enabled:
        if not config.client.enabled:
            raise BadSetting(
                "this agent would be neither server nor client",
                hint="set server.enabled or client.enabled = true, or start with -server, -client or -dev",
            )
        return
    join = config.server.server_join
    if not (config.server.bootstrap_expect or join.retry_join or join.retry_join_wan):
        raise BadSetting(
            "this server would wait for ever: it is told neither how many servers form the region nor whom to join",
            hint="set server.bootstrap_expect = 1 for a lone server, or 3 together with server.server_join.retry_join",
        )
    for address in join.retry_join:
        _checked_address(address, "server.server_join.retry_join", sources)
    for address in join.retry_join_wan:
        _checked_address(address, "server.server_join.retry_join_wan", sources)


def _check_log_levels(config: AgentConfig, sources: Mapping[str, str]) -> None:
    for area, level in config.log_levels.items():
        if level not in LOG_LEVELS:
            close = nearest(level, LOG_LEVELS)
            raise BadSetting(
                f'{_from(sources, "log_levels")}log_levels.{area} = "{level}" is none of {", ".join(LOG_LEVELS)}',
                hint=f"did you mean {close}?" if close else "",
            )


def _check_ports(config: AgentConfig, sources: Mapping[str, str]) -> None:
    taken: dict[tuple[str, int], str] = {}
    for service in SERVICES:
        port = getattr(config.ports, service)
        other = taken.setdefault((config.listen_host(service), port), service)
        if port and other != service:
            raise BadSetting(
                f"{_from(sources, f'ports.{service}')}ports.{service} = {port} is the same as ports.{other}",
                hint="each service needs a port of its own; 0 lets the system choose",
            )


def _check_advertise(config: AgentConfig, sources: Mapping[str, str]) -> None:
    for service in SERVICES:
        address = getattr(config.advertise, service)
        if not address:
            continue
        host, _ = _checked_address(address, f"advertise.{service}", sources)
        if _is_ip(host) and ipaddress.ip_address(host).is_unspecified:
            raise BadSetting(
                f'{_from(sources, f"advertise.{service}")}advertise.{service} = "{address}" cannot be dialled',
                hint="name an address of this machine that the others can reach",
            )


def _checked_address(address: str, path: str, sources: Mapping[str, str]) -> tuple[str, int]:
    try:
        return split_host_port(address, 0)
    except ValueError:
        raise BadSetting(
            f'{_from(sources, path)}{path} = "{address}" is no address', hint='write it as "host" or "host:port"'
        ) from None


def _check_tls(config: AgentConfig, sources: Mapping[str, str]) -> None:
    tls = config.tls
    files = {"tls.ca_file": tls.ca_file, "tls.cert_file": tls.cert_file, "tls.key_file": tls.key_file}
    given = [path for path, value in files.items() if value]
    missing = [path for path, value in files.items() if not value]
    if given and missing:
        raise BadSetting(
            f"{_from(sources, given[0])}{' and '.join(given)} set, but not {' and '.join(missing)}",
            hint="TLS needs all three files",
        )
    for path in given:
        if not os.access(files[path], os.R_OK):
            raise BadSetting(
                f'{_from(sources, path)}{path} = "{files[path]}" cannot be read',
                hint="does it exist, and may this user read it?",
            )


def _check_plaintext(config: AgentConfig, sources: Mapping[str, str]) -> None:
    if config.has_tls:
        return
    for service in SERVICES:
        host = config.listen_host(service)
        if not is_loopback(host):
            own = f"addresses.{service}"
            path = own if getattr(config.addresses, service) else "bind_addr"
            raise BadSetting(
                f'{_from(sources, path)}{path} = "{host}" would offer {service} without encryption to other machines',
                hint="set tls.ca_file, tls.cert_file and tls.key_file, or stay on 127.0.0.1",
            )


def _warnings(config: AgentConfig) -> Iterator[str]:
    expect = config.server.bootstrap_expect
    if expect and expect % 2 == 0:
        yield (
            f"server.bootstrap_expect = {expect} is even: {expect} servers survive no more failures than {expect - 1};"
            f" use {expect - 1} or {expect + 1}"
        )
    if expect > 1 and not (config.server.server_join.retry_join or config.server.server_join.retry_join_wan):
        yield (
            f"server.bootstrap_expect = {expect}, but server.server_join.retry_join is empty:"
            " this server waits until another one joins it"
        )
    if config.tls.key_file and os.stat(config.tls.key_file).st_mode & 0o077:
        yield f'tls.key_file = "{config.tls.key_file}" can be read by other users; chmod 600 it'
    if config.has_tls and not config.tls.verify_server_hostname:
        yield "tls.verify_server_hostname = false: any certificate of the authority can act as a server"
