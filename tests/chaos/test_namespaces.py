"""Packets really lost between namespaces, where this machine can have them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedsched.env.ports import free_ports
from tests.chaos.namespaces import NamespaceLinks, missing
from tests.chaos.watchdog import guarded
from tests.e2e.region import Server

PROBLEM = missing()
ECHO = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    while True:
        connection, _ = listener.accept()
        with connection:
            while data := connection.recv(100):
                connection.sendall(data)
"""
ASK = """
import socket, sys
host, port = sys.argv[1].split(":")
with socket.create_connection((host, int(port)), 5) as connection:
    connection.settimeout(float(sys.argv[2]))
    connection.sendall(b"hello")
    print(connection.recv(100).decode())
"""


def a_server(name: str, directory: Path) -> Server:
    http, rpc, serf = free_ports(3)
    return Server(name, directory / name, http, rpc, serf)


@pytest.mark.skipif(bool(PROBLEM), reason=f"no network namespaces here: {PROBLEM}")
def test_one_way_cut_between_namespaces_silences_and_healing_restores(tmp_path: Path) -> None:
    with guarded(tmp_path) as run:
        links = NamespaceLinks(tmp_path, run)
        echo = None
        try:
            a, b = a_server("a", tmp_path), a_server("b", tmp_path)
            route = links.route(a, b)
            echo = subprocess.Popen([*b.prefix, sys.executable, "-c", ECHO, str(b.rpc_port)])

            def ask(wait_s: float) -> str:
                command = [*a.prefix, sys.executable, "-c", ASK, route, str(wait_s)]
                answer = subprocess.run(command, capture_output=True, text=True, check=False)
                return answer.stdout.strip()

            while ask(5) != "hello":
                assert echo.poll() is None
            links.cut([("b", "a")])
            assert ask(0.3) == ""
            links.heal()
            assert ask(5) == "hello"
        finally:
            if echo is not None:
                echo.kill()
                echo.wait()
            links.close()
    assert a.host not in subprocess.run(["ip", "addr"], capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(bool(PROBLEM), reason=f"no network namespaces here: {PROBLEM}")
def test_the_harness_reaches_the_ports_of_a_housed_server(tmp_path: Path) -> None:
    with guarded(tmp_path) as run:
        links = NamespaceLinks(tmp_path, run)
        echo = None
        try:
            server = a_server("a", tmp_path)
            links.house(server)
            echo = subprocess.Popen([*server.prefix, sys.executable, "-c", ECHO, str(server.http_port)])
            deadline = time.monotonic() + 20
            while not _echoes(server):
                assert time.monotonic() < deadline
            assert links.statistics()["bytes_dropped"] == 0
        finally:
            if echo is not None:
                echo.kill()
                echo.wait()
            links.close()


def _echoes(server: Server) -> bool:
    """False while nobody listens behind the relay, which then resets what it has accepted."""
    try:
        with socket.create_connection((server.host, server.http_port), 5) as connection:
            connection.sendall(b"hello")
            return connection.recv(100) == b"hello"
    except ConnectionError:
        return False


def test_the_probe_says_what_is_missing_or_nothing() -> None:
    assert isinstance(PROBLEM, str)
    assert missing() == PROBLEM
