"""A way to a server on which bytes come back slowly: what a reader behind a bad line looks like from the server."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

TURN_S = 0.1
"""Bytes go in portions of so long."""
KERNEL_BYTES = 4096
"""What this end takes in ahead of the reader; the kernel doubles it."""


class Throttle:
    """Carries connections to one address: requests as they come, answers at so many bytes a second."""

    def __init__(self, to: tuple[str, int], bytes_per_s: int) -> None:
        self._to = to
        self._portion = max(1, int(bytes_per_s * TURN_S))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = {self._listener}
        self._lock = threading.Lock()
        self._is_over = threading.Event()
        self.passed = 0
        """Bytes that reached the reader."""

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()
        return f"http://{host}:{port}"

    def run(self) -> None:
        """Accept until closed."""
        while not self._is_over.is_set():
            try:
                reader, _ = self._listener.accept()
            except OSError:
                return
            self._carry(reader)

    def close(self) -> None:
        self._is_over.set()
        with self._lock:
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()
            self._open.clear()

    def _carry(self, reader: socket.socket) -> None:
        server = socket.socket()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, KERNEL_BYTES)
        with self._lock:
            self._open |= {reader, server}
        try:
            server.connect(self._to)
        except OSError:
            self._end(reader, server)
            return
        threading.Thread(target=self._pass_on, args=(reader, server), daemon=True).start()
        threading.Thread(target=self._trickle, args=(server, reader), daemon=True).start()

    def _pass_on(self, reader: socket.socket, server: socket.socket) -> None:
        with suppress(OSError):
            while data := reader.recv(1 << 16):
                server.sendall(data)
        self._end(reader, server)

    def _trickle(self, server: socket.socket, reader: socket.socket) -> None:
        due = time.monotonic()
        with suppress(OSError):
            while data := server.recv(self._portion):
                reader.sendall(data)
                self.passed += len(data)
                due = max(due + TURN_S * len(data) / self._portion, time.monotonic() - TURN_S)
                if self._is_over.wait(max(0.0, due - time.monotonic())):
                    break
        self._end(reader, server)

    def _end(self, *both: socket.socket) -> None:
        with self._lock:
            for one in both:
                if one in self._open:
                    self._open.discard(one)
                    with suppress(OSError):
                        one.shutdown(socket.SHUT_RDWR)
                    one.close()


@contextmanager
def throttled(to: tuple[str, int], bytes_per_s: int) -> Iterator[Throttle]:
    """A throttle that runs; every connection through it ends with the block."""
    throttle = Throttle(to, bytes_per_s)
    thread = threading.Thread(target=throttle.run, daemon=True)
    thread.start()
    try:
        yield throttle
    finally:
        throttle.close()
        thread.join(10)
