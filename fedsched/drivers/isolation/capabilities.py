"""Which capabilities a task may have: sets of names, and their arithmetic.

Names are those of the kernel without `cap_`, in lower case; `CAP_NET_RAW` and `all` are understood where jobs and
operators write them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fedsched.drivers.driver import DriverError
from fedsched.model.nearest import nearest

KERNEL_ORDER: Final = (
    *("chown", "dac_override", "dac_read_search", "fowner", "fsetid", "kill", "setgid", "setuid", "setpcap"),
    *("linux_immutable", "net_bind_service", "net_broadcast", "net_admin", "net_raw", "ipc_lock", "ipc_owner"),
    *("sys_module", "sys_rawio", "sys_chroot", "sys_ptrace", "sys_pacct", "sys_admin", "sys_boot", "sys_nice"),
    *("sys_resource", "sys_time", "sys_tty_config", "mknod", "lease", "audit_write", "audit_control", "setfcap"),
    *("mac_override", "mac_admin", "syslog", "wake_alarm", "block_suspend", "audit_read", "perfmon", "bpf"),
    "checkpoint_restore",
)
"""By number, from 0."""

DEFAULT: Final = frozenset(
    (
        *("audit_write", "chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service", "setfcap"),
        *("setgid", "setpcap", "setuid", "sys_chroot"),
    )
)
"""What container runtimes grant by habit, less `net_raw`: with it a task may speak for its neighbours."""

_NUMBER: Final = {name: number for number, name in enumerate(KERNEL_ORDER)}


@dataclass(frozen=True, slots=True)
class TaskCapabilities:
    """What a task may hold at most, and what it holds from its first instruction if it is not root."""

    bounding: frozenset[str]
    ambient: frozenset[str]

    @property
    def masks(self) -> tuple[int, int]:
        """Both as the kernel wants them, a bit for each."""
        return mask_of(self.bounding), mask_of(self.ambient)


def task_capabilities(
    allowed: Iterable[str] = DEFAULT, add: Iterable[str] = (), drop: Iterable[str] = ()
) -> TaskCapabilities:
    """Take what is both usual and allowed, less what the job drops, and what it adds; an addition must be allowed.

    Nothing but additions is in a task's hands from the start unless it runs as root: the usual set holds the right to
    read every file and to become root, and a task that runs as somebody else does so to be without.
    """
    allow, wanted, unwanted = (parse(names) for names in (allowed, add, drop))
    refused = sorted(wanted - allow)
    if refused:
        raise DriverError(
            f"cap_add asks for {', '.join(refused)}, which this client does not allow",
            hint=f"it allows {', '.join(sorted(allow)) or 'none'}; operators widen that with allow_caps",
        )
    bounding = ((DEFAULT & allow) - unwanted) | wanted
    return TaskCapabilities(bounding, wanted)


def parse(names: Iterable[str]) -> frozenset[str]:
    """Read names as people write them; one that is no capability is refused."""
    found: set[str] = set()
    for written in names:
        name = written.strip().lower().removeprefix("cap_")
        if name == "all":
            found |= _NUMBER.keys()
        elif name in _NUMBER:
            found.add(name)
        else:
            close = nearest(name, _NUMBER)
            raise DriverError(
                f"{written!r:.60} is not a capability",
                hint=f"did you mean {close}?" if close else "see capabilities(7)",
            )
    return frozenset(found)


def mask_of(names: Iterable[str]) -> int:
    return sum(1 << _NUMBER[name] for name in set(names))


def names_of(mask: int) -> frozenset[str]:
    """Read a mask such as /proc shows; bits without a name are left out."""
    return frozenset(name for name, number in _NUMBER.items() if mask >> number & 1)
