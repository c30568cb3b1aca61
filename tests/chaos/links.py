"""The harness's side of the links between servers: say who can no longer hear whom."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from tests.chaos.proxy import DROP, PASS, REFUSE, STALL, Rule
from tests.e2e.region import HOST, Server

Way = tuple[str, str]
"""From whom, to whom."""


class Links(Protocol):
    """What the nemesis needs of a network, whatever it is made of."""

    def route(self, src: Server, dst: Server) -> str: ...

    def cut(self, ways: Iterable[Way], kind: str = DROP) -> None: ...

    def slow(self, ways: Iterable[Way], delay_s: float) -> None: ...

    def break_after(self, ways: Iterable[Way], n_bytes: int) -> None: ...

    def heal(self) -> None: ...

    def statistics(self) -> dict[str, int]: ...

    def logs(self) -> dict[str, str]:
        """What the link's own processes complained about."""

    def close(self) -> None: ...


class ProxyLinks:
    """Every server-to-server link through a proxy process. Needs no rights and works on any machine."""

    def __init__(self, log: Path, *, prefix: Iterable[str] = (), environment: Mapping[str, str] | None = None) -> None:
        self._path = log
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.chaos.proxy"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )
        self._lock = threading.Lock()
        self._ruled: set[Way] = set()

    def open(self, src: str, dst: str, host: str, port: int, *, at: tuple[str, int] = ("127.0.0.1", 0)) -> str:
        """A new address at which `src` reaches `dst`, who listens at host:port; on a free port unless `at` says."""
        answer = self._ask({"op": "open", "src": src, "dst": dst, "at": list(at), "to": [host, port]})
        return f"{at[0]}:{answer['port']}"

    def route(self, src: Server, dst: Server) -> str:
        """For `running_region`: how one server dials another."""
        return self.open(src.name, dst.name, HOST, dst.rpc_port)

    def cut(self, ways: Iterable[Way], kind: str = DROP) -> None:
        assert kind in (DROP, STALL, REFUSE), kind
        self._put(ways, Rule(kind=kind))

    def slow(self, ways: Iterable[Way], delay_s: float) -> None:
        self._put(ways, Rule(delay_s=delay_s))

    def break_after(self, ways: Iterable[Way], n_bytes: int) -> None:
        self._put(ways, Rule(reset_after=n_bytes))

    def heal(self) -> None:
        self._put(sorted(self._ruled), Rule(kind=PASS))
        self._ruled.clear()

    def statistics(self) -> dict[str, int]:
        return self._ask({"op": "statistics"})

    def logs(self) -> dict[str, str]:
        return {self._path.stem: self._path.read_text()}

    def close(self) -> None:
        """End the proxy process; every connection through it ends too."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()

    def _put(self, ways: Iterable[Way], rule: Rule) -> None:
        for src, dst in ways:
            self._ruled.add((src, dst))
            self._ask({"op": "rule", "src": src, "dst": dst, "rule": asdict(rule)})

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the proxy process is gone; its words are in {self._log.name}")
        answer: dict[str, Any] = json.loads(line)
        return answer


def both_ways(a: str, others: Iterable[str]) -> list[Way]:
    return [way for b in others if b != a for way in ((a, b), (b, a))]
