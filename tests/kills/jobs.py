"""The jobs of a run: small tasks that write into the ledger."""

from __future__ import annotations

from pathlib import Path

from fedsched.model.alloc import Allocation
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.policies import ReschedulePolicy, RestartPolicy
from fedsched.model.resources import Resources
from fedsched.model.task import Task
from tests.kills.ledger import FOR_EVER, SCRIPT

CODES = (0, 3, 7)


def a_batch(name: str, count: int, ledger: Path, *, tenths: int) -> Job:
    """Tasks that end by themselves, with exit codes by their number; nobody starts them a second time."""
    code = " ".join(str(one) for one in CODES)
    choose = f'set -- {tenths} $(echo {code} | cut -d" " -f$((FEDSCHED_ALLOC_INDEX % {len(CODES)} + 1)))\n'
    return _job(name, "batch", count, ledger, choose + SCRIPT)


def a_service(name: str, count: int, ledger: Path, *, tenths: int = 0) -> Job:
    """Tasks that run until they are told to end."""
    return _job(name, "service", count, ledger, f"set -- {FOR_EVER} 0\n" + SCRIPT)


def exit_code_of(alloc: Allocation) -> int:
    """What a batch task of this allocation ends with."""
    index = int(alloc.name.rpartition("[")[2].removesuffix("]"))
    return CODES[index % len(CODES)]


def _job(name: str, kind: str, count: int, ledger: Path, script: str) -> Job:
    task = Task(
        name="task",
        driver="raw_exec",
        config={"command": "/bin/sh", "args": ["-c", script]},
        env={"LEDGER": str(ledger)},
        resources=Resources(cpu=10, memory_mb=16),
        kill_timeout_s=2.0,
    )
    group = TaskGroup(
        name="group",
        count=count,
        tasks=(task,),
        restart_policy=RestartPolicy(attempts=0, mode="fail"),
        reschedule_policy=ReschedulePolicy(attempts=0, unlimited=False),
    )
    return Job(id=name, name=name, type=kind, task_groups=(group,))
