"""What an isolated process can see and do, asked from inside by real processes."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from fedsched.drivers.isolation.capabilities import mask_of, task_capabilities
from fedsched.drivers.isolation.mounts import DEVICES
from fedsched.drivers.isolation.plan import Bind, IsolationPlan
from tests.drivers.jails import (
    KEEPER,
    PYTHON,
    REPOSITORY,
    ROOT,
    SUPERVISOR,
    a_plan,
    mounts_below,
    obstacle,
    processes_with,
    python,
    run,
    shell,
)

REASON = obstacle()
pytestmark = pytest.mark.skipif(bool(REASON), reason=f"this host cannot isolate tasks: {REASON}")
NOBODY = 65534


@pytest.fixture(autouse=True)
def nothing_is_left_behind(tmp_path: Path) -> Iterator[None]:
    yield
    assert mounts_below(tmp_path) == []


@pytest.fixture(params=["pivot_root", "chroot", "host_pids"])
def plan(request: pytest.FixtureRequest, tmp_path: Path) -> IsolationPlan:
    """Every way there is to isolate as root."""
    made = a_plan(tmp_path)
    match request.param:
        case "chroot":
            return replace(made, pivots=False)
        case "host_pids":
            return replace(made, has_own_pids=False)
        case _:
            return made


# What it sees


def test_a_task_sees_its_own_directory_as_the_root_and_nothing_of_the_host(plan: IsolationPlan) -> None:
    ended = shell(plan, f"ls -A /; ls {REPOSITORY} /root /home /var; ls /proc/1/root/root; ls /proc/1/cwd/")

    listed = ended.output.split("ls: ")[0].split()
    assert set(listed) >= {"alloc", "local", "secrets", "tmp", "proc", "sys", "dev", "usr", "etc"}
    assert not {"root", "home", "var", "work", "srv"} & set(listed)
    assert ended.output.count("cannot access") == 6, ended.output


def test_a_task_sees_no_process_but_its_own(plan: IsolationPlan) -> None:
    ended = shell(plan, "cat /proc/*/comm; kill -0 1; echo $$")

    words = ended.output.split()
    assert "python" not in " ".join(words)
    assert ("No such process" in ended.output) or ("not permitted" in ended.output), ended.output
    if plan.has_own_pids:
        assert words[-1] == "2"


def test_the_agents_private_files_and_the_hosts_secrets_are_hidden(plan: IsolationPlan) -> None:
    ended = shell(plan, "ls -A /private | wc -l; cat /secrets/key; echo; cat /etc/shadow; cat /proc/keys | wc -l")

    assert ended.output.split("\n")[:2] == ["0", "the task's own"]
    assert "/etc/shadow: Permission denied" in ended.output
    assert ended.output.split()[-1] == "0"


def test_dev_holds_the_minimal_set_and_works(plan: IsolationPlan) -> None:
    ended = shell(
        plan, "ls /dev; head -c 4 /dev/urandom | wc -c; echo x > /dev/null; echo out > /dev/stdout; ls /dev/full"
    )

    lines = ended.output.split("\n")
    assert lines[:13] == [
        "fd",
        "full",
        "null",
        "ptmx",
        "pts",
        "random",
        "shm",
        "stderr",
        "stdin",
        "stdout",
        *lines[10:13],
    ]
    assert lines[10:13] == ["tty", "urandom", "zero"]
    assert lines[13:16] == ["4", "out", "/dev/full"]


def test_terminals_of_its_own_can_be_opened(plan: IsolationPlan) -> None:
    ended = python(plan, "import os; print([os.isatty(fd) for fd in os.openpty()], os.listdir('/dev/pts'))")

    assert ended.output == "[True, True] ['0', 'ptmx']\n"


def test_shared_memory_is_its_own_and_limited(plan: IsolationPlan) -> None:
    ended = python(
        plan, "import os; s = os.statvfs('/dev/shm'); print(s.f_blocks * s.f_frsize, os.listdir('/dev/shm'))"
    )

    assert ended.output == f"{64 << 20} []\n"


def test_message_queues_and_shared_segments_of_the_host_are_not_seen(tmp_path: Path) -> None:
    libc = ctypes.CDLL(None)
    segment = libc.shmget(0, 4096, 0o1666)
    try:
        private = shell(a_plan(tmp_path), "wc -l < /proc/sysvipc/shm; readlink /proc/self/ns/ipc")
        shared = shell(a_plan(tmp_path, has_own_ipc=False), "wc -l < /proc/sysvipc/shm; readlink /proc/self/ns/ipc")
    finally:
        libc.shmctl(segment, 0, None)

    assert private.output.split()[0] == "1"
    assert int(shared.output.split()[0]) > 1
    assert shared.output.split()[1] == os.readlink("/proc/self/ns/ipc") != private.output.split()[1]


def test_a_given_network_namespace_is_joined(tmp_path: Path) -> None:
    holder = subprocess.Popen(["unshare", "-n", "sh", "-c", "echo; exec sleep 60"], stdout=subprocess.PIPE)
    assert holder.stdout is not None
    try:
        holder.stdout.readline()
        plan = a_plan(tmp_path, network_namespace=Path(f"/proc/{holder.pid}/ns/net"))
        ended = shell(plan, "ls /sys/class/net; readlink /proc/self/ns/net")

        assert ended.output.split()[-2:] == ["lo", os.readlink(f"/proc/{holder.pid}/ns/net")]
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()


def test_without_one_the_hosts_network_is_used(tmp_path: Path) -> None:
    assert shell(a_plan(tmp_path), "readlink /proc/self/ns/net").output.strip() == os.readlink("/proc/self/ns/net")


def test_no_descriptor_is_inherited(plan: IsolationPlan) -> None:
    ended = python(plan, "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))")

    assert ended.output == "[0, 1, 2, 3]\n", "the fourth is the listing's own"


# What it may write


def test_a_task_writes_only_into_its_own_directories(plan: IsolationPlan) -> None:
    ended = shell(
        plan,
        "for d in /local /alloc/data /tmp /secrets /dev/shm; do touch $d/new || echo $d; done;"
        "for d in / /etc /usr /bin /dev /proc /sys /alloc /private; do touch $d/new 2>/dev/null && echo $d; done; true",
    )

    assert ended.output == ""
    assert (plan.root / "local/new").stat().st_uid == NOBODY
    assert (plan.root.parent / "alloc/data/new").exists()


def test_even_root_cannot_write_to_the_hosts_files(tmp_path: Path) -> None:
    plan = a_plan(tmp_path, user=ROOT)
    ended = shell(
        plan,
        "touch /etc/new /usr/new /dev/new; echo b > /proc/sysrq-trigger;"
        "swap=$(cat /proc/sys/vm/swappiness); echo $swap > /proc/sys/vm/swappiness;"
        "echo 1 > /sys/kernel/mm/ksm/run; touch /local/mine",
    )

    assert ended.output.count("cannot create") + ended.output.count("cannot touch") == 6, ended.output
    assert (plan.root / "local/mine").stat().st_uid == 0
    assert not Path("/etc/new").exists()


def test_secrets_are_no_place_for_programs(plan: IsolationPlan) -> None:
    ended = shell(plan, "cp /bin/true /secrets/x && cp /bin/true /local/x && /local/x && echo ran && /secrets/x")

    assert ended.output.startswith("ran\n")
    assert "Permission denied" in ended.output
    assert ended.status == 126


def test_a_mount_below_a_read_only_one_is_read_only_too(tmp_path: Path) -> None:
    outer = tmp_path / "outer"
    (outer / "inner").mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", outer / "inner"], check=True)
    try:
        (outer / "inner").chmod(0o777)
        plan = a_plan(tmp_path, binds=(Bind(str(outer), "/data", is_read_only=True),))
        ended = shell(plan, "touch /data/inner/new; test -d /data/inner")
    finally:
        subprocess.run(["umount", outer / "inner"], check=True)

    assert "Read-only file system" in ended.output


def test_what_is_mounted_below_the_tasks_directory_is_seen(tmp_path: Path) -> None:
    plan = a_plan(tmp_path)
    subprocess.run(["mount", "-t", "tmpfs", "none", plan.root / "secrets"], check=True)
    try:
        (plan.root / "secrets").chmod(0o755)
        (plan.root / "secrets/inner").write_text("in memory")
        ended = shell(plan, "cat /secrets/inner")
    finally:
        subprocess.run(["umount", plan.root / "secrets"], check=True)

    assert ended.output == "in memory"


def test_volumes_files_and_directories_appear_where_they_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("content")
    (tmp_path / "volume").mkdir(mode=0o777)
    (tmp_path / "volume").chmod(0o777)
    plan = a_plan(tmp_path)
    binds = (
        *plan.binds,
        Bind(str(tmp_path / "file"), "/srv/deep/file"),
        Bind(str(tmp_path / "volume"), "/srv/volume", is_read_only=False),
    )
    ended = shell(replace(plan, binds=binds), "cat /srv/deep/file; touch /srv/volume/x; echo y > /srv/deep/file")

    assert ended.output.startswith("content")
    assert (tmp_path / "volume/x").exists()
    assert "cannot create" in ended.output


# What it may do


def test_a_task_of_an_ordinary_user_has_no_capability_and_can_get_none(plan: IsolationPlan) -> None:
    assert capability_sets(plan) == {"Inh": 0, "Prm": 0, "Eff": 0, "Bnd": 0xA80405FB, "Amb": 0}


def test_added_capabilities_are_in_the_tasks_hands_from_the_start(tmp_path: Path) -> None:
    plan = a_plan(tmp_path, capabilities=task_capabilities(add=["net_bind_service"], drop=["all"]))
    bit = mask_of(["net_bind_service"])

    assert capability_sets(plan) == dict.fromkeys(("Inh", "Prm", "Eff", "Bnd", "Amb"), bit)


def test_root_keeps_the_bounding_set_and_no_more(tmp_path: Path) -> None:
    found = capability_sets(a_plan(tmp_path, user=ROOT, capabilities=task_capabilities(drop=["mknod", "chown"])))
    expected = 0xA80405FB & ~mask_of(["mknod", "chown"])

    assert found == {"Inh": 0, "Prm": expected, "Eff": expected, "Bnd": expected, "Amb": 0}


def test_a_capability_that_the_agent_lacks_is_said_so(tmp_path: Path) -> None:
    lacking = [name for name in ("sys_resource", "sys_boot") if not own_mask() & mask_of([name])]
    if not lacking:
        pytest.skip("this machine's root lacks no capability")
    plan = a_plan(tmp_path, capabilities=task_capabilities(["all"], add=lacking))

    assert "the agent may not hold them all" in shell(plan, "true").output


def test_identity_is_one_user_and_one_group(plan: IsolationPlan) -> None:
    ended = shell(plan, "grep -E '^(Uid|Gid|Groups|NoNewPrivs|Seccomp):' /proc/self/status; ulimit -c")

    assert ended.output.split("\n") == [
        f"Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}",
        f"Gid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}",
        "Groups:\t ",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "0",
        "",
    ]


def test_set_user_id_programs_give_nothing(plan: IsolationPlan) -> None:
    program = plan.root / "local/id"
    shutil.copy("/usr/bin/id", program)
    os.chown(program, 0, 0)
    program.chmod(0o6755)

    assert shell(plan, "/local/id -u; /local/id -g").output == f"{NOBODY}\n{NOBODY}\n"


def test_no_mount_honours_set_user_id_bits_and_only_single_devices_are_devices(plan: IsolationPlan) -> None:
    mounts = [line.split() for line in shell(plan, "cat /proc/self/mountinfo").output.splitlines()]

    assert [words[4] for words in mounts if "nosuid" not in words[5].split(",")] == []
    devices = {words[4] for words in mounts if "nodev" not in words[5].split(",") and not words[4].startswith("/proc/")}
    assert devices == {"/dev/pts", *(f"/dev/{name}" for name in DEVICES)}


def test_device_files_made_by_a_task_are_dead(tmp_path: Path) -> None:
    ended = shell(a_plan(tmp_path, user=ROOT), "mknod /local/null c 1 3 && cat /local/null; mknod /dev/mine c 1 3")

    assert "/local/null: Permission denied" in ended.output
    assert "Read-only file system" in ended.output


DENIED = """
import ctypes, os, errno
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, result):
    print(name, "done" if result >= 0 else errno.errorcode[ctypes.get_errno()])
tried("mount", libc.mount(b"none", b"/tmp", b"tmpfs", 0, None))
tried("umount", libc.umount2(b"/proc", 2))
tried("unshare", libc.unshare(0x10000000))
tried("setns", libc.setns(0, 0))
tried("clone", libc.syscall(220 if os.uname().machine == "aarch64" else 56, 0x10000000 | 17, 0, 0, 0, 0))
tried("clone3", libc.syscall(435, 0, 0))
tried("open_tree", libc.syscall(428, -100, b"/", 1))
tried("keyctl", libc.syscall(219 if os.uname().machine == "aarch64" else 250, 0, -3, 0))
tried("io_uring", libc.syscall(425, 1, 0))
tried("personality", libc.personality(0x0040000))
tried("vsock", libc.socket(40, 1, 0))
tried("inet", libc.socket(2, 1, 0))
tried("chroot", libc.chroot(b"/tmp"))
"""


def test_system_calls_that_reach_out_are_refused(plan: IsolationPlan) -> None:
    found = dict(line.split() for line in python(plan, DENIED).output.splitlines())

    assert found.pop("clone3") == "ENOSYS"
    assert found.pop("inet") == "done"
    assert found == dict.fromkeys(found, "EPERM")
    assert len(found) == 11


def test_root_with_usual_capabilities_is_refused_the_same(tmp_path: Path) -> None:
    found = dict(line.split() for line in python(a_plan(tmp_path, user=ROOT), DENIED).output.splitlines())

    assert found.pop("chroot") == "done"
    assert [name for name, result in found.items() if result == "done"] == ["inet"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="only x86_64 runs code of a second architecture like this")
def test_a_call_by_the_old_32_bit_door_ends_the_program(plan: IsolationPlan) -> None:
    ended = python(
        plan,
        "import ctypes, mmap\n"
        "page = mmap.mmap(-1, 4096, prot=7)\n"
        "page.write(bytes.fromhex('b814000000cd80c3'))\n"  # mov eax, 20 (getpid); int 0x80; ret
        "at = ctypes.addressof(ctypes.c_char.from_buffer(page))\n"
        "print('before', flush=True); print(ctypes.CFUNCTYPE(ctypes.c_int)(at)())",
    )

    assert ended.output == "before\n"
    assert ended.status == -signal.SIGSYS


def test_the_filter_can_be_left_out(tmp_path: Path) -> None:
    assert (
        shell(a_plan(tmp_path, filters_system_calls=False), "grep Seccomp: /proc/self/status").output.split()[1] == "0"
    )


def test_landlock_keeps_writing_to_where_it_belongs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    plan = a_plan(tmp_path, user=ROOT, uses_landlock=True)
    plan = replace(plan, binds=(*plan.binds, Bind(str(tmp_path / "file"), "/srv/file", is_read_only=False)))
    ended = shell(
        plan, "touch /local/a /tmp/b /alloc/c && mv /tmp/b /local/b && echo x > /srv/file && touch /new /opt/new"
    )

    assert ended.output.count("Permission denied") == 2, ended.output
    assert (tmp_path / "file").read_text() == "x\n"


# How it starts and ends


@pytest.mark.parametrize("code", [0, 1, 7, 126, 255])
def test_exit_codes_are_true(tmp_path: Path, code: int) -> None:
    assert shell(a_plan(tmp_path), f"exit {code}").status == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGINT])
def test_deaths_by_signal_are_true_whoever_sends_it(plan: IsolationPlan, number: signal.Signals) -> None:
    own = shell(plan, f"kill -{int(number)} $$")
    others = shell(plan, "echo; exec sleep 60", signals=[number])

    assert own.status == others.status == -number


def test_a_signal_that_is_caught_is_caught(plan: IsolationPlan) -> None:
    ended = shell(plan, "trap 'echo caught; exit 9' TERM; echo; while :; do sleep 0.01; done", signals=[signal.SIGTERM])

    assert (ended.status, ended.output) == (9, "caught\n")


def test_orphans_are_reaped(tmp_path: Path) -> None:
    script = (
        "for i in 1 2 3; do (sh -c 'exit 3' &); done;"
        "while cat /proc/[0-9]*/stat 2>/dev/null | grep -q '(sh) Z'; do :; done; echo none"
    )

    assert shell(a_plan(tmp_path), script).output == "none\n"


def test_whoever_leaves_the_session_ends_with_the_task(tmp_path: Path) -> None:
    mark = f"6{os.getpid()}.25"
    ended = shell(
        a_plan(tmp_path), f"setsid sh -c 'setsid sleep {mark} & sleep {mark}' & setsid sleep {mark} & sleep 0.1"
    )

    assert ended.status == 0
    assert processes_with(mark) == []


@pytest.mark.parametrize("has_own_pids", [True, False])
def test_a_killed_supervisor_takes_its_task_along(tmp_path: Path, has_own_pids: bool) -> None:
    """With processes of its own everything that the task has started, else at least its first process."""
    mark = f"7{os.getpid()}.25"
    count = 2 if has_own_pids else 1
    stray = f"setsid sleep {mark} & " if has_own_pids else ""
    argv = ["/bin/sh", "-c", f"{stray}trap '' TERM INT HUP; exec sleep {mark}"]
    plan = a_plan(tmp_path, has_own_pids=has_own_pids)
    told = {"isolation": plan.encode(), "argv": argv, "commands": [], "signals": [], "user": 0}
    supervisor = subprocess.Popen(SUPERVISOR, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    assert supervisor.stdin
    supervisor.stdin.write(json.dumps(told).encode())
    supervisor.stdin.close()

    async def until(count: int) -> None:
        while len(processes_with(f"sleep\0{mark}")) != count:
            await trio.sleep(0.01)

    async def scenario() -> None:
        with trio.fail_after(20):
            await until(count)
            supervisor.kill()
            await until(0)

    try:
        trio.run(scenario)
    finally:
        supervisor.kill()
        supervisor.wait()


def test_commands_run_inside_the_task_with_its_rights(plan: IsolationPlan) -> None:
    ended = shell(
        plan,
        "touch /dev/shm/mine; echo; exec sleep 60",
        commands=[
            ["/bin/sh", "-c", "id -u; ls /dev/shm; ls -A / | grep -c root; exit 5"],
            [
                "/bin/sh",
                "-c",
                "grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status; mount -t tmpfs x /tmp",
            ],
            [f"{PYTHON}/bin/python3", "-I", "-c", "import os; print(sorted(os.listdir('/proc/self/fd')), os.getcwd())"],
            ["/no/such/program"],
        ],
    )

    assert ended.found[0] == (5, f"{NOBODY}\nmine\n0\n")
    assert ended.found[1][1].split()[:8] == [
        *("CapEff:", "0000000000000000", "CapBnd:", "00000000a80405fb", "NoNewPrivs:", "1", "Seccomp:", "2")
    ]
    assert ended.found[1][0] != 0
    assert ended.found[2] == (0, "['0', '1', '2', '3'] /\n")
    assert ended.found[3][0] == 127
    assert ended.status == -signal.SIGKILL


def test_the_working_directory_is_a_path_inside(plan: IsolationPlan) -> None:
    assert shell(replace(plan, work_dir="/alloc/data"), "pwd").output == "/alloc/data\n"
    assert "cannot change to /nowhere: No such file" in shell(replace(plan, work_dir="/nowhere"), "pwd").output


@pytest.mark.parametrize("number", range(3, 12))
def test_a_descriptor_of_the_supervisor_is_no_working_directory(tmp_path: Path, number: int) -> None:
    ended = shell(a_plan(tmp_path, user=ROOT, work_dir=f"/proc/self/fd/{number}"), "ls")

    assert ended.status == 127
    assert "Too many levels of symbolic links" in ended.output or "No such file" in ended.output


def test_even_root_cannot_look_into_the_keeper(tmp_path: Path) -> None:
    ended = shell(
        a_plan(tmp_path, user=ROOT),
        "ls /proc/1/root/ && echo seen; ls /proc/1/cwd/ && echo seen; readlink /proc/1/exe && echo seen;"
        "cat /proc/1/environ && echo seen; head -c 1 /proc/1/mem && echo seen; grep -c . /proc/1/maps && echo seen;"
        "ls -A /proc/1/fd",
    )

    assert "seen" not in ended.output
    assert {name: ended.keeper[name] for name in KEEPER} == KEEPER


SELF_EXECUTING = """#!/proc/self/exe -IS
import os, errno
for name, attempt in {
    "utime": lambda: os.utime("/proc/self/exe"),
    "chmod": lambda: os.chmod("/proc/self/exe", 0o777),
    "open": lambda: os.open("/proc/self/exe", os.O_WRONLY),
}.items():
    try:
        attempt()
        print(name, "done")
    except OSError as error:
        print(name, errno.errorcode[error.errno])
"""


def test_the_supervisors_own_program_cannot_be_changed_by_a_task(tmp_path: Path) -> None:
    prefix = Bind(sys.base_prefix, sys.base_prefix)
    plan = a_plan(tmp_path, user=ROOT)
    plan = replace(plan, system=(*plan.system, prefix))
    (plan.root / "local/run").write_text(SELF_EXECUTING)
    (plan.root / "local/run").chmod(0o755)

    found = dict(line.split() for line in run(plan, "/local/run").output.splitlines())

    assert (found["utime"], found["chmod"]) == ("EROFS", "EROFS")
    assert found["open"] in ("EROFS", "ETXTBSY")


CLIMBING = """
import os
os.makedirs("/local/deep", exist_ok=True)
os.chroot("/local/deep")
for _ in range(64):
    os.chdir("..")
os.chroot(".")
print(*sorted(os.listdir("/")))
"""


@pytest.mark.parametrize("pivots", [True, False])
def test_root_cannot_climb_out_of_its_root(tmp_path: Path, pivots: bool) -> None:
    ended = python(a_plan(tmp_path, user=ROOT, pivots=pivots), CLIMBING)

    assert "local" in ended.output.split()
    assert not {"root", "home", "var", "boot", "srv"} & set(ended.output.split())


# What a former run may have left


@pytest.mark.parametrize("name", ["etc", "proc", "dev", "alloc", "sys", "secrets"])
def test_links_left_in_the_tasks_directory_are_not_followed(tmp_path: Path, name: str) -> None:
    plan = a_plan(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    place = plan.root / name
    if place.exists():
        shutil.rmtree(place)
        plan = replace(plan, binds=tuple(bind for bind in plan.binds if bind.target != f"/{name}"))
        plan = replace(plan, binds=(*plan.binds, Bind(str(outside), f"/{name}")))
    place.symlink_to(outside)

    ended = shell(plan, "true")

    assert f"{name} is a symbolic link" in ended.failure
    assert list(outside.iterdir()) == []


def test_a_link_as_private_directory_hides_nothing_and_harms_nothing(tmp_path: Path) -> None:
    plan = a_plan(tmp_path)
    shutil.rmtree(plan.root / "private")
    (plan.root / "private").symlink_to("/etc")

    assert shell(plan, "cat /private/hostname >/dev/null; exit 4").status == 4


def test_files_where_directories_must_be_are_an_error(tmp_path: Path) -> None:
    plan = a_plan(tmp_path)
    (plan.root / "etc").write_text("")

    assert "cannot mount at /etc" in shell(plan, "true").failure


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"network_namespace": Path("/no/such/netns")}, "cannot open network namespace /no/such/netns"),
        ({"binds": (Bind("/no/such/volume", "/v"),)}, "cannot take /no/such/volume to mount it"),
        ({"binds": (Bind("/usr", "/../v"),)}, "not a path below the task's root"),
        ({"binds": (Bind("/usr", "/usr/no/such"),)}, "cannot make /usr/no/such: Read-only file system"),
        ({"root": Path("/no/such/root")}, "cannot take /no/such/root"),
    ],
)
def test_what_cannot_be_isolated_says_why(tmp_path: Path, changed: dict[str, object], why: str) -> None:
    assert why in shell(a_plan(tmp_path, **changed), "true").failure
    ended = shell(a_plan(tmp_path, has_own_pids=False, **changed), "true")
    assert why in ended.output
    assert ended.status == 127


def capability_sets(plan: IsolationPlan) -> dict[str, int]:
    lines = run(plan, "/bin/grep", "^Cap", "/proc/self/status").output.splitlines()
    return {line[3:6]: int(line.split()[1], 16) for line in lines}


def own_mask() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("CapPrm:")[1].split()[0], 16)
