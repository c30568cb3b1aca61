"""Whether this host can isolate tasks at all: tried for real, in a throwaway process."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import trio

from fedsched.drivers.driver import DriverError
from fedsched.drivers.isolation.capabilities import task_capabilities
from fedsched.drivers.isolation.plan import IsolationPlan
from fedsched.drivers.isolation.users import DEFAULT_USER, TaskUser, find_user

PROBE_S: Final = 30.0
"""Far more than it takes; a host that needs longer is too busy to run tasks."""
TRIAL: Final = (sys.executable, "-m", "fedsched.drivers.isolation.trial")
PACKAGE_ROOT: Final = Path(__file__).resolve().parents[3]


async def why_not(place: Path, *, pivots: bool = True, is_rootless: bool = False) -> str:
    """The first thing that keeps this host from isolating tasks; empty if nothing does.

    Tried in `trial` below `place`, always the same: an agent that is killed meanwhile leaves nothing that piles up.
    """
    with _root(place) as root:
        try:
            user = own_user() if is_rootless else find_user(DEFAULT_USER)
            plan = IsolationPlan(root, user, task_capabilities(), pivots=pivots, is_rootless=is_rootless)
            told = json.dumps(plan.encode()).encode()
            with trio.fail_after(PROBE_S):
                return await _attempt(told)
        except DriverError as error:
            return str(error)
        except trio.TooSlowError:
            return f"a trial of isolation did not end within {PROBE_S:g} s"


def own_user() -> TaskUser:
    """Whoever runs the agent: all that tasks can be without root."""
    return TaskUser(str(os.geteuid()), os.geteuid(), os.getegid())


@contextmanager
def _root(place: Path) -> Iterator[Path]:
    root = place / "trial"
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o755)
    try:
        yield root
    finally:
        shutil.rmtree(root, ignore_errors=True)  # what cannot be removed is used again


async def _attempt(told: bytes) -> str:
    env = {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(PACKAGE_ROOT)}
    done = await trio.run_process(TRIAL, stdin=told, capture_stdout=True, capture_stderr=True, check=False, env=env)
    if done.returncode == 0:
        return done.stdout.decode(errors="replace")
    last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
    return f"a trial of isolation failed: {last[0] if last else f'exit code {done.returncode}'}"
