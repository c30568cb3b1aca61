"""A region of server processes on this machine, for whoever shows or measures one.

Each is a real `fedsched agent` on loopback, with its settings, its data and its log in one directory.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from fedsched.env.ports import free_ports
from fedsched.model.errors import FedschedError, Unavailable

STOP_S: Final = 10.0
"""How long one may take to stop in order before it is killed."""
LAST_LINES: Final = 15


class ServerProcess:
    """One of them. It runs from `start` to `stop` or `kill`."""

    def __init__(
        self,
        name: str,
        directory: Path,
        ports: tuple[int, int, int],
        peers: Sequence[str],
        *,
        region: str,
        extra: str = "",
    ) -> None:
        self.name = name
        self.address = f"http://127.0.0.1:{ports[0]}"
        self.rpc_port = ports[1]
        self.serf_port = ports[2]
        self._log = directory / f"{name}.log"
        self._config = directory / f"{name}.toml"
        self._process: subprocess.Popen[bytes] | None = None
        self._config.write_text(
            f'name = "{name}"\nregion = "{region}"\ndata_dir = "{directory / name}"\nlog_level = "warn"\n'
            f"[ports]\nhttp = {ports[0]}\nrpc = {ports[1]}\nserf = {ports[2]}\n"
            f"[server]\nenabled = true\nbootstrap_expect = {len(peers)}\n"
            f'ballast_size = "0B"\ndisk_soft_limit = "0B"\n'
            f'[server.server_join]\nretry_join = {json.dumps(list(peers))}\nretry_interval = "1s"\n{extra}'
        )

    def start(self) -> None:
        command = [sys.executable, "-m", "fedsched", "agent", "-config", str(self._config)]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        assert self._process is not None, f"server {self.name} was not started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs, or before it was started."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self._process is not None, f"server {self.name} was not started"
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """End it in order, as far as it is patient enough; nothing if it does not run."""
        if self._process is None or self._process.poll() is not None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def wait_until(self, happened: Callable[[], object], what: str, *, patience_s: float, pause_s: float = 0.1) -> None:
        """Ask again and again whether something has come to pass; `Unavailable`, with this server's last words, if it
        has not, or if the server has ended meanwhile. Refusals count as "not yet".
        """
        give_up = time.monotonic() + patience_s
        last = ""
        while time.monotonic() < give_up and self.exit_code is None:
            try:
                if happened():
                    return
            except FedschedError as error:
                last = str(error)
            time.sleep(pause_s)
        words = " | ".join(self.last_lines())
        raise Unavailable(f"it did not come to pass that {what}: {last or 'no error'}; {self.name} said: {words}")

    def last_lines(self) -> list[str]:
        """The end of its log."""
        return self._log.read_text(errors="replace").splitlines()[-LAST_LINES:] if self._log.exists() else []


def server_processes(names: Sequence[str], directory: Path, *, region: str, extra: str = "") -> list[ServerProcess]:
    """As many servers as names, on ports that are free now, knowing of each other; none is started yet."""
    ports = free_ports(3 * len(names))
    triples = [(ports[3 * at], ports[3 * at + 1], ports[3 * at + 2]) for at in range(len(names))]
    peers = [f"127.0.0.1:{triple[1]}" for triple in triples]
    return [
        ServerProcess(name, directory, triple, peers, region=region, extra=extra)
        for name, triple in zip(names, triples, strict=True)
    ]
