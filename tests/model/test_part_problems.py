"""What can be wrong with a job's networks, services, volumes, files and other parts; each with its place."""

from __future__ import annotations

from typing import Any

import pytest

from fedsched.model.constraint import Affinity, Constraint, Spread
from fedsched.model.identity import WorkloadIdentity
from fedsched.model.job import Job, JobType, PeriodicConfig
from fedsched.model.job_problems import problems
from fedsched.model.nearest import nearest
from fedsched.model.network import NetworkResource, Port
from fedsched.model.policies import UpdateStrategy
from fedsched.model.problem import error_text, flat, one_of
from fedsched.model.resources import NUMAResource, RequestedDevice, Resources
from fedsched.model.scaling import ScalingPolicy
from fedsched.model.service import CheckRestart, Service, ServiceCheck
from fedsched.model.task import Action, ChangeScript, DispatchPayload, Secret, TaskArtifact, Template, WaitConfig
from fedsched.model.text_checks import TextChecks
from fedsched.model.volume import VolumeMount, VolumeRequest
from tests.builders import a_group, a_job, a_task

SYSTEM = JobType.SYSTEM.value


def grouped(**fields: Any) -> Job:
    return a_job(groups=[a_group(**fields)])


def tasked(**fields: Any) -> Job:
    return a_job(groups=[a_group(tasks=[a_task(**fields)])])


def a_port(label: str = "http", **fields: Any) -> Port:
    return Port(label=label, **fields)


def networked(*, dynamic: tuple[Port, ...] = (), reserved: tuple[Port, ...] = (), mode: str = "", **fields: Any) -> Job:
    return grouped(networks=(NetworkResource(mode=mode, dynamic_ports=dynamic, reserved_ports=reserved),), **fields)


def a_check(**fields: Any) -> ServiceCheck:
    return ServiceCheck(**{"type": "tcp", "interval_s": 10.0, "timeout_s": 2.0, "port_label": "http", **fields})


def a_service(**fields: Any) -> Service:
    return Service(**{"name": "web", "provider": "nomad", "port_label": "http", **fields})


def serving(*services: Service) -> Job:
    return networked(dynamic=(a_port(),), services=services)


def checking(**fields: Any) -> Job:
    return serving(a_service(checks=(a_check(**fields),)))


def task_serving(**fields: Any) -> Job:
    task = a_task(services=(a_service(**fields),))
    return networked(dynamic=(a_port(),), tasks=[task])


def a_volume(**fields: Any) -> VolumeRequest:
    return VolumeRequest(**{"type": "host", "source": "data", **fields})


def mounted(volume: VolumeRequest | None = None, **fields: Any) -> Job:
    mount = VolumeMount(**{"volume": "v", "destination": "/v", **fields})
    return grouped(volumes={"v": volume or a_volume()}, tasks=[a_task(volume_mounts=(mount,))])


def with_template(**fields: Any) -> Job:
    return tasked(templates=(Template(**{"embedded_tmpl": "x", "dest_path": "local/x", **fields}),))


def with_artifact(**fields: Any) -> Job:
    return tasked(artifacts=(TaskArtifact(**{"getter_source": "https://x.example/a.tgz", **fields}),))


def with_checksum(text: str) -> Job:
    return with_artifact(getter_options={"checksum": text})


G, T = "TaskGroups[0]", "TaskGroups[0].Tasks[0]"

PORTS = [
    (networked(dynamic=(a_port(""),)), f"{G}.Networks[0].DynamicPorts[0].Label: Port has no label"),
    (
        networked(dynamic=(a_port(),), reserved=(a_port(value=80),)),
        f"{G}.Networks[0].DynamicPorts[0].Label: Port label http already in use by taskgroup network:http",
    ),
    (
        networked(
            dynamic=(a_port(),),
            tasks=[a_task(resources=Resources(networks=(NetworkResource(dynamic_ports=(a_port(),)),)))],
        ),
        f"{T}.Resources.Networks[0].DynamicPorts[0].Label: Port label http already in use",
    ),
    (
        networked(reserved=(a_port(value=65_536),)),
        f"{G}.Networks[0].ReservedPorts[0].Value: Port http (65536) cannot be",
    ),
    (networked(dynamic=(a_port(to=65_536),)), f"{G}.Networks[0].DynamicPorts[0].To: Port http maps to 65536"),
    (networked(dynamic=(a_port(to=-2),)), f"{G}.Networks[0].DynamicPorts[0].To: Port http maps to -2"),
    (
        networked(reserved=(a_port("a", value=80), a_port("b", value=80))),
        f"{G}.Networks[0].ReservedPorts[1].Value: Static port 80 already reserved by a",
    ),
    (
        networked(mode="bridge", reserved=(a_port(value=80, ignore_collision=True),)),
        f"{G}.Networks[0].ReservedPorts[0].IgnoreCollision: Port http: ignore_collision may only be used",
    ),
]

SERVICES = [
    (serving(a_service(name="a_b")), f"{G}.Services[0].Name: Service name 'a_b' must be letters, digits and dashes"),
    (serving(a_service(name="a" * 64)), f"{G}.Services[0].Name: Service name"),
    (serving(a_service(provider="etcd")), f'{G}.Services[0].Provider: Service provider "etcd" is not known'),
    (serving(a_service(on_update="never")), f"{G}.Services[0].OnUpdate: Service on_update must be one of"),
    (serving(a_service(connect={})), f'{G}.Services[0].Connect: Service web with provider "nomad" cannot use connect'),
    (serving(a_service(address_mode="moon")), f"{G}.Services[0].AddressMode: Service address_mode must be one of"),
    (serving(a_service(address_mode="driver")), f"{G}.Services[0].AddressMode: Service address_mode driver is for"),
    (serving(a_service(address="x", address_mode="host")), f"{G}.Services[0].Address: Service address may only be set"),
    (task_serving(port_label="htp"), f'{T}.Services[0].PortLabel: port label "htp" referenced by a service does not'),
    (
        task_serving(port_label="80"),
        f'{T}.Services[0].PortLabel: port "80" is a number, which needs address_mode driver',
    ),
    (
        task_serving(port_label="99999", address_mode="driver"),
        f'{T}.Services[0].PortLabel: port "99999" is outside 1 to 65535',
    ),
    (
        serving(a_service(), a_service(name="b", provider="consul")),
        f"{G}.Services: Multiple service providers used",
    ),
    (serving(a_service(), a_service()), f"{G}.Services[1].Name: Services are not unique: group->web:http"),
    (checking(type="ping"), f'{G}.Services[0].Checks[0].Type: invalid check type "ping", must be one of grpc, http'),
    (checking(type="script"), f"{G}.Services[0].Checks[0].Command: script type must have a command"),
    (
        checking(type="script", command="/bin/x", task_name="nobody"),
        f"{G}.Services[0].Checks[0].TaskName: script check must name a task of the group to run in, not",
    ),
    (checking(type="http"), f"{G}.Services[0].Checks[0].Path: http type must have http path"),
    (
        checking(type="http", path="http://x/"),
        f"{G}.Services[0].Checks[0].Path: http type must have relative http path",
    ),
    (checking(type="http", path="/", protocol="ftp"), f"{G}.Services[0].Checks[0].Protocol: check protocol must be"),
    (
        serving(a_service(port_label="", checks=(a_check(port_label=""),))),
        f"{G}.Services[0].Checks[0].PortLabel: tcp check has no port",
    ),
    (checking(interval_s=0.0), f"{G}.Services[0].Checks[0].Interval: missing required value interval"),
    (checking(interval_s=0.5), f"{G}.Services[0].Checks[0].Interval: interval (500ms) is too low"),
    (checking(timeout_s=0.5), f"{G}.Services[0].Checks[0].Timeout: timeout (500ms) is too low"),
    (checking(initial_status="fine"), f'{G}.Services[0].Checks[0].InitialStatus: invalid initial check state "fine"'),
    (checking(on_update="never"), f'{G}.Services[0].Checks[0].OnUpdate: invalid check on_update "never"'),
    (checking(expose=True), f"{G}.Services[0].Checks[0].Expose: Expose may only be set for Consul"),
    (checking(failures_before_warning=1), f"{G}.Services[0].Checks[0].FailuresBeforeWarning: Fail"),
    (checking(check_restart=CheckRestart(limit=-1)), f"{G}.Services[0].Checks[0].CheckRestart.Limit: limit must be"),
    (checking(check_restart=CheckRestart(grace_s=-1.0)), f"{G}.Services[0].Checks[0].CheckRestart.Grace: grace period"),
]

VOLUMES = [
    (mounted(a_volume(source="")), f"{G}.Volumes['v'].Source: volume has an empty source"),
    (mounted(a_volume(type="csi")), f"{G}.Volumes['v'].Type: volume type csi is not served here"),
    (mounted(a_volume(access_mode="all")), f"{G}.Volumes['v'].AccessMode: volume has an unknown access mode"),
    (mounted(a_volume(attachment_mode="tape")), f"{G}.Volumes['v'].AttachmentMode: volume has an unknown attachment"),
    (
        mounted(a_volume(access_mode="single-node-reader-only")),
        f"{G}.Volumes['v'].ReadOnly: single-node-reader-only volumes must be read-only",
    ),
    (mounted(a_volume(per_alloc=True, sticky=True)), f"{G}.Volumes['v'].PerAlloc: volume cannot be both"),
    (
        grouped(volumes={"v": a_volume(per_alloc=True)}, update=UpdateStrategy(canary=1)),
        f"{G}.Volumes['v'].PerAlloc: volume cannot be per_alloc when canaries",
    ),
    (
        a_job(type=SYSTEM, groups=[a_group(volumes={"v": a_volume(per_alloc=True)})]),
        f"{G}.Volumes['v'].PerAlloc: volume cannot be per_alloc for system jobs",
    ),
    (mounted(a_volume(type="tape")), f"{T}.VolumeMounts[0].Volume: Volume Mount (0) references undefined volume v"),
    (mounted(destination=""), f"{T}.VolumeMounts[0].Destination: Volume Mount (0) has no destination"),
    (mounted(propagation_mode="x"), f"{T}.VolumeMounts[0].PropagationMode: Volume Mount (0) has an invalid"),
    (mounted(selinux_label="q"), f"{T}.VolumeMounts[0].SELinuxLabel: Volume Mount (0) has an invalid SELinux"),
]

FILES = [
    (with_artifact(getter_source=""), f"{T}.Artifacts[0].GetterSource: source must be specified"),
    (with_artifact(getter_mode="tree"), f'{T}.Artifacts[0].GetterMode: invalid artifact mode "tree"'),
    (with_artifact(relative_dest="../../x"), f"{T}.Artifacts[0].RelativeDest: invalid destination path"),
    (with_checksum("abc"), f'{T}.Artifacts[0].GetterOptions: invalid checksum "abc"'),
    (with_checksum("crc:abc"), f'{T}.Artifacts[0].GetterOptions: unsupported checksum type "crc"'),
    (with_checksum("md5:abc"), f"{T}.Artifacts[0].GetterOptions: invalid md5 checksum: 32 hex digits"),
    (with_template(embedded_tmpl=""), f"{T}.Templates[0]: Must specify a source path or have an embedded template"),
    (with_template(dest_path=""), f"{T}.Templates[0].DestPath: Must specify a destination"),
    (with_template(dest_path="../../etc"), f"{T}.Templates[0].DestPath: template destination escapes"),
    (with_template(change_mode="wait"), f'{T}.Templates[0].ChangeMode: Invalid change mode given: "wait"'),
    (with_template(change_mode="signal", envvars=True), f"{T}.Templates[0].ChangeMode: cannot use signals with env"),
    (with_template(change_mode="script"), f"{T}.Templates[0].ChangeScript.Command: must specify script configuration"),
    (with_template(change_script=ChangeScript(timeout_s=-1.0)), f"{T}.Templates[0].ChangeScript.Timeout: must not be"),
    (with_template(splay_s=-1.0), f"{T}.Templates[0].Splay: Must specify positive splay value"),
    (with_template(perms="0999"), f'{T}.Templates[0].Perms: Failed to parse "0999" as octal'),
    (with_template(wait=WaitConfig(min_s=2.0, max_s=1.0)), f"{T}.Templates[0].Wait: wait min must not be greater"),
    (with_template(wait=WaitConfig(min_s=-1.0)), f"{T}.Templates[0].Wait.Min: wait min must not be negative"),
    (
        tasked(templates=tuple(Template(embedded_tmpl="x", dest_path="local/x") for _ in range(2))),
        f"{T}.Templates[1].DestPath: Template 2 has same destination as 1",
    ),
    (tasked(dispatch_payload=DispatchPayload()), f"{T}.DispatchPayload.File: dispatch_payload names no file"),
    (tasked(dispatch_payload=DispatchPayload(file="../../../x")), f"{T}.DispatchPayload.File: dispatch_payload file"),
]


def with_device(**fields: Any) -> Job:
    return tasked(resources=Resources(devices=(RequestedDevice(**{"name": "gpu", **fields}),)))


OTHERS = [
    (with_device(name="a/b/c/d"), f'{T}.Resources.Devices[0].Name: device name "a/b/c/d" is no type'),
    (with_device(count=0), f"{T}.Resources.Devices[0].Count: device count must be at least 1; got 0"),
    (
        with_device(constraints=(Constraint(operand="distinct_hosts"),)),
        f"{T}.Resources.Devices[0].Constraints[0].Operand: distinct_hosts may only be used on job and group",
    ),
    (
        tasked(resources=Resources(numa=NUMAResource(affinity="near"))),
        f'{T}.Resources.NUMA.Affinity: numa affinity "near" is not known',
    ),
    (tasked(secrets=(Secret(name="a b", provider="p", path="x"),)), f"{T}.Secrets[0].Name: secret name 'a b' must be"),
    (tasked(secrets=(Secret(name="a", path="x"),)), f'{T}.Secrets[0].Provider: secret "a" names no provider'),
    (tasked(secrets=(Secret(name="a", provider="p"),)), f'{T}.Secrets[0].Path: secret "a" has no path'),
    (
        tasked(secrets=(Secret(name="a", provider="p", path="x"),) * 2),
        f'{T}.Secrets[1].Name: secret "a" is defined twice',
    ),
    (
        grouped(networks=(NetworkResource(hostname="a b"),)),
        f"{G}.Networks[0].Hostname: Hostname 'a b' is not a valid DNS name",
    ),
    (tasked(actions=(Action(name="a b", command="x"),)), f"{T}.Actions[0].Name: action name 'a b' must be"),
    (tasked(actions=(Action(name="a"),)), f'{T}.Actions[0].Command: action "a" has no command'),
    (
        tasked(actions=(Action(name="a", command="x"), Action(name="a", command="y"))),
        f'{T}.Actions[1].Name: action "a" is defined twice',
    ),
    (
        tasked(identity=WorkloadIdentity(), identities=(WorkloadIdentity(name="default"),)),
        f"{T}.Identities[0]: multiple identities with the same name: default",
    ),
    (
        tasked(identities=(WorkloadIdentity(name="a", change_mode="x"),)),
        f'{T}.Identities[0].ChangeMode: invalid change_mode "x" of identity a',
    ),
    (
        tasked(identities=(WorkloadIdentity(name="a", change_mode="signal"),)),
        f"{T}.Identities[0].ChangeSignal: identity a names no change_signal",
    ),
    (tasked(identities=(WorkloadIdentity(name="a", ttl_s=-1.0),)), f"{T}.Identities[0].TTL: ttl of identity a must"),
    (tasked(scaling_policies=(ScalingPolicy(min=2, max=1),)), f"{T}.ScalingPolicies[0]: Scaling: bounds 2 to 1"),
    (
        a_job(type=SYSTEM, groups=[a_group(scaling=ScalingPolicy(min=1, max=1))]),
        f"{G}.Scaling: Task groups with job type system do not support scaling blocks",
    ),
    (a_job(type=SYSTEM, groups=[a_group(affinities=(Affinity(),))]), f"{G}.Affinities: System jobs may not have"),
    (a_job(type=SYSTEM, groups=[a_group(spreads=(Spread(),))]), f"{G}.Spreads: System jobs may not have a spread"),
    (
        a_job(type=SYSTEM, groups=[a_group(tasks=[a_task(affinities=(Affinity(),))])]),
        f"{T}.Affinities: System jobs may not have an affinity block",
    ),
    (grouped(consul={}), f"{G}.Consul: Group group asks for Consul"),
    (
        a_job(type="batch", periodic=PeriodicConfig(specs=("@daily", "x"))),
        'Periodic.Specs[1]: Invalid cron spec "x": missing field(s)',
    ),
    (a_job(type="batch", periodic=PeriodicConfig(spec="x")), 'Periodic.Spec: Invalid cron spec "x"'),
    (
        a_job(type="batch", periodic=PeriodicConfig(specs=("@daily",), time_zone="Mars/X")),
        'Periodic.TimeZone: Invalid time zone: unknown time zone "Mars/X"',
    ),
    (
        a_job(constraints=(Constraint(l_target="${attr.x}", operand="regexp", r_target="("),)),
        "Constraints[0].RTarget: Regular expression failed to compile: error parsing regexp: missing closing ): `(`",
    ),
    (
        a_job(constraints=(Constraint(l_target="${attr.x}", operand="version", r_target="new"),)),
        "Constraints[0].RTarget: Version constraint is invalid: Malformed constraint: new",
    ),
    (
        a_job(affinities=(Affinity(l_target="${attr.x}", operand="semver", r_target="~> 1"),)),
        "Affinities[0].RTarget: Semver constraint is invalid: Malformed constraint: ~> 1",
    ),
]


@pytest.mark.parametrize(("job", "expected"), PORTS + SERVICES + VOLUMES + FILES + OTHERS)
def test_problem_is_found_and_placed(job: Job, expected: str) -> None:
    found = [f"{problem.path}: {problem.message}" for problem in flat(problems(job))]

    assert any(expected in line for line in found), found


@pytest.mark.parametrize(
    "job",
    [
        networked(
            reserved=(a_port("a", value=80, ignore_collision=True), a_port("b", value=80, ignore_collision=True))
        ),
        networked(reserved=(a_port("a", value=80), a_port("b", value=80, host_network="private"))),
        networked(dynamic=(a_port(to=-1),)),
        serving(a_service(name="web-${NOMAD_GROUP_NAME}", provider="fedsched"), a_service(name="b")),
        serving(a_service(provider="consul", checks=(a_check(type="grpc", expose=True),))),
        serving(a_service(port_label="unknown-is-only-warned-of")),
        task_serving(port_label="8080", address_mode="driver"),
        task_serving(port_label="${meta.port}"),
        checking(type="http", path="/health?to=http://x/"),
        checking(check_restart=CheckRestart(limit=3, grace_s=None)),
        mounted(a_volume(access_mode="single-node-reader-only", read_only=True)),
        grouped(volumes={"unmounted": a_volume(type="tape")}),
        with_checksum("md5:" + "a" * 32),
        with_checksum("sha256:${meta.sum}"),
        with_checksum("file:https://example.org/SHA256SUMS"),
        with_artifact(relative_dest="../alloc-shared"),
        with_template(change_mode="signal"),
        with_template(source_path="local/in", change_mode="script", change_script=ChangeScript(command="/bin/true")),
        with_template(wait=WaitConfig(min_s=1.0)),
        tasked(dispatch_payload=DispatchPayload(file="in/put.json")),
        with_device(name="nvidia/gpu/1080"),
        grouped(networks=(NetworkResource(hostname="web-${NOMAD_ALLOC_INDEX}.example"),)),
        tasked(secrets=(Secret(name="a", provider="p", path="x"),)),
        tasked(actions=(Action(name="flush", command="x"),)),
        checking(type="script", command="/bin/x", task_name="web", on_update="ignore_warnings"),
        checking(type="grpc", address_mode="driver", tls_server_name="x"),
        checking(success_before_passing=2, failures_before_critical=3),
    ],
)
def test_good_job_has_no_problems(job: Job) -> None:
    assert problems(job) == []


def test_whoever_runs_a_pattern_may_judge_it() -> None:
    job = a_job(constraints=(Constraint(l_target="${attr.x}", operand="regexp", r_target="a"),))

    (found,) = flat(problems(job, texts=TextChecks(regexp=lambda _: "not today")))

    assert found.message == "Regular expression failed to compile: not today"


def test_a_hint_says_what_would_be_right_and_stays_out_of_the_api_text() -> None:
    (found,) = flat(problems(a_job(type="servce")))

    assert found.hint == 'did you mean "service"?'
    assert "did you mean" not in error_text([found])


def test_the_nearest_word_or_all_of_them_are_offered() -> None:
    assert nearest("servce", ["service", "batch"]) == "service"
    assert nearest("x", ["service"]) is None
    assert one_of("x", ["b", "a"]) == "one of a, b"
