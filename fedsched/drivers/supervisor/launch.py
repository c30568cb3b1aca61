"""What a supervisor is told about the task it should launch, and where isolation plugs in.

A `LaunchSpec` is plain data: texts, numbers, lists and tables, nothing else, so that it travels as JSON to a process
that imports next to nothing; the warm process and every supervisor share this module.

Isolation lives in `fedsched/drivers/isolation/enter.py`, which the warm process imports before it forks (so it must be
as light as this module: os, ctypes, signal, struct and the like; no trio, no msgspec). With `LaunchSpec.isolation` set,
a supervisor calls, in this order:

    jail = prepare(isolation)            in the supervisor, before the task's fork
    isolate(isolation, jail)             in the task's forked process, last thing before exec. It has its own session
                                         and process group, its cgroups, standard streams, rlimits, umask and oom score
                                         by then; working directory, groups, gid and uid are the isolation's business
    enter_running(isolation, jail, pid)  in a command's forked process, last thing before exec; pid is the task's
    release(jail)                        in the supervisor when the task has ended, before its end is told

Afterwards the forked process calls `execve` with `argv[0]` if that has a slash, else with what PATH of `env` finds, as
seen from inside. What any of them raises becomes the error's text. Descriptors above 2 are closed at exec.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` alone would double what a supervisor imports
if TYPE_CHECKING:
    from typing import Any


class LaunchSpec:
    """Everything a supervisor must know to launch one task and keep its logs.

    A plain class and no dataclass: `dataclasses` imports `inspect`, more than all else that a supervisor needs.
    """

    __slots__ = (
        "argv",
        "cgroup_files",
        "cgroup_kill",
        "cgroups",
        "cwd",
        "directory",
        "env",
        "gid",
        "groups",
        "isolation",
        "key",
        "limits",
        "log_directory",
        "log_name",
        "max_file_bytes",
        "max_files",
        "netns",
        "oom_files",
        "oom_score_adj",
        "spare",
        "state",
        "task_id",
        "uid",
        "umask",
    )

    def __init__(
        self,
        *,
        key: str,
        task_id: str,
        directory: str,
        argv: list[str],
        env: dict[str, str] | None = None,
        cwd: str = "/",
        uid: int | None = None,
        gid: int | None = None,
        groups: list[int] | None = None,
        umask: int = 0o022,
        cgroups: list[str] | None = None,
        cgroup_files: list[list[str]] | None = None,
        cgroup_kill: str = "",
        oom_files: list[str] | None = None,
        limits: dict[str, list[int]] | None = None,
        oom_score_adj: int = 0,
        log_directory: str = "",
        log_name: str = "",
        max_files: int = 10,
        max_file_bytes: int = 10 << 20,
        isolation: dict[str, Any] | None = None,
        netns: str = "",
        state: dict[str, Any] | None = None,
        spare: str = "",
    ) -> None:
        self.key = key
        """Names the supervisor's files in `directory`: `<key>.state`, `<key>.sock`."""
        self.task_id = task_id
        self.directory = directory
        """Absolute, owned by the agent, 0700."""
        self.argv = argv
        """argv[0] is what is executed: a path, or a name looked up in the PATH of `env`."""
        self.env = env or {}
        """Complete: nothing of the supervisor's own environment is added."""
        self.cwd = cwd
        self.uid = uid
        """None: whoever runs the agent."""
        self.gid = gid
        self.groups = groups
        """Supplementary groups; None leaves them alone (only without `uid`)."""
        self.umask = umask
        self.cgroups = cgroups or []
        """Absolute paths of the groups the task is put into before exec, one per hierarchy. Made by the
        supervisor, removed by it when its task has ended."""
        self.cgroup_files = cgroup_files or []
        """What to write into them first, in this order: path, value."""
        self.cgroup_kill = cgroup_kill
        """The one of them whose members are the task's processes; empty without cgroups."""
        self.oom_files = oom_files or []
        """Files with an `oom_kill <n>` line (memory.events, memory.oom_control)."""
        self.limits = limits or {}
        """rlimits by name without RLIMIT_ in capitals, `{"NOFILE": [soft, hard]}`."""
        self.oom_score_adj = oom_score_adj
        self.log_directory = log_directory
        """Empty: output is thrown away."""
        self.log_name = log_name
        """Files are `<log_directory>/<log_name>.stdout.<n>` and `.stderr.<n>`."""
        self.max_files = max_files
        self.max_file_bytes = max_file_bytes
        self.isolation = isolation
        """None: none. Else handed to `isolation.enter` as it is."""
        self.netns = netns
        """A network namespace's path, joined by every process of the task before exec; `isolation` has its own way."""
        self.spare = spare
        """A file in `directory` to be made the state file; empty: a new one."""
        self.state = state or {}
        """Kept in the state file for whoever attaches; the supervisor does not look at it."""

    def as_table(self) -> dict[str, Any]:
        """All of it as a table that JSON can hold. What is empty stays out: whatever a supervisor reads costs it memory
        of its own."""
        return {name: value for name in self.__slots__ if (value := getattr(self, name)) not in (None, "", 0, [], {})}

    @classmethod
    def from_table(cls, table: dict[str, Any]) -> LaunchSpec:
        """Read what `as_table` wrote; raises `TypeError` for anything else."""
        return cls(**table)
