"""Downloading over HTTP(S): bounded, without proxies, and never to an address that is nobody's business.

Addresses are looked at where the connection is made, not where the name is written: a name that leads to the host
itself or to a cloud's metadata service is refused, also on a redirect, also if the name changes its mind in between.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import socket
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote, urljoin, urlsplit

from fedsched.client.fetch.limits import FetchFailed, FetchLimits
from fedsched.client.fetch.sources import shown

PIECE: Final = 256 * 1024
REDIRECTS: Final = (301, 302, 303, 307, 308)
METADATA: Final = tuple(
    ipaddress.ip_network(net) for net in ("169.254.169.254/32", "fd00:ec2::254/128", "100.100.100.200/32")
)
"""Where clouds hand out their hosts' own credentials."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class HttpRules:
    schemes: tuple[str, ...]
    allowed_networks: tuple[str, ...] = ()
    """Addresses that may be reached although they would be refused."""
    insecure: bool = False


def download(
    url: str, headers: Mapping[str, str], rules: HttpRules, limits: FetchLimits, write: Callable[[bytes], None]
) -> int:
    """Get a URL, following redirects, and hand its body over in pieces; how long it was."""
    origin = _origin(url)
    for _ in range(limits.redirects + 1):
        check_scheme(url, rules)
        connection = _connection(url, rules, limits)
        try:
            response = _ask(connection, url, headers if _origin(url) == origin else {})
            if response.status in REDIRECTS and (place := response.getheader("Location")):
                url = urljoin(url, place)
                continue
            if response.status != 200:
                raise FetchFailed(
                    f"{shown(url)} answered {response.status} {response.reason[:80]}", is_recoverable=True
                )
            return _body(response, url, limits, write)
        except (OSError, http.client.HTTPException) as error:
            raise FetchFailed(f"{shown(url)} cannot be read: {_reason(error)}", is_recoverable=True) from None
        finally:
            connection.close()
    raise FetchFailed(f"{shown(url)} redirects more than {limits.redirects} times", is_recoverable=True)


def check_scheme(url: str, rules: HttpRules) -> None:
    scheme = urlsplit(url).scheme.lower()
    if scheme not in ("http", "https"):
        raise FetchFailed(f"{shown(url)}: artifacts cannot be had by {scheme[:20]!r}")
    if scheme not in rules.schemes:
        raise FetchFailed(f"{shown(url)}: this client does not fetch over {scheme} (client setting artifact.schemes)")


def is_refused(address: str, allowed: Iterable[str]) -> bool:
    """Whether an address must not be talked to."""
    found: Address = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and (inner := found.ipv4_mapped or found.sixtofour):
        return is_refused(str(inner), allowed)
    if any(found in network for network in map(_network, allowed) if network.version == found.version):
        return False
    metadata = any(found in network for network in METADATA if network.version == found.version)
    return bool(metadata or found.is_loopback or found.is_link_local or found.is_multicast or found.is_unspecified)


def _network(text: str) -> Network:
    return ipaddress.ip_network(text, strict=False)


def _connection(url: str, rules: HttpRules, limits: FetchLimits) -> http.client.HTTPConnection:
    pieces = urlsplit(url)
    host = pieces.hostname or ""
    try:
        port = pieces.port
    except ValueError:
        raise FetchFailed(f"{shown(url)} names an impossible port") from None
    connection: http.client.HTTPConnection
    if pieces.scheme == "https":
        context = ssl.create_default_context()
        if rules.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, port, timeout=limits.stall_s, context=context)
    else:
        connection = http.client.HTTPConnection(host, port, timeout=limits.stall_s)
    connection._create_connection = _connector(rules)  # type: ignore[attr-defined]
    return connection


def _connector(rules: HttpRules) -> Callable[..., socket.socket]:
    """Connects to the first address that answers and may be talked to."""

    def connect(address: tuple[str, int], timeout: float, *_: object) -> socket.socket:
        failure: Exception = OSError(f"{address[0]!r} has no address")
        for family, kind, protocol, _name, place in socket.getaddrinfo(*address, type=socket.SOCK_STREAM):
            if is_refused(str(place[0]), rules.allowed_networks):
                failure = FetchFailed(
                    f"{address[0]} is {place[0]}, which this client does not fetch from"
                    " (client setting artifact.allowed_networks)"
                )
                continue
            connection = socket.socket(family, kind, protocol)
            try:
                connection.settimeout(timeout)
                connection.connect(place)
                return connection
            except OSError as error:
                failure = error
                connection.close()
        raise failure

    return connect


def _ask(connection: http.client.HTTPConnection, url: str, headers: Mapping[str, str]) -> http.client.HTTPResponse:
    pieces = urlsplit(url)
    sent = {"Accept-Encoding": "identity", "User-Agent": "fedsched", **headers}
    if pieces.username is not None:
        user = f"{unquote(pieces.username)}:{unquote(pieces.password or '')}"
        sent["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    target = (pieces.path or "/") + (f"?{pieces.query}" if pieces.query else "")
    try:
        connection.request("GET", target, headers=sent)
    except (ValueError, http.client.InvalidURL) as error:
        if isinstance(error, OSError):
            raise  # a certificate that does not fit is a ValueError, too
        # Without the error's own words: they quote the whole URL.
        raise FetchFailed(f"{shown(url)} cannot be asked for: {type(error).__name__}") from None
    return connection.getresponse()


def _body(response: http.client.HTTPResponse, url: str, limits: FetchLimits, write: Callable[[bytes], None]) -> int:
    told = response.getheader("Content-Length", "")
    expected = int(told) if told.isdecimal() else None
    total = 0
    if expected is not None and expected > limits.download_bytes:
        raise _too_large(url, limits)
    while data := response.read(PIECE):
        total += len(data)
        if total > limits.download_bytes:
            raise _too_large(url, limits)
        write(data)
    if expected is not None and total < expected:
        raise FetchFailed(f"{shown(url)} broke off after {total} of {expected} bytes", is_recoverable=True)
    return total


def _too_large(url: str, limits: FetchLimits) -> FetchFailed:
    return FetchFailed(
        f"{shown(url)} has more than {limits.download_bytes} bytes (client setting artifact.http_max_size)"
    )


def _origin(url: str) -> tuple[str, str | None, int | None]:
    """Whom headers are meant for: they are not told to others."""
    pieces = urlsplit(url)
    try:
        return pieces.scheme, pieces.hostname, pieces.port
    except ValueError:
        return pieces.scheme, pieces.hostname, None


def _reason(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
