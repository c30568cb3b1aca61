"""What the nouns can tell about themselves, and their short forms for lists."""

from __future__ import annotations

from fedsched.model.acl import ACLPolicy, ACLToken, TokenType
from fedsched.model.alloc import AllocDeploymentStatus, ClientStatus, DesiredStatus
from fedsched.model.deployment import DeploymentState, DeploymentStatus
from fedsched.model.job import ParameterizedJobConfig, PeriodicConfig
from fedsched.model.node import DrainStrategy, Eligibility, NodeStatus
from fedsched.model.node_resources import NodeDeviceGroup
from fedsched.model.plan import Plan
from fedsched.model.record import to_api
from fedsched.model.region import ServerMember
from fedsched.model.summary import JobSummary, job_stub
from fedsched.model.task_state import TaskState
from fedsched.model.variable import Variable
from tests.builders import a_deployment, a_group, a_job, a_node, a_task, an_alloc, an_id
from tests.model.fixtures import load


def test_job_knows_its_groups_and_kind() -> None:
    job = a_job(groups=[a_group("app", tasks=[a_task("db")])])

    app = job.group("app")
    assert app is not None
    assert app.task("db") is not None
    assert app.task("nope") is None
    assert job.group("nope") is None
    assert job.key == ("default", "web")
    assert not job.is_periodic
    assert a_job(periodic=PeriodicConfig()).is_periodic
    assert a_job(parameterized_job=ParameterizedJobConfig()).is_parameterized
    assert not a_job(parameterized_job=ParameterizedJobConfig(), dispatched=True).is_parameterized


def test_job_stub_has_nomads_members_and_meta_only_on_request() -> None:
    job = a_job(meta={"a": "b"})

    stub = to_api(job_stub(job, JobSummary(job_id=job.id)))

    assert stub.keys() == load("recorded")["JobListStub"][0].keys()
    assert stub["Meta"] is None
    assert to_api(job_stub(job, None, meta=True))["Meta"] == {"a": "b"}


def test_allocation_is_terminal_when_either_side_says_so() -> None:
    assert not an_alloc(client_status=ClientStatus.UNKNOWN).is_terminal
    assert an_alloc(desired_status=DesiredStatus.EVICT).is_server_terminal
    assert an_alloc(client_status=ClientStatus.LOST).is_client_terminal
    assert an_alloc(desired_status=DesiredStatus.STOP).is_terminal


def test_allocation_knows_its_part_in_a_deployment() -> None:
    assert not an_alloc().is_canary
    assert an_alloc(deployment_status=AllocDeploymentStatus(canary=True)).is_canary
    assert AllocDeploymentStatus(healthy=True).is_healthy
    assert AllocDeploymentStatus(healthy=False).is_unhealthy
    assert not AllocDeploymentStatus().is_healthy
    assert not AllocDeploymentStatus().is_unhealthy


def test_allocation_stub_has_nomads_members_and_leaves_out_what_is_large() -> None:
    alloc = an_alloc(task_states={"web": TaskState()})

    stub = to_api(alloc.stub())

    assert stub.keys() == load("recorded")["AllocListStub"][0].keys()
    assert stub["AllocatedResources"] is None
    assert to_api(alloc.stub(resources=True))["AllocatedResources"] is not None
    assert to_api(alloc.stub(task_states=False))["TaskStates"] is None


def test_node_is_ready_only_if_nothing_speaks_against_it() -> None:
    assert a_node().is_ready
    assert not a_node(status=NodeStatus.DOWN).is_ready
    assert not a_node(drain_strategy=DrainStrategy()).is_ready
    assert not a_node(scheduling_eligibility=Eligibility.INELIGIBLE).is_ready


def test_node_stub_has_nomads_members_and_leaves_out_what_is_large() -> None:
    node = a_node(http_addr="[::1]:4646", attributes={"nomad.version": "1.0", "os.name": "debian"})

    stub = to_api(node.stub())

    assert stub.keys() == load("recorded")["NodeListStub"][0].keys()
    assert (stub["Address"], stub["Version"], stub["NodeResources"]) == ("::1", "1.0", None)
    assert to_api(node.stub(os=True))["Attributes"] == {"os.name": "debian"}
    assert to_api(node.stub(resources=True))["NodeResources"] is not None


def test_deployment_wants_promotion_while_canaries_wait() -> None:
    waiting = {"app": DeploymentState(desired_canaries=1)}
    assert a_deployment(task_groups=waiting).requires_promotion
    assert not a_deployment(task_groups=waiting, status=DeploymentStatus.FAILED).requires_promotion
    assert not a_deployment(task_groups={"app": DeploymentState(desired_canaries=1, promoted=True)}).requires_promotion
    assert a_deployment().is_active


def test_plan_without_changes_is_a_no_op() -> None:
    assert Plan(eval_id=an_id()).is_no_op
    assert not Plan(eval_id=an_id(), node_update={"n": (an_alloc(),)}).is_no_op


def test_tokens_expire_and_hide_their_secret() -> None:
    token = ACLToken(accessor_id="a", secret_id="s", type=TokenType.MANAGEMENT.value, expiration_time_ns=10)

    assert token.is_management
    assert not token.is_expired(9)
    assert token.is_expired(10)
    assert not ACLToken(accessor_id="a").is_expired(10)
    assert "SecretID" not in to_api(token.stub())
    assert to_api(ACLPolicy(name="p", rules="x").stub()).keys() == load("recorded")["ACLPolicyStub"][0].keys()


def test_small_things_know_their_names() -> None:
    member = ServerMember(name="a.eu", tags={"region": "eu", "id": an_id(3)})
    assert (member.region, member.server_id) == ("eu", an_id(3))
    assert NodeDeviceGroup(vendor="v", type="gpu", name="x").id == "v/gpu/x"
    assert Variable(path="a/b", items={"k": "v"}).metadata.path == "a/b"
