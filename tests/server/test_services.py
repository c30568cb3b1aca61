"""Services as clients enter them and others find them, through a real server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from fedsched.model.errors import BadRequest, NotFound, TooLarge
from fedsched.model.service import ServiceRegistration
from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods import service as methods
from fedsched.rpc.methods.paging import ListRequest
from fedsched.server.identity import NotAllowed
from fedsched.state.tables.namespaces import NamespaceUpsert
from tests.builders import a_group, a_job, an_id
from tests.server.around import COMPLETE, SECRET, join, place, propose, report, with_server
from tests.server.region import Member


def a_registration(identity: str = "s1", alloc: int = 1, **fields: Any) -> ServiceRegistration:
    known: dict[str, Any] = {"service_name": "web", "namespace": "default", "alloc_id": an_id(alloc), "job_id": "web"}
    return ServiceRegistration(id=identity, **{**known, **fields})


async def ready(member: Member) -> None:
    await join(member)
    await member.register(a_job("web", region="", groups=[a_group(count=3)]))
    await place(member, [1, 2, 3])


async def register(member: Member, *services: ServiceRegistration, secret: str = SECRET) -> Any:
    request = methods.ServiceRegisterRequest(node_id=an_id(1), secret_id=secret, services=services)
    return await member.call(methods.SERVICE_REGISTER, request)


async def found(member: Member, name: str = "web", **fields: Any) -> list[str]:
    reply = await member.call(methods.SERVICE_GET, methods.ServiceGetRequest(name=name, **fields))
    return [one.id for one in reply.services]


def test_what_a_client_enters_is_found_by_name_allocation_job_and_node(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await ready(member)
        reply = await register(
            member, a_registration(tags=("a",), port=80), a_registration("s2", 2, tags=("b",)), a_registration("s9", 9)
        )

        assert reply.passed_over == ("s9",)
        assert await found(member) == ["s1", "s2"]
        assert await found(member, "nothing") == []
        listed = await member.call(methods.SERVICE_LIST, ListRequest())
        assert listed.namespaces == (
            methods.NamespaceServices(
                namespace="default", services=(methods.ServiceName(service_name="web", tags=("a", "b")),)
            ),
        )
        of_alloc = await member.call(methods.SERVICE_OF, methods.ServiceOfRequest(alloc_id=an_id(2)))
        of_job = await member.call(methods.SERVICE_OF, methods.ServiceOfRequest(job_id="web"))
        of_node = await member.call(
            methods.SERVICE_OF_NODE, methods.ServiceOfNodeRequest(node_id=an_id(1), secret_id=SECRET)
        )
        assert [one.id for one in of_alloc.services] == ["s2"]
        assert [one.id for one in of_job.services] == [one.id for one in of_node.services] == ["s1", "s2"]
        assert of_node.services[0].node_id == an_id(1)

    with_server(tmp_path, story)


def test_filters_and_choices_narrow_what_is_found(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await ready(member)
        await register(member, *(a_registration(f"s{n}", 1 + n % 3, port=n) for n in range(8)))

        assert await found(member, filter="Port == 3") == ["s3"]
        chosen = await found(member, choose="2|me")
        assert len(chosen) == 2
        assert await found(member, choose="2|me") == chosen
        others = {tuple(await found(member, choose=f"2|{key}")) for key in "abcdef"}
        assert len(others) > 1
        for wrong in ("2", "x|me", "0|me", "-1|me"):
            with pytest.raises(BadRequest, match="choose"):
                await found(member, choose=wrong)
        with pytest.raises(BadRequest):
            await found(member, filter="Nonsense == 1")

    with_server(tmp_path, story)


def test_only_the_node_itself_enters_and_takes_out(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await ready(member)
        await register(member, a_registration())

        with pytest.raises(NotAllowed):
            await register(member, a_registration("s2"), secret="guess")
        with pytest.raises(NotAllowed):
            await member.call(
                methods.SERVICE_DEREGISTER, methods.ServiceDeregisterRequest(node_id=an_id(1), ids=("s1",))
            )
        with pytest.raises(NotAllowed):
            await member.call(methods.SERVICE_OF_NODE, methods.ServiceOfNodeRequest(node_id=an_id(1), secret_id=""))
        request = methods.ServiceDeregisterRequest(node_id=an_id(1), secret_id=SECRET, ids=("s1", "s2"))
        assert (await member.call(methods.SERVICE_DEREGISTER, request)).removed == 1
        assert await found(member) == []

    with_server(tmp_path, story)


@pytest.mark.parametrize(
    ("wrong", "kind", "words"),
    [
        ({"node_id": "other"}, BadRequest, "not for"),
        ({"id": ""}, BadRequest, "id"),
        ({"service_name": ""}, BadRequest, "name"),
        ({"alloc_id": "x"}, BadRequest, "allocation"),
        ({"port": 70_000}, BadRequest, "70000"),
        ({"tags": ("x" * 20_000,)}, TooLarge, "bytes"),
    ],
)
def test_what_cannot_be_a_registration_is_refused(
    tmp_path: Path, wrong: dict[str, Any], kind: type[Exception], words: str
) -> None:
    async def story(member: Member) -> None:
        await ready(member)
        with pytest.raises(kind, match=words):
            await register(member, replace(a_registration(), **wrong))
        with pytest.raises(TooLarge):
            await register(member, *[a_registration()] * (methods.BATCH_MAX + 1))

    with_server(tmp_path, story)


def test_whoever_waits_for_a_service_hears_of_it_coming_and_going_and_not_of_others(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await ready(member)
        heard: list[list[str]] = []
        other = trio.Event()

        async def wait() -> None:
            index = 0
            while len(heard) < 3:
                reply, meta = await member.caller.call(
                    methods.SERVICE_GET, methods.ServiceGetRequest(name="web"), CallMeta(min_index=index, max_wait_s=60)
                )
                heard.append([one.id for one in reply.services])
                index = meta.index
                other.set()

        async with trio.open_nursery() as nursery:
            await register(member, a_registration(), a_registration("s2", 2))
            nursery.start_soon(wait)
            await other.wait()
            await register(member, a_registration("db", 3, service_name="db"))
            await report(member, [1], COMPLETE)
            while len(heard) < 2:
                await trio.sleep(0.005)
            await report(member, [2], COMPLETE)

        assert heard == [["s1", "s2"], ["s2"], []]

    with_server(tmp_path, story)


def test_services_of_all_namespaces_are_listed_under_each(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await ready(member)
        await propose(member, NamespaceUpsert(name="prod"))
        await register(member, a_registration(), a_registration("s2", 2, namespace="prod", service_name="api"))

        reply = await member.call(methods.SERVICE_LIST, ListRequest(), namespace="*")
        assert [(one.namespace, len(one.services)) for one in reply.namespaces] == [("default", 1), ("prod", 1)]
        _, meta = await member.caller.call(methods.SERVICE_LIST, ListRequest(prefix="w"), CallMeta())
        assert meta.index > 1

    with_server(tmp_path, story)


def test_a_registration_is_deleted_by_hand_once(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await ready(member)
        await register(member, a_registration())
        request = methods.ServiceDeleteRequest(name="web", id="s1")
        assert (await member.call(methods.SERVICE_DELETE, request)).removed == 1

        with pytest.raises(NotFound, match="s1"):
            await member.call(methods.SERVICE_DELETE, request)

    with_server(tmp_path, story)
