"""The fleet follows the state: whatever happened, it is what a fresh look at the state gives."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from fedsched.codec import dumps, to_builtins
from fedsched.model.node import DrainStrategy, Eligibility, NodeStatus
from fedsched.model.node_resources import NodeMemory, NodeReservedResources, ReservedCPU
from fedsched.model.resources import (
    AllocatedCPU,
    AllocatedDevice,
    AllocatedMemory,
    AllocatedResources,
    AllocatedTaskResources,
    TaskLifecycle,
)
from fedsched.model.volume import VolumeRequest
from fedsched.scheduler import fits
from fedsched.scheduler.ask import Ask, allocated_resources
from fedsched.scheduler.fits import fit_scores
from fedsched.scheduler.fleet import HOLDS, OCCUPIES, Fleet, read_node
from fedsched.scheduler.fleet_usage import Usage, read_allocated, usage_of
from fedsched.scheduler.special import HeldVolume, Special
from fedsched.state.changes import Changes
from fedsched.state.fields import Command
from fedsched.state.store import State
from fedsched.state.tables.alloc_updates import AllocStatusUpdate, AllocTransition, Reap
from fedsched.state.tables.node_updates import NodeEligibilityUpdate
from fedsched.state.tables.nodes import NodeDeregister, NodeUpsert, node_upsert
from fedsched.state.tables.plans import PlanApply, StoppedBatch, UpdatedGroup
from tests.builders import a_group, a_job, a_node, a_task, an_id
from tests.scheduler.fleets import a_fleet, slots
from tests.scheduler.followed import (
    Followed,
    a_plan,
    fields_of,
    given_resources,
    held,
    own,
    picture,
    used,
)
from tests.state.worlds import World, ids, placed_group

pytestmark = pytest.mark.plans_by_hand


class TestNodes:
    def test_a_node_has_what_it_has_without_what_is_kept_for_the_host(self) -> None:
        world = Followed()
        kept = NodeReservedResources(cpu=ReservedCPU(cpu_shares=100), memory=NodeMemory(memory_mb=256))
        world.do(node_upsert(a_node(cpu=14000, memory_mb=8192, reserved_resources=kept, node_max_allocs=7)))
        fleet = world.fleet
        assert (fleet.cap_cpu[0], fleet.cap_memory[0], fleet.cap_disk[0]) == (13900, 7936, 100_000)
        assert fleet.max_allocs[0] == 7

    @pytest.mark.parametrize(
        ("fields", "ready"),
        [
            ({}, True),
            ({"status": NodeStatus.DOWN}, False),
            ({"status": NodeStatus.DISCONNECTED}, False),
            ({"status": NodeStatus.INITIALIZING}, False),
            ({"scheduling_eligibility": Eligibility.INELIGIBLE}, False),
            ({"drain_strategy": DrainStrategy()}, False),
        ],
    )
    def test_a_node_is_ready_if_it_is_up_eligible_and_not_draining(self, fields: Any, ready: bool) -> None:
        world = Followed()
        world.do(node_upsert(a_node(**fields)))
        assert bool(world.fleet.ready[0]) is ready
        assert world.fleet.present[0]

    def test_pool_datacenter_and_class_have_numbers_with_names(self) -> None:
        world = Followed()
        world.do(node_upsert(a_node(1, datacenter="dc7", node_pool="gpu", node_class="large")))
        fleet = world.fleet
        assert fleet.datacenters.find("dc7") == fleet.datacenter[0]
        assert fleet.pools.names[fleet.pool[0]] == "gpu"
        assert fleet.classes.names[fleet.node_class[0]] == "large"
        assert fleet.pools.find("none") is None

    def test_a_node_that_left_is_gone_and_its_slot_may_be_another_ones(self) -> None:
        world = Followed()
        world.begin(2)
        world.do(NodeDeregister(ids=(an_id(1),)))
        assert not world.fleet.present[0]
        assert world.fleet.slot_of(an_id(1)) is None
        assert world.fleet.node(world.store, 0) is None
        world.do(node_upsert(a_node(9)))
        assert world.fleet.slot_of(an_id(9)) == 0
        world.check()

    def test_the_whole_record_is_at_hand(self) -> None:
        world = Followed()
        world.do(node_upsert(a_node(1, node_class="x")))
        node = world.fleet.node(world.store, 0)
        assert node is not None
        assert (node.id, node.node_class) == (an_id(1), "x")
        fresh = Fleet.of(world.store).copy()
        fresh._nodes.clear()
        assert fresh.node(world.store, 0) == node

    def test_a_change_of_status_alone_does_not_decode_the_record(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = Followed()
        world.begin(1)
        known = world.fleet.node(world.store, 0)
        assert known is not None
        decoded: list[str] = []

        def count(row: Any) -> Any:
            decoded.append(row.id)
            return read_node(row)

        monkeypatch.setattr("fedsched.scheduler.fleet.read_node", count)
        world.do(NodeEligibilityUpdate(ids=(an_id(1),), eligibility="ineligible"))
        assert decoded == []
        assert not world.fleet.ready[0]
        assert not world.fleet.eligible[0]
        now = world.fleet.node(world.store, 0)
        assert now is not None
        assert now.scheduling_eligibility is Eligibility.INELIGIBLE
        assert decoded == [an_id(1)]
        world.check()

    def test_a_node_that_cannot_be_read_is_there_but_has_no_room(self) -> None:
        world = Followed()
        world.do(NodeUpsert(id=an_id(1), name="x", datacenter="dc9", status="ready", body=b"\xff"))
        assert world.fleet.ready[0]
        assert world.fleet.cap_cpu[0] == 0
        node = world.fleet.node(world.store, 0)
        assert node is not None
        assert (node.id, node.datacenter) == (an_id(1), "dc9")

    def test_a_fleet_grows_beyond_its_first_slots(self) -> None:
        world = Followed()
        world.begin(70)
        assert world.fleet.size == 128
        world.check()


class TestAllocations:
    def test_a_placed_allocation_occupies_and_holds_its_place(self) -> None:
        world = Followed()
        world.begin()
        world.start([1, 2, 3], [0, 0, 1], given_resources())
        assert used(world.fleet, 0) == held(world.fleet, 0) == (200, 400, 60, 2)
        assert used(world.fleet, 1) == (100, 200, 30, 1)
        assert world.fleet.usage_of(slots(0)).tolist() == [[100, 200, 30]]
        assert world.fleet.nodes_of(slots(0, 2)).tolist() == [0, 1]

    def test_a_stopped_one_occupies_its_place_until_its_client_says_otherwise(self) -> None:
        world = Followed()
        world.begin()
        world.start([1], [0], given_resources())
        world.plan(stopped=(StoppedBatch(ids=ids([1])),))
        assert used(world.fleet, 0) == (100, 200, 30, 1)
        assert held(world.fleet, 0) == (0, 0, 0, 0)
        assert world.fleet.flags_of(slots(0)).tolist() == [OCCUPIES]
        world.report([1], "complete")
        assert used(world.fleet, 0) == (0, 0, 0, 0)

    @pytest.mark.parametrize("status", ["complete", "failed", "lost"])
    def test_an_end_on_the_client_frees_the_place(self, status: str) -> None:
        world = Followed()
        world.begin()
        world.start([1], [0], given_resources())
        world.report([1], status)
        assert used(world.fleet, 0) == held(world.fleet, 0) == (0, 0, 0, 0)

    @pytest.mark.parametrize("status", ["running", "unknown"])
    def test_anything_else_keeps_it(self, status: str) -> None:
        world = Followed()
        world.begin()
        world.start([1], [0], given_resources())
        world.report([1], status)
        assert used(world.fleet, 0) == held(world.fleet, 0) == (100, 200, 30, 1)

    def test_an_update_in_place_counts_what_it_takes_now(self) -> None:
        world = Followed()
        world.begin()
        world.start([1], [0], given_resources())
        world.plan(updated=(UpdatedGroup(group="group", ids=ids([1]), shared=fields_of(given_resources(cpu=700))),))
        assert used(world.fleet, 0) == (700, 200, 30, 1)

    def test_ports_cores_and_devices_are_kept_beside_the_sums(self) -> None:
        world = Followed()
        world.begin()
        gpu = AllocatedDevice(vendor="nvidia", type="gpu", name="t4", device_ids=("a",))
        mine = given_resources(cpu=900, ports=(8080,), cores=(2,), devices=(gpu,))
        world.start([1, 2], [0, 0], given_resources(), **own({1: mine}))
        assert used(world.fleet, 0) == (1000, 400, 60, 2)
        (special,) = world.fleet.special[0].values()
        assert special == Special.of(mine)
        assert list(world.fleet.specials(0)) == list(world.fleet.specials(0, held=True)) == [(1, special)]
        world.plan(stopped=(StoppedBatch(ids=ids([2])),))
        assert list(world.fleet.specials(0)) == [(1, special)]
        assert list(world.fleet.specials(0, held=True)) == []
        world.report([2], "complete")
        assert not world.fleet.special
        world.check()

    def test_what_all_of_an_origin_share_may_be_special_too(self) -> None:
        world = Followed()
        world.begin()
        world.start([1, 2], [0, 1], given_resources(ports=(80,)))
        assert sorted(world.fleet.special) == [0, 1]
        world.check()

    def test_host_volumes_that_are_written_to_are_known_from_the_job(self) -> None:
        world = Followed()
        volumes = {
            "data": VolumeRequest(name="data", type="host", source="disk", access_mode="single-node-single-writer"),
            "ro": VolumeRequest(name="ro", type="host", source="other", read_only=True),
            "each": VolumeRequest(name="each", type="host", source="own", per_alloc=True),
        }
        world.begin(groups=[a_group(volumes=volumes)])
        world.start([1, 2], [0, 0], given_resources())
        held_volumes = [special.volumes for special in world.fleet.special[0].values()]
        assert held_volumes == [
            (HeldVolume("disk", True), HeldVolume("own[0]", False)),
            (HeldVolume("disk", True), HeldVolume("own[1]", False)),
        ]
        reserved = world.fleet.reserve(world.store, a_plan(world, [3], [1], given_resources()))
        assert [one.volumes for one in world.fleet.special[1].values()] == [held_volumes[0]]
        world.fleet.release(reserved)
        world.check()

    def test_the_number_of_a_collected_origin_is_read_anew_when_another_gets_it(self) -> None:
        world = Followed()
        world.begin()
        world.start([1], [0], given_resources(cpu=100))
        world.report([1], "complete")
        world.do(Reap(allocs=ids([1])))
        world.start([2], [0], given_resources(cpu=555))
        assert used(world.fleet, 0)[0] == 555
        world.check()

    def test_allocations_of_a_node_that_left_are_forgotten_with_them(self) -> None:
        world = Followed()
        world.begin()
        world.start([1], [0], given_resources())
        world.do(NodeDeregister(ids=(an_id(1),)))
        assert used(world.fleet, 0) == (100, 200, 30, 1)
        world.report([1], "lost")
        world.do(Reap(allocs=ids([1])))
        assert used(world.fleet, 0) == (0, 0, 0, 0)
        world.check()

    def test_a_replaced_state_is_read_anew(self) -> None:
        world = Followed()
        world.begin()
        world.start([1], [0], given_resources())
        fleet = Fleet.of(World().store)
        fleet.note(world.store, Changes(world.index, is_everything=True))
        assert picture(fleet) == picture(world.fleet)

    def test_stored_bytes_that_cannot_be_read_count_as_nothing(self) -> None:
        assert read_allocated(b"\xff\xff") is None
        assert read_allocated(dumps([1])) is None
        assert read_allocated(dumps({"AllocatedResources": 7})) is None
        assert read_allocated(b"") is None
        assert read_allocated(dumps({"AllocatedResources": to_builtins(given_resources())})) == given_resources()


class TestUsage:
    """What counts for fit is the largest phase."""

    @staticmethod
    def _task(cpu: int, memory: int = 10, cores: tuple[int, ...] = ()) -> AllocatedTaskResources:
        return AllocatedTaskResources(
            cpu=AllocatedCPU(cpu_shares=cpu, reserved_cores=cores), memory=AllocatedMemory(memory_mb=memory)
        )

    @pytest.mark.parametrize(
        ("main", "init", "sidecars", "each", "wanted"),
        [(1, 1, 1, 500, 1000), (1, 1, 1, 700, 1400), (3, 5, 5, 100, 1000), (10, 10, 10, 100, 2000)],
    )
    def test_phases_do_not_add_up(self, main: int, init: int, sidecars: int, each: int, wanted: int) -> None:
        tasks: dict[str, Any] = {f"m{n}": (None, self._task(each)) for n in range(main)}
        tasks |= {f"i{n}": (TaskLifecycle(hook="prestart"), self._task(each)) for n in range(init)}
        tasks |= {f"s{n}": (TaskLifecycle(hook="prestart", sidecar=True), self._task(each)) for n in range(sidecars)}
        resources = AllocatedResources(
            tasks={name: task for name, (_, task) in tasks.items()},
            task_lifecycles={name: lifecycle for name, (lifecycle, _) in tasks.items()},
        )
        assert usage_of(resources).cpu == wanted

    def test_poststart_runs_beside_main_and_poststop_alone(self) -> None:
        tasks = {"main": self._task(100), "after": self._task(50), "end": self._task(400, memory=5)}
        hooks = {"main": None, "after": TaskLifecycle(hook="poststart"), "end": TaskLifecycle(hook="poststop")}
        assert usage_of(AllocatedResources(tasks=tasks, task_lifecycles=hooks)) == Usage(400, 20, 0)

    def test_tasks_with_cores_of_their_own_always_add_their_cpu(self) -> None:
        tasks = {"main": self._task(100), "init": self._task(900, cores=(1,))}
        hooks: dict[str, TaskLifecycle | None] = {"init": TaskLifecycle(hook="prestart")}
        assert usage_of(AllocatedResources(tasks=tasks, task_lifecycles=hooks)).cpu == 1000


class History:
    """Commands drawn with an eye on the world."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def command(self, world: Followed) -> Command:
        draw = self.rng.choices(
            [self._node, self._plan, self._report, self._transition, self._reap, self._leave], [4, 8, 5, 1, 2, 1]
        )
        return draw[0](world)

    def _numbers(self) -> list[int]:
        return self.rng.sample(range(1, 25), self.rng.randint(1, 5))

    def _node(self, _: Followed) -> Command:
        rng = self.rng
        node = a_node(
            rng.randint(1, 6),
            cpu=rng.choice([1000, 4000]),
            attributes={"rack": rng.choice("ab"), "unique.x": str(rng.random())},
            status=rng.choice([NodeStatus.READY, NodeStatus.READY, NodeStatus.DOWN]),
            node_class=rng.choice(["", "large"]),
            node_pool=rng.choice(["default", "gpu"]),
            node_max_allocs=rng.choice([0, 3]),
        )
        return node_upsert(structs.replace(node, drain_strategy=rng.choice([None, None, DrainStrategy()])))

    def _given(self) -> AllocatedResources:
        rng = self.rng
        return given_resources(rng.choice([100, 250]), rng.choice([10, 64]), ports=rng.choice([(), (), (80,)]))

    def _plan(self, world: Followed) -> Command:
        rng = self.rng
        numbers = self._numbers()
        mine = own({0: self._given()}) if rng.random() < 0.3 else {}
        placed = placed_group(numbers, [rng.randrange(7) for _ in numbers], shared=fields_of(self._given()), **mine)
        stopped = StoppedBatch(
            ids=ids(self._numbers()), desired=rng.randint(1, 3), client_status=rng.choice([0, 0, 5, 6])
        )
        updated = UpdatedGroup(group="group", ids=ids(self._numbers()), shared=fields_of(self._given()))
        return a_plan(
            world,
            [],
            [],
            given_resources(),
            placed=(placed,) if rng.random() < 0.7 else (),
            stopped=(stopped,) if rng.random() < 0.4 else (),
            updated=(updated,) if rng.random() < 0.3 else (),
        )

    def _report(self, _: Followed) -> Command:
        numbers = self._numbers()
        return AllocStatusUpdate(ids=ids(numbers), statuses=bytes(self.rng.randint(1, 6) for _ in numbers))

    def _transition(self, _: Followed) -> Command:
        return AllocTransition(ids=ids(self._numbers()), flags=self.rng.randrange(64))

    def _reap(self, _: Followed) -> Command:
        return Reap(allocs=ids(self._numbers()))

    def _leave(self, _: Followed) -> Command:
        return NodeDeregister(ids=(an_id(self.rng.randint(1, 6)),))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_following_any_history_gives_what_a_fresh_look_gives(seed: int) -> None:
    world, history = Followed(), History(seed)
    world.begin(2)
    flying: list[Any] = []
    for step in range(40):
        command = history.command(world)
        if isinstance(command, PlanApply) and history.rng.random() < 0.3:
            flying.append(world.fleet.reserve(world.store, command))
        if flying and history.rng.random() < 0.5:
            world.fleet.release(flying.pop(0))
        world.do(command)
        if step % 10 == 9 and not flying:
            world.check()
    for reserved in flying:
        world.fleet.release(reserved)
    world.check()
    state: State = world.store.snapshot()
    assert picture(Fleet.of(state)) == picture(world.fleet)
    assert not (world.fleet.held_cpu > world.fleet.occupied_cpu).any()
    assert int(world.fleet._alloc_flags[world.fleet._alloc_flags == HOLDS].size) == 0


class TestCost:
    """What a command costs depends on what it changed, not on what there is."""

    @pytest.mark.parametrize("others", [0, 200])
    def test_following_a_plan_reads_the_allocations_that_it_placed(
        self, others: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        world = Followed()
        world.begin(4)
        if others:
            world.start(list(range(100, 100 + others)), [0] * others, given_resources())
        done = World.do(world, a_plan(world, [1, 2, 3], [0, 1, 1], given_resources()))
        read: list[int] = []
        columns = world.store.allocations.columns
        plain = type(columns).read

        def counted(self: Any, wanted: Any) -> Any:
            read.append(len(wanted))
            return plain(self, wanted)

        monkeypatch.setattr(type(columns), "read", counted)
        world.fleet.note(world.store, done.changes)
        assert read == [3]

    def test_what_an_origin_shares_is_decoded_once(self, monkeypatch: pytest.MonkeyPatch) -> None:
        world = Followed()
        world.begin(4)
        world.start(list(range(1, 20)), [0] * 19, given_resources())
        decoded: list[bytes] = []
        monkeypatch.setattr("fedsched.scheduler.fleet_usage.read_allocated", decoded.append)
        world.report(list(range(1, 20)), "running")
        assert decoded == []

    def test_a_placement_looks_at_touched_nodes_only_once_the_ask_is_known(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        fleet = a_fleet([(4000, 8192)] * 500)
        ask = Usage(10, 10, 0)
        fit_scores(fleet, ask, "binpack")
        computed: list[int] = []
        plain = fits.compute

        def counted(columns: Any, ask: Any, algorithm: Any, where: Any) -> Any:
            computed.append(fleet.size if where is None else len(where))
            return plain(columns, ask, algorithm, where)

        monkeypatch.setattr(fits, "compute", counted)
        fleet.place(slots(*range(20)), ask)
        fit_scores(fleet, ask, "binpack")
        fit_scores(fleet, ask, "binpack")
        assert computed == [20]


class TestAskAndUsage:
    """What a group asks for is what its allocations are counted with."""

    @pytest.mark.parametrize("seed", range(30))
    def test_they_agree_whatever_the_phases_of_its_tasks(self, seed: int) -> None:
        rng = random.Random(seed)
        hooks = [None, None, "prestart", "poststart", "poststop"]
        tasks = []
        for number in range(rng.randint(1, 6)):
            hook = rng.choice(hooks)
            lifecycle = TaskLifecycle(hook=hook, sidecar=rng.random() < 0.5) if hook else None
            task = a_task(f"t{number}", cpu=rng.randint(1, 900), memory_mb=rng.randint(1, 900), lifecycle=lifecycle)
            tasks.append(task)
        group = a_group(tasks=tasks)
        ask = Ask.of(a_job(groups=[group]), group)
        assert usage_of(allocated_resources(ask)) == Usage(ask.cpu, ask.memory_mb, ask.disk_mb)
