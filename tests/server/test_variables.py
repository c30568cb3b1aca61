"""Variables through a real server: by people, and by clients for their tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.model.alloc import Allocation
from fedsched.model.errors import BadRequest, Conflict, NotFound, TooLarge
from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods import variable as methods
from fedsched.rpc.methods.paging import ListRequest
from fedsched.server.endpoints.variable import check_path, readable_paths
from fedsched.server.identity import NotAllowed
from fedsched.server.sealing import Unsealable, open_sealed, seal
from fedsched.state.tables.namespaces import NamespaceUpsert
from tests.builders import a_group, a_job, an_id
from tests.server.around import COMPLETE, SECRET, join, place, propose, report, with_server
from tests.server.region import Member


async def put(member: Member, path: str = "app", namespace: str = "", **fields: Any) -> Any:
    request = methods.VarPutRequest(**{"path": path, "items": {"a": "1"}, **fields})
    return (await member.call(methods.VAR_PUT, request, namespace=namespace)).variable


async def of_task(member: Member, path: str, **fields: Any) -> methods.VarOfTaskReply:
    known = {"node_id": an_id(1), "secret_id": SECRET, "alloc_id": an_id(1), "task": "main", "path": path}
    reply: methods.VarOfTaskReply = await member.call(
        methods.VAR_OF_TASK, methods.VarOfTaskRequest(**{**known, **fields})
    )
    return reply


def test_a_variable_is_put_read_listed_and_deleted(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        made = await put(member, items={"b": "2", "a": "1"})
        assert (made.items, made.create_index, made.modify_index > 0) == (
            {"a": "1", "b": "2"},
            made.modify_index,
            True,
        )
        assert made.modify_time_ns > 0
        with pytest.raises(Conflict, match=str(made.modify_index)):
            await put(member, items={"c": "3"}, check_index=0)
        changed = await put(member, items={"c": "3"}, check_index=made.modify_index)
        read = (await member.call(methods.VAR_GET, methods.VarRequest(path="app"))).variable
        assert (read.items, read.create_index) == ({"c": "3"}, made.create_index)

        await put(member, "other")
        listed = await member.call(methods.VAR_LIST, ListRequest(prefix="a"))
        assert listed.variables == (changed.metadata,)
        with pytest.raises(Conflict):
            await member.call(methods.VAR_DELETE, methods.VarDeleteRequest(path="app", check_index=1))
        await member.call(methods.VAR_DELETE, methods.VarDeleteRequest(path="app"))
        with pytest.raises(NotFound):
            await member.call(methods.VAR_GET, methods.VarRequest(path="app"))

    with_server(tmp_path, story)


def test_namespaces_keep_variables_apart(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        with pytest.raises(NotFound, match="prod"):
            await put(member, namespace="prod")
        await propose(member, NamespaceUpsert(name="prod"))
        await put(member, namespace="prod")
        with pytest.raises(NotFound):
            await member.call(methods.VAR_GET, methods.VarRequest(path="app"))
        with pytest.raises(BadRequest, match="one namespace"):
            await put(member, namespace="*")
        await put(member)
        everywhere = await member.call(methods.VAR_LIST, ListRequest(), namespace="*")
        assert [(one.namespace, one.path) for one in everywhere.variables] == [("default", "app"), ("prod", "app")]

    with_server(tmp_path, story)


@pytest.mark.parametrize(
    "path", ["", "/a", "a/", "a//b", "a b", "../a", "a\n", "nomad", "nomad/x", "nomad/jobsx", "x" * 129, "é"]
)
def test_a_path_that_cannot_be_is_refused(path: str) -> None:
    with pytest.raises(BadRequest):
        check_path(path)


@pytest.mark.parametrize("path", ["a", "a/b-c_d~e", "nomad/jobs", "nomad/jobs/web/group/task", "nomads", "x" * 128])
def test_a_path_that_can_be_is_taken(path: str) -> None:
    check_path(path)


def test_items_are_bounded_and_must_be_there(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        with pytest.raises(BadRequest, match="Items"):
            await put(member, items={})
        with pytest.raises(BadRequest, match="no name"):
            await put(member, items={"": "x"})
        with pytest.raises(TooLarge, match="65537"):
            await put(member, items={"k": "x" * 65_536})
        with pytest.raises(BadRequest, match="below 0"):
            await put(member, check_index=-1)
        assert len((await put(member, items={"k": "é" * 32_767})).items["k"]) == 32_767

    with_server(tmp_path, story)


def test_a_task_sees_its_own_jobs_variables_and_no_others(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        await member.register(a_job("web", region="", groups=[a_group()]))
        await place(member, [1])
        for path in ("nomad/jobs/web/group/main", "nomad/jobs/web", "nomad/jobs/other", "app"):
            await put(member, path, items={"from": path})

        mine = (await of_task(member, "nomad/jobs/web/group/main")).variable
        assert mine is not None
        assert mine.items == {"from": "nomad/jobs/web/group/main"}
        assert (await of_task(member, "nomad/jobs/web/group")).variable is None
        listed = (await of_task(member, "nomad/jobs", is_list=True)).listed
        assert [one.path for one in listed] == ["nomad/jobs/web", "nomad/jobs/web/group/main"]
        for path in ("nomad/jobs/other", "app", "nomad/jobs/web/group/sibling"):
            with pytest.raises(NotAllowed, match="not for task"):
                await of_task(member, path)
        for wrong in ({"secret_id": "guess"}, {"alloc_id": an_id(7)}, {"alloc_id": "x"}):
            with pytest.raises(NotAllowed):
                await of_task(member, "nomad/jobs/web", **wrong)
        await report(member, [1], COMPLETE)
        with pytest.raises(NotAllowed, match="does not run"):
            await of_task(member, "nomad/jobs/web")

    with_server(tmp_path, story)


def test_a_launched_job_reads_what_lies_under_the_one_that_launched_it() -> None:
    alloc = Allocation(id="x", job_id="nightly/periodic-1", task_group="g", job=a_job(parent_id="nightly"))

    assert readable_paths(alloc, "t") == {
        "nomad/jobs",
        "nomad/jobs/nightly",
        "nomad/jobs/nightly/g",
        "nomad/jobs/nightly/g/t",
        "nomad/jobs/nightly/periodic-1",
        "nomad/jobs/nightly/periodic-1/g",
        "nomad/jobs/nightly/periodic-1/g/t",
    }


def test_a_task_waits_for_a_variable_that_is_not_there_yet(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        await member.register(a_job("web", region="", groups=[a_group()]))
        await place(member, [1])
        heard: list[Any] = []
        request = methods.VarOfTaskRequest(
            node_id=an_id(1), secret_id=SECRET, alloc_id=an_id(1), task="main", path="nomad/jobs/web"
        )
        _, meta = await member.caller.call(methods.VAR_OF_TASK, request)

        async def wait() -> None:
            reply, _ = await member.caller.call(
                methods.VAR_OF_TASK, request, CallMeta(min_index=meta.index, max_wait_s=60)
            )
            heard.append(reply.variable.items if reply.variable else None)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            await put(member, "unrelated")
            await put(member, "nomad/jobs/web")
        assert heard == [{"a": "1"}]

    with_server(tmp_path, story)


def test_what_was_sealed_in_an_unknown_way_is_not_guessed_at() -> None:
    assert open_sealed(seal({"a": "b"}, namespace="n", path="p"), namespace="n", path="p") == {"a": "b"}
    for odd in (b"", b"\x07abc"):
        with pytest.raises(Unsealable, match="'p'"):
            open_sealed(odd, namespace="n", path="p")
