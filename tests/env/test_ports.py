from __future__ import annotations

import socket

from fedsched.env.ports import PORTS, free_ports


def test_free_ports_are_different_bindable_and_not_those_the_system_hands_out() -> None:
    ports = free_ports(20)

    assert len(set(ports)) == 20
    assert all(port in PORTS for port in ports)
    for port in ports:
        with socket.socket() as one:
            one.bind(("127.0.0.1", port))
            assert one.getsockname()[1] == port
