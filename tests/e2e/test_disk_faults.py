"""What a server does when its disk fails: it stops rather than lie, says why, and comes back with all it promised."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from fedsched.model.errors import FedschedError
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.job import JOB_DEREGISTER, JobDeregisterRequest
from fedsched.rpc.methods.raft import RAFT_TRANSFER_LEADERSHIP, PeerRequest
from fedsched.rpc.methods.snapshot import SNAPSHOT_SAVE
from tests.e2e.calls import CALL_S, Caller, connect, look, status_of
from tests.e2e.disks import MIB, SmallDisk, SyncShim, flip_bit, small_disk
from tests.e2e.region import Region, Server, running_region
from tests.e2e.view import views, wait_leader, wait_level, wait_until
from tests.e2e.writers import writing
from tests.sizes import size

pytestmark = pytest.mark.processes

QUICK = "raft_multiplier = 0.5"
QUICK_AUTOPILOT = 'autopilot.server_stabilization_time = "500ms"\nautopilot.last_contact_threshold = "1s"'
DISK_BYTES = 96 * MIB
"""Of which 5 % are the soft limit and a quarter of that the hard one."""
EXIT_S = 1.0
"""From the failing sync to the end of the process."""


@pytest.fixture
def region(tmp_path: Path) -> Iterator[Region]:
    with running_region(tmp_path, extra=QUICK) as region:
        wait_leader(region, look)
        yield region


@pytest.fixture
def shim(tmp_path: Path) -> SyncShim:
    return SyncShim(tmp_path)


@pytest.fixture
def shimmed(tmp_path: Path, shim: SyncShim) -> Iterator[Region]:
    """A region whose syncs all go through the shim."""
    with running_region(tmp_path, extra=QUICK, start=False) as region:
        for server in region.servers.values():
            shim.put_under(server)
        region.start()
        wait_leader(region, look)
        yield region


def last_line(server: Server) -> str:
    """What an operator sees last on stderr."""
    return server.log_text().rstrip().splitlines()[-1]


def lead(region: Region, name: str) -> None:
    """Make this server the leader."""

    def leads() -> bool:
        leader = wait_leader(region, look)
        if leader != name:
            with suppress(FedschedError), Caller(region.servers[leader]) as caller:
                caller.call(RAFT_TRANSFER_LEADERSHIP, PeerRequest(id=name))
        return leader == name

    wait_until(f"{name} leads", leads, 30, region)


def refusal(server: Server, key: str, value: str = "value") -> FedschedError | None:
    """How this write is refused; None when it is done."""
    try:
        with Caller(server) as caller:
            caller.register(key, value)
    except FedschedError as error:
        return error
    return None


# --- syncs that fail -------------------------------------------------------------------------------------------------


def assert_died_of_its_disk(server: Server, shim: SyncShim) -> None:
    code = server.wait_exit(10)
    took_s = time.monotonic() - shim.failed_at(server)

    assert code == 1
    assert took_s < EXIT_S
    print(f"{server.name} ended {took_s * 1000:.0f} ms after the failing sync")
    assert last_line(server).startswith("fedsched agent: raft stopped: the log store failed:")
    assert str(server.data_dir) in last_line(server)
    assert "Traceback" not in server.log_text()


def test_a_leader_whose_sync_fails_acknowledges_nothing_more_and_the_others_lose_nothing(
    shimmed: Region, shim: SyncShim
) -> None:
    name = wait_leader(shimmed, look)
    victim = shimmed.servers[name]
    with writing(victim, [f"w{number}" for number in range(8)]) as writers:
        writers.wait(50)
        shim.fail(victim)
        assert_died_of_its_disk(victim, shim)

    failed_at = shim.failed_at(victim)
    assert [key for key, write in writers.acknowledged.items() if write.sent_at > failed_at] == []
    assert writers.sent > len(writers.acknowledged), "nobody was being served when the disk failed"
    successor = wait_leader(shimmed, look, needed=2)
    with Caller(shimmed.servers[successor]) as caller:
        caller.register("after", "the failure")
    writers.check_all_there(shimmed.servers[successor])

    shim.remove(victim)
    shimmed.start([name])
    wait_level(shimmed, look, within_s=30)
    writers.check_all_there(victim)


def test_a_follower_whose_sync_fails_confirms_nothing_more_and_the_others_go_on(
    shimmed: Region, shim: SyncShim
) -> None:
    leader = wait_leader(shimmed, look)
    name = shimmed.others(leader)[0]
    victim = shimmed.servers[name]
    with Caller(shimmed.servers[leader]) as caller:
        acknowledged = {f"job-{number}": caller.register(f"job-{number}", "value") for number in range(20)}
        durable = wait_level(shimmed, look, within_s=10)[name].last
        victim_id = status_of(victim).server_id
        shim.fail(victim)
        acknowledged |= {f"late-{number}": caller.register(f"late-{number}", "value") for number in range(5)}
        assert_died_of_its_disk(victim, shim)

        [confirmed] = [peer.match for peer in status_of(shimmed.servers[leader]).peers if peer.id == victim_id]
        assert confirmed <= durable
        acknowledged["after"] = caller.register("after", "value")
    assert wait_leader(shimmed, look, needed=2) == leader

    shim.remove(victim)
    shimmed.start([name])
    wait_level(shimmed, look, within_s=30)
    with Caller(victim) as reader:
        assert {key: reader.get(key).index for key in acknowledged} == acknowledged


# --- disks that fill up ----------------------------------------------------------------------------------------------


@pytest.fixture
def cramped(tmp_path: Path) -> Iterator[tuple[Region, SmallDisk]]:
    """A region in which s1 has a small disk with a quarter of it as ballast."""
    with running_region(tmp_path, extra=QUICK, start=False) as region:
        victim = region.servers["s1"]
        victim.prefix = ["env", "FEDSCHED_SERVER_BALLAST_SIZE=24MiB"]
        with small_disk(victim, DISK_BYTES) as disk:
            region.start()
            wait_leader(region, look)
            yield region, disk


def test_a_leader_short_of_room_refuses_writes_until_there_is_room_and_hands_over_when_there_is_hardly_any(
    cramped: tuple[Region, SmallDisk],
) -> None:
    region, disk = cramped
    leader, follower = region.servers["s1"], region.servers["s2"]
    lead(region, "s1")
    with Caller(leader) as caller:
        caller.register("before", "value")
        caller.register("to-go", "value")
    term = views(region, look)["s1"].term

    disk.fill(leave=DISK_BYTES * 3 // 100)

    wait_until("s1 refuses writes", lambda: refusal(leader, "more") is not None, 10, region)
    for server in (leader, follower):
        refused = refusal(server, "more")
        assert refused is not None
        assert refused.code == "disk_pressure"
        assert "nearly full" in str(refused)
        assert "free space" in str(refused)
        with Caller(server) as caller:
            assert caller.get("before").value == "value"
    with Caller(leader) as caller:
        caller.call(JOB_DEREGISTER, JobDeregisterRequest(job_id="to-go", purge=True))
        assert caller.get("to-go").value is None
    assert views(region, look)["s1"].term == term
    assert wait_leader(region, look) == "s1"

    disk.make_room()
    wait_until("s1 takes writes again", lambda: refusal(leader, "more") is None, 10, region)

    disk.fill(leave=DISK_BYTES // 100)
    wait_until("somebody else leads", lambda: wait_leader(region, look) != "s1", 10, region)
    wait_until("writes go on", lambda: refusal(follower, "others", "have room") is None, 10, region)
    disk.make_room()
    wait_level(region, look, within_s=10)
    with Caller(leader) as caller:
        assert caller.get("others").value == "have room"


def write_until_it_dies(region: Region, victim: Server, acknowledged: dict[str, int]) -> None:
    """Write much, through another server, until this one has ended for want of room."""
    name = region.others(victim.name)[0]
    with Caller(region.servers[name]) as caller:
        for number in range(100):
            key = f"{victim.starts}-{number}"
            acknowledged[key] = caller.register(key, "x" * (MIB * 3 // 4))
            if not victim.is_alive:
                break
    assert victim.wait_exit(5) == 1
    assert last_line(victim).startswith("fedsched agent: ")
    assert "the disk is full: make room" in last_line(victim)
    assert "Traceback" not in victim.log_text()


@pytest.mark.bare
def test_a_server_with_a_full_disk_says_so_and_its_ballast_lets_it_start_again(
    cramped: tuple[Region, SmallDisk],
) -> None:
    region, disk = cramped
    victim = region.servers["s1"]
    lead(region, "s2")
    ballast = victim.data_dir / "server" / "ballast"
    assert ballast.stat().st_blocks * 512 >= 24 * MIB
    acknowledged: dict[str, int] = {}

    disk.fill()
    write_until_it_dies(region, victim, acknowledged)
    assert ballast.exists()
    disk.fill()

    region.start(["s1"])
    wait_level(region, look, within_s=20)
    assert not ballast.exists()

    disk.fill()
    write_until_it_dies(region, victim, acknowledged)
    disk.fill()
    victim.start()
    assert victim.wait_exit(10) == 1
    assert "the disk is full: make room" in last_line(victim)

    disk.make_room()
    region.start(["s1"])
    wait_level(region, look, within_s=20)
    assert ballast.exists()
    with Caller(victim) as caller:
        assert {key: caller.get(key).index for key in acknowledged} == acknowledged


# --- disks that forget -----------------------------------------------------------------------------------------------


def raft_dir(server: Server) -> Path:
    return server.data_dir / "server" / "raft"


def snapshots_of(server: Server) -> list[Path]:
    """Newest first."""
    found = (raft_dir(server) / "snapshots").glob("*.snapshot")
    return sorted(found, key=lambda path: int(path.stem.split("-")[0]), reverse=True)


def damage_closed_log(server: Server, record: bytes) -> Path:
    assert server.terminate() == 0
    flip_bit(raft_dir(server) / "log.db", within=record)
    return raft_dir(server) / "log.db"


def damage_crashed_log(server: Server, record: bytes) -> Path:
    server.kill()
    flip_bit(raft_dir(server) / "log.db-wal", within=record)
    return raft_dir(server) / "log.db"


def assert_refuses_then_comes_back_wiped(region: Region, victim: Server, damaged: Path) -> None:
    with Caller(region.servers["s1"]) as caller:
        [former] = [peer.id for peer in caller.peers() if peer.name == victim.name]
        for _ in range(2):  # starting again makes it neither better nor worse
            victim.start()
            assert victim.wait_exit(20) == 1
            assert str(damaged) in last_line(victim)
            assert "wipe the data directory and let the server rejoin as a new one" in last_line(victim)
            assert "Traceback" not in victim.log_text()

        victim.wipe()
        region.start([victim.name])
        wait_level(region, look, within_s=30)
        wait_until(
            "the wiped server votes under its new id, and its former one is gone",
            lambda: (
                [(peer.id != former, peer.is_voter) for peer in caller.peers() if peer.name == victim.name]
                == [(True, True)]
            ),
            30,
            region,
        )
        assert len(caller.peers()) == 3


def test_a_server_with_a_damaged_log_refuses_to_start_and_once_wiped_comes_back_whole_under_a_new_id(
    tmp_path: Path,
) -> None:
    with running_region(tmp_path, extra=QUICK, top=QUICK_AUTOPILOT) as region:
        lead(region, "s1")
        for cycle, damage in enumerate([damage_closed_log, damage_crashed_log]):
            victim = region.servers["s2"]
            with Caller(region.servers["s1"]) as caller:
                for number in range(20):
                    caller.register(f"job-{number}", f"needle {cycle}.{number}.")
            wait_level(region, look, within_s=10)

            assert_refuses_then_comes_back_wiped(region, victim, damage(victim, f"needle {cycle}.7.".encode()))

            with Caller(victim) as reader:
                assert reader.get("job-7").value == f"needle {cycle}.7."


def cut_snapshot(region: Region, server: Server, entries: int) -> None:
    """So many writes to the region, then a snapshot at this server."""
    with Caller(region.servers["s1"]) as caller:
        for number in range(entries):
            caller.register(f"job-{number % 10}", f"{time.monotonic()}")
    wait_level(region, look, within_s=10)
    with connect(server.address, CALL_S) as saver:
        assert sum(len(item) for item in saver.download(SNAPSHOT_SAVE, Empty(), stale=True)) > 0


def test_a_server_with_damaged_snapshots_starts_from_an_older_one_that_its_log_reaches_or_refuses(
    tmp_path: Path,
) -> None:
    extra = f"{QUICK}\nraft_trailing_logs = 100"
    with running_region(tmp_path, extra=extra, top=QUICK_AUTOPILOT) as region:
        lead(region, "s1")
        victim = region.servers["s3"]
        cut_snapshot(region, victim, entries=20)
        cut_snapshot(region, victim, entries=20)
        assert victim.terminate() == 0
        newest, _ = snapshots_of(victim)
        flip_bit(newest)

        region.start(["s3"])
        wait_level(region, look, within_s=20)
        assert f'snapshot_unusable agent=s3 why="snapshot {newest}' in victim.log_text()

        cut_snapshot(region, victim, entries=150)  # more than the log keeps behind it
        assert victim.terminate() == 0
        for path in snapshots_of(victim):
            flip_bit(path)
        assert_refuses_then_comes_back_wiped(region, victim, snapshots_of(victim)[0])


# --- one directory, one process --------------------------------------------------------------------------------------


def test_a_second_agent_on_a_data_directory_names_the_first_one_and_does_not_disturb_it(region: Region) -> None:
    leader = wait_leader(region, look)
    first = region.servers[leader]
    term = views(region, look)[leader].term
    second = region.add("intruder", bootstrap_expect=3)
    second.prefix = ["env", f"FEDSCHED_DATA_DIR={first.data_dir}"]

    with writing(first, ["steady"]) as writers:
        writers.wait(10)
        second.start()
        code = second.wait_exit(20)
        writers.wait(len(writers.acknowledged) + 10)
    del region.servers["intruder"]

    assert code == 1
    assert f"{first.data_dir}/server is in use by process {first.pid}" in last_line(second)
    assert "Traceback" not in second.log_text()
    assert wait_leader(region, look) == leader
    assert views(region, look)[leader].term == term
    writers.check_all_there(first)


# --- crashes ---------------------------------------------------------------------------------------------------------


def test_a_server_killed_again_and_again_while_it_writes_always_starts_and_loses_nothing(region: Region) -> None:
    victim = region.servers["s1"]
    chance = Random(5)
    rounds = []
    for round_ in range(size(5, 10)):
        region.start(["s1"]) if round_ else None
        with writing(victim, [f"r{round_}w{number}" for number in range(4)]) as writers:
            writers.wait(1 + chance.randrange(60))
            victim.kill()
        rounds.append(writers)

    region.start(["s1"])
    wait_leader(region, look)
    wait_level(region, look, within_s=30)
    for writers in rounds:
        writers.check_all_there(victim)
    print(f"{sum(len(writers.acknowledged) for writers in rounds)} writes acknowledged over {len(rounds)} kills")


# --- disks that stall ------------------------------------------------------------------------------------------------


def test_a_leader_whose_disk_stays_slow_hands_over(shimmed: Region, shim: SyncShim) -> None:
    """Half an election time-out is 250 ms here, and the patience 5 s."""
    name = wait_leader(shimmed, look)
    slow = shimmed.servers[name]
    term = views(shimmed, look)[name].term
    began = time.monotonic()
    shim.delay(slow, 0.35)

    with writing(shimmed.servers[shimmed.others(name)[0]], ["steady", "going"]) as writers:
        wait_until(f"{name} hands over", lambda: "handing_over" in slow.log_text(), 20, shimmed)
        took_s = time.monotonic() - began
        successor = wait_leader(shimmed, look)
        writers.wait(len(writers.acknowledged) + 10)

    assert f'handing_over agent={name} why="slow disk"' in slow.log_text()
    assert took_s > 5
    assert successor != name
    assert views(shimmed, look)[successor].term == term + 1, "a handover, not an election after silence"
    wait_level(shimmed, look, within_s=20)
    writers.check_all_there(slow)
    print(f"handed over {took_s:.1f} s after the disk became slow")
