"""What clients and people can ask of a region about nodes, allocations and deployments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec.structs import replace

from fedsched.codec import to_bytes_sparse
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.errors import BadRequest, Conflict, NotFound
from fedsched.model.node import DrainStatus, DrainStrategy, Eligibility, NodeStatus
from fedsched.model.node_resources import NodeCPU
from fedsched.rpc.caller import LocalCaller
from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods import alloc as allocs
from fedsched.rpc.methods import deployment as deployments
from fedsched.rpc.methods import evaluation as evaluations
from fedsched.rpc.methods import job as jobs
from fedsched.rpc.methods import job_extras as extras
from fedsched.rpc.methods import node as nodes
from fedsched.rpc.methods import places
from fedsched.rpc.methods.node_frames import NodeReport, WatchFrame
from fedsched.rpc.methods.paging import ListRequest
from fedsched.rpc.node_watch import FrameReader, WatchedAllocations
from fedsched.server.identity import STRANGER, NotAllowed
from fedsched.server.leader.client_updates_core import Report
from fedsched.server.reports import request_of
from fedsched.state.tables.alloc_columns import HEALTHY
from fedsched.state.tables.node_updates import NodeStatusUpdate, NodeStatusWrite
from tests.builders import a_group, a_job, a_node, an_id
from tests.server.around import (
    COMPLETE,
    FAILED,
    RUNNING,
    SECRET,
    a_host,
    a_system_group,
    deployed,
    join,
    node_of,
    place,
    propose,
    report,
    with_server,
)
from tests.server.region import Member, Region, run_region, until
from tests.state.worlds import ids


def test_a_node_registers_becomes_ready_and_is_told_when_to_come_back(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        node = a_host()
        first = await member.call(nodes.NODE_REGISTER, nodes.NodeRegisterRequest(node=node))
        beat = await member.call(nodes.NODE_UPDATE_STATUS, nodes.NodeStatusRequest(node_id=node.id, secret_id=SECRET))
        again = await member.call(nodes.NODE_UPDATE_STATUS, nodes.NodeStatusRequest(node_id=node.id, secret_id=SECRET))

        assert first.status is NodeStatus.INITIALIZING
        assert (beat.status, again.status) == (NodeStatus.READY, NodeStatus.READY)
        assert 10 <= beat.heartbeat_ttl_s <= 20
        known = await node_of(member)
        assert (known.status, known.secret_id, known.computed_class != "") == (NodeStatus.READY, "", True)
        assert [event.message for event in known.events] == ["Node registered"]
        listed = await member.call(nodes.NODE_LIST, nodes.NodeListRequest(resources=True, node_pool="default"))
        assert [stub.id for stub in listed.nodes] == [node.id]

    with_server(tmp_path, story)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"id": "me"}, "not a UUID"),
        ({"name": ""}, "no name"),
        ({"secret_id": ""}, "no secret"),
        ({"node_pool": "all"}, "cannot hold nodes"),
    ],
)
def test_what_cannot_be_a_node_is_refused(tmp_path: Path, wrong: dict[str, str], words: str) -> None:
    async def story(member: Member) -> None:
        fields: dict[str, Any] = {"secret_id": SECRET, **wrong}
        with pytest.raises(BadRequest, match=words):
            await member.call(nodes.NODE_REGISTER, nodes.NodeRegisterRequest(node=a_node(**fields)))

    with_server(tmp_path, story)


def test_another_secret_gets_nowhere_with_a_known_node(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)

        with pytest.raises(NotAllowed):
            await member.call(nodes.NODE_UPDATE_STATUS, nodes.NodeStatusRequest(node_id=an_id(1), secret_id="guess"))
        with pytest.raises(NotAllowed):
            await member.call(nodes.NODE_REGISTER, nodes.NodeRegisterRequest(node=a_node(secret_id="guess")))
        with pytest.raises(NotAllowed):
            await member.call(nodes.NODE_UPDATE_ALLOCS, nodes.NodeReportRequest(node_id=an_id(1)))
        with pytest.raises(NotFound):
            await member.call(nodes.NODE_UPDATE_STATUS, nodes.NodeStatusRequest(node_id=an_id(9)))

    with_server(tmp_path, story)


def test_a_node_in_an_unknown_pool_makes_the_pool(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member, node_pool="gpu")

        pools = await member.call(places.NODE_POOL_LIST, ListRequest())
        inside = await member.call(places.NODE_POOL_NODES, places.NameRequest(name="gpu"))
        assert [pool.name for pool in pools.node_pools] == ["all", "default", "gpu"]
        assert [stub.id for stub in inside.nodes] == [an_id(1)]
        everywhere = await member.call(places.NODE_POOL_NODES, places.NameRequest(name="all"))
        assert len(everywhere.nodes) == 1

    with_server(tmp_path, story)


def test_a_node_that_was_down_with_work_on_it_is_ready_only_after_it_told_of_it(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        await member.register("web")
        await place(member, [1])
        await propose(member, NodeStatusUpdate(updates=(NodeStatusWrite(id=an_id(1), status="down"),)))
        with pytest.raises(Conflict, match="is down"):
            await report(member, [1], RUNNING)

        sign = nodes.NodeStatusRequest(node_id=an_id(1), secret_id=SECRET)
        first = await member.call(nodes.NODE_UPDATE_STATUS, sign)
        await report(member, [1], RUNNING)
        second = await member.call(nodes.NODE_UPDATE_STATUS, sign)

        assert (first.status, second.status) == (NodeStatus.INITIALIZING, NodeStatus.READY)
        assert len(second.eval_ids) == 1  # initializing -> ready concerns the job that has an allocation there

    with_server(tmp_path, story)


def test_eligibility_is_set_and_only_coming_back_makes_evaluations(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        await member.register(a_job("everywhere", region="", type="system", groups=[a_system_group()]))

        def wish(eligibility: Eligibility) -> nodes.NodeEligibilityRequest:
            return nodes.NodeEligibilityRequest(node_id=an_id(1), eligibility=eligibility)

        away = await member.call(nodes.NODE_ELIGIBILITY, wish(Eligibility.INELIGIBLE))
        back = await member.call(nodes.NODE_ELIGIBILITY, wish(Eligibility.ELIGIBLE))

        assert (len(away.eval_ids), len(back.eval_ids)) == (0, 1)
        assert (await node_of(member)).scheduling_eligibility is Eligibility.ELIGIBLE
        asked = await member.call(nodes.NODE_EVALUATE, nodes.NodeRequest(node_id=an_id(1)))
        assert len(asked.eval_ids) == 1

    with_server(tmp_path, story)


def test_a_drain_makes_a_node_ineligible_and_its_end_keeps_it_so_unless_asked(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        strategy = DrainStrategy(deadline_s=3600.0)
        await member.register("web")
        await place(member, [1])
        await member.call(nodes.NODE_DRAIN, nodes.NodeDrainRequest(node_id=an_id(1), drain_strategy=strategy))
        draining = await node_of(member)
        eligible = nodes.NodeEligibilityRequest(node_id=an_id(1), eligibility=Eligibility.ELIGIBLE)
        with pytest.raises(BadRequest, match="is draining"):
            await member.call(nodes.NODE_ELIGIBILITY, eligible)
        await member.call(nodes.NODE_DRAIN, nodes.NodeDrainRequest(node_id=an_id(1)))
        ended = await node_of(member)
        await member.call(nodes.NODE_DRAIN, nodes.NodeDrainRequest(node_id=an_id(1), mark_eligible=True))

        assert draining.drain_strategy is not None
        known = draining.drain_strategy
        assert known.force_deadline_ns - known.started_at_ns == 3600 * 10**9
        assert draining.scheduling_eligibility is Eligibility.INELIGIBLE
        assert draining.last_drain is not None
        assert draining.last_drain.status is DrainStatus.DRAINING
        assert (ended.drain_strategy, ended.scheduling_eligibility) == (None, Eligibility.INELIGIBLE)
        assert ended.last_drain is not None
        assert ended.last_drain.status is DrainStatus.CANCELLED
        assert (await node_of(member)).scheduling_eligibility is Eligibility.ELIGIBLE

    with_server(tmp_path, story)


def test_deregistering_a_node_evaluates_the_jobs_it_ran(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        await member.register("web")
        await place(member, [1])

        gone = await member.call(nodes.NODE_DEREGISTER, nodes.NodesRequest(node_ids=(an_id(1),)))

        assert len(gone.eval_ids) == 1
        with pytest.raises(NotFound):
            await node_of(member)
        with pytest.raises(BadRequest):
            await member.call(nodes.NODE_DEREGISTER, nodes.NodesRequest(node_ids=()))

    with_server(tmp_path, story)


async def next_frame(stream: Any, reader: FrameReader) -> WatchFrame:
    while (frame := reader.take(await stream.receive())) is None:
        pass
    return frame


def test_a_client_watches_what_its_node_should_run_and_is_not_told_its_own_words(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        await member.register(a_job("web", region="", groups=[a_group(count=2)]))
        await place(member, [1])
        seen, reader = WatchedAllocations(an_id(1), "node-1"), FrameReader()
        request = nodes.NodeWatchRequest(node_id=an_id(1), secret_id=SECRET)
        async with member.caller.open_stream(nodes.NODE_WATCH, request, CallMeta()) as stream:
            first = await next_frame(stream, reader)
            assert first.is_whole
            changed = seen.take(first)
            assert [(one.id, one.job.id if one.job else "") for one in changed] == [(an_id(1), "web")]

            await report(member, [1], RUNNING)
            await place(member, [2], previous=ids([1]))
            second = await next_frame(stream, reader)
            assert (second.is_whole, second.jobs) == (False, ())
            changed = seen.take(second)
            assert sorted(one.id for one in changed) == [an_id(1), an_id(2)]
            assert seen.allocations[an_id(2)].previous_allocation == an_id(1)
            assert seen.allocations[an_id(1)].next_allocation == an_id(2)
            assert seen.allocations[an_id(2)].job is not None

            stop = allocs.AllocStopRequest(alloc_id=an_id(2))
            await member.call(allocs.ALLOC_STOP, stop)
            seen.take(await next_frame(stream, reader))
            assert seen.allocations[an_id(2)].desired_transition.migrate is True

    with_server(tmp_path, story)


def a_report_item(number: int, numbers: list[int], status: int = RUNNING) -> bytes:
    return to_bytes_sparse(NodeReport(number=number, ids=ids(numbers), statuses=bytes([status]) * len(numbers)))


def status_of(member: Member, number: int) -> str:
    alloc = member.server.machine.store.allocations.get(an_id(number))
    assert alloc is not None
    return alloc.client_status.value


def test_a_client_reports_over_its_stream_and_is_told_when_that_is_written(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        await member.register("web")
        await place(member, [1])
        request = nodes.NodeWatchRequest(node_id=an_id(1), secret_id=SECRET)
        reader = FrameReader()
        async with member.caller.open_stream(nodes.NODE_WATCH, request, CallMeta()) as stream:
            await next_frame(stream, reader)
            assert await stream.send(a_report_item(1, [1]))
            frame = await next_frame(stream, reader)
            assert (frame.written, frame.rows, status_of(member, 1)) == (1, b"", "running")

    with_server(tmp_path, story)


def test_reports_of_nodes_that_are_down_or_unknown_are_refused_and_the_others_written(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        for number in (1, 2):
            await join(member, number)
        await member.register("web")
        await place(member, [1])
        await propose(member, NodeStatusUpdate(updates=(NodeStatusWrite(id=an_id(2), status="down"),)))
        said = [
            Report(an_id(node), ids([alloc]), bytes([RUNNING])) for node, alloc in ((1, 1), (2, 2), (99, 3), (1, 1))
        ]
        reply = await member.call(nodes.NODE_REPORTS, request_of(said))
        assert (reply.refused, status_of(member, 1)) == (ids([2, 99]), "running")
        assert reply.index == member.server.machine.store.index

    with_server(tmp_path, story)


def test_a_node_cannot_speak_for_the_allocations_of_another(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        for number in (1, 2):
            await join(member, number)
        await member.register(a_job("web", region="", groups=[a_group(count=2)]))
        await place(member, [1, 2])  # both on the first node
        await report(member, [1], FAILED, number=2)
        said = [Report(an_id(2), ids([2]), bytes([FAILED])), Report(an_id(1), ids([1]), bytes([RUNNING]))]
        reply = await member.call(nodes.NODE_REPORTS, request_of(said))
        assert (reply.refused, status_of(member, 1), status_of(member, 2)) == (b"", "running", "pending")
        assert member.said("report_on_others_dropped") == [{"server": "s1", "node_id": an_id(2), "updates": 1}] * 2

    with_server(tmp_path, story)


def test_only_servers_pass_reports_on(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        stranger = LocalCaller(member.server.calls, identity=STRANGER)
        with pytest.raises(NotAllowed):
            await stranger.call(nodes.NODE_REPORTS, request_of([]), CallMeta())

    with_server(tmp_path, story)


def test_a_report_that_cannot_be_understood_ends_the_stream_with_a_reason(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        request = nodes.NodeWatchRequest(node_id=an_id(1), secret_id=SECRET)
        reader = FrameReader()
        async with member.caller.open_stream(nodes.NODE_WATCH, request, CallMeta()) as stream:
            await next_frame(stream, reader)
            await stream.send(to_bytes_sparse(NodeReport(number=1, ids=b"x", statuses=b"\2")))
            with pytest.raises(BadRequest, match="do not fit together"):
                await next_frame(stream, reader)

    with_server(tmp_path, story)


def test_reports_reach_the_leader_through_any_server(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(3)
        await join(leader)
        await leader.register("web")
        await place(leader, [1])
        (follower, _) = await region.followers()
        await until("it is known there", lambda: follower.server.machine.store.allocations.get(an_id(1)) is not None)
        request = nodes.NodeWatchRequest(node_id=an_id(1), secret_id=SECRET)
        reader = FrameReader()
        async with follower.caller.open_stream(nodes.NODE_WATCH, request, CallMeta()) as stream:
            await next_frame(stream, reader)
            await stream.send(a_report_item(1, [1]))
            assert (await next_frame(stream, reader)).written == 1
            assert status_of(leader, 1) == "running"

            await region.stop(leader)
            following = await region.leader()
            written, number = 0, 1
            while not written:  # what fell with the old leader, a client says again
                number += 1
                await stream.send(a_report_item(number, [1], COMPLETE))
                with trio.move_on_after(1.0):
                    written = (await next_frame(stream, reader)).written
            assert status_of(following, 1) == "complete"

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_stranger_cannot_watch_a_node(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        with pytest.raises(NotAllowed):
            async with member.caller.open_stream(
                nodes.NODE_WATCH, nodes.NodeWatchRequest(node_id=an_id(1), secret_id="guess"), CallMeta()
            ) as stream:
                await anext(aiter(stream))

    with_server(tmp_path, story)


def test_allocations_are_listed_in_pages_and_found_by_id_job_and_node(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        await member.register(a_job("web", region="", groups=[a_group(count=5)]))
        await place(member, [1, 2, 3])
        await place(member, [4, 5])

        page = await member.call(allocs.ALLOC_LIST, allocs.AllocListRequest(per_page=2))
        found = [stub.id for stub in page.allocs]
        while page.next_token:
            page = await member.call(allocs.ALLOC_LIST, allocs.AllocListRequest(per_page=2, next_token=page.next_token))
            found += [stub.id for stub in page.allocs]
        assert sorted(found) == [an_id(number) for number in range(1, 6)]
        assert len(set(found)) == 5

        some = await member.call(allocs.ALLOC_LIST, allocs.AllocListRequest(prefix=an_id(1)[:8], job_id="web"))
        assert len(some.allocs) == 5
        assert (some.allocs[0].job_type, some.allocs[0].job_version) == ("service", 0)
        one = (await member.call(allocs.ALLOC_GET, allocs.AllocRequest(alloc_id=an_id(1)))).alloc
        assert one.job is not None
        assert one.job.id == "web"
        with pytest.raises(NotFound):
            await member.call(allocs.ALLOC_GET, allocs.AllocRequest(alloc_id="nobody"))
        with pytest.raises(NotFound):
            await member.call(allocs.ALLOC_GET, allocs.AllocRequest(alloc_id=an_id(99)))
        here = await member.call(nodes.NODE_ALLOCS, nodes.NodeRequest(node_id=an_id(1)))
        of_job = await member.call(extras.JOB_ALLOCS, extras.JobAllocsRequest(job_id="web"))
        placed = await member.call(allocs.ALLOC_LIST, allocs.AllocListRequest(), namespace="*")
        assert len(here.allocs) == len(of_job.allocs) == len(placed.allocs) == 5

    with_server(tmp_path, story)


def test_stopping_an_allocation_sets_flags_and_evaluates_its_job(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        await member.register(a_job("count", region="", type="batch", groups=[a_group(update=None, migrate=None)]))
        await place(member, [1], job_id="count")

        reply = await member.call(allocs.ALLOC_STOP, allocs.AllocStopRequest(alloc_id=an_id(1), no_shutdown_delay=True))

        alloc = (await member.call(allocs.ALLOC_GET, allocs.AllocRequest(alloc_id=an_id(1)))).alloc
        wish = alloc.desired_transition
        assert (wish.migrate, wish.no_shutdown_delay, wish.reschedule) == (True, True, True)
        evaluation = await member.call(evaluations.EVAL_GET, evaluations.EvaluationRequest(eval_id=reply.eval_id))
        assert (evaluation.evaluation.triggered_by, evaluation.evaluation.type) == ("alloc-stop", "batch")

    with_server(tmp_path, story)


def test_a_deployment_is_paused_resumed_and_failed_by_people(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        deployment_id = await deployed(member)

        async def status() -> DeploymentStatus:
            request = deployments.DeploymentRequest(deployment_id=deployment_id)
            found: DeploymentStatus = (await member.call(deployments.DEPLOYMENT_GET, request)).deployment.status
            return found

        pause = deployments.DeploymentPauseRequest(deployment_id=deployment_id, pause=True)
        held = await member.call(deployments.DEPLOYMENT_PAUSE, pause)
        assert (held.eval_id, await status()) == ("", DeploymentStatus.PAUSED)
        resume = deployments.DeploymentPauseRequest(deployment_id=deployment_id, pause=False)
        going = await member.call(deployments.DEPLOYMENT_PAUSE, resume)
        assert (going.eval_id != "", await status()) == (True, DeploymentStatus.RUNNING)
        one = deployments.DeploymentRequest(deployment_id=deployment_id)
        await member.call(deployments.DEPLOYMENT_FAIL, one)
        assert await status() is DeploymentStatus.FAILED
        with pytest.raises(BadRequest, match="has ended"):
            await member.call(deployments.DEPLOYMENT_FAIL, one)
        with pytest.raises(BadRequest, match="not blocked"):
            await member.call(deployments.DEPLOYMENT_UNBLOCK, one)
        with pytest.raises(NotFound):
            await member.call(deployments.DEPLOYMENT_GET, deployments.DeploymentRequest(deployment_id=an_id(99)))
        listed = await member.call(deployments.DEPLOYMENT_LIST, deployments.DeploymentListRequest(job_id="web"))
        of_it = await member.call(deployments.DEPLOYMENT_ALLOCS, one)
        assert ([found.id for found in listed.deployments], len(of_it.allocs)) == ([deployment_id], 2)
        of_job = await member.call(extras.JOB_DEPLOYMENTS, jobs.JobRequest(job_id="web"))
        latest = await member.call(extras.JOB_LATEST_DEPLOYMENT, jobs.JobRequest(job_id="web"))
        assert of_job.deployments == (latest.deployment,)

    with_server(tmp_path, story)


def test_canaries_are_promoted_once_they_are_healthy(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        deployment_id = await deployed(member, canaries=2)
        wish = deployments.DeploymentPromoteRequest(deployment_id=deployment_id, all=True)
        with pytest.raises(BadRequest, match="not all healthy"):
            await member.call(deployments.DEPLOYMENT_PROMOTE, wish)
        with pytest.raises(BadRequest, match="either all"):
            await member.call(
                deployments.DEPLOYMENT_PROMOTE, deployments.DeploymentPromoteRequest(deployment_id=deployment_id)
            )

        await report(member, [1, 2], RUNNING, health=HEALTHY)
        await member.call(deployments.DEPLOYMENT_PROMOTE, wish)

        one = deployments.DeploymentRequest(deployment_id=deployment_id)
        state = (await member.call(deployments.DEPLOYMENT_GET, one)).deployment.task_groups["group"]
        assert (state.promoted, state.healthy_allocs, state.placed_canaries) == (True, 2, (an_id(1), an_id(2)))
        alloc = (await member.call(allocs.ALLOC_GET, allocs.AllocRequest(alloc_id=an_id(1)))).alloc
        assert not alloc.is_canary

    with_server(tmp_path, story)


def test_one_unhealthy_allocation_named_by_a_person_fails_the_deployment(tmp_path: Path) -> None:
    async def story(member: Member) -> None:
        await join(member)
        deployment_id = await deployed(member)
        word = deployments.DeploymentHealthRequest(
            deployment_id=deployment_id,
            healthy_allocation_ids=(an_id(1),),
            unhealthy_allocation_ids=(an_id(2),),
        )
        await member.call(deployments.DEPLOYMENT_HEALTH, word)

        one = deployments.DeploymentRequest(deployment_id=deployment_id)
        found = (await member.call(deployments.DEPLOYMENT_GET, one)).deployment
        group = found.task_groups["group"]
        assert (found.status, group.healthy_allocs, group.unhealthy_allocs) == (DeploymentStatus.FAILED, 1, 1)

    with_server(tmp_path, story)


def test_jobs_are_evaluated_when_a_node_changes_what_can_be_placed_on_it_and_not_when_it_only_grows(
    tmp_path: Path,
) -> None:
    async def story(member: Member) -> None:
        await member.register(a_job("agent", region="", type="system", groups=[a_system_group()]))
        node = await join(member)

        async def made_by(method: Any, request: Any) -> list[str]:
            """The jobs that an answer names evaluations of."""
            answer = await member.call(method, request)
            store = member.server.machine.store
            rows = [store.evaluations.row(one) for one in answer.eval_ids]
            return [f"{row.job_id} by {row.triggered_by}" for row in rows if row is not None]

        def again(**fields: Any) -> nodes.NodeRegisterRequest:
            return nodes.NodeRegisterRequest(node=replace(node, **fields))

        bigger = replace(node.node_resources, cpu=NodeCPU(cpu_shares=90_000))
        assert await made_by(nodes.NODE_REGISTER, again(node_resources=bigger)) == []
        assert await made_by(nodes.NODE_REGISTER, again(meta={"rack": "r7"})) == ["agent by node-update"]
        assert (await node_of(member)).status is NodeStatus.READY  # a node that registers again keeps its status

        drain = nodes.NodeDrainRequest(node_id=node.id, drain_strategy=DrainStrategy(deadline_s=3600.0))
        assert await made_by(nodes.NODE_DRAIN, drain) == []
        assert await made_by(nodes.NODE_DRAIN, nodes.NodeDrainRequest(node_id=node.id)) == []
        assert await made_by(nodes.NODE_DRAIN, drain) == []
        ended = nodes.NodeDrainRequest(node_id=node.id, mark_eligible=True)
        assert await made_by(nodes.NODE_DRAIN, ended) == ["agent by node-update"]

    with_server(tmp_path, story)
