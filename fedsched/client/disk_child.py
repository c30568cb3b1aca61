"""The other side of `disk_process`: does what it is asked, in order, until nobody can ask any more.

Imports little, and no trio: it waits for one socket, its standard input.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import socket
import sys
from collections.abc import Callable
from typing import Any, Final

from fedsched.client.alloc_dir_work import drop_umask

HEAD: Final = 4
"""Bytes of a message's length."""
MESSAGE_MAX: Final = 64 << 20

Answer = tuple[bool, Any]
"""True and what came of it, or false and what was raised."""


def main() -> None:
    """`argv[1]` is the lock that one of us holds at a time."""
    lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    drop_umask()
    with socket.socket(fileno=0) as asked:
        while (message := receive(asked)) is not None:
            asked.sendall(frame([_answer(*piece) for piece in pickle.loads(message)]))


def frame(value: object) -> bytes:
    """As it travels; both ends are the same program, and nobody else holds the socket."""
    body = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)
    return len(body).to_bytes(HEAD, "big") + body


def receive(connection: socket.socket) -> bytes | None:
    """The next message; None when the other side is gone."""
    head = _exactly(connection, HEAD)
    return _exactly(connection, int.from_bytes(head, "big")) if head else None


def _exactly(connection: socket.socket, count: int) -> bytes | None:
    found = bytearray()
    while len(found) < count:
        try:
            data = connection.recv(count - len(found))
        except ConnectionError:
            return None
        if not data:
            return None
        found += data
    return bytes(found)


def _answer(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Answer:
    try:
        return True, function(*arguments)
    except Exception as error:  # whatever it is, whoever asked is told
        return False, error
