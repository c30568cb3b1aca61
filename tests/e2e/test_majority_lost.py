"""Two of three servers gone for good: what the third can still do, and how a person lets it go on alone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedsched.model.errors import FedschedError
from fedsched.rpc.context import CallMeta
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.job import JOB_GET, JobRequest
from fedsched.rpc.methods.raft import RAFT_LIST_PEERS
from tests.e2e.calls import Caller, connect, look
from tests.e2e.region import Region, Server, running_region
from tests.e2e.view import wait_leader, wait_level, wait_until

pytestmark = pytest.mark.processes


def recover(server: Server) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedsched", "operator", "raft", "recover", "-yes", f"-data-dir={server.data_dir}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)


@pytest.fixture
def survivor(tmp_path: Path) -> Iterator[tuple[Region, Server]]:
    """A region of which one server is left, with what was written before."""
    with running_region(tmp_path, top='autopilot.server_stabilization_time = "1s"') as region:
        left = region.servers[wait_leader(region, look)]
        with Caller(left) as caller:
            for number in range(20):
                caller.register(f"job-{number}", str(number))
        wait_level(region, look, within_s=30)
        for name in region.others(left.name):
            region.servers[name].kill()
            region.servers[name].wipe()
        yield region, left


def test_alone_it_refuses_to_decide_but_tells_what_it_knows(survivor: tuple[Region, Server]) -> None:
    _, left = survivor
    with connect(left.address, 5) as caller, pytest.raises(FedschedError):
        caller.ask(JOB_GET, JobRequest(job_id="job-3"), timeout_s=1)
    with Caller(left) as patient:
        assert patient.get("job-3", stale=True).value == "3"
        peers, _ = patient.call(RAFT_LIST_PEERS, Empty(), CallMeta(stale=True))
    assert len(peers.servers) == 3


def test_recovered_offline_it_leads_alone_keeps_everything_and_takes_new_servers_in(
    survivor: tuple[Region, Server],
) -> None:
    region, left = survivor
    running = recover(left)
    left.terminate()
    stopped = recover(left)

    assert running.returncode != 0, "a running server must not be changed under its feet"
    assert stopped.returncode == 0, stopped.stderr
    left.start()
    left.wait_listening()
    assert wait_leader(region, look, needed=1) == left.name
    with Caller(left) as caller:
        assert [caller.get(f"job-{number}").value for number in range(20)] == [str(number) for number in range(20)]
        caller.register("alone", "yes")

        region.start(region.others(left.name))
        wait_until(
            "all three vote again",
            lambda: sum(peer.is_voter for peer in caller.peers()) == 3,
            within_s=60,
            region=region,
        )
    wait_level(region, look, within_s=30)
    with Caller(region.servers[region.others(left.name)[0]]) as reader:
        assert reader.get("alone").value == "yes"
