"""What allocations offer: addresses, registrations through an allocation's life, and the book that sends them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from msgspec.structs import replace

from fedsched.client.context import AllocContext
from fedsched.client.hooks.hook import HookFailed
from fedsched.client.hooks.services import GroupServicesHook, TaskServicesHook
from fedsched.client.service_address import NoAddress, Place, service_place
from fedsched.client.service_book_core import BATCH, ServiceBookCore
from fedsched.drivers.driver import DriverNetwork, ExitResult
from fedsched.model.alloc import Allocation, AllocDeploymentStatus
from fedsched.model.network import AllocNetworkStatus, NetworkResource, Port, PortMapping
from fedsched.model.resources import AllocatedResources, AllocatedSharedResources, AllocatedTaskResources
from fedsched.model.service import Service, ServiceRegistration
from tests.builders import a_group, a_node, a_task, an_id
from tests.client.fake_region import FakeRegion, an_alloc_context, asked

PORTS = AllocatedResources(
    shared=AllocatedSharedResources(
        ports=(PortMapping(label="http", value=22000, to=8080, host_ip="10.0.0.1"),),
        networks=(NetworkResource(ip="10.0.0.2", dynamic_ports=(Port(label="admin", value=23000),)),),
    ),
    tasks={
        "main": AllocatedTaskResources(
            networks=(NetworkResource(ip="10.0.0.3", reserved_ports=(Port(label="own", value=53),)),)
        )
    },
)
NODE = a_node(attributes={"unique.network.ip-address": "10.9.9.9"})
DOCKER = DriverNetwork(ip="172.17.0.2", port_map={"http": 80})
ADVERTISED = DriverNetwork(ip="172.17.0.2", port_map={"http": 80}, auto_advertise=True)
BRIDGED = AllocNetworkStatus(address="192.168.0.5", address_ipv6="fd00::5")


@pytest.mark.parametrize(
    ("fields", "place"),
    [
        ({"mode": "auto", "label": "http"}, Place("10.0.0.1", 22000)),
        ({"mode": "", "label": "admin"}, Place("10.0.0.2", 23000)),
        ({"mode": "host", "label": "own", "task": "main"}, Place("10.0.0.3", 53)),
        ({"mode": "host", "label": ""}, Place("10.9.9.9", 0)),
        ({"mode": "host", "label": "9090"}, Place("10.9.9.9", 9090)),
        ({"mode": "auto", "label": "http", "address": "shop.example"}, Place("shop.example", 22000)),
        ({"mode": "auto", "label": "", "address": "shop.example"}, Place("shop.example", 0)),
        ({"mode": "auto", "label": "http", "network": DOCKER}, Place("10.0.0.1", 22000)),
        ({"mode": "auto", "label": "http", "network": ADVERTISED}, Place("172.17.0.2", 80)),
        ({"mode": "driver", "label": "http", "network": DOCKER}, Place("172.17.0.2", 80)),
        ({"mode": "driver", "label": "8125", "network": DOCKER}, Place("172.17.0.2", 8125)),
        ({"mode": "driver", "label": "", "network": DOCKER}, Place("172.17.0.2", 0)),
        ({"mode": "alloc", "label": "http"}, Place("192.168.0.5", 8080)),
        ({"mode": "alloc", "label": "admin"}, Place("192.168.0.5", 23000)),
        ({"mode": "alloc", "label": "7000"}, Place("192.168.0.5", 7000)),
        ({"mode": "alloc_ipv6", "label": ""}, Place("fd00::5", 0)),
    ],
)
def test_where_a_service_is_reached(fields: dict[str, Any], place: Place) -> None:
    alloc = Allocation(id=an_id(1), allocated_resources=PORTS, network_status=BRIDGED)

    assert service_place(alloc, NODE, **fields) == place


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"mode": "host", "label": "nope"}, "there is no port 'nope'"),
        ({"mode": "host", "label": "99999"}, "outside"),
        ({"mode": "driver", "label": "http"}, "no address of its own"),
        ({"mode": "driver", "label": "nope", "network": DOCKER}, "it has http"),
        ({"mode": "alloc", "label": "http"}, "no network of its own"),
        ({"mode": "odd", "label": "http"}, "not known"),
    ],
)
def test_an_address_that_is_not_there_is_told(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(NoAddress, match=words):
        service_place(Allocation(id=an_id(1), allocated_resources=PORTS), NODE, **fields)
    if fields["mode"] == "alloc":
        bridged = Allocation(id=an_id(1), allocated_resources=PORTS, network_status=BRIDGED)
        with pytest.raises(NoAddress, match="there are admin, http"):
            service_place(bridged, NODE, mode="alloc", label="nope")


def test_without_resources_only_the_host_itself_has_an_address() -> None:
    bare = Allocation(id=an_id(1))
    assert service_place(bare, NODE, mode="auto", label="") == Place("10.9.9.9", 0)
    with pytest.raises(NoAddress, match="there are none"):
        service_place(bare, NODE, mode="auto", label="http")


# ---- hooks ------------------------------------------------------------------------------------------------------


class Scene:
    """An allocation with services of its group and its task, and both hooks driven in the background."""

    def __init__(self, root: Path, nursery: trio.Nursery, group: list[Service], task: list[Service]) -> None:
        self.region = FakeRegion()
        wanted = a_group("group", tasks=[a_task("main", services=tuple(task))], services=tuple(group))
        self.alloc: AllocContext = an_alloc_context(root, self.region, group=wanted, allocated_resources=PORTS)
        self.group_hook = GroupServicesHook(self.alloc)
        self.task_hook = TaskServicesHook(self.alloc.tasks["main"])
        nursery.start_soon(self.group_hook.run)
        nursery.start_soon(self.task_hook.run)

    def names(self) -> list[str]:
        return sorted(one.service_name for one in self.region.services.values())

    def update(self, **fields: Any) -> None:
        self.alloc.alloc = replace(self.alloc.alloc, **fields)


def play(
    root: Path,
    story: Callable[[Scene], Awaitable[None]],
    *,
    group: list[Service] | None = None,
    task: list[Service] | None = None,
) -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            await story(Scene(root, nursery, group or [], task or []))
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def a_service(name: str = "web", **fields: Any) -> Service:
    return Service(**{"name": name, "port_label": "http", "provider": "nomad", **fields})


def test_a_groups_services_are_there_from_before_its_tasks_until_it_is_stopped(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.group_hook.prerun()
        await trio.sleep(1)
        (found,) = scene.region.services.values()
        assert found == ServiceRegistration(
            id=f"_nomad-task-{an_id(1)}-group-group-web-shop-http",
            service_name="web-shop",
            namespace="default",
            node_id=an_id(1),
            datacenter="dc1",
            job_id="shop",
            alloc_id=an_id(1),
            tags=("a", "dc1"),
            address="10.0.0.1",
            port=22000,
        )
        await scene.group_hook.prekill()
        assert scene.names() == []

    play(tmp_path, story, group=[a_service("web-${NOMAD_JOB_NAME}", tags=("a", "${node.datacenter}"))])


@pytest.mark.parametrize("provider", ["", "consul", "nomad"])
def test_a_tasks_services_are_there_while_it_runs_whoever_provides_them(tmp_path: Path, provider: str) -> None:
    async def story(scene: Scene) -> None:
        await scene.task_hook.prestart({})
        await trio.sleep(1)
        assert scene.names() == []
        await scene.task_hook.poststart()
        await trio.sleep(1)
        assert scene.names() == ["db"]
        await scene.task_hook.exited(ExitResult())
        await trio.sleep(1)
        assert scene.names() == []
        await scene.task_hook.poststart()
        await trio.sleep(1)
        await scene.task_hook.prekill()
        assert scene.names() == []
        await scene.task_hook.stop()

    play(tmp_path, story, task=[a_service("db", provider=provider)])


def test_a_canary_has_tags_of_its_own_until_it_is_promoted(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.update(deployment_status=AllocDeploymentStatus(canary=True))
        await scene.group_hook.prerun()
        await trio.sleep(1)
        assert [one.tags for one in scene.region.services.values()] == [("canary",), ("always",)]
        scene.update(deployment_status=AllocDeploymentStatus(canary=False))
        await scene.group_hook.update()
        await trio.sleep(1)
        assert [one.tags for one in scene.region.services.values()] == [("live",), ("always",)]

    play(
        tmp_path,
        story,
        group=[a_service(tags=("live",), canary_tags=("canary",)), a_service("api", tags=("always",))],
    )


def test_an_update_sends_only_what_differs(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.group_hook.prerun()
        await trio.sleep(1)
        scene.region.calls.clear()
        group = replace(scene.alloc.group, services=(a_service("a"), a_service("b", tags=("new",)), a_service("d")))
        scene.update(job=replace(scene.alloc.job, task_groups=(group,)))
        await scene.group_hook.update()
        await trio.sleep(1)

        assert scene.names() == ["a", "b", "d"]
        gone, sent = scene.region.calls
        assert [identity.split("-")[-2] for identity in gone.ids] == ["c"]
        assert [one.service_name for one in sent.services] == ["b", "d"]

    play(tmp_path, story, group=[a_service("a"), a_service("b"), a_service("c")])


def test_a_group_whose_service_has_no_address_does_not_start(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        with pytest.raises(HookFailed, match="service 'web': there is no port 'nope'"):
            await scene.group_hook.prerun()

    play(tmp_path, story, group=[a_service(port_label="nope")])


def test_a_running_task_whose_service_has_no_address_is_told(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.task_hook.poststart()
        (event,) = asked(scene.alloc.tasks["main"]).events
        assert "no address of its own" in event.message
        scene.alloc.tasks["main"].network = DOCKER
        await scene.task_hook.update()
        await trio.sleep(1)
        assert [(one.address, one.port) for one in scene.region.services.values()] == [("172.17.0.2", 80)]

    play(tmp_path, story, task=[a_service(address_mode="driver")])


def test_registrations_that_servers_lost_are_entered_again(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        await scene.group_hook.prerun()
        await trio.sleep(1)
        scene.region.services.clear()  # the node was taken for dead
        await trio.sleep(200)
        assert scene.names() == ["web"]
        calls = len(scene.region.calls)
        await trio.sleep(600)
        assert 5 <= len(scene.region.calls) - calls <= 11  # only questions, one a minute or so

    play(tmp_path, story, group=[a_service()])


def test_servers_out_of_reach_delay_no_kill_for_long_and_are_told_later(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.region.is_connected = False
        await scene.group_hook.prerun()
        await scene.task_hook.poststart()
        await trio.sleep(300)
        started = trio.current_time()
        await scene.group_hook.prekill()
        assert trio.current_time() - started <= 2.0
        scene.region.is_connected = True
        await trio.sleep(60)
        assert scene.names() == ["db"]

    play(tmp_path, story, group=[a_service()], task=[a_service("db")])


def test_the_book_goes_on_when_the_one_who_drove_it_ends(tmp_path: Path) -> None:
    async def main() -> None:
        region = FakeRegion()
        alloc = an_alloc_context(tmp_path, region, group=a_group("group", services=(a_service(),)))
        book, parts = alloc.parts.services, alloc.parts
        async with trio.open_nursery() as nursery:
            first = trio.CancelScope()

            async def drive() -> None:
                with first:
                    await book.drive(parts)

            nursery.start_soon(drive)
            await trio.testing.wait_all_tasks_blocked()
            nursery.start_soon(book.drive, parts)
            first.cancel()
            book.want("x-", [ServiceRegistration(id="x-1", service_name="web")])
            with trio.fail_after(5):
                await book.wait_settled()
            assert list(region.services) == ["x-1"]
            book.drop("x-")
            with trio.fail_after(5):
                await book.wait_settled()
            assert region.services == {}
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def one(identity: str, **fields: Any) -> ServiceRegistration:
    return ServiceRegistration(id=identity, service_name="web", **fields)


def test_what_servers_do_not_take_is_not_sent_again_until_it_differs() -> None:
    core = ServiceBookCore()
    core.want("a-", [one("a-1"), one("a-2")])
    core.registered(core.to_register(), ["a-2"])

    assert core.is_settled
    core.want("a-", [one("a-1"), one("a-2", port=9)])
    assert [each.id for each in core.to_register()] == ["a-2"]


def test_left_overs_are_removed_only_of_owners_that_are_known() -> None:
    core = ServiceBookCore()
    core.want("a-", [one("a-1")])
    core.found([one("a-1"), one("a-old"), one("b-1")])

    assert core.to_register() == []
    assert core.to_remove() == ["a-old"]
    core.removed(["a-old"])
    assert core.is_settled
    assert not core.is_empty
    core.drop("a-")
    assert core.to_remove() == ["a-1"]
    core.removed(["a-1"])
    assert core.is_empty


def test_very_many_are_sent_in_pieces() -> None:
    core = ServiceBookCore()
    core.want("a-", [one(f"a-{n}") for n in range(BATCH + 5)])
    first = core.to_register()
    core.registered(first, [])

    assert (len(first), len(core.to_register())) == (BATCH, 5)
