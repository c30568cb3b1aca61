"""Three real agents on loopback: what an operator may rely on when servers stop, vanish, return and join."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from fedsched.rpc.methods.raft import RAFT_REMOVE_PEER, PeerRequest
from tests.chaos.links import ProxyLinks, both_ways
from tests.e2e.calls import Caller, look, register_all
from tests.e2e.hostile import pour_garbage
from tests.e2e.region import HOST, Region, running_region
from tests.e2e.view import views, wait_leader, wait_level, wait_until
from tests.sizes import size

pytestmark = pytest.mark.processes

SMALL_LOG = 'raft_snapshot_threshold = 500\nraft_snapshot_size = "64KiB"\nraft_trailing_logs = 100'
"""So that a server that was away is brought up by a snapshot rather than by the log."""

QUICK_AUTOPILOT = 'autopilot.server_stabilization_time = "2s"\nautopilot.last_contact_threshold = "1s"'


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    with running_region(tmp_path) as region:
        wait_leader(region, look)
        yield region


def test_a_write_through_any_server_can_be_read_through_every_server(region: Region) -> None:
    for name, server in region.servers.items():
        with Caller(server) as caller:
            index = caller.register(f"job-{name}", f"value of {name}")

        for other in region.servers.values():
            with Caller(other) as reader:
                seen = reader.get(f"job-{name}")
            assert (seen.value, seen.index) == (f"value of {name}", index)


def test_sigterm_stops_a_leader_within_five_seconds_and_hands_leadership_over(region: Region) -> None:
    leader = wait_leader(region, look)
    term = views(region, look)[leader].term

    code = region.servers[leader].terminate(within_s=5)

    assert code == 0
    successor = wait_leader(region, look, needed=2)
    assert successor != leader
    assert views(region, look)[successor].term == term + 1
    last_words = region.servers[leader].log_text().partition("agent_stopping")[0].splitlines()
    assert any("leader_found" in line and f"term={term + 1}" in line for line in last_words), "a handover, not silence"
    with Caller(region.servers[successor]) as caller:
        caller.register("after", "handover")


def test_a_second_process_on_a_data_directory_is_refused_and_the_first_goes_on(region: Region) -> None:
    first = region.servers["s1"]
    second = region.add("s1b", bootstrap_expect=3)
    second.directory = first.directory.parent / "s1b"
    second.write_config()
    text = second.config.read_text().replace(str(second.data_dir), str(first.data_dir))
    second.config.write_text(text)
    second.write_config = lambda: None  # type: ignore[method-assign]

    second.start()
    code = second.wait_exit(30)
    del region.servers["s1b"]

    assert code != 0
    assert str(first.data_dir) in second.log_text()
    assert "Traceback" not in second.log_text()
    with Caller(first) as caller:
        caller.register("still", "here")


def test_nothing_acknowledged_is_lost_when_all_servers_are_killed_at_once(region: Region) -> None:
    with Caller(region.servers["s1"]) as caller:
        indexes = {f"job-{number}": caller.register(f"job-{number}", str(number)) for number in range(50)}

    region.kill()
    region.start()
    wait_leader(region, look)

    with Caller(region.servers["s2"]) as reader:
        for key, index in indexes.items():
            seen = reader.get(key)
            assert (seen.value, seen.index) == (key.removeprefix("job-"), index)
    wait_level(region, look, within_s=30)


def test_a_wiped_server_comes_back_under_a_new_id(tmp_path: Path) -> None:
    with running_region(tmp_path, top=QUICK_AUTOPILOT) as region:
        _wipe_one(region)


def _wipe_one(region: Region) -> None:
    leader = wait_leader(region, look)
    victim = region.servers[region.others(leader)[0]]
    with Caller(region.servers[leader]) as caller:
        for number in range(20):
            caller.register(f"job-{number}", str(number))
        before = {peer.name: peer.id for peer in caller.peers()}

    victim.kill()
    victim.wipe()
    victim.start()
    victim.wait_listening()

    wait_level(region, look, within_s=60)
    with Caller(region.servers[leader]) as caller:

        def entries() -> dict[str, bool]:
            return {peer.id: peer.is_voter for peer in caller.peers() if peer.name == victim.name}

        wait_until(
            "the wiped server votes again, and its old id is gone",
            lambda: before[victim.name] not in entries() and list(entries().values()) == [True],
            within_s=60,
            region=region,
        )


def test_a_brand_new_fourth_server_catches_up_while_writes_go_on_and_takes_the_seat_of_one_that_goes(
    tmp_path: Path,
) -> None:
    with running_region(tmp_path, extra=SMALL_LOG, top=QUICK_AUTOPILOT) as region:
        leader = wait_leader(region, look)
        leaving = region.others(leader)[0]
        with Caller(region.servers[leader]) as caller:
            for number in range(size(700, 1500)):
                caller.register(f"job-{number % 40}", str(number))
            region.add("s4", bootstrap_expect=0)
            region.wire()
            region.start(["s4"])
            last = caller.register("with-four", "servers")
            wait_until(
                "s4 has caught up",
                lambda: (
                    bool(caller.register("meanwhile", str(time.monotonic())))
                    and views(region, look, ["s4"])["s4"].applied >= last
                ),
                within_s=60,
                region=region,
            )
            votes = {peer.name: peer.is_voter for peer in caller.peers()}
            assert votes["s4"] is False, "four voters survive no more failures than three"

            region.servers[leaving].terminate()
            [gone] = [peer.id for peer in caller.peers() if peer.name == leaving]
            caller.call(RAFT_REMOVE_PEER, PeerRequest(id=gone))
            wait_until(
                f"s4 votes in the place of {leaving}",
                lambda: {peer.name for peer in caller.peers() if peer.is_voter} == {*region.others(leaving)},
                within_s=60,
                region=region,
            )
        wait_level(region, look, within_s=30, names=region.others(leaving))
        with Caller(region.servers["s4"]) as reader:
            assert reader.get("with-four").value == "servers"


def test_a_follower_cut_off_for_thousands_of_entries_catches_up_while_writes_go_on(tmp_path: Path) -> None:
    entries = size(2_000, 20_000)
    links = ProxyLinks(tmp_path / "proxy.log")
    try:
        only_writes = f"{SMALL_LOG}\nnum_schedulers = 0"
        with running_region(tmp_path, extra=only_writes, route=links.route) as region:
            leader = wait_leader(region, look)
            away = region.others(leader)[0]
            with Caller(region.servers[leader]) as caller:
                began_at = caller.register("first", "value")
            links.cut(both_ways(away, region.servers))
            last = register_all(region.servers[leader], (f"job-{number % 200}" for number in range(entries)))
            assert last - began_at >= entries
            links.heal()
            with Caller(region.servers[leader]) as caller:
                term = views(region, look)[leader].term
                deadline = time.monotonic() + 60
                slowest = 0.0
                while views(region, look)[away].applied < last:
                    assert time.monotonic() < deadline, region.servers[away].tail()
                    wrote_at = time.monotonic()
                    caller.register("meanwhile", str(wrote_at))
                    slowest = max(slowest, time.monotonic() - wrote_at)
            assert slowest < 10, "a write waited behind the snapshot"
            assert wait_leader(region, look) == leader
            assert views(region, look)[leader].term == term, "catching up cost the leader its office"
            wait_level(region, look, within_s=30)
    finally:
        links.close()


def test_random_bytes_on_every_port_leave_the_region_unaffected(region: Region) -> None:
    leader = wait_leader(region, look)
    term = views(region, look)[leader].term
    memory = {name: resident_mib(server.pid) for name, server in region.servers.items()}
    chance = Random(7)

    ports = [port for server in region.servers.values() for port in (server.http_port, server.rpc_port)]
    with ThreadPoolExecutor(len(ports) * 4) as pool:
        pouring = [pool.submit(pour_garbage, HOST, port, Random(chance.random())) for port in ports * 4]
        number = 0
        while not all(one.done() for one in pouring) or not number:
            with Caller(region.servers[leader]) as caller:
                caller.register("amid", f"noise {number}")
                assert caller.get("amid").value == f"noise {number}"
            number += 1
            time.sleep(0.05)
        for one in pouring:
            one.result()

    assert views(region, look)[leader].term == term
    for name, server in region.servers.items():
        assert server.is_alive
        assert "Traceback" not in server.log_text(), server.tail()
        assert resident_mib(server.pid) < memory[name] + 64
    assert set(region.stop().values()) == {0}


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
