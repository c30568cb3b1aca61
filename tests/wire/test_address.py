"""Addresses as people write them."""

from __future__ import annotations

import pytest

from fedsched.model.errors import BadRequest
from fedsched.wire.address import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("http://127.0.0.1:4646", Address("127.0.0.1", 4646)),
        ("http://agent.example/", Address("agent.example", 4646)),
        ("https://agent.example:443/ui", Address("agent.example", 443, is_tls=True)),
        ("wss://agent:1", Address("agent", 1, is_tls=True)),
        ("agent:99", Address("agent", 99)),
        (" agent ", Address("agent", 4646)),
        ("http://[::1]:4000", Address("::1", 4000)),
        ("http://[::1]", Address("::1", 4646)),
        ("unix:///run/fedsched.sock", Address("localhost", 4646, socket_path="/run/fedsched.sock")),
    ],
)
def test_addresses_are_read_as_they_are_meant(text: str, address: Address) -> None:
    assert parse_address(text) == address
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ftp://host", "unknown scheme 'ftp'"),
        ("http://", "no host"),
        ("http://:4646", "no host"),
        ("http://host:port", "port 'port'"),
        ("http://host:70000", "port '70000'"),
        ("http://::1:4646", "without brackets"),
        ("unix://relative", "not an absolute path"),
    ],
)
def test_what_is_no_address_is_refused_with_a_hint(text: str, why: str) -> None:
    with pytest.raises(BadRequest, match=why) as caught:
        parse_address(text)
    assert caught.value.hint


def test_the_host_header_keeps_its_brackets() -> None:
    assert Address("::1", 80).host_header == "[::1]:80"
    assert str(Address("h", 1, is_tls=True)) == "https://h:1"
