"""The proof: one server, one client agent, many tasks, and an agent that is killed again and again.

Each round starts the agent, sometimes with a step at which it kills itself, else kills it after a random while.
Meanwhile jobs are registered and stopped, until the step has come. In the end everything is stopped, and what tasks
wrote down themselves (see `ledger`) is compared with what the region says: no task ran twice, none is lost, no exit
code is wrong; every task that ran through was found again within `REATTACH_S` of the agent's start; nothing is left
behind. Lanes are such runs side by side, each with a server, an agent and a seed of its own: half a round is waiting.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from fedsched.model.alloc import Allocation
from fedsched.model.errors import FedschedError
from fedsched.model.job import Job
from fedsched.rpc.methods.job import JOB_DEREGISTER, JOB_REGISTER, JobDeregisterRequest, JobRegisterRequest
from fedsched.rpc.methods.node_calls import ALLOC_SIGNAL, AllocSignalRequest
from tests.e2e.hosts import Asker, HostAgent, running_host, until
from tests.e2e.region import running_region
from tests.kills import agent as killing
from tests.kills import ledger, left_behind
from tests.kills.jobs import a_batch, a_service, exit_code_of

REATTACH_S = 5.0
SETTLE_S = 120.0
LIVES_S = (0.1, 1.5)
"""How long an agent lives that does not kill itself, counted from when it is up."""
STEP_S = 6.0
"""How much longer one lives that waits for its step."""
STIR_S = 0.4
"""How often something is registered or stopped while a step is waited for: steps come of that."""
JOBS_AT_ONCE = 6
PER_JOB = 3
CHANCE_OF_STEP = 0.6


@dataclass
class Outcome:
    """What came of a run. A list of problems for each promise, so that the figures say which one was broken."""

    kills: int = 0
    at_steps: Counter[str] = field(default_factory=Counter)
    tasks: int = 0
    exit_codes: int = 0
    reattached: int = 0
    slowest_reattach_s: float = 0.0
    overlaps: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    wrong_codes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)

    @property
    def problems(self) -> list[str]:
        return [*self.overlaps, *self.lost, *self.wrong_codes, *self.left, *self.refused]

    def add(self, other: Outcome) -> None:
        """Take in what came of another lane."""
        self.kills += other.kills
        self.at_steps += other.at_steps
        self.tasks += other.tasks
        self.exit_codes += other.exit_codes
        self.reattached += other.reattached
        self.slowest_reattach_s = max(self.slowest_reattach_s, other.slowest_reattach_s)
        for name in ("overlaps", "lost", "wrong_codes", "left", "refused"):
            getattr(self, name).extend(getattr(other, name))

    def violations(self) -> list[str]:
        """Everything that must not be, the time to find tasks again included."""
        found = self.problems
        if self.slowest_reattach_s > REATTACH_S:
            found.append(f"re-attaching took {self.slowest_reattach_s:.2f} s, {REATTACH_S:g} s at most are allowed")
        return found

    def text(self) -> str:
        return (
            f"{self.kills} kills ({self.at_steps.total()} of them at steps of a task's life), {self.tasks} tasks: "
            f"{len(self.overlaps)} ran twice, {len(self.lost)} lost, {len(self.wrong_codes)} of {self.exit_codes} exit "
            f"codes wrong, {self.reattached} re-attached, the slowest within {self.slowest_reattach_s:.2f} s, "
            f"{len(self.left)} processes, mounts or cgroups left, {len(self.refused)} calls failed"
        )

    def steps_text(self) -> str:
        return ", ".join(f"{name} {count}" for name, count in sorted(self.at_steps.items()))


class Kills:
    """One run."""

    def __init__(self, host: HostAgent, asker: Asker, ledger_path: Path, seed: int) -> None:
        self.host = host
        self.asker = asker
        self.ledger = ledger_path
        self.chance = random.Random(seed)
        self.outcome = Outcome()
        self.jobs: list[Job] = []
        self.stopped: set[str] = set()
        self.last_refusal = ""

    # ---- rounds ---------------------------------------------------------------------------------------------

    def round(self) -> None:
        """One life of the agent, and its end."""
        step = self._choose_step()
        self.host.environ[killing.AT] = step
        self.host.start()
        began = time.monotonic()
        ends_by_itself = bool(step)
        self._wait_up()
        if not ends_by_itself:
            self._all_attached(began)
        self._stir()
        lives_s = self.chance.uniform(*LIVES_S)
        began = stirred = time.monotonic()
        while self.host.is_alive and time.monotonic() - began < lives_s + STEP_S * ends_by_itself:
            time.sleep(0.02)
            if ends_by_itself and time.monotonic() - stirred > STIR_S:
                self._stir()
                stirred = time.monotonic()
        if self.host.is_alive:
            self.host.kill()
        elif ends_by_itself:
            self.outcome.at_steps[":".join(step.split(":")[:2])] += 1
        self.outcome.kills += 1

    def _choose_step(self) -> str:
        if self.chance.random() > CHANCE_OF_STEP:
            return ""
        name = self.chance.choice(sorted(killing.STEPS))
        return f"{name}:{self.chance.choice(killing.SIDES)}:{self.chance.randrange(1, 5)}"

    def _wait_up(self) -> None:
        until("the agent is up", lambda: self.host.answers() or not self.host.is_alive, 30.0, self.host)

    def _stir(self) -> None:
        """Register a job, or stop one."""
        live = [job for job in self.jobs if job.id not in self.stopped]
        try:
            if len(live) < JOBS_AT_ONCE:
                self._register()
            else:
                self._stop(self.chance.choice(live))
        except FedschedError as error:
            self.outcome.refused.append(f"a call failed: {error}")

    def _register(self) -> None:
        number = len(self.jobs)
        make: Callable[..., Job] = a_service if self.chance.random() < 0.5 else a_batch
        job = make(f"job-{number}", PER_JOB, self.ledger, tenths=self.chance.randrange(2, 40))
        self.asker.ask(JOB_REGISTER, JobRegisterRequest(job=job))
        self.jobs.append(job)

    def _stop(self, job: Job) -> None:
        self.asker.ask(JOB_DEREGISTER, JobDeregisterRequest(job_id=job.id))
        self.stopped.add(job.id)

    # ---- the end --------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """A last agent that lives: batch jobs run to their end, services are stopped."""
        self.host.environ[killing.AT] = ""
        self.host.start()
        began = time.monotonic()
        self._wait_up()
        self._all_attached(began)
        for job in self.jobs:
            if job.type == "service" and job.id not in self.stopped:
                self._stop(job)
        until("everything has ended", self._all_ended, SETTLE_S, self.host)

    def _all_attached(self, began: float) -> None:
        """Signal every running task; whoever hears it is in the agent's hands."""
        services = {job.id for job in self.jobs if job.type == "service"}
        running = [one for one in self.asker.stubs() if one.client_status.value == "running"]
        wanted = {one.id for one in running if one.desired_status.value == "run" and one.job_id in services}

        before = len(ledger.read(self.ledger))

        def heard() -> bool:
            told = {line.alloc_id for line in ledger.read(self.ledger)[before:] if line.what == "usr1"}
            for alloc_id in wanted - told:
                self._signal(alloc_id)
            return wanted <= told

        try:
            until("every running task hears a signal", heard, 30.0, self.host, poll_s=0.05)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.last_refusal}\n{self._story(wanted)}") from None
        self.outcome.reattached += len(wanted)
        self.outcome.slowest_reattach_s = max(self.outcome.slowest_reattach_s, time.monotonic() - began)

    def _story(self, wanted: set[str]) -> str:
        """What both sides say about allocations that did not hear their signal."""
        lines = ledger.read(self.ledger)
        told = {line.alloc_id for line in lines if line.what == "usr1"}
        found = []
        for alloc in self.asker.allocs():
            if alloc.id in wanted - told:
                events = [
                    (event.type, event.message or event.display_message) for event in alloc.task_states["task"].events
                ]
                found.append(f"{alloc.id} of {alloc.job_id}: {alloc.client_status.value}, {events}")
                found += [f"    {line}" for line in lines if line.alloc_id == alloc.id]
        return "\n".join(found)

    def _signal(self, alloc_id: str) -> None:
        try:
            self.asker.ask(ALLOC_SIGNAL, AllocSignalRequest(alloc_id=alloc_id, task="task", signal="SIGUSR1"))
        except FedschedError as error:
            self.last_refusal = str(error)  # its agent is not linked yet: asked again until the time is up

    def _all_ended(self) -> bool:
        return all(one.client_status.is_terminal for one in self.asker.stubs())

    def judge(self) -> None:
        """Compare the two stories, and see what is left of them."""
        judge(self.outcome, ledger.read(self.ledger), self.asker.allocs())
        self.host.stop()
        helpers = {pid: text for pid, text in left_behind.processes(self.host.mark).items() if "warm" not in text}
        self.outcome.left += [f"process {pid} is left: {text}" for pid, text in helpers.items()]
        places = left_behind.mounts(self.host.alloc_dir) + left_behind.cgroups(self.host.cgroup_parent)
        self.outcome.left += [f"left: {place}" for place in places]


def judge(outcome: Outcome, lines: list[ledger.Line], known: list[Allocation]) -> None:
    """What tasks wrote down, against what the region says of them."""
    starts, ends = ledger.starts(lines), ledger.ends(lines)
    allocs = {one.id: one for one in known}
    outcome.tasks += len(starts)
    for (alloc_id, task), count in starts.items():
        if count > 1:
            outcome.overlaps.append(f"{alloc_id}/{task} was started {count} times")
        if alloc_id not in allocs:
            outcome.lost.append(f"{alloc_id}/{task} ran, and the region does not know it")
    for alloc in allocs.values():
        _judge_alloc(outcome, alloc, starts, ends)


def _judge_alloc(
    outcome: Outcome, alloc: Allocation, starts: Counter[tuple[str, str]], ends: dict[tuple[str, str], int]
) -> None:
    key = (alloc.id, "task")
    state = alloc.task_states.get("task")
    was_wanted = alloc.desired_status.value == "run"
    if key not in starts:
        if was_wanted:
            outcome.lost.append(f"{alloc.id} of {alloc.job_id} is {alloc.client_status.value} and never ran")
        return
    if state is None:
        outcome.lost.append(f"{alloc.id} of {alloc.job_id} ran, and nothing is known of its task")
        return
    if not was_wanted or alloc.job is None or alloc.job.type != "batch":
        return
    wanted = exit_code_of(alloc)
    told = [event.exit_code for event in state.events if event.type == "Terminated"]
    outcome.exit_codes += 1
    if ends.get(key) != wanted or told != [wanted]:
        outcome.wrong_codes.append(f"{alloc.id}: ended with {ends.get(key)}, told {told}, wanted {wanted}")
    elif (alloc.client_status.value == "failed") != bool(wanted):
        outcome.wrong_codes.append(f"{alloc.id} ended with {wanted} and is {alloc.client_status.value}")


def run(directory: Path, kills: int, seed: int, say: Callable[[str], None] = print) -> Outcome:
    """Kill an agent so often, and tell what came of it."""
    program = ["-m", "tests.kills.agent"]
    with running_region(directory, 1) as region, running_host(region, directory, program=program) as host:
        asker = Asker(region)
        host.kill()
        proof = Kills(host, asker, directory / "ledger", seed)
        for number in range(1, kills + 1):
            proof.round()
            if not number % 10:
                so_far = proof.outcome
                say(
                    f"{number} of {kills} kills ({so_far.at_steps.total()} at steps), {len(proof.jobs)} jobs, "
                    f"slowest re-attach {so_far.slowest_reattach_s:.2f} s, {len(so_far.problems)} problems"
                )
        proof.settle()
        proof.judge()
        return proof.outcome


def run_lanes(directory: Path, kills: int, seed: int, lanes: int, say: Callable[[str], None] = print) -> Outcome:
    """The same in several lanes side by side, each with its share of the kills; a lane that breaks off is raised."""
    shares = [kills // lanes + (number < kills % lanes) for number in range(lanes)]
    total = Outcome()
    with ThreadPoolExecutor(lanes) as pool:
        running = []
        for number, share in enumerate(shares):
            place = directory / f"lane{number}"
            place.mkdir()
            running.append(pool.submit(run, place, share, seed + 1000 * number, partial(_say_lane, say, number)))
        for one in running:
            total.add(one.result())
    return total


def _say_lane(say: Callable[[str], None], number: int, text: str) -> None:
    say(f"lane {number}: {text}")
