"""What a region promises to whoever calls one of its servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched import __version__
from fedsched.codec import CodecError
from fedsched.federation.route import NoPath
from fedsched.model.errors import BadRequest, Conflict, NotFound, Unavailable
from fedsched.model.job import ParameterizedJobConfig
from fedsched.model.problem import InvalidJob
from fedsched.raft.errors import DiskPressure, NotLeader, OutcomeUnknown
from fedsched.rpc.context import CallMeta, RequestID
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.agent import AGENT_HEALTH, AGENT_METRICS, AGENT_SELF, AgentMetricsRequest
from fedsched.rpc.methods.evaluation import EVAL_GET, EVAL_LIST, EvaluationListRequest, EvaluationRequest
from fedsched.rpc.methods.job import (
    JOB_DEREGISTER,
    JOB_EVALUATIONS,
    JOB_LIST,
    JOB_REGISTER,
    JOB_VERSIONS,
    JobDeregisterRequest,
    JobListRequest,
    JobRegisterRequest,
    JobRequest,
)
from fedsched.rpc.methods.raft import RAFT_STATUS
from fedsched.rpc.methods.server import SERVER_MEMBERS
from fedsched.rpc.methods.status import STATUS_LEADER, STATUS_PEERS
from fedsched.server import dispatch
from fedsched.server.dispatch import NoLeader
from tests.builders import a_group, a_job
from tests.server.region import Member, Region, run_region, until


def test_a_job_registered_through_a_follower_is_read_back_from_every_server(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        follower = (await region.followers())[0]

        written = await follower.register("web")

        assert (await follower.job("web", stale=True)).job_modify_index == written.job_modify_index  # its own write
        for member in region.running():
            assert (await member.job("web")).job_modify_index == written.job_modify_index

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_read_from_a_follower_sees_every_write_acknowledged_before_it(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, followers = await region.leader(), await region.followers()

        for number in range(10):
            written = await leader.register(a_job("web", region="", priority=50 + number))
            for follower in followers:
                job = await follower.job("web")
                assert (job.priority, job.job_modify_index) == (50 + number, written.job_modify_index)

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_request_sent_twice_is_done_once_and_answered_the_same_also_through_another_server(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        first, second, third = region.running()

        replies = [await member.register("web", seq=1) for member in (first, first, second, third)]

        assert all(reply == replies[0] for reply in replies)
        evaluations = (await first.call(JOB_EVALUATIONS, JobRequest(job_id="web"))).evaluations
        assert [one.id for one in evaluations] == [replies[0].eval_id]
        assert (await second.register("web", seq=2)).eval_id != replies[0].eval_id

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_refused_request_is_refused_again_the_same_way(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        await leader.register("web")
        messages = set()
        for _ in range(2):
            with pytest.raises(Conflict) as refused:
                await leader.register("web", seq=7, enforce_index=True, job_modify_index=0)
            messages.add(str(refused.value))

        assert len(messages) == 1

    run_region(tmp_path, scenario, num_schedulers=0)


def test_request_ids_that_no_log_can_hold_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        for request_id in (RequestID(session="x" * 65, seq=1), RequestID(session="", seq=1)):
            with pytest.raises(CodecError):
                await leader.call(JOB_DEREGISTER, JobDeregisterRequest(job_id="web"), request_id=request_id)

        with pytest.raises(NotFound):
            await leader.job("web")

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_check_index_lets_one_of_two_writers_win_and_tells_the_other_why(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        one, other, _ = region.running()
        seen = (await one.register("web", enforce_index=True, job_modify_index=0)).job_modify_index

        await one.register(a_job("web", region="", priority=60), enforce_index=True, job_modify_index=seen)

        with pytest.raises(Conflict, match=f"Enforcing job modify index {seen}: job 'web' is now at"):
            await other.register(a_job("web", region="", priority=70), enforce_index=True, job_modify_index=seen)
        with pytest.raises(Conflict, match="already exists"):
            await other.register("web", enforce_index=True, job_modify_index=0)
        with pytest.raises(Conflict, match="does not exist"):
            await other.register("new", enforce_index=True, job_modify_index=5)
        assert (await other.job("web")).priority == 60

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_stopped_job_stays_known_and_a_purged_one_is_gone(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        await leader.register("web")

        stopped = await leader.call(JOB_DEREGISTER, JobDeregisterRequest(job_id="web"))

        job = await leader.job("web")
        assert (job.stop, job.job_modify_index) == (True, stopped.job_modify_index)
        assert (await leader.call(EVAL_GET, EvaluationRequest(eval_id=stopped.eval_id))).evaluation.job_id == "web"

        await leader.call(JOB_DEREGISTER, JobDeregisterRequest(job_id="web", purge=True))

        for method in (JOB_VERSIONS, JOB_DEREGISTER):
            request: Any = JobRequest(job_id="web") if method is JOB_VERSIONS else JobDeregisterRequest(job_id="web")
            with pytest.raises(NotFound, match="job 'web' not found in namespace 'default'"):
                await leader.call(method, request)
        with pytest.raises(NotFound, match="evaluation 'nowhere' not found"):
            await leader.call(EVAL_GET, EvaluationRequest(eval_id="nowhere"))

    run_region(tmp_path, scenario, num_schedulers=0)


def test_every_change_is_a_new_version_and_the_same_again_is_none(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        for priority in (50, 60, 60):
            await leader.register(a_job("web", region="", priority=priority))

        versions = (await leader.call(JOB_VERSIONS, JobRequest(job_id="web"))).versions

        assert [(one.version, one.priority) for one in versions] == [(1, 60), (0, 50)]

    run_region(tmp_path, scenario, num_schedulers=0)


def test_counts_are_kept_on_request_as_long_as_the_job_runs(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        await leader.register(a_job("web", region="", groups=[a_group(count=5)]))

        one = a_job("web", region="", groups=[a_group(count=1), a_group("more", count=2)])
        await leader.register(one, preserve_counts=True)

        assert [group.count for group in (await leader.job("web")).task_groups] == [5, 2]
        await leader.call(JOB_DEREGISTER, JobDeregisterRequest(job_id="web"))
        await leader.register(one, preserve_counts=True)
        assert [group.count for group in (await leader.job("web")).task_groups] == [1, 2]

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_template_is_registered_and_stopped_without_an_evaluation(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        groups = [a_group(update=None, migrate=None)]
        template = a_job("render", region="", type="batch", groups=groups, parameterized_job=ParameterizedJobConfig())

        written = await leader.register(template)
        stopped = await leader.call(JOB_DEREGISTER, JobDeregisterRequest(job_id="render"))

        assert (written.eval_id, written.eval_create_index) == ("", 0)
        assert (stopped.eval_id, stopped.eval_create_index) == ("", 0)

    run_region(tmp_path, scenario, num_schedulers=0)


def test_what_cannot_run_is_refused_before_it_reaches_the_log(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        index = leader.server.raft.core.log.last

        with pytest.raises(InvalidJob):
            await leader.register(a_job("web", region="", groups=[]))
        with pytest.raises(NotFound, match="namespace 'shop' does not exist"):
            await leader.register(a_job("web", region="", namespace="shop"))
        with pytest.raises(NotFound, match="namespace 'shop' does not exist"):
            await leader.call(*register_request("web"), namespace="shop")

        assert leader.server.raft.core.log.last == index

    run_region(tmp_path, scenario, num_schedulers=0)


def register_request(job_id: str) -> tuple[Any, Any]:
    return JOB_REGISTER, JobRegisterRequest(job=a_job(job_id, region=""))


def test_lists_come_in_pages_by_prefix_forwards_and_backwards(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        for job_id in ("a1", "a2", "a3", "b1"):
            await leader.register(a_job(job_id, region="", meta={"job": job_id}))

        async def pages(**fields: Any) -> list[list[str]]:
            found, token = [], ""
            while True:
                reply = await leader.call(JOB_LIST, JobListRequest(next_token=token, per_page=2, **fields))
                found.append([job.id for job in reply.jobs])
                token = reply.next_token
                if not token:
                    return found

        assert await pages() == [["a1", "a2"], ["a3", "b1"]]
        assert await pages(prefix="a") == [["a1", "a2"], ["a3"]]
        assert await pages(reverse=True) == [["b1", "a3"], ["a2", "a1"]]
        with pytest.raises(BadRequest, match="per_page is -1"):
            await leader.call(JOB_LIST, JobListRequest(per_page=-1))
        everywhere = await leader.call(JOB_LIST, JobListRequest(meta=True), namespace="*")
        assert [job.meta["job"] for job in everywhere.jobs] == ["a1", "a2", "a3", "b1"]
        assert (await leader.call(JOB_LIST, JobListRequest(), namespace="shop")).jobs == ()
        evaluations = await leader.call(EVAL_LIST, EvaluationListRequest(job_id="a1", status="pending"))
        assert [one.job_id for one in evaluations.evaluations] == ["a1"]
        assert (await leader.call(EVAL_LIST, EvaluationListRequest(status="complete"), namespace="*")).evaluations == ()

    run_region(tmp_path, scenario, num_schedulers=0)


def test_another_region_is_not_known_and_the_message_says_which_one_is(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)

        with pytest.raises(NoPath) as refused:
            await leader.job("web", region="us")

        assert str(refused.value) == "No path to region 'us' (known regions: eu)"
        with pytest.raises(NotFound, match="job 'web'"):
            await leader.job("web", region="eu")

    run_region(tmp_path, scenario, num_schedulers=0)


def test_without_a_quorum_stale_reads_and_health_still_answer_and_everything_else_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "PATIENCE_S", 0.3)

    async def scenario(region: Region) -> None:
        await region.form(3)
        leader = await region.leader()
        await leader.register("web")
        for follower in await region.followers():
            await region.stop(follower)
        await until("the leader notices", lambda: leader.server.raft.role.leader is None)

        assert (await leader.job("web", stale=True)).id == "web"
        health = await leader.call(AGENT_HEALTH)
        assert (health.ok, health.server_ok, health.message) == (False, False, "this region has no leader")
        assert (await leader.call(STATUS_LEADER)).leader == ""
        for method, request in [(JOB_VERSIONS, JobRequest(job_id="web")), register_request("web")]:
            with pytest.raises(NoLeader) as refused:
                await leader.call(method, request)
            assert refused.value.message == f"No cluster leader: {method.name} waited 0.3 s for one in region 'eu'"
            assert "list-peers -stale" in refused.value.hint
        members = (await leader.call(SERVER_MEMBERS)).members
        assert sorted(str(member.status) for member in members) == ["alive", "failed", "failed"]

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_write_that_may_yet_happen_is_not_called_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, followers = await region.leader(), await region.followers()
        for follower in followers:
            await region.stop(follower)

        with monkeypatch.context() as impatient:
            impatient.setattr(dispatch, "PATIENCE_S", 0.5)
            with pytest.raises(OutcomeUnknown, match=r"Job.Register: not known to be done after 0\.5 s") as unknown:
                await leader.register("web", seq=1)

        assert "same request id" in unknown.value.hint
        for follower in followers:
            await region.restart(follower)
        await region.leader()
        again = await leader.register("web", seq=1)
        evaluations = (await leader.call(JOB_EVALUATIONS, JobRequest(job_id="web"))).evaluations
        assert [one.id for one in evaluations] == [again.eval_id]

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_call_waits_out_an_election_and_is_then_done(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (follower, _) = await region.leader(), await region.followers()
        await region.stop(leader)

        written = await follower.register("web")

        assert (await follower.job("web")).job_modify_index == written.job_modify_index

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_call_that_was_passed_on_already_is_sent_back_rather_than_passed_on_again(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        follower = (await region.followers())[0]
        method, request = register_request("web")

        with pytest.raises(NotLeader):
            await follower.caller.call(method, request, CallMeta(hops=("somebody",)))

    run_region(tmp_path, scenario, num_schedulers=0)


def test_all_servers_come_to_the_same_state_and_say_so(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(3)
        for number in range(5):
            await leader.register(f"job-{number}")
        members = region.running()

        def levels() -> set[int]:
            return {member.server.raft.applier.applied for member in members}

        await until("everybody has applied the same", lambda: len(levels()) == 1)
        statuses = [await member.call(RAFT_STATUS) for member in members]

        assert len({(status.state_index, status.state_digest) for status in statuses}) == 1
        assert len({status.cluster_id for status in statuses}) == 1
        assert sorted(status.role for status in statuses) == ["follower", "follower", "leader"]
        led = next(status for status in statuses if status.role == "leader")
        assert (led.is_established, len(led.peers), led.commit) == (True, 2, led.last)
        assert {status.leader for status in statuses} == {led.server_id}

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_server_tells_who_it_is_who_leads_and_how_it_is_doing(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (follower, _) = await region.leader(), await region.followers()

        itself = await follower.call(AGENT_SELF)
        assert (itself.name, itself.region, itself.version) == (follower.name, "eu", __version__)
        assert itself.stats["raft"]["num_peers"] == "2"
        assert (await follower.call(AGENT_HEALTH)).ok
        found = await follower.call(STATUS_LEADER)
        assert (found.leader, found.id, found.name) == (leader.address, leader.id, leader.name)
        peers = (await follower.call(STATUS_PEERS)).peers
        assert set(peers) == {member.address for member in region.running()}
        listed = await follower.call(SERVER_MEMBERS)
        assert listed.server_name == follower.name
        assert {member.name: member.tags["leader"] for member in listed.members}[f"{leader.name}.eu"] == "true"

    run_region(tmp_path, scenario, num_schedulers=0)


def test_figures_come_as_json_and_in_prometheus_form_and_in_no_other(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader = await region.leader()
        await leader.register("web")

        prometheus = await leader.call(AGENT_METRICS, AgentMetricsRequest(format="prometheus"))
        summary = await leader.call(AGENT_METRICS, AgentMetricsRequest())

        assert prometheus.content_type.startswith("text/plain")
        lines = prometheus.body.decode().splitlines()
        assert any(line.startswith("fedsched_raft_is_leader 1") for line in lines), lines[:5]
        assert any("raft_peer_match_index{" in line for line in lines)
        assert summary.content_type == "application/json"
        assert "fedsched.raft.is_leader" in {gauge["Name"] for gauge in json.loads(summary.body)["Gauges"]}
        with pytest.raises(BadRequest, match="metrics have no format 'xml'"):
            await leader.call(AGENT_METRICS, AgentMetricsRequest(format="xml"))

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_server_that_restarts_has_everything_it_acknowledged(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        written = [await leader.register(f"job-{number}") for number in range(3)]
        await region.stop(leader)

        again = await region.restart(leader)

        await region.leader()
        assert again.id == leader.id
        for number, reply in enumerate(written):
            assert (await again.job(f"job-{number}")).job_modify_index == reply.job_modify_index

    run_region(tmp_path, scenario, num_schedulers=0)


def test_replies_say_how_fresh_they_are(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (follower, _) = await region.leader(), await region.followers()
        written = await follower.register("web")

        async def meta_of(member: Member, **meta: Any) -> Any:
            return (await member.caller.call(JOB_VERSIONS, JobRequest(job_id="web"), CallMeta(**meta)))[1]

        here, there = await meta_of(leader), await meta_of(follower, stale=True)
        assert (here.server, here.last_contact_s, here.leader_known) == (leader.name, 0.0, True)
        assert (there.server, there.index, there.leader_known) == (follower.name, written.index, True)
        assert there.applied >= written.index
        _, members = await leader.caller.call(SERVER_MEMBERS, Empty())
        assert members.index >= written.index  # what is no single row's business carries the state's own index

    run_region(tmp_path, scenario, num_schedulers=0)


def test_the_port_in_use_is_named_with_what_to_do(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        port = int(leader.address.rpartition(":")[2])

        with pytest.raises(Unavailable, match=rf"cannot listen on 127.0.0.1:{port} \(server port\)") as refused:
            await region.add("s2", rpc_port=port)

        assert "ports.rpc" in refused.value.hint

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_full_disk_is_told_at_once_and_reads_go_on(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        leader = await region.form(1)
        await leader.register("web")
        leader.server.raft.is_short_of_space = True
        started = trio.current_time()

        with pytest.raises(DiskPressure, match="nearly full"):
            await leader.register("more")

        assert trio.current_time() - started < dispatch.PATIENCE_S
        assert (await leader.job("web")).id == "web"
        await leader.call(JOB_DEREGISTER, JobDeregisterRequest(job_id="web", purge=True))  # what frees room is taken

    run_region(tmp_path, scenario, num_schedulers=0)


def test_a_leader_that_does_not_answer_in_time_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (follower, _) = await region.leader(), await region.followers()
        monkeypatch.setattr(dispatch, "PATIENCE_S", 0.0)

        with pytest.raises(Unavailable) as refused:
            await follower.job("web")

        assert refused.value.message == f"Job.Get: leader {leader.name} did not answer within 0 s: silence"
        assert "-stale" in refused.value.hint

    run_region(tmp_path, scenario, num_schedulers=0)


def test_calls_end_with_their_caller(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(3)
        leader = await region.leader()
        for follower in await region.followers():
            await region.stop(follower)

        with trio.move_on_after(0.05) as scope:
            await leader.register("web")

        assert scope.cancelled_caught
        assert leader.server.raft.open_proposals == 0

    run_region(tmp_path, scenario, num_schedulers=0)
