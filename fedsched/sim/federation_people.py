"""Who asks in a simulated federation: people of each region at home, and people who ask other regions.

Everybody goes to some server of the own region, as an agent would. Writes carry a request id and are repeated with it
until they are acknowledged. What comes back, from where and how fast, is judged on the spot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import trio

from fedsched.model.errors import FedschedError
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job, ParameterizedJobConfig
from fedsched.model.resources import Resources
from fedsched.model.task import Task
from fedsched.rpc.context import CallMeta, RequestID
from fedsched.rpc.errors import meta_of
from fedsched.rpc.method import Method
from fedsched.rpc.methods.job import JOB_GET, JOB_REGISTER, JobRegisterRequest, JobRequest
from fedsched.rpc.methods.job_extras import JOB_DISPATCH, JobDispatchRequest
from fedsched.sim.federation_region import WORK
from fedsched.sim.streams import stream
from fedsched.sim.verdict import Broken

if TYPE_CHECKING:
    from fedsched.sim.federation_region import FederationRegion
    from fedsched.sim.federation_server import FederationServer
    from fedsched.sim.federation_world import Federation

JOBS: Final = 3
FAIL_FAST_S: Final = 5.0
"""R-63: a request to a region that cannot be reached has failed by then."""
KNOWN_S: Final = 25.0
"""After which everybody knows that a region is gone: then asking for it costs nothing."""
NOTHING_S: Final = 0.2
TRAVEL_S: Final = 2.0
"""Between two questions of one traveller, on average."""
ENDS_S: Final = 20.0
"""The longest that any request without a deadline of its own may take."""


@dataclass(slots=True)
class Write:
    """A request that is repeated until it is acknowledged."""

    key: str
    region: str
    is_acknowledged: bool = False
    tries: int = 0


@dataclass(slots=True)
class Asked:
    """What the people of one region saw."""

    latencies: list[tuple[float, float]] = field(default_factory=list)
    """Of writes at home: when they began, and how long they took."""
    writes: list[Write] = field(default_factory=list)
    """To other regions, and dispatches at home."""


def service(region: str, number: int, count: int) -> Job:
    task = Task(name="main", driver="mock_driver", config={"run_for": "1h"}, resources=Resources(cpu=50, memory_mb=32))
    return Job(
        id=f"web-{number}",
        name=f"web-{number}",
        region=region,
        type="service",
        datacenters=("*",),
        task_groups=(TaskGroup(name="g", count=count, tasks=(task,)),),
    )


def template(region: str) -> Job:
    task = Task(name="main", driver="mock_driver", config={"run_for": "1s"}, resources=Resources(cpu=20, memory_mb=16))
    return Job(
        id=WORK,
        name=WORK,
        region=region,
        type="batch",
        datacenters=("*",),
        parameterized_job=ParameterizedJobConfig(),
        task_groups=(TaskGroup(name="g", count=1, tasks=(task,)),),
    )


class People:
    """Those of one region."""

    def __init__(self, federation: Federation, region: FederationRegion) -> None:
        self._federation = federation
        self._region = region
        self.asked = Asked()
        self.stops = False
        self._at_home = stream(region.seed, "at-home")
        self._abroad = stream(region.seed, "abroad")
        self._numbers = {"home": 0, "abroad": 0}

    # ------------------------------------------------------------------ at home

    async def live(self) -> None:
        """Register jobs and change them, and have work done."""
        chance, name = self._at_home, self._region.region
        await self._until_done(JOB_REGISTER, JobRegisterRequest(job=template(name)))
        while not self.stops:
            if chance.random() < 0.5:
                job = service(name, chance.randrange(JOBS), chance.randrange(1, 5))
                await self._until_done(JOB_REGISTER, JobRegisterRequest(job=job))
            else:
                write = self._write("home", name)
                request = JobDispatchRequest(job_id=WORK, payload=write.key.encode())
                await self._until_done(JOB_DISPATCH, request, write)
            await trio.sleep(chance.expovariate(1.0) * self._region.options.pace_s)

    async def _until_done(self, method: Method[Any, Any], request: Any, write: Write | None = None) -> None:
        """A write at home, repeated with its key."""
        region, chance = self._region, self._at_home
        write = write or self._write("home", region.region, is_kept=False)
        began = trio.current_time()
        while not region.is_lost:
            server = self._some_server(chance)
            if server is not None and await self._attempt(server, method, request, region.region, write):
                self.asked.latencies.append((began, trio.current_time() - began))
                return
            await trio.sleep(0.2)

    def _write(self, where: str, region: str, *, is_kept: bool = True) -> Write:
        self._numbers[where] += 1
        write = Write(f"{where}-{self._region.region}/{self._numbers[where]}", region)
        if is_kept:
            self.asked.writes.append(write)
        return write

    def _some_server(self, chance: Any) -> FederationServer | None:
        names = sorted(self._region.servers)
        return self._region.server(chance.choice(names)) if names else None

    # ------------------------------------------------------------------ abroad

    async def travel(self) -> None:
        """Ask other regions, and have work done in those that are not left alone."""
        chance, plan = self._abroad, self._federation.plan
        targets = [name for name in plan.regions if name != self._region.region]
        while targets and not self.stops and not self._region.is_lost:
            await trio.sleep(chance.expovariate(1.0) * TRAVEL_S)
            target = chance.choice(targets)
            if target not in plan.left_alone and chance.random() < 0.5:
                write = self._write("abroad", target)
                self._federation.nursery.start_soon(self.have_done, write)
            else:
                await self.read(target, stale=chance.random() < 0.5)

    async def have_done(self, write: Write) -> None:
        """Have a piece of work done in another region, whatever it takes."""
        request = JobDispatchRequest(job_id=WORK, payload=write.key.encode())
        while not self._region.is_lost and not self._federation.regions[write.region].is_lost:
            server = self._some_server(self._abroad)
            if server is not None and await self._attempt(server, JOB_DISPATCH, request, write.region, write):
                return
            await trio.sleep(self._abroad.uniform(0.2, 1.5))

    async def read(self, target: str, *, stale: bool = True, through: FederationServer | None = None) -> bool:
        """Look at a job of another region; whether it answered."""
        server = through or self._some_server(self._abroad)
        if server is None:
            return False
        return await self._attempt(server, JOB_GET, JobRequest(job_id="web-0"), target, None, stale=stale)

    # ------------------------------------------------------------------ one attempt

    async def _attempt(
        self,
        server: FederationServer,
        method: Method[Any, Any],
        request: Any,
        target: str,
        write: Write | None,
        *,
        stale: bool = False,
    ) -> bool:
        """Ask once; what comes back is judged. True if it was answered."""
        key = RequestID(session=write.key, seq=1) if write is not None else None
        meta = CallMeta(region=target, namespace="default", stale=stale, request_id=key)
        began, life = trio.current_time(), server.life
        who = f"{server.name_abroad}>{target}"
        if write is not None:
            write.tries += 1
        with trio.move_on_after(ENDS_S) as patience:
            try:
                _, said = await server.local.call(method, request, meta)
                self._check_source(said.server, target, who)
                self._note(who, f"{method.name} done {write.key if write else ''} by {said.server}")
                if write is not None:
                    write.is_acknowledged = True
                return True
            except FedschedError as error:
                self._note(who, f"{method.name} {write.key if write else ''} {type(error).__name__}: {error}")
                said_by = meta_of(error)
                is_refusal = 400 <= error.http_status < 500
                if is_refusal and said_by is not None:
                    self._check_source(said_by.server, target, who)
                is_same_life = self._region.servers.get(server.name) is server and server.life == life
                if target != self._region.region and is_same_life and not self._region.is_frozen:
                    self._check_failure(error, server, target, who, began)
                return is_refusal and write is None
        if patience.cancelled_caught and self._region.servers.get(server.name) is server:
            is_cut_inside = self._region.is_frozen
            if not is_cut_inside:
                raise Broken("every request ends", f"{method.name} was under way for {ENDS_S} s", who)
        return False

    def _check_source(self, answered_by: str, target: str, who: str) -> None:
        if not answered_by.endswith(f"-{target}"):
            raise Broken(
                "R-63 each region answers for itself", f"{answered_by or 'somebody'} answered for {target}", who
            )

    def _check_failure(
        self, error: FedschedError, server: FederationServer, target: str, who: str, began: float
    ) -> None:
        """R-63: a region that is lost costs little, and nothing once that is known."""
        now = trio.current_time()
        self._federation.counts[f"abroad: {type(error).__name__}"] += 1
        since = self._federation.broken_since.get((self._region.region, target))
        if since is None:
            return
        took_s = now - max(began, since)
        if took_s > FAIL_FAST_S:
            raise Broken("R-63 fails fast", f"after {took_s:.2f} s: {error}", who)
        self._federation.counts["abroad: failed fast"] += 1
        if f"-{target}" not in str(error) and server.directory.servers(target):
            raise Broken("R-63 names who was tried", str(error), who)
        if began - since > KNOWN_S and self._federation.regions[target].is_lost and took_s > NOTHING_S:
            raise Broken("R-63 a lost region costs nothing", f"{took_s:.2f} s for {error}", who)

    def _note(self, who: str, what: str) -> None:
        self._federation.trace.note(round(trio.current_time() * 1e6), who, "asks", what)
