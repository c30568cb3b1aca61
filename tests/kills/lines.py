"""The other proof: numbered lines from a task to a reader, through small log files, cuts, killed agents and servers.

    python -m tests.kills.lines --lines 1000000 --cuts 100

The reader goes on from its last place after every cut, at whichever server answers. Every number must come once, in
order, and no line may be split.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedsched.model.errors import FedschedError
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.policies import EphemeralDisk, ReschedulePolicy, RestartPolicy
from fedsched.model.resources import Resources
from fedsched.model.task import LogConfig, Task
from fedsched.rpc.methods.alloc_access import ALLOC_LOGS, AllocLogsRequest, FileFrame, LogPlace
from fedsched.rpc.methods.job import JOB_REGISTER, JobRegisterRequest
from fedsched.sdk.connect import connect
from tests.e2e.calls import look
from tests.e2e.hosts import Asker, HostAgent, running_host, until
from tests.e2e.region import Region, running_region
from tests.e2e.view import wait_leader
from tests.kills import agent as killing

FILE_BYTES = 64 << 10
SILENCE_S = 60.0
"""Without a single byte for so long, the reader gives up."""

WRITER = """\
import sys, time
count, per_turn = int(sys.argv[1]), int(sys.argv[2])
for start in range(0, count, per_turn):
    sys.stdout.write("".join(f"{number}\\n" for number in range(start, min(start + per_turn, count))))
    sys.stdout.flush()
    time.sleep(0.01)
time.sleep(3600)
"""


@dataclass
class Lines:
    """What a reader has seen so far, and whether it is what it should be."""

    wanted: int = 0
    rest: bytes = b""
    problem: str = ""

    def take(self, data: bytes) -> None:
        *lines, self.rest = (self.rest + data).split(b"\n")
        for line in lines:
            if line != str(self.wanted).encode():
                self.problem = self.problem or f"line {self.wanted} is {line[:60]!r}"
                return
            self.wanted += 1


@dataclass
class Outcome:
    lines: int = 0
    cuts: int = 0
    agent_kills: int = 0
    server_kills: int = 0
    files: int = 0
    problem: str = ""

    def text(self) -> str:
        return (
            f"{self.lines:,} lines over {self.files} files, {self.cuts} cuts, {self.agent_kills} agents and "
            f"{self.server_kills} servers killed: {self.problem or 'no gap, no duplicate'}"
        )


class Reader:
    """Reads until a moment, then goes away without a word, and later goes on from where it was."""

    def __init__(self, region: Region, alloc_id: str, chance: random.Random) -> None:
        self._region = region
        self._alloc_id = alloc_id
        self._chance = chance
        self.seen = Lines()
        self.place: LogPlace | None = None
        self.last_news = time.monotonic()

    def read(self, for_s: float, upto: int) -> None:
        """One connection; weather only ends it early."""
        server = self._chance.choice(self._region.alive())
        request = AllocLogsRequest(alloc_id=self._alloc_id, task="task", follow=True, place=self.place)
        deadline = time.monotonic() + for_s
        try:
            with connect(server.address) as client:
                stream = client.open_stream(ALLOC_LOGS, request)
                while time.monotonic() < deadline and self.seen.wanted < upto and not self.seen.problem:
                    frame = stream.take()
                    if frame is not None:
                        self._take(frame)
                    elif stream.is_over:
                        stream.reply()
                        return
                    else:
                        client.wait(0.2)
        except FedschedError:
            time.sleep(0.1)

    def _take(self, frame: FileFrame) -> None:
        if frame.missed_files:
            self.seen.problem = f"{frame.missed_files} files were rotated away"
        if frame.data:
            self.last_news = time.monotonic()
            self.seen.take(frame.data)
        if frame.file:
            self.place = LogPlace(file=int(frame.file.rpartition(".")[2]), offset=frame.offset)


def a_writer(lines: int, per_turn: int) -> Job:
    task = Task(
        name="task",
        driver="raw_exec",
        config={"command": sys.executable, "args": ["-c", WRITER, str(lines), str(per_turn)]},
        resources=Resources(cpu=50, memory_mb=64),
        log_config=LogConfig(max_files=100_000, max_file_size_mb=1),
    )
    group = TaskGroup(
        name="group",
        count=1,
        tasks=(task,),
        ephemeral_disk=EphemeralDisk(size_mb=200_000),
        restart_policy=RestartPolicy(attempts=0, mode="fail"),
        reschedule_policy=ReschedulePolicy(attempts=0, unlimited=False),
    )
    return Job(id="writer", name="writer", type="service", task_groups=(group,))


def run(
    directory: Path,
    *,
    lines: int,
    cuts: int,
    agent_kills: int,
    server_kills: int,
    seed: int,
    say: Callable[[str], None],
) -> Outcome:
    chance = random.Random(seed)
    program = ["-m", "tests.kills.agent"]
    environ = {killing.LOG_FILE_BYTES: str(FILE_BYTES)}
    extra = "disk_total_mb = 1000000"
    with (
        running_region(directory, 3) as region,
        running_host(region, directory, program=program, environ=environ, extra=extra) as host,
    ):
        asker = Asker(region)
        until("the node is ready", lambda: asker.ready_nodes() == ["host1"], 60.0, host)
        asker.ask(JOB_REGISTER, JobRegisterRequest(job=a_writer(lines, max(50, lines // 5_000))))
        until("it runs", lambda: "running" in asker.statuses("writer").values(), 60.0, host)
        (alloc_id,) = asker.statuses("writer")
        reader = Reader(region, alloc_id, chance)
        outcome = Outcome()
        hits = _hits(chance, lines, agent_kills, server_kills)
        while reader.seen.wanted < lines and not reader.seen.problem:
            step = max(1, lines // max(1, cuts))
            reader.read(5.0, min(lines, reader.seen.wanted + chance.randrange(1, 2 * step)))
            outcome.cuts += 1
            if not outcome.cuts % 10:
                say(f"{reader.seen.wanted:,} of {lines:,} lines, {outcome.cuts} cuts")
            while hits and reader.seen.wanted >= hits[0][0]:
                _strike(hits.pop(0)[1], region, host, outcome)
                say(
                    f"{reader.seen.wanted:,} of {lines:,} lines, {outcome.cuts} cuts, "
                    f"{outcome.agent_kills} agents and {outcome.server_kills} servers killed"
                )
            if time.monotonic() - reader.last_news > SILENCE_S:
                reader.seen.problem = f"silence after line {reader.seen.wanted}"
        outcome.lines, outcome.problem = reader.seen.wanted, reader.seen.problem
        outcome.files = reader.place.file + 1 if reader.place else 0
        return outcome


def _hits(chance: random.Random, lines: int, agents: int, servers: int) -> list[tuple[int, str]]:
    """After which line whom to kill."""
    kinds = ["agent"] * agents + ["server"] * servers
    return sorted((chance.randrange(1, max(2, lines * 9 // 10)), kind) for kind in kinds)


def _strike(kind: str, region: Region, host: HostAgent, outcome: Outcome) -> None:
    if kind == "agent":
        host.kill()
        host.start()
        outcome.agent_kills += 1
        return
    leader = wait_leader(region, look)
    region.servers[leader].kill()
    wait_leader(region, look)
    region.start([leader])
    outcome.server_kills += 1


def main() -> int:
    parser = argparse.ArgumentParser(description="numbered lines through small log files, cuts and kills")
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--cuts", type=int, default=100)
    parser.add_argument("--agents", type=int, default=10)
    parser.add_argument("--servers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fedsched-lines-") as directory:
        outcome = run(
            Path(directory),
            lines=given.lines,
            cuts=given.cuts,
            agent_kills=given.agents,
            server_kills=given.servers,
            seed=given.seed,
            say=lambda text: print(text, flush=True),
        )
    print(outcome.text())
    return 1 if outcome.problem else 0


if __name__ == "__main__":
    sys.exit(main())
