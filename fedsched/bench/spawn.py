"""`bench spawn`: how fast tasks are started, and what a running one costs beyond itself.

Three things, each of a command that does nothing. *Launching*: a supervisor of its own, its pipes, its log files and
its state on disk, from the agent's side of the driver. *Complete starts*: jobs sent to a real agent that is server and
client, until the servers know that every task has ended; directories, cgroup limits, logs and status through Raft
included. *Memory*: what supervisors of sleeping tasks add to this machine, shared pages counted in parts.

Commands that do nothing are over at once, so most of these launches find a supervisor whose task has just ended and
need no fork, as in any burst of short tasks. Launches of tasks that stay need one each and are about half as fast.
On ext4 without a journal, files deleted during the last minutes make new ones slow; a client spreads its allocations
over the disk because of that, and what is measured has a place on the disk apart from where the run before was removed.

The baseline is the least a program can do: spawn the command and wait for it, one after the other. It takes turns with
what is measured, so that a noisy machine is noisy for both.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final

import trio

from fedsched.agent.process import ServerProcess, server_processes
from fedsched.bench.frame import BenchOptions, BenchResult
from fedsched.client.paths import scatter
from fedsched.drivers.supervisor.launch import LaunchSpec
from fedsched.drivers.supervisor.supervised_task import SupervisedTask
from fedsched.drivers.supervisor.supervisors import Supervisors
from fedsched.model.errors import Unavailable
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job
from fedsched.model.policies import EphemeralDisk
from fedsched.model.resources import Resources
from fedsched.model.task import LogConfig, Task
from fedsched.rpc.methods.job import JOB_REGISTER, JobRegisterRequest, JobRequest
from fedsched.rpc.methods.job_extras import JOB_SUMMARY
from fedsched.rpc.methods.node import NODE_LIST, NodeListRequest
from fedsched.sdk.client import Client
from fedsched.sdk.connect import connect

LAUNCHES: Final = 1_500
COMPLETE: Final = 6_000
"""Started in jobs of `PER_JOB`. Long enough that a client also tidies up behind itself, as it would all day."""
PER_JOB: Final = 250
ROUNDS: Final = 5
AT_ONCE: Final = 16
"""Launches on their way at the same time."""
SLEEPERS: Final = 100
PATIENCE_S: Final = 120.0
NOTHING: Final = "/bin/true"


def run(options: BenchOptions) -> BenchResult:
    """Measure all three; about a minute."""
    scatter(options.directory)
    launches = options.count or LAUNCHES
    options.say(f"{launches:,} launches, in turns with a bare loop ...")
    rounds, pss = trio.run(_launching, options.directory, launches)
    options.say("a server that is also a client starts ...")
    complete = measure_complete(options.directory, options.count or COMPLETE, options.say)
    bare = median(one["bare_per_s"] for one in rounds)
    figures = {
        "launch_ratio": median(one["ratio"] for one in rounds),
        "complete_ratio": complete["tasks_per_s"] / bare,
        "tasks_per_s": complete["tasks_per_s"],
        "pss_mib_per_task": pss,
    }
    return BenchResult(figures, [*rounds, complete])


# Launching


async def _launching(directory: Path, count: int) -> tuple[list[dict[str, Any]], float]:
    logs = directory / "logs"
    logs.mkdir()
    scatter(logs)  # as a client does with its allocations
    supervisors = Supervisors(directory / "supervised")
    async with trio.open_nursery() as nursery:
        await nursery.start(supervisors.run)
        try:
            await _launch_all(supervisors, logs, "warm", 10)
            each = max(1, count // ROUNDS)
            rounds = [await _round(supervisors, logs, number, each) for number in range(ROUNDS)]
            pss = await _memory(supervisors, logs)
        finally:
            await supervisors.retire()
            nursery.cancel_scope.cancel()
    return rounds, pss


async def _round(supervisors: Supervisors, logs: Path, number: int, count: int) -> dict[str, Any]:
    bare_s = _bare_loop(count)
    launched_s, ended_s = await _launch_all(supervisors, logs, f"round{number}", count)
    bare_s = (bare_s + _bare_loop(count)) / 2
    return {
        "round": number,
        "launches_per_s": count / launched_s,
        "launched_and_forgotten_per_s": count / ended_s,
        "bare_per_s": count / bare_s,
        "ratio": bare_s / launched_s,
    }


def _bare_loop(count: int) -> float:
    began = time.perf_counter()
    for _ in range(count):
        os.waitpid(os.posix_spawn(NOTHING, [NOTHING], {}), 0)
    return time.perf_counter() - began


async def _launch_all(supervisors: Supervisors, logs: Path, name: str, count: int) -> tuple[float, float]:
    """Launch so many; how long until all were launched, and until the end of all was told and acknowledged."""
    specs = iter([_spec(supervisors, logs, f"{name}.{number}", [NOTHING]) for number in range(count)])
    tasks: list[SupervisedTask] = []

    async def launch() -> None:
        for spec in specs:
            task = await supervisors.launch(spec)
            tasks.append(task)

    began = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for _ in range(AT_ONCE):
            nursery.start_soon(launch)
    launched_s = time.perf_counter() - began
    for task in tasks:
        await task.wait()
        await task.acknowledge()
    return launched_s, time.perf_counter() - began


async def _memory(supervisors: Supervisors, logs: Path) -> float:
    """MiB that each of many supervisors costs, the warm process divided among them."""
    argv = ["/bin/sleep", "3600"]
    tasks = [await supervisors.launch(_spec(supervisors, logs, f"sleep.{at}", argv)) for at in range(SLEEPERS)]
    await trio.sleep(0.2)
    pids = {task.supervisor_pid for task in tasks}
    pids |= {_parent(task.supervisor_pid) for task in tasks}
    total = sum(_pss_kib(pid) for pid in pids)
    for task in tasks:
        await task.stop(int(signal.SIGKILL), 0.0)
        await task.acknowledge()
    return total / 1024 / SLEEPERS


def _spec(supervisors: Supervisors, logs: Path, key: str, argv: list[str]) -> LaunchSpec:
    place = logs / key
    place.mkdir()  # as in an allocation, each has a directory of its own
    return LaunchSpec(
        key=key,
        task_id=key,
        directory=str(supervisors.directory),
        argv=argv,
        env={"PATH": "/usr/bin:/bin"},
        cwd="/",
        log_directory=str(place),
        log_name="t",
    )


def _pss_kib(pid: int) -> int:
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


# Complete starts


def measure_complete(directory: Path, count: int, say: Callable[[str], None]) -> dict[str, Any]:
    """Jobs of no-op tasks through a real agent, from the first submission until servers know that all have ended."""
    jobs = max(1, count // PER_JOB)
    per_job = count // jobs
    with _agent(directory) as agent, connect(agent.address) as client:
        agent.wait_until(lambda: _is_node_ready(client), "the node is ready", patience_s=PATIENCE_S)
        _run_jobs(client, "warm-up", 1, 10, agent)
        say(f"{jobs * per_job:,} tasks in {jobs} jobs ...")
        before = _cpu_s(agent.pid)
        took_s = _run_jobs(client, "bench", jobs, per_job, agent)
        spent_s = _cpu_s(agent.pid) - before
    total = jobs * per_job
    return {"tasks": total, "tasks_per_s": total / took_s, "agent_cpu_ms_per_task": spent_s / total * 1000}


def _run_jobs(client: Client, name: str, jobs: int, per_job: int, agent: ServerProcess) -> float:
    began = time.perf_counter()
    ids = [f"{name}-{number}" for number in range(jobs)]
    for job_id in ids:
        client.call(JOB_REGISTER, JobRegisterRequest(job=a_job(job_id, per_job)))
    waiting = set(ids)

    def all_ended() -> bool:
        for job_id in sorted(waiting):
            numbers = client.call(JOB_SUMMARY, JobRequest(job_id=job_id)).summary.summary["g"]
            if numbers.failed or numbers.lost:
                raise Unavailable(f"{numbers.failed} tasks of {job_id} failed, {numbers.lost} were lost")
            if numbers.complete < per_job:
                return False
            waiting.discard(job_id)
        return True

    agent.wait_until(all_ended, f"{jobs * per_job} tasks have ended", patience_s=PATIENCE_S, pause_s=0.02)
    return time.perf_counter() - began


def a_job(job_id: str, count: int) -> Job:
    """As many tasks that do nothing, each with limits of its own, so small that they all fit."""
    task = Task(
        name="t",
        driver="raw_exec",
        config={"command": NOTHING},
        resources=Resources(cpu=1, memory_mb=10),
        log_config=LogConfig(max_files=1, max_file_size_mb=1),
    )
    group = TaskGroup(name="g", count=count, tasks=(task,), ephemeral_disk=EphemeralDisk(size_mb=10))
    return Job(id=job_id, name=job_id, type="batch", datacenters=("*",), task_groups=(group,))


@contextmanager
def _agent(directory: Path) -> Iterator[ServerProcess]:
    """An agent that is server and client, and nothing of it afterwards."""
    place = directory / "agent"
    place.mkdir()
    parent = f"fedsched-bench-{os.getpid()}.slice"
    extra = (
        "[client]\nenabled = true\n"
        f'network_interface = "lo"\ncgroup_parent = "{parent}"\ncpu_total_compute = 1000000\n'
        "memory_total_mb = 1000000\n"
        "[client.plugin.raw_exec]\nenabled = true\n"
    )
    (agent,) = server_processes(["bench"], place, region="bench", extra=extra)
    with ExitStack() as stack:
        stack.callback(_clear_away, place, parent)
        agent.start()
        stack.callback(agent.stop)
        yield agent


def _clear_away(place: Path, parent: str) -> None:
    """What a stopped agent leaves running on purpose: supervisors, found by their directory; and empty cgroups."""
    marker = os.fsencode(place)
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                words = Path(f"/proc/{name}/cmdline").read_bytes()
            except OSError:
                continue
            if marker in words:
                os.kill(int(name), signal.SIGKILL)
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        point = line.split()[1]
        if point.startswith(f"{place}/"):
            subprocess.run(["umount", "-l", point], check=True)
    for root in Path("/sys/fs/cgroup").glob(f"**/{parent}"):
        for folder, _, _ in os.walk(root, topdown=False):
            os.rmdir(folder)


def _is_node_ready(client: Client) -> bool:
    return any(node.status == "ready" for node in client.call(NODE_LIST, NodeListRequest()).nodes)


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
