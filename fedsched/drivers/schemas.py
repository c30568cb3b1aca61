"""What a task may say to each driver that comes with fedsched.

Kept apart from the drivers themselves: servers check a job's settings when it is submitted, and `job validate` without
any agent, and neither needs what runs tasks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fedsched.drivers.task_schema import Field, Kind, TaskSchema

RAW_EXEC_SCHEMA: Final = TaskSchema(
    {
        "command": Field(
            Kind.TEXT,
            is_required=True,
            doc="What to run: looked for in the task's `local/`, in its directory, as a path of the host, in PATH.",
        ),
        "args": Field(Kind.TEXTS, doc="Its arguments."),
        "work_dir": Field(Kind.TEXT, doc="An absolute path to start in; the task's directory otherwise."),
        "oom_score_adj": Field(Kind.INT, doc="0 to 1000: how early the kernel kills it when memory runs out."),
        "cgroup_v2_override": Field(Kind.TEXT, doc="A cgroup of your own instead of the task's, on hosts with v2."),
        "cgroup_v1_override": Field(Kind.TEXT_MAP, doc="The same on hosts with v1, by controller."),
        "denied_envvars": Field(Kind.TEXTS, doc="Names of the agent's variables it must not see; `*` stands for any."),
    }
)

ISOLATED_FIELDS: Final[Mapping[str, Field]] = {
    "work_dir": Field(Kind.TEXT, doc="absolute path inside the task where it starts"),
    "pid_mode": Field(Kind.TEXT, doc="private or host"),
    "ipc_mode": Field(Kind.TEXT, doc="private or host"),
    "cap_add": Field(Kind.TEXTS, doc="capabilities beyond the usual ones"),
    "cap_drop": Field(Kind.TEXTS, doc="usual capabilities that the task shall not have"),
}

EXEC_SCHEMA: Final = TaskSchema(
    {
        "command": Field(
            Kind.TEXT,
            is_required=True,
            doc="What to run: looked for in the task's `local/`, in its root, as a path inside, in PATH.",
        ),
        "args": Field(Kind.TEXTS, doc="Its arguments."),
        **ISOLATED_FIELDS,
    }
)

JAVA_SCHEMA: Final = TaskSchema(
    {
        "jar_path": Field(Kind.TEXT, doc="The jar to run, as the task sees it: `local/app.jar`."),
        "class": Field(Kind.TEXT, doc="The class to run instead of a jar."),
        "class_path": Field(Kind.TEXT, doc="Where classes are, as the task sees it."),
        "jvm_options": Field(Kind.TEXTS, doc="Options of the virtual machine, before all else: `-Xmx256m`."),
        "args": Field(Kind.TEXTS, doc="Arguments of the program."),
        **ISOLATED_FIELDS,
    }
)

_RUN: Final[Mapping[str, Field]] = {
    "run_for": Field(Kind.DURATION, doc="How long it runs; 0 ends at once."),
    "exit_code": Field(Kind.INT),
    "exit_signal": Field(Kind.INT, doc="Ends as if by this signal."),
    "exit_err_msg": Field(Kind.TEXT, doc="Ends with this error of the driver."),
    "stdout_string": Field(Kind.TEXT),
    "stdout_repeat": Field(Kind.INT, doc="How many times more it is written."),
    "stdout_repeat_duration": Field(Kind.DURATION, doc="Time between two writes."),
    "stderr_string": Field(Kind.TEXT),
    "stderr_repeat": Field(Kind.INT),
    "stderr_repeat_duration": Field(Kind.DURATION),
    "echo_input": Field(Kind.BOOL, doc="A command inside writes back its input and ends with it."),
}

MOCK_SCHEMA: Final = TaskSchema(
    {
        **{name: field for name, field in _RUN.items() if name != "echo_input"},
        "start_error": Field(Kind.TEXT, doc="The start fails with this."),
        "start_error_recoverable": Field(Kind.BOOL),
        "start_block_for": Field(Kind.DURATION, doc="The start takes so long."),
        "kill_after": Field(Kind.DURATION, doc="How long it goes on after a stop was asked for."),
        "plugin_exit_after": Field(Kind.DURATION, doc="The driver forgets all its tasks after so long."),
        "driver_ip": Field(Kind.TEXT),
        "driver_advertise": Field(Kind.BOOL),
        "driver_port_map": Field(Kind.TEXT, doc='"label:number".'),
        "signal_error": Field(Kind.TEXT, doc="Signals are refused with this."),
        "exec_command": Field(Kind.BLOCK, fields=_RUN, doc="What any command inside does."),
        "recover_error": Field(Kind.TEXT, doc="It cannot be found again, for this reason."),
        "stop_error": Field(Kind.TEXT, doc="Stops fail with this, `stop_error_count` times."),
        "stop_error_count": Field(Kind.INT),
        "exit_on_attempt": Field(Kind.TEXT_MAP, doc="Exit codes by the number of the start, from 1."),
        "exit_on_signal": Field(Kind.TEXT_MAP, doc="Exit codes by the name of a signal."),
        "oom": Field(Kind.BOOL, doc="Ends as if out of memory."),
        "seed": Field(Kind.INT, doc="For the dice of the next two."),
        "run_for_spread": Field(Kind.DURATION, doc="Up to so much longer than `run_for`."),
        "fail_chance": Field(Kind.NUMBER, doc="0 to 1: how likely it exits with 1."),
    }
)

_MOUNT_FIELDS: Final[Mapping[str, Field]] = {
    "type": Field(Kind.TEXT, doc="`volume` (default), `bind` or `tmpfs`."),
    "target": Field(Kind.TEXT, is_required=True),
    "source": Field(Kind.TEXT),
    "readonly": Field(Kind.BOOL),
    "bind_options": Field(Kind.BLOCK, fields={"propagation": Field(Kind.TEXT)}),
    "tmpfs_options": Field(
        Kind.BLOCK, fields={"size": Field(Kind.INT, doc="In bytes."), "mode": Field(Kind.INT, doc="Such as 1777.")}
    ),
    "volume_options": Field(
        Kind.BLOCK,
        fields={
            "no_copy": Field(Kind.BOOL),
            "labels": Field(Kind.TEXT_MAP),
            "driver_config": Field(Kind.BLOCK, fields={"name": Field(Kind.TEXT), "options": Field(Kind.TEXT_MAP)}),
        },
    ),
}

DOCKER_TASK_SCHEMA: Final = TaskSchema(
    {
        "image": Field(Kind.TEXT, is_required=True, doc="Name, tag (default `latest`) or digest."),
        "advertise_ipv6_address": Field(Kind.BOOL),
        "args": Field(Kind.TEXTS),
        "auth": Field(
            Kind.BLOCK,
            fields={name: Field(Kind.TEXT) for name in ("username", "password", "email", "server_address")},
        ),
        "auth_soft_fail": Field(Kind.BOOL, doc="Pull without credentials if none are found."),
        "cap_add": Field(Kind.TEXTS),
        "cap_drop": Field(Kind.TEXTS),
        "cgroupns": Field(Kind.TEXT, doc="`private`; `host` if the operator allows privileged tasks."),
        "command": Field(Kind.TEXT),
        "container_exists_attempts": Field(Kind.INT),
        "cpu_cfs_period": Field(Kind.INT),
        "cpu_hard_limit": Field(Kind.BOOL),
        "cpuset_cpus": Field(Kind.TEXT),
        "devices": Field(
            Kind.BLOCKS,
            fields={
                "host_path": Field(Kind.TEXT, is_required=True),
                "container_path": Field(Kind.TEXT),
                "cgroup_permissions": Field(Kind.TEXT),
            },
        ),
        "dns_options": Field(Kind.TEXTS),
        "dns_search_domains": Field(Kind.TEXTS),
        "dns_servers": Field(Kind.TEXTS),
        "entrypoint": Field(Kind.TEXTS),
        "extra_hosts": Field(Kind.TEXTS),
        "force_pull": Field(Kind.BOOL),
        "group_add": Field(Kind.TEXTS),
        "healthchecks": Field(Kind.BLOCK, fields={"disable": Field(Kind.BOOL)}),
        "hostname": Field(Kind.TEXT),
        "image_pull_timeout": Field(Kind.DURATION),
        "init": Field(Kind.BOOL),
        "interactive": Field(Kind.BOOL),
        "ipc_mode": Field(Kind.TEXT),
        "ipv4_address": Field(Kind.TEXT),
        "ipv6_address": Field(Kind.TEXT),
        "isolation": Field(Kind.TEXT, doc="Refused: only Windows has it."),
        "labels": Field(Kind.TEXT_MAP),
        "load": Field(Kind.TEXT, doc="An archive of the image, inside the task's directory."),
        "logging": Field(
            Kind.BLOCK,
            fields={
                "type": Field(Kind.TEXT),
                "driver": Field(Kind.TEXT, doc="The same as `type`."),
                "config": Field(Kind.TEXT_MAP),
            },
        ),
        "mac_address": Field(Kind.TEXT),
        "memory_hard_limit": Field(Kind.INT, doc="In MB."),
        "mount": Field(Kind.BLOCKS, fields=_MOUNT_FIELDS),
        "mounts": Field(Kind.BLOCKS, fields=_MOUNT_FIELDS),
        "network_aliases": Field(Kind.TEXTS),
        "network_mode": Field(Kind.TEXT),
        "oom_score_adj": Field(Kind.INT),
        "pid_mode": Field(Kind.TEXT),
        "pids_limit": Field(Kind.INT),
        "ports": Field(Kind.TEXTS, doc="Labels of the group's ports to publish."),
        "port_map": Field(Kind.TEXT_MAP, doc="Label of a port -> port inside."),
        "privileged": Field(Kind.BOOL),
        "readonly_rootfs": Field(Kind.BOOL),
        "runtime": Field(Kind.TEXT),
        "security_opt": Field(Kind.TEXTS),
        "shm_size": Field(Kind.INT, doc="In bytes."),
        "storage_opt": Field(Kind.TEXT_MAP),
        "sysctl": Field(Kind.TEXT_MAP),
        "tty": Field(Kind.BOOL),
        "ulimit": Field(Kind.TEXT_MAP, doc='`nofile = "1024:2048"`.'),
        "userns_mode": Field(Kind.TEXT),
        "uts_mode": Field(Kind.TEXT),
        "volume_driver": Field(Kind.TEXT),
        "volumes": Field(Kind.TEXTS, doc="`path:path inside[:options]`."),
        "work_dir": Field(Kind.TEXT),
    }
)

TASK_SCHEMAS: Final[Mapping[str, TaskSchema]] = {
    "mock_driver": MOCK_SCHEMA,
    "raw_exec": RAW_EXEC_SCHEMA,
    "exec": EXEC_SCHEMA,
    "java": JAVA_SCHEMA,
    "docker": DOCKER_TASK_SCHEMA,
    "podman": DOCKER_TASK_SCHEMA,
}
"""By the driver's name. What drivers of other packages take is known where they are: on the node, at the start."""
