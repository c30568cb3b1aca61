"""Whom to talk to, and as whom: the address and everything that goes with it, from flags and environment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from fedsched.wire.address import Address, parse_address

DEFAULT_ADDRESS: Final = "http://127.0.0.1:4646"
ALL_REGIONS: Final = "*"
TLS_SETTINGS: Final = ("ca_cert", "ca_path", "client_cert", "client_key", "tls_server_name")


class Target(NamedTuple):
    """An agent, and how to present ourselves to it."""

    address: Address
    region: str = ""
    """Empty means the agent's own."""
    namespace: str = "default"
    token: str = ""
    ca_cert: str = ""
    ca_path: str = ""
    client_cert: str = ""
    client_key: str = ""
    tls_server_name: str = ""
    tls_skip_verify: bool = False
    others: tuple[Address, ...] = ()
    """Agents of the same region to try when the first is not there."""

    @property
    def names_several(self) -> bool:
        """Whether `region` is a list of regions, or `*` for all: for commands; a call goes to one."""
        return "," in self.region or self.region.strip() == ALL_REGIONS


def target_of(address: str = "", environ: Mapping[str, str] | None = None, **given: str | bool | None) -> Target:
    """Work out whom to talk to. What is given wins, then FEDSCHED_ variables, then NOMAD_ ones, then the defaults.

    Several addresses may be given, with commas between them: agents of one region, of which the first that is there
    is asked.
    """
    environ = environ or {}

    def choose(name: str, variable: str) -> str:
        return str(given.get(name) or environ.get(f"FEDSCHED_{variable}") or environ.get(f"NOMAD_{variable}") or "")

    first, *others = (address or choose("", "ADDR") or DEFAULT_ADDRESS).split(",")
    return Target(
        parse_address(first),
        region=choose("region", "REGION"),
        namespace=choose("namespace", "NAMESPACE") or "default",
        token=choose("token", "TOKEN"),
        ca_cert=choose("ca_cert", "CACERT"),
        ca_path=choose("ca_path", "CAPATH"),
        client_cert=choose("client_cert", "CLIENT_CERT"),
        client_key=choose("client_key", "CLIENT_KEY"),
        tls_server_name=choose("tls_server_name", "TLS_SERVER_NAME"),
        tls_skip_verify=bool(given.get("tls_skip_verify")) or is_true(choose("", "SKIP_VERIFY")),
        others=tuple(parse_address(text) for text in others if text.strip()),
    )


def is_true(text: str) -> bool:
    return text.lower() in ("1", "t", "true", "yes")
