"""A real service of three instances with an http check, on real processes: rolled out with a canary, and taken back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fedsched.rpc.methods.deployment import DEPLOYMENT_LIST, DeploymentListRequest
from fedsched.rpc.methods.job import JOB_GET, JobRequest
from fedsched.rpc.methods.service import SERVICE_GET, ServiceGetRequest
from tests.e2e.hosts import Asker, HostAgent, running_host, until
from tests.e2e.region import running_region

pytestmark = pytest.mark.processes

JOB = Path(__file__).parents[2] / "fixtures" / "jobs" / "rolling-web.hcl"
NAME = "rolling-web"
WITHIN_S = 90.0


def submit(address: str, **variables: str) -> None:
    given = {"python": sys.executable, **variables}
    flags = [word for name, value in given.items() for word in ("-var", f"{name}={value}")]
    command = [sys.executable, "-m", "fedsched", "job", "run", "-detach", *flags, str(JOB)]
    done = subprocess.run(
        command, env={**os.environ, "FEDSCHED_ADDR": address}, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stdout + done.stderr


def addresses(asker: Asker) -> list[str]:
    found = asker.ask(SERVICE_GET, ServiceGetRequest(name=NAME)).services
    return sorted(f"http://{one.address}:{one.port}/" for one in found)


def answer(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return str(reply.read().decode().strip())
    except (urllib.error.HTTPError, OSError) as error:
        return f"error: {error}"


def deployment(asker: Asker, version: int) -> tuple[str, str]:
    found = asker.ask(DEPLOYMENT_LIST, DeploymentListRequest()).deployments
    return next(((one.status.value, one.status_description) for one in found if one.job_version == version), ("", ""))


class Visitor:
    """Somebody who uses the service all the time, by its addresses in the registry."""

    def __init__(self, asker: Asker) -> None:
        self._asker = asker
        self.served = 0
        self.fewest = 99
        self._is_over = threading.Event()

    def run(self) -> None:
        while not self._is_over.wait(0.2):
            good = sum(answer(url).startswith("version") for url in addresses(self._asker))
            self.served += good
            self.fewest = min(self.fewest, good)

    @contextmanager
    def visiting(self) -> Iterator[None]:
        thread = threading.Thread(target=self.run)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join()


def all_serve(asker: Asker, version: str) -> bool:
    found = [answer(url) for url in addresses(asker)]
    return found == [f"version {version}"] * 3


def wait_rollout(asker: Asker, host: HostAgent, version: int, status: str) -> None:
    until(f"version {version} is {status}", lambda: deployment(asker, version)[0] == status, WITHIN_S, host, poll_s=0.3)


def test_a_service_rolls_to_a_good_version_and_back_from_a_bad_one(tmp_path: Path) -> None:
    with running_region(tmp_path, 1) as region, running_host(region, tmp_path) as host:
        asker = Asker(region)
        until("the node is ready", lambda: asker.ready_nodes() == ["host1"], WITHIN_S, host)
        submit(host.address)
        wait_rollout(asker, host, 0, "successful")
        until("all three serve", lambda: all_serve(asker, "0"), WITHIN_S, host)

        visitor = Visitor(asker)
        with visitor.visiting():
            submit(host.address, version="1")
            wait_rollout(asker, host, 1, "successful")
            until("all three serve the new version", lambda: all_serve(asker, "1"), WITHIN_S, host)

            submit(host.address, version="2", status="500", healthy_deadline="2s", progress_deadline="6s")
            wait_rollout(asker, host, 2, "failed")
            assert "going back to version 1" in deployment(asker, 2)[1]
            wait_rollout(asker, host, 3, "successful")
            until("all three serve the good version again", lambda: all_serve(asker, "1"), WITHIN_S, host)

        assert (visitor.fewest >= 2, visitor.served > 10) == (True, True), f"at worst {visitor.fewest} served"
        job = asker.ask(JOB_GET, JobRequest(job_id=NAME)).job
        assert (job.version, job.stable) == (3, True)
