"""Where an agent listens: `http://host:4646`, `https://...`, or `unix:///path`.

Parsed by hand: a one-shot command has no time to import a library for it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from fedsched.model.errors import BadRequest

HTTP_PORT: Final = 4646
_HINT: Final = "write it as http://HOST:PORT, https://HOST:PORT or unix:///PATH"


class Address(NamedTuple):
    """An agent's address, taken apart."""

    host: str
    port: int
    is_tls: bool = False
    socket_path: str = ""
    """A Unix socket; the rest then only fills in the Host header."""

    def __str__(self) -> str:
        if self.socket_path:
            return f"unix://{self.socket_path}"
        return f"{'https' if self.is_tls else 'http'}://{self.host_header}"

    @property
    def host_header(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    """Read an address as people write it; the port may be left out. `BadRequest` says what is wrong with it."""
    scheme, found, rest = text.strip().partition("://")
    if not found:
        scheme, rest = "http", scheme
    if scheme == "unix":
        if not rest.startswith("/"):
            raise BadRequest(f"the socket in address {text!r} is not an absolute path", hint=_HINT)
        return Address("localhost", HTTP_PORT, socket_path=rest)
    if scheme not in ("http", "https", "ws", "wss"):
        raise BadRequest(f"address {text!r} has unknown scheme {scheme!r}", hint=_HINT)
    host, port = split_host_port(rest.partition("/")[0], HTTP_PORT, text)
    return Address(host, port, is_tls=scheme in ("https", "wss"))


def split_host_port(place: str, default_port: int, text: str = "") -> tuple[str, int]:
    """Take `host`, `host:port` or `[v6]:port` apart; `text` is what the person wrote, if that was more."""
    text = text or place
    if place.startswith("["):
        host, _, tail = place[1:].partition("]")
        number = tail.removeprefix(":")
    elif place.count(":") > 1:
        raise BadRequest(f"address {text!r} has an IPv6 host without brackets", hint="write it as http://[::1]:4646")
    else:
        host, _, number = place.partition(":")
    if not host:
        raise BadRequest(f"address {text!r} has no host", hint=_HINT)
    if not number:
        return host, default_port
    if not (number.isascii() and number.isdigit() and 0 < int(number) < 65536):
        raise BadRequest(f"address {text!r} has port {number!r}, which is none", hint=_HINT)
    return host, int(number)
