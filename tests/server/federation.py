"""Three regions of one server each that know one another, with a node in each whose client says how allocations are.

def test_something(tmp_path):
    async def story(world: Federation) -> None:
        await world.submit(job, at="eu")
        await world.until_over()

    run_federation(tmp_path, story)
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import trio

from fedsched.codec import dumps
from fedsched.model.ids import uuid_bytes
from fedsched.model.job import Job, MultiregionRegion, MultiregionStrategy
from fedsched.model.policies import ReschedulePolicy, UpdateStrategy
from fedsched.model.region import MemberStatus
from fedsched.model.rollout import Rollout, RolloutShare
from fedsched.rpc.methods import node as nodes
from fedsched.rpc.methods.job import JOB_REGISTER, JobRegisterRequest, JobWriteReply
from fedsched.rpc.methods.rollout import ROLLOUT_GET, RolloutGetRequest, RolloutView
from fedsched.state.fields import pack
from tests.builders import a_group, an_id
from tests.federation.builders import THREE, a_multiregion_job
from tests.server.around import RUNNING, SECRET, join
from tests.server.region import Member, Region, run_region, until
from tests.server.test_forwarding import introduce

WITHIN_S = 60.0
LOOK_S = 0.02
NO_REPLACEMENTS = ReschedulePolicy(attempts=0, unlimited=False)

Story = Callable[["Federation"], Awaitable[None]]


def run_federation(directory: Path, story: Story, names: Sequence[str] = THREE) -> None:
    """Run a story in regions of these names."""

    async def scenario(first: Region) -> None:
        async with trio.open_nursery() as nursery:
            world = Federation(directory, first._nursery, names)
            await world.form()
            for name in names:
                nursery.start_soon(world.be_client, name)
            await story(world)
            nursery.cancel_scope.cancel("the story is over")

    run_region(directory / "nobody", scenario)


def a_spread_job(
    names: Sequence[str | MultiregionRegion] = THREE, *, count: int = 1, color: str = "blue", **strategy: Any
) -> Job:
    """A job in these regions, one at a time unless said otherwise."""
    strategy.setdefault("max_parallel", 1)
    update = UpdateStrategy(auto_revert=strategy.pop("auto_revert", False))
    group = a_group(count=count, update=update, reschedule_policy=NO_REPLACEMENTS)
    return a_multiregion_job(
        names, strategy=MultiregionStrategy(**strategy), groups=[group], region="", meta={"color": color}
    )


class Federation:
    """The regions of a story."""

    def __init__(self, directory: Path, nursery: trio.Nursery, names: Sequence[str]) -> None:
        self.regions = {
            name: Region(directory / name, nursery, {"region": name, "num_schedulers": 1}) for name in names
        }
        self.up: set[str] = set()
        """Regions whose server answers."""
        self.unwell: set[str] = set()
        """Regions whose allocations never get healthy."""
        self.silent: set[str] = set()
        """Regions whose clients say nothing just now."""
        self.began: list[str] = []
        """Regions in the order in which they placed something."""

    async def form(self) -> None:
        for region in self.regions.values():
            await region.form(1)
        self.up = set(self.regions)
        for name in self.regions:
            self.meet(name)
            await join(self.server(name))

    def meet(self, name: str) -> None:
        """Introduce a region's server to all others, and those to it."""
        here = self.regions[name].running()
        for other, region in self.regions.items():
            for member in region.running() if other != name else []:
                introduce(member, here)
                for one in here:
                    introduce(one, [member])

    def server(self, name: str) -> Member:
        (member,) = self.regions[name].running()
        return member

    async def stop(self, name: str) -> Member:
        member = self.server(name)
        self.up.discard(name)
        await self.regions[name].stop(member)
        for other, region in self.regions.items():
            for one in region.running() if other != name else []:
                introduce(one, [member], MemberStatus.FAILED)
        return member

    async def restart(self, name: str, member: Member) -> Member:
        again = await self.regions[name].restart(member)
        await self.regions[name].leader()
        self.up.add(name)
        self.meet(name)
        return again

    async def submit(self, job: Job, *, at: str = "eu", **fields: Any) -> JobWriteReply:
        reply: JobWriteReply = await self.server(at).call(JOB_REGISTER, JobRegisterRequest(job=job, **fields))
        return reply

    async def view(self, *, at: str = "eu", job_id: str = "web") -> RolloutView:
        view: RolloutView = await self.server(at).call(ROLLOUT_GET, RolloutGetRequest(job_id=job_id))
        return view

    def record(self, *, at: str = "eu", job_id: str = "web") -> Rollout | None:
        """The newest record in a region's log."""
        if at not in self.up:
            return None
        row = self.server(at).server.machine.store.rollouts.newest("default", job_id)
        return row.header() if row is not None else None

    def described(self, *, at: str = "eu") -> str:
        """How the newest record says that it stands."""
        record = self.record(at=at)
        return record.status_description if record is not None else ""

    def seen(self, name: str, *, at: str = "eu") -> str:
        """How a region's part stands, as the owner has heard."""
        record = self.record(at=at)
        region = record.region(name) if record is not None else None
        return region.status.value if region is not None else ""

    def share(self, name: str, job_id: str = "web") -> RolloutShare | None:
        row = self.server(name).server.machine.store.rollouts.share_row("default", job_id)
        return row.header() if row is not None else None

    def placed(self, name: str) -> int:
        """How many allocations were ever placed in a region."""
        return len(self.server(name).server.machine.store.allocations)

    def statuses(self) -> dict[str, str]:
        """How each region's part stands, as the region itself has it."""
        return self.statuses_of(*(name for name in self.regions if name in self.up))

    def statuses_of(self, *names: str) -> dict[str, str]:
        """The same for some regions, while others may be down."""
        return {name: share.status.value for name in names if (share := self.share(name)) is not None}

    def colour(self, name: str) -> str:
        job = self.server(name).server.machine.store.jobs.get("default", "web")
        return job.meta["color"] if job is not None else ""

    def is_stopped(self, name: str) -> bool:
        job = self.server(name).server.machine.store.jobs.row("default", "web")
        return job is not None and job.stop

    def deployments(self, name: str) -> list[str]:
        rows = self.server(name).server.machine.store.deployments.of_job("default", "web")
        return [row.status for row in rows]

    async def until_status(self, status: str, *, at: str = "eu", version: int | None = None) -> Rollout:
        """Wait until the newest rollout has come to this."""

        def is_there() -> bool:
            record = self.record(at=at)
            return record is not None and record.status == status and version in (None, record.job_version)

        try:
            await until(f"the rollout is {status}", is_there, within_s=WITHIN_S)
        except AssertionError as late:
            raise AssertionError(f"{late}; it is {self.record(at=at)}, regions are {self.statuses()}") from None
        record = self.record(at=at)
        assert record is not None
        return record

    async def until_part(self, name: str, status: str) -> None:
        await until(f"{name} is {status}", lambda: self.statuses().get(name) == status, within_s=WITHIN_S)

    async def be_client(self, name: str) -> None:
        """Report on the region's allocations as its client would."""
        reported: set[str] = set()
        while True:
            await trio.sleep(LOOK_S)
            if name in self.silent or name not in self.up:
                continue
            allocs = self.server(name).server.machine.store.allocations
            slots = allocs.live.in_use(0, 1000)
            fresh = [one for one in allocs.records(slots) if one.id not in reported]
            if fresh and name not in self.began:
                self.began.append(name)
            reported |= {one.id for one in fresh}
            if fresh:
                await self._report(name, [one.id for one in fresh])

    async def _report(self, name: str, alloc_ids: list[str]) -> None:
        client, sizes = pack([dumps({"ClientDescription": "Tasks are running"})] * len(alloc_ids))
        health = 2 if name in self.unwell else 1
        await self.server(name).call(
            nodes.NODE_UPDATE_ALLOCS,
            nodes.NodeReportRequest(
                node_id=an_id(1),
                secret_id=SECRET,
                ids=b"".join(map(uuid_bytes, alloc_ids)),
                statuses=bytes([RUNNING]) * len(alloc_ids),
                healths=bytes([health]) * len(alloc_ids),
                client=client,
                client_sizes=sizes,
            ),
        )
