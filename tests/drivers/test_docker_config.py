"""What operators and tasks may say: everything known is honoured or refused with a reason, and little is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedsched.drivers.docker.config import DEFAULT_CAPS, SETTINGS_SCHEMA, DockerSettings, settings_from
from fedsched.drivers.docker.create import EngineFacts, create_body
from fedsched.drivers.docker.labels import ALLOC_ID, container_name
from fedsched.drivers.docker.task_config import task_settings_from
from fedsched.drivers.driver import DriverError, Mount, TaskConfig, TaskLimits, TaskPort
from fedsched.drivers.schemas import DOCKER_TASK_SCHEMA
from tests.drivers.conformance import make_dirs

ALLOC = "00000000-0000-0000-0000-0000000000ab"
FREE = DockerSettings(
    allows_privileged=True,
    allows_host_volumes=True,
    allow_caps=("all",),
    allow_runtimes=("runc", "kata"),
    allowed_modes={"pid": ("host",), "ipc": ("host",), "userns": ("host",), "uts": ("host",)},
)


def a_task(place: Path, config: Mapping[str, Any] | None = None, **fields: Any) -> TaskConfig:
    return TaskConfig(
        id=f"{ALLOC}/web/1",
        alloc_id=ALLOC,
        namespace="default",
        job_id="shop",
        group="front",
        task=fields.pop("task", "web"),
        node_id="node",
        dirs=make_dirs(place / ALLOC, "web"),
        config={"image": "app:1", **(config or {})},
        **fields,
    )


def body_of(
    place: Path, config: Mapping[str, Any], operator: DockerSettings = FREE, *, is_podman: bool = False, **fields: Any
) -> dict[str, Any]:
    task = a_task(place, config, **fields)
    settings = task_settings_from(task.config, operator)
    facts = EngineFacts(is_podman, cores=4)
    return create_body(task, settings, operator, facts, image_id="sha256:1", handle=b"{}")


# the operator's side


def test_without_a_word_everything_that_reaches_out_is_off() -> None:
    found = settings_from({})

    assert not found.allows_privileged
    assert not found.allows_host_volumes
    assert found.allow_caps == DEFAULT_CAPS
    assert "net_raw" not in found.allow_caps
    assert not any(found.allowed_modes.values())
    assert (found.image_delay_s, found.pull_activity_timeout_s, found.container_exists_attempts) == (180, 120, 5)
    assert (found.dangling.period_s, found.dangling.creation_grace_s) == (300, 300)
    assert found.endpoint == "unix:///var/run/docker.sock"
    assert settings_from({}, "podman").endpoint == "unix:///run/podman/podman.sock"


def test_all_that_an_operator_says_is_read() -> None:
    found = settings_from(
        {
            "enabled": True,
            "endpoint": "unix:///x.sock",
            "auth": {"config": "/etc/auth.json", "helper": "ecr-login"},
            "extra_labels": ["job_*"],
            "logging": {"type": "local", "config": {"max-size": "9m"}},
            "gc": {
                "image": "false",
                "image_delay": "1h",
                "container": False,
                "dangling_containers": {"enabled": False, "period": "1m", "creation_grace": "2m", "dry_run": True},
            },
            "volumes": {"enabled": True, "selinuxlabel": "z"},
            "allow_privileged": True,
            "allow_caps": ["CAP_NET_RAW", "all"],
            "allow_runtimes": ["kata"],
            "nvidia_runtime": "nvidia",
            "image_pull_timeout": "9m",
            "container_exists_attempts": "7",
            "oom_score_adj": 5,
            "pull_activity_timeout": "30s",
            "pids_limit": 100,
            "disable_log_collection": True,
            "allowed_modes": {"pid": ["host"]},
        }
    )

    assert found.auth_helper == "ecr-login"
    assert (found.logging_type, found.logging_config) == ("local", {"max-size": "9m"})
    assert (found.removes_images, found.image_delay_s, found.removes_containers) == (False, 3600, False)
    assert (found.dangling.is_enabled, found.dangling.period_s, found.dangling.is_dry_run) == (False, 60, True)
    assert found.allow_caps == ("net_raw", "all")
    assert found.allowed_modes["pid"] == ("host",)
    assert not found.collects_logs


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"endpont": "unix:///x"}, "did you mean endpoint"),
        ({"endpoint": "http://x"}, "unix:///path"),
        ({"endpoint": "unix://"}, "unix:///path"),
        ({"endpoint": "tcp://host:2375"}, "without tls"),
        ({"endpoint": "tcp://host:many", "tls": {"cert": "a", "key": "b"}}, "tcp://host:port"),
        ({"infra_image": "pause:3"}, "cannot be honoured"),
        ({"infra_image_pull_timeout": "5m"}, "cannot be honoured"),
        ({"nvidia_runtime": "other"}, "cannot be honoured"),
        ({"auth": {"helper": "x; rm -rf /"}}, "docker-credential"),
        ({"volumes": {"selinuxlabel": "q"}}, "z or Z"),
        ({"container_exists_attempts": 0}, "from 1 to 100"),
        ({"container_exists_attempts": "many"}, "whole number"),
        ({"image_pull_timeout": "soon"}, "soon"),
        ({"image_pull_timeout": "-5s"}, "below zero"),
        ({"allow_privileged": "perhaps"}, "true or false"),
    ],
)
def test_what_an_operator_gets_wrong_is_told(given: dict[str, Any], words: str) -> None:
    with pytest.raises(DriverError, match=words):
        settings_from(given)


def test_tls_files_that_are_not_there_are_told(tmp_path: Path) -> None:
    found = settings_from({"endpoint": "tcp://h:1", "tls": {"cert": f"{tmp_path}/c", "key": f"{tmp_path}/k"}})
    with pytest.raises(DriverError, match="TLS"):
        found.open_endpoint()


def test_every_setting_of_the_reference_is_known() -> None:
    agent = (
        "endpoint auth tls extra_labels logging gc volumes allow_privileged allow_caps allow_runtimes nvidia_runtime "
        "infra_image infra_image_pull_timeout image_pull_timeout container_exists_attempts oom_score_adj "
        "pull_activity_timeout pids_limit disable_log_collection allowed_modes"
    )
    task = (
        "image advertise_ipv6_address args auth auth_soft_fail cap_add cap_drop cgroupns command "
        "container_exists_attempts cpu_cfs_period cpu_hard_limit cpuset_cpus devices dns_options dns_search_domains "
        "dns_servers entrypoint extra_hosts force_pull group_add healthchecks hostname image_pull_timeout init "
        "interactive ipc_mode ipv4_address ipv6_address isolation labels load logging mac_address memory_hard_limit "
        "mount mounts network_aliases network_mode oom_score_adj pid_mode pids_limit ports port_map privileged "
        "readonly_rootfs runtime security_opt shm_size storage_opt sysctl tty ulimit userns_mode uts_mode "
        "volume_driver volumes work_dir"
    )
    assert set(SETTINGS_SCHEMA.fields) == set(agent.split())
    assert set(DOCKER_TASK_SCHEMA.fields) == set(task.split())


# what tasks are refused


@pytest.mark.parametrize(
    ("config", "allowing"),
    [
        ({"privileged": True}, "allow_privileged"),
        ({"pid_mode": "host"}, "allowed_modes"),
        ({"ipc_mode": "host"}, "allowed_modes"),
        ({"ipc_mode": "container:other"}, "allowed_modes"),
        ({"userns_mode": "host"}, "allowed_modes"),
        ({"uts_mode": "host"}, "allowed_modes"),
        ({"cgroupns": "host"}, "allow_privileged"),
        ({"runtime": "kata"}, "allow_runtimes"),
        ({"cap_add": ["SYS_ADMIN"]}, "allow_caps"),
        ({"cap_add": ["net_raw"]}, "allow_caps"),
        ({"security_opt": ["seccomp=unconfined"]}, "allow_privileged"),
        ({"security_opt": ["apparmor=unconfined"]}, "allow_privileged"),
        ({"security_opt": ["label=type:spc_t"]}, "allow_privileged"),
        ({"oom_score_adj": -500}, "allow_privileged"),
        ({"volumes": ["/etc:/etc"]}, "volumes"),
        ({"volumes": ["local/x:/x:shared"]}, "volumes"),
        ({"volume_driver": "nfs"}, "volumes"),
        ({"mount": [{"type": "bind", "source": "/etc", "target": "/e"}]}, "volumes"),
        ({"mount": {"target": "/e", "source": "shared-volume"}}, "volumes"),
        (
            {"mount": {"type": "bind", "source": "local", "target": "/e", "bind_options": {"propagation": "rshared"}}},
            "allow_privileged",
        ),
        ({"devices": [{"host_path": "/dev/sda"}]}, "volumes"),
    ],
)
def test_what_reaches_out_is_refused_unless_the_operator_allows_it(
    tmp_path: Path, config: dict[str, Any], allowing: str
) -> None:
    with pytest.raises(DriverError, match="not allowed") as caught:
        body_of(tmp_path, config, DockerSettings())
    assert allowing in caught.value.hint

    body_of(
        tmp_path,
        {**config, **({"runtime": "kata"} if "runtime" in config else {})},
        replace(
            FREE,
            allowed_modes={"pid": ("host",), "ipc": ("host", "container:other"), "userns": ("host",), "uts": ("host",)},
        ),
    )


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"isolation": "hyperv"}, "only Windows"),
        ({"imagee": "x"}, "unknown"),
        ({"cgroupns": "shared"}, "private or host"),
        ({"auth": {"password": "x"}}, "no username"),
        ({"work_dir": "relative"}, "absolute"),
        ({"ulimit": {"nofile": "lots"}}, "soft:hard"),
        ({"volumes": ["local"]}, "path inside"),
        ({"volumes": [":/x"]}, "path inside"),
        ({"volumes": ["local/x:relative"]}, "absolute path inside"),
        ({"mount": [{"type": "magic", "target": "/x"}]}, "volume, bind or tmpfs"),
        ({"mount": [{"target": "x"}]}, "absolute"),
        ({"mount": [{"type": "bind", "target": "/x"}]}, "needs a source"),
        ({"mount": [{"type": "tmpfs", "source": "a", "target": "/x"}]}, "no source"),
        ({"mount": [{"type": "tmpfs", "target": "/x", "tmpfs_options": {"mode": "999"}}]}, "file mode"),
        (
            {"mount": [{"type": "bind", "source": "local", "target": "/x", "bind_options": {"propagation": "no"}}]},
            "private",
        ),
        ({"devices": [{"host_path": "dev/x"}]}, "absolute"),
        ({"devices": [{"host_path": "/dev/x", "cgroup_permissions": "rx"}]}, "made of"),
        ({"cpu_cfs_period": 5}, "from 1000"),
        ({"cpu_hard_limit": True}, "its own speed"),
        ({"memory_hard_limit": 1}, "at least"),
        ({"oom_score_adj": 5000}, "from -1000"),
        ({"shm_size": 0}, "at least 1"),
        ({"ports": ["nope"]}, "no port 'nope'"),
        ({"ports": ["http"], "port_map": {"http": "1"}}, "exclude each other"),
        ({"port_map": {"http": "70000"}}, "not a port"),
        ({"ports": ["http"], "network_mode": "none"}, "cannot be published"),
        ({"network_mode": "container:somebody"}, "outside this allocation"),
        ({"network_mode": "ns:/proc/1/ns/net"}, "not for tasks"),
        ({"network_aliases": ["db"]}, "cannot be honoured"),
        ({"ipv4_address": "10.0.0.9", "network_mode": "host"}, "cannot be honoured"),
    ],
)
def test_what_makes_no_sense_is_refused_with_words(tmp_path: Path, config: dict[str, Any], words: str) -> None:
    with pytest.raises(DriverError, match=words):
        body_of(tmp_path, config, limits=TaskLimits(memory_mb=64), ports=(TaskPort("http", "127.0.0.1", 20000, to=80),))


@pytest.mark.parametrize(
    "path",
    [
        "../../etc",
        "../../../x",
        "..",
        "../other/secrets",
        "../other/private/x",
        "private",
        "../web/private",
        "secrets/../../..",
        "../other",
        "../web",
        "PRIVATE/x",
    ],
)
def test_no_volume_leaves_the_allocation_or_touches_what_is_kept_from_tasks(tmp_path: Path, path: str) -> None:
    with pytest.raises(DriverError):
        body_of(tmp_path, {"volumes": [f"{path}:/x"]})


def test_a_link_in_the_way_of_a_volume_is_not_followed(tmp_path: Path) -> None:
    dirs = make_dirs(tmp_path / ALLOC, "web")
    (dirs.local / "out").symlink_to("/etc")
    for path in ("local/out", "local/out/deeper"):
        with pytest.raises(DriverError, match="cannot be used"):
            body_of(tmp_path, {"volumes": [f"{path}:/x"]}, DockerSettings())


def test_volumes_inside_the_allocation_need_no_permission_and_are_made(tmp_path: Path) -> None:
    (make_dirs(tmp_path / ALLOC, "web").local / "file").write_text("")
    alloc = tmp_path / ALLOC

    binds = body_of(
        tmp_path,
        {"volumes": ["local/a/b:/b:ro", "../alloc/data:/data", "local/file:/file", "secrets:/s"]},
        DockerSettings(),
    )["HostConfig"]["Binds"]

    assert binds == [
        f"{alloc}/alloc:/alloc",
        f"{alloc}/web/local:/local",
        f"{alloc}/web/secrets:/secrets",
        f"{alloc}/web/local/a/b:/b:ro",
        f"{alloc}/alloc/data:/data",
        f"{alloc}/web/local/file:/file",
        f"{alloc}/web/secrets:/s",
    ]
    assert (alloc / "web/local/a/b").is_dir()


# what is asked of the engine


def test_an_ordinary_task_asks_for_little(tmp_path: Path) -> None:
    body = body_of(
        tmp_path,
        {"command": "/app", "args": ["-v", 1]},
        DockerSettings(),
        env={"B": "2", "A": "1"},
        user="app",
        limits=TaskLimits(cpu_mhz=500, memory_mb=256),
    )
    host = body["HostConfig"]

    assert (body["Image"], body["Cmd"], body["User"]) == ("sha256:1", ["/app", "-v", "1"], "app")
    assert body["Env"] == ["A=1", "B=2"]
    assert "Entrypoint" not in body
    assert (host["Memory"], host["MemorySwap"], host["CpuShares"]) == (256 << 20, 256 << 20, 500)
    assert "MemoryReservation" not in host
    assert host["CapDrop"] == ["ALL"]
    assert host["CapAdd"] == [cap.upper() for cap in sorted(DEFAULT_CAPS)]
    assert (host["Privileged"], host["PidMode"], host["IpcMode"], host["NetworkMode"]) == (
        False,
        "",
        "private",
        "default",
    )
    assert host["LogConfig"] == {"Type": "json-file", "Config": {"max-file": "2", "max-size": "2m"}}
    assert body["Labels"][ALLOC_ID] == ALLOC


def test_podman_gets_no_size_for_its_log_unless_somebody_insists(tmp_path: Path) -> None:
    def logging(config: dict[str, Any], operator: DockerSettings) -> Any:
        return body_of(tmp_path, config, operator, is_podman=True)["HostConfig"]["LogConfig"]

    assert logging({}, FREE) == {"Type": "json-file", "Config": {}}
    assert logging({"logging": {"driver": "journald"}}, FREE) == {"Type": "journald", "Config": {}}
    assert logging({"logging": {"config": {"max-size": "1m"}}}, FREE)["Config"] == {"max-size": "1m"}
    assert logging({}, replace(FREE, logging_config={"tag": "x"}))["Config"] == {"tag": "x"}


@pytest.mark.parametrize(
    ("limits", "config", "wanted"),
    [
        (TaskLimits(memory_mb=64, memory_max_mb=128), {}, {"Memory": 128 << 20, "MemoryReservation": 64 << 20}),
        (TaskLimits(memory_mb=64, memory_max_mb=-1), {}, {"Memory": None, "MemoryReservation": 64 << 20}),
        (TaskLimits(memory_mb=64), {"memory_hard_limit": "100"}, {"Memory": 100 << 20, "MemoryReservation": 64 << 20}),
        (TaskLimits(), {}, {"Memory": None, "CpuShares": 2}),
        (TaskLimits(cpu_mhz=10**9), {}, {"CpuShares": 262144}),
        (TaskLimits(cores=(1, 3)), {}, {"CpusetCpus": "1,3"}),
        (TaskLimits(cores=(1, 3)), {"cpuset_cpus": "0-1"}, {"CpusetCpus": "0-1"}),
        (TaskLimits(pids_max=9), {}, {"PidsLimit": 9}),
        (TaskLimits(pids_max=9), {"pids_limit": 5}, {"PidsLimit": 5}),
        (TaskLimits(cpu_mhz=500, total_mhz=8000), {"cpu_hard_limit": True}, {"CpuPeriod": 100000, "CpuQuota": 25000}),
        (TaskLimits(), {"cpu_cfs_period": 5000}, {"CpuPeriod": 5000, "CpuQuota": None}),
    ],
)
def test_limits_become_the_engines(
    tmp_path: Path, limits: TaskLimits, config: dict[str, Any], wanted: dict[str, Any]
) -> None:
    host = body_of(tmp_path, config, limits=limits)["HostConfig"]

    assert {name: host.get(name) for name in wanted} == wanted


def test_a_tasks_processes_are_limited_by_its_operator(tmp_path: Path) -> None:
    operator = replace(FREE, pids_limit=50)

    assert body_of(tmp_path, {}, operator)["HostConfig"]["PidsLimit"] == 50
    assert body_of(tmp_path, {"pids_limit": 10}, operator)["HostConfig"]["PidsLimit"] == 10
    with pytest.raises(DriverError, match="above 50"):
        body_of(tmp_path, {"pids_limit": 51}, operator)


@pytest.mark.parametrize(
    ("config", "allow", "wanted"),
    [
        ({"cap_drop": ["all"]}, DEFAULT_CAPS, []),
        ({"cap_drop": ["ALL"], "cap_add": ["CAP_CHOWN"]}, DEFAULT_CAPS, ["CHOWN"]),
        ({}, ("chown", "net_admin"), ["CHOWN"]),
        ({"cap_add": ["net_admin"]}, ("chown", "net_admin"), ["CHOWN", "NET_ADMIN"]),
        ({"cap_drop": ["all"], "cap_add": ["all"]}, ("all",), ["ALL"]),
    ],
)
def test_capabilities_are_default_and_allowed_less_dropped_plus_added(
    tmp_path: Path, config: dict[str, Any], allow: tuple[str, ...], wanted: list[str]
) -> None:
    host = body_of(tmp_path, config, replace(DockerSettings(), allow_caps=allow))["HostConfig"]
    assert host["CapAdd"] == wanted


def test_everything_else_reaches_the_engine(tmp_path: Path) -> None:
    body = body_of(
        tmp_path,
        {
            "entrypoint": ["/init"],
            "healthchecks": {"disable": True},
            "hostname": "h",
            "tty": True,
            "interactive": True,
            "init": True,
            "shm_size": 1000,
            "work_dir": "/w",
            "labels": [{"a": "1"}, {ALLOC_ID: "forged"}],
            "dns_servers": ["1.1.1.1"],
            "dns_options": ["ndots:1"],
            "dns_search_domains": ["x.y"],
            "extra_hosts": ["db:10.0.0.1"],
            "group_add": ["5"],
            "sysctl": {"net.core.somaxconn": 1},
            "storage_opt": {"size": "1G"},
            "ulimit": {"nofile": "10:20", "nproc": "5"},
            "readonly_rootfs": True,
            "cgroupns": "private",
            "runtime": "kata",
            "privileged": True,
            "security_opt": ["no-new-privileges"],
            "volume_driver": "nfs",
            "volumes": ["share:/share"],
            "mac_address": "02:00:00:00:00:01",
            "network_mode": "own",
            "network_aliases": ["web"],
            "ipv4_address": "10.9.0.2",
            "devices": [{"host_path": "/dev/fuse"}],
            "mounts": [
                {"type": "tmpfs", "target": "/t", "tmpfs_options": {"size": 5, "mode": 1777}},
                {
                    "type": "bind",
                    "source": "local",
                    "target": "/l",
                    "readonly": True,
                    "bind_options": {"propagation": "rslave"},
                },
                {
                    "target": "/v",
                    "source": "vol",
                    "volume_options": {
                        "no_copy": True,
                        "labels": {"x": "y"},
                        "driver_config": {"name": "d", "options": {"o": "1"}},
                    },
                },
            ],
        },
        replace(FREE, extra_labels=("job_*", "task_name")),
    )
    host = body["HostConfig"]

    assert body["Entrypoint"] == ["/init"]
    assert body["Healthcheck"] == {"Test": ["NONE"]}
    assert (body["Tty"], body["OpenStdin"], body["WorkingDir"], body["MacAddress"]) == (
        True,
        True,
        "/w",
        "02:00:00:00:00:01",
    )
    assert body["Labels"]["a"] == "1"
    assert body["Labels"][ALLOC_ID] == ALLOC
    assert body["Labels"]["com.hashicorp.nomad.job_id"] == "shop"
    assert body["Labels"]["com.hashicorp.nomad.task_name"] == "web"
    assert "com.hashicorp.nomad.namespace" not in body["Labels"]
    assert (host["Init"], host["ShmSize"], host["Runtime"], host["Privileged"]) == (True, 1000, "kata", True)
    assert "CapAdd" not in host
    assert host["Ulimits"] == [{"Name": "nofile", "Soft": 10, "Hard": 20}, {"Name": "nproc", "Soft": 5, "Hard": 5}]
    assert host["Sysctls"] == {"net.core.somaxconn": "1"}
    assert host["Binds"][-1] == "share:/share"
    assert host["Devices"] == [{"PathOnHost": "/dev/fuse", "PathInContainer": "/dev/fuse", "CgroupPermissions": "rwm"}]
    assert [one["Type"] for one in host["Mounts"]] == ["tmpfs", "bind", "volume"]
    assert host["Mounts"][0]["TmpfsOptions"] == {"SizeBytes": 5, "Mode": 0o1777}
    assert host["Mounts"][2]["VolumeOptions"]["DriverConfig"] == {"Name": "d", "Options": {"o": "1"}}
    assert body["NetworkingConfig"] == {
        "EndpointsConfig": {"own": {"Aliases": ["web"], "IPAMConfig": {"IPv4Address": "10.9.0.2"}}}
    }


def test_ports_are_published_where_the_group_has_them(tmp_path: Path) -> None:
    ports = (TaskPort("http", "127.0.0.1", 20000, to=80), TaskPort("admin", "", 20001))

    body = body_of(tmp_path, {"ports": ["http", "admin"]}, ports=ports)
    assert body["HostConfig"]["PortBindings"]["80/tcp"] == [{"HostIp": "127.0.0.1", "HostPort": "20000"}]
    assert set(body["ExposedPorts"]) == {"80/tcp", "80/udp", "20001/tcp", "20001/udp"}

    mapped = body_of(tmp_path, {"port_map": [{"http": 8080}]}, ports=ports)
    assert "8080/udp" in mapped["HostConfig"]["PortBindings"]

    hosts = body_of(tmp_path, {"ports": ["http"], "network_mode": "host"}, ports=ports)
    assert hosts["HostConfig"]["PortBindings"] == {}


def test_only_podman_joins_the_network_of_a_group(tmp_path: Path) -> None:
    namespace = Path("/run/netns/x")

    joined = body_of(tmp_path, {}, is_podman=True, network_namespace=namespace)
    assert joined["HostConfig"]["NetworkMode"] == "ns:/run/netns/x"
    with pytest.raises(DriverError, match="cannot join"):
        body_of(tmp_path, {}, network_namespace=namespace)
    sibling = body_of(tmp_path, {"network_mode": f"container:db-{ALLOC}"}, network_namespace=namespace)
    assert sibling["HostConfig"]["NetworkMode"] == f"container:db-{ALLOC}"


def test_paths_with_a_colon_are_refused_and_labels_are_added(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="colon"):
        body_of(tmp_path, {}, mounts=(Mount(Path("/a:b"), "/x"),))

    binds = body_of(tmp_path, {"volumes": ["local:/l:Z"]}, replace(FREE, selinux_label="z"))["HostConfig"]["Binds"]
    assert binds[0].endswith(":/alloc:z")
    assert binds[-1].endswith(":/l:Z")


@pytest.mark.parametrize(
    ("task", "start"), [("my task!", "my_task_-"), ("_x", "x-"), ("ü", "task-"), ("my/task", "my_task-")]
)
def test_a_task_whose_name_engines_do_not_take_gets_another_of_its_own(tmp_path: Path, task: str, start: str) -> None:
    name = container_name(a_task(tmp_path, task=task))

    assert name.startswith(start)
    assert name.endswith(f"-{ALLOC}")
    assert name != container_name(a_task(tmp_path, task=f"{task}?"))


def test_a_container_is_named_after_its_task_and_allocation(tmp_path: Path) -> None:
    assert container_name(a_task(tmp_path)) == f"web-{ALLOC}"
