"""Regions of agent processes on this machine, for whoever shows or measures them.

Each is a real `fedsched agent` on loopback, with its settings, its data and its log in one directory.
"""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from fedsched.agent.config import AgentConfig
from fedsched.agent.config_text import config_text
from fedsched.agent.region_file import RegionFile, configs_of
from fedsched.env.ports import free_ports
from fedsched.model.errors import FedschedError, Unavailable

STOP_S: Final = 10.0
"""How long one may take to stop in order before it is killed."""
LAST_LINES: Final = 15


class AgentProcess:
    """One of them. It runs from `start` to `stop` or `kill`, and not longer than this process."""

    def __init__(self, name: str, directory: Path, address: str, settings: str, flags: Sequence[str] = ()) -> None:
        """`settings` are those of its TOML file, `flags` what it is told on its command line besides."""
        self.name = name
        self.address = address
        self._log = directory / f"{name}.log"
        self._config = directory / f"{name}.toml"
        self._flags = list(flags)
        self._process: subprocess.Popen[bytes] | None = None
        self._is_asked = False
        self._config.write_text(settings)

    def start(self) -> None:
        self._is_asked = False
        command = [sys.executable, "-m", "fedsched", "agent", "-config", str(self._config), *self._flags]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for this process, which then ends them in order
                preexec_fn=_end_with_parent,
            )

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """How it ended; None while it runs, or before it was started."""
        return None if self._process is None else self._process.poll()

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self._process is not None, f"{self.name} was not started"
        self._process.kill()
        self._process.wait()

    def ask_to_stop(self) -> None:
        """Have it end in order; `stop` waits for that. Asked once more it would end at once, so it is asked once."""
        if self._process is not None and self._process.poll() is None and not self._is_asked:
            self._is_asked = True
            self._process.send_signal(signal.SIGTERM)

    def stop(self) -> None:
        """End it in order, as far as it is patient enough; nothing if it does not run."""
        if self._process is None or self._process.poll() is not None:
            return
        self.ask_to_stop()
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


class ServerProcess(AgentProcess):
    """One server of a lone region, known by its ports."""

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
        self.rpc_port = ports[1]
        self.serf_port = ports[2]
        settings = (
            f'name = "{name}"\nregion = "{region}"\ndata_dir = "{directory / name}"\nlog_level = "warn"\n'
            f"[ports]\nhttp = {ports[0]}\nrpc = {ports[1]}\nserf = {ports[2]}\n"
            f"[server]\nenabled = true\nbootstrap_expect = {len(peers)}\n"
            f'ballast_size = "0B"\ndisk_soft_limit = "0B"\n'
            f'[server.server_join]\nretry_join = {json.dumps(list(peers))}\nretry_interval = "1s"\n{extra}'
        )
        super().__init__(name, directory, f"http://127.0.0.1:{ports[0]}", settings)


def server_processes(names: Sequence[str], directory: Path, *, region: str, extra: str = "") -> list[ServerProcess]:
    """As many servers as names, on ports that are free now, knowing of each other; none is started yet."""
    ports = free_ports(3 * len(names))
    triples = [(ports[3 * at], ports[3 * at + 1], ports[3 * at + 2]) for at in range(len(names))]
    peers = [f"127.0.0.1:{triple[1]}" for triple in triples]
    return [
        ServerProcess(name, directory, triple, peers, region=region, extra=extra)
        for name, triple in zip(names, triples, strict=True)
    ]


def region_processes(regions: Sequence[RegionFile], directory: Path) -> tuple[list[AgentProcess], list[AgentProcess]]:
    """The servers and the clients of these regions, as one federation; none is started yet. Clients end their tasks
    when they are stopped."""
    servers, clients = configs_of(regions, str(directory))
    not_a_server = ("-dev", "-set", "server.enabled=false")
    return (
        [_process_of(config, directory) for config in servers],
        [_process_of(config, directory, *not_a_server) for config in clients],
    )


def _process_of(config: AgentConfig, directory: Path, *flags: str) -> AgentProcess:
    quiet = replace(config, log_level="warn")
    return AgentProcess(
        config.name, directory, f"http://{config.bind_addr}:{config.ports.http}", config_text(quiet), flags
    )


_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None)


def _end_with_parent() -> None:
    """In the new process, before it becomes an agent: have the kernel end it in order when its parent is gone, be it
    killed. Whoever starts agents does so from the thread that lives longest, and has no other threads then."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
