"""Bytes that nobody asked for, sent the way a scanner, a confused peer or an attacker would."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random

PATIENCE_S = 10.0
"""A server must end a bad connection by then; its handshake limit is 5 s."""

CHUNK = 16 * 1024


def openings(chance: Random) -> Iterator[bytes]:
    """First bytes worth trying: noise, lengths that promise too much, half a request, another protocol."""
    yield chance.randbytes(chance.randint(1, 4096))
    yield b"\xff" * 64
    yield b"\x00" * 64
    yield (2**32 - 1).to_bytes(4, "big") + chance.randbytes(64)
    yield b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000
    yield b"GET /v1/rpc HTTP/1.1\r\nUpgrade: websocket\r\n\r\n" + chance.randbytes(512)
    yield b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(200)
    yield chance.randbytes(300_000)


def pour_garbage(host: str, port: int, chance: Random) -> None:
    """Open one connection for each kind of garbage, all at once, and see each one ended by the server.

    Raises `AssertionError` when the server neither ends nor breaks one within its handshake limit.
    """
    garbage = list(openings(chance))
    with ThreadPoolExecutor(len(garbage)) as pool:
        ended = list(pool.map(partial(_pour, host, port), garbage))
    kept = [number for number, is_ended in enumerate(ended) if not is_ended]
    assert not kept, f"port {port} keeps connections open after garbage of kinds {kept}"


def _pour(host: str, port: int, garbage: bytes) -> bool:
    with socket.create_connection((host, port), PATIENCE_S) as sock:
        _ignoring_reset(partial(sock.sendall, garbage))
        _ignoring_reset(partial(sock.shutdown, socket.SHUT_WR))
        return _is_ended(sock)


def _is_ended(sock: socket.socket) -> bool:
    sock.settimeout(PATIENCE_S)
    try:
        while sock.recv(CHUNK):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def _ignoring_reset(act: Callable[[], None]) -> None:
    """A server that hangs up while we still talk is doing the right thing."""
    try:
        act()
    except OSError as error:
        if error.errno not in (errno.ECONNRESET, errno.EPIPE, errno.ENOTCONN):
            raise
