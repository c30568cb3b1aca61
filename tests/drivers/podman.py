"""A real podman for the tests of the docker driver: a service of its own, in namespaces of its own.

Everything it makes goes away with it: storage is below the test's own directory, mounts and networks are in namespaces
of a keeper process. No registry is needed: the image is made of a static busybox. Where podman cannot run a container
the tests skip and say what the attempt said.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

IMAGE = "fedsched/busybox:1"
APPLETS = (
    *("sh", "sleep", "echo", "cat", "tail", "head", "tr", "seq", "ls", "id", "true", "false", "stty", "ps", "kill"),
    *("nc", "wget", "printf", "mount", "env", "hostname", "wc", "touch", "tee", "yes", "dd", "awk", "usleep", "test"),
)
_KEEPER = """
set -e
busybox ip link set lo up
mount -t tmpfs tmpfs /dev/shm
mkdir -p /var/lib/cni /etc/cni/net.d
mount -t tmpfs tmpfs /var/lib/cni
mount -t tmpfs tmpfs /run
echo ready
exec sleep 100000
"""


class Podman:
    """A podman service whose containers survive it, as a Docker Engine's survive an agent."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.socket = place / "api.sock"
        self.archive = place / "busybox.tar"
        self._service: subprocess.Popen[bytes] | None = None
        self._keeper: subprocess.Popen[bytes] | None = None
        self._runtime = ""

    @property
    def endpoint(self) -> str:
        return f"unix://{self.socket}"

    def open(self) -> str:
        """Make it ready; the answer is why that failed, or nothing."""
        missing = [name for name in ("podman", "busybox", "unshare", "nsenter", "mount") if not shutil.which(name)]
        if missing:
            return f"not installed: {', '.join(missing)}"
        if os.geteuid() != 0:
            return "not root"
        keeper = subprocess.Popen(
            ["unshare", "--mount", "--net", "sh", "-c", _KEEPER],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._keeper = keeper
        assert keeper.stdout is not None
        said = keeper.stdout.readline().decode().strip()
        if said != "ready":
            return f"no namespaces: {said or 'no word why'}"
        self._write_rootfs()
        return self._find_runtime()

    def start_service(self) -> None:
        with (self.place / "service.log").open("ab") as log:
            self._service = subprocess.Popen(
                self._command("system", "service", "--time=0", self.endpoint),
                env=self._env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        deadline = time.monotonic() + 20
        while not self.socket.exists():
            if self._service.poll() is not None or time.monotonic() > deadline:
                raise AssertionError((self.place / "service.log").read_text()[-2000:])
            time.sleep(0.02)

    def stop_service(self) -> None:
        """Its containers run on."""
        if self._service is not None:
            self._service.terminate()
            self._service.wait(timeout=20)
            self._service = None
            self.socket.unlink(missing_ok=True)

    def run(self, *words: str, timeout_s: float = 60.0) -> subprocess.CompletedProcess[str]:
        """A podman command on the same containers."""
        return subprocess.run(
            self._command(*words),
            env=self._env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def inside_network(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command in the network that its containers publish their ports to."""
        assert self._keeper is not None
        return subprocess.run(
            ["nsenter", "-t", str(self._keeper.pid), "-n", *words],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )

    def containers(self) -> list[str]:
        return self.run("ps", "-aq", "--no-trunc").stdout.split()

    def close(self) -> None:
        if self._keeper is None:
            return
        if self._runtime:
            self.run("rm", "-af", "-t", "0")
        self.stop_service()
        # Monitors of commands inside containers stay for minutes: all that lives in our namespace is ours to end.
        pids = self._inhabitants()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._keeper.wait(timeout=10)
        _wait_gone(pids)
        if self._keeper.stdout is not None:
            self._keeper.stdout.close()
        for parent in Path("/sys/fs/cgroup").glob("*/libpod_parent"):
            _remove_empty(parent)

    def _inhabitants(self) -> list[int]:
        """Every process in the keeper's mount namespace, which nobody else has; the keeper last."""
        assert self._keeper is not None
        if self._keeper.poll() is not None:
            return []  # somebody ended it, and with it everybody's home
        home = os.readlink(f"/proc/{self._keeper.pid}/ns/mnt")
        if home == os.readlink("/proc/self/ns/mnt"):
            return [self._keeper.pid]
        found = []
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdigit() and os.readlink(entry / "ns/mnt") == home:
                    found.append(int(entry.name))
        return sorted(found, key=lambda pid: pid == self._keeper.pid)

    def _write_rootfs(self) -> None:
        busybox = shutil.which("busybox")
        assert busybox is not None
        with tarfile.open(self.archive, "w") as tar:
            for name in ("bin", "tmp", "proc", "dev", "sys", "etc"):
                entry = tarfile.TarInfo(name)
                entry.type, entry.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
                tar.addfile(entry)
            tar.add(busybox, "bin/busybox")
            for name in APPLETS:
                link = tarfile.TarInfo(f"bin/{name}")
                link.type, link.linkname = tarfile.SYMTYPE, "busybox"
                tar.addfile(link)

    def _find_runtime(self) -> str:
        """The first runtime that runs a container here with limits; else what the last one said."""
        found = [name for name in ("runc", "crun") if shutil.which(name)]
        said = "neither runc nor crun is installed"
        for runtime in found:
            self._write_settings(runtime)
            imported = self.run("import", str(self.archive), IMAGE)
            tried = self.run("run", "--rm", "--network=host", "--memory=32m", IMAGE, "/bin/echo", "hello")
            if tried.stdout.strip() == "hello":
                self._runtime = runtime
                return ""
            said = f"{runtime}: {(imported.stderr + tried.stderr).strip()[-300:]}"
        return said

    def _write_settings(self, runtime: str) -> None:
        files = min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        (self.place / "containers.conf").write_text(
            f"""
[containers]
default_ulimits = ["nofile={files}:{files}", "nproc=1024:1024"]
[network]
network_config_dir = "{self.place}/networks"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
lock_type = "file"
runtime = "{runtime}"
"""
        )

    @property
    def _env(self) -> dict[str, str]:
        return {**os.environ, "CONTAINERS_CONF": str(self.place / "containers.conf")}

    def _command(self, *words: str) -> list[str]:
        assert self._keeper is not None
        place = self.place
        return [
            *("nsenter", "-t", str(self._keeper.pid), "-m", "-n"),
            *("podman", "--root", f"{place}/root", "--runroot", f"{place}/run", "--tmpdir", f"{place}/tmp"),
            *("--storage-driver", "vfs", *words),
        ]


@contextmanager
def open_podman(place: Path) -> Iterator[Podman]:
    podman = Podman(place)
    try:
        why = podman.open()
        if why:
            pytest.skip(f"podman cannot run containers here: {why}")
        podman.start_service()
        yield podman
    finally:
        podman.close()


def _wait_gone(pids: list[int]) -> None:
    deadline = time.monotonic() + 10
    while any(_is_alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _remove_empty(directory: Path) -> None:
    """A cgroup and those below it, unless something still lives there."""
    for below in [one for one in directory.iterdir() if one.is_dir()]:
        _remove_empty(below)
    try:
        directory.rmdir()
    except OSError:
        return
