"""Dozens of real agents on loopback: how soon all know who is there, who was killed, and who has left.

    python -m tests.wan.agents --agents 48

Every agent is a whole `fedsched agent`, the only server of a region of its own. They are started a few at a time, each
after those before have said that they run, so that what interpreters cost is over when the clock starts: with the word
of the last one. Times are those of the agents' own logs. However this process ends, all agents end with it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedsched.env.ports import free_ports
from fedsched.model.region import MemberStatus
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.server import SERVER_MEMBERS
from tests.chaos.leftovers import Run
from tests.chaos.watchdog import guarded
from tests.e2e.calls import connect
from tests.e2e.region import HOST, START_S, Server
from tests.wan.news import FAILED, LEFT, TOP, UP, News

FULL_S = 3.0
DEATH_S = 9.0
LEAVE_S = 2.0
"""What all must know within these: who is there after the last start, who was killed, who has left."""
AT_ONCE = os.cpu_count() or 1
SEEDS = 3
"""How many of the agents' addresses every agent is given; the others it learns of."""
STARVED = 0.05
"""Of the agents' time: what they notice is above a tenth of a second each time, and only part of what they miss."""
BUSY = 3
"""Exit code when limits were missed on a machine that was too busy."""
PATIENCE_S = 60.0
QUIET_S = 10.0
POLL_S = 0.1
CALL_S = 30.0


@dataclass
class Outcome:
    """What was seen, in seconds."""

    agents: int
    full_s: float = 0.0
    deaths_s: list[float] = field(default_factory=list)
    leaves_s: list[float] = field(default_factory=list)
    starting_s: float = 0.0
    idle_cpu_percent: float = 0.0
    """Of one core, per agent."""
    memory_mib: float = 0.0
    """Of one agent, shared pages divided among those that share them."""
    lags_s: list[float] = field(default_factory=list)
    """Each time an agent noticed that it had been kept from running, after all had started."""
    watched_s: float = 0.0
    problems: list[str] = field(default_factory=list)

    @property
    def is_starved(self) -> bool:
        """Whether the machine had so little time for the agents that what is late says nothing of them."""
        return sum(self.lags_s) > STARVED * self.watched_s * self.agents

    def late(self) -> list[str]:
        """What all should have known sooner."""
        found = []
        rows = (
            ("full membership", [self.full_s], FULL_S),
            ("a death", self.deaths_s, DEATH_S),
            ("a leave", self.leaves_s, LEAVE_S),
        )
        for what, seen, limit in rows:
            late = [one for one in seen if one > limit]
            found += [f"{what} was known to all after {one:.2f} s, {limit:g} s is the limit" for one in late]
        return found

    def violations(self) -> list[str]:
        """Everything that must not be."""
        return self.problems + ([] if self.is_starved else self.late())

    def text(self) -> str:
        return "\n".join(
            (
                f"agents                        {self.agents} whole servers, started within {self.starting_s:.0f} s",
                f"one agent, idle               {self.idle_cpu_percent:.2f} % of a core, {self.memory_mib:.0f} MiB",
                f"kept from running             {len(self.lags_s)} times, together"
                f" {100 * sum(self.lags_s) / max(self.watched_s * self.agents, 1e-9):.2f} % of their time"
                + (": too often to be judged" if self.is_starved else ""),
                f"full membership               {self.full_s:.2f} s after the last start (limit {FULL_S:g})",
                f"kill -9 known to all          {_all(self.deaths_s)} s (limit {DEATH_S:g})",
                f"graceful leave known to all   {_all(self.leaves_s)} s (limit {LEAVE_S:g})",
            )
        )


class Agents:
    """The pool, and what is done to it. Agents are called by the names under which gossip has them."""

    def __init__(self, directory: Path, run: Run, count: int, say: Callable[[str], None]) -> None:
        self.servers: dict[str, Server] = {}
        self._say = say
        triples = _triples(count)
        wan = [f"{HOST}:{serf}" for _, _, serf in triples[:SEEDS]]
        for number, (http, rpc, serf) in enumerate(triples, 1):
            name, region = f"a{number:02}", f"r{number:02}"
            server = Server(name, directory / name, http, rpc, serf, wan=wan, region=region, bootstrap_expect=1)
            server.top = f"{TOP}\nleave_on_terminate = true"
            server.extra = 'disk_soft_limit = "0B"'
            server.prefix = run.leash
            self.servers[f"{name}.{region}"] = server
        self.news = News({name: server.log for name, server in self.servers.items()})
        self.gone: dict[str, frozenset[str]] = {}
        """Who was killed or has left, and what others should think of it."""

    @property
    def alive(self) -> list[str]:
        return [name for name in self.servers if name not in self.gone]

    def start(self) -> float:
        """Start all, a few at a time; when the last one said that it runs."""
        waiting = list(self.servers)
        starting: list[str] = []
        while waiting or starting:
            while waiting and len(starting) < AT_ONCE:
                starting.append(waiting.pop(0))
                self.servers[starting[-1]].start()
            self._wait_started(starting)
        return max(at for name in self.servers if (at := self.news.started_at(name)) is not None)

    def _wait_started(self, starting: list[str]) -> None:
        """Until at least one of them runs."""
        until = time.monotonic() + START_S * 2
        while True:
            self.news.read()
            for name in list(starting):
                server = self.servers[name]
                assert server.is_alive, f"{name} ended\n{server.tail()}"
                if self.news.started_at(name) is not None:
                    starting.remove(name)
                    return
            assert time.monotonic() < until, f"{starting} do not start\n{self.servers[starting[0]].tail()}"
            time.sleep(0.02)

    def wait_known(self, abouts: list[str], kinds: frozenset[str]) -> float:
        """When all that live knew it of all of these."""
        until = time.monotonic() + PATIENCE_S
        while True:
            self.news.read()
            at = self.news.all_know_at(abouts, kinds, self.alive)
            if at is not None:
                return at
            missing = self.news.missing(abouts, kinds, self.alive)
            assert time.monotonic() < until, f"still not known after {PATIENCE_S:g} s: {missing[:10]} ({len(missing)})"
            time.sleep(POLL_S)

    def kill(self, name: str) -> float:
        """kill -9; how long it took until all knew."""
        self._say(f"kill -9 of {name}")
        self.gone[name] = FAILED
        began = time.time()
        self.servers[name].kill()
        return self.wait_known([name], FAILED) - began

    def leave(self, name: str) -> float:
        """SIGTERM to one that leaves for good; how long it took until all knew."""
        self._say(f"{name} leaves")
        self.gone[name] = LEFT
        server = self.servers[name]
        assert server.process is not None
        began = time.time()
        server.process.terminate()
        took = self.wait_known([name], LEFT) - began
        server.wait_exit(CALL_S)
        return took

    def answers(self) -> list[str]:
        """Ask every agent by its interface who is there: it must say what its log says."""
        problems = []
        for name in self.alive:
            server = self.servers[name]
            with connect(server.address, CALL_S) as caller:
                reply, _ = caller.ask(SERVER_MEMBERS, Empty(), timeout_s=CALL_S)
            said = {member.name: member.status for member in reply.members}
            up = {member for member, status in said.items() if status is MemberStatus.ALIVE}
            problems += [f"{name} does not list {one} as alive" for one in sorted(set(self.alive) - up)]
            problems += [f"{name} lists {one} as alive" for one in sorted(up & set(self.gone))]
        return problems

    def end(self) -> None:
        """At once: nothing here is to be kept."""
        for server in self.servers.values():
            if server.process is not None and server.is_alive:
                server.process.kill()
        for server in self.servers.values():
            server.kill()


def measure(
    directory: Path,
    count: int,
    *,
    kills: int,
    leaves: int,
    seed: int = 1,
    quiet_s: float = QUIET_S,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """The whole story; a minute or two for 48 of them."""
    outcome = Outcome(count)
    chance = random.Random(seed)
    with guarded(directory) as run:
        agents = Agents(directory, run, count, say)
        try:
            began = time.monotonic()
            say(f"{count} agents start, {AT_ONCE} at a time ...")
            last_start = agents.start()
            outcome.starting_s = time.monotonic() - began
            full = agents.wait_known(list(agents.servers), UP)
            outcome.full_s = max(0.0, full - last_start)
            say(f"all know all; now {quiet_s:g} s of nothing ...")
            outcome.idle_cpu_percent, outcome.memory_mib = _idle(agents.servers, quiet_s)
            victims = chance.sample(agents.alive[SEEDS:], kills + leaves)
            outcome.deaths_s = [agents.kill(name) for name in victims[:kills]]
            outcome.leaves_s = [agents.leave(name) for name in victims[kills:]]
            outcome.problems += agents.answers()
            outcome.lags_s = agents.news.lags(last_start)
            outcome.watched_s = time.time() - last_start
            wrong = agents.news.failures(full, lambda name: agents.gone.get(name) is FAILED)
            outcome.problems += [f"wrongly taken for failed: {one}" for one in wrong]
        finally:
            agents.end()
    return outcome


def _triples(count: int) -> list[tuple[int, int, int]]:
    ports = free_ports(3 * count)
    return [(ports[at], ports[at + 1], ports[at + 2]) for at in range(0, len(ports), 3)]


def _idle(servers: Mapping[str, Server], for_s: float) -> tuple[float, float]:
    """Percent of a core and MiB, of one agent on average, while nothing is asked of any."""
    before = sum(_cpu_s(server.pid) for server in servers.values())
    began = time.monotonic()
    time.sleep(for_s)
    used = sum(_cpu_s(server.pid) for server in servers.values()) - before
    share = 100 * used / (time.monotonic() - began) / len(servers)
    memory = sum(_memory_kib(server.pid) for server in servers.values()) / 1024 / len(servers)
    return share, memory


def _cpu_s(pid: int) -> float:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / os.sysconf("SC_CLK_TCK")


def _memory_kib(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))


def _all(seen: list[float]) -> str:
    return ", ".join(f"{one:.2f}" for one in seen) or "-"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wan.agents", description=__doc__)
    parser.add_argument("--agents", type=int, default=48, help="how many (default 48)")
    parser.add_argument("--kills", type=int, default=2, help="how many are killed, one after the other (default 2)")
    parser.add_argument("--leaves", type=int, default=2, help="how many leave, one after the other (default 2)")
    parser.add_argument("--seed", type=int, default=1, help="says which of them")
    given = parser.parse_args(arguments)
    if given.agents < SEEDS + given.kills + given.leaves + 1:
        parser.error(f"--agents {given.agents} is too few for {given.kills} kills and {given.leaves} leaves")
    directory = Path(tempfile.mkdtemp(prefix="fedsched-agents-"))
    began = time.monotonic()
    try:
        outcome = measure(
            directory,
            given.agents,
            kills=given.kills,
            leaves=given.leaves,
            seed=given.seed,
            say=lambda text: print(text, flush=True),
        )
    except AssertionError as error:
        print(f"FAILED: {error}\nlogs are in {directory}")
        return 1
    violations = outcome.violations()
    untold = [] if violations else outcome.late()
    print(outcome.text())
    verdict = "FAILED" if violations else "the machine was too busy to tell" if untold else "all hold"
    print(f"in {time.monotonic() - began:.0f} s on {AT_ONCE} cores, load {os.getloadavg()[0]:.1f}: {verdict}")
    for violation in (violations or untold)[:20]:
        print(f"  {violation}")
    if violations:
        print(f"logs are in {directory}")
    else:
        shutil.rmtree(directory)
    return 1 if violations else BUSY if untold else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
