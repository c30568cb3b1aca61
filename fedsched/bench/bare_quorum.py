"""The floor under a serial commit: three processes that send, write, sync and answer, and do nothing else.

One proposal at a time cannot be faster than this on the same machine, whatever the consensus code above it does. There
is no log format, no election, no event loop and no thread: a leader writes 1 KiB to each of two followers, syncs its
own copy, and goes on when one follower has said that its copy is synced too. What is left is the price of two trips
over loopback and of two syncs that overlap, with three processes on whatever cores there are.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from fedsched.bench.machine import SYNC_BYTES, SYNC_FILE_BYTES
from fedsched.model.errors import Unavailable

FOLLOWERS: Final = 2
PATIENCE_S: Final = 10.0
ACK: Final = b"k"


class ZeroFilled:
    """A file that is overwritten block by block and synced each time, so that no metadata has to be written."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.write(self._fd, bytes(SYNC_FILE_BYTES))
        os.fsync(self._fd)
        self._blocks = 0

    def put(self, block: bytes) -> None:
        os.pwrite(self._fd, block, self._blocks * SYNC_BYTES % SYNC_FILE_BYTES)
        os.fdatasync(self._fd)
        self._blocks += 1

    def close(self) -> None:
        os.close(self._fd)


def rounds_per_s(directory: Path, seconds: float) -> float:
    """Durable rounds per second over three processes, one at a time."""
    block = os.urandom(SYNC_BYTES)
    with ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        links = [_follower(stack, directory / f"follower{number}.bench") for number in range(FOLLOWERS)]
        acked = dict.fromkeys(links, 0)
        for link in links:
            selector.register(link, selectors.EVENT_READ)
        file = ZeroFilled(directory / "leader.bench")
        stack.callback(file.close)
        count = 0
        start = now = time.perf_counter()
        while now - start < seconds:
            for link in links:
                link.sendall(block)
            file.put(block)
            count += 1
            while max(acked.values()) < count:
                _hear(selector, acked)
            now = time.perf_counter()
        return count / (now - start)


def _hear(selector: selectors.BaseSelector, acked: dict[socket.socket, int]) -> None:
    ready = selector.select(PATIENCE_S)
    for key, _ in ready:
        link = key.fileobj
        assert isinstance(link, socket.socket)
        data = link.recv(4096)
        if not data:
            raise Unavailable("a follower of the bare quorum ended", hint="is the disk full?")
        acked[link] += len(data)
    if not ready:
        raise Unavailable(f"no follower of the bare quorum answered within {PATIENCE_S:.0f} s", hint="look at the disk")


def _follower(stack: ExitStack, path: Path) -> socket.socket:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(PATIENCE_S)
        port = listener.getsockname()[1]
        process = subprocess.Popen([sys.executable, "-m", __name__, str(port), str(path)], stderr=subprocess.DEVNULL)
        stack.callback(process.wait, PATIENCE_S)
        link, _ = listener.accept()
    stack.callback(link.close)  # which ends the follower
    link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link.settimeout(PATIENCE_S)
    if link.recv(1) != ACK:
        raise Unavailable("a follower of the bare quorum could not open its file", hint=f"look at {path.parent}")
    return link


def follow(port: int, path: Path) -> None:
    """Be a follower until the leader hangs up."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as link:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        file = ZeroFilled(path)
        link.sendall(ACK)
        rest = 0
        while data := link.recv(64 * SYNC_BYTES):
            file.put(data[:SYNC_BYTES])  # blocks that came together share one sync, as in any log
            blocks, rest = divmod(rest + len(data), SYNC_BYTES)
            link.sendall(ACK * blocks)
        file.close()


if __name__ == "__main__":
    follow(int(sys.argv[1]), Path(sys.argv[2]))
