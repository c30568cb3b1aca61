"""Tasks in isolation without drivers or clients: directories, a plan, and a small supervisor that carries it out."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsched.drivers.driver import TaskConfig, TaskDirs
from fedsched.drivers.isolation.capabilities import TaskCapabilities, task_capabilities
from fedsched.drivers.isolation.plan import CHROOT_ENV, Bind, IsolationPlan, system_binds, task_binds
from fedsched.drivers.isolation.users import TaskUser, find_user

PYTHON = "/opt/python"
"""Where tasks find the interpreter that runs the tests."""
SUPERVISOR = [sys.executable, "-m", "tests.drivers.jail_supervisor"]
REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class Outcome:
    status: int = 0
    """Exit code, or the signal below 0."""
    output: str = ""
    failure: str = ""
    found: list[tuple[int, str]] = field(default_factory=list)
    pid: int = 0
    keeper: Mapping[str, str] = field(default_factory=dict)
    """What the kernel says about the process that holds the task's namespaces."""


@functools.cache
def obstacle() -> str:
    """Why this host has no namespaces for root, asked of another program than ours: where they are, all must work."""
    if os.geteuid() != 0:
        return "not root"
    try:
        done = subprocess.run(
            ["unshare", "-m", "-p", "-i", "-f", "--mount-proc", "true"], capture_output=True, check=False
        )
    except OSError as error:
        return f"unshare: {error.strerror}"
    return done.stderr.decode().strip() if done.returncode else ""


def task_dirs(tmp_path: Path, task: str = "web") -> TaskDirs:
    """An allocation's directories as the client makes them."""
    alloc = tmp_path / "alloc-1"
    dirs = TaskDirs(
        alloc=alloc,
        shared=alloc / "alloc",
        task=alloc / task,
        local=alloc / task / "local",
        secrets=alloc / task / "secrets",
        private=alloc / task / "private",
        logs=alloc / "alloc" / "logs",
    )
    for path in (dirs.shared / "data", dirs.logs, dirs.local, dirs.secrets, dirs.private, dirs.task / "tmp"):
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(0o777)
    (dirs.private / "token").write_text("the agent's own")
    (dirs.secrets / "key").write_text("the task's own")
    return dirs


def a_config(tmp_path: Path, **changed: Any) -> TaskConfig:
    fields: dict[str, Any] = {
        "id": "alloc-1/web/0a1b2c3d",
        "alloc_id": "alloc-1",
        "namespace": "default",
        "job_id": "job",
        "group": "group",
        "task": "web",
        "node_id": "node",
        "dirs": task_dirs(tmp_path),
    }
    return TaskConfig(**(fields | changed))


def a_plan(tmp_path: Path, **changed: Any) -> IsolationPlan:
    config = a_config(tmp_path)
    plan = IsolationPlan(
        root=config.dirs.task,
        user=find_user(""),
        capabilities=task_capabilities(),
        system=(*system_binds(CHROOT_ENV), Bind(sys.base_prefix, PYTHON)),
        binds=task_binds(config),
    )
    return replace(plan, **changed)


KEEPER = {
    "Name": "memfd:keeper",
    "CapPrm": "0000000000000000",
    "CapEff": "0000000000000000",
    "NoNewPrivs": "1",
    "Seccomp": "2",
}
"""What a keeper is: a sleeping program without rights."""
ROOT = TaskUser("root", 0, 0)
NO_CAPABILITIES = TaskCapabilities(frozenset(), frozenset())


def run(
    plan: IsolationPlan,
    *argv: str,
    commands: Sequence[Sequence[str]] = (),
    signals: Sequence[int] = (),
    user: int = 0,
) -> Outcome:
    """Run a task to its end, or kill it after the commands have run inside it."""
    told = {"isolation": plan.encode(), "argv": argv, "commands": commands, "signals": signals, "user": user}
    done = subprocess.run(
        SUPERVISOR,
        input=json.dumps(told),
        capture_output=True,
        text=True,
        timeout=60,
        cwd=REPOSITORY,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    return Outcome(
        said.get("status", -1),
        said.get("output", ""),
        said.get("failure", ""),
        [(status, text) for status, text in said.get("found", [])],
        said.get("pid", 0),
        dict(line.split(":\t", 1) for line in said.get("keeper", "").splitlines()),
    )


def shell(plan: IsolationPlan, script: str, **more: Any) -> Outcome:
    return run(plan, "/bin/sh", "-c", script, **more)


def python(plan: IsolationPlan, script: str, **more: Any) -> Outcome:
    return run(plan, f"{PYTHON}/bin/python3", "-I", "-S", "-c", script, **more)


def mounts_below(path: Path) -> list[str]:
    """Mounts of this host that have to do with a directory."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(path) in line]


def processes_with(text: str) -> list[int]:
    """Processes whose command line holds a text, all namespaces included."""
    found = []
    for entry in os.listdir("/proc"):
        try:
            line = Path(f"/proc/{entry}/cmdline").read_bytes() if entry.isdigit() else b""
        except OSError:
            continue
        if text.encode() in line:
            found.append(int(entry))
    return found
