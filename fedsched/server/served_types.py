"""Which job types the servers of the region take, so that nobody waits for a scheduler that nobody runs.

Each server knows its own, and asks the others when it matters: for a type that is not built in, and for one that its
own workers do not take. That is rare enough to ask afresh every time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

import trio

from fedsched.model.errors import FedschedError
from fedsched.model.job import JobType
from fedsched.model.problem import one_of
from fedsched.raft.membership import ServerInfo
from fedsched.rpc.methods.agent import AGENT_SCHEDULERS, AgentSchedulersRequest, ServerSchedulers
from fedsched.scheduler.registry import ENTRY_POINTS, SETTING, Schedulers
from fedsched.server.desk import Desk

_ALWAYS_LET_IN: Final = frozenset({"", *JobType})
"""A job that says no type is a service."""
ASK_S: Final = 2.0
"""A server that takes longer counts as one that did not say."""


class Served(Protocol):
    """Knows who takes what."""

    async def lacking(self, job_type: str) -> str:
        """What to do so that jobs of this type are taken by somebody; empty if they are."""


class BuiltInServed:
    """Where nothing is known of other servers: the built-in types are taken, no other is."""

    async def lacking(self, job_type: str) -> str:
        return "" if job_type in set(JobType) else one_of(job_type, JobType)


async def own_type_lacking(served: Served, job_type: str) -> str:
    """The same for a job to be let in: a built-in type is let in in any case, and waits if nobody takes it."""
    return "" if job_type in _ALWAYS_LET_IN else await served.lacking(job_type)


class ServedTypes:
    """What this server takes, and what the others say that they take."""

    def __init__(self, desk: Desk, schedulers: Schedulers, *, workers: int) -> None:
        self._desk = desk
        self._own = ServerSchedulers(
            id=desk.me.id,
            name=desk.me.name,
            workers=workers,
            enabled=tuple(sorted(schedulers.enabled)) if workers else (),
            idle=tuple(sorted({*schedulers.idle, *(() if workers else schedulers.enabled)})),
        )

    @property
    def own(self) -> ServerSchedulers:
        return self._own

    async def lacking(self, job_type: str) -> str:
        if job_type in self._own.enabled:
            return ""
        return lacking(await self.everywhere(), job_type)

    async def everywhere(self) -> list[ServerSchedulers]:
        """Every server of the region, by name; those that did not answer in time say nothing of themselves."""
        found = [self._own]

        async def ask(server: ServerInfo) -> None:
            found.append(await self._ask(server))

        async with trio.open_nursery() as nursery:
            for server in self._desk.raft.core.config.servers:
                if server.id != self._desk.me.id:
                    nursery.start_soon(ask, server)
        return sorted(found, key=lambda one: one.name)

    async def _ask(self, server: ServerInfo) -> ServerSchedulers:
        try:
            with trio.fail_after(ASK_S):
                caller = await self._desk.peers.caller(server)
                reply, _ = await caller.call(AGENT_SCHEDULERS, AgentSchedulersRequest())
        except (FedschedError, trio.TooSlowError) as weather:
            self._desk.log.info("schedulers_not_told", server=server.name, why=str(weather))
            return ServerSchedulers(id=server.id, name=server.name, answered=False)
        return reply.servers[0]


def lacking(servers: Iterable[ServerSchedulers], job_type: str) -> str:
    """What to do so that one of these servers takes jobs of a type; empty if one does."""
    known = list(servers)
    if any(job_type in one.enabled for one in known):
        return ""
    silent = [one.name for one in known if not one.answered]
    unheard = f"; {', '.join(silent)} did not answer" if silent else ""
    idle = [one for one in known if job_type in one.idle]
    if any(one.workers for one in idle):
        names = ", ".join(one.name for one in idle if one.workers)
        return f"there is a scheduler for it on {names}: add {job_type!r} to {SETTING} there{unheard}"
    if idle:
        names = ", ".join(one.name for one in idle)
        return f"{names} could take them, but num_schedulers is 0 there{unheard}"
    if job_type in set(JobType):
        return f"add {job_type!r} to {SETTING} of a server{unheard}"
    others = {kind for one in known for kind in (*one.enabled, *one.idle)} | set(JobType)
    return f"{one_of(job_type, others)}, or a package that offers it under {ENTRY_POINTS}{unheard}"
