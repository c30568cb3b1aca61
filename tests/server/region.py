"""A region of real servers in one trio run: real sockets on loopback, real disks, Raft's clock five times as fast.

    def test_something(tmp_path):
        async def scenario(region: Region) -> None:
            await region.form(3)
            ...

        run_region(tmp_path, scenario)

Nothing sleeps for a while and hopes: `until` waits for a condition and says what it waited for when it never comes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import trio

from fedsched.env.real import RealEnv
from fedsched.model.errors import FedschedError
from fedsched.model.job import Job
from fedsched.raft.autopilot import AutopilotSettings
from fedsched.raft.datadir import SpaceLimits
from fedsched.rpc.caller import LocalCaller
from fedsched.rpc.context import CallMeta, RequestID
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.job import JOB_GET, JOB_REGISTER, JobRegisterRequest, JobRequest, JobWriteReply
from fedsched.rpc.methods.raft import RAFT_LIST_PEERS
from fedsched.server.identity import SERVER
from fedsched.server.server import Server
from fedsched.server.settings import ServerOptions
from fedsched.telemetry.log import Event, Hub
from fedsched.telemetry.metrics import Registry
from tests.builders import a_job

SCENARIO_S: Final = 30.0
"""Longer than any scenario needs on a crowded machine; one that hangs fails with what it waited for."""
UNTIL_S: Final = 10.0
LOOK_S: Final = 0.005
MULTIPLIER: Final = 0.2
ANY_SPACE: Final = SpaceLimits(0, 0, 0, 0)

Scenario = Callable[["Region"], Awaitable[None]]


def run_region(directory: Path, scenario: Scenario, **defaults: Any) -> None:
    """Run a scenario in a region that is stopped with it; `defaults` are options of every server."""

    async def main() -> None:
        with trio.fail_after(SCENARIO_S):
            async with trio.open_nursery() as nursery:
                region = Region(directory, nursery, defaults)
                await scenario(region)
                nursery.cancel_scope.cancel("the scenario is over")

    try:
        trio.run(main)
    except BaseExceptionGroup as group:
        raise _only(group) from None


async def until(what: str, condition: Callable[[], object], within_s: float = UNTIL_S) -> None:
    """Wait for a condition; an assertion that names it when it does not come true."""
    with trio.move_on_after(within_s):
        while not condition():
            await trio.sleep(LOOK_S)
        return
    raise AssertionError(f"not within {within_s:g} s: {what}")


def options(directory: Path, name: str, **changes: Any) -> ServerOptions:
    """Settings of a server for tests."""
    changes.setdefault("region", "eu")
    changes.setdefault("bootstrap_expect", 3)
    changes.setdefault("raft_multiplier", MULTIPLIER)
    changes.setdefault("autopilot", AutopilotSettings(server_stabilization_time_s=0.05, last_contact_threshold_s=2.0))
    return ServerOptions(
        name=name,
        datacenter="dc1",
        data_dir=changes.pop("data_dir", directory / name),
        join_interval_s=changes.pop("join_interval_s", 0.05),
        ballast_bytes=0,
        space_limits=changes.pop("space_limits", ANY_SPACE),
        **changes,
    )


@dataclass
class Member:
    """One server of the region, running or stopped."""

    options: ServerOptions
    hub: Hub = field(default_factory=Hub)
    metrics: Registry = field(default_factory=Registry)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self._events = self.hub.subscribe("debug", capacity=10_000)
        self._said: list[Event] = []
        self.server = Server(
            self.options, env=RealEnv(), log=self.hub.logger("server", server=self.name), metrics=self.metrics
        )

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def id(self) -> str:
        return self.server.me.id

    @property
    def address(self) -> str:
        return self.server.me.address

    @property
    def is_running(self) -> bool:
        return not self.ended.is_set()

    @property
    def is_leader(self) -> bool:
        return self.is_running and self.server.raft.is_established

    @property
    def caller(self) -> LocalCaller:
        return LocalCaller(self.server.calls, identity=SERVER)

    async def call(self, method: Any, request: Any = None, **meta: Any) -> Any:
        """Ask this server; the reply alone."""
        reply, _ = await self.caller.call(method, request or Empty(), CallMeta(**meta))
        return reply

    async def register(self, job: Job | str, *, seq: int = 0, session: str = "s", **fields: Any) -> JobWriteReply:
        """Register a job through this server, under a request id if a number is given."""
        request_id = RequestID(session=session, seq=seq) if seq else None
        wanted = a_job(job, region="") if isinstance(job, str) else job
        reply: JobWriteReply = await self.call(
            JOB_REGISTER, JobRegisterRequest(job=wanted, **fields), request_id=request_id
        )
        return reply

    async def job(self, job_id: str, **meta: Any) -> Job:
        reply = await self.call(JOB_GET, JobRequest(job_id=job_id), **meta)
        job: Job = reply.job
        return job

    def said(self, event: str) -> list[dict[str, Any]]:
        """The fields of every log event of this name."""
        self._said += self._events.take()
        return [dict(one.fields) for one in self._said if one.name == event]

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        try:
            with self.scope:
                await self.server.run(task_status=task_status)
        except Exception as error:
            self.failure = error
            raise
        finally:
            self.ended.set()


class Region:
    """Servers that belong together."""

    def __init__(self, directory: Path, nursery: trio.Nursery, defaults: dict[str, Any]) -> None:
        self.directory = directory
        self.members: dict[str, Member] = {}
        self._nursery = nursery
        self._defaults = defaults

    async def form(self, count: int = 3) -> Member:
        """Start servers s1, s2, ... that found a region together; returns its leader."""
        for number in range(1, count + 1):
            await self.add(f"s{number}", bootstrap_expect=count)
        return await self.leader()

    async def add(self, name: str, **changes: Any) -> Member:
        """Start one more server; unless told otherwise it greets those that run."""
        changes.setdefault("join", tuple(member.address for member in self.running()))
        return await self.start(options(self.directory, name, **{**self._defaults, **changes}))

    async def start(self, its_options: ServerOptions) -> Member:
        member = self.members[its_options.name] = Member(its_options)
        await self._nursery.start(member.run)
        return member

    async def stop(self, member: Member) -> None:
        """End a server without a word to the others, as far as that is possible within one process."""
        member.scope.cancel("stopped by the test")
        await member.ended.wait()

    async def restart(self, member: Member, *, elsewhere: bool = False, **changes: Any) -> Member:
        """Start a stopped server again on its data, at its address or at another one."""
        port = 0 if elsewhere else int(member.address.rpartition(":")[2])
        join = tuple(one.address for one in self.running())
        return await self.start(replace(member.options, rpc_port=port, join=join, **changes))

    def running(self) -> list[Member]:
        return [member for member in self.members.values() if member.is_running]

    async def leader(self) -> Member:
        """Wait until one of the running servers leads and every one of them knows it."""
        await until("a leader that everybody knows", lambda: self._agreed() is not None)
        leader = self._agreed()
        assert leader is not None
        return leader

    async def followers(self) -> list[Member]:
        leader = await self.leader()
        return [member for member in self.running() if member is not leader]

    async def voters(self, through: Member) -> set[str]:
        """Names of the voting servers, as this server knows them."""
        reply = await through.call(RAFT_LIST_PEERS, stale=True)
        return {server.node for server in reply.servers if server.voter}

    def _agreed(self) -> Member | None:
        leaders = [member for member in self.running() if member.is_leader]
        if len(leaders) != 1:
            return None
        known = {member.server.raft.role.leader for member in self.running() if _belongs(member)}
        return leaders[0] if known == {leaders[0].id} else None


def _belongs(member: Member) -> bool:
    return member.server.raft.core.config.server(member.id) is not None


def _only(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error that broke the scenario, for pytest to show and for tests to expect."""
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        known = [one for one in error.exceptions if isinstance(one, (AssertionError, FedschedError))]
        error = known[0] if known else error.exceptions[0]
    return error
