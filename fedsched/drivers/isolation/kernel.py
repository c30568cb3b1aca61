"""The kernel's calls that isolation needs and `os` lacks. Every failure says what was being done.

System call numbers here are those above 423, which are the same on every architecture, or are left to libc. All of
them are in Linux 5.12 and later.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Callable
from typing import Any

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

RDONLY, NOSUID, NODEV, NOEXEC = 0x1, 0x2, 0x4, 0x8
"""MOUNT_ATTR_* of mount_setattr and fsmount."""

_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_FROM_FD, _MOVE_TO_FD = 0x04, 0x40
_FSCONFIG_SET_STRING, _FSCONFIG_CMD_CREATE = 1, 6
_MS_PRIVATE, _MNT_DETACH, _MS_MOVE = 1 << 18, 2, 8192
_RESOLVE_NO_MAGICLINKS, _RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x02, 0x04, 0x08
_OPEN_TREE, _MOVE_MOUNT, _FSOPEN, _FSCONFIG, _FSMOUNT, _CLOSE_RANGE, _OPENAT2 = 428, 429, 430, 431, 432, 436, 437
_MOUNT_SETATTR, _LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 442, 444, 445, 446
_CLOSE_RANGE_CLOEXEC = 4
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 1, 4, 8, 22, 24
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _AMBIENT_RAISE, _AMBIENT_CLEAR_ALL = 38, 47, 2, 4
_CAPABILITY_VERSION_3 = 0x20080522
_HIGHEST_CAPABILITY = 63

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class IsolationFailed(Exception):
    """A step of isolation did not work; the message says which and why."""


def step(what: str, call: Callable[..., Any], *args: Any) -> Any:
    """Make a call of `os`; its failure says what was being done."""
    try:
        return call(*args)
    except OSError as error:
        raise IsolationFailed(f"cannot {what}: {error.strerror}") from error


def unshare(flags: int) -> None:
    _check(f"open new namespaces ({_namespace_names(flags)})", _libc.unshare(flags))


def setns(descriptor: int, flags: int) -> None:
    _check(f"join namespaces ({_namespace_names(flags)})", _libc.setns(descriptor, flags))


def set_hostname(name: str) -> None:
    """Of this process's own UTS namespace."""
    text = name.encode()
    _check(f"call the host {name}", _libc.sethostname(text, len(text)))


# Mounts


def make_mounts_private() -> None:
    """What is mounted from here on is seen in this namespace only, and what the host mounts is not seen."""
    attributes = struct.pack("<4Q", 0, 0, _MS_PRIVATE, 0)
    _call("make mounts private", _MOUNT_SETATTR, _AT_FDCWD, b"/", _AT_RECURSIVE, attributes, len(attributes))


def clone_tree(path: str, *, directory: int = _AT_FDCWD, is_recursive: bool = True) -> int:
    """A copy of what is mounted at a path, attached nowhere yet."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | (_AT_RECURSIVE if is_recursive else 0)
    if not path:
        flags |= _AT_EMPTY_PATH
    return _call(f"take {path or 'a directory'} to mount it", _OPEN_TREE, directory, os.fsencode(path), flags)


def set_attributes(mount: int, attributes: int, where: str, *, is_recursive: bool = True) -> None:
    """Add to a mount's attributes, and to those of all mounts below it."""
    packed = struct.pack("<4Q", attributes, 0, 0, 0)
    flags = _AT_EMPTY_PATH | (_AT_RECURSIVE if is_recursive else 0)
    _call(f"protect the mount at {where}", _MOUNT_SETATTR, mount, b"", flags, packed, len(packed))


def new_filesystem(kind: str, options: dict[str, str], attributes: int) -> int:
    """A fresh instance of one of the kernel's own filesystems, attached nowhere yet."""
    context = _call(f"open a new {kind}", _FSOPEN, kind.encode(), 1)
    try:
        for name, value in options.items():
            what = f"set {name}={value} on a new {kind}"
            _call(what, _FSCONFIG, context, _FSCONFIG_SET_STRING, name.encode(), value.encode(), 0)
        _call(f"create a new {kind}", _FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        return _call(f"mount a new {kind}", _FSMOUNT, context, 1, attributes)
    finally:
        os.close(context)


def attach(mount: int, target: int, where: str) -> None:
    """Put a mount over an opened directory or file."""
    _call(f"mount at {where}", _MOVE_MOUNT, mount, b"", target, b"", _MOVE_FROM_FD | _MOVE_TO_FD)


def open_beneath(root: int, path: str, flags: int = os.O_PATH) -> int:
    """Open a path below a directory without following any symbolic link: a task may have left some."""
    how = struct.pack("<3Q", flags | os.O_CLOEXEC, 0, _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH)
    return _call(f"open /{path} inside the task's root", _OPENAT2, root, os.fsencode(path), how, len(how))


def change_directory(path: str) -> None:
    """As `os.chdir`, but never by way of a descriptor that is still open (`/proc/self/fd/7` may be the host's)."""
    how = struct.pack("<3Q", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, 0, _RESOLVE_NO_MAGICLINKS)
    what = f"change to {path}"
    opened = _call(what, _OPENAT2, _AT_FDCWD, os.fsencode(path), how, len(how))
    step(what, os.fchdir, opened)
    os.close(opened)


def pivot_to(root: int) -> None:
    """Make an attached mount the root of this mount namespace; nothing of the old root stays reachable."""
    step("enter the task's root", os.fchdir, root)
    _check("pivot_root into the task's directory", _libc.pivot_root(b".", b"."))
    _check("detach the host's root", _libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")


def move_root_to(root: int) -> None:
    """As `pivot_to` where pivot_root cannot work (a root that is the kernel's first ramdisk). Weaker: the host's root
    stays mounted below.
    """
    step("enter the task's root", os.fchdir, root)
    _check("move the task's directory over the root", _libc.mount(b".", b"/", None, _MS_MOVE, None))
    step("chroot into the task's directory", os.chroot, ".")
    os.chdir("/")


# Rights


def become(uid: int, gid: int, bounding: int, ambient: int, *, is_rootless: bool) -> None:
    """Give up being root. A root task keeps the bounding set; others start with the ambient set only."""
    for capability in range(_HIGHEST_CAPABILITY + 1):
        if not bounding >> capability & 1 and _libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            if ctypes.get_errno() == 22:
                break  # beyond the last this kernel knows
            _check(f"drop capability {capability} from the bounding set", -1)
    _check("clear ambient capabilities", _libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0))
    _check("keep capabilities over the change of user", _libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    if not is_rootless:
        step("clear supplementary groups", os.setgroups, [])
        step(f"become group {gid}", os.setresgid, gid, gid, gid)
        step(f"become user {uid}", os.setresuid, uid, uid, uid)
    if uid == 0 and not is_rootless:
        held = bounding & permitted_capabilities()
        set_capabilities(held, held, 0)
        return
    set_capabilities(ambient, ambient, ambient)
    for capability in range(_HIGHEST_CAPABILITY + 1):
        if ambient >> capability & 1:
            raised = _libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_RAISE, capability, 0, 0)
            _check(f"raise ambient capability {capability}", raised)


def drop_all_capabilities() -> None:
    _check("clear ambient capabilities", _libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0))
    set_capabilities(0, 0, 0)


def set_capabilities(permitted: int, effective: int, inheritable: int) -> None:
    header = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0)
    low, high = 0xFFFFFFFF, 32
    data = struct.pack(
        "<6I",
        *(effective & low, permitted & low, inheritable & low),
        *(effective >> high, permitted >> high, inheritable >> high),
    )
    _check(f"set capabilities to {permitted:#x} (the agent may not hold them all)", _libc.capset(header, data))


def permitted_capabilities() -> int:
    header, data = struct.pack("<Ii", _CAPABILITY_VERSION_3, 0), ctypes.create_string_buffer(24)
    _check("read capabilities", _libc.capget(header, data))
    words = struct.unpack("<6I", data.raw)
    return int(words[1] | words[4] << 32)


def forbid_new_privileges() -> None:
    _check("set no_new_privs", _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))


def forbid_core_dumps() -> None:
    step("forbid core dumps", resource.setrlimit, resource.RLIMIT_CORE, (0, 0))


def filter_system_calls(program: bytes) -> None:
    """From here on the filter decides about every system call; `seccomp.build` made it."""
    instructions = ctypes.create_string_buffer(program, len(program))
    head = struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    _check("install the seccomp filter", _libc.prctl(_PR_SET_SECCOMP, 2, head, 0, 0))


def restrict_writing(rules: dict[str, Any]) -> None:
    """Landlock: of all that the rules handle, only what they allow below the named paths."""
    head = struct.pack("<3Q", rules["handled"], 0, rules["scoped"])[: rules["size"]]
    ruleset = _call("create Landlock rules", _LANDLOCK_CREATE, head, len(head), 0)
    try:
        for path, allowed in rules["paths"]:
            try:
                opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            except FileNotFoundError:
                continue  # nothing to write to
            try:
                rule = struct.pack("<Qi", allowed, opened)
                _call(f"allow {path} by Landlock", _LANDLOCK_ADD, ruleset, 1, rule, 0)
            finally:
                os.close(opened)
        _call("enforce Landlock rules", _LANDLOCK_RESTRICT, ruleset, 0)
    finally:
        os.close(ruleset)


def landlock_version() -> int:
    """What this kernel's Landlock can do; 0 if it has none."""
    return max(0, int(_libc.syscall(_LANDLOCK_CREATE, None, 0, 1)))


# This process


def set_not_dumpable() -> None:
    """Nobody without CAP_SYS_PTRACE looks into this process."""
    _check("become undumpable", _libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def die_with_parent() -> None:
    _check("ask to die with the supervisor", _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))


def close_on_exec_from(lowest: int) -> None:
    _call("close descriptors at exec", _CLOSE_RANGE, lowest, 0xFFFFFFFF, _CLOSE_RANGE_CLOEXEC)


def close_all_descriptors_except(kept: list[int]) -> None:
    lowest = 0
    for descriptor in sorted(one for one in kept if one >= 0):
        if descriptor > lowest:
            _call("close descriptors", _CLOSE_RANGE, lowest, descriptor - 1, 0)
        lowest = descriptor + 1
    _call("close descriptors", _CLOSE_RANGE, lowest, 0xFFFFFFFF, 0)


def sleep_for_ever() -> None:
    while True:
        signal.pause()


def _check(what: str, result: int) -> None:
    if result < 0:
        raise IsolationFailed(f"cannot {what}: {os.strerror(ctypes.get_errno())}")


def _call(what: str, number: int, *args: int | bytes | None) -> int:
    """A system call by number; integers are passed as longs, texts and structures as pointers."""
    passed = [ctypes.c_long(one) if isinstance(one, int) else one for one in args]
    result = int(_libc.syscall(ctypes.c_long(number), *passed))
    _check(what, result)
    return result


_NAMES = {
    CLONE_NEWNS: "mount",
    CLONE_NEWPID: "pid",
    CLONE_NEWIPC: "ipc",
    CLONE_NEWUTS: "uts",
    CLONE_NEWNET: "network",
    CLONE_NEWUSER: "user",
    CLONE_NEWCGROUP: "cgroup",
}


def _namespace_names(flags: int) -> str:
    return ", ".join(name for flag, name in _NAMES.items() if flags & flag) or "its own"
