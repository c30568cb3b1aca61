"""`fedsched demo`: two federated regions on this machine, shown by the commands a person would type.

A tour of what `fedsched dev` boots, with every agent a process of its own, so that a leader can be killed as a power
cut would: servers and client agents of all regions of `regions/`, on free ports. Real sockets, real disks, real tasks.
Everything lives in a temporary directory, listens on loopback only, and is gone afterwards. What does not happen in
time ends the tour with exit code 1.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeVar

from fedsched.agent.process import AgentProcess, region_processes
from fedsched.agent.region_file import RegionFile, read_regions
from fedsched.agent.tour import EVERYWHERE, HELLO, things_to_try
from fedsched.model.alloc import ClientStatus
from fedsched.model.declare import Record
from fedsched.model.errors import BadRequest, FedschedError
from fedsched.model.node import NodeStatus
from fedsched.rpc.method import Empty, Method
from fedsched.rpc.methods.alloc import ALLOC_LIST, AllocListRequest
from fedsched.rpc.methods.node import NODE_LIST, NodeListRequest
from fedsched.rpc.methods.raft import RAFT_LIST_PEERS
from fedsched.rpc.methods.server import REGION_LIST, RegionRow
from fedsched.sdk.connect import connect

PATIENCE_S: Final = 30.0
POLL_S: Final = 0.1
LOOK_S: Final = 1.0
"""For one look at how things are; there is another."""
HERE, THERE = "eu", "us"
HELLO_ID, EVERYWHERE_ID = "hello", "everywhere"
MAJORITY_LEFT: Final = 3
"""Servers that a region needs so that it goes on without one."""

Q = TypeVar("Q", bound=Record)
R = TypeVar("R", bound=Record)


class DemoFailed(Exception):
    """What the demo wanted to show did not happen."""


class Demo:
    """The tour, step by step."""

    def __init__(self, regions: Sequence[RegionFile], directory: Path) -> None:
        self.regions = regions
        self.servers, self.clients = region_processes([region.on_any_ports() for region in regions], directory)
        self.desk = self._agent(HERE, 0)
        """The server that is asked for everything."""
        self._client = connect(self.desk.address)

    @property
    def agents(self) -> list[AgentProcess]:
        return [*self.servers, *self.clients]

    def run(self) -> None:
        self.boot()
        self.submit_across()
        self.roll_out()
        self.lose_a_leader()
        self.say_how_to_go_on()

    # ---- stops of the tour ----------------------------------------------------------------------------------

    def boot(self) -> None:
        began = time.monotonic()
        say(
            f"{len(self.regions)} regions, {len(self.servers)} servers and {len(self.clients)} hosts that run tasks: "
            f"{len(self.agents)} real processes, on loopback."
        )
        for agent in self.agents:
            agent.start()
        for region in self.regions:
            nodes = sum(client.name in {one.name for one in region.clients} for client in self.clients)
            self.until(
                f"all nodes of region {region.name} are ready",
                lambda region=region, nodes=nodes: self.ready_nodes(region.name) == nodes,  # type: ignore[misc]
            )
        self.until("the regions know each other", self.all_healthy)
        print(f"    all up after {time.monotonic() - began:.1f} s", flush=True)
        self.show("region list")

    def submit_across(self) -> None:
        say(f"A job for region {THERE}, given to a server of region {HERE}.")
        self.show(f"job run -region {THERE} {HELLO}")
        self.until(f"{HELLO_ID} runs in region {THERE}", lambda: self.running(HELLO_ID, THERE) == 2)
        self.show(f"job allocs -region {THERE} {HELLO_ID}")
        say("What its tasks write, followed from the other region.")
        self.follow(f"job logs -f -region {THERE} {HELLO_ID}", lines=2)

    def roll_out(self) -> None:
        say(f"A job of both regions: {THERE} begins when {HERE} is healthy; it stands in both or in neither.")
        self.show(f"job run {EVERYWHERE}")
        for region, count in ((HERE, 1), (THERE, 2)):
            self.until(
                f"{EVERYWHERE_ID} runs in region {region}",
                lambda region=region, count=count: self.running(EVERYWHERE_ID, region) == count,  # type: ignore[misc]
            )
        self.show(f"job logs -n 1 -region {THERE} {EVERYWHERE_ID}")

    def lose_a_leader(self) -> None:
        leader = self.leader_of(THERE)
        say(f"The leader of region {THERE}, {leader.name}, is killed with SIGKILL.")
        killed_at = time.monotonic()
        print(f"    killed process {leader.pid}", flush=True)
        leader.kill()
        self.until(
            f"region {THERE} takes writes again",
            lambda: self.run_fedsched(f"job run -detach -region {THERE} {HELLO}").returncode == 0,
        )
        print(f"    the next write from region {HERE} was acknowledged {time.monotonic() - killed_at:.1f} s later")
        self.until(f"region {HERE} knows of the death", lambda: self.servers_up(THERE) == 2)
        print(f"    known in region {HERE} {time.monotonic() - killed_at:.1f} s after it", flush=True)
        self.show("region list")
        self.show(f"job allocs -region {THERE} {HELLO_ID}")
        say(f"{leader.name} comes back and catches up.")
        leader.start()
        self.until("the regions are as before", self.all_healthy)
        self.show("region list")

    def say_how_to_go_on(self) -> None:
        say("All of it happened. The same regions for you to play with:")
        print("\n    . .venv/bin/activate\n    fedsched dev\n\n  and in another terminal:\n")
        print("    . .venv/bin/activate")
        for command in things_to_try([region.name for region in self.regions]):
            print(f"    {command}")

    # ---- what is looked at ----------------------------------------------------------------------------------

    def ready_nodes(self, region: str) -> int:
        found = self.asked(NODE_LIST, NodeListRequest(), region)
        return sum(node.status is NodeStatus.READY for node in found.nodes) if found else 0

    def running(self, job: str, region: str) -> int:
        found = self.asked(ALLOC_LIST, AllocListRequest(job_id=job, task_states=False), region)
        return sum(one.client_status is ClientStatus.RUNNING for one in found.allocs) if found else 0

    def all_healthy(self) -> bool:
        """As the desk sees it: its own region by its log, the others by gossip."""
        rows = self.region_rows()
        return len(rows) == len(self.regions) and all(row.state == "healthy" and row.leader for row in rows)

    def servers_up(self, region: str) -> int:
        return next((row.servers_up for row in self.region_rows() if row.name == region), 0)

    def region_rows(self) -> tuple[RegionRow, ...]:
        found = self.asked(REGION_LIST, Empty())
        return found.regions if found else ()

    def leader_of(self, region: str) -> AgentProcess:
        found = self.asked(RAFT_LIST_PEERS, Empty(), region)
        for peer in found.servers if found else ():
            for server in self.servers:
                if peer.leader and peer.node == server.name:
                    return server
        raise DemoFailed(f"nobody leads region {region}")

    def asked(self, method: Method[Q, R], request: Q, region: str | None = None) -> R | None:
        """What a region answers by way of the desk; None if it does not yet."""
        try:
            return self._client.call(method, request, region=region, patience_s=LOOK_S)
        except FedschedError:
            return None

    def until(self, what: str, happened: Callable[[], bool]) -> None:
        give_up = time.monotonic() + PATIENCE_S
        while not happened():
            for agent in self.agents:
                if agent.exit_code not in (None, -signal.SIGKILL):
                    raise DemoFailed(f"{agent.name} ended by itself with {agent.exit_code}")
            if time.monotonic() > give_up:
                raise DemoFailed(f"not within {PATIENCE_S:.0f} s: {what}")
            time.sleep(POLL_S)

    # ---- what is typed --------------------------------------------------------------------------------------

    def show(self, words: str) -> None:
        """Type a command and show what it says."""
        self._show_prompt(words)
        done = self.run_fedsched(words)
        for line in (done.stdout + done.stderr).rstrip().splitlines():
            print(f"    {line}")
        sys.stdout.flush()
        if done.returncode:
            raise DemoFailed(f"`fedsched {words}` ended with {done.returncode}")

    def follow(self, words: str, lines: int) -> None:
        """Type a command that goes on for ever, and leave it after so many lines."""
        self._show_prompt(words)
        with tempfile.TemporaryFile("w+") as said, self._popen(words, said) as process:
            try:
                self.until(f"{lines} lines of `fedsched {words}`", lambda: _lines_in(said) >= lines)
            finally:
                process.kill()
            said.seek(0)
            for line in said.read().splitlines()[:lines]:
                print(f"    {line}")
        print("    ^C", flush=True)

    def run_fedsched(self, words: str) -> subprocess.CompletedProcess[str]:
        command, environment = self._command(words)
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    def _popen(self, words: str, out: Any) -> subprocess.Popen[str]:
        command, environment = self._command(words)
        return subprocess.Popen(command, env=environment, stdout=out, stderr=out, text=True)

    def _command(self, words: str) -> tuple[list[str], dict[str, str]]:
        environment = {**os.environ, "FEDSCHED_ADDR": self.desk.address, "NO_COLOR": "1"}
        return [sys.executable, "-m", "fedsched", *shlex.split(words)], environment

    def _show_prompt(self, words: str) -> None:
        print(f"\n  {self.desk.name} $ fedsched {words}", flush=True)

    def _agent(self, region: str, number: int) -> AgentProcess:
        name = next(one for one in self.regions if one.name == region).servers[number].name
        return next(server for server in self.servers if server.name == name)

    def stop(self) -> None:
        """Clients first: they end their tasks, and tell their servers."""
        self._client.close()
        for group in (self.clients, self.servers):
            for agent in group:
                agent.ask_to_stop()
            for agent in group:
                agent.stop()


def _lines_in(file: Any) -> int:
    file.seek(0)
    return len(file.read().splitlines())


def say(text: str) -> None:
    print(f"\n==> {text}", flush=True)


def _regions_of(directory: str) -> tuple[RegionFile, ...]:
    regions = read_regions(directory)
    names = sorted(region.name for region in regions)
    if names != sorted((HERE, THERE)) or any(len(region.servers) < MAJORITY_LEFT for region in regions):
        raise BadRequest(
            f"{directory}: regions {', '.join(names)}",
            hint=f"the tour is through regions {HERE} and {THERE}, with three servers each: the ones in regions/",
        )
    return regions


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A polite end is an end like Ctrl-C: agents are stopped, tasks ended."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def main(directory: str = "regions") -> int:
    with tempfile.TemporaryDirectory(prefix="fedsched-demo-") as data, _ended_by_signals():
        demo = Demo(_regions_of(directory), Path(data))
        try:
            demo.run()
        except DemoFailed as why:
            print(f"\ndemo: {why}", file=sys.stderr)
            for agent in demo.agents:
                for line in agent.last_lines():
                    print(f"{agent.name}| {line}", file=sys.stderr)
            return 1
        except KeyboardInterrupt:
            return 130
        finally:
            demo.stop()
    return 0
