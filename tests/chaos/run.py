"""One chaos run from start to verdict: region, links, clients, nemesis, then the checks."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from fedsched.model.errors import FedschedError
from fedsched.sim.linear import GET, Operation
from tests.chaos import checks
from tests.chaos.jobs import JobRegister, read_final
from tests.chaos.leftovers import Run
from tests.chaos.links import Links, ProxyLinks
from tests.chaos.namespaces import NamespaceLinks, missing
from tests.chaos.nemesis import Monitor, Nemesis
from tests.chaos.plan import Plan
from tests.chaos.report import Report
from tests.chaos.watchdog import guarded
from tests.chaos.workload import Record, Workload, make_workload
from tests.e2e.calls import look
from tests.e2e.region import Region, running_region
from tests.e2e.view import wait_leader, wait_level

SETTLE_S = 60.0
"""What the healed region is given to bring all servers to one state."""

SERVER_EXTRA = 'raft_snapshot_threshold = 1000\nraft_snapshot_size = "256KiB"\nraft_trailing_logs = 200'
"""Small enough for a run to see compaction and snapshots sent to servers that were away."""


PROXY, NAMESPACES, AUTO = "proxy", "namespaces", "auto"


def choose_links(wanted: str) -> tuple[str, str]:
    """What the links will be made of, and why not of something better when that was left open."""
    if wanted == PROXY:
        return PROXY, ""
    problem = missing()
    if problem and wanted == NAMESPACES:
        raise SystemExit(f"no network namespaces here: {problem}")
    return (PROXY, f"no network namespaces here: {problem}") if problem else (NAMESPACES, "")


def make_links(kind: str, directory: Path, run: Run) -> Links:
    if kind == NAMESPACES:
        return NamespaceLinks(directory, run)
    return ProxyLinks(directory / "proxy.log", environment=run.environment)


@dataclass
class Chaos:
    """Everything one run needs to know. `directory` gets plan, history, logs and result."""

    plan: Plan
    directory: Path
    servers: int = 3
    links: str = PROXY
    program: list[str] = field(default_factory=lambda: ["-m", "fedsched"])
    """What each server's interpreter runs."""
    resume_p99_s: float = checks.RESUME_P99_S
    resume_max_s: float = checks.RESUME_MAX_S
    progress: Callable[[str], None] = lambda _: None

    def run(self) -> Report:
        """Do it all. However this process ends, agents and namespaces end with it, and `directory` stays."""
        began = time.monotonic()
        (self.directory / "plan.json").write_text(self.plan.to_json())
        with guarded(self.directory) as run:
            report = self._run_as(run)
        report.seconds = time.monotonic() - began
        (self.directory / "result.json").write_text(report.to_json())
        return report

    def _run_as(self, run: Run) -> Report:
        links = make_links(self.links, self.directory, run)
        try:
            with running_region(
                self.directory, self.servers, extra=SERVER_EXTRA, route=links.route, start=False
            ) as region:
                for server in region.servers.values():
                    server.program = self.program
                    server.prefix = [*run.leash, *server.prefix]
                region.start()
                wait_leader(region, look)
                return self._storm(region, links)
        finally:
            links.close()

    def _storm(self, region: Region, links: Links) -> Report:
        monitor = Monitor(region, look)
        addresses = [server.address for server in region.servers.values()]
        workload = make_workload(
            self.plan.seed,
            lambda number: JobRegister(addresses, number, self.plan.seed),
            self.directory / "history.jsonl",
        )
        nemesis = Nemesis(region, links, monitor, workload.record, self.plan, self._say(workload.record))
        monitor.start()
        workload.start()
        try:
            nemesis.run(time.monotonic() + self.plan.minutes * 60 + 30)
        finally:
            client_problems = workload.stop()
            monitor.stop()
        found = {"clients ended well": client_problems, "faults healed": nemesis.problems}
        found["one leader per term"] = monitor.problems
        return self._judge(region, links, workload, nemesis, found)

    def _judge(
        self, region: Region, links: Links, workload: Workload, nemesis: Nemesis, found: dict[str, list[str]]
    ) -> Report:
        self.progress("settling")
        record = workload.record
        found["equal state at the end"] = _problems_of(lambda: wait_level(region, look, within_s=SETTLE_S))
        final, found["every server answers at the end"] = self._final_reads(region, record)
        figures = {"memory of servers MiB": _memory(region), "proxy": json.dumps(links.statistics())}
        restarts = sum(server.starts - 1 for server in region.servers.values())
        codes = region.stop()
        self.progress("checking histories")
        found["every history linearizable"] = checks.linearizable(record.operations)
        found["no acknowledged write lost"] = checks.acknowledged_writes_kept(record.operations, final)
        found["stale reads never go back"] = record.stale_problems
        found["no traceback in any log"] = checks.logs_clean({**region.logs(), **links.logs()})
        found["SIGTERM ends all with 0"] = checks.exits_clean(codes)
        found["writes resume in time"] = checks.resumed_in_time(nemesis.outcomes, self.resume_p99_s, self.resume_max_s)
        found["enough happened"] = checks.enough_done(nemesis.outcomes, record.counts, self.plan.minutes)
        return Report(
            seed=self.plan.seed,
            minutes=self.plan.minutes,
            seconds=0.0,
            commit=commit(),
            links=self.links,
            outcomes=nemesis.outcomes,
            counts=record.counts,
            keys=len(final),
            violations=[f"{name}: {problem}" for name, problems in found.items() for problem in problems],
            checks={name: len(problems) for name, problems in found.items()},
            figures={**figures, "restarts": restarts},
        )

    def _final_reads(self, region: Region, record: Record) -> tuple[dict[str, tuple[str | None, int]], list[str]]:
        """Read every key once more, from each server in turn; the reads are part of the history."""
        keys = sorted({operation.key for operation in record.operations})
        final: dict[str, tuple[str | None, int]] = {}
        problems = []
        for server in region.servers.values():
            try:
                for key, call, seen, ret in read_final(server.address, keys):
                    final[key] = (seen.value, seen.index)
                    result = [seen.value, seen.index]
                    record.operations.append(
                        Operation(client=f"final-{server.name}", op=GET, key=key, result=result, call=call, ret=ret)
                    )
            except FedschedError as error:
                problems.append(f"{server.name}: {error}\n{server.tail()}")
        return final, problems

    def _say(self, record: Record) -> Callable[[str], None]:
        done = 0

        def say(fault: str) -> None:
            nonlocal done
            done += 1
            self.progress(f"{done}/{len(self.plan.steps)} {fault}; {len(record.operations)} operations")

        return say


def _problems_of(wait: Callable[[], object]) -> list[str]:
    try:
        wait()
    except AssertionError as error:
        return [str(error)]
    return []


def _memory(region: Region) -> str:
    sizes = []
    for server in region.alive():
        status = Path(f"/proc/{server.pid}/status")
        if status.exists():
            [line] = [line for line in status.read_text().splitlines() if line.startswith("VmRSS")]
            sizes.append(f"{server.name} {int(line.split()[1]) // 1024}")
    return ", ".join(sizes)


def commit() -> str:
    """The commit under test, with a mark when the tree differs from it; empty outside a checkout."""
    root = Path(__file__).parent
    try:
        named = subprocess.run(
            ["git", "-C", str(root), "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return named.stdout.strip()


def progress_line(text: str) -> None:
    """One line that is rewritten on a terminal, and one line each elsewhere."""
    end = "\r" if sys.stderr.isatty() else "\n"
    width = 110 if sys.stderr.isatty() else 0
    print(text[:width].ljust(width) if width else text, end=end, file=sys.stderr, flush=True)
